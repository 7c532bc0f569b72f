//! Bypass of rules while the feature gate is on.

use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, GetParams, ListParams};
use kube::{Api, ResourceExt};
use operating::api::keys::{self, Family};
use operating::domain::lifecycle::operator::DELETION_ID;
use serde_json::json;
use testbed::bed::{right_to_bypass, rights_on_pods};
use testbed::pods::{is_available, may_operate};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::{bed, is_marked, is_terminating, protected};

/// The administrator has every verb.
async fn give_reason(scope: &Scope, pod: &str) {
    let reason = json!({"metadata": {"annotations": {keys::BYPASS: "the disk is on fire"}}});
    scope.patch(pod, reason).await.unwrap();
    // For a deletion, the API server first shows admission the Pod of its cache.
    wait::until("the reason in the cache of the API server", async || {
        let cached = scope.pods().get_with(pod, &GetParams::any()).await;
        cached.unwrap().annotations().contains_key(keys::BYPASS)
    })
    .await;
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

/// A user who may write Pods but not bypass rules, while the server's own user may bypass them, as with an
/// administrator's kubeconfig.
async fn plain_user_beside_bypassing_server(bed: &Bed, scope: &Scope) -> Scope {
    bed.grant_to_server(scope, &[right_to_bypass("web")]).await;
    bed.new_user(scope, "plain", &[rights_on_pods()]).await
}

/// Waits until an operation was begun and its rules were asked, and expects that it waits for them.
async fn until_held_by_rules(scope: &Scope, pod: &str, id: &str) {
    let begun = Family::Operating.key(id);
    scope
        .until_pod(pod, "the operation begun", |p| {
            p.labels().contains_key(&begun)
        })
        .await;
    let pod = scope.get(pod).await;
    let waits = pod.labels().contains_key(&Family::PreCheck.key(id));
    assert!(waits && is_available(&pod), "{:?}", pod.metadata);
}

#[tokio::test]
async fn reason_alone_gets_no_bypass_by_the_servers_right() {
    let bed = bed().await;
    for by_label in [false, true] {
        let scope = protected(bed, false).await;
        scope.rule("web", json!({"app": "web"}), json!(0)).await;
        scope.until_at_rest("web", 1).await;
        let plain = plain_user_beside_bypassing_server(bed, &scope).await;
        give_reason(&plain, "web").await;
        if by_label {
            let to_delete = json!({keys::TO_DELETE: "1"});
            plain.label("web", to_delete).await.unwrap();
        } else {
            refusal(plain.delete("web").await);
        }
        until_held_by_rules(&scope, "web", DELETION_ID).await;
        // The same request of a user who has the right goes beyond the rule.
        let may = bed.server_user(&scope).await;
        may.delete("web").await.unwrap();
        assert!(is_terminating(&scope.get("web").await));
    }
}

#[tokio::test]
async fn dry_run_by_servers_user_gets_real_verdict() {
    let bed = bed().await;
    for ruled in [false, true] {
        let scope = protected(bed, ruled).await;
        let namesake = bed.server_user(&scope).await;
        let dry = DeleteParams::default().dry_run();
        let dry = refusal(namesake.pods().delete("web", &dry).await);
        assert!(!is_marked(&scope.get("web").await));
        let real = refusal(namesake.delete("web").await);
        assert_eq!((dry.code, dry.message), (real.code, real.message));
        assert!(is_marked(&scope.get("web").await));
    }
}
