//! Pods that cannot be created or started: a condition names the cause, and the set continues when the cause is gone.

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Set, condition, image, until_condition_false};

async fn quota(scope: &Scope, pods: u32) {
    let quotas: Api<ResourceQuota> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "pods" },
        "spec": { "hard": { "pods": pods.to_string() } },
    });
    let force = PatchParams::apply("test").force();
    quotas
        .patch("pods", &force, &Patch::Apply(quota))
        .await
        .unwrap();
    wait::until("the quota to be counted", async || {
        let status = quotas.get("pods").await.unwrap().status.unwrap_or_default();
        let hard = status.hard.unwrap_or_default();
        status.used.is_some() && hard.get("pods").is_some_and(|q| q.0 == pods.to_string())
    })
    .await;
}

#[tokio::test]
async fn used_up_quota_is_reported_and_larger_quota_used() {
    let scope = Bed::shared().await.scope("quota").await;
    quota(&scope, 1).await;
    let set = Set::unsettled(&scope, "web", 3, json!({})).await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "exceeded quota").await;
    set.until_pods("one Pod", |pods| pods.len() == 1).await;
    quota(&scope, 5).await;
    set.settled().await;
    let set = set.get().await;
    assert_eq!(condition(&set, "Scale").unwrap().status, "True");
}

#[tokio::test]
async fn set_recovers_when_unusable_template_is_corrected() {
    let scope = Bed::shared().await.scope("create-fails").await;
    let account = |name: Value| json!({ "template": { "spec": { "serviceAccountName": name } } });
    let set = Set::unsettled(&scope, "web", 2, account(json!("missing"))).await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "missing").await;
    set.edit(account(Value::Null)).await;
    set.settled().await;
    assert_eq!(set.pods().await.len(), 2);
}

#[tokio::test]
async fn failed_image_pull_is_reported_and_corrected_image_pulled() {
    let scope = Bed::shared().await.scope("pull").await;
    let containers = |image: &str| json!({ "template": { "spec": { "containers": [{ "name": "app", "image": image }] } } });
    let set = Set::unsettled(&scope, "web", 2, containers("app:non-exist")).await;
    until_condition_false(&set, "Ready", "Unavailable", "ImagePullBackOff").await;
    set.image("app:1").await;
    set.settled().await;
    // The same during an update.
    set.image("app:non-exist").await;
    until_condition_false(&set, "Update", "UpdateFailed", "app:non-exist").await;
    set.image("app:2").await;
    let settled = set.settled().await;
    assert_eq!(condition(&settled, "Update").unwrap().status, "True");
    assert!(set.pods().await.values().all(|p| image(p) == "app:2"));
}

#[tokio::test]
async fn taken_pod_name_is_reported_and_used_when_free() {
    let scope = Bed::shared().await.scope("taken").await;
    let alien = json!({ "metadata": { "name": "web-0", "labels": { "app": "alien" } },
        "spec": { "containers": [{ "name": "app", "image": "a:1" }], "terminationGracePeriodSeconds": 1 } });
    let alien = serde_json::from_value(alien).unwrap();
    scope
        .pods()
        .create(&PostParams::default(), &alien)
        .await
        .unwrap();
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let set = Set::unsettled(&scope, "web", 2, naming).await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "web-0").await;
    scope.delete("web-0").await.unwrap();
    set.settled().await;
    assert_eq!(set.names().await, ["web-0", "web-1"]);
}
