//! Deletes managed Pods with the label `to-delete` through the lifecycle `pod-delete` (contract 3.5): begins the
//! operation, waits for `operate`, and deletes the Pod. If the label is removed before, the deletion is cancelled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tracing::info;

use super::api_calls::{call_api, call_outcome, read_whole_pod, with_api_deadline};
use super::{ControllerContext, PodKey, pod_write_failures, step_writes};
use crate::api::keys::{self, Family};
use crate::api_request::ApiFailure;
use crate::cluster::events::pod_reference;
use crate::cluster::pod_requests;
use crate::cluster::scale_in;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::deletion::DeletionOptions;
use crate::domain::grace_delete::{self, DELETION_ID, DELETION_TYPE};
use crate::domain::lifecycle::{LabelPatch, operator};
use crate::domain::pod::Pod;

/// Pods that a ReplicaSet has chosen are checked again after this time. No event may tell that the ReplicaSet wants
/// more Pods again.
const SCALE_IN_RECHECK: Duration = Duration::from_secs(10);

/// Pods that wait until another Pod makes way for them are checked again after this time.
const GIVE_WAY_RECHECK: Duration = Duration::from_secs(2);

/// What to do for a Pod.
#[derive(Debug, PartialEq, Eq)]
enum DeletionStep {
    Nothing,
    Write(LabelPatch),
    /// The deletion is no longer wanted.
    Cancel,
    /// The ReplicaSet must choose again.
    Wake,
    Delete,
}

pub async fn reconcile(
    context: &Arc<ControllerContext>,
    (namespace, uid): PodKey,
) -> ReconcileOutcome {
    if !(context.collasets || context.grace_delete) {
        return ReconcileOutcome::Done; // then the server has no right to delete Pods
    }
    let Some(pod) = context.index.read_state().pod(&namespace, &uid).cloned() else {
        context.blocked_deletions.clear_write_failure(&uid);
        context.begun_pods.forget_pod(&uid);
        return ReconcileOutcome::Done;
    };
    context.begun_pods.sync_pod(&pod);
    let pod = match read_whole_pod(context, pod).await {
        Ok(Some(pod)) => pod,
        Ok(None) => return ReconcileOutcome::Done,
        Err(outcome) => return outcome,
    };
    if let Err(outcome) = release_from_kuperator(context, &pod).await {
        return outcome;
    }
    let nanos = u64::try_from((context.now)().as_nanosecond()).unwrap_or(0);
    let step =
        scale_in_step(context, &pod, nanos).unwrap_or_else(|| next_deletion_step(&pod, nanos));
    if step != DeletionStep::Delete {
        context
            .blocked_deletions
            .clear_write_failure(&pod.metadata.uid);
    }
    match perform_step(context, &pod, step).await {
        Ok(()) => requeue_or_done(&pod),
        Err(outcome) => outcome,
    }
}

/// Removes the finalizer by which a job of Kuperator holds a Pod that is being deleted. Kuperator does not remove it in
/// all cases, and nobody else would.
async fn release_from_kuperator(
    context: &ControllerContext,
    pod: &Pod,
) -> Result<(), ReconcileOutcome> {
    let finalizer = keys::REPLACE_PROTECTED_FINALIZER;
    let metadata = &pod.metadata;
    let is_held = metadata.finalizers.iter().any(|held| held == finalizer);
    if !pod.is_terminating() || !is_held {
        return Ok(());
    }
    info!(namespace = %metadata.namespace, pod = %metadata.name, finalizer, "removing a finalizer of Kuperator from a Pod that is being deleted");
    let name = (&*metadata.namespace, &*metadata.name);
    let patch = json!({ "metadata": {
        "uid": metadata.uid,
        "$deleteFromPrimitiveList/finalizers": [finalizer],
    } });
    let request = pod_requests::patch_pod(&context.client, name, None, patch);
    call_api("remove a finalizer of Kuperator", request).await?;
    Ok(())
}

async fn perform_step(
    context: &ControllerContext,
    pod: &Pod,
    step: DeletionStep,
) -> Result<(), ReconcileOutcome> {
    match step {
        DeletionStep::Nothing => Ok(()),
        DeletionStep::Write(labels) => write_labels(context, pod, &labels).await,
        DeletionStep::Cancel => cancel_deletion(context, pod).await,
        DeletionStep::Wake => wake_replica_set(context, pod).await,
        DeletionStep::Delete => delete_pod(context, pod).await,
    }
}

async fn write_labels(
    context: &ControllerContext,
    pod: &Pod,
    labels: &LabelPatch,
) -> Result<(), ReconcileOutcome> {
    let mut patch = json!({ "labels": labels.to_merge_patch() });
    if pod.label(keys::TO_DELETE).is_none() {
        // The label is gone, so the options that came with it are removed too.
        patch["annotations"] = json!({ (keys::SCALED_IN_BY): null, (keys::DELETE_OPTIONS): null });
    }
    let request = pod_requests::patch_metadata(&context.client, pod, patch);
    step_writes::write_lifecycle_step(context, pod, "write a step of a deletion", request).await?;
    Ok(())
}

async fn cancel_deletion(context: &ControllerContext, pod: &Pod) -> Result<(), ReconcileOutcome> {
    info!(namespace = %pod.metadata.namespace, pod = %pod.metadata.name, "keeping a Pod that its ReplicaSet has not asked to delete any more");
    let patch = json!({
        "labels": { (keys::TO_DELETE): null },
        "annotations": {
            (keys::DELETE_TIMESTAMP): null, (keys::SCALED_IN_BY): null, (keys::DELETE_OPTIONS): null,
        },
    });
    let request = pod_requests::patch_metadata(&context.client, pod, patch);
    step_writes::write_lifecycle_step(context, pod, "cancel a deletion", request).await?;
    Ok(())
}

async fn wake_replica_set(context: &ControllerContext, pod: &Pod) -> Result<(), ReconcileOutcome> {
    let patch = pod_requests::wake_annotation((context.now)());
    let request = pod_requests::patch_metadata(&context.client, pod, patch);
    call_api("wake a controller", request).await?;
    Ok(())
}

async fn delete_pod(context: &ControllerContext, pod: &Pod) -> Result<(), ReconcileOutcome> {
    info!(namespace = %pod.metadata.namespace, pod = %pod.metadata.name, "deleting a Pod whose lifecycle has reached operate");
    let options = DeletionOptions::from_pod(pod);
    let request = pod_requests::delete_pod(&context.client, pod, &options);
    let result = with_api_deadline(request).await;
    match &result {
        Ok(_) => context
            .blocked_deletions
            .clear_write_failure(&pod.metadata.uid),
        Err(error) => report_refused_deletion(context, pod, error),
    }
    call_outcome("delete a Pod", false, result)?;
    Ok(())
}

/// The outcome of a run that has nothing more to do now.
fn requeue_or_done(pod: &Pod) -> ReconcileOutcome {
    match grace_delete::scale_in_replica_set(pod) {
        Some(_) if grace_delete::is_deletion_in_flight(pod) => {
            ReconcileOutcome::After(SCALE_IN_RECHECK)
        }
        Some(_) => ReconcileOutcome::After(GIVE_WAY_RECHECK),
        None => ReconcileOutcome::Done,
    }
}

/// The step of a Pod that only its ReplicaSet has chosen, if its lifecycle does not decide the step.
fn scale_in_step(context: &ControllerContext, pod: &Pod, nanos: u64) -> Option<DeletionStep> {
    let owner = grace_delete::scale_in_replica_set(pod)?;
    let state = context.index.read_state();
    let namespace_index = state.namespace(&pod.metadata.namespace)?;
    if scale_in::has_choice_lapsed(namespace_index, owner, pod, nanos) {
        return Some(DeletionStep::Cancel);
    }
    if scale_in::should_wake_owner(namespace_index, owner, pod, nanos) {
        return Some(DeletionStep::Wake);
    }
    let must_wait = !grace_delete::is_deletion_in_flight(pod)
        && !context
            .begun_pods
            .try_begin(namespace_index, owner, pod, nanos);
    must_wait.then_some(DeletionStep::Nothing)
}

/// Reports on a Pod why its deletion is refused. The refusal may last while the Pod is off traffic. The status of its
/// CollaSet reports it too.
fn report_refused_deletion(context: &ControllerContext, pod: &Pod, error: &ApiFailure) {
    if let Some(reason) = pod_write_failures::lasting_failure(error) {
        context
            .blocked_deletions
            .record_write_failure(&pod.metadata.uid, reason.clone());
        let message = format!(
            "The Pod is off traffic to be deleted, but its deletion is refused and will be tried again: {reason}"
        );
        context
            .events
            .record_event(&pod_reference(pod), true, "FailedDelete", &message);
    }
}

fn next_deletion_step(pod: &Pod, nanos: u64) -> DeletionStep {
    if pod.is_terminating() || !pod.is_managed() {
        return DeletionStep::Nothing;
    }
    let is_in_flight = grace_delete::is_deletion_in_flight(pod);
    match (pod.label(keys::TO_DELETE).is_some(), is_in_flight) {
        (true, false) => DeletionStep::Write(operator::begin_labels(
            pod,
            DELETION_ID,
            DELETION_TYPE,
            true,
            nanos,
        )),
        // The ReplicaSet itself deletes the Pods that it chooses, and by now it may have chosen others.
        (true, true) if grace_delete::scale_in_replica_set(pod).is_some() => DeletionStep::Nothing,
        (true, true) if operator::is_operation_due(pod, DELETION_ID, DELETION_TYPE, 0, nanos) => {
            DeletionStep::Delete
        }
        (false, true)
            if pod
                .label(&Family::UndoOperationType.key(DELETION_ID))
                .is_none() =>
        {
            DeletionStep::Write(operator::undo_labels(DELETION_ID, DELETION_TYPE))
        }
        _ => DeletionStep::Nothing,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use serde_json::Value;
    use testbed::api::FakeApi;

    use super::*;

    /// The methods of the calls during a run for a Pod that is cached in part, if the API server returns `live`.
    async fn calls(live: Value) -> Vec<String> {
        let api = FakeApi::default();
        api.put_unchanged("/api/v1/namespaces/n/pods/web-1", live.clone());
        let context = ControllerContext::at_epoch(api.client());
        let mut stub = json!({ "metadata": live["metadata"] });
        stub["metadata"]["uid"] = "web-1".into();
        let stub = serde_json::from_value(stub).unwrap();
        context.index.apply_pod(stub);
        reconcile(&context, ("n".into(), "web-1".into())).await;
        let methods = api.requests().into_iter().map(|request| {
            let (method, _) = request.split_once(' ').unwrap();
            method.to_owned()
        });
        methods.collect()
    }

    #[tokio::test]
    async fn partly_cached_pod_is_read_before_write() {
        let live = |uid: &str| {
            json!({
                "metadata": {
                    "namespace": "n", "name": "web-1", "uid": uid, "resourceVersion": "7",
                    "labels": { (keys::CONTROL): "true", (keys::TO_DELETE): "1" },
                },
                "spec": { "containers": [{ "name": "main", "image": "a" }] }, "status": { "phase": "Running" },
            })
        };
        assert_eq!(calls(live("web-1")).await, ["GET", "PATCH"]);
        assert_eq!(calls(live("another")).await, ["GET"]);
    }

    fn pod(labels: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        let labels = [(keys::CONTROL, "true")].iter().chain(labels);
        pod.metadata.labels = labels
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        pod
    }

    #[test]
    fn controller_begins_completes_and_cancels_deletions() {
        let step = |labels: &[(&str, &str)], nanos| next_deletion_step(&pod(labels), nanos);
        let DeletionStep::Write(begin) = step(&[(keys::TO_DELETE, "1")], 5) else {
            panic!()
        };
        assert_eq!(
            begin.0.get(&Family::Operating.key(DELETION_ID)),
            Some(&Some("5".to_owned()))
        );
        let operating = Family::Operating.key(DELETION_ID);
        let type_ = Family::OperationType.key(DELETION_ID);
        let operate = Family::Operate.key(DELETION_ID);
        let in_flight = [(operating.as_str(), "5"), (type_.as_str(), DELETION_TYPE)];
        assert_eq!(
            step(&[&[(keys::TO_DELETE, "1")], &in_flight[..]].concat(), 6),
            DeletionStep::Nothing
        );
        let allowed = [
            &[(keys::TO_DELETE, "1"), (operate.as_str(), "6")],
            &in_flight[..],
        ]
        .concat();
        assert_eq!(step(&allowed, 7), DeletionStep::Delete);
        let DeletionStep::Write(undo) = step(&in_flight, 7) else {
            panic!()
        };
        assert!(
            undo.0
                .contains_key(&Family::UndoOperationType.key(DELETION_ID))
        );
        assert_eq!(step(&[], 7), DeletionStep::Nothing);
    }
}
