//! The action of another program, `<domain>/<name>`. The job takes the Pod through the lifecycle, says in `extraInfo`
//! since when the program may work on the Pod, and waits for the program's answer: an annotation on the Pod.

use std::sync::Arc;

use serde::Deserialize;

use super::actions::PodPatch;
use super::job_settings;
use super::lifecycle_action;
use super::names::{extra_info, reason};
use super::observed::ObservedJob;
use super::target_plan::TargetPlan;
use crate::api::keys;
use crate::api::operationjob::Action;
use crate::domain::pod::Pod;

/// The value of the annotation [`keys::ACTION_RESULT`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ActionResult {
    /// UID of the job.
    job: String,
    /// `Succeeded` or `Failed`.
    progress: String,
    message: String,
}

/// Continues the action of another program.
pub fn continue_action(observed: &ObservedJob, action: &Action, plan: &mut TargetPlan) {
    let Some(pod) = lifecycle_action::pod_to_act_on(observed, plan) else {
        if plan.info(extra_info::ACTION_ENDED).is_none() {
            plan.remove_info(extra_info::ALLOWED); // somebody has undone the operation
        }
        let is_own = |pod: &Pod| read_result(observed, pod).is_some();
        return lifecycle_action::remove_with_end(plan, keys::ACTION_RESULT, is_own);
    };
    if plan.info(extra_info::ALLOWED).is_none() {
        let now = job_settings::status_time(observed.now);
        plan.set_info(extra_info::ALLOWED, now.0.to_string());
    }
    match read_result(observed, &pod) {
        Some(result) if result.progress == "Succeeded" => {
            lifecycle_action::end_action(observed, plan);
        }
        Some(result) if result.progress == "Failed" => {
            let message = match result.message.is_empty() {
                true => format!("{action} failed, and its program did not say why"),
                false => result.message,
            };
            plan.fail(observed, reason::ACTION_FAILED, message);
        }
        Some(result) => plan.wait(format!(
            "the program of {action} to correct its answer: progress must be Succeeded or Failed, not {:?}",
            result.progress.chars().take(40).collect::<String>()
        )),
        None => plan.wait(format!(
            "the program of {action} to answer by the annotation {} of the Pod",
            keys::ACTION_RESULT
        )),
    }
}

/// The answer to this job. The answer to another job, or a value that can't be read, is none.
fn read_result(observed: &ObservedJob, pod: &Pod) -> Option<ActionResult> {
    let text = pod.annotation(keys::ACTION_RESULT)?;
    let result: ActionResult = serde_json::from_str(text).ok()?;
    (result.job == observed.uid()).then_some(result)
}

/// Cancels the operation and removes the answer. `None` if neither is there.
pub fn cancel_patch(observed: &ObservedJob, pod: &Arc<Pod>) -> Option<PodPatch> {
    let has_result = read_result(observed, pod).is_some();
    let cancel = lifecycle_action::cancel_operation(observed, pod);
    let mut patch = match (cancel, has_result) {
        (Some(patch), _) => patch,
        (None, true) => PodPatch::of(pod),
        (None, false) => return None,
    };
    if has_result {
        patch
            .annotations
            .insert(keys::ACTION_RESULT.to_owned(), None);
    }
    Some(patch)
}
