//! Writes ControllerRevisions (contract 6.1).

use std::sync::Arc;

use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::owner;
use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{RequestError, StageError, request_with_deadline, worse_result};
use super::PlanExecution;
use super::batch::{self, WriteRequest};
use crate::api::keys;
use crate::cluster::objects::{RevisionObject, object_requests};
use crate::domain::collaset::construct::controller_reference;
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::plan::{OwnershipChange, RevisionChange};
use crate::domain::collaset::status::FailedStep;

/// Writes the changes of revisions. The revision of the template comes first.
pub async fn write_revisions(
    execution: &PlanExecution<'_>,
    changes: Vec<RevisionChange>,
) -> Result<(), StageError> {
    let is_new = |change: &RevisionChange| {
        matches!(
            change,
            RevisionChange::Create(_) | RevisionChange::Renumber(..)
        )
    };
    let (new, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_new);
    let mut result = Ok(());
    for change in new {
        let write = revision_write_request(execution, change);
        result = worse_result(result, batch::send_write(execution, write).await);
    }
    if matches!(result, Err(StageError::Moved | StageError::Collision)) {
        return result;
    }
    let others = others
        .into_iter()
        .map(|change| revision_write_request(execution, change));
    worse_result(
        result,
        batch::send_batch(execution, BatchKind::RevisionWrites, false, others).await,
    )
}

/// Whether the revision of the template can't be written now. The write is repeated when its backoff ends.
pub fn is_template_revision_refused(execution: &PlanExecution<'_>) -> bool {
    let refusal = execution.state.active_refusal(
        &RefusalKey::Revision,
        Instant::now(),
        execution.generation(),
    );
    match &refusal {
        Some((remaining, _)) => execution.requeue_after(*remaining),
        // The backoff has ended since the plan was made.
        None if execution.without_revision => execution.requeue_after(MIN_RECONCILE_INTERVAL),
        None => {}
    }
    refusal.is_some() && !execution.without_revision
}

fn revision_write_request<'a>(
    execution: &'a PlanExecution<'a>,
    change: RevisionChange,
) -> WriteRequest<impl Future<Output = Result<(), StageError>> + 'a> {
    let key = match &change {
        RevisionChange::Create(_) | RevisionChange::Renumber(..) => RefusalKey::Revision,
        RevisionChange::MarkStable(revision, _)
        | RevisionChange::Adopt(revision)
        | RevisionChange::Release(revision)
        | RevisionChange::Delete(revision) => RefusalKey::RevisionWrite(revision.name.clone()),
    };
    WriteRequest {
        key,
        step: FailedStep::Revisions,
        request: apply_revision_change(execution, change),
    }
}

async fn apply_revision_change(
    execution: &PlanExecution<'_>,
    change: RevisionChange,
) -> Result<(), StageError> {
    let result = match change {
        RevisionChange::Create(revision) => {
            return execution.requeue_if_written(create_revision(execution, &revision).await);
        }
        RevisionChange::Renumber(revision, number, stable) => {
            let body = json!({ "metadata": stable_revision_metadata(&stable), "revision": number });
            let result = patch_revision(execution, &revision, body, None).await;
            result.and_then(|()| {
                check_revision_written(execution, &revision, |cached| cached.revision == number)
            })
        }
        RevisionChange::MarkStable(revision, stable) => {
            let body = json!({ "metadata": stable_revision_metadata(&stable) });
            let result = patch_revision(execution, &revision, body, None).await;
            let is_marked = |cached: &Revision| cached.stable.as_ref() == Some(&stable);
            result.and_then(|()| check_revision_written(execution, &revision, is_marked))
        }
        RevisionChange::Adopt(revision) => {
            let owners = owner::owner_references_patch(execution.set, OwnershipChange::Adopt);
            let result = patch_revision(execution, &revision, json!({}), owners).await;
            let is_own = |cached: &Revision| cached.controller.as_deref() == Some(execution.uid());
            result.and_then(|()| check_revision_written(execution, &revision, is_own))
        }
        RevisionChange::Release(revision) => {
            let owners = owner::owner_references_patch(execution.set, OwnershipChange::Release);
            let result = patch_revision(execution, &revision, json!({}), owners).await;
            let is_released =
                |cached: &Revision| cached.controller.as_deref() != Some(execution.uid());
            result.and_then(|()| check_revision_written(execution, &revision, is_released))
        }
        RevisionChange::Delete(revision) => {
            let object = (execution.namespace(), &*revision.name, &*revision.uid);
            let version = Some(&*revision.resource_version);
            let request = object_requests::delete_object::<RevisionObject>(
                execution.client(),
                execution.objects(),
                object,
                version,
            );
            request_with_deadline(&describe_revision(&revision), request).await
        }
    };
    execution
        .requeue_if_written(result.map_err(|error| error.into_stage_error(FailedStep::Revisions)))
}

async fn create_revision(
    execution: &PlanExecution<'_>,
    revision: &Revision,
) -> Result<(), StageError> {
    let mut body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision.name,
            "namespace": execution.namespace(),
            "labels": revision.labels,
            "ownerReferences": [controller_reference(execution.set)],
        },
        "data": revision.data,
        "revision": revision.revision,
    });
    if let Some(stable) = &revision.stable {
        json_patch::merge(&mut body["metadata"], &stable_revision_metadata(stable));
    }
    let (client, objects) = (execution.client(), execution.objects());
    let request = object_requests::create_object::<RevisionObject>(
        client,
        objects,
        execution.namespace(),
        &body,
    );
    match request_with_deadline(&describe_revision(revision), request).await {
        Ok(_) => {
            let is_created =
                |cached: &Revision| is_revision_as_written(execution, revision, cached);
            check_revision_written(execution, revision, is_created)
                .map_err(|error| error.into_stage_error(FailedStep::Revisions))
        }
        Err(RequestError::Exists) => {
            let object = (execution.namespace(), &*revision.name);
            let request = object_requests::get_object::<RevisionObject>(client, objects, object);
            let existing = request_with_deadline(&describe_revision(revision), request)
                .await
                .map_err(|error| error.into_stage_error(FailedStep::Revisions))?;
            check_existing_revision(execution, revision, existing).await
        }
        Err(error) => Err(error.into_stage_error(FailedStep::Revisions)),
    }
}

/// Handles a revision whose name exists. If an earlier attempt created the revision, this function restores what
/// somebody removed from it. If the revision has other data or another owner, [`StageError::Collision`] causes another
/// name.
async fn check_existing_revision(
    execution: &PlanExecution<'_>,
    wanted: &Revision,
    existing: Option<Arc<Revision>>,
) -> Result<(), StageError> {
    let own = Some(execution.uid());
    let may_be_ours = |existing: &Revision| {
        let owner = existing.controller.as_deref();
        (owner.is_none() || owner == own) && existing.data == wanted.data
    };
    let Some(existing) = existing.filter(|existing| may_be_ours(existing)) else {
        return Err(StageError::Collision);
    };
    if is_revision_as_written(execution, wanted, &existing) {
        return Ok(());
    }
    let owners = owner::owner_references_patch(execution.set, OwnershipChange::Adopt);
    let body = json!({ "metadata": { "labels": wanted.labels } });
    let result = patch_revision(execution, &existing, body, owners).await;
    let is_repaired = |cached: &Revision| is_revision_as_written(execution, wanted, cached);
    let repaired = result.and_then(|()| check_revision_written(execution, wanted, is_repaired));
    repaired.map_err(|error| error.into_stage_error(FailedStep::Revisions))
}

/// Whether a revision has the data, the labels and the owner that it was to be created with.
fn is_revision_as_written(
    execution: &PlanExecution<'_>,
    wanted: &Revision,
    cached: &Revision,
) -> bool {
    let mut labels = wanted.labels.iter();
    cached.controller.as_deref() == Some(execution.uid())
        && cached.data == wanted.data
        && labels.all(|(key, value)| cached.labels.get(key) == Some(value))
}

async fn patch_revision(
    execution: &PlanExecution<'_>,
    revision: &Revision,
    mut body: Value,
    owners: Option<Value>,
) -> Result<(), RequestError> {
    // Only a patch of owner references is a strategic merge patch. A strategic merge reorders the keys of `data`, and
    // the API server refuses each change of `data`.
    let is_strategic = owners.is_some();
    let mut metadata = json!({ "uid": revision.uid, "resourceVersion": revision.resource_version });
    if let Some(owners) = owners {
        metadata["ownerReferences"] = owners;
    }
    json_patch::merge(&mut body, &json!({ "metadata": metadata }));
    let object = (execution.namespace(), &*revision.name);
    let patch = match is_strategic {
        true => Patch::Strategic(body),
        false => Patch::Merge(body),
    };
    let request = object_requests::patch_object::<RevisionObject>(
        execution.client(),
        execution.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&describe_revision(revision), request).await
}

/// Checks by the cached answer of the API server that a revision contains what was written. Otherwise the revision
/// would be written again and again.
fn check_revision_written(
    execution: &PlanExecution<'_>,
    revision: &Revision,
    is_written: impl FnOnce(&Revision) -> bool,
) -> Result<(), RequestError> {
    let cached = execution
        .objects()
        .revisions
        .get(execution.namespace(), &revision.name);
    match cached.is_none_or(|cached| is_written(&cached)) {
        true => Ok(()),
        false => Err(RequestError::not_as_written(&describe_revision(revision))),
    }
}

/// Metadata with the name of the stable revision.
fn stable_revision_metadata(name: &str) -> Value {
    json!({ "annotations": { keys::STABLE_REVISION: name } })
}

fn describe_revision(revision: &Revision) -> String {
    format!("ControllerRevision {}", revision.name)
}
