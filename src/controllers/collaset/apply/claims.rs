//! PersistentVolumeClaims (contract 6.8).

use kube::core::params::Patch;
use serde_json::{Value, json};

use super::super::call::{Halt, Trouble, call, worse};
use super::super::names::Slot;
use super::super::owner;
use super::super::refusals::{Key, Kind};
use super::batch::{self, Write};
use super::{Work, pods};
use crate::api::keys;
use crate::cluster::workloads::{ClaimObject, write};
use crate::domain::collaset::observed::Claim;
use crate::domain::collaset::plan::{ClaimChange, Ownership};
use crate::domain::collaset::status::Step;
use crate::domain::lifecycle::LabelPatch;

/// Writes them.
pub async fn write(work: &Work<'_>, changes: Vec<ClaimChange>) -> Result<(), Halt> {
    let creates = |change: &ClaimChange| matches!(change, ClaimChange::Create { .. });
    let (created, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(creates);
    let others = others.into_iter().map(|change| write_of(work, change));
    let changed = batch::send(work, Kind::ClaimWrites, false, others).await;
    let created = created.into_iter().map(|change| write_of(work, change));
    worse(
        changed,
        batch::send(work, Kind::ClaimCreations, true, created).await,
    )
}

fn write_of<'a>(
    work: &'a Work<'a>,
    change: ClaimChange,
) -> Write<impl Future<Output = Result<(), Halt>> + 'a> {
    let key = match &change {
        ClaimChange::Create { id, template, .. } => Key::Claim(*id, template.clone()),
        ClaimChange::Patch { claim, .. } | ClaimChange::Delete(claim) => {
            Key::ClaimWrite(claim.name.clone())
        }
    };
    Write {
        key,
        step: Step::Claims,
        request: one(work, change),
    }
}

async fn one(work: &Work<'_>, change: ClaimChange) -> Result<(), Halt> {
    let done = match change {
        ClaimChange::Create { id, template, body } => {
            return create(work, id, &Slot::Claim(id, template), body).await;
        }
        ClaimChange::Patch {
            claim,
            labels,
            ownership,
        } => {
            let patch = Patch::Strategic(patch(work, &claim, &labels, ownership));
            let object = (work.namespace(), &*claim.name);
            let request =
                write::patch::<ClaimObject>(work.client(), work.objects(), object, &patch, false);
            call(&what(&claim.name), request).await
        }
        ClaimChange::Delete(claim) => {
            let object = (work.namespace(), &*claim.name, &*claim.uid);
            let request = write::delete::<ClaimObject>(work.client(), work.objects(), object, None);
            call(&what(&claim.name), request).await
        }
    };
    done.map_err(|trouble| trouble.halt(Step::Claims))
}

async fn create(work: &Work<'_>, id: i64, slot: &Slot, mut body: Value) -> Result<(), Halt> {
    let name = pods::named(work, slot, &mut body);
    let (client, objects) = (work.client(), work.objects());
    let request = write::create::<ClaimObject>(client, objects, work.namespace(), &body);
    let halt = |trouble: Trouble| trouble.halt(Step::Claims);
    match call(&what(&name), request).await {
        Ok(()) => {}
        Err(Trouble::Exists) => {
            let request = write::get::<ClaimObject>(client, objects, (work.namespace(), &name));
            let there = call(&what(&name), request).await.map_err(halt)?;
            let id = id.to_string();
            let is_ours = there.is_some_and(|claim| {
                claim.controller.as_deref() == Some(work.uid())
                    && claim.labels.get(keys::INSTANCE_ID) == Some(&id)
            });
            if !is_ours {
                work.memory.forget(slot);
                return Err(Halt::Moved);
            }
        }
        Err(trouble) => return Err(halt(trouble)),
    }
    work.memory.forget(slot);
    Ok(())
}

fn patch(work: &Work<'_>, claim: &Claim, labels: &LabelPatch, ownership: Ownership) -> Value {
    let mut metadata = json!({ "uid": claim.uid, "resourceVersion": claim.resource_version });
    if !labels.is_empty() {
        metadata["labels"] = labels.to_merge_patch();
    }
    if let Some(owners) = owner::patch(work.set, ownership) {
        metadata["ownerReferences"] = owners;
    }
    json!({ "metadata": metadata })
}

fn what(name: &str) -> String {
    format!("PersistentVolumeClaim {name}")
}
