//! Adds and removes the finalizer that keeps a CollaSet until its objects are reclaimed (contract 2.3).

use kube::core::params::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::super::refusals::RefusalKey;
use super::super::requests::{Halt, RequestError, request_with_deadline};
use super::{PlanExecution, events};
use crate::api::keys;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::domain::collaset::status::FailedStep;

/// Adds the finalizer. A failure is reported by an Event.
pub async fn add_finalizer(work: &PlanExecution<'_>) -> Result<(), Halt> {
    let mut all = other_finalizers(work);
    all.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
    let done = patch_finalizers(work, &all)
        .await
        .and_then(|()| check_finalizer_written(work));
    let done = work.requeue_if_written(done);
    events::announce_failure(work, "FailedAddFinalizer", &done);
    done
}

/// Checks that the set has the finalizer, by the cached answer of the API server. Without this check, a webhook that
/// removes the finalizer would cause the write again and again.
fn check_finalizer_written(work: &PlanExecution<'_>) -> Result<(), Halt> {
    let now = work.objects().sets.get(work.namespace(), work.name());
    let is_there = now.is_none_or(|now| {
        let mut all = now.metadata.finalizers.iter().flatten();
        all.any(|finalizer| finalizer == keys::PRE_RECLAIM_FINALIZER)
    });
    let what = format!("the finalizer of CollaSet {}", work.name());
    match is_there {
        true => Ok(()),
        false => Err(RequestError::not_as_written(&what).into_halt(FailedStep::Revisions)),
    }
}

/// Removes the finalizer. The set is gone then, unless it has other finalizers.
pub async fn remove_finalizer(work: &PlanExecution<'_>) -> Result<(), Halt> {
    let others = other_finalizers(work);
    let done = patch_finalizers(work, &others).await;
    events::announce_failure(work, "FailedRemoveFinalizer", &done);
    match &done {
        Ok(()) => work.state.clear_refusal(&RefusalKey::Finalizer),
        Err(Halt::Failed(_, why)) => {
            let now = Instant::now(); // the next status reports it
            work.state
                .record_refusal(RefusalKey::Finalizer, why, now, work.generation());
        }
        Err(_) => {}
    }
    if done.is_ok() && others.is_empty() {
        let sets = &work.objects().sets;
        sets.apply_own_delete(work.namespace(), work.name(), work.uid());
    }
    done
}

fn other_finalizers(work: &PlanExecution<'_>) -> Vec<String> {
    let all = work.set.metadata.finalizers.iter().flatten();
    all.filter(|f| *f != keys::PRE_RECLAIM_FINALIZER)
        .cloned()
        .collect()
}

/// Writes the finalizers. A merge patch replaces the whole list, and therefore has the resourceVersion of the plan as
/// precondition.
async fn patch_finalizers(work: &PlanExecution<'_>, finalizers: &[String]) -> Result<(), Halt> {
    let metadata = &work.set.metadata;
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "finalizers": finalizers,
    } }));
    let object = (work.namespace(), work.name());
    let request = object_requests::patch_object::<CollaSetObject>(
        work.client(),
        work.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&format!("CollaSet {}", work.name()), request)
        .await
        .map_err(|trouble| trouble.into_halt(FailedStep::Revisions))
}
