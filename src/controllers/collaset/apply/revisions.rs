//! ControllerRevisions (contract 6.1).

use std::sync::Arc;

use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::call::{Halt, Trouble, call, worse};
use super::super::memory::SPACING;
use super::super::owner;
use super::super::refusals::{Key, Kind};
use super::Work;
use super::batch::{self, Write};
use crate::api::keys;
use crate::cluster::objects::{RevisionObject, write};
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::plan::{Ownership, RevisionChange};
use crate::domain::collaset::status::Step;

/// Writes them.
pub async fn write(work: &Work<'_>, changes: Vec<RevisionChange>) -> Result<(), Halt> {
    let is_new = |change: &RevisionChange| {
        matches!(
            change,
            RevisionChange::Create(_) | RevisionChange::Renumber(..)
        )
    };
    let (new, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_new);
    let mut result = Ok(());
    for change in new {
        let write = write_of(work, change);
        result = worse(result, batch::one(work, write).await);
    }
    if matches!(result, Err(Halt::Moved | Halt::Collision)) {
        return result;
    }
    let others = others.into_iter().map(|change| write_of(work, change));
    worse(
        result,
        batch::send(work, Kind::RevisionWrites, false, others).await,
    )
}

/// Whether the revision of the template can't be written for now. It is tried again when its pause is over.
pub fn must_do_without(work: &Work<'_>) -> bool {
    let refused = work
        .memory
        .refused(&Key::Revision, Instant::now(), work.generation());
    match &refused {
        Some((left, _)) => work.again(*left),
        None if work.without_revision => work.again(SPACING), // the pause was over before the plan was
        None => {}
    }
    refused.is_some() && !work.without_revision
}

fn write_of<'a>(
    work: &'a Work<'a>,
    change: RevisionChange,
) -> Write<impl Future<Output = Result<(), Halt>> + 'a> {
    let key = match &change {
        RevisionChange::Create(_) | RevisionChange::Renumber(..) => Key::Revision,
        RevisionChange::Note(revision, _)
        | RevisionChange::Adopt(revision)
        | RevisionChange::Release(revision)
        | RevisionChange::Delete(revision) => Key::RevisionWrite(revision.name.clone()),
    };
    Write {
        key,
        step: Step::Revisions,
        request: one(work, change),
    }
}

async fn one(work: &Work<'_>, change: RevisionChange) -> Result<(), Halt> {
    let done = match change {
        RevisionChange::Create(revision) => {
            return work.again_if_written(create(work, &revision).await);
        }
        RevisionChange::Renumber(revision, number, stable) => {
            let body = json!({ "metadata": stable_of(&stable), "revision": number });
            let done = patch(work, &revision, body, None).await;
            done.and_then(|()| holds(work, &revision, |now| now.revision == number))
        }
        RevisionChange::Note(revision, stable) => {
            let body = json!({ "metadata": stable_of(&stable) });
            let done = patch(work, &revision, body, None).await;
            let is_noted = |now: &Revision| now.stable.as_ref() == Some(&stable);
            done.and_then(|()| holds(work, &revision, is_noted))
        }
        RevisionChange::Adopt(revision) => {
            let owners = owner::patch(work.set, Ownership::Adopt);
            let done = patch(work, &revision, json!({}), owners).await;
            let is_own = |now: &Revision| now.controller.as_deref() == Some(work.uid());
            done.and_then(|()| holds(work, &revision, is_own))
        }
        RevisionChange::Release(revision) => {
            let owners = owner::patch(work.set, Ownership::Release);
            let done = patch(work, &revision, json!({}), owners).await;
            let is_free = |now: &Revision| now.controller.as_deref() != Some(work.uid());
            done.and_then(|()| holds(work, &revision, is_free))
        }
        RevisionChange::Delete(revision) => {
            let object = (work.namespace(), &*revision.name, &*revision.uid);
            let version = Some(&*revision.resource_version);
            let request =
                write::delete::<RevisionObject>(work.client(), work.objects(), object, version);
            call(&what(&revision), request).await
        }
    };
    work.again_if_written(done.map_err(|trouble| trouble.halt(Step::Revisions)))
}

async fn create(work: &Work<'_>, revision: &Revision) -> Result<(), Halt> {
    let mut body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision.name,
            "namespace": work.namespace(),
            "labels": revision.labels,
            "ownerReferences": [owner::reference(work.set)],
        },
        "data": revision.data,
        "revision": revision.revision,
    });
    if let Some(stable) = &revision.stable {
        json_patch::merge(&mut body["metadata"], &stable_of(stable));
    }
    let (client, objects) = (work.client(), work.objects());
    let request = write::create::<RevisionObject>(client, objects, work.namespace(), &body);
    match call(&what(revision), request).await {
        Ok(_) => {
            let is_made = |now: &Revision| is_as_written(work, revision, now);
            holds(work, revision, is_made).map_err(|trouble| trouble.halt(Step::Revisions))
        }
        Err(Trouble::Exists) => {
            let object = (work.namespace(), &*revision.name);
            let request = write::get::<RevisionObject>(client, objects, object);
            let there = call(&what(revision), request)
                .await
                .map_err(|trouble| trouble.halt(Step::Revisions))?;
            is_the_same(work, revision, there).await
        }
        Err(trouble) => Err(trouble.halt(Step::Revisions)),
    }
}

/// The work of an earlier attempt is fine, and gets back what somebody has taken out of it; other data, or another's, asks for another
/// name.
async fn is_the_same(
    work: &Work<'_>,
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
    if is_as_written(work, wanted, &there) {
        return Ok(());
    }
    let owners = owner::patch(work.set, Ownership::Adopt);
    let body = json!({ "metadata": { "labels": wanted.labels } });
    let done = patch(work, &there, body, owners).await;
    let is_mended = |now: &Revision| is_as_written(work, wanted, now);
    let mended = done.and_then(|()| holds(work, wanted, is_mended));
    mended.map_err(|trouble| trouble.halt(Step::Revisions))
}

/// Whether a revision has the data, the labels and the owner that it was to be made with.
fn is_as_written(work: &Work<'_>, wanted: &Revision, now: &Revision) -> bool {
    let mut labels = wanted.labels.iter();
    now.controller.as_deref() == Some(work.uid())
        && now.data == wanted.data
        && labels.all(|(key, value)| now.labels.get(key) == Some(value))
}

async fn patch(
    work: &Work<'_>,
    revision: &Revision,
    mut body: Value,
    owners: Option<Value>,
) -> Result<(), Trouble> {
    // A strategic merge writes the keys of the data in their order, and the API server refuses what changes the data so.
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
    let request =
        write::patch::<RevisionObject>(work.client(), work.objects(), object, &patch, false);
    call(&what(revision), request).await
}

/// That a revision holds what was written, as far as the cache knows the answer: otherwise it would be written again and again.
fn holds(
    work: &Work<'_>,
    revision: &Revision,
    is_written: impl FnOnce(&Revision) -> bool,
) -> Result<(), Trouble> {
    let now = work
        .objects()
        .revisions
        .get(work.namespace(), &revision.name);
    match now.is_none_or(|now| is_written(&now)) {
        true => Ok(()),
        false => Err(Trouble::is_not_as_written(&what(revision))),
    }
}

/// Metadata that name the stable revision.
fn stable_of(name: &str) -> Value {
    json!({ "annotations": { keys::STABLE_REVISION: name } })
}

fn what(revision: &Revision) -> String {
    format!("ControllerRevision {}", revision.name)
}
