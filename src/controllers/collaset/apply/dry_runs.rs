//! Dry runs of in-place changes and deletions before a Pod goes off traffic for them, and what the controller remembers
//! of the refused ones.

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

/// The generation under which late refusals are recorded. They depend on the revision only, and stay if something else
/// in the spec changes, such as `replicas` by an autoscaler.
const ANY_SPEC: i64 = 0;
/// Number of failures in a row after which the next failure of the write counts as a refusal.
const FAILURES_BEFORE_REFUSAL: u32 = 4;

/// If the plan is older than this when a dry run passes, the Pod goes off traffic with the next plan. The old plan does
/// not know which Pods became unavailable since.
const MAX_DRY_RUN_AGE: Duration = Duration::from_secs(1);
/// How long a passed dry run is valid.
const DRY_RUN_TTL: Duration = Duration::from_secs(30);

/// Describes when the refused change is tried again. The command in the text is one that changes nothing else.
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

/// The keys of a late refusal of a change: one for all Pods, until one of them is changed, and one for this Pod.
fn late_change_keys(pod: &Pod, revision: &str) -> [RefusalKey; 2] {
    let uid = pod.metadata.uid.clone();
    let of = RefusalKey::LateRefusalOf(revision.to_owned(), uid);
    [RefusalKey::LateRefusal(revision.to_owned()), of]
}

/// The keys of a late refusal of a deletion, as in [`late_change_keys`].
fn late_deletion_keys(pod: &Pod) -> [RefusalKey; 2] {
    [
        RefusalKey::LateDeletions,
        RefusalKey::LateDeletion(pod.metadata.uid.clone()),
    ]
}

/// Fails while the backoff of one of these keys lasts.
fn check_late_refusals(
    work: &PlanExecution<'_>,
    late: &[RefusalKey; 2],
) -> Result<(), RequestError> {
    let now = Instant::now();
    let left = late
        .iter()
        .map(|key| work.state.active_refusal(key, now, ANY_SPEC));
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

/// Records a refusal that came after a dry run had passed.
fn record_late_refusal(work: &PlanExecution<'_>, late: [RefusalKey; 2], why: &str) {
    let now = Instant::now();
    for key in late {
        if work.state.active_refusal(&key, now, ANY_SPEC).is_none() {
            work.state
                .record_refusal_capped(MAX_LATE_BACKOFF, key, why, now, ANY_SPEC);
        }
    }
}

/// Starts the backoff of a key again, with the reason of its last refusal. Therefore only one Pod at a time tries
/// whether the reason still exists.
fn back_off_others(work: &PlanExecution<'_>, key: RefusalKey, last: Option<(u32, String)>) {
    if let Some((_, why)) = last {
        work.state
            .record_refusal_capped(MAX_LATE_BACKOFF, key, &why, Instant::now(), ANY_SPEC);
    }
}

/// The result of the dry run of an update.
pub enum DryRunOutcome {
    /// The update may begin.
    Passed,
    /// The update may begin with the next plan.
    Later,
    /// The Pod can't be changed in place and has to get to its revision in another way.
    NotInPlace,
}

/// Whether the update that a patch begins needs a dry run first.
pub fn needs_dry_run(work: &PlanExecution<'_>, patch: &PodPatch) -> bool {
    let uid = &patch.pod.metadata.uid;
    if patch.dry_run_only {
        return true;
    }
    if work
        .state
        .has_passed_dry_run(uid, target_revision(patch), Instant::now())
    {
        return false;
    }
    let ahead = patch.dry_run_change.as_ref();
    ahead.is_some_and(|ahead| work.state.needs_change_dry_run(uid, &ahead.revision))
        || patch.deletes && work.state.needs_deletion_dry_run()
}

/// The revision that the update leads to; empty if the update deletes the Pod.
fn target_revision(patch: &PodPatch) -> &str {
    patch
        .dry_run_change
        .as_ref()
        .map_or("", |ahead| &ahead.revision)
}

/// Sends the dry run of the update that a patch begins.
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
        return Ok(DryRunOutcome::NotInPlace);
    }
    if patch.dry_run_only || work.is_older_than(MAX_DRY_RUN_AGE) {
        let until = Instant::now() + DRY_RUN_TTL;
        let uid = &patch.pod.metadata.uid;
        work.state
            .record_passed_dry_run(uid, target_revision(patch), until);
        work.requeue_after(MIN_RECONCILE_INTERVAL);
        return Ok(DryRunOutcome::Later);
    }
    Ok(DryRunOutcome::Passed)
}

/// Sends the dry run of the deletion of a Pod.
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
            work.state.clear_refused_deletion(uid);
            let last = work.state.last_refusal(&RefusalKey::LateDeletions);
            back_off_others(work, RefusalKey::LateDeletions, last);
            Ok(())
        }
        Err(trouble) => {
            if lasting_refusal(work, &trouble, &RefusalKey::PodChange(uid.clone())).is_some() {
                work.state.record_refused_deletion(uid); // so that the next plan gives the place to another Pod
                work.requeue_after(MIN_RECONCILE_INTERVAL);
            }
            Err(trouble)
        }
    }
}

/// Records the result of a deletion. If the deletion is refused, a Pod that is off traffic for it comes back, and no
/// other Pod goes off traffic before a dry run has passed.
pub fn record_deletion_result(
    work: &PlanExecution<'_>,
    pod: &Pod,
    done: &Result<u64, RequestError>,
) {
    let uid = &pod.metadata.uid;
    let late = late_deletion_keys(pod);
    match done {
        Ok(_) => {
            work.state.clear_refused_deletion(uid);
            if SetOperation::Update.is_in_progress(pod) {
                late.iter().for_each(|key| work.state.clear_refusal(key));
            }
        }
        Err(trouble) => {
            if let Some(why) = lasting_refusal(work, trouble, &RefusalKey::PodWrite(uid.clone())) {
                work.state.record_refused_deletion(uid);
                // Only a deletion for an update had a dry run before.
                if SetOperation::Update.is_in_progress(pod) {
                    record_late_refusal(work, late, why);
                }
                work.requeue_after(MIN_RECONCILE_INTERVAL);
            }
        }
    }
}

/// The reason if a write is refused for now: the API server refuses it, or the write has failed several times in a row,
/// for example because a webhook is down.
fn lasting_refusal<'a>(
    work: &PlanExecution<'_>,
    trouble: &'a RequestError,
    key: &RefusalKey,
) -> Option<&'a str> {
    match trouble {
        RequestError::Refused(why) | RequestError::Denied(why) => Some(why),
        RequestError::Failed(why) => {
            let last = work.state.last_refusal(key);
            last.is_some_and(|(times, _)| times >= FAILURES_BEFORE_REFUSAL)
                .then_some(why)
        }
        RequestError::Moved | RequestError::Exists | RequestError::Held(_) => None,
    }
}

/// Sends the dry run of the change that an update is for. Returns false if the Pod has to get to the revision in
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
    let before = work.state.last_refusal(&of_revision);
    let tried = dry_run_pod_change(work, pod, None, body).await;
    // An inconclusive dry run is no refusal: the Pod waits for its rules, and admission judges the change then.
    record_dry_run_result(work, pod, &ahead.revision, &tried.as_ref());
    if tried.is_ok() {
        back_off_others(work, of_revision, before);
    }
    tried.map(|_| true)
}

/// Sends the dry run of a patch. Returns false if the dry run is inconclusive: rules judge the change only when the Pod
/// is operated on.
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

/// Records whether an update could begin after its dry run had passed. If the Pod can't be written, another Pod may be
/// updated in its place.
pub fn record_begin_result<T>(work: &PlanExecution<'_>, pod: &Pod, done: &Result<T, RequestError>) {
    let key = RefusalKey::PodWrite(pod.metadata.uid.clone());
    match done {
        Ok(_) => work.state.clear_refusal(&key),
        Err(trouble) => {
            if let Some(why) = lasting_refusal(
                work,
                trouble,
                &RefusalKey::PodChange(pod.metadata.uid.clone()),
            ) {
                let now = Instant::now();
                work.state.record_refusal(key, why, now, work.generation());
            }
        }
    }
}

/// Records that a Pod can't be resized in place. The next plan recreates the Pod.
pub fn give_up_resize(work: &PlanExecution<'_>, pod: &Pod, revision: &str, why: &str) {
    work.state
        .record_refused_resize(&pod.metadata.uid, revision, why);
    work.requeue_after(MIN_RECONCILE_INTERVAL);
}

/// As [`record_dry_run_result`], for a change that was no dry run. If the change is refused, or fails several times in
/// a row, the other Pods need a dry run again for this revision. The backoff grows with each such refusal, because the
/// dry run may pass where the change does not.
pub fn record_change_result<T>(
    work: &PlanExecution<'_>,
    pod: &Pod,
    revision: &str,
    done: &Result<T, RequestError>,
) {
    let late = late_change_keys(pod, revision);
    match done {
        Ok(_) => {
            late.iter().for_each(|key| work.state.clear_refusal(key));
            work.state
                .record_accepted_change(&pod.metadata.uid, revision);
        }
        Err(trouble) => {
            let key = RefusalKey::PodChange(pod.metadata.uid.clone());
            let Some(why) = lasting_refusal(work, trouble, &key) else {
                return;
            };
            work.state.distrust_revision(revision);
            work.state
                .record_refused_change(&pod.metadata.uid, revision);
            work.requeue_after(MIN_RECONCILE_INTERVAL);
            record_late_refusal(work, late, why);
        }
    }
}

/// Records whether the change of a Pod to a revision is refused, or fails several times in a row. If so, the next plan
/// leaves the Pod on traffic, or returns it to traffic, and other Pods may be updated in its place. A resize that a
/// quota or a policy denies is treated in the same way, because a new Pod would need the same resources.
fn record_dry_run_result<T>(
    work: &PlanExecution<'_>,
    pod: &Pod,
    revision: &str,
    done: &Result<T, &RequestError>,
) {
    let uid = &pod.metadata.uid;
    match done {
        Ok(_) => work.state.record_accepted_change(uid, revision),
        Err(trouble) => {
            if lasting_refusal(work, trouble, &RefusalKey::PodChange(uid.clone())).is_some() {
                work.state.record_refused_change(uid, revision);
                work.requeue_after(MIN_RECONCILE_INTERVAL);
            }
        }
    }
}
