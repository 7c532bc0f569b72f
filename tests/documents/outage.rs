//! The way out of `docs/server-down.md` for a namespace that finalizers of ResourceConsist keep in Terminating.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use operating::api::keys;
use serde_json::json;
use testbed::wait;

use crate::commands::tested;
use crate::plane::Ground;

/// Deployment `web` with a managed Service, and a rule so that the webhooks would be called for deletions.
fn objects() -> String {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "labels": { (keys::CONTROL): "true" }, "finalizers": ["example.com/keep"],
        },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
    });
    let deployment =
        std::fs::read_to_string(crate::markdown::root().join("examples/deployment.yaml"));
    format!("{}\n---\n{service}\n", deployment.unwrap())
}

#[tokio::test]
async fn namespace_of_managed_traffic_is_freed_by_hand() {
    let ground = Ground::own("outage").await;
    ground.apply(&objects()).await.unwrap();
    ground.until_available("app=web", 4).await;
    let finalizers = async |kind: &str| {
        let path = "jsonpath={.items[*].metadata.finalizers}";
        ground.kubectl(&["get", kind, "-o", path]).await
    };
    ground
        .until("the marks", async || {
            let marks = finalizers("pods").await;
            let ours = marks.matches(keys::PROTECTION_FINALIZER_PREFIX).count();
            ours == 4 && finalizers("services").await.contains(keys::CLEAN_FINALIZER)
        })
        .await;
    ground.bed().kill_all().await;
    let namespace = ground.namespace().to_owned();
    ground
        .kubectl(&["delete", "namespace", &namespace, "--wait=false"])
        .await;
    let namespaces: Api<Namespace> = Api::all(ground.bed().admin());
    ground
        .until("the Pods to be held by finalizers only", async || {
            let path = "jsonpath={.items[*].metadata.deletionTimestamp}";
            let deleted = ground.kubectl(&["get", "pods", "-o", path]).await;
            deleted.split_whitespace().count() == 4
        })
        .await;
    let script = tested("docs/server-down.md", &namespace);
    let output = ground.shell(&script).await;
    let output = output.unwrap_or_else(|output| panic!("{output}"));
    assert!(output.contains("service/web replaced"), "{output}");
    // Finalizers of others stay.
    let left = ground
        .kubectl(&[
            "get",
            "service",
            "web",
            "-o",
            "jsonpath={.metadata.finalizers}",
        ])
        .await;
    assert_eq!(left, "[\"example.com/keep\"]");
    let free = r#"{"metadata":{"finalizers":null}}"#;
    ground
        .kubectl(&["patch", "service", "web", "--type=merge", "-p", free])
        .await;
    wait::until("the namespace to be gone", async || {
        let all = namespaces.list(&Default::default()).await.unwrap();
        !all.iter().any(|found| found.name_any() == namespace)
    })
    .await;
}
