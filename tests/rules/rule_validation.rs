//! Rules that admission refuses, with the field and the remedy.

use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::Bed;
use testbed::endpoint::{RuleServer, base64};
use testbed::scope::refusal;

use crate::helpers::{RuleScope, ask};

#[tokio::test]
async fn invalid_rules_are_refused_with_field_and_remedy() {
    let scope = Bed::shared().await.scope("odd").await;
    let url = json!({"url": "https://check.example.com/"});
    let with = |extra: serde_json::Value| ask(url.clone(), extra);
    let parameter = |p: serde_json::Value| with(json!({"parameters": [p]}));
    let path =
        |p: &str| parameter(json!({"key": "k", "valueFrom": {"fieldRef": {"fieldPath": p}}}));
    let webhook = "spec.rules[0].webhook";
    for (index, (rule, field)) in [
        (
            ask(json!({"url": "ftp://a"}), json!({})),
            format!("{webhook}.clientConfig.url"),
        ),
        (
            ask(json!({"url": "https://"}), json!({})),
            format!("{webhook}.clientConfig.url"),
        ),
        (
            with(json!({"clientConfig": {"caBundle": "*"}})),
            format!("{webhook}.clientConfig.caBundle: must be base64"),
        ),
        (
            with(json!({"clientConfig": {"caBundle": base64(b"hello")}})),
            format!("{webhook}.clientConfig.caBundle"),
        ),
        (
            with(json!({"clientConfig": {"poll": {"url": "a"}}})),
            format!("{webhook}.clientConfig.poll.url"),
        ),
        (
            with(json!({"failurePolicy": "Maybe"})),
            format!("{webhook}.failurePolicy"),
        ),
        (
            parameter(json!({"value": "v"})),
            format!("{webhook}.parameters[0].key: is required"),
        ),
        (
            parameter(json!({"key": "k"})),
            format!("{webhook}.parameters[0]: needs a value"),
        ),
        (
            path("spec.containers[0].image"),
            format!("{webhook}.parameters[0].valueFrom.fieldRef.fieldPath"),
        ),
        (
            path("spec.containers"),
            "is not sent to endpoints".to_owned(),
        ),
        (
            path("nodeName"),
            "must begin with metadata, spec or status".to_owned(),
        ),
        (
            json!({"name": "a", "stage": "Later", "labelCheck": {"requires": {}}}),
            "spec.rules[0].stage".to_owned(),
        ),
        (
            json!({"name": "a", "conditions": ["x"], "labelCheck": {"requires": {}}}),
            "spec.rules[0].conditions[0]".to_owned(),
        ),
        (
            json!({"name": "a", "labelCheck": {}}),
            "spec.rules[0].labelCheck.requires".to_owned(),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = json!({"selector": {}, "rules": [rule]});
        let status = refusal(scope.try_rule(&format!("r-{index}"), spec).await);
        assert_eq!(status.code, 422, "{rule}: {}", status.message);
        assert!(
            status.message.contains(&field),
            "{rule}: {}",
            status.message
        );
    }
    let twice = json!([{"name": "a", "labelCheck": {"requires": {}}}, {"name": "a", "labelCheck": {"requires": {}}}]);
    let spec = json!({"selector": {}, "rules": twice});
    let status = refusal(scope.try_rule("twice", spec).await);
    assert!(
        status.message.contains("spec.rules[1].name"),
        "{}",
        status.message
    );
}

/// See contract Q18: admission calls no endpoint, so a rule can be created, changed and deleted while its endpoint is
/// down.
#[tokio::test]
async fn rule_creation_calls_no_endpoint() {
    let scope = Bed::shared().await.scope("undialled").await;
    let server = RuleServer::passing().await;
    scope
        .create_rule("web", json!([ask(server.config(), json!({}))]))
        .await;
    scope
        .create_rule(
            "down",
            json!([ask(json!({"url": "https://localhost:1/"}), json!({}))]),
        )
        .await;
    scope
        .edit_rule("down", json!({"webhook": {"failurePolicy": "Fail"}}))
        .await;
    for object in ["web", "down"] {
        scope
            .until_status(object, "observedGeneration 1", |s: &RuleStatus| {
                s.observed_generation >= 1
            })
            .await;
        scope
            .rules()
            .delete(object, &kube::api::DeleteParams::default())
            .await
            .unwrap();
    }
    assert_eq!(server.heard().len(), 0);
}
