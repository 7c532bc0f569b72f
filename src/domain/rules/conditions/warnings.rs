//! The warnings when a user applies a rule object.

use super::enforced::enforcement_gap;
use super::matched::{SelectorMatches, filtered_out_message};
use crate::api::int_or_percent::IntOrPercent;
use crate::api::keys;
use crate::domain::rules::{AvailabilityLimits, ExpectedPods, RuleKind, RuleSet, Stage};

/// A warning for a user who applies an object that lets no Pod go while all Pods are needed. `None` if the object lets
/// some go. `expected` are the expected Pods at this moment.
pub fn zero_budget_warning(rules: &RuleSet, expected: ExpectedPods) -> Option<String> {
    let zero_cause =
        |limits: &AvailabilityLimits| match (limits.max_unavailable, limits.min_available) {
            (Some(max @ (IntOrPercent::Int(0) | IntOrPercent::Percent(0))), _) => {
                Some((format!("maxUnavailableValue is {max}"), "raise the limit"))
            }
            (_, Some(min @ IntOrPercent::Percent(100..))) => Some((
                format!("minAvailableValue is {min}"),
                "lower minAvailableValue",
            )),
            (_, Some(min)) if expected.total > 0 && limits.desired(expected) >= expected.total => {
                Some((
                    format!(
                        "minAvailableValue is {min}, and {} Pods are expected at this moment",
                        expected.total
                    ),
                    "lower minAvailableValue, or scale up,",
                ))
            }
            _ => None,
        };
    let mut limited = rules.rules.iter().filter_map(|rule| match &rule.kind {
        RuleKind::Availability(limits) if rule.stage == Stage::PreCheck => Some((rule, limits)),
        _ => None,
    });
    let (rule, (zero_cause, remedy)) =
        limited.find_map(|(rule, limits)| Some((rule, zero_cause(limits)?)))?;
    Some(format!(
        "PodTransitionRule {}: rule {} lets no Pod go ({zero_cause}): while all of its Pods are needed, none of them can be deleted, \
         evicted or updated, so that drains, deletions and rollouts that do not make new Pods first wait; {remedy} unless this \
         is intended",
        rules.name, rule.id
    ))
}

/// All warnings for a user who applies an object. `matches` is `None` if the Pods could not be read in time.
/// `grace_delete` is as in [`enforced_condition`](super::enforced_condition).
pub fn rule_warnings(
    rules: &RuleSet,
    matches: Option<&SelectorMatches>,
    grace_delete: bool,
) -> Vec<String> {
    let name = &rules.name;
    let mut warnings = Vec::new();
    if let Some(gap) = enforcement_gap(rules, grace_delete) {
        warnings.push(format!("PodTransitionRule {name}: {}", gap.message));
    }
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    match matches {
        Some(SelectorMatches::Unmanaged(pod)) => warnings.push(format!(
            "PodTransitionRule {name} holds no Pod: spec.selector matches Pods such as {pod}, and none of them carries the \
             label {key}: \"{value}\"; add the label to the Pods and to the template that they are made from"
        )),
        Some(SelectorMatches::Nothing) => warnings.push(format!(
            "PodTransitionRule {name} holds no Pod yet: spec.selector matches no Pod of namespace {}; Pods that match later \
             are held if they carry the label {key}: \"{value}\"",
            rules.namespace
        )),
        Some(SelectorMatches::FilteredOut) => {
            warnings.push(format!("PodTransitionRule {name}: {}", filtered_out_message(rules)));
        }
        Some(SelectorMatches::Managed | SelectorMatches::NotManaged) | None => {}
    }
    warnings
}
