//! Where an ID stands, read from its labels.

use std::collections::BTreeMap;

use crate::api::keys::Family;

/// The labels of one ID, by family.
pub(super) type OperationLabels = BTreeMap<Family, String>;

/// Any of these says that `operating` has been removed and the work is done.
pub(super) const FINISHED_FAMILIES: [Family; 5] = [
    Family::Operated,
    Family::DoneOperationType,
    Family::PostCheck,
    Family::PostChecked,
    Family::Completing,
];

/// Where an ID stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Rows 0 and 12: no run.
    Idle,
    /// Row 2: waits for the rules; the Pod still serves.
    PreCheck,
    /// Row 4: traffic is being taken off.
    Preparing,
    /// Row 6: the operator may work.
    Operate,
    /// Row 8: the work is done, waits for the rules.
    PostCheck,
    /// Row 10: traffic is being put back.
    Completing,
}

impl Phase {
    /// The phase that the labels of an ID tell.
    pub(super) fn from_labels(labels: &OperationLabels) -> Phase {
        let has = |family: &Family| labels.contains_key(family);
        if has(&Family::Operating) {
            if has(&Family::Operate) {
                Phase::Operate
            } else if has(&Family::Preparing) {
                Phase::Preparing
            } else {
                Phase::PreCheck
            }
        } else if has(&Family::Completing) {
            Phase::Completing
        } else if FINISHED_FAMILIES.iter().any(has) {
            Phase::PostCheck
        } else {
            Phase::Idle
        }
    }

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Idle => "Idle",
            Phase::PreCheck => "PreCheck",
            Phase::Preparing => "Preparing",
            Phase::Operate => "Operate",
            Phase::PostCheck => "PostCheck",
            Phase::Completing => "Completing",
        }
    }

    /// Whether the Pod must stay off traffic for an ID in this phase. PreCheck has not begun to take it off,
    /// Completing puts it back; all between holds it, so that preparing on any ID wins over completing on another.
    pub fn holds_offline(self) -> bool {
        matches!(self, Phase::Preparing | Phase::Operate | Phase::PostCheck)
    }
}
