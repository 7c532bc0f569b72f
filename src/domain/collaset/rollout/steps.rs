//! Advances a rollout from one step to the next.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::command;
use super::position::{first_step_status, move_to_step};
use crate::api::collaset::RolloutStatus;
use crate::api::keys;
use crate::domain::collaset::draft::Draft;
use crate::domain::collaset::pool;
use crate::domain::collaset::set_facts::SetFacts;
use crate::domain::collaset::set_operations::{self, SetOperation};
use crate::domain::collaset::strategy::{ResolvedStep, UpdateScope};
use crate::domain::pod::Pod;

/// What a rollout waits for at a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseWait {
    /// The end of the pause, in nanoseconds since 1970.
    Until(u64),
    /// The Pods that the steps so far have updated. The duration of the pause is over, but these Pods are not
    /// available.
    Pods,
    /// A promotion by a user.
    Promotion,
}

/// Returns the next position of the rollout for the status; `None` if there is nothing to store.
pub fn advance_rollout(facts: &SetFacts, draft: &mut Draft) -> Option<RolloutStatus> {
    let rollout = &facts.rollout;
    let mut next = rollout
        .stored
        .clone()
        .unwrap_or_else(|| first_step_status(facts));
    let commanded = command::carry_out_command(facts, draft, &mut next);
    if !rollout.is_on {
        return remaining_command(&next);
    }
    if rollout.steps.is_empty() {
        (next.step, next.steps, next.step_since) = (0, 0, None);
    } else if !commanded && !facts.strategy.paused && !next.aborted {
        pass_finished_steps(facts, draft, &mut next);
    }
    let has_state = next.step > 0 || next.aborted || !next.command.is_empty();
    has_state.then_some(next)
}

/// The part of the status that stays when a rollout is over: the command, for as long as its annotation exists.
/// Otherwise the next rollout would carry out the command again.
pub fn remaining_command(status: &RolloutStatus) -> Option<RolloutStatus> {
    (!status.command.is_empty()).then(|| RolloutStatus {
        revision: status.revision.clone(),
        command: status.command.clone(),
        ..RolloutStatus::default()
    })
}

/// Moves to the next step if the current step is over. A step must be stored as begun before it can be over.
fn pass_finished_steps(facts: &SetFacts, draft: &mut Draft, status: &mut RolloutStatus) {
    let rollout = &facts.rollout;
    if status.step < 1 || !rollout.has_same_step_count(status) {
        move_to_step(facts, status, 1); // the number of steps has changed
        return;
    }
    let Some(step) = rollout.current_step().filter(|_| rollout.stored.is_some()) else {
        return;
    };
    let over = match step {
        ResolvedStep::Partition(_) => true,
        ResolvedStep::Pause(_) => match pause_wait(facts, status) {
            Some(PauseWait::Until(until)) => {
                let remaining = until.saturating_sub(facts.observed.now_nanos);
                if remaining > 0 {
                    draft.requeue_after(remaining);
                }
                remaining == 0
            }
            _ => false,
        },
    };
    // This plan may be the first that scales a Pod in.
    let is_reached = || {
        let mut step_instances = StepInstances::from_facts(facts);
        step_instances.scaled_in.extend(&draft.surplus);
        step_instances.is_step_reached()
    };
    if over && is_reached() {
        move_to_step(facts, status, rollout.step_index() + 2);
    }
}

/// What the pause of a status waits for; `None` if the status is not at a pause.
pub fn pause_wait(facts: &SetFacts, status: &RolloutStatus) -> Option<PauseWait> {
    let ResolvedStep::Pause(lasts) = facts.rollout.step_at(status)? else {
        return None;
    };
    let since = status
        .step_since
        .as_ref()
        .map(|since| since.0.as_nanosecond());
    let since = since.and_then(|since| u64::try_from(since).ok());
    let now = facts.observed.now_nanos;
    let Some(lasts) = lasts else {
        return Some(PauseWait::Promotion);
    };
    let until = since.unwrap_or(now).saturating_add(lasts);
    Some(
        match until > now || StepInstances::from_facts(facts).is_step_reached() {
            true => PauseWait::Until(until),
            false => PauseWait::Pods,
        },
    )
}

fn has_running_operation(pod: &Pod) -> bool {
    SetOperation::Update.is_in_progress(pod)
        || pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some()
}

/// The existing Pods for which the current step waits.
pub fn awaited_pods<'a>(facts: &'a SetFacts<'a>) -> impl Iterator<Item = &'a Arc<Pod>> {
    let step_instances = StepInstances::from_facts(facts);
    let members = facts.members.iter();
    let awaited = members.filter(move |(id, pod)| step_instances.awaits_pod(**id, pod));
    awaited.map(|(_, pod)| pod)
}

/// The Pods as the steps count them: an origin and its new Pod count once.
struct StepInstances<'a> {
    facts: &'a SetFacts<'a>,
    /// New Pods of pairs, by the names of their origins.
    halves: HashMap<&'a str, &'a Pod>,
    /// Names of the Pods whose update is in progress.
    busy: HashSet<&'a str>,
    /// IDs of Pods that are scaled in.
    scaled_in: BTreeSet<i64>,
}

impl<'a> StepInstances<'a> {
    fn from_facts(facts: &'a SetFacts<'a>) -> StepInstances<'a> {
        let members = facts.members.values();
        let halves = members.clone().filter(|pod| facts.is_new_half(pod));
        let halves = halves.filter_map(|half| {
            let origin = half.label(keys::REPLACE_PAIR_ORIGIN_NAME)?;
            Some((origin, &**half))
        });
        let busy = members.filter(|pod| has_running_operation(pod));
        let stored = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
        let marked = stored.filter(|context| {
            facts.is_own_entry(&context.data) && context.data.contains_key(pool::SCALE_IN)
        });
        let marked: BTreeSet<i64> = marked.map(|context| context.id).collect();
        let scaled_in = facts.members.iter().filter(|(id, pod)| {
            SetOperation::ScaleIn.is_in_progress(pod)
                || set_operations::is_leaving(pod) && marked.contains(id)
        });
        StepInstances {
            facts,
            halves: halves.collect(),
            busy: busy.map(|pod| &*pod.metadata.name).collect(),
            scaled_in: scaled_in.map(|(id, _)| *id).collect(),
        }
    }

    /// Whether all Pods that the present partition lets update, and that stay, are updated, available, and not in an
    /// operation. The step also waits for every updated Pod, even if enough others are available.
    fn is_step_reached(&self) -> bool {
        let facts = self.facts;
        let UpdateScope::Partition(partition) = facts.strategy.scope else {
            return false;
        };
        let outdated = partition.saturating_add(pool::count_missing_ids(facts));
        let wanted = facts.strategy.replicas.saturating_sub(outdated);
        let mut members = facts.members.iter();
        if members.any(|(id, pod)| self.awaits_pod(*id, pod)) {
            return false;
        }
        let staying = facts.members.iter();
        let staying =
            staying.filter(|(id, pod)| !self.scaled_in.contains(id) && !facts.is_new_half(pod));
        staying
            .filter(|(_, pod)| self.is_updated_and_available(pod))
            .count()
            >= wanted
    }

    /// Whether the steps wait for a Pod. They do not wait for the new Pod of a replacement that a user has asked for.
    fn awaits_pod(&self, id: i64, pod: &Pod) -> bool {
        let is_of_user = || {
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            self.facts.is_new_half(pod) && origin.is_none_or(|origin| !self.busy.contains(origin))
        };
        let is_down = || self.facts.is_updated(pod) && !self.is_updated_and_available(pod);
        has_running_operation(pod) || is_down() && !self.scaled_in.contains(&id) && !is_of_user()
    }

    /// Whether a Pod, or the new Pod that stands in for it, is updated and available.
    fn is_updated_and_available(&self, pod: &Pod) -> bool {
        let half = self.halves.get(&*pod.metadata.name).copied();
        let mut both = [Some(pod), half].into_iter().flatten();
        both.any(|pod| self.facts.is_updated(pod) && pod.is_available())
    }
}
