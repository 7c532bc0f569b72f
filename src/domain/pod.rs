//! The facts of a Pod that the lifecycle and the rules need, parsed from the API server's JSON. Parsing drops every
//! other field, because the caches hold thousands of Pods.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::digest::Digest;
use super::interner::Shared;
use super::quantity;
use crate::api::keys;

/// Type of the condition of a Pod whose resize the kubelet has not begun: the resize is deferred, or infeasible on its
/// node.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// Type of the condition of a Pod whose resize the kubelet is making.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// A Pod with the fields that Operating reads. Each field means what it means in `core/v1`. An absent list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// `metadata`.
    pub metadata: PodMetadata,
    /// `spec`.
    pub spec: PodSpec,
    /// `status`.
    pub status: PodStatus,
}

/// `metadata` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMetadata {
    /// Namespace; empty in the object of a CREATE review.
    pub namespace: String,
    /// Name; empty in a CREATE review with `generateName`.
    pub name: String,
    /// UID; empty in a CREATE review.
    pub uid: String,
    /// The number in `resourceVersion`. Kubernetes guarantees since 1.35 that these are ordered as integers. 0 if
    /// absent.
    #[serde(deserialize_with = "resource_version")]
    pub resource_version: u64,
    /// The API server raises this number with each change of the spec. 0 if absent.
    pub generation: i64,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// The annotations that the lifecycle, the rules and CollaSet read. All others are dropped.
    #[serde(deserialize_with = "known_annotations")]
    pub annotations: BTreeMap<String, String>,
    /// Finalizers.
    #[serde(deserialize_with = "exact_list")]
    pub finalizers: Vec<String>,
    /// RFC 3339. Present once the deletion has begun.
    pub deletion_timestamp: Option<String>,
    /// Seconds that the containers have to end, from the begin of the deletion. 0 once the kubelet has reported that
    /// they ended.
    pub deletion_grace_period_seconds: Option<i64>,
    /// RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Owners.
    #[serde(deserialize_with = "shared_list")]
    pub owner_references: Shared<Vec<Owner>>,
    /// Whether a cache has dropped labels of this Pod; see [`PodMetadata::reduced`].
    #[serde(skip)]
    pub labels_dropped: bool,
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    /// `group/version`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Whether this owner is the managing controller of the Pod.
    pub controller: bool,
}

impl Owner {
    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(g, _)| g)
    }

    /// Whether the owner is a CollaSet.
    pub fn is_collaset(&self) -> bool {
        self.kind == "CollaSet" && self.group() == keys::GROUP
    }

    /// Whether both references name the same object: the same group, kind and name. The version does not matter,
    /// because all versions of a group serve the same objects.
    pub fn names_same_object(&self, other: &Owner) -> bool {
        self.group() == other.group() && self.kind == other.kind && self.name == other.name
    }
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers.
    #[serde(deserialize_with = "shared_list")]
    pub containers: Shared<Vec<Container>>,
    /// Init containers. Those with `restartPolicy: Always` are sidecars.
    #[serde(deserialize_with = "shared_list")]
    pub init_containers: Shared<Vec<Container>>,
    /// Readiness gates.
    #[serde(deserialize_with = "shared_list")]
    pub readiness_gates: Shared<Vec<ReadinessGate>>,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: String,
    /// Seconds after the start of the Pod at which the kubelet ends it.
    pub active_deadline_seconds: Option<i64>,
    /// Requests and limits of the Pod as a whole, in the form of [`Container::resources`].
    #[serde(deserialize_with = "shared_resizable")]
    pub resources: Shared<serde_json::Value>,
    /// Names of the PVCs that the volumes of the Pod refer to.
    #[serde(rename = "volumes", deserialize_with = "pvc_names")]
    pub pvcs: Vec<String>,
}

/// A container, with the fields that an in-place change can alter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name, unique in the Pod.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<String>,
    /// Requests and limits of `cpu` and `memory`, as raw JSON, because they are only compared. Other resources are
    /// dropped: the API server does not allow a resize of them, and a Pod may ask for thousands of resources that do
    /// not exist.
    #[serde(deserialize_with = "resizable_resources")]
    pub resources: serde_json::Value,
    /// For each resource, whether a resize restarts the container.
    #[serde(deserialize_with = "exact_list")]
    pub resize_policy: Vec<ResizePolicy>,
}

/// An entry of `resizePolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResizePolicy {
    /// `cpu` or `memory`.
    pub resource_name: String,
    /// `NotRequired` or `RestartContainer`.
    pub restart_policy: String,
}

/// An entry of `readinessGates`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    /// Type of the condition that must be True.
    pub condition_type: String,
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// The generation that the kubelet had seen when it wrote the status. 0 if absent, as before Kubernetes 1.34.
    pub observed_generation: i64,
    /// Phase.
    pub phase: String,
    /// Conditions. Only `Ready`, `pod.kusionstack.io/service-ready`, `PodScheduled` and the two of a resize are kept.
    #[serde(deserialize_with = "known_conditions")]
    pub conditions: Vec<PodCondition>,
    /// One entry for each container that the kubelet has seen.
    #[serde(deserialize_with = "exact_list")]
    pub container_statuses: Vec<ContainerStatus>,
    /// One entry for each init container that the kubelet has seen.
    #[serde(deserialize_with = "exact_list")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// A Pod condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// RFC 3339: when `status` changed last.
    pub last_transition_time: Option<String>,
    /// The reason, in one word. It is kept only for a pending resize (`Deferred` or `Infeasible`) and for a Pod without
    /// a node (`Unschedulable`).
    pub reason: String,
    /// The reason, in a sentence of at most 200 bytes. It is kept only for a Pod without a node.
    pub message: Option<Box<str>>,
    /// The generation that the condition describes. 0 if absent.
    pub observed_generation: i64,
}

/// A container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Container name.
    pub name: String,
    /// ID of the present run of the container. Each restart gives a new ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Name of the running image, as the runtime reports it. It may be another name of the image in the spec.
    pub image: String,
    /// ID of the running image. Two tags of one image have the same ID.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// Whether the container is ready.
    pub ready: bool,
    /// The resources that are in force.
    pub resources: Resources,
    /// Why the container does not run, from `state.waiting`.
    #[serde(rename = "state", deserialize_with = "waiting_state")]
    pub waiting: Option<Box<WaitingState>>,
}

/// The resources of a container that can be resized. Each is a digest of its request and limit; both are 0 if not
/// reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Digest of `cpu`.
    pub cpu: u64,
    /// Digest of `memory`.
    pub memory: u64,
}

impl Resources {
    /// Makes the digests of a `resources` field.
    pub fn from_resources(resources: &serde_json::Value) -> Resources {
        let digest = |name| {
            let mut digest = Digest::default();
            for kind in ["requests", "limits"] {
                let value = resources.get(kind).and_then(|r| r.get(name));
                digest.add_text(&value.map(quantity::normal_form).unwrap_or_default());
            }
            digest.value()
        };
        match resources {
            serde_json::Value::Object(_) => Resources {
                cpu: digest("cpu"),
                memory: digest("memory"),
            },
            _ => Resources::default(),
        }
    }

    /// The digest of a resource by its name in a `resizePolicy`. `None` for a resource that can't be resized.
    pub fn digest_of(&self, name: &str) -> Option<u64> {
        match name {
            "cpu" => Some(self.cpu),
            "memory" => Some(self.memory),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Resources, D::Error> {
        Ok(Resources::from_resources(&serde_json::Value::deserialize(
            d,
        )?))
    }
}

/// `state.waiting` of a container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WaitingState {
    /// The reason, in one word such as `ImagePullBackOff`.
    pub reason: String,
    /// The reason, in a sentence of at most 200 bytes.
    pub message: String,
}

/// Values of `state.waiting.reason` that say that a container cannot run as the Pod describes it. The kubelet sets them
/// (`pkg/kubelet/container/sync_result.go`, `pkg/kubelet/images/types.go`, `pkg/kubelet/kuberuntime`). The other
/// reasons, `ContainerCreating` and `PodInitializing`, belong to every normal start.
const BROKEN_REASONS: [&str; 14] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "PostStartHookError",
    "PreCreateHookError",
    "PreStartHookError",
    "RegistryUnavailable",
    "RunContainerError",
    "SignatureValidationFailed",
];

/// Largest length of a kept message in bytes. If an image is missing, each of thousands of Pods has such a message.
const MESSAGE_LIMIT: usize = 200;
/// The last character of a message that was cut.
const ELLIPSIS: char = '…';

/// How long a Pod that has lost its readiness counts as down for a moment: three periods of a readiness probe with the
/// default `periodSeconds` of 10. A Pod that failed one round of probes is Ready again by then.
///
/// A new Pod counts as starting for the same time; see [`Pod::is_starting`].
pub const BRIEFLY_DOWN: Duration = Duration::from_secs(30);

impl Pod {
    /// Whether the Pod has the label `kusionstack.io/control: "true"`, so that the lifecycle and the rules apply to it.
    pub fn is_managed(&self) -> bool {
        self.label(keys::CONTROL) == Some(keys::CONTROL_VALUE)
    }

    /// Whether the spec could be read: every Pod has a container. A cache keeps an unreadable Pod, so that the Pod
    /// counts, but nothing is known of its spec and status.
    pub fn is_readable(&self) -> bool {
        !self.spec.containers.is_empty()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(String::as_str)
    }

    /// Whether the deletion of the Pod has begun.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the containers of the Pod have ended for good.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The status of a condition: `Some(true)` for True, `Some(false)` for any other value, `None` if absent.
    pub fn condition(&self, type_: &str) -> Option<bool> {
        self.status
            .conditions
            .iter()
            .find(|c| c.type_ == type_)
            .map(|c| c.status == "True")
    }

    /// Whether the kubelet has seen the present spec. True if the kubelet does not report the generation that it has
    /// seen (before Kubernetes 1.34).
    pub fn is_spec_observed(&self) -> bool {
        let (generation, observed) = (self.metadata.generation, self.status.observed_generation);
        generation == 0 || observed == 0 || observed >= generation
    }

    /// Whether the kubelet reports the Pod Ready.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready") == Some(true)
    }

    /// Whether the Pod serves, as every budget counts it: it has the label `service-available`, is Ready, and is
    /// neither terminating nor finished. This function checks the label and the condition, because the lifecycle
    /// controller removes the label one reconcile after the condition has changed (contract 3.2 row 12).
    pub fn is_available(&self) -> bool {
        self.label(keys::SERVICE_AVAILABLE).is_some()
            && self.is_ready()
            && !self.is_terminating()
            && !self.is_finished()
    }

    /// Whether the Pod is not Ready and cannot be expected to become Ready without a change: it has not started (phase
    /// `Pending`), a container crashes again and again or cannot be created, or an image cannot be pulled.
    ///
    /// No availability is lost when such a Pod is changed or deleted. A Pod that is only not Ready can be Ready in a
    /// moment.
    pub fn is_broken(&self) -> bool {
        let mut statuses = self
            .status
            .container_statuses
            .iter()
            .chain(&self.status.init_container_statuses);
        !self.is_ready()
            && (self.status.phase == "Pending"
                || statuses.any(|s| {
                    let waiting = s.waiting.as_ref();
                    waiting.is_some_and(|w| BROKEN_REASONS.contains(&w.reason.as_str()))
                }))
    }

    /// When the API server created the Pod, in whole seconds of the API server's clock.
    pub fn created_at(&self) -> Option<Timestamp> {
        let text = self.metadata.creation_timestamp.as_deref()?;
        text.parse().ok()
    }

    /// Whether the Pod is not available yet, but can be within moments: it was created less than [`BRIEFLY_DOWN`] ago,
    /// is not [broken](Pod::is_broken), and neither terminates nor has finished. The kubelet writes the status of such
    /// a Pod several times.
    ///
    /// The creation time comes from the API server's clock, so no decision about safety may depend on this function. If
    /// the creation time is [`BRIEFLY_DOWN`] or more ahead of `now`, the clocks differ too much, and the Pod does not
    /// count as starting.
    pub fn is_starting(&self, now: Timestamp) -> bool {
        let is_new = self
            .created_at()
            .is_some_and(|created| now.duration_since(created).unsigned_abs() < BRIEFLY_DOWN);
        is_new
            && !self.is_available()
            && !self.is_broken()
            && !self.is_terminating()
            && !self.is_finished()
    }

    /// Whether the spec has the readiness gate of the lifecycle.
    pub fn has_service_ready_gate(&self) -> bool {
        self.spec
            .readiness_gates
            .iter()
            .any(|g| g.condition_type == keys::SERVICE_READY)
    }

    /// Whether the Pod has a protection finalizer of a cooperator (contract 2.3).
    pub fn is_protected(&self) -> bool {
        self.metadata
            .finalizers
            .iter()
            .any(|f| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX))
    }

    /// The managing controller of the Pod.
    pub fn controller(&self) -> Option<&Owner> {
        self.metadata.owner_references.iter().find(|o| o.controller)
    }

    /// Whether the kubelet runs this Pod from a file: the Pod has the annotation [`keys::MIRROR`], and a Node is its
    /// controller.
    ///
    /// The annotation alone proves nothing, because a tenant can write it into the template of a workload. The kubelet
    /// names its Node as the controller of each mirror Pod (`pkg/kubelet/pod/mirror_client.go`). A Pod from a template
    /// has the controller of the workload instead.
    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key(keys::MIRROR)
            && self
                .controller()
                .is_some_and(|owner| owner.api_version == "v1" && owner.kind == "Node")
    }

    /// The value of an annotation that is kept; see [`PodMetadata::annotations`].
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }
}

fn resource_version<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let text = Option::<String>::deserialize(d)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        serde::de::Error::custom(format!("resourceVersion {text:?} is not a decimal number"))
    })
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// Reads a list and frees its spare capacity.
fn exact_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    let mut items: Vec<T> = null_as_default(d)?;
    items.shrink_to_fit();
    Ok(items)
}

fn shared_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    d: D,
) -> Result<Shared<Vec<T>>, D::Error> {
    exact_list(d).map(Shared::from)
}

/// Reads `resources`, with the requests and limits of `cpu` and `memory` only.
fn resizable_resources<'de, D: Deserializer<'de>>(d: D) -> Result<serde_json::Value, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ResizableAmounts {
        requests: Option<Amounts>,
        limits: Option<Amounts>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Amounts {
        cpu: Option<serde_json::Value>,
        memory: Option<serde_json::Value>,
    }
    fn json_object<const N: usize>(
        fields: [(&str, Option<serde_json::Value>); N],
    ) -> serde_json::Value {
        let present = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        serde_json::Value::Object(present.collect())
    }
    let amounts = |amount: Amounts| json_object([("cpu", amount.cpu), ("memory", amount.memory)]);
    let resizable: ResizableAmounts = null_as_default(d)?;
    Ok(json_object([
        ("requests", resizable.requests.map(amounts)),
        ("limits", resizable.limits.map(amounts)),
    ]))
}

fn shared_resizable<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Shared<serde_json::Value>, D::Error> {
    resizable_resources(d).map(Shared::from)
}

fn waiting_state<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<WaitingState>>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct State {
        waiting: Option<Box<WaitingState>>,
    }
    let mut waiting = null_as_default::<_, State>(d)?.waiting;
    if let Some(waiting) = &mut waiting {
        waiting.message = truncate_message(std::mem::take(&mut waiting.message));
    }
    Ok(waiting)
}

/// Cuts a message to [`MESSAGE_LIMIT`]. The cut message ends with an ellipsis, after a whole word if possible.
fn truncate_message(mut message: String) -> String {
    if message.len() > MESSAGE_LIMIT {
        message.truncate(message.floor_char_boundary(MESSAGE_LIMIT - ELLIPSIS.len_utf8()));
        let word_end = message.rfind(char::is_whitespace);
        if let Some(end) = word_end.filter(|end| *end > MESSAGE_LIMIT / 2) {
            message.truncate(message[..end].trim_end().len());
        }
        message.push(ELLIPSIS);
    }
    message.shrink_to_fit();
    message
}

fn pvc_names<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        persistent_volume_claim: Option<Source>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Source {
        claim_name: String,
    }
    let volumes: Vec<Volume> = null_as_default(d)?;
    let claims = volumes
        .into_iter()
        .filter_map(|v| v.persistent_volume_claim);
    let mut names: Vec<_> = claims.map(|c| c.claim_name).collect();
    names.shrink_to_fit();
    Ok(names)
}

fn known_annotations<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let mut annotations: BTreeMap<String, String> = null_as_default(d)?;
    annotations.retain(|k, _| {
        matches!(
            k.as_str(),
            keys::AVAILABLE_CONDITIONS
                | keys::SKIP_RULE_CONDITIONS
                | keys::BYPASS
                | keys::DELETE_TIMESTAMP
                | keys::MIRROR
                | keys::LAST_POD_STATUS
                | keys::DELETION_COST
                | keys::MIN_READY_SECONDS
                | keys::AWAITS_RESTART
                | keys::REPLACES
                | keys::SENT_AWAY
                | keys::DELETE_OPTIONS
                | keys::SCALED_IN_BY
                | keys::CONTROLLER_WOKEN
                | keys::RESIZING
                | keys::STABLE_REVISION
        )
    });
    Ok(annotations)
}

fn known_conditions<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<PodCondition>, D::Error> {
    let mut conditions: Vec<PodCondition> = null_as_default(d)?;
    conditions.retain(|c| {
        matches!(
            c.type_.as_str(),
            "Ready" | keys::SERVICE_READY | "PodScheduled" | RESIZE_PENDING | RESIZE_IN_PROGRESS
        )
    });
    let has_reason = |c: &PodCondition| {
        c.type_ == RESIZE_PENDING || c.type_ == "PodScheduled" && c.status != "True"
    };
    for condition in &mut conditions {
        if !has_reason(condition) {
            condition.reason = String::new();
        }
        let message = condition.message.take();
        if condition.type_ == "PodScheduled" && condition.status != "True" {
            condition.message = message.map(|text| truncate_message(text.into()).into());
        }
    }
    conditions.shrink_to_fit();
    Ok(conditions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// A Pod in this phase whose container `app` in `list` waits for `reason`. Without a reason the container runs.
    fn waits(phase: &str, ready: &str, list: &str, reason: Option<&str>) -> Pod {
        let state = match reason {
            Some(reason) => json!({ "waiting": { "reason": reason } }),
            None => json!({ "running": {} }),
        };
        serde_json::from_value(json!({ "status": {
            "phase": phase,
            "conditions": [{ "type": "Ready", "status": ready }],
            list: [{ "name": "fine", "state": { "running": {} } }, { "name": "app", "state": state }],
        } }))
        .unwrap()
    }

    #[test]
    fn pod_that_crashes_or_cannot_start_is_broken() {
        for reason in BROKEN_REASONS {
            for list in ["containerStatuses", "initContainerStatuses"] {
                let pod = waits("Running", "False", list, Some(reason));
                assert!(pod.is_broken(), "{reason} in {list}");
            }
        }
        assert!(waits("Pending", "False", "containerStatuses", None).is_broken());
    }

    #[test]
    fn pod_that_may_recover_is_not_broken() {
        for reason in [None, Some("ContainerCreating"), Some("PodInitializing")] {
            let pod = waits("Running", "False", "containerStatuses", reason);
            assert!(!pod.is_broken(), "{reason:?}");
        }
        let ready = waits(
            "Running",
            "True",
            "containerStatuses",
            Some(BROKEN_REASONS[0]),
        );
        assert!(!ready.is_broken());
        assert!(!Pod::default().is_broken());
    }

    #[test]
    fn new_pod_that_is_neither_available_nor_broken_is_starting() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let starting = |created: Option<&str>, patch: Value| {
            let mut pod = json!({
                "metadata": { "creationTimestamp": created },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] },
            });
            json_patch::merge(&mut pod, &patch);
            let pod: Pod = serde_json::from_value(pod).unwrap();
            pod.is_starting(at("2026-01-01T00:01:00Z"))
        };
        for (created, expected) in [
            (Some("2026-01-01T00:01:00Z"), true),
            (Some("2026-01-01T00:00:31Z"), true),
            (Some("2026-01-01T00:00:30Z"), false),
            (Some("2026-01-01T00:01:29Z"), true), // the API server's clock is ahead
            (Some("2026-01-01T00:01:30Z"), false),
            (Some("yesterday"), false),
            (None, false),
        ] {
            assert_eq!(starting(created, json!({})), expected, "{created:?}");
        }
        let waiting =
            json!([{ "name": "app", "state": { "waiting": { "reason": "ErrImagePull" } } }]);
        let available = json!({
            "metadata": { "labels": { (keys::SERVICE_AVAILABLE): "1" } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        for other in [
            json!({ "status": { "phase": "Pending" } }),
            json!({ "status": { "phase": "Failed" } }),
            json!({ "status": { "containerStatuses": waiting } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:01:00Z" } }),
            available,
        ] {
            let case = format!("{other}");
            assert!(!starting(Some("2026-01-01T00:01:00Z"), other), "{case}");
        }
    }

    #[test]
    fn mirror_pod_has_the_annotation_and_a_node_as_controller() {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true });
        let but = |patch: Value| {
            let mut owner = node.clone();
            json_patch::merge(&mut owner, &patch);
            owner
        };
        let replica_set = but(json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet" }));
        let no_controller = but(json!({ "controller": null })); // the merge removes the field
        for (owners, expected) in [
            (json!([node]), true),
            (json!([but(json!({ "controller": false }))]), false),
            (json!([no_controller]), false),
            (
                json!([but(json!({ "apiVersion": "example.com/v1" }))]),
                false,
            ),
            (json!([replica_set]), false),
            (json!([replica_set, no_controller]), false),
            (json!([no_controller, replica_set]), false),
            (json!([]), false),
            (json!(null), false),
        ] {
            let metadata =
                json!({ "annotations": { (keys::MIRROR): "x" }, "ownerReferences": owners });
            let mut pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            assert_eq!(pod.is_mirror(), expected, "{owners}");
            pod.metadata.annotations.clear();
            assert!(!pod.is_mirror(), "{owners} without the annotation");
        }
    }

    #[test]
    fn of_resources_cpu_and_memory_are_kept() {
        let resources = json!({
            "requests": { "cpu": "1", "example.com/a": "1" },
            "limits": { "memory": "1Gi", "example.com/a": "1", "cpu": null },
            "claims": [{ "name": "gpu" }],
        });
        let resizable = json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } });
        let container = json!({ "name": "app", "resources": resources });
        let spec = json!({ "containers": [container], "resources": resources });
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(spec.containers[0].resources, resizable);
        assert_eq!(*spec.resources, resizable);
        for none in [json!(null), json!({}), json!({ "limits": null })] {
            let spec = json!({ "containers": [{ "resources": none }], "resources": none });
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(spec.containers[0].resources, json!({}));
        }
    }

    #[test]
    fn of_volumes_the_claims_are_kept() {
        let volumes = json!([
            { "name": "a", "emptyDir": {} },
            { "name": "b", "persistentVolumeClaim": { "claimName": "web-b", "readOnly": true } },
            { "name": "c", "persistentVolumeClaim": null },
        ]);
        let spec: PodSpec = serde_json::from_value(json!({ "volumes": volumes })).unwrap();
        assert_eq!(spec.pvcs, ["web-b"]);
        let none: PodSpec = serde_json::from_value(json!({ "volumes": null })).unwrap();
        assert_eq!(none.pvcs.len(), 0);
    }

    #[test]
    fn container_status_keeps_image_and_waiting_reason() {
        let read = |status| serde_json::from_value::<ContainerStatus>(status).unwrap();
        let running = read(json!({
            "name": "a", "imageID": "sha", "containerID": "run", "ready": true, "state": { "running": {} },
        }));
        assert_eq!((running.image_id.as_str(), running.waiting), ("sha", None));
        for none in [json!(null), json!({}), json!({ "waiting": null })] {
            assert_eq!(read(json!({ "state": none })).waiting, None);
        }
        let waiting = json!({ "reason": "ErrImagePull", "message": "not found" });
        let waiting = read(json!({ "state": { "waiting": waiting } })).waiting;
        let waiting = waiting.unwrap();
        assert_eq!(
            (waiting.reason.as_str(), waiting.message.as_str()),
            ("ErrImagePull", "not found")
        );
    }

    #[test]
    fn long_message_ends_at_a_word_with_an_ellipsis() {
        let repeated_words = |count| vec!["abc"; count].join(" ");
        assert_eq!(truncate_message(repeated_words(50)), repeated_words(50));
        assert_eq!(
            truncate_message(repeated_words(51)),
            repeated_words(49) + "…"
        );
        assert_eq!(
            truncate_message(format!("x{}", "é".repeat(300))).len(),
            MESSAGE_LIMIT
        );
        for message in [repeated_words(300), "é".repeat(300), String::new()] {
            let once = truncate_message(message);
            assert!(once.len() <= MESSAGE_LIMIT, "{once}");
            assert_eq!(truncate_message(once.clone()), once);
        }
    }
}
