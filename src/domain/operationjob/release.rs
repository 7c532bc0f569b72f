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
use crate::api::keys;
use crate::api::operationjob::Action;
use crate::domain::pod::Pod;

/// What is left to do for a target.
enum Release {
    /// The Pod must be read first.
    Read(TargetAction),
    Patch(PodPatch),
    /// Nothing is left to do. Contains why images stay that the job has changed.
    Done(Option<String>),
}

impl Release {
    fn from_patch(patch: Option<PodPatch>) -> Release {
        patch.map_or(Release::Done(None), Release::Patch)
    }
}

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
    let pod = recorded_pod(observed, plan);
    let release = match pod {
        Some(pod) => release_managed(observed, plan, action, pod),
        None => release_unmanaged(observed, plan, action),
    };
    match (release, pod) {
        (Release::Read(read), _) => plan.actions.push(read),
        (Release::Patch(patch), _) => plan.actions.push(TargetAction::Patch(patch)),
        (Release::Done(_), _) if waits_for_request => {}
        (Release::Done(_), Some(pod)) if observed.unanswered.contains(&pod.metadata.uid) => {
            plan.actions.push(TargetAction::CheckWrite(Arc::clone(pod)));
            plan.look_again_in(observed, 1);
        }
        (Release::Done(kept_images), _) => {
            if let Some(why) = kept_images {
                plan.keep_images(why);
            }
            plan.release();
        }
    }
}

/// What is left to do on a managed Pod.
fn release_managed(
    observed: &ObservedJob,
    plan: &TargetPlan,
    action: &str,
    pod: &Arc<Pod>,
) -> Release {
    let patch = match action {
        Action::REPLACE => replace::release_patch(observed, pod),
        Action::RESTART => {
            let cancel = lifecycle_action::cancel_operation(observed, pod);
            return release_restart(observed, plan, pod, cancel);
        }
        _ => third_party::cancel_patch(observed, pod),
    };
    Release::from_patch(patch)
}

/// Puts the images back, and then makes the write that ends the operation. If the API server refuses the images, the
/// operation ends first: a refusal that stays must not keep the Pod in its operation. After a failure that may pass, the
/// order stays, because containers that restart outside of their operation would still serve.
fn release_restart(
    observed: &ObservedJob,
    plan: &TargetPlan,
    pod: &Arc<Pod>,
    end: Option<PodPatch>,
) -> Release {
    let restore = restart_action::restore_patch(observed, plan, pod);
    let Some(refusal) = observed.refusal_of(pod) else {
        let unproven = restart_action::has_unproven_images(observed, plan, pod);
        let why = || {
            format!(
                "the annotation {} of the Pod does not say what they were",
                keys::FORMER_IMAGES
            )
        };
        return match restore.or(end) {
            None => Release::Done(unproven.then(why)),
            patch => Release::from_patch(patch),
        };
    };
    match (end, restore) {
        // A refusal that stays must not keep the job either.
        (None, Some(restore)) if observed.is_deleting() => {
            let why = || format!("the API server refuses it: {refusal}");
            Release::Done(restore.spec.is_some().then(why))
        }
        (end, restore) => Release::from_patch(end.or(restore)),
    }
}

/// If somebody has taken the Pod out of management, what the job asked of it would count again as soon as it is managed
/// again. Nobody carries out an undo on it, so the labels of the operation are removed.
fn release_unmanaged(observed: &ObservedJob, plan: &TargetPlan, action: &str) -> Release {
    let (name, uid) = (&plan.detail.name, plan.info(extra_info::POD_UID));
    if uid.is_none()
        && let Some(pod) = observed.pods.named(name)
    {
        return held_by_kuperator(observed, pod);
    }
    let pod = match read_unmanaged(observed, plan) {
        Ok(Some(pod)) => pod,
        Ok(None) => return Release::Done(None),
        Err(read) => return Release::Read(*read),
    };
    let pod = &pod;
    if uid.is_none() {
        return held_by_kuperator(observed, pod);
    }
    let patch = match action {
        Action::REPLACE => replace::release_patch(observed, pod),
        Action::RESTART => None,
        _ => third_party::cancel_patch(observed, pod),
    };
    let mut patch = patch.unwrap_or_else(|| PodPatch::of(pod));
    for key in lifecycle_action::operation_labels(observed) {
        patch.labels.0.remove(&key);
        if pod.label(&key).is_some() {
            patch.labels.0.insert(key, None);
        }
    }
    let patch = (patch != PodPatch::of(pod)).then_some(patch);
    match action {
        Action::RESTART => release_restart(observed, plan, pod, patch),
        _ => Release::from_patch(patch),
    }
}

/// A Pod of a target that Kuperator has started: Kuperator has stored no UID, but its finalizer is on the Pod.
fn held_by_kuperator(observed: &ObservedJob, pod: &Arc<Pod>) -> Release {
    let is_held = replace::has_kuperator_finalizer(pod);
    Release::from_patch(replace::release_patch(observed, pod).filter(|_| is_held))
}
