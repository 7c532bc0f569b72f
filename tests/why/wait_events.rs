//! Events about long waits, by a server with a threshold of one second.

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::json;
use testbed::{Bed, Scope, wait};
use tokio::sync::OnceCell;

/// The bed of all tests in this file: waits count as long after a second.
pub async fn bed() -> &'static Bed {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    BED.get_or_init(|| Bed::own_serving(&["--wait-notice", "1s"]))
        .await
}

async fn events(scope: &Scope, reason: &str) -> Vec<Event> {
    let all: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let fields = format!("reason={reason}");
    all.list(&ListParams::default().fields(&fields))
        .await
        .unwrap()
        .items
}

#[tokio::test]
async fn long_wait_is_reported_on_pod_and_rule() {
    let scope = bed().await.scope("events").await;
    for pod in ["web-0", "web-1"] {
        scope
            .pod(pod, json!({ "metadata": { "labels": { "app": "web" } } }))
            .await;
    }
    scope.all_available("app=web", 2).await;
    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope.until_at_rest("web", 2).await;
    scope.begin("web-0", "upgrade").await.unwrap();
    let event = wait::value("an Event about the Pod", async || {
        events(&scope, "WaitingForRule").await.pop()
    })
    .await;
    assert_eq!(event.involved_object.name.as_deref(), Some("web-0"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    let message = event.message.unwrap();
    assert!(
        message.contains("operation upgrade has been in PreCheck"),
        "{message}"
    );
    assert!(
        message.contains("rule availability of PodTransitionRule web"),
        "{message}"
    );
    assert!(message.contains("raise the limit"), "{message}");

    let sum = wait::value("an Event about the rule", async || {
        events(&scope, "PodsWaiting").await.pop()
    })
    .await;
    assert_eq!(
        sum.involved_object.kind.as_deref(),
        Some("PodTransitionRule")
    );
    assert_eq!(sum.involved_object.name.as_deref(), Some("web"));
    assert!(
        sum.message
            .as_deref()
            .unwrap_or_default()
            .contains("Pod web-0 waits"),
        "{sum:?}"
    );
    // No Event is about the Pod that does not wait.
    let pods: Vec<_> = events(&scope, "WaitingForRule").await;
    assert!(
        pods.iter()
            .all(|e| e.involved_object.name.as_deref() == Some("web-0")),
        "{pods:?}"
    );
}
