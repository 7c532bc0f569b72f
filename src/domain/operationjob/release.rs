//! Withdraws everything that a job asked of a Pod, after a failure, a missed deadline, or the deletion of the job.

use std::sync::Arc;

use super::actions::TargetAction;
use super::lifecycle_action;
use super::names::extra_info;
use super::observed::ObservedJob;
use super::replace;
use super::restart_action;
use super::target_plan::{TargetPlan, recorded_pod};
use super::third_party;
use crate::api::operationjob::Action;
use crate::domain::pod::Pod;

/// Releases a target that has failed. A terminating Pod is released as well: nothing of a job may hold a Pod.
pub fn release_target(observed: &ObservedJob, plan: &mut TargetPlan) {
    let action = observed.job.spec.action.as_ref();
    let action = action.map_or("", |action| &action.0);
    let is_restart = action == Action::RESTART;
    if is_restart && let Some(deletion) = restart_action::delete_request(observed, plan) {
        plan.actions.push(deletion);
        return plan.look_again_in(observed, 2);
    }
    let pod = recorded_pod(observed, plan).or_else(|| held_by_kuperator(observed, plan));
    let Some(pod) = pod else {
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

/// The Pod of a target that Kuperator has started: Kuperator has stored no UID, but its finalizer is on the Pod.
fn held_by_kuperator<'a>(observed: &'a ObservedJob, plan: &TargetPlan) -> Option<&'a Arc<Pod>> {
    if plan.info(extra_info::POD_UID).is_some() {
        return None;
    }
    let pod = observed.pods.named(&plan.detail.name)?;
    replace::has_kuperator_finalizer(pod).then_some(pod)
}
