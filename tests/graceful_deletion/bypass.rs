//! Bypass of rules while the feature gate is on.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::pods::{is_available, may_operate};
use testbed::scope::refusal;
use testbed::{Scope, wait};

use crate::{bed, is_marked, is_terminating, protected};

/// The administrator has every verb.
async fn give_reason(scope: &Scope, pod: &str) {
    let reason = json!({"metadata": {"annotations": {keys::BYPASS: "the disk is on fire"}}});
    scope.patch(pod, reason).await.unwrap();
}

/// Waits for the Event `BudgetBypassed` about an object of this kind.
async fn until_bypass_event(scope: &Scope, kind: &str) {
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    wait::until(&format!("the Event on the {kind}"), async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.iter().any(|e| {
            let about = e.regarding.as_ref().and_then(|r| r.kind.as_deref());
            e.reason.as_deref() == Some("BudgetBypassed")
                && about == Some(kind)
                && e.note.as_deref().is_some_and(|n| n.contains("on fire"))
        })
    })
    .await;
}

#[tokio::test]
async fn bypassed_deletion_goes_at_once_with_room_and_without() {
    let bed = bed().await;
    for limit in [Some(0), Some(1), None] {
        for grace in [None, Some(0)] {
            let scope = protected(bed, false).await;
            if let Some(limit) = limit {
                scope.rule("web", json!({"app": "web"}), json!(limit)).await;
                scope.until_at_rest("web", 1).await;
            }
            give_reason(&scope, "web").await;
            let params = DeleteParams {
                grace_period_seconds: grace,
                ..DeleteParams::default()
            };
            scope.pods().delete("web", &params).await.unwrap();
            let deleted = scope.get("web").await; // its finalizer keeps it
            assert!(
                is_terminating(&deleted) && !is_marked(&deleted),
                "{limit:?} {grace:?} {:?}",
                deleted.metadata
            );
            until_bypass_event(&scope, "Pod").await;
            if limit.is_some() {
                until_bypass_event(&scope, "PodTransitionRule").await;
            }
        }
    }
}

#[tokio::test]
async fn bypassed_eviction_goes_at_once_though_its_lifecycle_waits() {
    let scope = protected(bed().await, true).await;
    refusal(scope.evict("web").await);
    assert!(is_marked(&scope.get("web").await));
    give_reason(&scope, "web").await;
    scope.evict("web").await.unwrap();
    assert!(is_terminating(&scope.get("web").await));
}

#[tokio::test]
async fn operation_that_a_rule_holds_goes_on_by_a_bypass() {
    let scope = bed().await.scope("held").await;
    let requires = json!({"requires": {"matchLabels": {"free": "yes"}}});
    let rules = json!([
        {"name": "labels", "labelCheck": requires},
        {"name": "ask", "webhook": {"failurePolicy": "Fail", "clientConfig": {"url": "https://localhost:1/"}}},
        {"name": "after", "stage": "PostCheck", "labelCheck": requires},
    ]);
    for (name, first) in [("begun", false), ("beginning", true)] {
        scope.pod(name, json!({})).await;
        scope.until_pod(name, "available", is_available).await;
        let spec = json!({"selector": {"matchLabels": {"app": name}}, "rules": rules});
        scope.try_rule(name, spec).await.unwrap();
        if first {
            give_reason(&scope, name).await;
        } else {
            let waits = scope.begin(name, "x").await.unwrap();
            assert!(
                waits
                    .metadata
                    .labels
                    .unwrap()
                    .contains_key(&Family::PreCheck.key("x"))
            );
            give_reason(&scope, name).await;
        }
        if first {
            scope.begin(name, "x").await.unwrap();
        }
        scope
            .until_pod(name, "to operate", |p| may_operate(p, "x"))
            .await;
        until_bypass_event(&scope, "PodTransitionRule").await;
        until_bypass_event(&scope, "Pod").await;
        scope.finish(name, "x").await.unwrap();
        scope.until_pod(name, "back", is_available).await;
    }
}
