//! Slow kubelets: no phase overtakes them, and their delay uses no budget.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::{condition, has_label, is_available, is_idle, service_ready};
use testbed::scope::{budget_refusal, refusal};
use testbed::{Bed, Scope, wait};

const ID: &str = "upgrade";

/// The readiness gate is closed, and the kubelet has not noticed.
fn is_unnoticed(pod: &Pod) -> bool {
    service_ready(pod) == Some(false) && condition(pod, "Ready") == Some(true)
}

/// Available Pods under a rule `web`, and their names.
async fn web(replicas: usize, max_unavailable: i32) -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope("slow").await;
    let pods = scope.web_under_rule(replicas, json!(max_unavailable)).await;
    (scope, pods)
}

/// An operator without work: it finishes as soon as it may operate. Returns the Pod of that moment.
async fn finish_at_once(scope: &Scope, pod: &str, id: &str) -> Pod {
    let operate = scope
        .until_pod(pod, "operate", |p| has_label(p, &Family::Operate.key(id)))
        .await;
    scope.finish(pod, id).await.unwrap();
    operate
}

#[tokio::test]
async fn operate_waits_for_the_kubelet_under_fast_operator() {
    let (scope, pods) = web(4, 1).await;
    let slow = &pods[0];
    scope.pause_kubelet(slow).await;
    let observer = Observer::start(&scope).await;
    scope.begin(slow, ID).await.unwrap();
    scope.until_pod(slow, "the gate closed", is_unnoticed).await;
    // Every write gives the lifecycle an occasion to take a step.
    for touch in ["1", "2", "3"] {
        let pod = scope.label(slow, json!({"touch": touch})).await.unwrap();
        assert!(is_unnoticed(&pod));
        assert!(
            has_label(&pod, &Family::Preparing.key(ID)),
            "{:?}",
            pod.labels()
        );
        assert!(
            !has_label(&pod, &Family::Operate.key(ID)),
            "{:?}",
            pod.labels()
        );
    }
    let forged = refusal(
        scope
            .label(slow, json!({Family::Operate.key(ID): "1"}))
            .await,
    );
    assert!(
        forged.code == 422 && forged.message.contains("the Pod still serves"),
        "{forged:?}"
    );
    let next = scope.begin(&pods[1], ID).await.unwrap();
    assert!(
        has_label(&next, &Family::PreCheck.key(ID)),
        "{:?}",
        next.labels()
    );

    scope.resume_kubelet(slow).await;
    for pod in &pods[..2] {
        let operate = finish_at_once(&scope, pod, ID).await;
        assert_eq!(condition(&operate, "Ready"), Some(false), "{pod}");
    }
    for pod in &pods[..2] {
        scope.until_pod(pod, "online again", is_idle).await;
    }
    scope.until_at_rest("web", 4).await;
    observer.fewest_available(|_| true, 4).await.at_least(3);
}

#[tokio::test]
async fn operators_that_finish_at_once_stay_within_the_limit_together() {
    let (scope, pods) = web(6, 2).await;
    let observer = Observer::start(&scope).await;
    join_all(pods.iter().map(async |pod| {
        // The next operation begins before the Pod is back on traffic, while the kubelet still reacts to the last
        // operation.
        for round in 0..3 {
            let id = format!("round-{round}");
            scope.begin(pod, &id).await.unwrap();
            finish_at_once(&scope, pod, &id).await;
        }
    }))
    .await;
    for pod in &pods {
        scope.until_pod(pod, "online again", is_idle).await;
    }
    scope.until_at_rest("web", 6).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
}

#[tokio::test]
async fn undone_operation_returns_pod_after_kubelet_closed_traffic() {
    let (scope, pods) = web(4, 2).await;
    let slow = &pods[0];
    for (round, end) in [
        json!({Family::UndoOperationType.key(ID): ID}),
        json!({Family::Operating.key(ID): null}),
    ]
    .into_iter()
    .enumerate()
    {
        scope.pause_kubelet(slow).await;
        scope.begin(slow, ID).await.unwrap();
        scope.until_pod(slow, "the gate closed", is_unnoticed).await;
        let ended = scope.label(slow, end).await.unwrap();
        assert!(
            !has_label(&ended, &Family::Preparing.key(ID)),
            "{:?}",
            ended.labels()
        );
        // The operation makes no step while another Pod completes a whole operation.
        let other = format!("other-{round}");
        scope.begin(&pods[1], &other).await.unwrap();
        finish_at_once(&scope, &pods[1], &other).await;
        scope.until_pod(&pods[1], "online again", is_idle).await;
        let pod = scope.get(slow).await;
        assert!(is_unnoticed(&pod), "{:?}", pod.status.unwrap().conditions);
        assert!(!is_available(&pod), "{:?}", pod.labels());
        scope.resume_kubelet(slow).await;
        scope.until_pod(slow, "online again", is_idle).await;
        scope.until_at_rest("web", 4).await;
    }
}

#[tokio::test]
async fn slowly_terminating_bare_pods_use_no_budget() {
    let scope = Bed::shared().await.scope("grace").await;
    let site = json!({
        "metadata": {"labels": {"site": "web"}},
        "spec": {"terminationGracePeriodSeconds": 600},
    });
    let pods: Vec<_> = (0..5).map(|n| format!("web-{n}")).collect();
    for pod in &pods {
        scope.pod(pod, site.clone()).await;
    }
    scope.all_available("site=web", 5).await;
    scope.rule("web", json!({"site": "web"}), json!(1)).await;
    let floor = json!([{"name": "floor", "availablePolicy": {"minAvailableValue": 2}}]);
    let floor = json!({"selector": {"matchLabels": {"site": "web"}}, "rules": floor});
    scope.try_rule("floor", floor).await.unwrap();
    scope.until_at_rest("web", 5).await;
    scope.until_at_rest("floor", 5).await;

    // Both terminating Pods still run, and answer until their grace period ends. The budget still has room for one Pod.
    for pod in &pods[..2] {
        scope.pause_kubelet(pod).await;
    }
    scope.delete(&pods[0]).await.unwrap();
    scope.until_at_rest("web", 4).await;
    scope.evict(&pods[1]).await.unwrap();
    scope
        .until_status("web", "no trace of the two", |s: &RuleStatus| {
            s.expected_pods == 3
                && s.unavailable_pods == 0
                && s.disruptions_allowed == Some(1)
                && s.ledger.as_ref().is_none_or(|l| l.claims.is_empty())
        })
        .await;
    for pod in &pods[..2] {
        let pod = scope.get(pod).await;
        assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(600));
        assert_eq!(condition(&pod, "Ready"), Some(true));
        assert!(pod.labels().contains_key(keys::SERVICE_AVAILABLE));
    }
    scope.begin(&pods[2], ID).await.unwrap();
    budget_refusal(
        scope.delete(&pods[3]).await,
        "1 of 3 Pods are unavailable, the limit is 1",
    );
    finish_at_once(&scope, &pods[2], ID).await;
    scope.until_pod(&pods[2], "online again", is_idle).await;

    // Terminating Pods do not count as available under minAvailableValue either.
    scope.pause_kubelet(&pods[3]).await;
    wait::until("the place to be free again", async || {
        scope.delete(&pods[3]).await.is_ok()
    })
    .await;
    scope.until_at_rest("web", 2).await;
    scope.until_at_rest("floor", 2).await;
    let status = refusal(scope.delete(&pods[4]).await);
    assert!(
        status.code == 429 && status.message.contains("PodTransitionRule floor"),
        "{status:?}"
    );

    // Whichever way these Pods end, no claim remains and the figures do not change.
    let last = scope.get(&pods[1]).await;
    scope
        .pods()
        .delete(&pods[0], &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    scope.resume_kubelet(&pods[1]).await;
    scope.until_gone(&last).await;
    scope.until_at_rest("web", 2).await;
}
