//! The conditions of a rule object, such as `Enforced` and `Matched`, and the warnings when a user applies the object.

pub(crate) mod endpoints_answer;
mod enforced;
mod expected_known;
mod ledger_usable;
mod matched;
pub(crate) mod rollouts_held;
mod stalled;
#[cfg(test)]
mod tests;
mod warnings;

pub use enforced::{NamespaceState, enforced_condition, exclusion_reason};
pub use expected_known::{
    DENYING_REASONS, UnknownReplicasOwners, expected_known_condition, expected_unknown_warning,
};
pub use ledger_usable::{
    FIELD_DROPPED_MESSAGE, LEDGER_USABLE, LedgerStorage, ledger_usable_condition,
};
pub use matched::{SelectorMatches, matched_condition, partly_matched_condition};
pub use stalled::stalled_condition;
pub use warnings::{rule_warnings, zero_budget_warning};

/// A condition for `status.conditions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionFinding {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What the finding means, and what to do. The message contains no counts, because each change of a count would
    /// cause a write.
    pub message: String,
}

fn new_finding(
    status: &'static str,
    reason: &'static str,
    message: impl Into<String>,
) -> ConditionFinding {
    ConditionFinding {
        status,
        reason,
        message: message.into(),
    }
}

/// Largest number of owners that a message names.
const MAX_NAMES: usize = 3;
/// Follows the names if there are more owners.
const AND_OTHERS: &str = " and others";

/// The first [`MAX_NAMES`] of some names, sorted and without duplicates, as text. `None` if there are no names.
fn join_names(mut names: Vec<String>) -> Option<String> {
    names.sort();
    names.dedup();
    let suffix = if names.len() > MAX_NAMES {
        AND_OTHERS
    } else {
        ""
    };
    names.truncate(MAX_NAMES);
    (!names.is_empty()).then(|| format!("{}{suffix}", names.join(", ")))
}
