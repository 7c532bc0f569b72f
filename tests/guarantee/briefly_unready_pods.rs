//! A Pod that is not ready for a moment still needs the budget: it would become ready again by itself.

use std::collections::BTreeSet;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::{at_once, may_operate};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

const ID: &str = "upgrade";

/// Whether the operation keeps the Pod off traffic.
fn has_begun(pod: &Pod) -> bool {
    [Family::Preparing, Family::Operate]
        .iter()
        .any(|family| pod.labels().contains_key(&family.key(ID)))
}

/// Most Pods that the operation has kept off traffic at one time.
async fn most_begun(observer: &Observer) -> usize {
    let mut begun = BTreeSet::new();
    let sizes = observer.by_uid().await.into_iter().map(|(uid, pod)| {
        if pod.as_ref().is_some_and(has_begun) {
            begun.insert(uid);
        } else {
            begun.remove(&uid);
        }
        begun.len()
    });
    sizes.max().unwrap_or_default()
}

async fn operating(scope: &Scope) -> Vec<String> {
    let pods = scope.list("app=web").await;
    let operating = pods.iter().filter(|p| may_operate(p, ID));
    operating.map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn pods_that_flap_together_do_not_all_begin() {
    let scope = Bed::shared().await.scope("flap").await;
    let pods = scope.web_under_rule(20, json!(2)).await;
    let observer = Observer::start(&scope).await;
    for outcome in at_once(&pods, async |pod| scope.begin(&pod, ID).await).await {
        outcome.unwrap();
    }
    let two = wait::value("two to operate", async || {
        let two = operating(&scope).await;
        (two.len() == 2).then_some(two)
    })
    .await;
    let waiting: Vec<_> = pods.iter().filter(|p| !two.contains(p)).collect();
    join_all(waiting.iter().map(|pod| scope.lose_readiness(pod))).await;
    let lost = |pod: &Pod| !pod.labels().contains_key(keys::SERVICE_AVAILABLE);
    for pod in &waiting[..3] {
        scope.until_pod(pod, "out of service", lost).await;
    }
    join_all(waiting.iter().map(|pod| scope.resume_kubelet(pod))).await;
    scope
        .until_status("web", "the others back", |s: &RuleStatus| {
            s.available_pods == 18
        })
        .await;
    assert_eq!(most_begun(&observer).await, 2);
    // The wait queue continues.
    for pod in &two {
        scope.finish(pod, ID).await.unwrap();
    }
    wait::until("the next two to operate", async || {
        let next = operating(&scope).await;
        next.len() == 2 && next.iter().all(|p| !two.contains(p))
    })
    .await;
    assert_eq!(most_begun(&observer).await, 2);
}

#[tokio::test]
async fn briefly_unready_pod_needs_budget_to_begin_or_be_evicted() {
    let scope = Bed::shared().await.scope("moment").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    let observer = Observer::start(&scope).await;
    for pod in &pods[..2] {
        scope.lose_readiness(pod).await;
    }
    // Each replica knows of a loss when its watch has delivered it.
    scope
        .until_status("web", "both counted", |s: &RuleStatus| {
            s.available_pods == 1
        })
        .await;
    let begun = scope.begin(&pods[0], ID).await.unwrap();
    assert!(!has_begun(&begun), "{:?}", begun.labels());
    let status = refusal(scope.evict(&pods[1]).await);
    assert_eq!(
        (status.code, status.reason.as_str()),
        (429, "TooManyRequests")
    );
    assert!(
        status.message.contains("2 of 3 Pods are unavailable"),
        "{status:?}"
    );
    assert_eq!(most_begun(&observer).await, 0);
    // When the other Pod is ready again, the loss of this Pod uses the whole budget.
    scope.resume_kubelet(&pods[1]).await;
    scope.until_pod(&pods[0], "begun", has_begun).await;
    assert!(scope.claims("web").await <= 1);
}

#[tokio::test]
async fn pod_that_cannot_run_begins_without_budget() {
    let scope = Bed::shared().await.scope("broken").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    for pod in &pods {
        scope.crash(pod).await;
        scope
            .until_pod(pod, "out of service", |p| {
                !p.labels().contains_key(keys::SERVICE_AVAILABLE)
            })
            .await;
    }
    for pod in &pods {
        let begun = scope.begin(pod, ID).await.unwrap();
        assert!(has_begun(&begun), "{:?}", begun.labels());
    }
}
