//! Reports in the conditions that a step of the plan has failed.

use jiff::Timestamp;

use super::super::plan::Shortfall;
use super::conditions::set_condition;
use super::progress;
use crate::api::collaset::{CollaSetCondition, CollaSetStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedStep {
    /// Pods could not be created.
    ScaleOut,
    /// Pods could not be deleted.
    ScaleIn,
    /// Pods could not be changed.
    Update,
    /// Pods could not enter.
    Include,
    /// Pods could not leave alive.
    Exclude,
    /// PersistentVolumeClaims could not be written.
    Pvcs,
    /// The pool of instance IDs could not be written.
    Pool,
    /// ControllerRevisions could not be written.
    Revisions,
}

impl FailedStep {
    /// The reason of the conditions, and of the Event, that report the failure (contract 2.4).
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            FailedStep::ScaleOut | FailedStep::Pvcs | FailedStep::Pool => "ScaleOutFailed",
            FailedStep::ScaleIn => "ScaleInFailed",
            FailedStep::Update | FailedStep::Revisions => "UpdateFailed",
            FailedStep::Include => "IncludeNotAllowed",
            FailedStep::Exclude => "ExcludeNotAllowed",
        }
    }
}

/// Reports a failed step in the conditions. `former` are the stored conditions: a condition that is already False keeps
/// its time. The condition of a failed update adds `shortfall.rollout`, and `Ready` adds `shortfall.down`.
pub fn report_failed_step(
    status: &mut CollaSetStatus,
    former: &[CollaSetCondition],
    (step, message): (FailedStep, &str),
    shortfall: &Shortfall,
    now: Timestamp,
) {
    let reason = step.reason();
    let type_ = match step {
        FailedStep::ScaleOut | FailedStep::Pvcs | FailedStep::Pool | FailedStep::ScaleIn => "Scale",
        FailedStep::Update | FailedStep::Revisions => "Update",
        FailedStep::Include | FailedStep::Exclude => "Ready",
    };
    // A rollout may have deleted the missing Pod, or may replace it. Then the failure concerns the update, too.
    let of_rollout = reason == "ScaleOutFailed" && is_updating(status);
    name_stall_cause(status, message);
    let is_deleted = status.conditions.iter().any(|c| c.type_ == "Terminating");
    let failed = match of_rollout {
        _ if is_deleted => vec![
            ("Terminating", "ReclaimingTargetsDeletion"),
            ("Ready", "Terminating"),
        ],
        true => vec![
            (type_, reason),
            ("Update", "UpdateFailed"),
            ("Ready", "UpdateFailed"),
        ],
        false if type_ == "Ready" => vec![("Ready", reason)],
        false => vec![(type_, reason), ("Ready", reason)],
    };
    for (type_, reason) in failed {
        let text_if = |applies, text| if applies { text } else { "" };
        let rollout = text_if(reason == "UpdateFailed", &*shortfall.rollout);
        let down = text_if(type_ == "Ready", &*shortfall.down);
        let full_message = match is_deleted {
            true => with_remaining_work(status, message),
            false => format!("{message}{rollout}{down}"),
        };
        set_condition(status, now, type_, false, reason, full_message);
        let former_condition = former.iter().find(|c| c.type_ == type_);
        let since = former_condition.filter(|c| c.status == "False");
        let since = since.and_then(|c| c.last_transition_time.clone());
        let condition = status.conditions.iter_mut().find(|c| c.type_ == type_);
        if let (Some(condition), Some(since)) = (condition, since) {
            condition.last_transition_time = Some(since);
        }
    }
}

/// Joins the message of `Terminating`, which describes the remaining work of a set that is being deleted, and the
/// failure.
fn with_remaining_work(status: &CollaSetStatus, message: &str) -> String {
    let mut conditions = status.conditions.iter();
    let terminating = conditions.find(|c| c.type_ == "Terminating");
    match terminating.map_or("", |c| &c.message) {
        "" => message.to_owned(),
        remaining_work if remaining_work.contains(message) => remaining_work.to_owned(),
        remaining_work => format!("{remaining_work}; {message}"),
    }
}

fn is_updating(status: &CollaSetStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Ready" && c.reason == "Updating")
}

/// Adds the cause to a condition `Stalled` that reports missing progress.
fn name_stall_cause(status: &mut CollaSetStatus, message: &str) {
    let mut conditions = status.conditions.iter_mut();
    if let Some(stalled) =
        conditions.find(|c| c.type_ == "Stalled" && c.reason == progress::DEADLINE_REASON)
        && let Some((deadline_text, _)) = stalled.message.split_once("): ")
    {
        stalled.message = format!("{deadline_text}): {message}");
    }
}
