//! The CollaSets of a namespace, and whether they have reached their specs.

use std::time::Duration;

use anyhow::Result;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use testbed::wait;

/// The CollaSets of a namespace.
pub fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "CollaSet");
    let resource = ApiResource::from_gvk_with_plural(&kind, "collasets");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Waits until a set has reached its spec.
pub async fn reached(sets: &Api<DynamicObject>, name: &str, timeout: Duration) -> Result<()> {
    wait::within("the CollaSet to be as wanted", timeout, || async {
        Ok(is_as_wanted(&sets.get(name).await?))
    })
    .await
}

/// Whether an object has reached its present spec.
pub fn is_as_wanted(object: &DynamicObject) -> bool {
    let status = &object.data["status"];
    let conditions = status["conditions"].as_array();
    let is_ready = conditions.is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    });
    is_ready && status["observedGeneration"].as_i64() == object.metadata.generation
}
