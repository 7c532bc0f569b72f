//! Takes a Pod through the lifecycle for an action (contract 3.1): begins the operation, waits until the Pod may be
//! operated on, and ends the operation.

use std::sync::Arc;

use super::actions::{PodPatch, TargetAction};
use super::job_settings;
use super::names::{extra_info, reason};
use super::observed::ObservedJob;
use super::target_plan::{TargetPlan, recorded_pod};
use crate::api::keys::Family;
use crate::domain::digest::Digest;
use crate::domain::lifecycle::{Phase, operator, stored_phase, stored_phases};
use crate::domain::pod::Pod;

/// Prefix of the lifecycle IDs of jobs. With it, a job named `collaset` or `pod-delete` has an ID of its own.
pub const ID_PREFIX: &str = "operationjob-";
/// Longest ID: an ID is the name part of label keys.
const MAX_ID: usize = 63;

/// The lifecycle ID of a job. If the name is too long, a hash takes its place.
pub fn lifecycle_id(job: &str) -> String {
    let id = format!("{ID_PREFIX}{job}");
    if id.len() <= MAX_ID {
        return id;
    }
    let mut digest = Digest::default();
    digest.add_text(job);
    format!("{ID_PREFIX}{:016x}", digest.value())
}

/// The value of the label `operation-type`: the action, without the domain of another program.
pub fn operation_type(observed: &ObservedJob) -> &str {
    let action = observed.job.spec.action.as_ref();
    let action = action.map_or("", |action| &action.0);
    action.rsplit_once('/').map_or(action, |(_, name)| name)
}

/// Why no operation can begin on this Pod.
pub fn start_obstacle(pod: &Pod) -> Option<(&'static str, String)> {
    let message = if pod.is_terminating() {
        "the Pod is being deleted already"
    } else if pod.is_finished() {
        "the containers of the Pod have ended for good"
    } else {
        return None;
    };
    Some((reason::POD_NOT_FOUND, message.to_owned()))
}

/// Whether a run of the ID of this job is on a Pod that this job has not started.
pub fn has_former_run(observed: &ObservedJob, pod: &Pod) -> bool {
    let id = lifecycle_id(observed.name());
    pod.label(&Family::Operating.key(&id)).is_some()
}

/// Ends a run that is on the Pod before this job has started it: an earlier job of the same name has left it behind.
pub fn undo_former_run(observed: &ObservedJob, pod: &Arc<Pod>) -> Option<TargetAction> {
    let id = lifecycle_id(observed.name());
    let type_ = pod.label(&Family::OperationType.key(&id));
    pod.label(&Family::Operating.key(&id))?;
    if pod.label(&Family::UndoOperationType.key(&id)).is_some() {
        return None; // the lifecycle carries it out
    }
    let mut patch = PodPatch::of(pod);
    patch.labels = operator::undo_labels(&id, type_.unwrap_or_default());
    Some(TargetAction::Patch(patch))
}

/// Brings the recorded Pod to the point at which the action may work on it, and back to service after the action has
/// ended. Returns the Pod if the action may work on it now.
pub fn pod_to_act_on(observed: &ObservedJob, plan: &mut TargetPlan) -> Option<Arc<Pod>> {
    let Some(pod) = recorded_pod(observed, plan).filter(|pod| !pod.is_terminating()) else {
        let message = "the Pod was deleted, or it is not managed any more";
        plan.fail(observed, reason::POD_NOT_FOUND, message);
        return None;
    };
    if pod.is_finished() {
        let message = "the containers of the Pod have ended for good";
        plan.fail(observed, reason::POD_NOT_FOUND, message);
        return None;
    }
    let id = lifecycle_id(observed.name());
    let type_ = operation_type(observed);
    let is_in_progress = operator::is_in_progress(pod, &id, type_);
    if plan.info(extra_info::ACTION_ENDED).is_some() {
        return_to_service(observed, plan, pod, is_in_progress);
        return None;
    }
    if !is_in_progress {
        let phases = stored_phases(pod);
        if let Some(other) = phases.keys().next() {
            plan.wait(format!("operation {other}, which is on the Pod, to end"));
        } else {
            let mut patch = PodPatch::of(pod);
            patch.labels = operator::begin_labels(pod, &id, type_, false, observed.now_nanos());
            let message = format!("OperationJob {} begins {type_}", observed.name());
            patch.event = Some(("PodOpsLifecycle".to_owned(), message));
            plan.actions.push(TargetAction::Patch(patch));
        }
        return None;
    }
    if !operator::is_operation_due(pod, &id, type_, 0, 0) {
        let name = &pod.metadata.name;
        plan.wait(format!(
            "the lifecycle of the Pod to allow the operation: kubectl operating why pod/{name} says what holds it"
        ));
        return None;
    }
    let delay = job_settings::delay(&observed.job.spec);
    let delay_nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    // A delay that is raised while the action works has no effect.
    let has_begun = [extra_info::ALLOWED, extra_info::BEFORE]
        .iter()
        .any(|key| plan.info(key).is_some());
    if !has_begun && !operator::is_operation_due(pod, &id, type_, delay_nanos, observed.now_nanos())
    {
        plan.wait("spec.operationDelaySeconds to pass");
        plan.look_again_in(observed, 1);
        return None;
    }
    Some(Arc::clone(pod))
}

/// Notes that the action has ended on the Pod. The operation ends once this is stored.
pub fn end_action(observed: &ObservedJob, plan: &mut TargetPlan) {
    let now = job_settings::status_time(observed.now);
    plan.set_info(extra_info::ACTION_ENDED, now.0.to_string());
    plan.remove_info(extra_info::BEFORE);
}

fn return_to_service(
    observed: &ObservedJob,
    plan: &mut TargetPlan,
    pod: &Arc<Pod>,
    is_in_progress: bool,
) {
    let id = lifecycle_id(observed.name());
    if is_in_progress {
        let mut patch = PodPatch::of(pod);
        patch.labels = operator::finish_labels(pod, &id);
        let type_ = operation_type(observed);
        let message = format!("OperationJob {} has finished {type_}", observed.name());
        patch.event = Some((format!("{type_}OpsLifecycleFinished"), message));
        plan.actions.push(TargetAction::Patch(patch));
    } else if stored_phase(pod, &id) != Phase::Idle || !pod.is_available() {
        plan.wait("the Pod to return to service");
    } else {
        plan.succeed(observed);
    }
}

/// Removes an annotation of the job in the write that ends the operation. `is_own` says whether it is of this job.
pub fn remove_with_end(plan: &mut TargetPlan, annotation: &str, is_own: impl Fn(&Pod) -> bool) {
    let is_ended = plan.info(extra_info::ACTION_ENDED).is_some();
    for action in &mut plan.actions {
        if let TargetAction::Patch(patch) = action
            && is_ended
            && is_own(&patch.pod)
        {
            patch.annotations.insert(annotation.to_owned(), None);
        }
    }
}

/// Cancels the operation of the job on a Pod. `None` if nothing is left to cancel.
pub fn cancel_operation(observed: &ObservedJob, pod: &Arc<Pod>) -> Option<PodPatch> {
    let id = lifecycle_id(observed.name());
    let label = |family: Family| pod.label(&family.key(&id));
    label(Family::Operating)?;
    if label(Family::UndoOperationType).is_some() {
        return None; // the lifecycle carries it out
    }
    let type_ = label(Family::OperationType).unwrap_or_default();
    let mut patch = PodPatch::of(pod);
    patch.labels = operator::undo_labels(&id, type_);
    let message = format!("OperationJob {} has cancelled {type_}", observed.name());
    patch.event = Some((format!("{type_}OpsLifecycleCanceled"), message));
    Some(patch)
}

/// All labels that an operation of the job may have on a Pod.
pub fn operation_labels(observed: &ObservedJob) -> Vec<String> {
    let id = lifecycle_id(observed.name());
    let families = Family::ALL.iter();
    families.map(|family| family.key(&id)).collect()
}
