//! Removes the annotation by which users command a rollout, once the command has been carried out.

use std::collections::BTreeMap;

use kube::core::params::Patch;
use serde_json::json;

use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::RefusalKey;
use super::super::requests::{RequestError, StageError, request_with_deadline};
use super::batch::{self, WriteRequest};
use super::{PlanExecution, events};
use crate::api::keys;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::domain::collaset::status::FailedStep;

/// Removes the annotation. A refusal is reported by an Event and is not an error: the status has recorded the command,
/// so it is not carried out again.
pub async fn clear_rollout_command(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let step = FailedStep::Update;
    let write = WriteRequest {
        key: RefusalKey::Command,
        step,
        request: remove_command_annotation(execution, step),
    };
    let removed = batch::send_write(execution, write).await;
    match &removed {
        Err(StageError::Failed(..)) => {
            events::announce_failure(execution, "RolloutCommandNotRemoved", &removed);
            Ok(())
        }
        Ok(()) => {
            execution.state.clear_late_refusals(); // the user who commands a rollout may have fixed the cause
            execution.requeue_after(MIN_RECONCILE_INTERVAL); // no event enqueues the set: the caches contain the result
            removed
        }
        Err(_) => removed,
    }
}

/// Removes the annotation on condition of the resourceVersion of the plan. A command that was given since then stays.
async fn remove_command_annotation(
    execution: &PlanExecution<'_>,
    step: FailedStep,
) -> Result<(), StageError> {
    let metadata = &execution.set.metadata;
    let annotations = metadata.annotations.as_ref();
    let command = annotations.and_then(|annotations| annotations.get(keys::ROLLOUT));
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "annotations": { keys::ROLLOUT: null },
    } }));
    let object = (execution.namespace(), execution.name());
    let request = object_requests::patch_object::<CollaSetObject>(
        execution.client(),
        execution.objects(),
        object,
        &patch,
        false,
    );
    let description = format!(
        "CollaSet {}: the annotation {} could not be removed; it is not carried out again, remove it",
        execution.name(),
        keys::ROLLOUT
    );
    request_with_deadline(&description, request)
        .await
        .map_err(|error| error.into_stage_error(step))?;
    let cached = execution
        .objects()
        .sets
        .get(execution.namespace(), execution.name());
    let annotations = cached.and_then(|cached| cached.metadata.annotations.clone());
    let is_unchanged =
        |annotations: &BTreeMap<String, String>| annotations.get(keys::ROLLOUT) == command;
    match command.is_some() && annotations.as_ref().is_some_and(is_unchanged) {
        true => Err(RequestError::not_as_written(&description).into_stage_error(step)),
        false => Ok(()),
    }
}
