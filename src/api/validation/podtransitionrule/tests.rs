#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::*;

fn errors(spec: Value) -> Vec<String> {
    validate(&serde_json::from_value(spec).unwrap())
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Errors of one rule, in a spec that is good otherwise.
fn of_rule(rule: Value) -> Vec<String> {
    errors(json!({ "selector": {}, "rules": [rule] }))
}

/// Errors of one rule with an availablePolicy.
fn of_bound(bound: Value) -> Vec<String> {
    of_rule(json!({ "name": "a", "availablePolicy": { "maxUnavailableValue": bound } }))
}

#[test]
fn good_rules_pass() {
    let rules = json!([
        { "name": "count", "availablePolicy": { "maxUnavailableValue": 3 } },
        { "name": "both", "stage": "PreCheck", "availablePolicy": { "maxUnavailableValue": "30%", "minAvailableValue": 0 } },
        { "name": "labels", "stage": "PostCheck", "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } },
        { "name": "filtered", "disabled": true, "filter": { "labelSelector": { "matchLabels": { "a": "b" } } },
          "webhook": { "clientConfig": { "url": "https://a/b", "caBundle": "Cg==",
            "poll": { "url": "http://a/c", "intervalSeconds": 1, "timeoutSeconds": 2 } }, "failurePolicy": "Fail" } },
    ]);
    assert_eq!(
        errors(json!({ "selector": { "matchLabels": { "app": "a" } }, "rules": rules })),
        [""; 0]
    );
    assert_eq!(errors(json!({ "selector": {} })), [""; 0]);
}

#[test]
fn selector_is_required_and_well_formed() {
    let missing = "spec.selector: is required: write {} to select every Pod of the namespace";
    assert_eq!(errors(json!({})), [missing]);
    assert_eq!(
        errors(json!({ "selector": null, "rules": null })),
        [missing]
    );
    assert_eq!(
        errors(json!({ "selector": { "matchExpressions": [{ "key": "a", "operator": "Like" }] } })),
        [
            "spec.selector.matchExpressions[0].operator: \"Like\": must be In, NotIn, Exists or DoesNotExist"
        ]
    );
}

#[test]
fn invalid_bounds_are_refused_with_field() {
    let neither = "must be a percentage from \"0%\" to \"100%\" such as \"30%\", or a count written without quotes such as 3";
    for text in ["30", "-1%", "300%"] {
        let want =
            format!("spec.rules[0].availablePolicy.maxUnavailableValue: {text:?}: {neither}");
        assert_eq!(of_bound(json!(text)), [want]);
    }
    assert_eq!(
        of_bound(json!(-1)),
        [
            "spec.rules[0].availablePolicy.maxUnavailableValue: -1: must not be negative: write a count such as 3, or a \
          percentage such as \"30%\""
        ]
    );
    // Beyond 32 bits it is read as its text.
    let want =
        format!("spec.rules[0].availablePolicy.maxUnavailableValue: \"5000000000\": {neither}");
    assert_eq!(of_bound(json!(5_000_000_000_i64)), [want]);
}

#[test]
fn rule_has_exactly_one_kind() {
    assert_eq!(
        of_rule(json!({ "name": "a" })),
        ["spec.rules[0]: needs one of availablePolicy, labelCheck and webhook"]
    );
    assert_eq!(
        of_rule(
            json!({ "name": "a", "availablePolicy": { "minAvailableValue": 1 }, "labelCheck": { "requires": {} } })
        ),
        ["spec.rules[0]: has availablePolicy and labelCheck: split it into one rule for each"]
    );
    assert_eq!(
        of_rule(json!({ "name": "a", "availablePolicy": {} })),
        [
            "spec.rules[0].availablePolicy: needs maxUnavailableValue or minAvailableValue: a count such as 3, or a \
          percentage such as \"30%\""
        ]
    );
    let unhealthy = json!({ "minAvailableValue": 1, "unhealthyPodPolicy": "Never" });
    assert_eq!(
        of_rule(json!({ "name": "a", "availablePolicy": unhealthy })),
        [
            "spec.rules[0].availablePolicy.unhealthyPodPolicy: \"Never\": must be AlwaysAllow or IfHealthyBudget"
        ]
    );
    assert_eq!(
        of_rule(json!({ "name": "a", "labelCheck": {} })),
        ["spec.rules[0].labelCheck.requires: is required: name the labels that a Pod must have"]
    );
}

#[test]
fn invalid_names_stages_and_conditions_are_refused() {
    let policy = json!({ "maxUnavailableValue": 1 });
    let rules = json!([{ "availablePolicy": policy }, { "name": "a", "availablePolicy": policy }, { "name": "a", "availablePolicy": policy }]);
    assert_eq!(
        errors(json!({ "selector": {}, "rules": rules })),
        [
            "spec.rules[0].name: is required: skip annotations and reports refer to the rule by it",
            "spec.rules[2].name: \"a\": is the name of an earlier rule: give each rule a name of its own",
        ]
    );
    let rule = json!({ "name": "a", "stage": "Later", "conditions": ["x", "y"], "availablePolicy": policy,
        "filter": { "labelSelector": { "matchLabels": { "a": "b c" } } } });
    assert_eq!(
        of_rule(rule),
        [
            "spec.rules[0].stage: \"Later\": must be PreCheck or PostCheck",
            "spec.rules[0].conditions[0]: \"x\": is not known, because this version supports no condition: take it \
             out; use filter.labelSelector to limit the rule to some Pods",
            "spec.rules[0].filter.labelSelector.matchLabels[a]: \"b c\": must have at most 63 letters, digits, '-', '_' \
             or '.', and begin and end with a letter or digit",
        ]
    );
}

#[test]
fn invalid_webhooks_are_refused() {
    assert_eq!(
        of_rule(json!({ "name": "a", "webhook": { "failurePolicy": "Maybe" } })),
        [
            "spec.rules[0].webhook.failurePolicy: \"Maybe\": must be Ignore or Fail",
            "spec.rules[0].webhook.clientConfig: is required: set its url to the endpoint that is asked",
        ]
    );
    let config = json!({ "url": "ftp://a", "caBundle": "*", "poll": { "intervalSeconds": 0, "timeoutSeconds": -1 } });
    let at = "spec.rules[0].webhook.clientConfig";
    assert_eq!(
        of_rule(json!({ "name": "a", "webhook": { "clientConfig": config } })),
        [
            format!(
                "{at}.url: must be an http or https URL with a host, such as https://check.example.com/pods"
            ),
            format!(
                "{at}.caBundle: must be base64: encode the PEM file, for example with base64 <ca.crt | tr -d '\\n'"
            ),
            format!("{at}.poll.url: is required: set it to an http or https URL"),
            format!("{at}.poll.intervalSeconds: 0: must be 1 or more seconds"),
            format!("{at}.poll.timeoutSeconds: -1: must be 1 or more seconds"),
        ]
    );
}

#[test]
fn invalid_parameters_are_refused() {
    let from = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let parameters = json!([
        { "key": "good", "value": "v", "valueFrom": from("[") },
        { "key": "good", "valueFrom": from("metadata.labels['a']") },
        { "value": "v" },
        { "key": "none" },
        { "key": "odd", "valueFrom": from("spec.containers[0].image") },
        { "key": "secret", "valueFrom": from("spec.containers") },
    ]);
    let config = json!({ "url": "http://a" });
    let found = of_rule(
        json!({ "name": "a", "webhook": { "clientConfig": config, "parameters": parameters } }),
    );
    let at = "spec.rules[0].webhook.parameters";
    let want = [
        format!("{at}[2].key: is required: the endpoint finds the value by this key"),
        format!(
            "{at}[3]: needs a value, or in valueFrom.fieldRef the field of the Pod that has it"
        ),
        format!("{at}[4].valueFrom.fieldRef.fieldPath: \"spec.containers[0].image\": has an index"),
        format!(
            "{at}[5].valueFrom.fieldRef.fieldPath: \"spec.containers\": is not sent to endpoints"
        ),
    ];
    assert_eq!(found.len(), want.len(), "{found:?}");
    for (found, want) in found.iter().zip(want) {
        assert!(found.starts_with(&want), "{found}");
    }
}

#[test]
fn oversized_specs_are_refused_with_the_limit() {
    let rule = |index: usize, bytes: usize| {
        json!({ "name": format!("r{index}"), "labelCheck": { "requires": {} },
            "conditions": [], "filter": { "labelSelector": { "matchExpressions":
                [{ "key": "a", "operator": "In", "values": vec!["x".repeat(60); bytes / 63] }] } } })
    };
    let of = |bytes: usize| {
        let rules: Vec<_> = (0..8).map(|i| rule(i, bytes / 8)).collect();
        errors(json!({ "selector": {}, "rules": rules }))
    };
    assert_eq!(of(60 * 1024), [""; 0]);
    let found = of(66 * 1024);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("spec: takes ") && found[0].contains("may take 65536"),
        "{found:?}"
    );
}

#[test]
fn long_rule_lists_are_refused_with_the_limit() {
    let rule =
        |index: usize| json!({ "name": format!("r{index}"), "labelCheck": { "requires": {} } });
    let of = |count: usize| {
        let rules: Vec<_> = (0..count).map(rule).collect();
        errors(json!({ "selector": {}, "rules": rules }))
    };
    assert_eq!(of(64), [""; 0]);
    assert_eq!(
        of(65),
        ["spec.rules: has 65 rules and may have 64: split it into several objects"]
    );
}
