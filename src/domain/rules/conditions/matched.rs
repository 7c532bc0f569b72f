//! The condition `Matched`: whether the selector of a rule object matches managed Pods.

use super::{ConditionFinding, join_names, new_finding};
use crate::api::keys;
use crate::domain::rules::RuleSet;

/// The Pods that the selector of a rule object matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectorMatches {
    /// Managed Pods, or a workload that will create some.
    Managed,
    /// Managed Pods, but the filters of all rules with an `availablePolicy` leave all of them out.
    FilteredOut,
    /// Pods, none of which is managed. The name of one of them.
    Unmanaged(String),
    /// No Pod.
    Nothing,
    /// No managed Pod. It is not known whether there are other Pods.
    NotManaged,
}

/// The condition `Matched`.
pub fn matched_condition(rules: &RuleSet, matches: &SelectorMatches) -> ConditionFinding {
    if rules.selector.is_err() {
        let message = match rules.narrowed {
            None => "spec.selector can't be read, so every managed Pod of the namespace is held",
            Some(_) => {
                "the spec can't be read, so every managed Pod that spec.selector matches is held"
            }
        };
        return new_finding("Unknown", "Invalid", message);
    }
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    match matches {
        SelectorMatches::Managed => {
            new_finding("True", "PodsMatched", "spec.selector matches managed Pods")
        }
        SelectorMatches::FilteredOut => {
            new_finding("False", "FilterMatchesNothing", filtered_out_message(rules))
        }
        SelectorMatches::Unmanaged(_) => new_finding(
            "False",
            "NoManagedPods",
            format!(
                "spec.selector matches Pods, and none of them carries the label {key}: \"{value}\", so none is held; add \
                 the label to the Pods and to the template that they are made from"
            ),
        ),
        SelectorMatches::Nothing => new_finding(
            "False",
            "NoPodsMatched",
            "spec.selector matches no Pod of the namespace; Pods that match later are held",
        ),
        SelectorMatches::NotManaged => new_finding(
            "False",
            "NoPodsMatched",
            format!(
                "spec.selector matches no Pod with the label {key}: \"{value}\"; Pods that match later are held"
            ),
        ),
    }
}

/// The message about rules whose filters leave out every Pod that the selector matches.
pub(super) fn filtered_out_message(rules: &RuleSet) -> String {
    let limiting = rules.limiting_rules().map(|rule| rule.id.clone());
    let ids = join_names(limiting.collect()).unwrap_or_default();
    format!(
        "no deletion or eviction is held by a budget: spec.selector matches managed Pods, and the filter of no rule with an \
         availablePolicy ({ids}) matches one of them; correct filter.labelSelector, or label the Pods and the template that \
         they are made from"
    )
}

/// The condition `Matched` of an object that selects fewer Pods of an owner than the owner asks for, because it does
/// not select the Pods that the owner creates from its template. Each owner is given as `Kind name`. `None` if there
/// are no such owners.
pub fn partly_matched_condition(owners: Vec<String>) -> Option<ConditionFinding> {
    let owners = join_names(owners)?;
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    Some(new_finding(
        "True",
        "TemplateNotMatched",
        format!(
            "fewer Pods of {owners} are selected than asked for, and the template there makes Pods that lack the label {key}: \
             \"{value}\" or that spec.selector does not match. Pods that are not selected count as expected and never as \
             available, whether they run or not, so that they use up the budget. Label the template too. Or relax or \
             delete this rule first, and then take the labels off the Pods that carry them"
        ),
    ))
}
