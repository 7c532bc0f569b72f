//! Explains an OperationJob: makes a [`JobDiagnosis`] from the stored job, for `kubectl operating why opj/NAME`.
//!
//! | File | Content |
//! |---|---|
//! | `facts` | the data of a diagnosis |
//! | `stored` | what the stored status says about a target |
//! | `targets` | the targets by their state |
//! | `summary` | the answer in one sentence |
//! | `next_steps` | what happens next, or what the user can do |

pub mod facts;
mod next_steps;
pub(super) mod stored;
mod summary;
mod targets;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

use self::facts::{JobDiagnosis, JobFacts};
pub use self::summary::error_text;
use crate::api::operationjob::OperationJob;
use crate::domain::operationjob::job_settings;
use crate::domain::operationjob::job_status::is_finished;

/// Most targets, and most names of targets that the partition holds back, in a diagnosis.
const MAX_TARGETS: usize = 20;

/// Makes the diagnosis of an OperationJob.
pub fn diagnose_job(job: &OperationJob, now: Timestamp) -> JobDiagnosis {
    let mut targets = targets::sort_targets(job);
    let facts = job_facts(job);
    let summary = summary::summarize(&facts, &targets, now);
    let next = next_steps::next_steps(job, &facts, &targets, now);
    let unlisted = targets.listed.len().saturating_sub(MAX_TARGETS);
    targets.listed.truncate(MAX_TARGETS);
    targets.held_back.truncate(MAX_TARGETS);
    JobDiagnosis {
        summary,
        job: facts,
        counts: targets.counts,
        targets: targets.listed,
        unlisted,
        held_back: targets.held_back,
        next,
    }
}

fn job_facts(job: &OperationJob) -> JobFacts {
    let metadata = &job.metadata;
    let status = job.status.as_ref();
    let progress = status.and_then(|status| status.progress.as_ref());
    let ended = status.and_then(|status| status.end_time.as_ref());
    let ended = ended.filter(|_| is_finished(progress));
    let is_deleting = metadata.deletion_timestamp.is_some();
    let deletion_due = ended.filter(|_| !is_deleting);
    JobFacts {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: stored::job_name(job).to_owned(),
        uid: metadata.uid.clone().unwrap_or_default(),
        action: stored::action_of(job).to_owned(),
        progress: progress.map(|progress| progress.as_str().to_owned()),
        since: status
            .and_then(|status| status.start_time.as_ref())
            .map(|time| time.0),
        ended: ended.map(|time| time.0),
        partition: job.spec.partition,
        deleting_since: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        deletion_due: deletion_due
            .map(|ended| job_settings::later(ended, job_settings::ttl(&job.spec))),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
    }
}
