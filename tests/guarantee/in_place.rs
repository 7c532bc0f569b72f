//! Changes of running Pods that restart containers, outside of a lifecycle.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Patch;
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::binaries::Kubernetes;
use testbed::pods::{condition, names};
use testbed::scope::{budget_refusal, claims, refusal};
use testbed::{Bed, Scope, wait};

pub async fn set_image(scope: &Scope, pod: &str, image: &str) -> kube::Result<()> {
    let image = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
    scope
        .pods()
        .patch(pod, &Default::default(), &Patch::Strategic(image))
        .await
        .map(drop)
}

async fn web() -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope("in-place").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    (scope, pods)
}

#[tokio::test]
async fn new_image_keeps_its_claim_until_kubelet_runs_it() {
    let (scope, pods) = web().await;
    // No kubelet can pull this image: the Pod is down until it gets an image that exists.
    set_image(&scope, &pods[0], "web:non-exist").await.unwrap();
    for attempt in [
        set_image(&scope, &pods[1], "web:2").await,
        scope.delete(&pods[1]).await,
    ] {
        let status = budget_refusal(attempt, "1 of 3 Pods are unavailable, the limit is 1");
        assert!(status.message.contains(&pods[0]), "{}", status.message);
    }
    // The image of an unavailable Pod may be corrected once the leader has removed its label.
    scope
        .until_pod(&pods[0], "off traffic", |p| {
            !p.labels().contains_key(keys::SERVICE_AVAILABLE)
        })
        .await;
    set_image(&scope, &pods[0], "web:2").await.unwrap();
    scope.until_at_rest("web", 3).await;
    set_image(&scope, &pods[1], "web:2").await.unwrap();
    scope
        .until_status("web", "the place given back", |s: &RuleStatus| {
            s.available_pods == 3 && claims(s) == 0
        })
        .await;
    let pod = scope.get(&pods[1]).await;
    assert_eq!(
        pod.status.unwrap().container_statuses.unwrap()[0].image,
        "web:2"
    );
}

#[tokio::test]
async fn of_three_new_images_at_once_one_passes() {
    let (scope, pods) = web().await;
    let all = pods.iter().map(|pod| set_image(&scope, pod, "web:2"));
    let outcomes = futures::future::join_all(all).await;
    assert_eq!(
        outcomes.iter().filter(|o| o.is_ok()).count(),
        1,
        "{outcomes:?}"
    );
    scope.until_at_rest("web", 3).await;
}

/// Makes the kubelet report this reason for resizes of a Pod, until the Pod gets its former resources again.
async fn answer_resizes(scope: &Scope, pod: &str, reason: &str) {
    let answer = json!({"metadata": {"annotations": {"plane.test/resize": reason}}});
    scope.patch(pod, answer).await.unwrap();
}

async fn resize(scope: &Scope, pod: &str, resource: &str, value: &str) -> kube::Result<()> {
    let container = json!({"name": "main", "resources": {"requests": {resource: value}}});
    let change = json!({"spec": {"containers": [container]}});
    scope
        .pods()
        .patch_resize(pod, &Default::default(), &Patch::Strategic(change))
        .await
        .map(drop)
}

/// Pods whose container restarts when its memory is resized.
async fn resizable_pods(count: usize) -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope("resize").await;
    let container = json!({
        "name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                         {"resourceName": "memory", "restartPolicy": "RestartContainer"}],
    });
    scope
        .deploy("web", count, json!({"spec": {"containers": [container]}}))
        .await;
    let pods = names(&scope.all_available("app=web", count).await);
    (scope, pods)
}

/// Two such Pods under a rule.
async fn resizable(max_unavailable: i32) -> (Scope, Vec<String>) {
    let (scope, pods) = resizable_pods(2).await;
    scope
        .rule("web", json!({"app": "web"}), json!(max_unavailable))
        .await;
    scope.until_at_rest("web", 2).await;
    (scope, pods)
}

#[tokio::test]
async fn infeasible_resize_releases_its_claim_and_can_be_reverted() {
    let (scope, pods) = resizable(1).await;
    answer_resizes(&scope, &pods[0], "Infeasible").await;
    resize(&scope, &pods[0], "memory", "2Mi").await.unwrap();
    // Kubernetes 1.33 does not report which resize is infeasible, so the Pod keeps its claim until the change is
    // reverted.
    let tells_which = Kubernetes::of_environment().unwrap() != Kubernetes::Oldest;
    if tells_which {
        scope.until_at_rest("web", 2).await;
        scope.delete(&pods[1]).await.unwrap();
        scope.until_at_rest("web", 2).await;
    } else {
        scope
            .until_pod(&pods[0], "infeasible", |pod| {
                condition(pod, "PodResizePending") == Some(true)
            })
            .await;
        refusal(scope.delete(&pods[1]).await);
    }
    resize(&scope, &pods[0], "memory", "1Mi").await.unwrap();
    scope.until_at_rest("web", 2).await;
    let pod = scope.get(&pods[0]).await;
    let main = &pod.status.unwrap().container_statuses.unwrap()[0];
    assert_eq!(main.restart_count, 0);
}

#[tokio::test]
async fn deferred_resize_keeps_its_claim_and_can_be_reverted() {
    let (scope, pods) = resizable(1).await;
    answer_resizes(&scope, &pods[0], "Deferred").await;
    resize(&scope, &pods[0], "memory", "2Mi").await.unwrap();
    scope
        .until_pod(&pods[0], "deferred", |pod| {
            condition(pod, "PodResizePending") == Some(true)
        })
        .await;
    // The kubelet may restart the container at any time, as soon as the node has free resources.
    let reason = format!(
        "Pod {} keeps its claim until the kubelet makes its deferred resize",
        pods[0]
    );
    wait::until("a refusal that names the resize", async || {
        let status = refusal(scope.delete(&pods[1]).await);
        status.message.contains("the limit is 1") && status.message.contains(&reason)
    })
    .await;
    resize(&scope, &pods[0], "memory", "1Mi").await.unwrap();
    scope.until_at_rest("web", 2).await;
    scope.delete(&pods[1]).await.unwrap();
}

#[tokio::test]
async fn new_rule_counts_disruptions_that_are_already_pending() {
    let (scope, pods) = resizable_pods(4).await;
    answer_resizes(&scope, &pods[0], "Deferred").await;
    resize(&scope, &pods[0], "memory", "2Mi").await.unwrap();
    let deferred = |pod: &Pod| condition(pod, "PodResizePending") == Some(true);
    scope.until_pod(&pods[0], "deferred", deferred).await;
    let deadline = json!({"spec": {"activeDeadlineSeconds": 3600}});
    scope.patch(&pods[1], deadline).await.unwrap();
    scope.rule("web", json!({"app": "web"}), json!(2)).await;

    for denied in [scope.delete(&pods[2]).await, scope.evict(&pods[3]).await] {
        let status = refusal(denied);
        let texts = [
            format!("Pod {} keeps its claim until the kubelet", pods[0]),
            format!("Pod {} keeps its claim until its spec", pods[1]),
        ];
        assert_eq!(status.code, 429, "{status:?}");
        for texts in texts {
            assert!(status.message.contains(&texts), "{status:?}");
        }
    }
    // These Pods need no further claim.
    scope.delete(&pods[1]).await.unwrap();
    refusal(scope.delete(&pods[2]).await);
    resize(&scope, &pods[0], "memory", "1Mi").await.unwrap();
    wait::until("a place", async || scope.delete(&pods[2]).await.is_ok()).await;
    scope.until_at_rest("web", 4).await;
}

#[tokio::test]
async fn pod_off_traffic_is_resized_again_after_its_restart() {
    let (scope, pods) = resizable(1).await;
    scope.begin(&pods[0], "x").await.unwrap();
    let operate = |pod: &Pod| pod.labels().contains_key(&Family::Operate.key("x"));
    scope.until_pod(&pods[0], "in operation", operate).await;
    for (restarts, memory) in [(1, "2Mi"), (2, "3Mi"), (3, "1Mi")] {
        resize(&scope, &pods[0], "memory", memory).await.unwrap();
        // Until the restart the rule holds the other Pod.
        refusal(scope.delete(&pods[1]).await);
        let has_restarted = |pod: &Pod| {
            let status = pod.status.as_ref().unwrap();
            let main = &status.container_statuses.as_ref().unwrap()[0];
            main.restart_count == restarts
        };
        scope.until_pod(&pods[0], "made anew", has_restarted).await;
    }
    scope.finish(&pods[0], "x").await.unwrap();
    scope.until_at_rest("web", 2).await;
    scope.delete(&pods[1]).await.unwrap();
}

#[tokio::test]
async fn other_notation_of_a_quantity_is_free() {
    let (scope, pods) = resizable(0).await;
    resize(&scope, &pods[0], "memory", "1048576").await.unwrap();
    assert_eq!(scope.claims("web").await, 0);
}

#[tokio::test]
async fn resize_that_restarts_nothing_is_free() {
    let (scope, pods) = resizable(0).await;
    resize(&scope, &pods[0], "cpu", "2m").await.unwrap();
    let status = refusal(resize(&scope, &pods[0], "memory", "2Mi").await);
    assert_eq!(
        (status.code, status.reason.as_str()),
        (429, "TooManyRequests")
    );
    assert!(
        status.message.contains("the limit is 0"),
        "{}",
        status.message
    );
}

#[tokio::test]
async fn deferred_resize_without_restart_releases_its_claim() {
    if Kubernetes::of_environment().unwrap() == Kubernetes::Oldest {
        return; // Kubernetes 1.33 does not report which resize is deferred.
    }
    let (scope, pods) = resizable(1).await;
    answer_resizes(&scope, &pods[0], "Deferred").await;
    let container =
        json!({ "name": "main", "resources": { "requests": { "cpu": "2m", "memory": "2Mi" } } });
    let change = json!({ "spec": { "containers": [container] } });
    scope
        .pods()
        .patch_resize(&pods[0], &Default::default(), &Patch::Strategic(change))
        .await
        .unwrap();
    let deferred = |pod: &Pod| condition(pod, "PodResizePending") == Some(true);
    scope.until_pod(&pods[0], "deferred", deferred).await;
    resize(&scope, &pods[0], "memory", "1Mi").await.unwrap();
    wait::until("the place to come back", async || {
        scope.delete(&pods[1]).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn resize_deferred_before_the_rule_can_be_reverted() {
    let (scope, pods) = resizable_pods(4).await;
    let deferred = |pod: &Pod| condition(pod, "PodResizePending") == Some(true);
    for pod in &pods[..2] {
        answer_resizes(&scope, pod, "Deferred").await;
        resize(&scope, pod, "memory", "2Mi").await.unwrap();
        scope.until_pod(pod, "deferred", deferred).await;
    }
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    assert!(resize(&scope, &pods[0], "memory", "3Mi").await.is_err());
    resize(&scope, &pods[0], "memory", "1Mi").await.unwrap();
}
