//! Decides which webhook rules let Pods pass while their endpoint fails.
//!
//! Kuperator stored `failurePolicy: Ignore` in every webhook rule and never read it: Pods waited. After the migration
//! to Operating these Pods still wait, until a user writes `Ignore` while Operating's admission webhook is present. The
//! webhook then records the rule in an annotation.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::keys;
use crate::api::podtransitionrule::{FailurePolicy, PodTransitionRule, Rule};

/// Largest length of the annotation in bytes. The names of all rules that an object may have need less.
pub const MAX_ANNOTATION_BYTES: usize = 32 * 1024;

/// The names of rules in the annotation of an object. `annotations` are the annotations of the object.
pub fn acknowledged_names(annotations: Option<&BTreeMap<String, String>>) -> BTreeSet<String> {
    let names = annotations.and_then(|annotations| annotations.get(keys::IGNORES_FAILURES));
    let Some(names) = names.filter(|names| !names.is_empty()) else {
        return BTreeSet::new();
    };
    // A single name needs no JSON, for people who write the annotation by hand.
    serde_json::from_str(names).unwrap_or_else(|_| BTreeSet::from([names.clone()]))
}

fn acknowledged_names_on(object: Option<&PodTransitionRule>) -> BTreeSet<String> {
    acknowledged_names(object.and_then(|object| object.metadata.annotations.as_ref()))
}

/// Names of the rules with `failurePolicy: Ignore`.
fn rules_with_ignore(object: &PodTransitionRule) -> BTreeSet<&str> {
    let rules = object
        .spec
        .rules
        .iter()
        .filter(|rule| has_ignore_policy(rule));
    rules.map(|rule| rule.name.as_str()).collect()
}

/// Whether a rule has `failurePolicy: Ignore`.
fn has_ignore_policy(rule: &Rule) -> bool {
    let webhook = rule.webhook.as_ref();
    webhook.is_some_and(|webhook| webhook.failure_policy == Some(FailurePolicy::Ignore))
}

/// Indexes and names of the rules of `new` that have `failurePolicy: Ignore` and did not have it in `old`. Empty if the
/// spec of `old` can't be read.
pub fn new_ignore_rules<'a>(
    old: Option<&PodTransitionRule>,
    new: &'a PodTransitionRule,
) -> impl Iterator<Item = (usize, &'a str)> {
    let before = old.map(rules_with_ignore).unwrap_or_default();
    let before: BTreeSet<String> = before.into_iter().map(str::to_owned).collect();
    let rules = new.spec.rules.iter().enumerate();
    let rules = rules.filter(|(_, rule)| has_ignore_policy(rule));
    let rules = rules.map(|(index, rule)| (index, rule.name.as_str()));
    // It is not known what an unreadable spec contained.
    let is_known = old.is_none_or(|old| old.spec.unreadable.is_none());
    rules.filter(move |(_, name)| is_known && !before.contains(*name))
}

/// The value of the annotation on `new`, which replaces `old`: the rules with `failurePolicy: Ignore` that are new or
/// were recorded before. `None` if there are none.
pub fn annotation_value(
    old: Option<&PodTransitionRule>,
    new: &PodTransitionRule,
) -> Option<String> {
    let mut acknowledged = acknowledged_names_on(Some(new));
    acknowledged.extend(acknowledged_names_on(old));
    acknowledged.extend(new_ignore_rules(old, new).map(|(_, name)| name.to_owned()));
    let mut names = rules_with_ignore(new);
    names.retain(|name| acknowledged.contains(*name));
    (!names.is_empty()).then(|| serde_json::json!(names).to_string())
}

/// The names that `new` adds to the annotation although no rule with `failurePolicy: Ignore` has them. They are not
/// stored.
pub fn unknown_names(old: Option<&PodTransitionRule>, new: &PodTransitionRule) -> BTreeSet<String> {
    let (acknowledged, ignoring) = (acknowledged_names_on(old), rules_with_ignore(new));
    let mut added = acknowledged_names_on(Some(new));
    added.retain(|name| !acknowledged.contains(name) && !ignoring.contains(name.as_str()));
    added
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn object(rules: &[(&str, Value)], listed: Value) -> PodTransitionRule {
        let rules = rules.iter().map(|(name, policy)| {
            json!({ "name": name, "webhook": { "failurePolicy": policy, "clientConfig": { "url": "http://a" } } })
        });
        let rules: Vec<_> = rules.collect();
        let object = json!({
            "metadata": { "name": "web", "annotations": { (keys::IGNORES_FAILURES): listed } },
            "spec": { "selector": {}, "rules": rules },
        });
        let mut object: PodTransitionRule = serde_json::from_value(object).unwrap_or_default();
        if listed.is_null() {
            object.metadata.annotations = None;
        }
        object
    }

    fn former() -> PodTransitionRule {
        object(&[("a", json!("Ignore")), ("b", json!("Fail"))], json!(""))
    }

    #[test]
    fn ignore_counts_while_it_is_written() {
        let ignore = || json!("Ignore");
        let ab = |listed: &str| object(&[("a", ignore()), ("b", ignore())], json!(listed));
        assert_eq!(
            annotation_value(None, &ab("")).as_deref(),
            Some(r#"["a","b"]"#)
        );
        assert_eq!(annotation_value(Some(&former()), &former()), None);
        assert_eq!(
            annotation_value(Some(&former()), &ab("")).as_deref(),
            Some(r#"["b"]"#)
        );
        // A replace without the annotation keeps the recorded names.
        assert_eq!(
            annotation_value(Some(&ab("b")), &ab("")).as_deref(),
            Some(r#"["b"]"#)
        );
        // A user may list a rule from before the migration.
        assert_eq!(
            annotation_value(Some(&ab("b")), &ab(r#"["b","a"]"#)).as_deref(),
            Some(r#"["a","b"]"#)
        );
        assert_eq!(
            annotation_value(Some(&ab(r#"["a","b"]"#)), &former()).as_deref(),
            Some(r#"["a"]"#)
        );
        let renamed = object(&[("c", ignore())], json!(""));
        assert_eq!(
            annotation_value(Some(&former()), &renamed).as_deref(),
            Some(r#"["c"]"#)
        );
        let fail = object(&[("a", json!("Fail"))], json!("a"));
        assert_eq!(annotation_value(Some(&ab("a")), &fail), None);
    }

    #[test]
    fn names_that_no_rule_with_ignore_has_are_unknown() {
        let rule = |listed: &str| {
            object(
                &[("a", json!("Ignore")), ("b", json!("Fail"))],
                json!(listed),
            )
        };
        let unknown = |old, listed| {
            unknown_names(old, &rule(listed))
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(unknown(None, r#"["a","b","c"]"#), ["b", "c"]);
        assert_eq!(unknown(None, "a, b"), ["a, b"]);
        let acknowledging = rule(r#"["b"]"#);
        assert_eq!(
            unknown(Some(&acknowledging), r#"["a","b"]"#),
            [""; 0],
            "b was stored with it"
        );
    }

    #[test]
    fn former_ignore_holds_and_is_reported() {
        use crate::domain::rules::{RuleKind, RuleSet};
        for (listed, fails) in [("", true), ("a", false), ("other", true)] {
            let set = RuleSet::compile(&object(&[("a", json!("Ignore"))], json!(listed)));
            let RuleKind::Webhook(webhook) = &set.rules[0].kind else {
                unreachable!()
            };
            assert_eq!(webhook.fail, fails, "{listed}");
            let warning = webhook.ignored_policy_warning();
            assert_eq!(warning.is_some(), fails, "{warning:?}");
        }
        for (policy, fails) in [(json!("Fail"), true), (json!(null), true)] {
            let set = RuleSet::compile(&object(&[("a", policy)], json!("a")));
            let RuleKind::Webhook(webhook) = &set.rules[0].kind else {
                unreachable!()
            };
            assert_eq!(
                (webhook.fail, webhook.ignored_policy_warning()),
                (fails, None)
            );
        }
    }
}
