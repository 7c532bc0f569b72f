//! The action Replace: asks the CollaSet of the Pod for a new Pod that takes its place, and follows it (contract 6.6).
//! The CollaSet makes the new Pod and deletes the old one through the lifecycle, so the job itself uses no lifecycle.

use std::sync::Arc;

use super::actions::{PodPatch, TargetAction};
use super::job_settings;
use super::names::{extra_info, reason};
use super::observed::ObservedJob;
use super::target_plan::{TargetPlan, read_unmanaged, recorded_pod};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::operationjob::{Action, OperationJob, Progress};
use crate::domain::collaset::SetOperation;
use crate::domain::pod::Pod;

/// Value of the label `to-replace` that a job writes. A release tells it from the label of a user or of a CollaSet.
const REQUEST_VALUE: &str = "operationjob";
/// Value of the label that Kuperator's jobs write.
const KUPERATOR_VALUE: &str = "true";

/// Why a Pod can't be replaced.
pub fn start_obstacle(observed: &ObservedJob, pod: &Pod) -> Option<(&'static str, String)> {
    if !pod.controller().is_some_and(|owner| owner.is_collaset()) {
        let message = "no CollaSet controls the Pod, so nobody would create a new Pod";
        return Some((reason::NOT_REPLACEABLE, message.to_owned()));
    }
    let set = pod.controller().map(|owner| &*owner.uid);
    let is_followed = is_in_pair(pod) || new_pod_of(observed, &pod.metadata.uid, set).is_some();
    (pod.is_terminating() && !is_followed).then(|| {
        let message = "the Pod is being deleted already";
        (reason::POD_NOT_FOUND, message.to_owned())
    })
}

/// Continues the replacement of a target.
pub fn continue_replace(observed: &ObservedJob, plan: &mut TargetPlan) {
    plan.remove_info(extra_info::NOT_ALLOWED_TO_REPLACE_NEW_POD);
    let origin = recorded_pod(observed, plan).cloned();
    let origin_uid = plan.info(extra_info::POD_UID).unwrap_or_default();
    let set = plan.info(extra_info::COLLASET_UID);
    let new_pod = new_pod_of(observed, origin_uid, set).cloned();
    let new_pod = new_pod.or_else(|| paired_pod(observed, origin.as_deref()?));
    if let Some(id) = origin.as_ref().and_then(|pod| pod.label(keys::INSTANCE_ID)) {
        plan.set_info(extra_info::INSTANCE_ID, id);
    }
    if let Some(new_pod) = &new_pod {
        note_new_pod(plan, new_pod);
    }
    match origin {
        Some(origin) => follow_origin(observed, plan, &origin, new_pod.as_deref()),
        None => follow_new_pod(observed, plan, new_pod),
    }
}

/// The origin exists: asks for its replacement, and says what the replacement waits for.
fn follow_origin(
    observed: &ObservedJob,
    plan: &mut TargetPlan,
    origin: &Arc<Pod>,
    new_pod: Option<&Pod>,
) {
    if let Some(patch) = take_over_patch(origin) {
        plan.actions.push(TargetAction::Patch(patch));
    }
    if let Some(name) = origin.label(keys::REPLACE_PAIR_ORIGIN_NAME) {
        let message = format!(
            "the Pod is the new Pod of a replacement of Pod {name}: it is replaced once that replacement is over"
        );
        return plan.set_info(extra_info::NOT_ALLOWED_TO_REPLACE_NEW_POD, message);
    }
    if !is_in_pair(origin) && new_pod.is_none() {
        if origin.is_terminating() {
            let message = "the Pod is being deleted already, and no new Pod was asked for";
            return plan.fail(observed, reason::POD_NOT_FOUND, message);
        }
        if !origin.controller().is_some_and(|owner| owner.is_collaset()) {
            let message = "the Pod has lost its CollaSet, so nobody creates a new Pod";
            return plan.fail(observed, reason::NOT_REPLACEABLE, message);
        }
        return ask_for_replacement(observed, plan, origin);
    }
    plan.wait(describe_wait(observed, origin, new_pod));
}

fn ask_for_replacement(observed: &ObservedJob, plan: &mut TargetPlan, origin: &Arc<Pod>) {
    let delay = job_settings::delay(&observed.job.spec);
    if let Some(start) = &plan.detail.start_time {
        let due = job_settings::later(start, delay);
        if due > observed.now {
            plan.wait("spec.operationDelaySeconds to pass");
            return plan.look_again_at(due);
        }
    }
    if let Some(set) = observed.set_of(origin)
        && let Some(wait) = set_wait(set, origin)
    {
        return plan.wait(wait);
    }
    let mut patch = PodPatch::of(origin);
    let request = Some(REQUEST_VALUE.to_owned());
    patch.labels.0.insert(keys::TO_REPLACE.to_owned(), request);
    plan.actions.push(TargetAction::Patch(patch));
}

/// The origin is gone: the new Pod must become available.
fn follow_new_pod(observed: &ObservedJob, plan: &mut TargetPlan, new_pod: Option<Arc<Pod>>) {
    let new_pod = new_pod.or_else(|| known_new_pod(observed, plan));
    if let Some(new_pod) = new_pod {
        note_new_pod(plan, &new_pod);
        let name = &new_pod.metadata.name;
        if new_pod.is_available() {
            return succeed_without_origin(observed, plan);
        }
        return plan.wait(format!("the new Pod {name} to be available"));
    }
    let known = plan.info(extra_info::NEW_INSTANCE_ID);
    let Some((set, new_id)) = plan.info(extra_info::COLLASET).zip(known) else {
        let message =
            "the Pod is gone or not managed any more, and no new Pod was created in its place";
        return plan.fail(observed, reason::POD_NOT_FOUND, message);
    };
    let uid = plan.info(extra_info::COLLASET_UID);
    let mut sets = observed.sets.iter();
    let exists = sets.any(|set| set.metadata.uid.as_deref() == uid && !is_deleting(set));
    if !exists {
        let message = format!("the new Pod is gone, and so is CollaSet {set}");
        return plan.fail(observed, reason::POD_NOT_FOUND, message);
    }
    let ids = [Some(new_id), plan.info(extra_info::INSTANCE_ID)];
    let is_wanted = observed
        .instance_ids
        .get(set)
        .is_none_or(|pool| ids.into_iter().flatten().any(|id| pool.contains(id)));
    if !is_wanted {
        let message = format!("the new Pod is gone, and CollaSet {set} was scaled in");
        return plan.fail(observed, reason::POD_NOT_FOUND, message);
    }
    let message = format!("CollaSet {set} to create the new Pod again");
    plan.wait(message);
    plan.look_again_in(observed, 5);
}

/// The new Pod serves, and the origin is not among the managed Pods: the target succeeds if a live read does not find the
/// origin. An origin that was taken out of management still has the request of the job.
fn succeed_without_origin(observed: &ObservedJob, plan: &mut TargetPlan) {
    let origin = match read_unmanaged(observed, plan) {
        Ok(origin) => origin,
        Err(read) => return plan.actions.push(*read),
    };
    // Kuperator has stored no UID. Another Pod of this name does not have its finalizer.
    let has_uid = plan.info(extra_info::POD_UID).is_some();
    let origin = origin.filter(|pod| has_uid || has_kuperator_finalizer(pod));
    let Some(origin) = origin else {
        return plan.succeed(observed);
    };
    if !origin.is_terminating() {
        let message = "the new Pod serves, but the old Pod still exists and is not managed any more: delete it";
        return plan.fail(observed, reason::NOT_MANAGED, message);
    }
    if let Some(patch) = take_over_patch(&origin) {
        plan.actions.push(TargetAction::Patch(patch));
    }
    plan.wait("the Pod, which is being deleted, to be gone");
}

/// The Pod that this CollaSet has created to replace the Pod with this UID. One that lives comes before one that
/// terminates, and a younger one before an older one. Somebody else may write the annotation on another Pod.
fn new_pod_of<'a>(
    observed: &'a ObservedJob,
    origin_uid: &str,
    set_uid: Option<&str>,
) -> Option<&'a Arc<Pod>> {
    let created = observed.pods.replacing(origin_uid).iter().filter(|pod| {
        let owner = pod.controller().filter(|owner| owner.is_collaset());
        owner.is_some_and(|owner| Some(&*owner.uid) == set_uid)
    });
    created.max_by_key(|pod| (!pod.is_terminating(), &pod.metadata.creation_timestamp))
}

/// The new Pod of the origin's pair, if the pair was opened by a version that does not write the annotation.
fn paired_pod(observed: &ObservedJob, origin: &Pod) -> Option<Arc<Pod>> {
    let owner = origin.controller()?;
    let new_id = origin.label(keys::REPLACE_PAIR_NEW_ID)?;
    let mut pods = observed.pods.of_instance(&owner.uid, new_id).iter();
    let half =
        pods.find(|pod| pod.label(keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&origin.metadata.name));
    half.cloned()
}

/// The new Pod that was noted, or the Pod that its CollaSet has created since under the instance ID of one of both.
/// Kuperator has noted only the name.
fn known_new_pod(observed: &ObservedJob, plan: &TargetPlan) -> Option<Arc<Pod>> {
    if plan.info(extra_info::NEW_INSTANCE_ID).is_none() {
        let noted = observed.pods.named(plan.info(extra_info::NEW_POD)?);
        return noted.filter(|pod| !pod.is_terminating()).cloned();
    }
    let set_uid = plan.info(extra_info::COLLASET_UID)?;
    let origin_uid = plan.info(extra_info::POD_UID);
    let ids = [extra_info::NEW_INSTANCE_ID, extra_info::INSTANCE_ID];
    let pods = ids.iter().filter_map(|key| plan.info(key));
    let pods = pods.flat_map(|id| observed.pods.of_instance(set_uid, id));
    let mut pods = pods.filter(|pod| Some(&*pod.metadata.uid) != origin_uid);
    pods.find(|pod| !pod.is_terminating()).cloned()
}

fn note_new_pod(plan: &mut TargetPlan, new_pod: &Pod) {
    plan.set_info(extra_info::NEW_POD, &*new_pod.metadata.name);
    plan.set_info(extra_info::NEW_POD_UID, &*new_pod.metadata.uid);
    if let Some(id) = new_pod.label(keys::INSTANCE_ID) {
        plan.set_info(extra_info::NEW_INSTANCE_ID, id);
    }
    if let Some(owner) = new_pod.controller() {
        plan.set_info(extra_info::COLLASET, &*owner.name);
        plan.set_info(extra_info::COLLASET_UID, &*owner.uid);
    }
}

/// Whether somebody has asked for the replacement of a Pod.
fn is_in_pair(pod: &Pod) -> bool {
    let labels = [
        keys::TO_REPLACE,
        keys::REPLACED_BY_REPLACE_UPDATE,
        keys::REPLACE_PAIR_NEW_ID,
    ];
    labels.iter().any(|key| pod.label(key).is_some())
}

/// Why nobody should be asked to replace a Pod now.
fn set_wait(set: &CollaSet, origin: &Pod) -> Option<String> {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    if is_deleting(set) {
        return Some(format!("CollaSet {name}, which is being deleted"));
    }
    if SetOperation::ScaleIn.is_in_progress(origin) {
        return Some(format!("CollaSet {name}, which scales the Pod in"));
    }
    set.spec.paused.then(|| {
        format!("CollaSet {name}, which is paused: set its spec.paused to false to replace the Pod")
    })
}

fn describe_wait(observed: &ObservedJob, origin: &Pod, new_pod: Option<&Pod>) -> String {
    let set = observed.set_of(origin);
    if let Some(new_pod) = new_pod {
        let (name, origin) = (&new_pod.metadata.name, &origin.metadata.name);
        if new_pod.label(keys::TO_DELETE).is_some() || new_pod.is_terminating() {
            return format!(
                "the deletion of the new Pod {name}, because its replacement was withdrawn: kubectl operating why \
                 pod/{name} says what holds it"
            );
        }
        return match new_pod.is_available() {
            true => format!(
                "the deletion of the Pod: kubectl operating why pod/{origin} says what holds it"
            ),
            false => format!("the new Pod {name} to be available"),
        };
    }
    if let Some(wait) = set.and_then(|set| set_wait(set, origin)) {
        return wait;
    }
    let name = set.and_then(|set| set.metadata.name.as_deref());
    let name = name.unwrap_or_default();
    format!("CollaSet {name} to create the new Pod: its conditions say what holds it")
}

/// Takes over a replacement that Kuperator's job has asked for: removes the finalizer by which it held the Pod, and
/// marks the request as one of a job.
fn take_over_patch(pod: &Arc<Pod>) -> Option<PodPatch> {
    if !has_kuperator_finalizer(pod) {
        return None;
    }
    let mut patch = PodPatch::of(pod);
    patch.remove_finalizers = vec![keys::REPLACE_PROTECTED_FINALIZER];
    if pod.label(keys::TO_REPLACE) == Some(KUPERATOR_VALUE) && !pod.is_terminating() {
        let request = Some(REQUEST_VALUE.to_owned());
        patch.labels.0.insert(keys::TO_REPLACE.to_owned(), request);
    }
    Some(patch)
}

/// Withdraws the request for the replacement of a Pod, unless somebody else wants it. `None` if nothing is to withdraw.
pub fn release_patch(observed: &ObservedJob, pod: &Arc<Pod>) -> Option<PodPatch> {
    let mut patch = PodPatch::of(pod);
    let is_held = has_kuperator_finalizer(pod);
    if is_held {
        patch.remove_finalizers = vec![keys::REPLACE_PROTECTED_FINALIZER];
    }
    let is_of_job = match pod.label(keys::TO_REPLACE) {
        Some(REQUEST_VALUE) => true,
        Some(KUPERATOR_VALUE) => is_held,
        _ => false,
    };
    let is_of_update = pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some();
    let mut others = observed.other_jobs.iter();
    let is_wanted = others.any(|other| wants_replacement(other, pod));
    if is_of_job && !is_of_update && !is_wanted {
        patch.labels.0.insert(keys::TO_REPLACE.to_owned(), None);
    }
    (is_held || !patch.labels.is_empty()).then_some(patch)
}

/// Whether a job still wants the replacement of a Pod.
fn wants_replacement(job: &OperationJob, pod: &Pod) -> bool {
    let is_replace = job.spec.action.as_ref().map(|action| &*action.0) == Some(Action::REPLACE);
    if !is_replace || job.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let mut targets = job.spec.targets.iter();
    if !targets.any(|target| target.name == pod.metadata.name) {
        return false;
    }
    let details = job.status.iter().flat_map(|status| &status.target_details);
    let mut own = details.filter(|detail| detail.name == pod.metadata.name);
    own.any(|detail| {
        let uid = detail.extra_info.get(extra_info::POD_UID);
        let is_same = uid.is_none_or(|uid| *uid == pod.metadata.uid);
        is_same && detail.progress == Some(Progress::Processing)
    })
}

/// Whether a job of Kuperator holds the Pod.
pub fn has_kuperator_finalizer(pod: &Pod) -> bool {
    let mut finalizers = pod.metadata.finalizers.iter();
    finalizers.any(|finalizer| finalizer == keys::REPLACE_PROTECTED_FINALIZER)
}

fn is_deleting(set: &CollaSet) -> bool {
    set.metadata.deletion_timestamp.is_some()
}
