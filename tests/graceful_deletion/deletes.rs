//! DELETE and deletecollection.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams, PropagationPolicy};
use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{is_idle, may_operate, names, service_ready};
use testbed::scope::refusal;
use testbed::wait;

use crate::{
    UNDERWAY, bed, drop_protection, finalizer, is_marked, is_terminating, leaving, protected,
};

#[tokio::test]
async fn kubectl_delete_takes_pod_off_traffic_before_deletion() {
    let bed = bed().await;
    for ruled in [false, true] {
        let scope = protected(bed, ruled).await;
        let pod = scope.get("web").await;
        let output = bed.ask_kubectl_in(&scope, &["delete", "pod", "web"]).await;
        let (done, text) = (output.succeeded(), output.text());
        assert!(!done && text.contains(UNDERWAY), "{text}");
        assert!(text.contains(&finalizer()), "{text}");
        let off = scope
            .until_pod("web", "taken off", |p| service_ready(p) == Some(false))
            .await;
        assert!(is_marked(&off) && !is_terminating(&off));
        // The Pod is off traffic, and its deletion still waits for the finalizers of the cooperators.
        let output = bed.ask_kubectl_in(&scope, &["delete", "pod", "web"]).await;
        let (done, text) = (output.succeeded(), output.text());
        assert!(!done && text.contains(UNDERWAY), "{text}");
        let waiting = format!("{UNDERWAY} with finalizers: [{}]", finalizer());
        assert!(text.contains(&waiting), "{text}");
        assert!(!is_terminating(&scope.get("web").await));
        drop_protection(&scope).await;
        scope.until_gone(&pod).await;
        if ruled {
            scope.until_at_rest("web", 0).await;
        }
    }
}

#[tokio::test]
async fn refused_deletion_is_retryable() {
    let scope = protected(bed().await, false).await;
    let status = refusal(scope.delete("web").await);
    assert_eq!(
        (status.code, status.reason.as_str()),
        (429, "TooManyRequests")
    );
    assert!(
        status.details.is_none_or(|d| d.retry_after_seconds == 0),
        "clients would wait in silence"
    );
}

#[tokio::test]
async fn dry_run_gets_real_verdict_and_begins_nothing() {
    let bed = bed().await;
    for ruled in [false, true] {
        let scope = protected(bed, ruled).await;
        let before = scope.get("web").await;
        let dry = ["delete", "pod", "web", "--dry-run=server"];
        let output = bed.ask_kubectl_in(&scope, &dry).await;
        let (done, text) = (output.succeeded(), output.text());
        assert!(!done && text.contains(UNDERWAY), "{text}");
        let after = scope.get("web").await;
        assert_eq!(after.resource_version(), before.resource_version());
        assert!(!is_marked(&after));
    }
}

#[tokio::test]
async fn concurrent_deletions_begin_one_lifecycle() {
    let scope = protected(bed().await, true).await;
    let observer = Observer::start(&scope).await;
    let twenty = vec!["web".to_owned(); 20];
    let outcomes = testbed::pods::at_once(&twenty, |pod| {
        let scope = scope.clone();
        async move { scope.delete(&pod).await }
    })
    .await;
    for outcome in outcomes {
        let status = refusal(outcome);
        assert!(status.message.contains(UNDERWAY), "{status:?}");
    }
    let versions = observer.versions().await;
    let values: BTreeSet<_> = versions
        .iter()
        .filter_map(|p| p.labels().get(keys::TO_DELETE))
        .collect();
    assert_eq!(values.len(), 1, "{values:?}");
}

#[tokio::test]
async fn cancelled_deletion_returns_the_pod() {
    let bed = bed().await;
    let scope = protected(bed, true).await;
    refusal(scope.delete("web").await);
    scope
        .until_pod("web", "taken off", |p| service_ready(p) == Some(false))
        .await;
    scope
        .label("web", json!({keys::TO_DELETE: null}))
        .await
        .unwrap();
    scope.until_pod("web", "online again", is_idle).await;
    scope.until_at_rest("web", 1).await;
}

#[tokio::test]
async fn deletion_waits_for_budget_in_its_lifecycle() {
    let scope = bed().await.scope("waits").await;
    scope.deploy("web", 2, json!({})).await;
    let pods = names(&scope.all_available("app=web", 2).await);
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 2).await;
    refusal(scope.delete(&pods[0]).await);
    let waiting = scope
        .until_pod(&pods[0], "wait for the rule", |p| {
            p.labels().contains_key(&Family::PreCheck.key("pod-delete"))
        })
        .await;
    assert!(waiting.labels().contains_key(keys::SERVICE_AVAILABLE));
    let message = refusal(scope.delete(&pods[0]).await).message;
    assert!(
        message.contains(UNDERWAY)
            && message.contains("waits until its PodTransitionRules let it pass"),
        "{message}"
    );
}

#[tokio::test]
async fn deletecollection_deletes_all_pods_within_the_budget() {
    let scope = bed().await.scope("collection").await;
    scope.deploy("web", 4, json!({})).await;
    let old = scope.all_available("app=web", 4).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 4).await;
    let observer = Observer::start(&scope).await;
    for pod in &old {
        let mark = json!({"told": "old"});
        scope.label(&pod.name_any(), mark).await.unwrap();
    }
    let those = ListParams::default().labels("told=old");
    // The test repeats the request as a script would: each is refused until no Pod is left.
    wait::until("the old ones to be deleted", async || {
        let (pods, delete) = (scope.pods(), DeleteParams::default());
        let _ = pods.delete_collection(&delete, &those).await;
        scope.list("told=old").await.is_empty()
    })
    .await;
    scope.all_available("app=web", 4).await;
    scope.until_at_rest("web", 4).await;
    observer.fewest_available(|_| true, 4).await.at_least(3);
}

/// See contract Q22.
#[tokio::test]
async fn announced_deletion_in_operate_passes_at_once() {
    let scope = bed().await.scope("announced").await;
    for name in ["deleted", "updated"] {
        scope.pod(name, json!({})).await;
        scope
            .until_pod(name, "available", testbed::pods::is_available)
            .await;
    }
    scope.label("deleted", leaving("mine")).await.unwrap();
    scope
        .until_pod("deleted", "operate", |p| may_operate(p, "mine"))
        .await;
    scope.delete("deleted").await.unwrap();
    // An operation without the label `preparing-to-delete` permits no deletion.
    scope.begin("updated", "mine").await.unwrap();
    scope
        .until_pod("updated", "operate", |p| may_operate(p, "mine"))
        .await;
    let status = refusal(scope.delete("updated").await);
    assert!(status.message.contains(UNDERWAY), "{status:?}");
}

/// The label `preparing-to-delete` belongs to the deletion, and permits nothing for the update.
#[tokio::test]
async fn second_delete_is_held_while_first_waits_for_rules() {
    let scope = bed().await.scope("second").await;
    scope.pod("web", json!({})).await;
    scope
        .until_pod("web", "available", testbed::pods::is_available)
        .await;
    scope
        .label("web", json!({"updatable": "yes"}))
        .await
        .unwrap();
    scope.begin("web", "upgrade").await.unwrap();
    scope
        .until_pod("web", "operate", |p| may_operate(p, "upgrade"))
        .await;
    let requires = json!({"requires": {"matchLabels": {"deletable": "yes"}}});
    let rules = json!([{"name": "labels", "labelCheck": requires}]);
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
    scope.try_rule("web", spec).await.unwrap();
    refusal(scope.delete("web").await);
    scope
        .until_pod("web", "wait for its rule", |p| {
            p.labels().contains_key(&Family::PreCheck.key("pod-delete"))
        })
        .await;
    for _ in 0..2 {
        let status = refusal(scope.delete("web").await);
        assert!(status.message.contains(UNDERWAY), "{status:?}");
        refusal(scope.evict("web").await);
    }
    let pod = scope.get("web").await;
    assert!(!is_terminating(&pod));
    scope
        .label("web", json!({"deletable": "yes"}))
        .await
        .unwrap();
    scope.until_gone(&pod).await;
}

#[tokio::test]
async fn grace_period_and_propagation_of_the_caller_are_kept() {
    let scope = bed().await.scope("options").await;
    let finalizer = "example.com/keep";
    let observer = Observer::start(&scope).await;
    for (name, evicted) in [("deleted", false), ("evicted", true)] {
        let spec = json!({"terminationGracePeriodSeconds": 300});
        let metadata = json!({"finalizers": [finalizer]});
        scope
            .pod(name, json!({"metadata": metadata, "spec": spec}))
            .await;
        scope
            .until_pod(name, "available", testbed::pods::is_available)
            .await;
        let options = DeleteParams {
            grace_period_seconds: Some(5),
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        let refused = match evicted {
            true => {
                // The test does not use EvictParams, because kube sends it under a name that the API server does not
                // know.
                let eviction = json!({
                    "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
                    "deleteOptions": {"gracePeriodSeconds": 5, "propagationPolicy": "Foreground"},
                });
                let (pods, params) = (scope.pods(), PostParams::default());
                let sent =
                    pods.create_subresource::<_, Value>("eviction", name, &params, &eviction);
                sent.await.map(drop)
            }
            false => scope.pods().delete(name, &options).await.map(drop),
        };
        refusal(refused);
        let pod = scope.until_pod(name, "deleted", is_terminating).await;
        assert_eq!(
            pod.metadata.deletion_grace_period_seconds,
            Some(5),
            "{name}"
        );
        // The garbage collector removes this finalizer.
        let versions = observer.versions().await;
        let in_foreground = |p: &Pod| {
            p.name_any() == name && p.finalizers().iter().any(|f| f == "foregroundDeletion")
        };
        assert!(versions.iter().any(in_foreground), "{name}");
        let none = json!({"metadata": {"finalizers": null}});
        scope.patch(name, none).await.unwrap();
    }
}
