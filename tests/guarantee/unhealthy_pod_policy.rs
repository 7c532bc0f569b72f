//! `unhealthyPodPolicy`: when a Pod that is not available may be deleted.

use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::{is_available, names};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

fn rule(policy: Option<&str>) -> Value {
    json!([{ "name": "availability", "availablePolicy": {
        "maxUnavailableValue": 1, "unhealthyPodPolicy": policy,
    }}])
}

/// Three available Pods under a rule that allows one disruption. Returns their names.
async fn three(policy: Option<&str>) -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope("unhealthy").await;
    scope.deploy_where_open("web", 3).await;
    let pods = names(&scope.all_available("app=web", 3).await);
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rule(policy)});
    scope.try_rule("web", spec).await.unwrap();
    scope.until_at_rest("web", 3).await;
    scope.close_nodes().await; // no replacement becomes ready
    (scope, pods)
}

/// Makes a Pod stop serving, until [`Scope::resume_kubelet`].
async fn fails(scope: &Scope, pod: &str) {
    scope.crash(pod).await;
    scope
        .until_pod(pod, "out of service", |p| {
            !p.labels().contains_key(keys::SERVICE_AVAILABLE)
        })
        .await;
}

/// The denials of a deletion and of an eviction (`None` if they pass), once all replicas agree. Each replica learns of
/// a loss when its watch delivers it. Many dry runs at once reach every replica.
async fn until_all_replicas_agree(
    scope: &Scope,
    pod: &str,
    is_denied: bool,
) -> Option<(Status, Status)> {
    let post = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let evict = EvictParams {
        post_options: post,
        ..EvictParams::default()
    };
    let delete = DeleteParams::default().dry_run();
    let pods = scope.pods();
    let mut in_a_row = 0;
    wait::value("all replicas to say the same", async || {
        let both = (0..12).map(|_| join(pods.delete(pod, &delete), pods.evict(pod, &evict)));
        let mut outcomes = join_all(both).await;
        let same = |(deleted, evicted): &(kube::Result<_>, kube::Result<_>)| {
            deleted.is_err() == is_denied && evicted.is_err() == is_denied
        };
        in_a_row = if outcomes.iter().all(same) {
            in_a_row + 1
        } else {
            0
        };
        let (deleted, evicted) = outcomes.pop()?;
        (in_a_row == 2).then(|| is_denied.then(|| (refusal(deleted), refusal(evicted))))
    })
    .await
}

async fn enforcement_label(scope: &Scope) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let namespace = namespaces.get(&scope.namespace).await.unwrap();
    namespace
        .metadata
        .labels?
        .remove(keys::NAMESPACE_ENFORCEMENT)
}

#[tokio::test]
async fn unavailable_pod_is_deleted_only_while_enough_others_serve() {
    let (scope, pods) = three(Some("IfHealthyBudget")).await;
    assert_eq!(
        enforcement_label(&scope).await.as_deref(),
        Some(keys::NAMESPACE_ENFORCEMENT_STRICT)
    );
    for pod in &pods[..2] {
        fails(&scope, pod).await;
    }
    let (deleted, evicted) = until_all_replicas_agree(&scope, &pods[0], true)
        .await
        .unwrap();
    for status in [deleted, evicted] {
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests")
        );
        let why = "only while at least 2 of 3 Pods are available; 1 are available now";
        assert!(status.message.contains(why), "{status:?}");
    }
    for outcome in [scope.delete(&pods[0]).await, scope.evict(&pods[0]).await] {
        refusal(outcome);
    }
    // One of the two Pods becomes available again: the other Pod may go, without a claim.
    scope.resume_kubelet(&pods[1]).await;
    scope.until_pod(&pods[1], "back", is_available).await;
    until_all_replicas_agree(&scope, &pods[0], false).await;
    scope.delete(&pods[0]).await.unwrap();
    scope
        .until_status("web", "one place taken", |s: &RuleStatus| {
            s.unavailable_pods == 1
        })
        .await;
    refusal(scope.delete(&pods[1]).await);
}

#[tokio::test]
async fn unavailable_pod_is_deleted_without_budget_by_default() {
    for policy in [None, Some("AlwaysAllow")] {
        let (scope, pods) = three(policy).await;
        assert_eq!(enforcement_label(&scope).await.as_deref(), Some("true"));
        for pod in &pods[..2] {
            fails(&scope, pod).await;
        }
        scope.delete(&pods[0]).await.unwrap();
        // The deletion has the judged version as precondition, so it fails if the Pod is written in between.
        wait::until("the eviction to be let pass", async || {
            scope.evict(&pods[1]).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn policy_change_takes_effect_in_both_directions() {
    let (scope, pods) = three(None).await;
    let change = async |policy: &str| {
        let patch = Patch::Merge(json!({"spec": {"rules": rule(Some(policy))}}));
        let rules = scope.rules();
        rules
            .patch("web", &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    for pod in &pods[..2] {
        fails(&scope, pod).await;
    }
    change("IfHealthyBudget").await;
    until_all_replicas_agree(&scope, &pods[0], true).await;
    change("AlwaysAllow").await;
    until_all_replicas_agree(&scope, &pods[0], false).await;
    scope.delete(&pods[0]).await.unwrap();
}

#[tokio::test]
async fn pod_off_traffic_by_operation_is_deleted_under_the_policy() {
    let (scope, pods) = three(Some("IfHealthyBudget")).await;
    scope.begin(&pods[0], "replace").await.unwrap();
    scope
        .until_pod(&pods[0], "operate", |p| {
            testbed::pods::may_operate(p, "replace")
        })
        .await;
    fails(&scope, &pods[1]).await;
    until_all_replicas_agree(&scope, &pods[1], true).await; // one Pod serves, and two are required
    scope.delete(&pods[0]).await.unwrap();
}
