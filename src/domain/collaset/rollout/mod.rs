//! A rollout in steps: a canary, pauses, and what users say to it (promote, abort).
//!
//! The status holds where a rollout stands, and a plan goes by what is stored there: a step that ends is written first, and
//! what the next step asks for is planned when that has been seen. The position speaks of one revision. Another template
//! begins anew, and one that is the current revision again (a rollback) takes no steps.

mod command;
mod steps;

pub use command::{ABORT, PROMOTE, RETRY};
pub use steps::{PauseWait, advance_rollout, awaited_pods, pause_wait, remaining_command};

use super::revision::history::RevisionHistory;
use super::strategy::{ResolvedStrategy, RolloutStep, UpdateScope};
use crate::api::collaset::{CollaSet, RolloutStatus};

/// The rollout of the present template, as it is stored.
#[derive(Clone, Debug)]
pub struct StoredRollout {
    /// Revision of the present template.
    pub revision: String,
    /// Whether that is another one than the current revision.
    pub is_on: bool,
    /// Whether the revision of the template can't be written, and an older one stands in for it.
    stands_in: bool,
    /// Whether the ControllerRevision to which an abort goes back does not exist any more.
    is_current_lost: bool,
    /// What the status says of it.
    stored: Option<RolloutStatus>,
    /// The command that the status has noted, of whichever rollout.
    noted: String,
    /// The steps that it takes.
    steps: Vec<RolloutStep>,
    /// The scope without steps.
    whole: UpdateScope,
}

impl StoredRollout {
    /// What the set says.
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
        let noted = stored.as_ref().map(|stored| stored.command.clone());
        let (steps, whole) = (strategy.steps.clone(), strategy.scope);
        StoredRollout {
            noted: noted.unwrap_or_default(),
            stored: stored.filter(|stored| is_on && stored.revision == revision),
            stands_in: history.stands_in,
            is_current_lost: is_on && history.current.name == revision,
            steps: if is_on { steps } else { Vec::new() },
            revision,
            is_on,
            whole,
        }
    }

    /// Whether the Pods go back to the current revision.
    pub fn is_aborted(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.aborted)
    }

    /// Whether no Pod is updated, because the revision that the Pods should be of is not stored.
    pub fn is_frozen(&self) -> bool {
        self.stands_in || self.is_aborted() && self.is_current_lost
    }

    /// Which Pods are to be updated now. An aborted rollout takes back whatever it has reached.
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

    /// Which Pods are to be updated in the end.
    pub fn final_scope(&self) -> UpdateScope {
        match self.is_aborted() {
            true if self.is_frozen() => UpdateScope::Partition(usize::MAX),
            true => UpdateScope::Partition(0),
            false => self.whole,
        }
    }

    /// How many steps it takes.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The step that a status is at; `None` where it is at none, or after the last one.
    pub fn step_at(&self, status: &RolloutStatus) -> Option<RolloutStep> {
        let index = usize::try_from(status.step).ok()?.checked_sub(1)?;
        self.steps.get(index).copied()
    }

    /// Whether there is a step that is not over.
    pub fn has_steps_left(&self) -> bool {
        !self.is_aborted() && self.current_step().is_some()
    }

    /// Whether a status is of as many steps: a number says nothing once steps were added or taken out.
    fn has_same_step_count(&self, status: &RolloutStatus) -> bool {
        usize::try_from(status.steps) == Ok(self.steps.len())
    }

    /// Index of the step that is under way.
    fn step_index(&self) -> usize {
        let stored = self.stored.as_ref().filter(|s| self.has_same_step_count(s));
        let stored = stored.map_or(1, |stored| stored.step.max(1));
        usize::try_from(stored - 1).unwrap_or(0)
    }

    /// The step that is under way; `None` after the last one.
    fn current_step(&self) -> Option<RolloutStep> {
        self.steps.get(self.step_index()).copied()
    }

    /// Pods that the steps so far keep on older revisions: all, until a step says otherwise.
    fn kept_by_steps(&self) -> usize {
        let mut reached = self.steps.iter().take(self.step_index() + 1).rev();
        let partition = reached.find_map(|step| match step {
            RolloutStep::Partition(kept) => Some(*kept),
            RolloutStep::Pause(_) => None,
        });
        partition.unwrap_or(usize::MAX)
    }
}
