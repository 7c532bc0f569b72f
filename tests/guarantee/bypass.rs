//! Bypass: going beyond the budget with an annotation on the Pod and the verb `bypass` on the rule.

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::bed::{right_to_bypass, rights_on_pods};
use testbed::pods::{is_available, names};
use testbed::scope::{claims, refusal};
use testbed::{Bed, Scope, wait};

const NEEDED: &str = "lacks the RBAC verb bypass on podtransitionrules/web";

/// Three available Pods under a rule; their names.
async fn three(max_unavailable: i32) -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope("bypass").await;
    scope.deploy_where_open("web", 3).await;
    let pods = names(&scope.all_available("app=web", 3).await);
    scope
        .rule("web", json!({"app": "web"}), json!(max_unavailable))
        .await;
    scope.until_at_rest("web", 3).await;
    scope.close_nodes().await; // no replacement becomes ready
    (scope, pods)
}

/// The namespace as seen by a user who may do everything to Pods, with or without the right to bypass the rule.
async fn user(scope: &Scope, name: &str, bypass: bool) -> Scope {
    let mut rights = vec![rights_on_pods()];
    rights.extend(bypass.then(|| right_to_bypass("web")));
    Bed::shared().await.new_user(scope, name, &rights).await
}

async fn give_reason(scope: &Scope, pod: &str, reason: &str) {
    let annotation = json!({"metadata": {"annotations": {keys::BYPASS: reason}}});
    scope.patch(pod, annotation).await.unwrap();
}

/// Waits for the Warning Event `BudgetBypassed` about an object.
async fn until_bypass_event(scope: &Scope, kind: &str, name: &str, reason: &str) {
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let description = format!("the Event on {kind} {name}");
    wait::until(&description, async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.iter().any(|e| {
            e.reason.as_deref() == Some("BudgetBypassed")
                && e.type_.as_deref() == Some("Warning")
                && e.involved_object.kind.as_deref() == Some(kind)
                && e.involved_object.name.as_deref() == Some(name)
                && e.message.as_deref().is_some_and(|m| m.contains(reason))
        })
    })
    .await;
}

#[tokio::test]
async fn bypass_needs_reason_and_right_and_counts_as_disruption() {
    let (scope, pods) = three(1).await;
    let (plain, may) = (
        user(&scope, "plain", false).await,
        user(&scope, "may", true).await,
    );
    scope.begin(&pods[0], "upgrade").await.unwrap(); // uses the budget up
    let pod = &pods[1];
    // Without a reason the denial does not mention the bypass, whatever rights the user has.
    for user in [&plain, &may] {
        for outcome in [user.delete(pod).await, user.evict(pod).await] {
            let message = refusal(outcome).message;
            assert!(message.contains("the limit is 1"), "{message}");
            assert!(!message.contains("bypass"), "{message}");
        }
    }
    give_reason(&plain, pod, " ").await;
    let message = refusal(may.delete(pod).await).message;
    assert!(
        message.contains("write the reason of the bypass as its value"),
        "{message}"
    );
    // A reason alone gives nothing.
    give_reason(&plain, pod, "the disk is on fire").await;
    for outcome in [plain.delete(pod).await, plain.evict(pod).await] {
        let message = refusal(outcome).message;
        assert!(message.contains("the limit is 1"), "{message}");
        assert!(message.contains(NEEDED), "{message}");
    }
    // With both the reason and the right the deletion passes. A dry run reports this and writes nothing.
    let dry = DeleteParams::default().dry_run();
    let version = async || scope.rules().get("web").await.unwrap().resource_version();
    scope
        .until_status(
            "web",
            "the claim of the begin released",
            |s: &RuleStatus| claims(s) == 0,
        )
        .await;
    wait::until(
        "the dry-run to be let pass and to write nothing",
        async || {
            let before = version().await;
            may.pods().delete(pod, &dry).await.unwrap();
            version().await == before // the counts may have been written meanwhile
        },
    )
    .await;
    assert!(is_available(&scope.get(pod).await));

    may.delete(pod).await.unwrap();
    until_bypass_event(&scope, "Pod", pod, "the disk is on fire").await;
    until_bypass_event(&scope, "PodTransitionRule", "web", "the disk is on fire").await;
    let bed = Bed::shared().await;
    let counted = bed
        .metric("operating_ledger_claims_bypassed_total")
        .await
        .iter()
        .sum::<f64>();
    assert!(counted >= 1.0, "{counted}");
    // The bypassed Pod counts for all others: two of three Pods are unavailable now.
    wait::until("every replica to count both", async || {
        let message = refusal(scope.delete(&pods[2]).await).message;
        message.contains("2 of 3 Pods are unavailable")
    })
    .await;
}

#[tokio::test]
async fn bypass_covers_eviction_in_place_change_and_begin() {
    let (scope, pods) = three(0).await;
    let may = user(&scope, "may", true).await;
    for pod in &pods {
        give_reason(&scope, pod, "security fix").await;
    }
    let begun = may.begin(&pods[0], "upgrade").await.unwrap();
    assert!(
        begun
            .labels()
            .contains_key(&Family::Preparing.key("upgrade")),
        "{:?}",
        begun.labels()
    );
    let image = json!({"spec": {"containers": [{"name": "main", "image": "web:2"}]}});
    let image = kube::api::Patch::Strategic(image);
    let pods_of = may.pods();
    pods_of
        .patch(&pods[1], &Default::default(), &image)
        .await
        .unwrap();
    may.evict(&pods[2]).await.unwrap();
    for pod in &pods {
        until_bypass_event(&scope, "Pod", pod, "security fix").await;
    }
}

#[tokio::test]
async fn waiting_pod_is_overtaken_only_with_bypass_right() {
    let (scope, pods) = three(0).await;
    let (plain, may) = (
        user(&scope, "plain", false).await,
        user(&scope, "may", true).await,
    );
    let waiting = plain.begin(&pods[0], "upgrade").await.unwrap();
    assert!(
        waiting
            .labels()
            .contains_key(&Family::PreCheck.key("upgrade"))
    );
    for pod in &pods[1..] {
        give_reason(&plain, pod, "urgent").await;
    }
    let behind = plain.begin(&pods[1], "upgrade").await.unwrap();
    assert!(
        behind
            .labels()
            .contains_key(&Family::PreCheck.key("upgrade"))
    );
    let ahead = may.begin(&pods[2], "upgrade").await.unwrap();
    assert!(
        ahead
            .labels()
            .contains_key(&Family::Preparing.key("upgrade")),
        "{:?}",
        ahead.labels()
    );
}
