//! Dry runs of in-place changes and deletions before a Pod goes off traffic for them. The controller remembers the
//! changes and deletions that were refused.

use std::sync::Arc;
use std::time::Duration;

use kube::Error;
use serde_json::Value;
use tokio::time::Instant;

use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::{MAX_LATE_BACKOFF, RefusalKey};
use super::super::requests::{RequestError, request_with_deadline};
use super::PlanExecution;
use super::pod_patches::{
    describe_pod_change, describe_pod_deletion, pod_patch_body, resize_patch,
};
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

/// Describes when the refused change is tried again. The command in the text has no other effect than this retry.
fn describe_retry(execution: &PlanExecution<'_>) -> String {
    let status = execution.set.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let command = match rollout.is_some_and(|rollout| rollout.aborted) {
        true => ABORT,
        false => RETRY,
    };
    format!(
        "its dry run has passed, so it is tried again with pauses that grow to a minute; to have it tried soon, set \
         the annotation {}: {command}",
        keys::ROLLOUT
    )
}

/// The keys of a late refusal of a change. The first key stands for all Pods until a Pod is changed, the second key for
/// this Pod.
fn late_change_keys(pod: &Pod, revision: &str) -> [RefusalKey; 2] {
    let uid = pod.metadata.uid.clone();
    let revision = revision.to_owned();
    [
        RefusalKey::LateChanges(revision.clone()),
        RefusalKey::LateChange(revision, uid),
    ]
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
    execution: &PlanExecution<'_>,
    late_keys: &[RefusalKey; 2],
) -> Result<(), RequestError> {
    let now = Instant::now();
    let refusals = late_keys
        .iter()
        .map(|key| execution.state.active_refusal(key, now, ANY_SPEC));
    match refusals.flatten().max() {
        Some((remaining, reason)) => {
            execution.requeue_after(remaining);
            Err(RequestError::Failed(format!(
                "{reason} ({})",
                describe_retry(execution)
            )))
        }
        None => Ok(()),
    }
}

/// Records a refusal that came after a dry run had passed.
fn record_late_refusal(execution: &PlanExecution<'_>, late_keys: [RefusalKey; 2], reason: &str) {
    let now = Instant::now();
    for key in late_keys {
        if execution
            .state
            .active_refusal(&key, now, ANY_SPEC)
            .is_none()
        {
            execution
                .state
                .record_refusal_capped(MAX_LATE_BACKOFF, key, reason, now, ANY_SPEC);
        }
    }
}

/// Starts the backoff of a key again, with the reason of its last refusal. Therefore only one Pod at a time tries
/// whether the reason still exists.
fn back_off_others(execution: &PlanExecution<'_>, key: RefusalKey, last: Option<(u32, String)>) {
    if let Some((_, reason)) = last {
        execution.state.record_refusal_capped(
            MAX_LATE_BACKOFF,
            key,
            &reason,
            Instant::now(),
            ANY_SPEC,
        );
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
pub fn needs_dry_run(execution: &PlanExecution<'_>, patch: &PodPatch) -> bool {
    let uid = &patch.pod.metadata.uid;
    if patch.dry_run_only {
        return true;
    }
    if execution
        .state
        .has_passed_dry_run(uid, target_revision(patch), Instant::now())
    {
        return false;
    }
    let change = patch.dry_run_change.as_ref();
    change.is_some_and(|change| execution.state.needs_change_dry_run(uid, &change.revision))
        || patch.deletes && execution.state.needs_deletion_dry_run()
}

/// The revision that the update leads to; empty if the update deletes the Pod.
fn target_revision(patch: &PodPatch) -> &str {
    patch
        .dry_run_change
        .as_ref()
        .map_or("", |change| &change.revision)
}

/// Sends the dry run of the update that a patch begins.
pub async fn dry_run_update(
    execution: &PlanExecution<'_>,
    patch: &PodPatch,
) -> Result<DryRunOutcome, RequestError> {
    if patch.deletes {
        dry_run_deletion(execution, &patch.pod).await?;
    }
    if let Some(change) = &patch.dry_run_change
        && !dry_run_change(execution, &patch.pod, change).await?
    {
        return Ok(DryRunOutcome::NotInPlace);
    }
    if patch.dry_run_only || execution.is_older_than(MAX_DRY_RUN_AGE) {
        let until = Instant::now() + DRY_RUN_TTL;
        let uid = &patch.pod.metadata.uid;
        execution
            .state
            .record_passed_dry_run(uid, target_revision(patch), until);
        execution.requeue_after(MIN_RECONCILE_INTERVAL);
        return Ok(DryRunOutcome::Later);
    }
    Ok(DryRunOutcome::Passed)
}

/// Sends the dry run of the deletion of a Pod.
async fn dry_run_deletion(execution: &PlanExecution<'_>, pod: &Pod) -> Result<(), RequestError> {
    check_late_refusals(execution, &late_deletion_keys(pod))?;
    let request = async {
        match pod_requests::dry_run_delete_pod(execution.client(), pod, &DeletionOptions::default())
            .await
        {
            Err(Error::Api(status)) if pod_requests::is_inconclusive(&status) => Ok(()),
            result => result,
        }
    };
    let uid = &pod.metadata.uid;
    match request_with_deadline(&describe_pod_deletion(&pod.metadata.name), request).await {
        Ok(()) | Err(RequestError::Moved) => {
            execution.state.clear_refused_deletion(uid);
            let last = execution.state.last_refusal(&RefusalKey::LateDeletions);
            back_off_others(execution, RefusalKey::LateDeletions, last);
            Ok(())
        }
        Err(error) => {
            if lasting_refusal(execution, &error, &RefusalKey::PodChange(uid.clone())).is_some() {
                execution.state.record_refused_deletion(uid); // so that the next plan updates another Pod instead
                execution.requeue_after(MIN_RECONCILE_INTERVAL);
            }
            Err(error)
        }
    }
}

/// Records the result of a deletion. If the deletion is refused, a Pod that is off traffic for the deletion returns
/// to traffic, and no other Pod goes off traffic before a dry run has passed.
pub fn record_deletion_result(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    result: &Result<u64, RequestError>,
) {
    let uid = &pod.metadata.uid;
    let late_keys = late_deletion_keys(pod);
    match result {
        Ok(_) => {
            execution.state.clear_refused_deletion(uid);
            if SetOperation::Update.is_in_progress(pod) {
                late_keys
                    .iter()
                    .for_each(|key| execution.state.clear_refusal(key));
            }
        }
        Err(error) => {
            if let Some(reason) =
                lasting_refusal(execution, error, &RefusalKey::PodWrite(uid.clone()))
            {
                execution.state.record_refused_deletion(uid);
                // Only a deletion for an update had a dry run before.
                if SetOperation::Update.is_in_progress(pod) {
                    record_late_refusal(execution, late_keys, reason);
                }
                execution.requeue_after(MIN_RECONCILE_INTERVAL);
            }
        }
    }
}

/// The reason if a write is refused for now: the API server refuses it, or the write has failed several times in a row,
/// for example because a webhook is down.
fn lasting_refusal<'a>(
    execution: &PlanExecution<'_>,
    error: &'a RequestError,
    key: &RefusalKey,
) -> Option<&'a str> {
    match error {
        RequestError::Refused(reason) | RequestError::Denied(reason) => Some(reason),
        RequestError::Failed(reason) => {
            let last = execution.state.last_refusal(key);
            last.is_some_and(|(times, _)| times >= FAILURES_BEFORE_REFUSAL)
                .then_some(reason)
        }
        RequestError::Moved | RequestError::Exists | RequestError::Held(_) => None,
    }
}

/// Sends the dry run of the change that an update is for. Returns false if the Pod has to get to the revision in
/// another way.
async fn dry_run_change(
    execution: &PlanExecution<'_>,
    pod: &Arc<Pod>,
    change: &DryRunChange,
) -> Result<bool, RequestError> {
    let late_keys = late_change_keys(pod, &change.revision);
    check_late_refusals(execution, &late_keys)?;
    let version = pod.metadata.resource_version;
    if let Some(spec) = &change.resize {
        let result = dry_run_pod_change(
            execution,
            pod,
            Some("resize"),
            resize_patch(pod, version, spec),
        )
        .await;
        match result {
            Err(RequestError::Refused(reason)) => {
                give_up_resize(execution, pod, &change.revision, &reason);
                return Ok(false);
            }
            Ok(_) => {}
            Err(denied) => {
                record_dry_run_result::<()>(execution, pod, &change.revision, &Err(&denied));
                return Err(denied);
            }
        }
    }
    let patch = PodPatch {
        pod: Arc::clone(pod),
        labels: change.labels.clone(),
        annotations: change.annotations.clone(),
        spec: change.spec.clone(),
        ..PodPatch::default()
    };
    let Some(body) = pod_patch_body(execution.set, &patch, version) else {
        return Ok(true);
    };
    let [revision_key, _] = late_keys;
    let last_refusal = execution.state.last_refusal(&revision_key);
    let result = dry_run_pod_change(execution, pod, None, body).await;
    // An inconclusive dry run is no refusal: the Pod waits for its rules, and admission judges the change then.
    record_dry_run_result(execution, pod, &change.revision, &result.as_ref());
    if result.is_ok() {
        back_off_others(execution, revision_key, last_refusal);
    }
    result.map(|_| true)
}

/// Sends the dry run of a patch. Returns false if the dry run is inconclusive: rules judge the change only when the Pod
/// is operated on.
async fn dry_run_pod_change(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<bool, RequestError> {
    let name = &*pod.metadata.name;
    let pod_path = (execution.namespace(), name);
    let request = pod_requests::dry_run_patch_pod(execution.client(), pod_path, subresource, body);
    request_with_deadline(&describe_pod_change(name), request).await
}

/// Records whether an update could begin after its dry run had passed. If the Pod can't be written, another Pod may be
/// updated in its place.
pub fn record_begin_result<T>(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    result: &Result<T, RequestError>,
) {
    let key = RefusalKey::PodWrite(pod.metadata.uid.clone());
    match result {
        Ok(_) => execution.state.clear_refusal(&key),
        Err(error) => {
            if let Some(reason) = lasting_refusal(
                execution,
                error,
                &RefusalKey::PodChange(pod.metadata.uid.clone()),
            ) {
                let now = Instant::now();
                execution
                    .state
                    .record_refusal(key, reason, now, execution.generation());
            }
        }
    }
}

/// Records that a Pod can't be resized in place. The next plan recreates the Pod.
pub fn give_up_resize(execution: &PlanExecution<'_>, pod: &Pod, revision: &str, reason: &str) {
    execution
        .state
        .record_refused_resize(&pod.metadata.uid, revision, reason);
    execution.requeue_after(MIN_RECONCILE_INTERVAL);
}

/// As [`record_dry_run_result`], for a change that was no dry run. If the change is refused, or fails several times in
/// a row, the other Pods need a dry run again for this revision. The backoff grows with each such refusal, because the
/// dry run may pass where the change does not.
pub fn record_change_result<T>(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    revision: &str,
    result: &Result<T, RequestError>,
) {
    let late_keys = late_change_keys(pod, revision);
    match result {
        Ok(_) => {
            late_keys
                .iter()
                .for_each(|key| execution.state.clear_refusal(key));
            execution
                .state
                .record_accepted_change(&pod.metadata.uid, revision);
        }
        Err(error) => {
            let key = RefusalKey::PodChange(pod.metadata.uid.clone());
            let Some(reason) = lasting_refusal(execution, error, &key) else {
                return;
            };
            execution.state.distrust_revision(revision);
            execution
                .state
                .record_refused_change(&pod.metadata.uid, revision);
            execution.requeue_after(MIN_RECONCILE_INTERVAL);
            record_late_refusal(execution, late_keys, reason);
        }
    }
}

/// Records whether the change of a Pod to a revision is refused, or fails several times in a row. If so, the next plan
/// leaves the Pod on traffic, or returns it to traffic, and other Pods may be updated in its place. A resize that a
/// quota or a policy denies is treated in the same way, because a new Pod would need the same resources.
fn record_dry_run_result<T>(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    revision: &str,
    result: &Result<T, &RequestError>,
) {
    let uid = &pod.metadata.uid;
    match result {
        Ok(_) => execution.state.record_accepted_change(uid, revision),
        Err(error) => {
            if lasting_refusal(execution, error, &RefusalKey::PodChange(uid.clone())).is_some() {
                execution.state.record_refused_change(uid, revision);
                execution.requeue_after(MIN_RECONCILE_INTERVAL);
            }
        }
    }
}
