//! The phase of an ID, read from its labels.

use std::collections::BTreeMap;

use crate::api::keys::Family;

/// The labels of one ID, by family.
pub(super) type OperationLabels = BTreeMap<Family, String>;

/// Each of these labels means that `operating` has been removed and the work is done.
pub(super) const FINISHED_FAMILIES: [Family; 5] = [
    Family::Operated,
    Family::DoneOperationType,
    Family::PostCheck,
    Family::PostChecked,
    Family::Completing,
];

/// The phase of an ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Rows 0 and 12: there is no operation.
    Idle,
    /// Row 2: the operation waits for the rules. The Pod still serves.
    PreCheck,
    /// Row 4: the Pod is being taken off traffic.
    Preparing,
    /// Row 6: the operator may work.
    Operate,
    /// Row 8: the work is done, and the operation waits for the rules.
    PostCheck,
    /// Row 10: the Pod is being brought back on traffic.
    Completing,
}

impl Phase {
    /// The phase of an ID with these labels.
    pub(super) fn from_labels(labels: &OperationLabels) -> Phase {
        Phase::from_families(|family| labels.contains_key(family))
    }

    /// The phase of an ID that has a label of each family for which `has` is true.
    pub(super) fn from_families(has: impl Fn(&Family) -> bool) -> Phase {
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
        } else if FINISHED_FAMILIES.iter().any(&has) {
            Phase::PostCheck
        } else {
            Phase::Idle
        }
    }

    /// The name of the phase.
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

    /// Whether an ID in this phase keeps the Pod off traffic. PreCheck has not begun to take the Pod off, and
    /// Completing brings it back. All phases between them keep the Pod off, so that one ID in Preparing prevails over
    /// another in Completing.
    pub fn holds_offline(self) -> bool {
        matches!(self, Phase::Preparing | Phase::Operate | Phase::PostCheck)
    }
}
