//! What the stored status of an OperationJob says about a target.

use jiff::Timestamp;

use crate::api::operationjob::{OperationJob, Progress, TargetDetail};
use crate::api::validation::truncate_value;
use crate::domain::operationjob::job_settings;
use crate::domain::operationjob::names::extra_info;

/// Most characters of a text from the status. Other programs write some of these texts.
const MAX_TEXT: usize = 500;

/// Name of a job.
pub fn job_name(job: &OperationJob) -> &str {
    job.metadata.name.as_deref().unwrap_or_default()
}

/// `spec.action` of a job. Empty if it is missing.
pub fn action_of(job: &OperationJob) -> &str {
    let action = job.spec.action.as_ref();
    action.map_or("", |action| &action.0)
}

/// A text from the status, without its end if it is too long.
pub fn bounded_text(text: &str) -> String {
    truncate_value(text, MAX_TEXT).into_owned()
}

/// What an unfinished target waits for, as a clause. `None` if the status does not say it.
pub fn target_wait(detail: &TargetDetail) -> Option<String> {
    let info = |key| detail.extra_info.get(key).map(String::as_str);
    if let Some(wait) = info(extra_info::WAITING) {
        return Some(bounded_text(wait));
    }
    let other = info(extra_info::NOT_ALLOWED_TO_REPLACE_NEW_POD)?;
    let other = bounded_text(other);
    Some(format!("the end of another replacement: {other}"))
}

/// When a target fails unless it is finished. `None` if it has not begun, or is finished.
pub fn target_deadline(job: &OperationJob, detail: &TargetDetail) -> Option<Timestamp> {
    let start = detail.start_time.as_ref();
    let start = start.filter(|_| detail.progress == Some(Progress::Processing))?;
    Some(job_settings::later(
        start,
        job_settings::deadline(&job.spec),
    ))
}

/// Whether the job still has to withdraw what it asked of the Pod of this target: the target has failed, or the job is
/// being deleted before the target is finished. A target that has not begun has asked for nothing.
pub fn is_to_release(job: &OperationJob, detail: &TargetDetail) -> bool {
    let is_released = detail.extra_info.get(extra_info::RELEASED);
    let is_released = is_released.is_some_and(|value| value == "true");
    match &detail.progress {
        Some(Progress::Failed) => !is_released,
        Some(Progress::Processing) => job.metadata.deletion_timestamp.is_some(),
        _ => false,
    }
}
