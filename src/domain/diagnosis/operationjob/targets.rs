//! The targets of an OperationJob by their state.

use std::borrow::Cow;
use std::cmp::Reverse;

use super::facts::{ErrorFacts, TargetCounts, TargetFacts};
use super::stored;
use crate::api::operationjob::{OperationJob, Progress, TargetDetail};
use crate::domain::operationjob::job_status::stored_details;
use crate::domain::operationjob::names::extra_info;
use crate::domain::operationjob::selection::selected_targets;

/// The targets of a job. The targets that succeeded are only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTargets {
    /// How many targets are in which state.
    pub counts: TargetCounts,
    /// Targets that failed, have begun or are about to begin, in the order of
    /// [`JobDiagnosis::targets`](super::facts::JobDiagnosis).
    pub listed: Vec<TargetFacts>,
    /// Names of the targets that the partition holds back, in the order of the spec.
    pub held_back: Vec<String>,
}

/// Sorts the targets of a job by their state.
pub fn sort_targets(job: &OperationJob) -> JobTargets {
    let details = stored_details(job);
    let selected = selected_targets(job, &details);
    let is_deleting = job.metadata.deletion_timestamp.is_some();
    let mut found = JobTargets::default();
    for target in &job.spec.targets {
        let name = &*target.name;
        found.counts.total += 1;
        let detail = match details.get(name) {
            Some(detail) => Cow::Borrowed(*detail),
            None => Cow::Owned(TargetDetail::default()),
        };
        match &detail.progress {
            Some(Progress::Succeeded) => {
                found.counts.succeeded += 1;
                continue;
            }
            Some(Progress::Failed) => found.counts.failed += 1,
            Some(Progress::Processing) => found.counts.waiting += 1,
            // A job that is being deleted ends all of its targets.
            _ if selected.contains(name) || is_deleting => found.counts.waiting += 1,
            _ => {
                found.counts.held_back += 1;
                found.held_back.push(name.to_owned());
                continue;
            }
        }
        found.listed.push(target_facts(job, name, &detail));
    }
    found.listed.sort_by_key(|target| {
        let has_failed = target.error.is_some();
        let has_begun = target.deadline.is_some();
        (Reverse(has_failed), Reverse(has_begun), target.since)
    });
    found
}

fn target_facts(job: &OperationJob, name: &str, detail: &TargetDetail) -> TargetFacts {
    let progress = match &detail.progress {
        Some(Progress::Failed) => Progress::Failed,
        Some(Progress::Processing) => Progress::Processing,
        _ => Progress::Pending,
    };
    let has_failed = progress == Progress::Failed;
    let since = match has_failed {
        true => detail.end_time.as_ref(),
        false => detail.start_time.as_ref(),
    };
    let error = has_failed.then(|| detail.error.clone().unwrap_or_default());
    TargetFacts {
        name: name.to_owned(),
        progress: progress.as_str().to_owned(),
        since: since.map(|time| time.0),
        deadline: stored::target_deadline(job, detail),
        waits_for: stored::target_wait(detail).filter(|_| !has_failed),
        error: error.map(|error| ErrorFacts {
            reason: error.reason,
            message: stored::bounded_text(&error.message),
        }),
        new_pod: detail.extra_info.get(extra_info::NEW_POD).cloned(),
        to_release: stored::is_to_release(job, detail),
    }
}
