//! Rollouts in steps: canaries, pauses, and the commands `promote`, `abort` and `retry`.
//!
//! The status stores the position of a rollout, and a plan reads only the stored position. When a step ends, the plan
//! first writes the new position; the next plan then does the work of the new step. The position belongs to one
//! revision: another template begins at the first step. A template that is the current revision again (a rollback)
//! takes no steps.

mod command;
mod position;
mod steps;

pub use command::{ABORT, PROMOTE, RETRY};
pub use steps::{PauseWait, advance_rollout, awaited_pods, pause_wait, remaining_command};

use super::revision::history::RevisionHistory;
use super::strategy::{ResolvedStep, ResolvedStrategy, UpdateScope};
use crate::api::collaset::{CollaSet, RolloutStatus};

/// The rollout of the present template, as the status stores it.
#[derive(Clone, Debug)]
pub struct StoredRollout {
    /// Revision of the present template.
    pub revision: String,
    /// Whether this is another revision than the current one, so that a rollout is in progress.
    pub is_on: bool,
    /// Whether the revision of the template can't be written and an older one is used in its place.
    stands_in: bool,
    /// Whether the ControllerRevision to which an abort goes back does not exist any more.
    is_current_lost: bool,
    /// The stored status of this rollout, if there is one.
    stored: Option<RolloutStatus>,
    /// The command that the status records, for this rollout or an earlier one.
    last_command: String,
    /// The steps of the rollout; empty if no rollout is in progress.
    steps: Vec<ResolvedStep>,
    /// The scope of the spec without its steps.
    whole: UpdateScope,
}

impl StoredRollout {
    /// Reads the rollout from the spec and the status of a set.
    pub fn from_set(
        set: &CollaSet,
        history: &RevisionHistory,
        strategy: &ResolvedStrategy,
    ) -> StoredRollout {
        let revision = history.updated.name.clone();
        let is_on = revision != history.stable && !history.stands_in;
        let stored = set
            .status
            .as_ref()
            .and_then(|status| status.rollout.clone());
        let last_command = stored.as_ref().map(|stored| stored.command.clone());
        let (steps, whole) = (strategy.steps.clone(), strategy.scope);
        StoredRollout {
            last_command: last_command.unwrap_or_default(),
            stored: stored.filter(|stored| is_on && stored.revision == revision),
            stands_in: history.stands_in,
            is_current_lost: is_on && history.current.name == revision,
            steps: if is_on { steps } else { Vec::new() },
            revision,
            is_on,
            whole,
        }
    }

    /// Whether the rollout is aborted, so that the Pods go back to the current revision.
    pub fn is_aborted(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.aborted)
    }

    /// Whether no Pod is updated because the revision that the Pods should have is not stored.
    pub fn is_frozen(&self) -> bool {
        self.stands_in || self.is_aborted() && self.is_current_lost
    }

    /// Which Pods the rollout updates now. An aborted rollout takes back every Pod that it has updated.
    pub fn scope(&self) -> UpdateScope {
        match (self.whole, self.current_step()) {
            _ if self.is_frozen() => UpdateScope::Partition(usize::MAX),
            _ if self.is_aborted() => UpdateScope::Partition(0),
            (UpdateScope::Partition(whole), Some(_)) => {
                UpdateScope::Partition(whole.max(self.kept_by_steps()))
            }
            (whole, _) => whole,
        }
    }

    /// Which Pods the rollout updates when all steps are over.
    pub fn final_scope(&self) -> UpdateScope {
        match self.is_aborted() {
            true if self.is_frozen() => UpdateScope::Partition(usize::MAX),
            true => UpdateScope::Partition(0),
            false => self.whole,
        }
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The step of a status; `None` before the first and after the last step.
    pub fn step_at(&self, status: &RolloutStatus) -> Option<ResolvedStep> {
        let index = usize::try_from(status.step).ok()?.checked_sub(1)?;
        self.steps.get(index).copied()
    }

    /// Whether a step is still in progress or ahead.
    pub fn has_steps_left(&self) -> bool {
        !self.is_aborted() && self.current_step().is_some()
    }

    /// Whether the status was written for the same number of steps. Otherwise its step number is meaningless.
    fn has_same_step_count(&self, status: &RolloutStatus) -> bool {
        usize::try_from(status.steps) == Ok(self.steps.len())
    }

    /// Index of the current step, from 0.
    fn step_index(&self) -> usize {
        let stored = self.stored.as_ref().filter(|s| self.has_same_step_count(s));
        let stored = stored.map_or(1, |stored| stored.step.max(1));
        usize::try_from(stored - 1).unwrap_or(0)
    }

    /// The current step; `None` after the last one.
    fn current_step(&self) -> Option<ResolvedStep> {
        self.steps.get(self.step_index()).copied()
    }

    /// Number of Pods that the steps so far keep on older revisions. Until a step sets a partition, all Pods are kept.
    fn kept_by_steps(&self) -> usize {
        let mut reached = self.steps.iter().take(self.step_index() + 1).rev();
        let partition = reached.find_map(|step| match step {
            ResolvedStep::Partition(partition) => Some(*partition),
            ResolvedStep::Pause(_) => None,
        });
        partition.unwrap_or(usize::MAX)
    }
}
