//! Adds and removes the finalizer that keeps a CollaSet until its objects are reclaimed (contract 2.3).

use kube::core::params::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::super::refusals::RefusalKey;
use super::super::requests::{RequestError, StageError, request_with_deadline};
use super::{PlanExecution, events};
use crate::api::keys;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::domain::collaset::status::FailedStep;

/// Adds the finalizer. A failure is reported by an Event.
pub async fn add_finalizer(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let mut all = other_finalizers(execution);
    all.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
    let written = patch_finalizers(execution, &all)
        .await
        .and_then(|()| check_finalizer_written(execution));
    let result = execution.requeue_if_written(written);
    events::announce_failure(execution, "FailedAddFinalizer", &result);
    result
}

/// Checks that the set has the finalizer, by the cached answer of the API server. Without this check, a webhook that
/// removes the finalizer would cause the write again and again.
fn check_finalizer_written(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let cached = execution
        .objects()
        .sets
        .get(execution.namespace(), execution.name());
    let is_written = cached.is_none_or(|cached| {
        let mut all = cached.metadata.finalizers.iter().flatten();
        all.any(|finalizer| finalizer == keys::PRE_RECLAIM_FINALIZER)
    });
    let description = format!("the finalizer of CollaSet {}", execution.name());
    match is_written {
        true => Ok(()),
        false => {
            Err(RequestError::not_as_written(&description).into_stage_error(FailedStep::Revisions))
        }
    }
}

/// Removes the finalizer. The set is gone then, unless it has other finalizers.
pub async fn remove_finalizer(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let others = other_finalizers(execution);
    let result = patch_finalizers(execution, &others).await;
    events::announce_failure(execution, "FailedRemoveFinalizer", &result);
    match &result {
        Ok(()) => execution.state.clear_refusal(&RefusalKey::Finalizer),
        Err(StageError::Failed(_, message)) => {
            let now = Instant::now(); // the next status reports this refusal
            execution.state.record_refusal(
                RefusalKey::Finalizer,
                message,
                now,
                execution.generation(),
            );
        }
        Err(_) => {}
    }
    if result.is_ok() && others.is_empty() {
        let sets = &execution.objects().sets;
        sets.apply_own_delete(execution.namespace(), execution.name(), execution.uid());
    }
    result
}

fn other_finalizers(execution: &PlanExecution<'_>) -> Vec<String> {
    let all = execution.set.metadata.finalizers.iter().flatten();
    all.filter(|f| *f != keys::PRE_RECLAIM_FINALIZER)
        .cloned()
        .collect()
}

/// Writes the finalizers. A merge patch replaces the whole list, and therefore has the resourceVersion of the plan as
/// precondition.
async fn patch_finalizers(
    execution: &PlanExecution<'_>,
    finalizers: &[String],
) -> Result<(), StageError> {
    let metadata = &execution.set.metadata;
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "finalizers": finalizers,
    } }));
    let object = (execution.namespace(), execution.name());
    let request = object_requests::patch_object::<CollaSetObject>(
        execution.client(),
        execution.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&format!("CollaSet {}", execution.name()), request)
        .await
        .map_err(|error| error.into_stage_error(FailedStep::Revisions))
}
