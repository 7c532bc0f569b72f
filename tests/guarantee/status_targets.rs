//! The Pod names in the status of a rule, which tools for Kuperator read.

use kube::api::{Api, DeleteParams, Patch, PatchParams};
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus as RuleStatus};
use serde_json::json;
use testbed::pods::names;
use testbed::{Bed, Scope};

async fn until_targets(scope: &Scope, expected: &[String], count: usize) {
    let is_so = |status: &RuleStatus| {
        let selected = usize::try_from(status.selected_pods);
        status.targets == expected && selected == Ok(count)
    };
    let description = format!("the names of {count} Pods");
    scope.until_status("web", &description, is_so).await;
}

/// Names of the Pods labelled `app=web`, sorted.
async fn of_web(scope: &Scope) -> Vec<String> {
    let mut names = names(&scope.list("app=web").await);
    names.sort();
    names
}

#[tokio::test]
async fn status_names_the_selected_pods_as_they_come_and_go() {
    let scope = Bed::shared().await.scope("targets").await;
    scope.pod("other", json!({})).await;
    scope.web_under_rule(3, json!(1)).await;
    let three = of_web(&scope).await;
    until_targets(&scope, &three, 3).await;
    scope.scale("web", 5).await.unwrap();
    scope.until_at_rest("web", 5).await;
    until_targets(&scope, &of_web(&scope).await, 5).await;
    scope.scale("web", 0).await.unwrap();
    until_targets(&scope, &[], 0).await;
}

#[tokio::test]
async fn names_that_kuperator_has_left_are_replaced() {
    let scope = Bed::shared().await.scope("stale-targets").await;
    scope.web_under_rule(2, json!(1)).await;
    let stale: Vec<_> = (0..150).map(|n| format!("gone-{n}")).collect();
    let patch = Patch::Merge(json!({"status": {"targets": stale}}));
    let params = PatchParams::default();
    let rules: Api<PodTransitionRule> = scope.api();
    let written = rules.patch_status("web", &params, &patch).await;
    assert_eq!(written.unwrap().status.unwrap().targets.len(), 150);
    until_targets(&scope, &of_web(&scope).await, 2).await;
}

#[tokio::test]
async fn status_names_hundred_pods_and_counts_all() {
    let scope = Bed::shared().await.scope("many-targets").await;
    scope.deploy("web", 120, json!({})).await;
    scope.all_available("app=web", 120).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    let all = of_web(&scope).await;
    until_targets(&scope, &all[..100], 120).await;
    let delete = DeleteParams::default();
    scope.rules().delete("web", &delete).await.unwrap();
}
