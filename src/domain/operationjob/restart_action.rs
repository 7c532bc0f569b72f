//! The action Restart: restarts containers of a Pod in place, in the lifecycle. The containers are noted in the status
//! before anything is done, so that after a crash of the server they are restarted exactly once.

use std::sync::Arc;

use super::actions::{PodPatch, TargetAction};
use super::job_settings;
use super::lifecycle_action;
use super::names::{extra_info, reason};
use super::observed::ObservedJob;
use super::places::MAX_NOTE;
use super::restart::before::{self, Before};
use super::restart::containers::choose;
use super::restart::former_images;
use super::restart::image_patches::{self, NoRestartPatch};
use super::restart::recreate_request::{self, RequestState};
use super::restart::settings::RestartMethod;
use super::target_plan::TargetPlan;
use crate::api::keys;
use crate::api::operationjob::Target;
use crate::domain::pod::{Container, Pod};

/// Seconds between two reads of a ContainerRecreateRequest.
const READ_INTERVAL_SECONDS: i64 = 2;
/// The remedies if no method can be used.
const REMEDY: &str =
    "replace or delete the Pod, or install OpenKruise with its daemon on every node";

/// Why containers of this Pod can't be restarted.
pub fn start_obstacle(target: &Target, pod: &Pod) -> Option<(&'static str, String)> {
    if let Some(obstacle) = lifecycle_action::start_obstacle(pod) {
        return Some(obstacle);
    }
    match choose(target, pod) {
        Ok(chosen) => {
            let problem = note_containers(pod, &chosen).err()?;
            Some((reason::RESTART_NOT_SUPPORTED, problem))
        }
        Err(error) => Some((reason::CONTAINER_NOT_FOUND, error.message)),
    }
}

/// The note of the containers before the restart. An error if it is too large for the status.
fn note_containers(pod: &Pod, chosen: &[&Container]) -> Result<String, String> {
    let note = Before::from_pod(pod, chosen).to_json();
    let bytes = note.len();
    let problem = || {
        format!(
            "the names and images of the containers have {bytes} bytes with their IDs, and the status of the job has \
             room for {MAX_NOTE}: create another job that names fewer of them in containers"
        )
    };
    (bytes <= MAX_NOTE).then_some(note).ok_or_else(problem)
}

/// Continues the restart of a target.
pub fn continue_restart(observed: &ObservedJob, target: &Target, plan: &mut TargetPlan) {
    let Some(pod) = lifecycle_action::pod_to_act_on(observed, plan) else {
        let is_own = |pod: &Pod| former_images::read(observed.uid(), pod).is_some();
        return lifecycle_action::remove_with_end(plan, keys::FORMER_IMAGES, is_own);
    };
    let chosen = match choose(target, &pod) {
        Ok(chosen) => chosen,
        Err(error) => return plan.fail(observed, reason::CONTAINER_NOT_FOUND, error.message),
    };
    let Some(before) = plan.info(extra_info::BEFORE).and_then(Before::from_json) else {
        return begin_restart(observed, plan, &pod, &chosen);
    };
    match plan.info(extra_info::METHOD).and_then(RestartMethod::parse) {
        Some(RestartMethod::ImageReference) => {
            change_images(observed, plan, &pod, (&chosen, &before));
        }
        _ => follow_request(observed, plan, &pod, (&chosen, &before)),
    }
}

/// Chooses the method, and notes the containers.
fn begin_restart(
    observed: &ObservedJob,
    plan: &mut TargetPlan,
    pod: &Arc<Pod>,
    chosen: &[&Container],
) {
    let settings = &observed.restart;
    let annotations = observed.job.metadata.annotations.as_ref();
    let asked = annotations.and_then(|annotations| annotations.get(keys::RESTART_BY));
    let wanted = match asked.map(|asked| RestartMethod::parse(asked).ok_or(asked)) {
        None => settings.method,
        Some(Ok(method)) => method,
        Some(Err(asked)) => {
            let message = format!(
                "annotation {}: {asked:?} is no method: use ContainerRecreateRequest, ImageReference or auto",
                keys::RESTART_BY
            );
            return plan.fail(observed, reason::RESTART_NOT_SUPPORTED, message);
        }
    };
    let by_request = match (wanted, &settings.request_api) {
        (RestartMethod::ImageReference, _) => Err(String::new()),
        (_, None) => {
            plan.actions.push(TargetAction::DiscoverRequests);
            plan.wait("the API server to say whether it serves ContainerRecreateRequests");
            return plan.look_again_in(observed, 1);
        }
        (_, Some(None)) => Err("the cluster has no ContainerRecreateRequests of OpenKruise".to_owned()),
        (_, Some(Some(_))) if recreate_request::is_possible(pod, chosen) => Ok(()),
        (_, Some(Some(_))) => Err(
            "a ContainerRecreateRequest restarts only containers of spec.containers that have started and whose \
             restartPolicy is Always"
                .to_owned(),
        ),
    };
    let method = match (by_request, wanted) {
        (Ok(()), _) => RestartMethod::ContainerRecreateRequest,
        (Err(problem), RestartMethod::ContainerRecreateRequest) => {
            let message = format!(
                "{problem}: {REMEDY}, or create another job with the annotation {}: ImageReference",
                keys::RESTART_BY
            );
            return plan.fail(observed, reason::RESTART_NOT_SUPPORTED, message);
        }
        (Err(_), _) => match image_patches::restart_patch(pod, chosen) {
            Ok(_) => RestartMethod::ImageReference,
            Err(problem) => return refuse_images(observed, plan, problem),
        },
    };
    let note = match note_containers(pod, chosen) {
        Ok(note) => note,
        Err(problem) => return plan.fail(observed, reason::RESTART_NOT_SUPPORTED, problem),
    };
    if note.len() > plan.note_room {
        return plan.wait("room in the status for its containers: other targets must end first");
    }
    plan.set_info(extra_info::METHOD, method.as_str());
    plan.set_info(extra_info::BEFORE, note);
    plan.wait("the containers to restart");
}

fn refuse_images(observed: &ObservedJob, plan: &mut TargetPlan, problem: NoRestartPatch) {
    match problem {
        NoRestartPatch::NotYet(sentence) => {
            plan.wait(sentence);
            plan.look_again_in(observed, READ_INTERVAL_SECONDS);
        }
        NoRestartPatch::NotSupported(sentence) => {
            plan.fail(observed, reason::RESTART_NOT_SUPPORTED, sentence);
        }
    }
}

/// Restarts by a ContainerRecreateRequest, and follows it.
fn follow_request(
    observed: &ObservedJob,
    plan: &mut TargetPlan,
    pod: &Arc<Pod>,
    (chosen, before): (&[&Container], &Before),
) {
    let uid = &pod.metadata.uid;
    let name = recreate_request::name(observed.uid(), uid);
    // The request was seen, so it was created. OpenKruise deletes it some time after its end.
    let was_created = plan.info(extra_info::REQUEST).is_some();
    if plan.info(extra_info::REQUEST_ENDED).is_some() {
        plan.wait("the restarted containers to be ready");
        if before::is_restarted(before, pod) {
            lifecycle_action::end_action(observed, plan);
        }
        return;
    }
    plan.wait(format!(
        "ContainerRecreateRequest {name} of OpenKruise to be completed"
    ));
    plan.look_again_in(observed, READ_INTERVAL_SECONDS);
    let Some(state) = observed.recreate_requests.get(uid) else {
        return plan.actions.push(TargetAction::ReadRequest(uid.clone()));
    };
    use RequestState::{Failed, InProgress, Succeeded};
    if matches!(state, Some(InProgress | Succeeded | Failed(_))) {
        plan.set_info(extra_info::REQUEST, &*name);
    }
    match state {
        None if before::is_restarted(before, pod) => lifecycle_action::end_action(observed, plan),
        None if was_created => {
            let message = format!("ContainerRecreateRequest {name} was deleted before its end");
            plan.fail(observed, reason::RESTART_FAILED, message);
        }
        None => plan.actions.push(TargetAction::CreateRequest {
            pod: Arc::clone(pod),
            containers: chosen
                .iter()
                .map(|container| container.name.clone())
                .collect(),
            deadline_seconds: remaining_seconds(observed, plan),
        }),
        Some(RequestState::InProgress) => {}
        Some(RequestState::Succeeded) if before::is_restarted(before, pod) => {
            lifecycle_action::end_action(observed, plan);
        }
        Some(RequestState::Succeeded) => {
            plan.set_info(extra_info::REQUEST_ENDED, "true");
            plan.wait("the restarted containers to be ready");
        }
        Some(RequestState::Failed(message)) => {
            let message = format!("OpenKruise could not restart the containers: {message}");
            plan.fail(observed, reason::RESTART_FAILED, message);
        }
        Some(RequestState::Refused(message)) => {
            let message = format!("OpenKruise does not take the request: {message}");
            plan.fail(observed, reason::RESTART_FAILED, message);
        }
        Some(RequestState::NoDaemon(message)) => {
            leave_request(observed, plan, pod, (chosen, message));
        }
    }
}

/// No daemon has taken up the request: goes on with the other method if the job or the flag leaves the choice.
fn leave_request(
    observed: &ObservedJob,
    plan: &mut TargetPlan,
    pod: &Arc<Pod>,
    (chosen, problem): (&[&Container], &str),
) {
    let annotations = observed.job.metadata.annotations.as_ref();
    let asked = annotations.and_then(|annotations| annotations.get(keys::RESTART_BY));
    let wanted = asked.and_then(|asked| RestartMethod::parse(asked));
    if wanted.unwrap_or(observed.restart.method) != RestartMethod::Auto {
        let message = format!(
            "OpenKruise can't restart the containers ({problem}): {REMEDY}, or create another job with the annotation \
             {}: ImageReference",
            keys::RESTART_BY
        );
        return plan.fail(observed, reason::RESTART_NOT_SUPPORTED, message);
    }
    match image_patches::restart_patch(pod, chosen) {
        Ok(_) => plan.set_info(extra_info::METHOD, RestartMethod::ImageReference.as_str()),
        Err(refusal) => refuse_images(observed, plan, refusal),
    }
}

/// Restarts by another reference to the same images.
fn change_images(
    observed: &ObservedJob,
    plan: &mut TargetPlan,
    pod: &Arc<Pod>,
    (chosen, before): (&[&Container], &Before),
) {
    if before::is_restarted(before, pod) {
        return lifecycle_action::end_action(observed, plan);
    }
    plan.wait("the kubelet to restart the containers");
    if let Some(trouble) = before::trouble(before, pod).filter(|_| before::is_patched(before, pod))
    {
        return plan.fail(observed, reason::RESTART_FAILED, trouble);
    }
    // Somebody else may have changed the image of a container meanwhile. That restarts the container, too.
    let left: Vec<&Container> = chosen
        .iter()
        .filter(|container| before::has_former_run(before, pod, container))
        .copied()
        .collect();
    if left.is_empty() {
        return;
    }
    match image_patches::restart_patch(pod, &left) {
        Ok(changes) => {
            let mut patch = PodPatch::of(pod);
            patch.spec = changes.get("spec").cloned();
            let note = former_images::add(observed.uid(), pod, &left);
            let key = keys::FORMER_IMAGES.to_owned();
            patch.annotations.insert(key, Some(note));
            plan.actions.push(TargetAction::Patch(patch));
        }
        Err(problem) => refuse_images(observed, plan, problem),
    }
}

fn remaining_seconds(observed: &ObservedJob, plan: &TargetPlan) -> i64 {
    let deadline = job_settings::deadline(&observed.job.spec);
    let end = plan.detail.start_time.as_ref();
    let end = end.map(|start| job_settings::later(start, deadline));
    end.map_or(0, |end| end.duration_since(observed.now).as_secs())
}

/// Puts the images back that the Pod proves, if the containers do not all run again with the new reference. The kubelet may
/// find only later that it can't pull a reference. `None` if nothing is to put back.
pub fn restore_patch(
    observed: &ObservedJob,
    plan: &TargetPlan,
    pod: &Arc<Pod>,
) -> Option<PodPatch> {
    let former = former_images::read(observed.uid(), pod)?;
    if pod.is_terminating() {
        return None;
    }
    let mut patch = PodPatch::of(pod);
    let key = keys::FORMER_IMAGES.to_owned();
    patch.annotations.insert(key, None);
    if !has_restarted(plan, pod) {
        let spec = image_patches::restore_patch(&former, pod);
        patch.spec = spec.and_then(|patch| patch.get("spec").cloned());
    }
    Some(patch)
}

/// Whether the status says that the job has changed images which the Pod does not prove, and which therefore stay. An
/// earlier build did not write the proof.
pub fn has_unproven_images(observed: &ObservedJob, plan: &TargetPlan, pod: &Pod) -> bool {
    let method = plan.info(extra_info::METHOD).and_then(RestartMethod::parse);
    let before = plan.info(extra_info::BEFORE).and_then(Before::from_json);
    method == Some(RestartMethod::ImageReference)
        && !pod.is_terminating()
        && !has_restarted(plan, pod)
        && former_images::read(observed.uid(), pod).is_none()
        && before.is_some_and(|before| image_patches::is_changed(&before, pod))
}

fn has_restarted(plan: &TargetPlan, pod: &Pod) -> bool {
    let before = plan.info(extra_info::BEFORE).and_then(Before::from_json);
    plan.info(extra_info::ACTION_ENDED).is_some()
        || before.is_some_and(|before| before::is_restarted(&before, pod))
}

/// Deletes the ContainerRecreateRequest of a target that has failed. `None` if there is none.
pub fn delete_request(observed: &ObservedJob, plan: &TargetPlan) -> Option<TargetAction> {
    let method = plan.info(extra_info::METHOD).and_then(RestartMethod::parse);
    if method != Some(RestartMethod::ContainerRecreateRequest) {
        return None;
    }
    plan.info(extra_info::BEFORE)?; // nothing was created before this was stored
    let uid = plan.info(extra_info::POD_UID)?;
    match observed.recreate_requests.get(uid) {
        None => Some(TargetAction::ReadRequest(uid.to_owned())),
        Some(None | Some(RequestState::Refused(_))) => None,
        Some(Some(_)) => Some(TargetAction::DeleteRequest(uid.to_owned())),
    }
}
