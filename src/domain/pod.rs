//! The facts of a Pod that the lifecycle and the rules look at, parsed from the API server's JSON and nothing more:
//! caches hold thousands of these, so everything else of a Pod is dropped here.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::api::keys;

/// A Pod as this project sees it. Field meaning as in `core/v1`; absent lists are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Spec,
    /// `status`.
    pub status: Status,
}

/// `metadata` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Namespace; empty in the object of a CREATE review.
    pub namespace: String,
    /// Name; empty in a CREATE review with `generateName`.
    pub name: String,
    /// UID; empty in a CREATE review.
    pub uid: String,
    /// Ordered as an integer, as Kubernetes guarantees since 1.35; 0 when absent.
    #[serde(deserialize_with = "resource_version")]
    pub resource_version: u64,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// The annotations that the lifecycle and the rules read; others are dropped.
    #[serde(deserialize_with = "known_annotations")]
    pub annotations: BTreeMap<String, String>,
    /// Finalizers.
    #[serde(deserialize_with = "nullable")]
    pub finalizers: Vec<String>,
    /// RFC 3339; present once deletion has begun.
    pub deletion_timestamp: Option<String>,
    /// RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Owners.
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Vec<Owner>,
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
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
    /// Whether this is the managing controller.
    pub controller: bool,
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Containers.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    /// Init containers (restartable ones are sidecars).
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
    /// Readiness gates.
    #[serde(deserialize_with = "nullable")]
    pub readiness_gates: Vec<ReadinessGate>,
}

/// A container: what an in-place change can alter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name, unique in the Pod.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// `Always` marks a restartable init container.
    pub restart_policy: Option<String>,
    /// Requests and limits, kept raw: only compared.
    pub resources: serde_json::Value,
    /// What a change of a resource does to the container.
    #[serde(deserialize_with = "nullable")]
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
    /// Condition type that must be True.
    pub condition_type: String,
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Phase.
    pub phase: String,
    /// Conditions: only `Ready` and `pod.kusionstack.io/service-ready` are kept.
    #[serde(deserialize_with = "known_conditions")]
    pub conditions: Vec<Condition>,
    /// One per container that the kubelet has seen.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatus>,
    /// One per init container that the kubelet has seen.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// A Pod condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// A container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Container name.
    pub name: String,
    /// Identifies one run of the container; a restart gives a new one.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Whether the container is ready.
    pub ready: bool,
}

impl Pod {
    /// Whether the Pod opted into the lifecycle and the rules.
    pub fn is_managed(&self) -> bool {
        self.label(keys::CONTROL) == Some(keys::CONTROL_VALUE)
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(String::as_str)
    }

    /// Whether deletion has begun.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the Pod has run to its end and will not come back.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Status of a condition: `Some(true)` for True, `Some(false)` for anything else, `None` when absent.
    pub fn condition(&self, type_: &str) -> Option<bool> {
        self.status
            .conditions
            .iter()
            .find(|c| c.type_ == type_)
            .map(|c| c.status == "True")
    }

    /// Whether the kubelet reports the Pod Ready.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready") == Some(true)
    }

    /// Whether the Pod serves, as every budget counts it: labelled `service-available`, Ready, neither terminating
    /// nor finished. Both the label and the condition are asked because the label trails the condition by a
    /// reconcile (contract 3.2 row 12).
    pub fn is_available(&self) -> bool {
        self.label(keys::SERVICE_AVAILABLE).is_some()
            && self.is_ready()
            && !self.is_terminating()
            && !self.is_finished()
    }

    /// Whether the readiness gate of the lifecycle is in the spec.
    pub fn has_service_ready_gate(&self) -> bool {
        self.spec
            .readiness_gates
            .iter()
            .any(|g| g.condition_type == keys::SERVICE_READY)
    }

    /// Whether a cooperator's protection finalizer is present (contract 2.3).
    pub fn is_protected(&self) -> bool {
        self.metadata
            .finalizers
            .iter()
            .any(|f| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX))
    }

    /// The managing controller.
    pub fn controller(&self) -> Option<&Owner> {
        self.metadata.owner_references.iter().find(|o| o.controller)
    }

    /// Whether the kubelet runs this Pod from a file.
    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key(keys::MIRROR)
    }

    /// Value of an annotation that the lifecycle or the rules read.
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

fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

fn known_annotations<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let mut all: BTreeMap<String, String> = nullable(d)?;
    all.retain(|k, _| {
        matches!(
            k.as_str(),
            keys::AVAILABLE_CONDITIONS | keys::SKIP_RULE_CONDITIONS | keys::MIRROR
        )
    });
    Ok(all)
}

fn known_conditions<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Condition>, D::Error> {
    let mut all: Vec<Condition> = nullable(d)?;
    all.retain(|c| c.type_ == "Ready" || c.type_ == keys::SERVICE_READY);
    all.shrink_to_fit();
    Ok(all)
}
