//! The position of a rollout among its steps, as the status stores it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::collaset::RolloutStatus;
use crate::domain::collaset::set_facts::SetFacts;
use crate::domain::collaset::status::condition_time;

/// The status of a rollout that begins.
pub(super) fn first_step_status(facts: &SetFacts) -> RolloutStatus {
    let mut status = RolloutStatus {
        revision: facts.rollout.revision.clone(),
        command: facts.rollout.last_command.clone(),
        ..RolloutStatus::default()
    };
    if !facts.rollout.steps.is_empty() {
        move_to_step(facts, &mut status, 1);
    }
    status
}

/// Moves the status to a step, numbered from 1.
pub(super) fn move_to_step(facts: &SetFacts, status: &mut RolloutStatus, step: usize) {
    status.step = i32::try_from(step).unwrap_or(i32::MAX);
    status.steps = i32::try_from(facts.rollout.len()).unwrap_or(i32::MAX);
    status.step_since = Some(Time(condition_time(facts.observed.now_nanos)));
}
