//! PersistentVolumeClaims (contract 6.8).

use std::time::Duration;

use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::super::call::{Halt, Trouble, call, worse};
use super::super::names::Slot;
use super::super::owner;
use super::super::refusals::{Key, Kind};
use super::batch::{self, Write};
use super::look::Look;
use super::{Work, pods};
use crate::api::keys;
use crate::cluster::objects::{ClaimObject, write};
use crate::domain::collaset::claims;
use crate::domain::collaset::observed::Claim;
use crate::domain::collaset::plan::{self, ClaimChange, Ownership};
use crate::domain::collaset::status::Step;
use crate::domain::lifecycle::LabelPatch;

/// A claim that somebody's Pod mounts is looked at again after this time.
const MOUNTED: Duration = Duration::from_secs(10);

/// Writes them.
pub async fn write(work: &Work<'_>, changes: Vec<ClaimChange>, look: &Look) -> Result<(), Halt> {
    let creates = |change: &ClaimChange| matches!(change, ClaimChange::Create { .. });
    let (created, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(creates);
    let others = others
        .into_iter()
        .map(|change| write_of(work, change, look));
    let changed = batch::send(work, Kind::ClaimWrites, false, others).await;
    let created = created
        .into_iter()
        .map(|change| write_of(work, change, look));
    worse(
        changed,
        batch::send(work, Kind::ClaimCreations, true, created).await,
    )
}

fn write_of<'a>(
    work: &'a Work<'a>,
    change: ClaimChange,
    look: &'a Look,
) -> Write<impl Future<Output = Result<(), Halt>> + 'a> {
    let key = match &change {
        ClaimChange::Create { id, template, .. } => Key::Claim(*id, template.clone()),
        ClaimChange::Patch { claim, .. }
        | ClaimChange::Delete(claim)
        | ClaimChange::LetGo(claim) => Key::ClaimWrite(claim.name.clone()),
    };
    let step = step(work, &change);
    let request = async move {
        let done = one(work, change, look).await;
        done.map_err(|halt| match halt {
            Halt::Failed(_, why) => Halt::Failed(step, why),
            halt => halt,
        })
    };
    Write { key, step, request }
}

/// What a change of a claim is a part of.
fn step(work: &Work<'_>, change: &ClaimChange) -> Step {
    let is_there = work.set.metadata.deletion_timestamp.is_none();
    let scaling = work.set.spec.scale_strategy.as_ref();
    let includes = scaling.is_some_and(|scaling| !scaling.pod_to_include.is_empty());
    match change {
        ClaimChange::Patch {
            ownership, labels, ..
        } if is_there => match ownership {
            Ownership::Release if labels.0.get(keys::KEPT_FOR).is_some_and(Option::is_some) => {
                Step::Claims
            }
            Ownership::Release => Step::Exclude,
            Ownership::Adopt if includes => Step::Include,
            Ownership::Adopt | Ownership::Keep => Step::Claims,
        },
        ClaimChange::Create { .. } => Step::Claims,
        ClaimChange::Delete(_) | ClaimChange::LetGo(_) | ClaimChange::Patch { .. } => Step::ScaleIn,
    }
}

async fn one(work: &Work<'_>, change: ClaimChange, look: &Look) -> Result<(), Halt> {
    let done = match change {
        ClaimChange::Create { id, template, body } => {
            let done = match look.unmanaged_claim(id, &template) {
                Some(claim) => manage(work, claim).await,
                None => create(work, &Slot::Claim(id, template), body).await,
            };
            return work.again_if_written(done);
        }
        ClaimChange::Patch {
            claim,
            labels,
            ownership,
        } => change_metadata(work, &claim, &labels, ownership).await,
        ClaimChange::LetGo(claim) => {
            let mut labels = claims::left();
            labels.0.extend(plan::unkept(&claim));
            change_metadata(work, &claim, &labels, Ownership::Release).await
        }
        ClaimChange::Delete(claim) => {
            let now = Instant::now();
            if let Some(left) = work.spares(&claim, now) {
                work.again(left);
                return Ok(());
            }
            if let Some(pod) = look.mounting(&claim.name) {
                debug!(
                    claim = claim.name,
                    pod, "a claim that is mounted is not deleted"
                );
                return spare(work, &claim).await;
            }
            let object = (work.namespace(), &*claim.name, &*claim.uid);
            if !look.is_fresh() {
                return Err(Halt::Moved);
            }
            work.memory.unfence(&claim.uid);
            // It may have left the set by now.
            let version = Some(&*claim.resource_version);
            let request =
                write::delete::<ClaimObject>(work.client(), work.objects(), object, version);
            let what = format!("deletion of {}", what(&claim.name));
            let deleted = work.again_if_written(call(&what, request).await);
            if deleted.is_ok() {
                work.deleted_claims.lock().push(claim.name.clone());
            }
            deleted
        }
    };
    done.map_err(|trouble| trouble.halt(Step::Claims))
}

/// Leaves a claim alone that a Pod mounts which the caches do not know. A set that is being deleted lets go of it: otherwise
/// the garbage collector would delete it.
async fn spare(work: &Work<'_>, claim: &Claim) -> Result<(), Halt> {
    if work.set.metadata.deletion_timestamp.is_none() {
        work.memory.hold_for(&claim.uid, Instant::now(), MOUNTED);
        work.again(MOUNTED);
        return Ok(());
    }
    let done = change_metadata(work, claim, &LabelPatch::default(), Ownership::Release).await;
    done.map_err(|trouble| trouble.halt(Step::Claims))
}

async fn change_metadata(
    work: &Work<'_>,
    claim: &Claim,
    labels: &LabelPatch,
    ownership: Ownership,
) -> Result<(), Trouble> {
    let patch = Patch::Strategic(patch(work, claim, labels, ownership));
    let object = (work.namespace(), &*claim.name);
    let request = write::patch::<ClaimObject>(work.client(), work.objects(), object, &patch, false);
    call(&what(&claim.name), request).await?;
    let now = work.objects().claims.get(work.namespace(), &claim.name);
    let is_written = now.is_none_or(|now| {
        let mut labels = labels.0.iter();
        let is_own = now.controller.as_deref() == Some(work.uid());
        let is_owned_so = match ownership {
            Ownership::Adopt => is_own,
            Ownership::Release => !is_own,
            Ownership::Keep => true,
        };
        is_owned_so && labels.all(|(key, value)| now.labels.get(key) == value.as_ref())
    });
    if is_written {
        note(work, claim, labels);
    }
    match is_written {
        true => work.again_if_written(Ok(())),
        false => Err(Trouble::is_not_as_written(&what(&claim.name))),
    }
}

/// Notes of a claim that it is kept from now on, or let go: nobody else knows.
fn note(work: &Work<'_>, claim: &Claim, labels: &LabelPatch) {
    let is_kept = claim.is_kept_for(Some(work.uid()));
    match labels.0.get(keys::KEPT_FOR) {
        Some(Some(_)) if !is_kept => work.kept.lock().push(claim.name.clone()),
        Some(None) if is_kept && labels.0.contains_key(keys::ORPHANED) => {
            work.let_go.lock().push(claim.name.clone());
        }
        _ => {}
    }
}

/// Gives a claim back the label that somebody took from it. Without that label the caches do not show the claim, and the next Pod of its
/// instance would begin with an empty one.
async fn manage(work: &Work<'_>, claim: &Claim) -> Result<(), Halt> {
    let control = Some(keys::CONTROL_VALUE.to_owned());
    let labels = LabelPatch([(keys::CONTROL.to_owned(), control)].into());
    let done = change_metadata(work, claim, &labels, Ownership::Keep).await;
    done.map_err(|trouble| trouble.halt(Step::Claims))
}

async fn create(work: &Work<'_>, slot: &Slot, mut body: Value) -> Result<(), Halt> {
    let is_given = body["metadata"]["name"].is_string();
    let name = pods::named(work, slot, &mut body);
    let (client, objects, namespace) = (work.client(), work.objects(), work.namespace());
    let what = what(&name);
    let halt = |trouble: Trouble| trouble.halt(Step::Claims);
    let request = write::create::<ClaimObject>(client, objects, namespace, &body);
    match call(&what, request).await {
        Ok(uid) if is_as_written(work, &name, &body) => {
            work.memory.fence(&uid);
            work.memory.forget(slot);
            return Ok(());
        }
        Ok(uid) => {
            work.memory.spoil(slot, uid); // its name is kept: another would be made each time
            return Err(halt(Trouble::is_not_as_made(&what)));
        }
        Err(Trouble::Exists) => {}
        Err(trouble) => return Err(halt(trouble)),
    }
    let request = write::get::<ClaimObject>(client, objects, (namespace, &name));
    let there = call(&what, request).await.map_err(halt)?;
    if is_as_written(work, &name, &body) {
        work.memory.forget(slot);
        return Ok(());
    }
    if is_given {
        let labels = &body["metadata"]["labels"];
        let why = is_not_of(work, there.as_deref(), &name, labels);
        return Err(Halt::Failed(Step::Claims, why));
    }
    if work.memory.spoilt(slot).is_some() {
        return Err(halt(Trouble::is_not_as_made(&what)));
    }
    work.memory.forget(slot); // the name is another's
    Err(Halt::Moved)
}

/// Whether the cache has the claim of this body, with its owner and the labels that tell what it is for.
fn is_as_written(work: &Work<'_>, name: &str, body: &Value) -> bool {
    let labels = &body["metadata"]["labels"];
    let claim = work.objects().claims.get(work.namespace(), name);
    claim.is_some_and(|claim| {
        let mut keys = [keys::CONTROL, keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
        let as_written = |key| claim.labels.get(key).map(String::as_str) == labels[key].as_str();
        claim.controller.as_deref() == Some(work.uid()) && keys.all(as_written)
    })
}

/// What is said of a claim that a Pod mounts and that is there, and not managed as one of its instance.
fn is_not_of(work: &Work<'_>, there: Option<&Claim>, name: &str, labels: &Value) -> String {
    let what = format!(
        "{} is there, and a Pod of this CollaSet waits for it",
        what(name)
    );
    let owner = there.and_then(|claim| claim.controller.as_deref());
    if owner.is_some_and(|owner| owner != work.uid()) {
        return format!(
            "{what}, but another CollaSet owns it: delete the Pod, so that it is made again with a claim of its own"
        );
    }
    let labels = labels.as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let labels: Vec<_> = labels.collect();
    let remedy = format!(
        "`kubectl label pvc {name} -n {} {} --overwrite`",
        work.namespace(),
        labels.join(" ")
    );
    format!(
        "{what}, but it is not managed: {remedy}, if it holds the data of that instance and has no other owner; delete the Pod otherwise, so that \
         it is made again with a claim of its own"
    )
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
