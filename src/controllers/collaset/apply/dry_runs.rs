//! Changes in place and deletions that are tried by a dry run before a Pod goes off traffic for them, and what the controller learns from
//! those that are refused.

use std::sync::Arc;
use std::time::Duration;

use kube::Error;
use serde_json::Value;
use tokio::time::Instant;

use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::{MAX_LATE_BACKOFF, RefusalKey};
use super::super::requests::{RequestError, request_with_deadline};
use super::PlanExecution;
use super::pods::{describe_pod_change, describe_pod_deletion, pod_patch_body, resize_patch};
use crate::api::keys;
use crate::cluster::pod_requests;
use crate::domain::collaset::plan::{DryRunChange, PodPatch};
use crate::domain::collaset::{ABORT, RETRY, SetOperation};
use crate::domain::deletion::DeletionOptions;
use crate::domain::pod::Pod;

/// What is refused late is so by its revision, whatever else changes in the spec, as an autoscaler changes `replicas`.
const ANY_SPEC: i64 = 0;
/// Failures of a write in a row before the next one is taken for a refusal.
const FAILURES_BEFORE_REFUSAL: u32 = 4;

/// An older plan than this does not know who is down by now: a Pod whose dry run took its time goes off traffic with the next one.
const MAX_DRY_RUN_AGE: Duration = Duration::from_secs(1);
/// For so long a dry run that has passed is good.
const DRY_RUN_TTL: Duration = Duration::from_secs(30);

/// When the change of a Pod that was refused late is tried again; said with the refusal. The command is one that changes nothing else.
fn describe_retry(work: &PlanExecution<'_>) -> String {
    let status = work.set.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let command = match rollout.is_some_and(|rollout| rollout.aborted) {
        true => ABORT,
        false => RETRY,
    };
    format!(
        "its dry run had passed, so it is tried with pauses that grow to a minute; the annotation {}: {command} has it tried soon",
        keys::ROLLOUT
    )
}

/// By which a change that is refused although its dry run passed is remembered: for all Pods, until one of them is changed, and for this.
fn late_change_keys(pod: &Pod, revision: &str) -> [RefusalKey; 2] {
    let uid = pod.metadata.uid.clone();
    let of = RefusalKey::LateRefusalOf(revision.to_owned(), uid);
    [RefusalKey::LateRefusal(revision.to_owned()), of]
}

/// The same of a deletion.
fn late_deletion_keys(pod: &Pod) -> [RefusalKey; 2] {
    [
        RefusalKey::LateDeletions,
        RefusalKey::LateDeletion(pod.metadata.uid.clone()),
    ]
}

/// Fails while one of these keys is left alone.
fn check_late_refusals(
    work: &PlanExecution<'_>,
    late: &[RefusalKey; 2],
) -> Result<(), RequestError> {
    let now = Instant::now();
    let left = late
        .iter()
        .map(|key| work.memory.active_refusal(key, now, ANY_SPEC));
    match left.flatten().max() {
        Some((left, why)) => {
            work.requeue_after(left);
            Err(RequestError::Failed(format!(
                "{why} ({})",
                describe_retry(work)
            )))
        }
        None => Ok(()),
    }
}

/// Notes a refusal that came after a dry run had passed.
fn record_late_refusal(work: &PlanExecution<'_>, late: [RefusalKey; 2], why: &str) {
    let now = Instant::now();
    for key in late {
        if work.memory.active_refusal(&key, now, ANY_SPEC).is_none() {
            work.memory
                .record_refusal_capped(MAX_LATE_BACKOFF, key, why, now, ANY_SPEC);
        }
    }
}

/// Leaves a key alone again, for the reason that its last refusal gave: one Pod at a time finds out whether that is over.
fn back_off_others(work: &PlanExecution<'_>, key: RefusalKey, last: Option<(u32, String)>) {
    if let Some((_, why)) = last {
        work.memory
            .record_refusal_capped(MAX_LATE_BACKOFF, key, &why, Instant::now(), ANY_SPEC);
    }
}

/// What a trial tells of the update that it tries.
pub enum DryRunOutcome {
    /// It may begin.
    Passed,
    /// It may begin with the next plan.
    Later,
    /// The Pod has to get to its revision by another way.
    AnotherWay,
}

/// Whether the update that a patch begins is to be tried first.
pub fn needs_dry_run(work: &PlanExecution<'_>, patch: &PodPatch) -> bool {
    let uid = &patch.pod.metadata.uid;
    if patch.only_tried {
        return true;
    }
    if work
        .memory
        .has_passed_dry_run(uid, target_revision(patch), Instant::now())
    {
        return false;
    }
    let ahead = patch.dry_run_change.as_ref();
    ahead.is_some_and(|ahead| work.memory.needs_change_dry_run(uid, &ahead.revision))
        || patch.deletes && work.memory.needs_deletion_dry_run()
}

/// The revision that the update is to lead to which a patch begins; empty where it deletes the Pod.
fn target_revision(patch: &PodPatch) -> &str {
    patch
        .dry_run_change
        .as_ref()
        .map_or("", |ahead| &ahead.revision)
}

/// Tries what the update that a patch begins is for.
pub async fn dry_run_update(
    work: &PlanExecution<'_>,
    patch: &PodPatch,
) -> Result<DryRunOutcome, RequestError> {
    if patch.deletes {
        dry_run_deletion(work, &patch.pod).await?;
    }
    if let Some(ahead) = &patch.dry_run_change
        && !dry_run_change(work, &patch.pod, ahead).await?
    {
        return Ok(DryRunOutcome::AnotherWay);
    }
    if patch.only_tried || work.is_older_than(MAX_DRY_RUN_AGE) {
        let until = Instant::now() + DRY_RUN_TTL;
        let uid = &patch.pod.metadata.uid;
        work.memory
            .record_passed_dry_run(uid, target_revision(patch), until);
        work.requeue_after(MIN_RECONCILE_INTERVAL);
        return Ok(DryRunOutcome::Later);
    }
    Ok(DryRunOutcome::Passed)
}

/// Asks the API server whether it would let a Pod be deleted.
async fn dry_run_deletion(work: &PlanExecution<'_>, pod: &Pod) -> Result<(), RequestError> {
    check_late_refusals(work, &late_deletion_keys(pod))?;
    let request = async {
        match pod_requests::dry_run_delete_pod(work.client(), pod, &DeletionOptions::default())
            .await
        {
            Err(Error::Api(status)) if pod_requests::is_inconclusive(&status) => Ok(()),
            tried => tried,
        }
    };
    let uid = &pod.metadata.uid;
    match request_with_deadline(&describe_pod_deletion(&pod.metadata.name), request).await {
        Ok(()) | Err(RequestError::Moved) => {
            work.memory.clear_refused_deletion(uid);
            let last = work.memory.last_refusal(&RefusalKey::LateDeletions);
            back_off_others(work, RefusalKey::LateDeletions, last);
            Ok(())
        }
        Err(trouble) => {
            if lasting_refusal(work, &trouble, &RefusalKey::PodChange(uid.clone())).is_some() {
                work.memory.record_refused_deletion(uid); // it takes no place from others
                work.requeue_after(MIN_RECONCILE_INTERVAL);
            }
            Err(trouble)
        }
    }
}

/// Notes whether a Pod can be deleted. One that is off traffic for its deletion comes back if not, and no other goes off before a dry run
/// has passed.
pub fn record_deletion_result(
    work: &PlanExecution<'_>,
    pod: &Pod,
    done: &Result<u64, RequestError>,
) {
    let uid = &pod.metadata.uid;
    let late = late_deletion_keys(pod);
    match done {
        Ok(_) => {
            work.memory.clear_refused_deletion(uid);
            if SetOperation::Update.is_in_progress(pod) {
                late.iter().for_each(|key| work.memory.clear_refusal(key));
            }
        }
        Err(trouble) => {
            if let Some(why) = lasting_refusal(work, trouble, &RefusalKey::PodWrite(uid.clone())) {
                work.memory.record_refused_deletion(uid);
                // Of others no dry run has passed.
                if SetOperation::Update.is_in_progress(pod) {
                    record_late_refusal(work, late, why);
                }
                work.requeue_after(MIN_RECONCILE_INTERVAL);
            }
        }
    }
}

/// Why a write is not done for now: somebody refuses it, or it has failed several times in a row, as with a webhook that is down.
fn lasting_refusal<'a>(
    work: &PlanExecution<'_>,
    trouble: &'a RequestError,
    key: &RefusalKey,
) -> Option<&'a str> {
    match trouble {
        RequestError::Refused(why) | RequestError::Denied(why) => Some(why),
        RequestError::Failed(why) => {
            let last = work.memory.last_refusal(key);
            last.is_some_and(|(times, _)| times >= FAILURES_BEFORE_REFUSAL)
                .then_some(why)
        }
        RequestError::Moved | RequestError::Exists | RequestError::Held(_) => None,
    }
}

/// Asks the API server whether it would take the change that an update is for; false where the Pod has to get to the revision by
/// another way.
async fn dry_run_change(
    work: &PlanExecution<'_>,
    pod: &Arc<Pod>,
    ahead: &DryRunChange,
) -> Result<bool, RequestError> {
    let late = late_change_keys(pod, &ahead.revision);
    check_late_refusals(work, &late)?;
    let version = pod.metadata.resource_version;
    if let Some(spec) = &ahead.resize {
        let tried =
            dry_run_pod_change(work, pod, Some("resize"), resize_patch(pod, version, spec)).await;
        match tried {
            Err(RequestError::Refused(why)) => {
                give_up_resize(work, pod, &ahead.revision, &why);
                return Ok(false);
            }
            Ok(_) => {}
            Err(denied) => {
                record_dry_run_result::<()>(work, pod, &ahead.revision, &Err(&denied));
                return Err(denied);
            }
        }
    }
    let trial = PodPatch {
        pod: Arc::clone(pod),
        labels: ahead.labels.clone(),
        annotations: ahead.annotations.clone(),
        spec: ahead.spec.clone(),
        ..PodPatch::default()
    };
    let Some(body) = pod_patch_body(work.set, &trial, version) else {
        return Ok(true);
    };
    let [of_revision, _] = late;
    let before = work.memory.last_refusal(&of_revision);
    let tried = dry_run_pod_change(work, pod, None, body).await;
    // One that tells nothing is no refusal: the Pod waits for its rules, and its change is judged then.
    record_dry_run_result(work, pod, &ahead.revision, &tried.as_ref());
    if tried.is_ok() {
        back_off_others(work, of_revision, before);
    }
    tried.map(|_| true)
}

/// Tries a patch; false where that does not tell: the rules let the change pass, or not, once the Pod is operated on, and it is judged then.
async fn dry_run_pod_change(
    work: &PlanExecution<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<bool, RequestError> {
    let name = &*pod.metadata.name;
    let place = (work.namespace(), name);
    let request = pod_requests::dry_run_patch_pod(work.client(), place, subresource, body);
    request_with_deadline(&describe_pod_change(name), request).await
}

/// Notes whether an update could be begun whose dry run has passed. A Pod that can't be written keeps no place from others.
pub fn record_begin_result<T>(work: &PlanExecution<'_>, pod: &Pod, done: &Result<T, RequestError>) {
    let key = RefusalKey::PodWrite(pod.metadata.uid.clone());
    match done {
        Ok(_) => work.memory.clear_refusal(&key),
        Err(trouble) => {
            if let Some(why) = lasting_refusal(
                work,
                trouble,
                &RefusalKey::PodChange(pod.metadata.uid.clone()),
            ) {
                let now = Instant::now();
                work.memory.record_refusal(key, why, now, work.generation());
            }
        }
    }
}

/// Notes that a Pod can't be resized where it is: the next plan has it made again.
pub fn give_up_resize(work: &PlanExecution<'_>, pod: &Pod, revision: &str, why: &str) {
    work.memory
        .record_refused_resize(&pod.metadata.uid, revision, why);
    work.requeue_after(MIN_RECONCILE_INTERVAL);
}

/// As [`judge`], of a change that was no dry run. One that is refused, or fails several times in a row, takes its revision's other Pods into
/// doubt, and is left alone for longer each time, as a dry run may pass where the change does not.
pub fn record_change_result<T>(
    work: &PlanExecution<'_>,
    pod: &Pod,
    revision: &str,
    done: &Result<T, RequestError>,
) {
    let late = late_change_keys(pod, revision);
    match done {
        Ok(_) => {
            late.iter().for_each(|key| work.memory.clear_refusal(key));
            work.memory
                .record_accepted_change(&pod.metadata.uid, revision);
        }
        Err(trouble) => {
            let key = RefusalKey::PodChange(pod.metadata.uid.clone());
            let Some(why) = lasting_refusal(work, trouble, &key) else {
                return;
            };
            work.memory.distrust_revision(revision);
            work.memory
                .record_refused_change(&pod.metadata.uid, revision);
            work.requeue_after(MIN_RECONCILE_INTERVAL);
            record_late_refusal(work, late, why);
        }
    }
}

/// Notes whether a change of a Pod to a revision is refused, or fails several times in a row: the next plan leaves the Pod on traffic, or
/// calls it back, and it takes no place from other Pods. So it is with a resize that a quota or a policy denies: a new Pod would ask for
/// no less.
fn record_dry_run_result<T>(
    work: &PlanExecution<'_>,
    pod: &Pod,
    revision: &str,
    done: &Result<T, &RequestError>,
) {
    let uid = &pod.metadata.uid;
    match done {
        Ok(_) => work.memory.record_accepted_change(uid, revision),
        Err(trouble) => {
            if lasting_refusal(work, trouble, &RefusalKey::PodChange(uid.clone())).is_some() {
                work.memory.record_refused_change(uid, revision);
                work.requeue_after(MIN_RECONCILE_INTERVAL);
            }
        }
    }
}
