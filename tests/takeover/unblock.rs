//! Removes what keeps an operation from its end.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::Scope;
use testbed::pods::is_idle;

use crate::sets::Set;

/// Removes the finalizers of all Pods with a label `app`, as a cooperator does that has taken them off traffic.
pub async fn release(scope: &Scope, app: &str) {
    for pod in scope.list(&format!("app={app}")).await {
        release_pod(scope, &pod).await;
    }
}

pub async fn release_pod(scope: &Scope, pod: &Pod) {
    let none = json!({ "metadata": { "finalizers": null } });
    scope.patch(&pod.name_any(), none).await.unwrap();
}

/// The template with another image.
pub fn with_image(image: &str) -> Value {
    json!({ "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } })
}

/// Waits until the set is as wanted and all its Pods serve without an operation.
pub async fn until_at_rest(set: &Set<'_>) {
    set.settled().await;
    let all_idle = |pods: &crate::sets::Pods| pods.values().all(is_idle);
    set.until_pods("all at rest", all_idle).await;
}
