//! Removes the annotation by which users command a rollout, once the command has been carried out.

use std::collections::BTreeMap;

use kube::core::params::Patch;
use serde_json::json;

use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::RefusalKey;
use super::super::requests::{Halt, RequestError, request_with_deadline};
use super::batch::{self, WriteRequest};
use super::{PlanExecution, events};
use crate::api::keys;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::domain::collaset::status::FailedStep;

/// Removes the annotation. A refusal is reported by an Event and is not an error: the status has recorded the command,
/// so it is not carried out again.
pub async fn clear_rollout_command(work: &PlanExecution<'_>) -> Result<(), Halt> {
    let step = FailedStep::Update;
    let write = WriteRequest {
        key: RefusalKey::Command,
        step,
        request: remove_command_annotation(work, step),
    };
    let removed = batch::send_write(work, write).await;
    match &removed {
        Err(Halt::Failed(..)) => {
            events::announce_failure(work, "RolloutCommandNotRemoved", &removed);
            Ok(())
        }
        Ok(()) => {
            work.state.clear_late_refusals(); // the user who commands a rollout may have fixed the cause
            work.requeue_after(MIN_RECONCILE_INTERVAL); // no event enqueues the set: the caches contain the result
            removed
        }
        Err(_) => removed,
    }
}

/// Removes the annotation on condition of the resourceVersion of the plan. A command that was given since then stays.
async fn remove_command_annotation(work: &PlanExecution<'_>, step: FailedStep) -> Result<(), Halt> {
    let metadata = &work.set.metadata;
    let annotations = metadata.annotations.as_ref();
    let command = annotations.and_then(|annotations| annotations.get(keys::ROLLOUT));
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "annotations": { keys::ROLLOUT: null },
    } }));
    let object = (work.namespace(), work.name());
    let request = object_requests::patch_object::<CollaSetObject>(
        work.client(),
        work.objects(),
        object,
        &patch,
        false,
    );
    let what = format!(
        "CollaSet {}: the annotation {} could not be removed; it is not carried out again, remove it",
        work.name(),
        keys::ROLLOUT
    );
    request_with_deadline(&what, request)
        .await
        .map_err(|trouble| trouble.into_halt(step))?;
    let now = work.objects().sets.get(work.namespace(), work.name());
    let now = now.and_then(|now| now.metadata.annotations.clone());
    let same = |now: &BTreeMap<String, String>| now.get(keys::ROLLOUT) == command;
    match command.is_some() && now.as_ref().is_some_and(same) {
        true => Err(RequestError::not_as_written(&what).into_halt(step)),
        false => Ok(()),
    }
}
