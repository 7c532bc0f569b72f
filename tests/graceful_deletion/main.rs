//! The feature gate GraceDeleteWebhook on a real API server: deletions and evictions go through the lifecycle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bypass;
mod collaset;
mod deletes;
mod denied_by_others;
mod evictions;
mod exempt_deletions;
mod forged_calls;
mod replicasets;
mod server_gone;
mod why;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::{Bed, Scope};

/// The flags of every server in these tests.
const GATE: &[&str] = &["--feature-gates", "GraceDeleteWebhook=true"];

/// The texts that users and scripts look for (contract 4.4).
const UNDERWAY: &str = "pod deletion process is underway and being managed by PodOpsLifecycle";

async fn bed() -> &'static Bed {
    Bed::shared_with(GATE).await
}

/// The finalizer of the cooperator that serves traffic.
fn finalizer() -> String {
    format!("{}/cooperator", keys::PROTECTION_FINALIZER_PREFIX)
}

/// An available Pod `web` that goes off traffic only when [`drop_protection`] says so, in a namespace with a rule or without.
async fn protected(bed: &Bed, ruled: bool) -> Scope {
    let scope = bed.scope("grace").await;
    let expected =
        json!({"expectedFinalizers": {format!("Gateway/{}/web", scope.namespace): finalizer()}});
    let metadata = json!({
        "finalizers": [finalizer()],
        "annotations": {keys::AVAILABLE_CONDITIONS: expected.to_string()},
    });
    scope.pod("web", json!({"metadata": metadata})).await;
    scope.until_pod("web", "available", is_available).await;
    if ruled {
        scope.rule("web", json!({"app": "web"}), json!(1)).await;
        scope.until_at_rest("web", 1).await;
    }
    scope
}

/// Removes the finalizer: the cooperator has taken traffic off.
async fn drop_protection(scope: &Scope) {
    let none = json!({"metadata": {"finalizers": null}});
    scope.patch("web", none).await.unwrap();
}

fn is_marked(pod: &Pod) -> bool {
    pod.labels().contains_key(keys::TO_DELETE)
        || pod.annotations().contains_key(keys::DELETE_TIMESTAMP)
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a Pod of the namespace was ever marked for a deletion through the lifecycle.
fn marked(versions: &[Pod]) -> Vec<String> {
    let marked = versions.iter().filter(|p| is_marked(p));
    marked.map(ResourceExt::name_any).collect()
}

/// Labels of an operation `id` that will delete the Pod.
fn leaving(id: &str) -> Value {
    json!({
        keys::Family::Operating.key(id): "1",
        keys::Family::OperationType.key(id): "replace",
        keys::PREPARING_TO_DELETE: "1",
    })
}
