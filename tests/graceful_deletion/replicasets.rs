//! ReplicaSets that are scaled in. Their controller retries, and may then choose other Pods.

use std::collections::BTreeSet;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::is_available;
use testbed::{Scope, wait};

use crate::{bed, finalizer, is_marked, is_terminating};

/// UIDs of the Pods whose deletion was requested, whether they are gone or still terminating.
async fn deleted(observer: &Observer) -> BTreeSet<String> {
    let changes = observer.by_uid().await.into_iter();
    let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let deleted = changes.filter(|(_, pod)| pod.as_ref().is_none_or(going));
    deleted.map(|(uid, _)| uid).collect()
}

/// Changes how many Pods may be unavailable under the rule `web`.
async fn set_limit(scope: &Scope, limit: usize) {
    let path = "/spec/rules/0/availablePolicy/maxUnavailableValue";
    let operations = json!([{"op": "replace", "path": path, "value": limit}]);
    let patch = Patch::<()>::Json(serde_json::from_value(operations).unwrap());
    let params = PatchParams::default();
    scope.rules().patch("web", &params, &patch).await.unwrap();
}

#[tokio::test]
async fn scale_in_takes_no_pods_but_those_too_many() {
    for (limit, from, to) in [(Some(1), 12, 6), (None, 12, 11), (None, 24, 6)] {
        let scope = bed().await.scope("scale-in").await;
        scope.deploy("web", from, json!({})).await;
        scope.all_available("app=web", from).await;
        if let Some(limit) = limit {
            scope.rule("web", json!({"app": "web"}), json!(limit)).await;
            scope.until_at_rest("web", 12).await;
        }
        let observer = Observer::start(&scope).await;
        scope.scale("web", to).await.unwrap();
        wait::until("the scale-in", async || {
            scope.list("app=web").await.len() == to
        })
        .await;
        // If the marks stayed, the lifecycle would delete further Pods.
        wait::until("no Pod that is still to be deleted", async || {
            let pods = scope.list("app=web").await;
            pods.len() == to && !pods.iter().any(is_marked)
        })
        .await;
        scope.all_available("app=web", to).await;
        observer.fewest_available(|_| true, from).await.at_least(to);
        assert_eq!(deleted(&observer).await.len(), from - to, "{from} to {to}");
    }
}

#[tokio::test]
async fn scale_in_that_is_taken_back_keeps_all_pods() {
    let scope = bed().await.scope("taken-back").await;
    scope.deploy("web", 6, json!({})).await;
    scope.all_available("app=web", 6).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 6).await;
    let observer = Observer::start(&scope).await;
    scope.scale("web", 1).await.unwrap();
    wait::until("Pods that are to be deleted", async || {
        scope.list("app=web").await.iter().any(is_marked)
    })
    .await;
    scope.scale("web", 6).await.unwrap();
    wait::until("no Pod that is to be deleted", async || {
        !scope.list("app=web").await.iter().any(is_marked)
    })
    .await;
    set_limit(&scope, 6).await;
    let pods = scope.all_available("app=web", 6).await;
    assert_eq!(deleted(&observer).await, BTreeSet::new());
    assert!(!pods.iter().any(is_marked), "{:?}", pods[0].name_any());
}

#[tokio::test]
async fn user_deletion_proceeds_although_scale_in_is_cancelled() {
    let scope = bed().await.scope("both").await;
    scope.deploy("web", 3, json!({})).await;
    let pods = scope.all_available("app=web", 3).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 3).await;
    scope.scale("web", 2).await.unwrap();
    let chosen = wait::value("a Pod that is to be deleted", async || {
        scope.list("app=web").await.into_iter().find(is_marked)
    })
    .await;
    testbed::scope::refusal(scope.delete(&chosen.name_any()).await);
    scope.scale("web", 3).await.unwrap();
    set_limit(&scope, 3).await;
    scope.until_gone(&chosen).await;
    let remaining = scope.all_available("app=web", 3).await;
    let survivors = remaining
        .iter()
        .filter(|p| pods.iter().any(|q| p.uid() == q.uid()));
    assert_eq!(survivors.count(), 2);
}

/// A Deployment `web` of `count` Pods under a rule that holds each Pod until it has the label `free`.
async fn deployment_held_by_label(prefix: &str, count: usize) -> Scope {
    let scope = bed().await.scope(prefix).await;
    scope.deploy("web", count, json!({})).await;
    scope.all_available("app=web", count).await;
    let requires = json!({"requires": {"matchLabels": {"free": "yes"}}});
    let rules = json!([{"name": "labels", "labelCheck": requires}]);
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
    scope.try_rule("web", spec).await.unwrap();
    scope
}

/// Makes the ReplicaSet controller prefer a Pod to others that are equally ready.
async fn rank_first(scope: &Scope, pod: &Pod) {
    let cost = json!({"controller.kubernetes.io/pod-deletion-cost": "-1"});
    let patch = json!({"metadata": {"annotations": cost}});
    scope.patch(&pod.name_any(), patch).await.unwrap();
}

/// Names of the Pods that will be deleted.
async fn marked(scope: &Scope) -> BTreeSet<String> {
    let pods = scope.list("app=web").await.into_iter();
    let marked = pods.filter(is_marked);
    marked.map(|pod| pod.name_any()).collect()
}

/// Changes each Pod ten times, which makes the ReplicaSet controller try again.
async fn stir(scope: &Scope) {
    for round in 0..10 {
        for pod in scope.list("app=web").await {
            let label = json!({"round": round.to_string()});
            scope.label(&pod.name_any(), label).await.unwrap();
        }
    }
}

#[tokio::test]
async fn held_scale_in_chooses_no_more_pods_than_required() {
    let scope = deployment_held_by_label("held", 6).await;
    scope.scale("web", 2).await.unwrap();
    wait::until("four Pods that are to be deleted", async || {
        marked(&scope).await.len() == 4
    })
    .await;
    let chosen = marked(&scope).await;
    stir(&scope).await;
    assert_eq!(marked(&scope).await, chosen);
}

#[tokio::test]
async fn held_scale_in_of_pods_that_are_down_is_steady() {
    let scope = deployment_held_by_label("down", 8).await;
    for pod in scope.list("app=web").await {
        scope.crash(&pod.name_any()).await;
    }
    scope.scale("web", 5).await.unwrap();
    wait::until("three Pods that are to be deleted", async || {
        marked(&scope).await.len() >= 3
    })
    .await;
    let chosen = marked(&scope).await;
    for _ in 0..5 {
        stir(&scope).await;
    }
    assert_eq!(marked(&scope).await, chosen);
    assert_eq!(chosen.len(), 3);
}

#[tokio::test]
async fn changed_ranking_takes_no_further_pods_off_traffic() {
    let scope = deployment_held_by_label("ranking", 12).await;
    let observer = Observer::start(&scope).await;
    scope.scale("web", 6).await.unwrap();
    wait::until("six Pods that are to be deleted", async || {
        marked(&scope).await.len() == 6
    })
    .await;
    let chosen = marked(&scope).await;
    let pods = scope.list("app=web").await;
    for pod in pods.iter().filter(|pod| !chosen.contains(&pod.name_any())) {
        rank_first(&scope, pod).await;
    }
    // The ReplicaSet controller asks for all Pods that it prefers now, at once.
    scope.scale("web", 5).await.unwrap();
    wait::until("a further Pod that is to be deleted", async || {
        marked(&scope).await.len() > 6
    })
    .await;
    let free = pods.iter().map(|pod| {
        let scope = &scope;
        async move { scope.label(&pod.name_any(), json!({"free": "yes"})).await }
    });
    for labelled in join_all(free).await {
        labelled.unwrap();
    }
    wait::until("the scale-in", async || {
        let pods = scope.list("app=web").await;
        pods.len() == 5 && !pods.iter().any(is_marked)
    })
    .await;
    scope.all_available("app=web", 5).await;
    observer.fewest_available(|_| true, 12).await.at_least(5);
    assert_eq!(deleted(&observer).await.len(), 7);
}

#[tokio::test]
async fn unavailable_pod_is_deleted_instead_of_pod_off_traffic() {
    let scope = bed().await.scope("in-place-of").await;
    scope.deploy("web", 3, json!({})).await;
    let finalizers = |all: Vec<String>| json!({"metadata": {"finalizers": all}});
    for pod in scope.all_available("app=web", 3).await {
        let patch = finalizers(vec![finalizer()]);
        scope.patch(&pod.name_any(), patch).await.unwrap();
    }
    scope.scale("web", 2).await.unwrap();
    let off = wait::value("a Pod that is off traffic", async || {
        let pods = scope.list("app=web").await.into_iter();
        let mut off = pods.filter(|pod| is_marked(pod) && !is_available(pod));
        off.next()
    })
    .await;
    let pods = scope.list("app=web").await;
    let down = pods.iter().find(|pod| pod.uid() != off.uid()).unwrap();
    rank_first(&scope, down).await;
    scope.crash(&down.name_any()).await;
    let patch = finalizers(Vec::new());
    scope.patch(&off.name_any(), patch).await.unwrap();
    scope.until_pod(&down.name_any(), "to go", is_marked).await;
    scope
        .until_pod(&off.name_any(), "back on traffic", |pod| {
            is_available(pod) && !is_marked(pod)
        })
        .await;
    let patch = finalizers(Vec::new());
    scope.patch(&down.name_any(), patch).await.unwrap();
    scope
        .until_pod(&down.name_any(), "terminating", is_terminating)
        .await;
    scope.resume_kubelet(&down.name_any()).await;
    scope.until_gone(down).await;
    let remaining = scope.all_available("app=web", 2).await;
    assert!(remaining.iter().any(|pod| pod.uid() == off.uid()));
    for pod in remaining {
        let patch = finalizers(Vec::new());
        scope.patch(&pod.name_any(), patch).await.unwrap();
    }
}
