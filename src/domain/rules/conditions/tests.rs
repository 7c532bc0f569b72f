#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::api::keys;
use crate::domain::rules::RuleSet;
use crate::domain::rules::enforcement::NamespaceEnforcement;

fn rules(rules: Value) -> RuleSet {
    let object = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "selector": {}, "rules": rules },
    });
    RuleSet::compile(&serde_json::from_value(object).unwrap())
}

fn budget() -> Value {
    json!({ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } })
}

fn enforced_status(
    rules_: Value,
    namespace_state: &NamespaceState,
) -> (&'static str, &'static str) {
    let finding = enforced_condition(&rules(rules_), namespace_state, false);
    (finding.status, finding.reason)
}

#[test]
fn excluded_namespaces_hold_nothing() {
    let excluded = [(keys::NAMESPACE_EXCLUDED.to_owned(), String::new())].into();
    assert!(exclusion_reason("shop", Some(&excluded), None).is_some());
    assert!(exclusion_reason(keys::EXCLUDED_NAMESPACES[0], None, None).is_some());
    assert!(exclusion_reason("home", None, Some("home")).is_some());
    assert_eq!(
        exclusion_reason("shop", Some(&BTreeMap::new()), Some("home")),
        None
    );
    let namespace_state = NamespaceState {
        excluded: exclusion_reason("shop", Some(&excluded), None),
        missing_enforcement: Some(NamespaceEnforcement::Ruled),
        ..NamespaceState::default()
    };
    assert_eq!(
        enforced_status(json!([budget()]), &namespace_state),
        ("False", "NamespaceExcluded")
    );
}

#[test]
fn namespace_without_enforcement_label_is_not_enforced() {
    let namespace_state = NamespaceState {
        missing_enforcement: Some(NamespaceEnforcement::Strict),
        ..NamespaceState::default()
    };
    let finding = enforced_condition(&rules(json!([budget()])), &namespace_state, false);
    assert_eq!((finding.status, finding.reason), ("False", "NotEnforced"));
    assert!(
        finding
            .message
            .contains("podtransitionrule.kusionstack.io/enforced=strict"),
        "{}",
        finding.message
    );
}

#[test]
fn gap_in_webhook_configurations_is_reported_with_the_remedy() {
    let namespace_state = NamespaceState {
        unregistered: Some("ValidatingWebhookConfiguration ours does not exist".to_owned()),
        ..NamespaceState::default()
    };
    let finding = enforced_condition(&rules(json!([budget()])), &namespace_state, false);
    assert_eq!((finding.status, finding.reason), ("False", "NotRegistered"));
    assert!(
        finding.message.contains("ours does not exist")
            && finding
                .message
                .contains("`operating install` with the flags of the first time (`--webhook-url`"),
        "{}",
        finding.message
    );
}

#[test]
fn only_a_budget_is_reported_as_holding_deletions() {
    let namespace_state = NamespaceState::default();
    let labels =
        json!({ "name": "l", "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } });
    let ask =
        json!({ "name": "w", "webhook": { "clientConfig": { "url": "https://example.com" } } });
    let mut disabled = budget();
    disabled["disabled"] = json!(true);
    let mut post = budget();
    post["stage"] = json!("PostCheck");
    for (rules, status, reason) in [
        (json!([budget()]), "True", "Enforced"),
        (json!([budget(), labels.clone()]), "True", "Enforced"),
        (json!([]), "False", "NoRules"),
        (json!([disabled.clone()]), "False", "NoRules"),
        (json!([post.clone()]), "False", "NoRules"),
        (json!([labels]), "True", "LifecycleOnly"),
        (json!([ask, post, disabled]), "True", "LifecycleOnly"),
        (json!([{ "name": "a" }]), "False", "Invalid"),
    ] {
        assert_eq!(
            enforced_status(rules.clone(), &namespace_state),
            (status, reason),
            "{rules}"
        );
    }
}

#[test]
fn deletions_are_operations_only_under_the_gate() {
    let labels =
        json!({ "name": "l", "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } });
    let unreadable = json!({ "name": "l", "labelCheck": { "requires": 5 } });
    let message = |rule: &Value, gate| {
        enforced_condition(&rules(json!([rule])), &NamespaceState::default(), gate).message
    };
    let mut at_the_end = labels.clone();
    at_the_end["stage"] = json!("PostCheck");
    assert_eq!(message(&at_the_end, true), message(&at_the_end, false));
    for rule in [labels, unreadable] {
        let message = |gate| message(&rule, gate);
        let (without, with) = (message(false), message(true));
        assert!(
            without.contains("deletions and evictions are not held"),
            "{without}"
        );
        assert!(
            with.contains("of Pods with the readiness gate")
                && with.contains("those of other Pods are not held"),
            "{with}"
        );
    }
}

#[test]
fn matched_condition_reports_why_no_pod_is_covered() {
    let set = rules(json!([budget()]));
    let status_and_reason = |matches: SelectorMatches| {
        let finding = matched_condition(&set, &matches);
        (finding.status, finding.reason)
    };
    assert_eq!(
        status_and_reason(SelectorMatches::Managed),
        ("True", "PodsMatched")
    );
    assert_eq!(
        status_and_reason(SelectorMatches::Nothing),
        ("False", "NoPodsMatched")
    );
    assert_eq!(
        status_and_reason(SelectorMatches::NotManaged),
        ("False", "NoPodsMatched")
    );
    let unmanaged = SelectorMatches::Unmanaged("web-0".to_owned());
    assert_eq!(
        status_and_reason(unmanaged.clone()),
        ("False", "NoManagedPods")
    );
    let warnings = rule_warnings(&set, Some(&unmanaged), false);
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("web-0") && warnings[0].contains("kusionstack.io/control: \"true\""),
        "{warnings:?}"
    );
}

#[test]
fn filter_matching_no_selected_pod_is_reported_with_rule() {
    let set = rules(json!([{
        "name": "front", "filter": { "labelSelector": { "matchLabels": { "tier": "frnt" } } },
        "availablePolicy": { "maxUnavailableValue": 1 },
    }]));
    let finding = matched_condition(&set, &SelectorMatches::FilteredOut);
    assert_eq!(
        (finding.status, finding.reason),
        ("False", "FilterMatchesNothing")
    );
    let warnings = rule_warnings(&set, Some(&SelectorMatches::FilteredOut), false);
    for text in [&finding.message, &warnings[0]] {
        assert!(
            text.contains("no deletion or eviction is held by a budget")
                && text.contains("(front)"),
            "{text}"
        );
    }
}

#[test]
fn rule_that_matches_and_limits_gets_no_warning() {
    assert_eq!(
        rule_warnings(
            &rules(json!([budget()])),
            Some(&SelectorMatches::Managed),
            false
        ),
        [""; 0]
    );
    assert_eq!(
        rule_warnings(&rules(json!([budget()])), None, false),
        [""; 0]
    );
    assert_eq!(
        rule_warnings(&rules(json!([])), Some(&SelectorMatches::Nothing), false).len(),
        2
    );
}

#[test]
fn rule_that_lets_no_pod_go_is_warned_of() {
    let warning = |policy: Value, expected: u32| {
        let set = rules(json!([{ "name": "none", "availablePolicy": policy }]));
        zero_budget_warning(&set, expected.into())
    };
    for (policy, expected, part, remedy) in [
        (
            json!({ "maxUnavailableValue": 0 }),
            0,
            "(maxUnavailableValue is 0)",
            "raise the limit unless",
        ),
        (
            json!({ "maxUnavailableValue": "0%" }),
            9,
            "(maxUnavailableValue is 0%)",
            "raise the limit unless",
        ),
        (
            json!({ "minAvailableValue": "100%" }),
            9,
            "(minAvailableValue is 100%)",
            "lower minAvailableValue unless",
        ),
        (
            json!({ "minAvailableValue": 5 }),
            5,
            "5, and 5 Pods are expected",
            "lower minAvailableValue, or scale up, unless",
        ),
        (
            json!({ "minAvailableValue": 5 }),
            3,
            "5, and 3 Pods are expected",
            "lower minAvailableValue, or scale up, unless",
        ),
    ] {
        let text = warning(policy.clone(), expected).unwrap_or_default();
        assert!(
            text.contains(part)
                && text.contains("rule none lets no Pod go")
                && text.contains(remedy),
            "{policy}: {text}"
        );
    }
    for (policy, expected) in [
        (json!({ "maxUnavailableValue": 1 }), 1),
        (json!({ "maxUnavailableValue": "1%" }), 1),
        (json!({ "minAvailableValue": "99%" }), 10),
        (json!({ "minAvailableValue": 5 }), 6),
        (json!({ "minAvailableValue": 5 }), 0),
    ] {
        assert_eq!(warning(policy.clone(), expected), None, "{policy}");
    }
    let mut post = budget();
    post["stage"] = json!("PostCheck");
    assert_eq!(zero_budget_warning(&rules(json!([post])), 5.into()), None);
}

#[test]
fn owner_whose_template_is_not_selected_is_named() {
    assert_eq!(partly_matched_condition(Vec::new()), None);
    let finding = partly_matched_condition(vec!["ReplicaSet web-1".to_owned()]).unwrap();
    assert_eq!(
        (finding.status, finding.reason),
        ("True", "TemplateNotMatched")
    );
    assert!(
        finding
            .message
            .contains("fewer Pods of ReplicaSet web-1 are selected"),
        "{}",
        finding.message
    );
}

#[test]
fn owners_without_scale_are_named_where_a_budget_counts_them() {
    let budget = rules(json!([budget()]));
    let check = rules(json!([{ "name": "check", "labelCheck": { "requires": {} } }]));
    let owners = |n: usize| (0..n).rev().map(|n| format!("Game g{n}")).collect();
    let silent = |n| UnknownReplicasOwners {
        unknown: owners(n),
        ..UnknownReplicasOwners::default()
    };
    assert_eq!(expected_known_condition(&budget, silent(0)), None);
    assert_eq!(expected_known_condition(&check, silent(1)), None);
    let finding = expected_known_condition(&budget, silent(5)).unwrap();
    assert_eq!(
        (finding.status, finding.reason),
        ("False", "ExpectedUnknown")
    );
    let subjects = "Game g0, Game g1, Game g2 and others have no";
    assert!(finding.message.starts_with(subjects), "{}", finding.message);
    let finding = expected_known_condition(&budget, silent(1)).unwrap();
    assert!(
        finding.message.starts_with("Game g0 has no scale"),
        "{}",
        finding.message
    );
}

#[test]
fn pods_without_owner_are_reported_with_the_remedy() {
    let by_count = json!([{ "name": "a", "availablePolicy": { "minAvailableValue": 2 } }]);
    let ownerless = || UnknownReplicasOwners {
        ownerless: true,
        ..UnknownReplicasOwners::default()
    };
    let by_percent = json!([{ "name": "a", "availablePolicy": { "minAvailableValue": "50%" } }]);
    for (set, warned) in [
        (json!([budget()]), true),
        (by_percent, true),
        (by_count, false),
    ] {
        let set = rules(set);
        let finding = expected_known_condition(&set, ownerless()).unwrap();
        assert_eq!(
            (finding.status, finding.reason),
            ("False", "ExpectedUnknown")
        );
        assert!(
            finding
                .message
                .starts_with("none of the selected Pods has an owner")
                && finding.message.contains("minAvailableValue"),
            "{}",
            finding.message
        );
        assert_eq!(
            expected_unknown_warning(&set, ownerless()).is_some(),
            warned,
            "{}",
            finding.message
        );
        assert_eq!(
            expected_unknown_warning(&set, UnknownReplicasOwners::default()),
            None
        );
    }
    let check = rules(json!([{ "name": "check", "labelCheck": { "requires": {} } }]));
    assert_eq!(expected_known_condition(&check, ownerless()), None);
}

#[test]
fn owners_that_set_no_replicas_are_named_first() {
    let budget = rules(json!([budget()]));
    let mut owners = UnknownReplicasOwners {
        unset: vec!["Rollout web".to_owned()],
        unknown: vec!["Game g".to_owned()],
        ..UnknownReplicasOwners::default()
    };
    assert!(owners.denies_all());
    let finding = expected_known_condition(&budget, owners.clone()).unwrap();
    assert_eq!(
        (finding.status, finding.reason),
        ("False", "ReplicasNotSet")
    );
    assert!(
        finding.message.contains("of Rollout web has"),
        "{}",
        finding.message
    );
    owners.unreadable = vec!["Game h can't be read: HTTP 403 at /apis".to_owned()];
    let finding = expected_known_condition(&budget, owners.clone()).unwrap();
    assert_eq!(
        (finding.status, finding.reason),
        ("False", "OwnerUnreadable")
    );
    assert!(
        finding
            .message
            .contains("Game h can't be read: HTTP 403 at /apis")
            && finding.message.contains("take the owner reference off"),
        "{}",
        finding.message
    );
    let unknown = UnknownReplicasOwners {
        unknown: owners.unknown,
        ..UnknownReplicasOwners::default()
    };
    assert!(!unknown.denies_all());
}
