//! Pods that leave a rule, are changed while the rule does not select them, and come back.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::pods::{condition, is_available};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::in_place::set_image;

async fn leave(scope: &Scope, pod: &str) {
    scope
        .label(pod, json!({keys::CONTROL: null}))
        .await
        .unwrap();
}

/// Asserts that the write that brings the Pod back under the rule is refused.
async fn refused(scope: &Scope, pod: &str, code: u16, why: &str) {
    let back = scope.label(pod, json!({keys::CONTROL: keys::CONTROL_VALUE}));
    let status = refusal(back.await);
    assert!(
        status.code == code && status.message.contains(why),
        "{status:?}"
    );
}

#[tokio::test]
async fn pod_reenters_its_rule_after_the_restart_is_certain() {
    let scope = Bed::shared().await.scope("back").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    let pod = &pods[0];
    scope.pause_kubelet(pod).await;
    leave(&scope, pod).await;
    set_image(&scope, pod, "web:2").await.unwrap();
    refused(
        &scope,
        pod,
        429,
        "the kubelet has not seen the last change of its spec yet",
    )
    .await;
    let again = json!({
        "metadata": {"labels": {keys::CONTROL: keys::CONTROL_VALUE}},
        "spec": {"containers": [{"name": "main", "image": "web:3"}]},
    });
    let (pods, params) = (scope.pods(), PatchParams::default());
    let both = refusal(pods.patch(pod, &params, &Patch::Strategic(again)).await);
    assert!(
        both.code == 403 && both.message.contains("in a write of their own"),
        "{both:?}"
    );
    scope.resume_kubelet(pod).await;
    let runs = |p: &k8s_openapi::api::core::v1::Pod| {
        let status = p.status.as_ref().unwrap();
        let main = &status.container_statuses.as_ref().unwrap()[0];
        main.image == "web:2" && status.observed_generation == p.metadata.generation
    };
    scope.until_pod(pod, "run its new image", runs).await;
    // Only the passage of time proves the restart.
    refused(&scope, pod, 429, "its spec was changed a moment ago").await;
    wait::until("the Pod to be let in", async || {
        let back = json!({keys::CONTROL: keys::CONTROL_VALUE});
        scope.label(pod, back).await.is_ok()
    })
    .await;
    scope.until_pod(pod, "available again", is_available).await;
    scope.until_at_rest("web", 3).await;
}

#[tokio::test]
async fn pod_with_new_deadline_cannot_reenter_its_rule() {
    let scope = Bed::shared().await.scope("back-deadline").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    let pod = &pods[0];
    leave(&scope, pod).await;
    let deadline = json!({"spec": {"activeDeadlineSeconds": 3600}});
    scope.patch(pod, deadline).await.unwrap();
    refused(&scope, pod, 403, "it ends by activeDeadlineSeconds 3600").await;
    let moved =
        json!({"metadata": {"labels": {keys::CONTROL: keys::CONTROL_VALUE, "app": "other"}}});
    scope
        .patch(pod, moved)
        .await
        .expect("no rule covers it there");
    let back = refusal(scope.label(pod, json!({"app": "web"})).await);
    assert_eq!(back.code, 403, "{back:?}");
}

#[tokio::test]
async fn pod_with_pending_restart_cannot_enter_rule_by_filter() {
    let scope = Bed::shared().await.scope("back-filter").await;
    let pod = "web";
    let tier = |value: &str| json!({"tier": value});
    let labels = json!({"app": "web", "tier": "front"});
    scope
        .pod(pod, json!({"metadata": {"labels": labels}}))
        .await;
    scope.all_available("app=web", 1).await;
    let rule = json!({
        "name": "front", "availablePolicy": {"maxUnavailableValue": 1},
        "filter": {"labelSelector": {"matchLabels": tier("front")}},
    });
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [rule]});
    scope.try_rule("web", spec).await.unwrap();
    scope.until_at_rest("web", 1).await;
    scope.pause_kubelet(pod).await;
    scope.label(pod, tier("back")).await.unwrap();
    set_image(&scope, pod, "web:2").await.unwrap();
    let back = refusal(scope.label(pod, tier("front")).await);
    assert_eq!(back.code, 429, "{back:?}");
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.labels().get(key).map(String::as_str)
}

/// The labels of an operation that the rules let off traffic, on a Pod that still serves.
fn forged() -> serde_json::Value {
    let id = "x1";
    json!({
        keys::CONTROL: keys::CONTROL_VALUE, keys::SERVICE_AVAILABLE: "1",
        Family::Operating.key(id): "1", Family::OperationType.key(id): id,
        Family::PreChecked.key(id): "1", Family::OperationPermission.key(id): "1", Family::Operate.key(id): "1",
    })
}

async fn outside(scope: &Scope) {
    let container = json!({
        "name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
    });
    let pod = json!({
        "metadata": {"labels": {"app": "solo", keys::CONTROL: null}}, "spec": {"containers": [container]},
    });
    scope.pod("solo", pod).await;
    scope
        .until_pod("solo", "Ready", |p| condition(p, "Ready") == Some(true))
        .await;
}

#[tokio::test]
async fn pod_entering_with_forged_operation_is_held() {
    let scope = Bed::shared().await.scope("forged").await;
    outside(&scope).await;
    scope.rule("web", json!({"app": "solo"}), json!(0)).await;
    let entered = scope.label("solo", forged()).await.unwrap();
    let marks = [
        Family::PreChecked,
        Family::Operate,
        Family::OperationPermission,
    ];
    let is_stored = |family: &Family| label(&entered, &family.key("x1")).is_some();
    assert!(
        !marks.iter().any(is_stored),
        "{:?}",
        entered.metadata.labels
    );
    let resize = json!({"spec": {"containers": [
        {"name": "main", "resources": {"requests": {"memory": "2Mi"}}},
    ]}});
    let (pods, params) = (scope.pods(), PatchParams::default());
    let resize = Patch::Strategic(resize);
    let resized = pods.patch_resize("solo", &params, &resize).await;
    assert_eq!(refusal(resized).code, 429);
    assert_eq!(refusal(scope.delete("solo").await).code, 429);
}

#[tokio::test]
async fn operation_that_a_pod_brings_from_outside_asks_its_rules() {
    let scope = Bed::shared().await.scope("forged-check").await;
    outside(&scope).await;
    let never = json!({"selector": {"matchLabels": {"app": "solo"}}, "rules": [{
        "name": "never", "stage": "PreCheck", "labelCheck": {"requires": {"matchLabels": {"may": "go"}}},
    }]});
    scope.try_rule("never", never).await.unwrap();
    scope.label("solo", forged()).await.unwrap();
    let waits = |pod: &Pod| label(pod, &Family::PreCheck.key("x1")).is_some();
    let waiting = scope
        .until_pod("solo", "its rules to be asked", waits)
        .await;
    assert_eq!(label(&waiting, &Family::Operate.key("x1")), None);
    scope.until_pod("solo", "availability", is_available).await;
}
