//! The requests that a plan asks for on the Pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// One request for a target.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetAction {
    /// Read the Pod of this name live: no managed Pod has it.
    Lookup(String),
    /// Read the Pod of a target that ends live, because the Pod is not among the managed Pods.
    ReadUnmanaged {
        /// Name of the Pod.
        name: String,
        /// UID of the Pod. `None` if Kuperator has started the target.
        uid: Option<String>,
    },
    /// Read a Pod live whose last write was not answered: the write may have an effect that the cache does not show yet.
    CheckWrite(Arc<Pod>),
    /// Change a Pod.
    Patch(PodPatch),
    /// Create the ContainerRecreateRequest of a Pod, for these containers, to end within so many seconds.
    CreateRequest {
        /// The Pod.
        pod: Arc<Pod>,
        /// Names of the containers.
        containers: Vec<String>,
        /// Seconds.
        deadline_seconds: i64,
    },
    /// Find out which version of ContainerRecreateRequests the API server serves.
    DiscoverRequests,
    /// Read the ContainerRecreateRequest of the Pod with this UID.
    ReadRequest(String),
    /// Delete the ContainerRecreateRequest of the Pod with this UID.
    DeleteRequest(String),
}

impl TargetAction {
    /// The key of the request among the refusals that the controller remembers. `None` for a request that is not for one
    /// Pod.
    pub fn refusal_key(&self) -> Option<String> {
        match self {
            TargetAction::Lookup(_) | TargetAction::DiscoverRequests => None,
            TargetAction::ReadUnmanaged { name, .. } => Some(format!("read/{name}")),
            TargetAction::CheckWrite(pod) => Some(format!("read/{}", pod.metadata.name)),
            TargetAction::Patch(patch) => Some(patch.pod.metadata.uid.clone()),
            TargetAction::CreateRequest { pod, .. } => Some(request_key(&pod.metadata.uid)),
            TargetAction::DeleteRequest(uid) => Some(request_key(uid)),
            TargetAction::ReadRequest(uid) => Some(format!("read/{uid}")),
        }
    }
}

fn request_key(uid: &str) -> String {
    format!("request/{uid}")
}

/// A strategic merge patch of a Pod, on condition of its UID and resourceVersion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPatch {
    /// The Pod that was planned.
    pub pod: Arc<Pod>,
    /// Changes of labels.
    pub labels: LabelPatch,
    /// Changes of annotations; `None` removes one.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Finalizers to remove.
    pub remove_finalizers: Vec<&'static str>,
    /// The content of `spec`.
    pub spec: Option<Value>,
    /// The Event on the Pod that reports the write: reason and message.
    pub event: Option<(String, String)>,
}

impl PodPatch {
    /// A patch of a Pod that changes nothing yet.
    pub fn of(pod: &Arc<Pod>) -> PodPatch {
        PodPatch {
            pod: Arc::clone(pod),
            ..PodPatch::default()
        }
    }
}
