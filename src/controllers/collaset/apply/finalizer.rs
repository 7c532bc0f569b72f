//! Adds and removes the finalizer that keeps a CollaSet until its objects are reclaimed (contract 2.3).

use kube::core::params::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::super::refusals::RefusalKey;
use super::super::requests::{RequestError, StageError, request_with_deadline};
use super::{PlanExecution, events};
use crate::api::keys;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::controllers::finalizer_answer;
use crate::domain::collaset::status::FailedStep;
use crate::domain::pod::PodMetadata;

/// Adds the finalizer. A failure is reported by an Event.
pub async fn add_finalizer(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let mut all = other_finalizers(execution);
    all.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
    let written = patch_finalizers(execution, &all).await;
    let written = written.and_then(|answer| {
        let description = describe_finalizer(execution);
        finalizer_answer::check_added(&answer, keys::PRE_RECLAIM_FINALIZER, &description)
    });
    let written = written.map_err(|error| error.into_stage_error(FailedStep::Revisions));
    let result = execution.requeue_if_written(written);
    events::announce_failure(execution, "FailedAddFinalizer", &result);
    result
}

/// Removes the finalizer. The set is gone then, unless it has other finalizers.
pub async fn remove_finalizer(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let written = patch_finalizers(execution, &other_finalizers(execution)).await;
    let is_gone = written.and_then(|answer| {
        let description = describe_finalizer(execution);
        finalizer_answer::check_removed(&answer, keys::PRE_RECLAIM_FINALIZER, &description)
    });
    if is_gone == Ok(true) {
        let sets = &execution.objects().sets;
        sets.apply_own_delete(execution.namespace(), execution.name(), execution.uid());
    }
    let result = match is_gone {
        Ok(_) => Ok(()),
        Err(error) => Err(error.into_stage_error(FailedStep::Revisions)),
    };
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
    result
}

fn describe_finalizer(execution: &PlanExecution<'_>) -> String {
    format!("the finalizer of CollaSet {}", execution.name())
}

fn other_finalizers(execution: &PlanExecution<'_>) -> Vec<String> {
    let all = execution.set.metadata.finalizers.iter().flatten();
    all.filter(|f| *f != keys::PRE_RECLAIM_FINALIZER)
        .cloned()
        .collect()
}

/// Writes the finalizers, and returns the metadata of the answer. A merge patch replaces the whole list, and therefore has the resourceVersion of the plan as
/// precondition.
async fn patch_finalizers(
    execution: &PlanExecution<'_>,
    finalizers: &[String],
) -> Result<PodMetadata, RequestError> {
    let metadata = &execution.set.metadata;
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "finalizers": finalizers,
    } }));
    let object = (execution.namespace(), execution.name());
    let request = object_requests::patch_for_answer::<CollaSetObject>(
        execution.client(),
        execution.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&format!("CollaSet {}", execution.name()), request).await
}
