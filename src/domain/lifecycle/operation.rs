//! One ID in a write: its labels, and its steps of contract 3.2 (rows by number).

use super::Stage;
use super::label_name::is_label_name;
use super::phase::{FINISHED_FAMILIES, OperationLabels, Phase};
use crate::api::keys::Family;

/// Only the webhook writes these labels. It ignores their values in a request.
const WEBHOOK_FAMILIES: [Family; 7] = [
    Family::PreCheck,
    Family::Preparing,
    Family::Operate,
    Family::Operated,
    Family::DoneOperationType,
    Family::PostCheck,
    Family::Completing,
];

/// A client that has seen the rules pass writes these labels. A request may ask for them.
const PASSED_FAMILIES: [Family; 2] = [Family::PreChecked, Family::PostChecked];

/// These labels end with the work.
const WORK_FAMILIES: [Family; 4] = [
    Family::PreCheck,
    Family::PreChecked,
    Family::Preparing,
    Family::Operate,
];

/// Which steps the state of the Pod permits to its IDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodGates {
    /// Row 5: the Pod is off traffic, and no cooperator protects it.
    pub operable: bool,
    /// Row 11: the Pod is back on traffic, or stays off as its user wants.
    pub restored: bool,
}

/// The state of one ID during a write.
#[derive(Clone, Debug)]
pub(super) struct OperationWrite {
    /// The labels as they will be stored.
    pub labels: OperationLabels,
    /// Whether an operation of this ID ended in this write.
    pub ended: bool,
    /// The stage that passed in this write.
    passed: Option<Stage>,
    stamp: String,
}

impl OperationWrite {
    /// Applies what the operator asks for: takes the ID from the labels `before` the write to those in `requested`, as
    /// begun, finished or undone. `permitted` says whether the old object has the permission for a type.
    pub fn from_write(
        before: &OperationLabels,
        requested: OperationLabels,
        permitted: impl Fn(&str) -> bool,
        now_nanos: u64,
    ) -> OperationWrite {
        let mut op = OperationWrite {
            labels: requested,
            ended: false,
            passed: None,
            stamp: now_nanos.to_string(),
        };
        // If the webhook missed an undo, the label is in the old object, and the write that corrects this does not have
        // it.
        let missed_undo =
            before.contains_key(&Family::UndoOperationType) && !op.has_family(Family::Operating);
        if op.has_family(Family::UndoOperationType) || missed_undo {
            op.end_run();
            return op;
        }
        for family in WEBHOOK_FAMILIES.into_iter().chain(PASSED_FAMILIES) {
            match before.get(&family) {
                Some(value) => op.labels.insert(family, value.clone()),
                None => op.labels.remove(&family),
            };
        }
        if !op.has_family(Family::Operating) {
            op.close_operating(before);
            return op;
        }
        // An operation keeps the time of its begin. This time identifies the operation, also in the announcement of a
        // deletion.
        if let Some(since) = before.get(&Family::Operating) {
            op.labels.insert(Family::Operating, since.clone());
        }
        if op.begins_new_run(before, permitted) {
            op.labels
                .retain(|f, _| !WEBHOOK_FAMILIES.contains(f) && !PASSED_FAMILIES.contains(f));
        }
        if !op.has_family(Family::PreChecked) {
            // Row 1. Without `pre-checked`, only `pre-check` survives of the labels that the webhook writes.
            op.labels.retain(|f, _| {
                *f == Family::PreCheck
                    || !WEBHOOK_FAMILIES.contains(f) && !PASSED_FAMILIES.contains(f)
            });
            op.stamp_family(Family::PreCheck);
        }
        op
    }

    /// Whether this write begins an operation although labels of an earlier one may be present (contract Q2 and
    /// contract Q4). This function compares the old and the new labels, and also checks the labels alone, in case the
    /// webhook missed a write.
    fn begins_new_run(&self, before: &OperationLabels, permitted: impl Fn(&str) -> bool) -> bool {
        let begun_again = !before.contains_key(&Family::Operating)
            || before.contains_key(&Family::UndoOperationType)
            || self.has_any_family(&FINISHED_FAMILIES);
        let retyped = before.get(&Family::OperationType) != self.labels.get(&Family::OperationType);
        let checked_for_another =
            self.has_family(Family::PreChecked) && !self.operation_type().is_some_and(permitted);
        begun_again || retyped || checked_for_another
    }

    /// Handles a missing `operating`. In Operate the work is done (row 7). Before Operate nothing has been done, so the
    /// operation ends.
    fn close_operating(&mut self, before: &OperationLabels) {
        let was_finished = self.has_any_family(&FINISHED_FAMILIES);
        if was_finished || self.has_family(Family::Operate) {
            self.labels.retain(|f, _| !WORK_FAMILIES.contains(f));
            if !was_finished {
                let type_ = self.labels.remove(&Family::OperationType);
                let finished_type = before.get(&Family::OperationType).cloned().or(type_);
                self.labels
                    .insert(Family::DoneOperationType, finished_type.unwrap_or_default());
                self.stamp_family(Family::Operated);
                self.ended = true;
            }
            if !self.has_family(Family::Completing) {
                self.stamp_family(Family::PostCheck);
            }
        } else if before.contains_key(&Family::OperationType)
            || self.has_any_family(&WEBHOOK_FAMILIES)
            || self.has_any_family(&PASSED_FAMILIES)
        {
            // A type that was there before belongs to an operation that the webhook did not see. A type that this write
            // adds may announce an operation.
            self.end_run();
        }
    }

    /// Whether this ID waits for the rules of `stage`.
    pub fn awaits_stage(&self, stage: Stage) -> bool {
        match stage {
            Stage::PreCheck => {
                self.phase() == Phase::PreCheck
                    && !self.has_family(Family::PreChecked)
                    && self.operation_type().is_some()
            }
            Stage::PostCheck => {
                self.phase() == Phase::PostCheck && !self.has_family(Family::PostChecked)
            }
        }
    }

    /// Rows 2 and 8: the rules of `stage` have passed. No effect if this ID does not wait for them.
    pub fn pass_stage(&mut self, stage: Stage) {
        if self.awaits_stage(stage) {
            self.stamp_family(passed_family(stage));
            self.passed = Some(stage);
        }
    }

    /// The rules of `stage` have not passed. Reverts a [`pass_stage`](Self::pass_stage) of this write.
    pub fn hold_stage(&mut self, stage: Stage) {
        let waiting = match stage {
            Stage::PreCheck => Family::PreCheck,
            Stage::PostCheck => Family::PostCheck,
        };
        if self.passed == Some(stage) && self.has_family(waiting) {
            self.labels.remove(&passed_family(stage));
            self.passed = None;
        }
    }

    /// Advances the ID as far as `gates` allow. A second call changes nothing.
    pub fn advance(&mut self, gates: PodGates) {
        if self.has_family(Family::Operating) && self.has_family(Family::PreChecked) {
            // Row 3.
            self.labels.remove(&Family::PreCheck);
            if !self.has_family(Family::Operate) {
                self.stamp_family(Family::Preparing);
            }
            // Row 5.
            if gates.operable && self.labels.remove(&Family::Preparing).is_some() {
                self.stamp_family(Family::Operate);
            }
        }
        if self.phase() == Phase::PostCheck && self.has_family(Family::PostChecked) {
            // Row 9.
            self.labels.remove(&Family::PostCheck);
            self.stamp_family(Family::Completing);
        }
        if self.phase() == Phase::Completing && gates.restored {
            // Row 11.
            self.end_run();
        }
    }

    /// Whether rules have passed in this write.
    pub fn has_passed_stage(&self) -> bool {
        self.passed.is_some()
    }

    /// The present phase of the ID.
    pub fn phase(&self) -> Phase {
        Phase::from_labels(&self.labels)
    }

    /// The type whose permission this ID holds: its rules have passed, and the work is not finished.
    pub fn permitted_type(&self) -> Option<&str> {
        self.operation_type()
            .filter(|_| self.has_family(Family::Operating) && self.has_family(Family::PreChecked))
    }
    fn operation_type(&self) -> Option<&str> {
        self.labels
            .get(&Family::OperationType)
            .map(String::as_str)
            .filter(|t| is_label_name(t))
    }

    fn end_run(&mut self) {
        self.labels.clear();
        self.ended = true;
    }

    fn has_family(&self, family: Family) -> bool {
        self.labels.contains_key(&family)
    }

    fn has_any_family(&self, families: &[Family]) -> bool {
        families.iter().any(|f| self.has_family(*f))
    }

    /// Sets a label to the time of the write, unless the label is present.
    fn stamp_family(&mut self, family: Family) {
        self.labels
            .entry(family)
            .or_insert_with(|| self.stamp.clone());
    }
}

fn passed_family(stage: Stage) -> Family {
    match stage {
        Stage::PreCheck => Family::PreChecked,
        Stage::PostCheck => Family::PostChecked,
    }
}
