//! The OperationJobs that are not finished with a Pod: the job that began an operation on it, the jobs that have the Pod
//! as a target, and the jobs that it replaces another Pod for.

use super::ObservedPod;
use super::facts::{PodJobFacts, PodRole};
use super::operationjob::stored::{
    action_of, bounded_text, is_to_release, job_name, target_deadline, target_wait,
};
use crate::api::keys;
use crate::api::operationjob::{Action, OperationJob, Progress, TargetDetail};
use crate::domain::operationjob::job_status::{is_finished, stored_details};
use crate::domain::operationjob::lifecycle_action::lifecycle_id;
use crate::domain::operationjob::names::extra_info;
use crate::domain::operationjob::selection::selected_targets;
use crate::domain::pod::Pod;

/// Value of the label `to-replace` that a job writes.
const REQUEST_VALUE: &str = "operationjob";
/// Begin of the last part of waits whose cause the diagnosis of the Pod contains. It is meant for readers of the job's
/// status.
const POD_HINT: &str = ": kubectl operating why pod/";

/// The OperationJobs that are not finished with the Pod, by name.
pub fn pod_job_facts(observed: &ObservedPod) -> Vec<PodJobFacts> {
    let pod = &observed.pod;
    let jobs = observed.jobs.iter().flatten();
    let facts = jobs.filter_map(|job| target_facts(job, pod).or_else(|| new_pod_facts(job, pod)));
    let mut facts: Vec<PodJobFacts> = facts.collect();
    facts.sort_by(|a, b| a.name.cmp(&b.name));
    facts
}

/// The job that began the operation with this lifecycle ID. The ID of a job of Kuperator is the name of the job.
pub fn job_of_operation<'a>(observed: &'a ObservedPod, id: &str) -> Option<&'a OperationJob> {
    let jobs = || observed.jobs.iter().flatten();
    let is_kuperators = |job: &&OperationJob| {
        let mut targets = job.spec.targets.iter();
        job_name(job) == id && targets.any(|target| target.name == observed.pod.metadata.name)
    };
    let mut own = jobs().filter(|job| lifecycle_id(job_name(job)) == id);
    own.next().or_else(|| jobs().find(is_kuperators))
}

/// The wait of an operation for the job that began it.
pub fn describe_operation_wait(job: &OperationJob, pod: &Pod, type_: &str) -> String {
    let text = format!("OperationJob {}, to finish ({type_})", job_name(job));
    if job.metadata.deletion_timestamp.is_some() {
        return text + ", which is being deleted";
    }
    let detail = detail_of(job, pod);
    if let Some(failure) = detail.and_then(failure_text) {
        return format!("{text}: its target has failed ({failure}), so it cancels the operation");
    }
    if let Some(wait) = detail.and_then(pod_wait) {
        return format!("{text}: its target waits for {wait}");
    }
    let progress = job.status.as_ref().and_then(|s| s.progress.as_ref());
    let progress = progress.map_or_else(String::new, |p| format!(", which is {p}"));
    text + &progress
}

/// What the first of the jobs that have begun waits for, as a clause after `; `. Empty if no job waits.
pub fn describe_first_wait(jobs: &[PodJobFacts]) -> String {
    let mut jobs = jobs.iter();
    let begun = jobs.find_map(|job| {
        let has_begun = job.progress == Progress::Processing.as_str();
        Some((job, job.waits_for.as_ref().filter(|_| has_begun)?))
    });
    let Some((PodJobFacts { name, remark, .. }, wait)) = begun else {
        return String::new();
    };
    match remark {
        Some(remark) => format!("; OperationJob {name} {remark}, and waits for {wait}"),
        None => format!("; OperationJob {name} waits for {wait}"),
    }
}

/// The Pod as a target of a job. `None` if it is no target, or if the job is finished with it.
fn target_facts(job: &OperationJob, pod: &Pod) -> Option<PodJobFacts> {
    let name = &*pod.metadata.name;
    let mut targets = job.spec.targets.iter();
    targets.find(|target| target.name == name)?;
    let details = stored_details(job);
    let absent = TargetDetail::default();
    let detail = details.get(name).copied().unwrap_or(&absent);
    if !is_of_pod(detail, pod) {
        return None;
    }
    let has_begun = detail.progress == Some(Progress::Processing);
    if is_finished(detail.progress.as_ref()) && !is_to_release(job, detail) {
        return None;
    }
    let facts = facts(job, PodRole::Target, detail);
    let is_selected = selected_targets(job, &details).contains(name);
    Some(PodJobFacts {
        remark: match failure_text(detail) {
            Some(failure) => Some(format!(
                "withdraws what it asked of the Pod, because the target has failed ({failure})"
            )),
            None => replacement_remark(job, pod).filter(|_| has_begun),
        },
        waits_for: match job.spec.partition {
            Some(partition) if !is_selected && !facts.deleting => Some(format!(
                "its spec.partition to be raised: it is {partition}, and other targets come first"
            )),
            _ => facts.waits_for.clone(),
        },
        ..facts
    })
}

/// The Pod as the new Pod of a target that the job replaces. `None` if it is no new Pod of an unfinished target.
fn new_pod_facts(job: &OperationJob, pod: &Pod) -> Option<PodJobFacts> {
    let metadata = &pod.metadata;
    let mut details = job
        .status
        .iter()
        .flat_map(|status| &status.target_details)
        .filter(|detail| detail.progress == Some(Progress::Processing));
    let detail = details.find(|detail| {
        let info = |key| detail.extra_info.get(key);
        match info(extra_info::NEW_POD_UID) {
            Some(uid) => *uid == metadata.uid,
            None => info(extra_info::NEW_POD) == Some(&metadata.name),
        }
    })?;
    let remark = format!("lets the Pod take the place of Pod {}", detail.name);
    Some(PodJobFacts {
        remark: Some(remark),
        ..facts(job, PodRole::NewPod, detail)
    })
}

fn facts(job: &OperationJob, role: PodRole, detail: &TargetDetail) -> PodJobFacts {
    let progress = match &detail.progress {
        Some(Progress::Other(_)) | None => Progress::Pending.as_str(),
        Some(progress) => progress.as_str(),
    };
    PodJobFacts {
        name: job_name(job).to_owned(),
        action: action_of(job).to_owned(),
        role,
        progress: progress.to_owned(),
        since: detail.start_time.as_ref().map(|time| time.0),
        deadline: target_deadline(job, detail),
        deleting: job.metadata.deletion_timestamp.is_some(),
        remark: None,
        waits_for: pod_wait(detail),
    }
}

/// Whether an entry of the status is about this Pod. The job records the UID when it begins; a job of Kuperator records
/// none.
fn is_of_pod(detail: &TargetDetail, pod: &Pod) -> bool {
    let uid = detail.extra_info.get(extra_info::POD_UID);
    uid.is_none_or(|uid| *uid == pod.metadata.uid)
}

fn detail_of<'a>(job: &'a OperationJob, pod: &Pod) -> Option<&'a TargetDetail> {
    let detail = stored_details(job).remove(&*pod.metadata.name);
    detail.filter(|detail| is_of_pod(detail, pod))
}

/// What an unfinished target waits for, for a reader of the Pod's diagnosis.
fn pod_wait(detail: &TargetDetail) -> Option<String> {
    if is_finished(detail.progress.as_ref()) {
        return None;
    }
    let wait = target_wait(detail)?;
    let wait = wait.split_once(POD_HINT).map_or(&*wait, |(wait, _)| wait);
    Some(wait.to_owned())
}

/// The reason and the message of a target that failed.
fn failure_text(detail: &TargetDetail) -> Option<String> {
    if detail.progress != Some(Progress::Failed) {
        return None;
    }
    let error = detail.error.clone().unwrap_or_default();
    Some(match error.message.as_str() {
        "" => error.reason,
        message => format!("{}: {}", error.reason, bounded_text(message)),
    })
}

/// Whether a Replace job asked for the replacement of the Pod, or follows a replacement that others asked for.
fn replacement_remark(job: &OperationJob, pod: &Pod) -> Option<String> {
    if action_of(job) != Action::REPLACE {
        return None;
    }
    let is_asked_by_job = match pod.label(keys::TO_REPLACE) {
        Some(REQUEST_VALUE) => true,
        Some(_) => is_held_by_kuperator(pod),
        None => false,
    };
    let pair_labels = [
        keys::TO_REPLACE,
        keys::REPLACED_BY_REPLACE_UPDATE,
        keys::REPLACE_PAIR_NEW_ID,
    ];
    let is_replaced = pair_labels.iter().any(|key| pod.label(key).is_some());
    is_replaced.then(|| match is_asked_by_job {
        true => "asked for the replacement of the Pod".to_owned(),
        false => "follows a replacement of the Pod that it did not ask for".to_owned(),
    })
}

/// Whether a job of Kuperator has asked for the replacement of the Pod.
fn is_held_by_kuperator(pod: &Pod) -> bool {
    let mut finalizers = pod.metadata.finalizers.iter();
    finalizers.any(|finalizer| finalizer == keys::REPLACE_PROTECTED_FINALIZER)
}
