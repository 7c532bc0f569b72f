//! PodDisruptionBudgets beside a rule.

use futures::future::join_all;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{EvictParams, PostParams};
use kube::core::Status;
use serde_json::json;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

/// A budget that lets no Pod labelled `app=web` be evicted.
async fn forbid(scope: &Scope, name: &str) {
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }))
    .unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(scope.client.clone(), &scope.namespace);
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    wait::until("the budget to be observed", async || {
        let status = budgets.get(name).await.unwrap().status;
        status.is_some_and(|s| s.observed_generation == Some(1) && s.current_healthy > Some(0))
    })
    .await;
}

/// The denial of an eviction, once all replicas deny it themselves with this text.
async fn all_refuse(scope: &Scope, pod: &str, text: &str) -> Status {
    let dry_run = EvictParams {
        post_options: PostParams {
            dry_run: true,
            ..PostParams::default()
        },
        ..EvictParams::default()
    };
    let pods = scope.pods();
    wait::value("all replicas to know of the budget", async || {
        let statuses = join_all((0..12).map(|_| pods.evict(pod, &dry_run))).await;
        let mut statuses: Vec<_> = statuses.into_iter().map(refusal).collect();
        let ours = |s: &Status| s.message.contains("admission webhook") && s.message.contains(text);
        statuses.iter().all(ours).then(|| statuses.remove(0))
    })
    .await
}

#[tokio::test]
async fn eviction_refused_by_disruption_budget_never_keeps_a_claim() {
    let scope = Bed::shared().await.scope("pdb").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    forbid(&scope, "locked").await;
    let text = "Cannot evict pod as it would violate the pod's disruption budget.";
    all_refuse(&scope, &pods[0], text).await;
    let cause = "The disruption budget locked needs 3 healthy pods and has 3 currently";
    for _ in 0..30 {
        let status = refusal(scope.evict(&pods[0]).await);
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests")
        );
        assert!(
            status.message.contains(text) && status.message.contains(cause),
            "{status:?}"
        );
        let details = status.details.unwrap();
        assert_eq!(
            details.retry_after_seconds, 0,
            "client-go would wait in silence"
        );
        let causes: Vec<_> = details
            .causes
            .iter()
            .map(|c| (c.reason.as_str(), c.message.as_str()))
            .collect();
        assert_eq!(causes, [("DisruptionBudget", cause)]);
    }
    assert_eq!(scope.claims("web").await, 0);
    scope.delete(&pods[1]).await.unwrap();
}

#[tokio::test]
async fn eviction_under_several_budgets_is_an_error_without_a_claim() {
    let scope = Bed::shared().await.scope("pdb").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    for name in ["one", "two"] {
        forbid(&scope, name).await;
    }
    let text = "This pod has more than one PodDisruptionBudget";
    let status = all_refuse(&scope, &pods[0], text).await;
    assert_eq!(
        (status.code, status.reason.as_str()),
        (500, "InternalError")
    );
    let status = refusal(scope.evict(&pods[0]).await);
    assert_eq!(status.code, 500, "{status:?}");
    assert_eq!(scope.claims("web").await, 0);
}
