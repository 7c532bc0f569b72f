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
    // A request that can't be deleted does not keep the Pod in its operation.
    if is_restart && let Some(deletion) = restart_action::delete_request(observed, plan) {
        plan.actions.push(deletion);
        plan.look_again_in(observed, 2);
    }
    let pod = recorded_pod(observed, plan).or_else(|| held_by_kuperator(observed, plan));
    let Some(pod) = pod else {
        return release_absent(observed, plan);
    };
    let patch = match action {
        Action::REPLACE => replace::release_patch(observed, pod),
        Action::RESTART => restart_action::restore_patch(plan, pod)
            .or_else(|| lifecycle_action::cancel_operation(observed, pod)),
        _ => third_party::cancel_patch(observed, pod),
    };
    match patch {
        Some(patch) => plan.actions.push(TargetAction::Patch(patch)),
        None if plan.actions.is_empty() => plan.release(),
        None => {}
    }
}

/// Releases a target whose Pod is not among the managed Pods. If somebody has taken the Pod out of management, the
/// operation would hold the Pod off traffic as soon as it is managed again.
fn release_absent(observed: &ObservedJob, plan: &mut TargetPlan) {
    let uid = plan.info(extra_info::POD_UID).map(str::to_owned);
    match uid.filter(|uid| !observed.gone.contains(uid)) {
        None if plan.actions.is_empty() => plan.release(),
        None => {}
        Some(uid) => plan.actions.push(TargetAction::ReleaseUnmanaged {
            name: plan.detail.name.clone(),
            uid,
            labels: lifecycle_action::operation_labels(observed),
        }),
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
