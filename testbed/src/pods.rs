//! Judges the state of a Pod by the API, without the code under test.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::keys;

/// `metadata.labels` of managed Pods of an application.
pub fn labels(app: &str) -> Value {
    json!({"app": app, keys::CONTROL: keys::CONTROL_VALUE})
}

/// Whether a Pod is available by the API, without the code under test.
pub fn is_available(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or_default();
    pod.labels().contains_key(keys::SERVICE_AVAILABLE)
        && condition(pod, "Ready") == Some(true)
        && pod.metadata.deletion_timestamp.is_none()
        && !["Succeeded", "Failed"].contains(&phase)
}

/// Whether a Pod carries a label, whatever its value.
pub fn has_label(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

/// Labels of the operations in progress on a Pod.
pub fn in_flight(pod: &Pod) -> Vec<&String> {
    pod.labels()
        .keys()
        .filter(|k| k.contains(keys::LIFECYCLE_DOMAIN))
        .collect()
}

/// Whether a Pod is available and has no labels of an operation.
pub fn is_idle(pod: &Pod) -> bool {
    is_available(pod) && in_flight(pod).is_empty()
}

/// Whether a Pod is under rules.
pub fn is_managed(pod: &Pod) -> bool {
    let label = pod.labels().get(keys::CONTROL);
    label.is_some_and(|value| value == keys::CONTROL_VALUE)
}

/// Whether a condition is True; `None` when it is absent.
pub fn condition(pod: &Pod, type_: &str) -> Option<bool> {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .find(|c| c.type_ == type_)
        .map(|c| c.status == "True")
}

/// Whether a Pod is Ready and not terminating, whether managed or not.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready") == Some(true) && pod.metadata.deletion_timestamp.is_none()
}

/// The condition of the readiness gate.
pub fn service_ready(pod: &Pod) -> Option<bool> {
    condition(pod, keys::SERVICE_READY)
}

/// Whether the operation `id` may proceed, and the kubelet has observed that the Pod is off traffic. If an
/// operation ended before that, the kubelet would report the Pod not Ready after its return to traffic.
pub fn may_operate(pod: &Pod, id: &str) -> bool {
    pod.labels().contains_key(&keys::operation("operate", id))
        && condition(pod, "Ready") != Some(true)
}

/// The node of a Pod.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Names of Pods.
pub fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

/// Runs one request for each Pod, all in parallel.
pub async fn at_once<T, F: Future<Output = T>>(
    pods: &[String],
    request: impl Fn(String) -> F,
) -> Vec<T> {
    join_all(pods.iter().cloned().map(request)).await
}
