//! From one step to the next.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::command;
use crate::api::collaset::RolloutStatus;
use crate::api::keys;
use crate::domain::collaset::draft::Draft;
use crate::domain::collaset::facts::Facts;
use crate::domain::collaset::lifecycle::Operation;
use crate::domain::collaset::pool;
use crate::domain::collaset::status::time;
use crate::domain::collaset::strategy::{RolloutStep, Scope};
use crate::domain::pod::Pod;

/// Nanoseconds after which a plan goes by a position that is new: no event tells of the set's own status.
pub const SOON: u64 = 100_000_000;

/// What a rollout waits for at a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A time, in nanoseconds since 1970.
    Until(u64),
    /// The Pods that the steps so far have updated: the time is over, and they are not available.
    Pods,
    /// Somebody to promote it.
    Promotion,
}

/// Where the rollout stands next, for the status; `None` where there is nothing to say.
pub fn step(facts: &Facts, draft: &mut Draft) -> Option<RolloutStatus> {
    let rollout = &facts.rollout;
    let mut next = rollout.stored.clone().unwrap_or_else(|| begun(facts));
    let commanded = command::carry_out(facts, draft, &mut next);
    if !rollout.is_on {
        return command_of(&next);
    }
    if rollout.steps.is_empty() {
        (next.step, next.steps, next.step_since) = (0, 0, None);
    } else if !commanded && !facts.strategy.paused && !next.aborted {
        pass(facts, draft, &mut next);
    }
    let says = next.step > 0 || next.aborted || !next.command.is_empty();
    let next = says.then_some(next);
    if rollout.stored != next {
        draft.again(SOON);
    }
    next
}

/// What stays of a rollout that is over: the command, for as long as its annotation is there. Otherwise the next rollout would
/// carry the command out again.
pub fn command_of(status: &RolloutStatus) -> Option<RolloutStatus> {
    (!status.command.is_empty()).then(|| RolloutStatus {
        revision: status.revision.clone(),
        command: status.command.clone(),
        ..RolloutStatus::default()
    })
}

/// The first step.
pub(super) fn begun(facts: &Facts) -> RolloutStatus {
    let mut begun = RolloutStatus {
        revision: facts.rollout.revision.clone(),
        command: facts.rollout.noted.clone(),
        ..RolloutStatus::default()
    };
    if !facts.rollout.steps.is_empty() {
        go_to(facts, &mut begun, 1);
    }
    begun
}

/// Goes on to a step, numbered from 1.
pub(super) fn go_to(facts: &Facts, status: &mut RolloutStatus, step: usize) {
    status.step = i32::try_from(step).unwrap_or(i32::MAX);
    status.steps = i32::try_from(facts.rollout.len()).unwrap_or(i32::MAX);
    status.step_since = Some(Time(time(facts.observed.now_nanos)));
}

/// Goes on while the step under way is over. A step is seen to begin before it is over.
fn pass(facts: &Facts, draft: &mut Draft, status: &mut RolloutStatus) {
    let rollout = &facts.rollout;
    if status.step < 1 || !rollout.has_steps_of(status) {
        go_to(facts, status, 1); // steps were added or taken out meanwhile
        return;
    }
    let Some(step) = rollout.step().filter(|_| rollout.stored.is_some()) else {
        return;
    };
    let over = match step {
        RolloutStep::Partition(_) => is_reached(facts),
        RolloutStep::Pause(_) => match wait(facts, status) {
            Some(Wait::Until(until)) => {
                let left = until.saturating_sub(facts.observed.now_nanos);
                if left > 0 {
                    draft.again(left);
                }
                left == 0
            }
            _ => false,
        },
    };
    if over {
        go_to(facts, status, rollout.index() + 2);
    }
}

/// What the pause waits for that a status is at; `None` where it is at none.
pub fn wait(facts: &Facts, status: &RolloutStatus) -> Option<Wait> {
    let RolloutStep::Pause(lasts) = facts.rollout.step_of(status)? else {
        return None;
    };
    let since = status
        .step_since
        .as_ref()
        .map(|since| since.0.as_nanosecond());
    let since = since.and_then(|since| u64::try_from(since).ok());
    let now = facts.observed.now_nanos;
    let Some(lasts) = lasts else {
        return Some(Wait::Promotion);
    };
    let until = since.unwrap_or(now).saturating_add(lasts);
    Some(match until > now || is_reached(facts) {
        true => Wait::Until(until),
        false => Wait::Pods,
    })
}

fn is_busy(pod: &Pod) -> bool {
    Operation::Update.is_on(pod) || pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some()
}

/// The Pods that keep the step from being over, as far as they are there.
pub fn awaited<'a>(facts: &'a Facts) -> impl Iterator<Item = &'a Arc<Pod>> {
    let members = facts.members.values();
    members.filter(|pod| is_busy(pod) || facts.is_updated(pod) && !pod.is_available())
}

/// Whether all Pods that the partition so far lets go are updated, available, and not in an operation.
fn is_reached(facts: &Facts) -> bool {
    let Scope::Partition(partition) = facts.strategy.scope else {
        return false;
    };
    let lacks = pool::lacks(facts);
    let wanted = facts
        .strategy
        .replicas
        .saturating_sub(partition.saturating_add(lacks));
    if facts.members.values().any(|pod| is_busy(pod)) {
        return false;
    }
    let updated = facts.members.values().filter(|pod| facts.is_updated(pod));
    updated.filter(|pod| pod.is_available()).count() >= wanted
}
