//! Rules that are refused, and rules of kinds that limit no deletion.

use kube::ResourceExt;
use operating::api::keys::Family;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::Bed;
use testbed::pods::{is_available, names};
use testbed::scope::refusal;

fn with_max(value: Value) -> Value {
    json!({"selector": {}, "rules": [{"name": "a", "availablePolicy": {"maxUnavailableValue": value}}]})
}

#[tokio::test]
async fn malformed_rules_are_refused_with_the_field_and_the_remedy() {
    let scope = Bed::shared().await.scope("malformed").await;
    let max = "spec.rules[0].availablePolicy.maxUnavailableValue";
    let selector =
        |requirement: Value| json!({"selector": {"matchExpressions": [requirement]}, "rules": []});
    for (index, (spec, field)) in [
        (with_max(json!("30")), max),
        (with_max(json!("-1%")), max),
        (with_max(json!("300%")), max),
        (with_max(json!("a%")), max),
        (with_max(json!(-1)), max),
        (
            selector(json!({"key": "a", "operator": "Is", "values": ["b"]})),
            "spec.selector.matchExpressions[0].operator",
        ),
        (
            selector(json!({"key": "a", "operator": "In"})),
            "spec.selector.matchExpressions[0].values",
        ),
        (
            json!({"selector": {"matchLabels": {"a b": "c"}}, "rules": []}),
            "spec.selector.matchLabels",
        ),
        (json!({"rules": []}), "spec.selector: is required"),
        (
            json!({"selector": {}, "rules": [{"availablePolicy": {"maxUnavailableValue": 1}}]}),
            "spec.rules[0].name: is required",
        ),
        (
            json!({"selector": {}, "rules": [{"name": "a"}]}),
            "spec.rules[0]",
        ),
        (
            json!({"selector": {}, "rules": [{"name": "a", "availablePolicy": {}}]}),
            "spec.rules[0].availablePolicy",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let status = refusal(scope.try_rule(&format!("r-{index}"), spec.clone()).await);
        assert_eq!(
            (status.code, status.reason.as_str()),
            (422, "Invalid"),
            "{spec}: {}",
            status.message
        );
        assert!(status.message.contains(field), "{spec}: {}", status.message);
    }
}

#[tokio::test]
async fn rules_without_budget_hold_operations_and_limit_no_deletion() {
    let scope = Bed::shared().await.scope("kinds").await;
    scope.deploy("web", 2, json!({})).await;
    let pods = names(&scope.all_available("app=web", 2).await);
    let rules = json!([
        {"name": "labels", "labelCheck": {"requires": {"matchLabels": {"ready-for": "upgrade"}}}},
        {"name": "ask", "webhook": {"clientConfig": {"url": "https://example.com/check"}}},
    ]);
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
    scope.try_rule("others", spec).await.unwrap();
    scope
        .until_status("others", "observedGeneration 1", |s: &RuleStatus| {
            s.observed_generation == 1
        })
        .await;
    let waiting = scope.begin(&pods[0], "x").await.unwrap();
    assert!(waiting.labels().contains_key(&Family::PreCheck.key("x")) && is_available(&waiting));
    scope
        .until_status("others", "the reasons", |s: &RuleStatus| {
            s.details.iter().any(|d| {
                let refused: Vec<_> = d.reject_info.iter().map(|r| r.rule_name.as_str()).collect();
                d.name == pods[0]
                    && !d.passed
                    && refused == ["labels", "ask"]
                    && d.reject_info.iter().all(|r| !r.reason.is_empty())
            })
        })
        .await;
    // A rule without a budget says when an operation may begin; it limits no deletion.
    scope.delete(&pods[1]).await.unwrap();
}
