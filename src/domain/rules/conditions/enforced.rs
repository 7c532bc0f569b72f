//! The condition `Enforced`: whether the API server sends what the rules hold, and what the rules hold.

use std::collections::BTreeMap;

use super::{ConditionFinding, new_finding};
use crate::api::keys;
use crate::domain::rules::enforcement::NamespaceEnforcement;
use crate::domain::rules::{CompiledRule, RuleKind, RuleSet, Stage, registration};

/// Reason of an object that can't be read and has to be corrected.
pub const INVALID: &str = "Invalid";

/// Why the API server sends no requests of a namespace to the server, as a clause. `None` if the namespace is not
/// excluded.
///
/// `own_namespace` is the namespace that the server runs in, if it is known. `labels` are the labels of the namespace.
pub fn exclusion_reason(
    namespace: &str,
    labels: Option<&BTreeMap<String, String>>,
    own_namespace: Option<&str>,
) -> Option<String> {
    if keys::EXCLUDED_NAMESPACES.contains(&namespace) || own_namespace == Some(namespace) {
        return Some(format!(
            "namespace {namespace} is always excluded from the webhooks"
        ));
    }
    let key = keys::NAMESPACE_EXCLUDED;
    labels
        .is_some_and(|labels| labels.contains_key(key))
        .then(|| format!("namespace {namespace} is excluded from the webhooks by its label {key}"))
}

/// The state of the namespace of a rule object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceState {
    /// Why the namespace is excluded: the clause of [`exclusion_reason`].
    pub excluded: Option<String>,
    /// The namespace enforcement label that the rules need, if the namespace has none or a lower one.
    pub missing_enforcement: Option<NamespaceEnforcement>,
    /// What the webhook configurations do not send of the namespace: the clause of
    /// [`RequiredConfiguration::configuration_gap`](registration::RequiredConfiguration::configuration_gap).
    pub unregistered: Option<String>,
}

/// The condition `Enforced`. `grace_delete` is whether deletions and evictions go through the lifecycle first.
pub fn enforced_condition(
    rules: &RuleSet,
    namespace_state: &NamespaceState,
    grace_delete: bool,
) -> ConditionFinding {
    let namespace = &rules.namespace;
    if let Some(reason) = &namespace_state.excluded {
        let label = keys::NAMESPACE_EXCLUDED;
        return new_finding(
            "False",
            "NamespaceExcluded",
            format!(
                "nothing is held: {reason}; move the Pods and this rule to another namespace, or have an administrator \
                 remove the label {label} if the namespace carries it"
            ),
        );
    }
    if let Some(enforcement) = namespace_state.missing_enforcement {
        let (key, value) = (
            keys::NAMESPACE_ENFORCEMENT,
            enforcement.label_value().unwrap_or_default(),
        );
        return new_finding(
            "False",
            "NotEnforced",
            format!(
                "the API server does not send all requests that the rules hold: namespace {namespace} lacks the label \
                 {key}={value}; the server sets this label, and its log says why it cannot"
            ),
        );
    }
    if let Some(gap) = &namespace_state.unregistered {
        return new_finding(
            "False",
            "NotRegistered",
            format!(
                "the API server does not send all requests that the rules hold: {gap}; {}",
                registration::CONFIGURATION_REMEDY
            ),
        );
    }
    let unreadable: Vec<&str> = unreadable_fields(rules).collect();
    if !unreadable.is_empty() {
        let fields = unreadable.join("; ");
        let effect = match (
            has_unreadable_limit(rules),
            grace_delete && has_pre_check_rule(rules),
        ) {
            (true, _) => "the Pods are held until this is corrected",
            (false, true) => {
                "operations on the Pods are held until this is corrected, and so are deletions and evictions of Pods with the \
                 readiness gate; those of other Pods are not held by it"
            }
            (false, false) => {
                "operations on the Pods are held until this is corrected, deletions and evictions are not held by it"
            }
        };
        return new_finding("False", INVALID, format!("{effect}: {fields}"));
    }
    if let Some(gap) = enforcement_gap(rules, grace_delete) {
        return gap;
    }
    new_finding(
        "True",
        "Enforced",
        "deletions, evictions, operations and in-place changes of the selected Pods are admitted only as far as the rules \
         allow",
    )
}

/// Whether a rule or a selector that can't be read may be a limit, so that it holds deletions and evictions, too.
fn has_unreadable_limit(rules: &RuleSet) -> bool {
    let mut enabled = rules.rules.iter();
    let is_limit = |rule: &CompiledRule| {
        matches!(
            rule.kind,
            RuleKind::Broken {
                may_limit: true,
                ..
            }
        )
    };
    enabled.any(is_limit) || rules.selector.is_err() && rules.may_limit
}

/// For each part of the spec that can't be read: the field and the remedy.
fn unreadable_fields(rules: &RuleSet) -> impl Iterator<Item = &str> {
    let selector = rules.selector.as_ref().err().map(String::as_str);
    selector
        .into_iter()
        .chain(rules.rules.iter().filter_map(|rule| match &rule.kind {
            RuleKind::Broken { reason, .. } => Some(reason.as_str()),
            _ => None,
        }))
}

/// What a readable object does not hold because of its rules. `None` if a rule limits how many Pods are unavailable.
pub(super) fn enforcement_gap(rules: &RuleSet, grace_delete: bool) -> Option<ConditionFinding> {
    if unreadable_fields(rules).next().is_some() || rules.availability_limits().next().is_some() {
        return None;
    }
    if rules.rules.is_empty() {
        return Some(new_finding(
            "False",
            "NoRules",
            "nothing is held: spec.rules has no enabled rule; add one, or set disabled of one to false",
        ));
    }
    let post_check_alone = rules.rules.iter().all(|rule| {
        matches!(rule.kind, RuleKind::Availability(_)) && rule.stage == Stage::PostCheck
    });
    if post_check_alone {
        return Some(new_finding(
            "False",
            "NoRules",
            "nothing is held: an availablePolicy in stage PostCheck lets every Pod pass; set its stage to PreCheck",
        ));
    }
    let message = match (grace_delete, has_pre_check_rule(rules)) {
        (_, false) => {
            "operations wait at their end until the rules let them pass; deletions and evictions are not held: a rule with \
             availablePolicy in stage PreCheck would hold them"
        }
        (true, true) => {
            "operations wait until the rules let them pass, and so do deletions and evictions of Pods with the readiness gate; \
             those of other Pods are not held: a rule with availablePolicy in stage PreCheck would hold them"
        }
        (false, true) => {
            "operations wait until the rules let them pass; deletions and evictions are not held: a rule with availablePolicy \
             in stage PreCheck would hold them. Or turn the feature gate GraceDeleteWebhook on: then a deletion or eviction of a \
             Pod with the readiness gate is an operation, and waits too"
        }
    };
    Some(new_finding("True", "LifecycleOnly", message))
}

/// Whether a rule applies before an operation. A deletion never reaches the end of an operation, where PostCheck rules
/// apply.
fn has_pre_check_rule(rules: &RuleSet) -> bool {
    rules.selector.is_err() || rules.rules.iter().any(|rule| rule.stage == Stage::PreCheck)
}
