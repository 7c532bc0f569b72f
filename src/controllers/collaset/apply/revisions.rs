//! Writes ControllerRevisions (contract 6.1).

use std::sync::Arc;

use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::owner;
use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{Halt, RequestError, request_with_deadline, worse_result};
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
    work: &PlanExecution<'_>,
    changes: Vec<RevisionChange>,
) -> Result<(), Halt> {
    let is_new = |change: &RevisionChange| {
        matches!(
            change,
            RevisionChange::Create(_) | RevisionChange::Renumber(..)
        )
    };
    let (new, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_new);
    let mut result = Ok(());
    for change in new {
        let write = revision_write_request(work, change);
        result = worse_result(result, batch::send_write(work, write).await);
    }
    if matches!(result, Err(Halt::Moved | Halt::Collision)) {
        return result;
    }
    let others = others
        .into_iter()
        .map(|change| revision_write_request(work, change));
    worse_result(
        result,
        batch::send_batch(work, BatchKind::RevisionWrites, false, others).await,
    )
}

/// Whether the revision of the template can't be written now. The write is repeated when its backoff ends.
pub fn is_template_revision_refused(work: &PlanExecution<'_>) -> bool {
    let refused =
        work.state
            .active_refusal(&RefusalKey::Revision, Instant::now(), work.generation());
    match &refused {
        Some((left, _)) => work.requeue_after(*left),
        None if work.without_revision => work.requeue_after(MIN_RECONCILE_INTERVAL), // the backoff has ended already
        None => {}
    }
    refused.is_some() && !work.without_revision
}

fn revision_write_request<'a>(
    work: &'a PlanExecution<'a>,
    change: RevisionChange,
) -> WriteRequest<impl Future<Output = Result<(), Halt>> + 'a> {
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
        request: apply_revision_change(work, change),
    }
}

async fn apply_revision_change(
    work: &PlanExecution<'_>,
    change: RevisionChange,
) -> Result<(), Halt> {
    let done = match change {
        RevisionChange::Create(revision) => {
            return work.requeue_if_written(create_revision(work, &revision).await);
        }
        RevisionChange::Renumber(revision, number, stable) => {
            let body = json!({ "metadata": stable_revision_metadata(&stable), "revision": number });
            let done = patch_revision(work, &revision, body, None).await;
            done.and_then(|()| {
                check_revision_written(work, &revision, |now| now.revision == number)
            })
        }
        RevisionChange::MarkStable(revision, stable) => {
            let body = json!({ "metadata": stable_revision_metadata(&stable) });
            let done = patch_revision(work, &revision, body, None).await;
            let is_noted = |now: &Revision| now.stable.as_ref() == Some(&stable);
            done.and_then(|()| check_revision_written(work, &revision, is_noted))
        }
        RevisionChange::Adopt(revision) => {
            let owners = owner::owner_references_patch(work.set, OwnershipChange::Adopt);
            let done = patch_revision(work, &revision, json!({}), owners).await;
            let is_own = |now: &Revision| now.controller.as_deref() == Some(work.uid());
            done.and_then(|()| check_revision_written(work, &revision, is_own))
        }
        RevisionChange::Release(revision) => {
            let owners = owner::owner_references_patch(work.set, OwnershipChange::Release);
            let done = patch_revision(work, &revision, json!({}), owners).await;
            let is_free = |now: &Revision| now.controller.as_deref() != Some(work.uid());
            done.and_then(|()| check_revision_written(work, &revision, is_free))
        }
        RevisionChange::Delete(revision) => {
            let object = (work.namespace(), &*revision.name, &*revision.uid);
            let version = Some(&*revision.resource_version);
            let request = object_requests::delete_object::<RevisionObject>(
                work.client(),
                work.objects(),
                object,
                version,
            );
            request_with_deadline(&describe_revision(&revision), request).await
        }
    };
    work.requeue_if_written(done.map_err(|trouble| trouble.into_halt(FailedStep::Revisions)))
}

async fn create_revision(work: &PlanExecution<'_>, revision: &Revision) -> Result<(), Halt> {
    let mut body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision.name,
            "namespace": work.namespace(),
            "labels": revision.labels,
            "ownerReferences": [controller_reference(work.set)],
        },
        "data": revision.data,
        "revision": revision.revision,
    });
    if let Some(stable) = &revision.stable {
        json_patch::merge(&mut body["metadata"], &stable_revision_metadata(stable));
    }
    let (client, objects) = (work.client(), work.objects());
    let request =
        object_requests::create_object::<RevisionObject>(client, objects, work.namespace(), &body);
    match request_with_deadline(&describe_revision(revision), request).await {
        Ok(_) => {
            let is_made = |now: &Revision| is_revision_as_written(work, revision, now);
            check_revision_written(work, revision, is_made)
                .map_err(|trouble| trouble.into_halt(FailedStep::Revisions))
        }
        Err(RequestError::Exists) => {
            let object = (work.namespace(), &*revision.name);
            let request = object_requests::get_object::<RevisionObject>(client, objects, object);
            let there = request_with_deadline(&describe_revision(revision), request)
                .await
                .map_err(|trouble| trouble.into_halt(FailedStep::Revisions))?;
            check_existing_revision(work, revision, there).await
        }
        Err(trouble) => Err(trouble.into_halt(FailedStep::Revisions)),
    }
}

/// Handles a revision whose name exists. If an earlier attempt created the revision, this function restores what
/// somebody removed from it. If the revision has other data or another owner, [`Halt::Collision`] causes another name.
async fn check_existing_revision(
    work: &PlanExecution<'_>,
    wanted: &Revision,
    there: Option<Arc<Revision>>,
) -> Result<(), Halt> {
    let own = Some(work.uid());
    let may_be_ours = |there: &Revision| {
        let owner = there.controller.as_deref();
        (owner.is_none() || owner == own) && there.data == wanted.data
    };
    let Some(there) = there.filter(|there| may_be_ours(there)) else {
        return Err(Halt::Collision);
    };
    if is_revision_as_written(work, wanted, &there) {
        return Ok(());
    }
    let owners = owner::owner_references_patch(work.set, OwnershipChange::Adopt);
    let body = json!({ "metadata": { "labels": wanted.labels } });
    let done = patch_revision(work, &there, body, owners).await;
    let is_mended = |now: &Revision| is_revision_as_written(work, wanted, now);
    let mended = done.and_then(|()| check_revision_written(work, wanted, is_mended));
    mended.map_err(|trouble| trouble.into_halt(FailedStep::Revisions))
}

/// Whether a revision has the data, the labels and the owner that it was to be created with.
fn is_revision_as_written(work: &PlanExecution<'_>, wanted: &Revision, now: &Revision) -> bool {
    let mut labels = wanted.labels.iter();
    now.controller.as_deref() == Some(work.uid())
        && now.data == wanted.data
        && labels.all(|(key, value)| now.labels.get(key) == Some(value))
}

async fn patch_revision(
    work: &PlanExecution<'_>,
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
    let object = (work.namespace(), &*revision.name);
    let patch = match is_strategic {
        true => Patch::Strategic(body),
        false => Patch::Merge(body),
    };
    let request = object_requests::patch_object::<RevisionObject>(
        work.client(),
        work.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&describe_revision(revision), request).await
}

/// Checks by the cached answer of the API server that a revision contains what was written. Otherwise the revision
/// would be written again and again.
fn check_revision_written(
    work: &PlanExecution<'_>,
    revision: &Revision,
    is_written: impl FnOnce(&Revision) -> bool,
) -> Result<(), RequestError> {
    let now = work
        .objects()
        .revisions
        .get(work.namespace(), &revision.name);
    match now.is_none_or(|now| is_written(&now)) {
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
