//! Withdraws everything that a job asked of a Pod, after a failure, a missed deadline, or the deletion of the job.

use std::sync::Arc;

use super::actions::{PodPatch, TargetAction};
use super::lifecycle_action;
use super::names::extra_info;
use super::observed::ObservedJob;
use super::replace;
use super::restart_action;
use super::target_plan::{TargetPlan, read_unmanaged, recorded_pod};
use super::third_party;
use crate::api::operationjob::Action;
use crate::domain::pod::Pod;

/// Releases a target that has failed. A terminating Pod is released as well: nothing of a job may hold a Pod.
pub fn release_target(observed: &ObservedJob, plan: &mut TargetPlan) {
    let action = observed.job.spec.action.as_ref();
    let action = action.map_or("", |action| &action.0);
    let uid = plan.info(extra_info::POD_UID).unwrap_or_default();
    if observed.unseen.contains(uid) {
        return plan.look_again_in(observed, 1); // the Pod may have a label that its cached state lacks
    }
    if action == Action::RESTART
        && let Some(deletion) = restart_action::delete_request(observed, plan)
    {
        plan.actions.push(deletion);
        plan.look_again_in(observed, 2);
    }
    // The job is the owner of the request, so the request goes with a job that is being deleted.
    let waits_for_request = !plan.actions.is_empty() && !observed.is_deleting();
    let patch = match recorded_pod(observed, plan) {
        Some(pod) => release_patch(observed, plan, action, pod),
        None => match release_unmanaged(observed, plan, action) {
            UnmanagedRelease::Unknown(read) => return plan.actions.push(read),
            UnmanagedRelease::Patch(patch) => Some(patch),
            UnmanagedRelease::Done => None,
        },
    };
    match patch {
        Some(patch) => plan.actions.push(TargetAction::Patch(patch)),
        None if waits_for_request => {}
        None => plan.release(),
    }
}

/// The next patch that releases a managed Pod.
fn release_patch(
    observed: &ObservedJob,
    plan: &TargetPlan,
    action: &str,
    pod: &Arc<Pod>,
) -> Option<PodPatch> {
    match action {
        Action::REPLACE => replace::release_patch(observed, pod),
        Action::RESTART => {
            let restore = restart_action::restore_patch(plan, pod);
            let cancel = lifecycle_action::cancel_operation(observed, pod);
            // An image that is refused for ever does not keep the Pod in its operation.
            match observed.refused.contains_key(&pod.metadata.uid) {
                true => cancel.or(restore),
                false => restore.or(cancel),
            }
        }
        _ => third_party::cancel_patch(observed, pod),
    }
}

/// What is left to do on a Pod that is not among the managed Pods.
enum UnmanagedRelease {
    /// The Pod must be read first.
    Unknown(TargetAction),
    Patch(PodPatch),
    Done,
}

/// If somebody has taken the Pod out of management, what the job asked of it would count again as soon as it is managed
/// again. Nobody carries out an undo on it, so the labels of the operation are removed.
fn release_unmanaged(observed: &ObservedJob, plan: &TargetPlan, action: &str) -> UnmanagedRelease {
    let (name, uid) = (&plan.detail.name, plan.info(extra_info::POD_UID));
    if uid.is_none()
        && let Some(pod) = observed.pods.named(name)
    {
        return held_by_kuperator(observed, pod);
    }
    let pod = match read_unmanaged(observed, plan) {
        Ok(Some(pod)) => pod,
        Ok(None) => return UnmanagedRelease::Done,
        Err(read) => return UnmanagedRelease::Unknown(read),
    };
    let pod = &pod;
    if uid.is_none() {
        return held_by_kuperator(observed, pod);
    }
    let patch = match action {
        Action::REPLACE => replace::release_patch(observed, pod),
        Action::RESTART => restart_action::restore_patch(plan, pod),
        _ => third_party::cancel_patch(observed, pod),
    };
    let mut patch = patch.unwrap_or_else(|| PodPatch::of(pod));
    for key in lifecycle_action::operation_labels(observed) {
        patch.labels.0.remove(&key);
        if pod.label(&key).is_some() {
            patch.labels.0.insert(key, None);
        }
    }
    match patch == PodPatch::of(pod) {
        true => UnmanagedRelease::Done,
        false => UnmanagedRelease::Patch(patch),
    }
}

/// A Pod of a target that Kuperator has started: Kuperator has stored no UID, but its finalizer is on the Pod.
fn held_by_kuperator(observed: &ObservedJob, pod: &Arc<Pod>) -> UnmanagedRelease {
    let is_held = replace::has_kuperator_finalizer(pod);
    match replace::release_patch(observed, pod).filter(|_| is_held) {
        Some(patch) => UnmanagedRelease::Patch(patch),
        None => UnmanagedRelease::Done,
    }
}
