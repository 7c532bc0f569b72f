//! The status of a job, and the Events about its transitions (contract 1.5).

use std::collections::BTreeMap;

use super::conditions;
use super::job_settings;
use super::names::{extra_info, reason};
use super::observed::ObservedJob;
use super::target_plan::TargetPlan;
use crate::api::operationjob::{Action, OperationJob, OperationJobStatus, Progress, TargetDetail};
use crate::domain::messages;

/// Most names in one Event.
const MAX_NAMES: usize = 3;

/// An Event on the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// Whether its type is Warning.
    pub warning: bool,
    /// The reason.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// The stored entries of `targetDetails` by name. Kuperator may have stored them in another order.
pub fn stored_details(job: &OperationJob) -> BTreeMap<&str, &TargetDetail> {
    let details = job.status.iter().flat_map(|status| &status.target_details);
    details.map(|detail| (&*detail.name, detail)).collect()
}

/// Whether a job with this progress is finished.
pub fn is_finished(progress: Option<&Progress>) -> bool {
    progress.is_some_and(Progress::is_final)
}

/// The wanted status. A stored progress that is final, and its end time, stay.
pub fn wanted_status(observed: &ObservedJob, plans: &[TargetPlan]) -> OperationJobStatus {
    let job = &observed.job;
    let now = job_settings::status_time(observed.now);
    let mut status = job.status.clone().unwrap_or_default();
    status.observed_generation = job.metadata.generation.unwrap_or(0);
    status.start_time.get_or_insert_with(|| now.clone());
    let count = |progress: &Progress| {
        let counted = plans
            .iter()
            .filter(|plan| plan.detail.progress.as_ref() == Some(progress));
        i32::try_from(counted.count()).unwrap_or(i32::MAX)
    };
    let (failed, succeeded) = (count(&Progress::Failed), count(&Progress::Succeeded));
    let pending = count(&Progress::Pending);
    status.total_pod_count = i32::try_from(plans.len()).unwrap_or(i32::MAX);
    status.failed_pod_count = failed;
    status.succeeded_pod_count = succeeded;
    status.target_details = plans.iter().map(|plan| plan.detail.clone()).collect();
    let unfinished = plans.iter().filter(|plan| plan.is_due()).count();
    conditions::update_conditions(observed.now, unfinished, &mut status);
    if !is_finished(status.progress.as_ref()) {
        status.progress = Some(if pending == status.total_pod_count && !plans.is_empty() {
            Progress::Pending
        } else if failed + succeeded < status.total_pod_count {
            Progress::Processing
        } else if failed > 0 {
            Progress::Failed
        } else {
            Progress::Succeeded
        });
        if is_finished(status.progress.as_ref()) {
            status.end_time.get_or_insert(now);
        }
    }
    status
}

/// The Event about targets that this plan releases although their images stay changed.
pub fn release_reports(plans: &[TargetPlan]) -> Vec<JobEvent> {
    let kept = plans.iter().filter(|plan| plan.kept_images.is_some());
    let names: Vec<&str> = kept.clone().map(|plan| &*plan.detail.name).collect();
    let first = kept.filter_map(|plan| plan.kept_images.as_ref()).next();
    let report = first.map(|why| JobEvent {
        warning: true,
        reason: "ImagesNotPutBack",
        message: format!(
            "{} ({}): the images that a restart has changed were not put back; the first: {why}",
            messages::count_pods(names.len()),
            messages::list_names(&names, MAX_NAMES)
        ),
    });
    report.into_iter().collect()
}

/// The Events about what this plan changes in the status. Many targets in one step are one Event.
pub fn transition_events(observed: &ObservedJob, plans: &[TargetPlan]) -> Vec<JobEvent> {
    let stored = stored_details(&observed.job);
    let is_replace = observed.job.spec.action.as_ref().map(|a| &*a.0) == Some(Action::REPLACE);
    let names = |is_new: &dyn Fn(&TargetPlan, Option<&TargetDetail>) -> bool| {
        let new = plans.iter().filter(|plan| {
            let former = stored.get(&*plan.detail.name).copied();
            is_new(plan, former)
        });
        new.map(|plan| &*plan.detail.name).collect::<Vec<&str>>()
    };
    let begun = names(&|plan, former| {
        plan.detail.progress == Some(Progress::Processing)
            && former.is_none_or(|former| former.progress != plan.detail.progress)
    });
    let replaced = names(&|plan, former| {
        let new_pod = plan.info(extra_info::NEW_POD);
        let known = former.and_then(|former| former.extra_info.get(extra_info::NEW_POD));
        new_pod.is_some() && new_pod != known.map(String::as_str)
    });
    let failed_with = |of_deadline: bool| {
        names(&|plan, former| {
            let error = plan.detail.error.as_ref();
            let is_deadline = error.is_some_and(|e| e.reason == reason::DEADLINE_EXCEEDED);
            plan.detail.progress == Some(Progress::Failed)
                && former.is_none_or(|former| former.progress != plan.detail.progress)
                && is_deadline == of_deadline
        })
    };
    let action = observed.job.spec.action.as_ref();
    let action = action.map_or("", |action| &action.0);
    let begin_reason = if is_replace {
        "ReplaceOriginPod"
    } else {
        "OpsAction"
    };
    let texts = [
        (begin_reason, false, begun, format!("begun to {action}")),
        (
            "ReplaceNewPod",
            false,
            replaced,
            "their new Pods exist".to_owned(),
        ),
        (
            "Timeout",
            true,
            failed_with(true),
            "not finished in time".to_owned(),
        ),
        (
            "OpsAction",
            true,
            failed_with(false),
            format!("{action} failed"),
        ),
    ];
    let texts = texts
        .into_iter()
        .filter(|(_, _, names, _)| !names.is_empty());
    let events = texts.map(|(reason, warning, names, text)| {
        let count = messages::count_pods(names.len());
        let list = messages::list_names(&names, MAX_NAMES);
        let message = match plans.iter().find(|plan| plan.detail.name == names[0]) {
            Some(plan) if warning => {
                let error = plan.detail.error.as_ref();
                let first = error.map_or("", |error| &error.message);
                format!("{count} ({list}): {text}; the first: {first}")
            }
            _ => format!("{count} ({list}): {text}"),
        };
        JobEvent {
            warning,
            reason,
            message,
        }
    });
    events.collect()
}
