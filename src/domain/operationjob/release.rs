//! Withdraws everything that a job asked of a Pod, after a failure, a missed deadline, or the deletion of the job.

use super::actions::TargetAction;
use super::lifecycle_action;
use super::observed::ObservedJob;
use super::replace;
use super::restart_action;
use super::target_plan::{TargetPlan, recorded_pod};
use super::third_party;
use crate::api::operationjob::Action;

/// Releases a target that has failed. A terminating Pod is released as well: nothing of a job may hold a Pod.
pub fn release_target(observed: &ObservedJob, plan: &mut TargetPlan) {
    let action = observed.job.spec.action.as_ref();
    let action = action.map_or("", |action| &action.0);
    let is_restart = action == Action::RESTART;
    if is_restart && let Some(deletion) = restart_action::delete_request(observed, plan) {
        plan.actions.push(deletion);
        return plan.look_again_in(observed, 2);
    }
    let Some(pod) = recorded_pod(observed, plan) else {
        return plan.release();
    };
    let patch = match action {
        Action::REPLACE => replace::release_patch(observed, pod),
        Action::RESTART => restart_action::restore_patch(plan, pod)
            .or_else(|| lifecycle_action::cancel_operation(observed, pod)),
        _ => third_party::cancel_patch(observed, pod),
    };
    match patch {
        Some(patch) => plan.actions.push(TargetAction::Patch(patch)),
        None => plan.release(),
    }
}
