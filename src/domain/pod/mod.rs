//! The facts of a Pod that the lifecycle and the rules need, parsed from the API server's JSON. Parsing drops every
//! other field, because the caches hold thousands of Pods.

mod container;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

pub use super::interner::Shared;
use crate::api::keys;
#[cfg(test)]
use container::BROKEN_REASONS;
pub use container::{
    Container, ContainerPort, ContainerState, ContainerStatus, ResizePolicy, Resources,
    WaitingState,
};

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
    #[serde(deserialize_with = "parse::resource_version")]
    pub resource_version: u64,
    /// The API server raises this number with each change of the spec. 0 if absent.
    pub generation: i64,
    /// Labels.
    #[serde(deserialize_with = "parse::null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// The annotations that the lifecycle, the rules and CollaSet read. All others are dropped.
    #[serde(deserialize_with = "parse::known_annotations")]
    pub annotations: BTreeMap<String, String>,
    /// Finalizers.
    #[serde(deserialize_with = "parse::exact_list")]
    pub finalizers: Vec<String>,
    /// RFC 3339. Present once the deletion has begun.
    pub deletion_timestamp: Option<String>,
    /// Seconds that the containers have to end, from the begin of the deletion. 0 once the kubelet has reported that
    /// they ended.
    pub deletion_grace_period_seconds: Option<i64>,
    /// RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Owners.
    #[serde(deserialize_with = "parse::shared_list")]
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
    #[serde(deserialize_with = "parse::shared_list")]
    pub containers: Shared<Vec<Container>>,
    /// Init containers. Those with `restartPolicy: Always` are sidecars.
    #[serde(deserialize_with = "parse::shared_list")]
    pub init_containers: Shared<Vec<Container>>,
    /// Readiness gates.
    #[serde(deserialize_with = "parse::shared_list")]
    pub readiness_gates: Shared<Vec<ReadinessGate>>,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: String,
    /// Seconds after the start of the Pod at which the kubelet ends it.
    pub active_deadline_seconds: Option<i64>,
    /// Requests and limits of the Pod as a whole, in the form of [`Container::resources`].
    #[serde(deserialize_with = "parse::shared_resizable")]
    pub resources: Shared<serde_json::Value>,
    /// Name of the node; empty until the Pod has one.
    pub node_name: Shared<String>,
    /// Names of the PVCs that the volumes of the Pod refer to.
    #[serde(rename = "volumes", deserialize_with = "parse::pvc_names")]
    pub pvcs: Vec<String>,
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
    /// Addresses, the primary one first.
    #[serde(rename = "podIPs", deserialize_with = "parse::addresses")]
    pub addresses: Vec<IpAddr>,
    /// Conditions. Only `Ready`, `pod.kusionstack.io/service-ready`, `PodScheduled` and the two of a resize are kept.
    #[serde(deserialize_with = "parse::known_conditions")]
    pub conditions: Vec<PodCondition>,
    /// One entry for each container that the kubelet has seen.
    #[serde(deserialize_with = "parse::exact_list")]
    pub container_statuses: Vec<ContainerStatus>,
    /// One entry for each init container that the kubelet has seen.
    #[serde(deserialize_with = "parse::exact_list")]
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
    /// The reason, in one word. It is kept only for a pending resize (`Deferred` or `Infeasible`), for a Pod without a
    /// node (`Unschedulable`), and for a Pod that is not Ready (`ContainersNotReady`).
    pub reason: String,
    /// The reason, in a sentence of at most 200 bytes. It is kept only for a Pod without a node, and for a Pod that is
    /// not Ready because of its readiness gates.
    pub message: Option<Box<str>>,
    /// The generation that the condition describes. 0 if absent.
    pub observed_generation: i64,
}

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
                || statuses.any(|s| s.state.waiting.as_ref().is_some_and(|w| w.is_broken())))
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
