//! Writes the status of the CollaSet: only if it differs, at most once a second, and always with the failure of the
//! plan.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::super::status_patch::status_patch;
use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::RefusalKey;
use super::super::requests::{RequestError, StageError, request_with_deadline};
use super::{PlanExecution, events};
use crate::api::collaset::CollaSetStatus;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::domain::collaset::plan::{SetEvent, Shortfall};
use crate::domain::collaset::status::{FailedStep, report_failed_step, rollout_events};

/// Writes the planned status. If it is too early, the set is requeued for the write. The Events in
/// `events_after_status` are recorded once the status is stored.
pub async fn write_set_status(
    execution: &PlanExecution<'_>,
    (planned, shortfall): (Option<CollaSetStatus>, &Shortfall),
    events_after_status: &[SetEvent],
    result: &Result<(), StageError>,
) -> Result<(), RequestError> {
    let stored = execution.set.status.as_ref();
    let current = stored.cloned().unwrap_or_default();
    let wanted = desired_status(
        &current,
        (planned, shortfall),
        result,
        (execution.context.now)(),
    );
    let Some(status) = set_status_patch(stored, &wanted) else {
        return Ok(());
    };
    if let Some(pause) = pause_before_write(execution, result) {
        execution.requeue_after(pause);
        return Ok(());
    }
    match patch_status(execution, status).await {
        Ok(()) => execution.state.clear_refusal(&RefusalKey::Status),
        Err(
            RequestError::Failed(message)
            | RequestError::Denied(message)
            | RequestError::Refused(message),
        ) => {
            report_unwritten_status(execution, message);
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    if wanted.rollout != current.rollout || wanted.current_revision != current.current_revision {
        execution.requeue_after(MIN_RECONCILE_INTERVAL); // the next plan needs both fields, and the cache contains them
    }
    if is_spec_edited(execution) {
        execution.requeue_after(MIN_RECONCILE_INTERVAL); // the answer put the edit into the cache, so no event follows
    }
    // The Events follow the write of the status, which includes the failure. Otherwise an Event could be repeated with
    // another message.
    let set = execution.set;
    if set.metadata.deletion_timestamp.is_none() {
        events::record_events(execution, events_after_status);
        events::record_events(execution, &rollout_events(stored, &wanted, set.spec.paused));
    }
    Ok(())
}

/// The time until the status may be written; `None` if it may be written now. The interval between two writes does not
/// delay the count of a collision, because the next plan needs the count.
fn pause_before_write(
    execution: &PlanExecution<'_>,
    result: &Result<(), StageError>,
) -> Option<Duration> {
    let (state, now) = (execution.state, Instant::now());
    let refusal = state.active_refusal(&RefusalKey::Status, now, execution.generation());
    if let Some((remaining, _)) = refusal {
        return Some(remaining);
    }
    let pause = state.begin_status_write(now);
    pause.filter(|_| *result != Err(StageError::Collision))
}

async fn patch_status(execution: &PlanExecution<'_>, status: Value) -> Result<(), RequestError> {
    let (namespace, name) = (execution.namespace(), execution.name());
    let mut metadata = json!({ "uid": execution.uid() });
    if status.get("rollout").is_some() {
        // If the write arrives late, it must not undo a command that a user has given since.
        let cached = execution.objects().sets.get(namespace, name);
        let cached = cached.filter(|cached| cached.metadata.uid == execution.set.metadata.uid);
        metadata["resourceVersion"] =
            json!(cached.and_then(|cached| cached.metadata.resource_version.clone()));
    }
    let patch = Patch::Merge(json!({ "metadata": metadata, "status": status }));
    let request = object_requests::patch_object::<CollaSetObject>(
        execution.client(),
        execution.objects(),
        (namespace, name),
        &patch,
        true,
    );
    request_with_deadline(&format!("status of CollaSet {name}"), request).await
}

/// Backs off after a refused write of the status, and reports the refusal by an Event, because the stored status may
/// still say that all is well.
fn report_unwritten_status(execution: &PlanExecution<'_>, message: String) {
    let (now, generation) = (Instant::now(), execution.generation());
    let pause = execution
        .state
        .record_refusal(RefusalKey::Status, &message, now, generation);
    execution.requeue_after(pause);
    events::announce_failure(
        execution,
        "StatusNotWritten",
        &Err(StageError::Failed(FailedStep::Update, message)),
    );
}

/// Whether the set has changed since the plan was made, apart from its status.
fn is_spec_edited(execution: &PlanExecution<'_>) -> bool {
    let without_version = |metadata: &ObjectMeta| ObjectMeta {
        resource_version: None,
        managed_fields: None,
        ..metadata.clone()
    };
    let cached = execution
        .objects()
        .sets
        .get(execution.namespace(), execution.name());
    cached.is_some_and(|cached| {
        without_version(&cached.metadata) != without_version(&execution.set.metadata)
    })
}

/// The planned status, with the failure of the plan. The planned counts are read from the objects, and stay true if a
/// write was refused.
fn desired_status(
    current: &CollaSetStatus,
    (planned, shortfall): (Option<CollaSetStatus>, &Shortfall),
    result: &Result<(), StageError>,
    now: Timestamp,
) -> CollaSetStatus {
    let mut status = planned.unwrap_or_else(|| current.clone());
    if matches!(result, Err(StageError::Moved | StageError::Collision))
        && current.current_revision.is_empty()
    {
        // The cache is stale, so the stable revision may have changed.
        status.current_revision.clear();
    }
    match result {
        Ok(()) | Err(StageError::Moved) => {}
        Err(StageError::Collision) => {
            let count = current.collision_count.unwrap_or(0);
            status.collision_count = Some(count.wrapping_add(1));
        }
        Err(StageError::Failed(step, message)) => {
            let failure = (*step, message.as_str());
            report_failed_step(&mut status, &current.conditions, failure, shortfall, now);
        }
    }
    status
}

/// The merge patch that turns one status into the other; `None` if they are equal. A first status is written in full,
/// including zeros.
fn set_status_patch(current: Option<&CollaSetStatus>, wanted: &CollaSetStatus) -> Option<Value> {
    if current.is_none() && *wanted == CollaSetStatus::default() {
        return None; // nothing is planned for this set
    }
    let mut patch = status_patch(current, wanted)?;
    // The patch names the revision: if the write arrives late, the step must not apply to the rollout of another
    // revision.
    if let Some(Value::Object(rollout)) = patch.get_mut("rollout") {
        let revision = wanted.rollout.as_ref().map(|rollout| &rollout.revision);
        rollout.extend(revision.map(|revision| ("revision".to_owned(), json!(revision))));
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn status(value: Value) -> CollaSetStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_changed_fields_of_status_are_written() {
        let a = status(json!({ "replicas": 1, "readyReplicas": 1, "currentRevision": "a" }));
        assert_eq!(set_status_patch(Some(&a), &a), None);
        let b = status(json!({ "replicas": 2, "readyReplicas": 1 }));
        assert_eq!(
            set_status_patch(Some(&a), &b),
            Some(json!({ "replicas": 2, "currentRevision": null }))
        );
        let rollout = |rollout: Value| status(json!({ "rollout": rollout }));
        let paused = rollout(json!({ "revision": "r", "step": 2, "command": "promote" }));
        let passed = rollout(json!({ "revision": "r", "step": 3 }));
        assert_eq!(
            set_status_patch(Some(&paused), &passed),
            Some(json!({ "rollout": { "revision": "r", "step": 3, "command": null } }))
        );
    }

    #[test]
    fn first_status_is_written_with_its_zeros() {
        let first = set_status_patch(None, &status(json!({ "replicas": 1 }))).unwrap();
        assert_eq!(
            (&first["replicas"], &first["readyReplicas"]),
            (&json!(1), &json!(0))
        );
        let nothing = CollaSetStatus::default();
        assert_eq!(set_status_patch(None, &nothing), None);
    }

    #[test]
    fn lasting_failure_is_written_once() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let planned = || {
            let conditions = json!([
                { "type": "Scale", "status": "True", "reason": "Scaled" },
                { "type": "Update", "status": "True" },
            ]);
            Some(status(json!({ "replicas": 2, "conditions": conditions })))
        };
        let result = Err(StageError::Failed(FailedStep::ScaleOut, "no quota".into()));
        let first = desired_status(
            &CollaSetStatus::default(),
            (planned(), &Shortfall::default()),
            &result,
            at(1),
        );
        assert_eq!(first.replicas, 2);
        let scale = first
            .conditions
            .iter()
            .find(|c| c.type_ == "Scale")
            .unwrap();
        assert_eq!((&*scale.status, &*scale.message), ("False", "no quota"));
        let second = desired_status(&first, (planned(), &Shortfall::default()), &result, at(2));
        assert_eq!(set_status_patch(Some(&first), &second), None);
        let recovered = desired_status(&first, (planned(), &Shortfall::default()), &Ok(()), at(3));
        assert!(set_status_patch(Some(&first), &recovered).is_some());
    }

    #[test]
    fn failure_of_deleted_set_changes_ready_condition_only() {
        let conditions = json!([{ "type": "Terminating", "status": "False" }]);
        let planned = Some(status(json!({ "conditions": conditions })));
        let status = desired_status(
            &CollaSetStatus::default(),
            (planned, &Shortfall::default()),
            &Err(StageError::Failed(FailedStep::ScaleIn, "policy".into())),
            Timestamp::UNIX_EPOCH,
        );
        let types: Vec<_> = status.conditions.iter().map(|c| &*c.type_).collect();
        assert_eq!(types, ["Terminating", "Ready"]);
    }

    #[test]
    fn revision_collision_is_counted() {
        let current = status(json!({ "collisionCount": 2 }));
        let now = Timestamp::UNIX_EPOCH;
        let after = desired_status(
            &current,
            (None, &Shortfall::default()),
            &Err(StageError::Collision),
            now,
        );
        assert_eq!(after.collision_count, Some(3));
    }
}
