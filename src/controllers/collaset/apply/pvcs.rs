//! Writes PersistentVolumeClaims (contract 6.8).

use std::time::Duration;

use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::super::names::NameSlot;
use super::super::owner;
use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{Halt, RequestError, request_with_deadline, worse_result};
use super::batch::{self, WriteRequest};
use super::live_state::LiveState;
use super::{PlanExecution, pods};
use crate::api::keys;
use crate::cluster::objects::{PvcObject, object_requests};
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::plan::{self, OwnershipChange, PvcChange};
use crate::domain::collaset::pvcs;
use crate::domain::collaset::status::FailedStep;
use crate::domain::lifecycle::LabelPatch;

/// If a foreign Pod mounts a PVC, its deletion is tried again after this time.
const MOUNTED_RETRY: Duration = Duration::from_secs(10);

/// Writes the changes of PVCs.
pub async fn write_pvcs(
    work: &PlanExecution<'_>,
    changes: Vec<PvcChange>,
    look: &LiveState,
) -> Result<(), Halt> {
    let creates = |change: &PvcChange| matches!(change, PvcChange::Create { .. });
    let (created, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(creates);
    let others = others
        .into_iter()
        .map(|change| pvc_write_request(work, change, look));
    let changed = batch::send_batch(work, BatchKind::PvcWrites, false, others).await;
    let created = created
        .into_iter()
        .map(|change| pvc_write_request(work, change, look));
    worse_result(
        changed,
        batch::send_batch(work, BatchKind::PvcCreations, true, created).await,
    )
}

fn pvc_write_request<'a>(
    work: &'a PlanExecution<'a>,
    change: PvcChange,
    look: &'a LiveState,
) -> WriteRequest<impl Future<Output = Result<(), Halt>> + 'a> {
    let key = match &change {
        PvcChange::Create { id, template, .. } => RefusalKey::Pvc(*id, template.clone()),
        PvcChange::Patch { pvc: claim, .. }
        | PvcChange::Delete(claim)
        | PvcChange::Retain(claim) => RefusalKey::PvcWrite(claim.name.clone()),
    };
    let step = pvc_step(work, &change);
    let request = async move {
        let done = apply_pvc_change(work, change, look).await;
        done.map_err(|halt| match halt {
            Halt::Failed(_, why) => Halt::Failed(step, why),
            halt => halt,
        })
    };
    WriteRequest { key, step, request }
}

/// The step that a change of a PVC belongs to.
fn pvc_step(work: &PlanExecution<'_>, change: &PvcChange) -> FailedStep {
    let is_there = work.set.metadata.deletion_timestamp.is_none();
    let scaling = work.set.spec.scale_strategy.as_ref();
    let includes = scaling.is_some_and(|scaling| !scaling.pod_to_include.is_empty());
    match change {
        PvcChange::Patch {
            ownership, labels, ..
        } if is_there => match ownership {
            OwnershipChange::Release
                if labels.0.get(keys::KEPT_FOR).is_some_and(Option::is_some) =>
            {
                FailedStep::Pvcs
            }
            OwnershipChange::Release => FailedStep::Exclude,
            OwnershipChange::Adopt if includes => FailedStep::Include,
            OwnershipChange::Adopt | OwnershipChange::Keep => FailedStep::Pvcs,
        },
        PvcChange::Create { .. } => FailedStep::Pvcs,
        PvcChange::Delete(_) | PvcChange::Retain(_) | PvcChange::Patch { .. } => {
            FailedStep::ScaleIn
        }
    }
}

async fn apply_pvc_change(
    work: &PlanExecution<'_>,
    change: PvcChange,
    look: &LiveState,
) -> Result<(), Halt> {
    let done = match change {
        PvcChange::Create { id, template, body } => {
            let done = match look.unmanaged_pvc(id, &template) {
                Some(claim) => restore_pvc_label(work, claim).await,
                None => create_pvc(work, &NameSlot::Pvc(id, template), body).await,
            };
            return work.requeue_if_written(done);
        }
        PvcChange::Patch {
            pvc: claim,
            labels,
            ownership,
        } => patch_pvc_metadata(work, &claim, &labels, ownership).await,
        PvcChange::Retain(claim) => {
            let mut labels = pvcs::left_behind_labels();
            labels.0.extend(plan::remove_kept_label(&claim));
            patch_pvc_metadata(work, &claim, &labels, OwnershipChange::Release).await
        }
        PvcChange::Delete(claim) => {
            let now = Instant::now();
            if let Some(left) = work.mounted_pvc_backoff(&claim, now) {
                work.requeue_after(left);
                return Ok(());
            }
            if let Some(pod) = look.pod_mounting_pvc(&claim.name) {
                debug!(
                    pvc = claim.name,
                    pod, "a PVC that is mounted is not deleted"
                );
                return spare_mounted_pvc(work, &claim).await;
            }
            let object = (work.namespace(), &*claim.name, &*claim.uid);
            if !look.is_fresh() {
                return Err(Halt::Moved);
            }
            work.state.unfence_pvc(&claim.uid);
            // The PVC may have left the set by now.
            let version = Some(&*claim.resource_version);
            let request = object_requests::delete_object::<PvcObject>(
                work.client(),
                work.objects(),
                object,
                version,
            );
            let what = format!("deletion of {}", describe_pvc(&claim.name));
            let deleted = work.requeue_if_written(request_with_deadline(&what, request).await);
            if deleted.is_ok() {
                work.deleted_pvcs.lock().push(claim.name.clone());
            }
            deleted
        }
    };
    done.map_err(|trouble| trouble.into_halt(FailedStep::Pvcs))
}

/// Handles a PVC to be deleted that a Pod mounts which no cache contains. The PVC stays for now. A set that is being
/// deleted releases the PVC; otherwise the garbage collector would delete it.
async fn spare_mounted_pvc(work: &PlanExecution<'_>, claim: &Pvc) -> Result<(), Halt> {
    if work.set.metadata.deletion_timestamp.is_none() {
        work.state
            .hold_object_for(&claim.uid, Instant::now(), MOUNTED_RETRY);
        work.requeue_after(MOUNTED_RETRY);
        return Ok(());
    }
    let done = patch_pvc_metadata(
        work,
        claim,
        &LabelPatch::default(),
        OwnershipChange::Release,
    )
    .await;
    done.map_err(|trouble| trouble.into_halt(FailedStep::Pvcs))
}

async fn patch_pvc_metadata(
    work: &PlanExecution<'_>,
    claim: &Pvc,
    labels: &LabelPatch,
    ownership: OwnershipChange,
) -> Result<(), RequestError> {
    let patch = Patch::Strategic(pvc_patch(work, claim, labels, ownership));
    let object = (work.namespace(), &*claim.name);
    let request = object_requests::patch_object::<PvcObject>(
        work.client(),
        work.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&describe_pvc(&claim.name), request).await?;
    let now = work.objects().claims.get(work.namespace(), &claim.name);
    let is_written = now.is_none_or(|now| {
        let mut labels = labels.0.iter();
        let is_own = now.controller.as_deref() == Some(work.uid());
        let is_owned_so = match ownership {
            OwnershipChange::Adopt => is_own,
            OwnershipChange::Release => !is_own,
            OwnershipChange::Keep => true,
        };
        is_owned_so && labels.all(|(key, value)| now.labels.get(key) == value.as_ref())
    });
    if is_written {
        record_pvc_retention(work, claim, labels);
    }
    match is_written {
        true => work.requeue_if_written(Ok(())),
        false => Err(RequestError::not_as_written(&describe_pvc(&claim.name))),
    }
}

/// Records that a PVC becomes kept or is released, for the Events. No other object shows this change.
fn record_pvc_retention(work: &PlanExecution<'_>, claim: &Pvc, labels: &LabelPatch) {
    let is_kept = claim.is_kept_for(Some(work.uid()));
    match labels.0.get(keys::KEPT_FOR) {
        Some(Some(_)) if !is_kept => work.retained_pvcs.lock().push(claim.name.clone()),
        Some(None) if is_kept && labels.0.contains_key(keys::ORPHANED) => {
            work.released_pvcs.lock().push(claim.name.clone());
        }
        _ => {}
    }
}

/// Gives a PVC its control label back, which somebody removed. Without the label the caches do not show the PVC, and
/// the next Pod of its instance would start with an empty one.
async fn restore_pvc_label(work: &PlanExecution<'_>, claim: &Pvc) -> Result<(), Halt> {
    let control = Some(keys::CONTROL_VALUE.to_owned());
    let labels = LabelPatch([(keys::CONTROL.to_owned(), control)].into());
    let done = patch_pvc_metadata(work, claim, &labels, OwnershipChange::Keep).await;
    done.map_err(|trouble| trouble.into_halt(FailedStep::Pvcs))
}

async fn create_pvc(
    work: &PlanExecution<'_>,
    slot: &NameSlot,
    mut body: Value,
) -> Result<(), Halt> {
    let is_given = body["metadata"]["name"].is_string();
    let name = pods::assign_name(work, slot, &mut body);
    let (client, objects, namespace) = (work.client(), work.objects(), work.namespace());
    let what = describe_pvc(&name);
    let halt = |trouble: RequestError| trouble.into_halt(FailedStep::Pvcs);
    let request = object_requests::create_object::<PvcObject>(client, objects, namespace, &body);
    match request_with_deadline(&what, request).await {
        Ok(uid) if is_pvc_as_written(work, &name, &body) => {
            work.state.fence_pvc(&uid);
            work.state.forget_name(slot);
            return Ok(());
        }
        Ok(uid) => {
            work.state.mark_altered(slot, uid); // the name is kept; otherwise another PVC would be made each time
            return Err(halt(RequestError::not_as_created(&what)));
        }
        Err(RequestError::Exists) => {}
        Err(trouble) => return Err(halt(trouble)),
    }
    let request = object_requests::get_object::<PvcObject>(client, objects, (namespace, &name));
    let there = request_with_deadline(&what, request).await.map_err(halt)?;
    if is_pvc_as_written(work, &name, &body) {
        work.state.forget_name(slot);
        return Ok(());
    }
    if is_given {
        let labels = &body["metadata"]["labels"];
        let why = describe_foreign_pvc(work, there.as_deref(), &name, labels);
        return Err(Halt::Failed(FailedStep::Pvcs, why));
    }
    if work.state.altered_uid(slot).is_some() {
        return Err(halt(RequestError::not_as_created(&what)));
    }
    work.state.forget_name(slot); // another object has the name
    Err(Halt::Moved)
}

/// Whether the cache contains the PVC of this body, with its owner and the labels that identify it.
fn is_pvc_as_written(work: &PlanExecution<'_>, name: &str, body: &Value) -> bool {
    let labels = &body["metadata"]["labels"];
    let claim = work.objects().claims.get(work.namespace(), name);
    claim.is_some_and(|claim| {
        let mut keys = [keys::CONTROL, keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
        let as_written = |key| claim.labels.get(key).map(String::as_str) == labels[key].as_str();
        claim.controller.as_deref() == Some(work.uid()) && keys.all(as_written)
    })
}

/// Describes a PVC that a Pod mounts and that exists, but is not managed as a PVC of its instance.
fn describe_foreign_pvc(
    work: &PlanExecution<'_>,
    there: Option<&Pvc>,
    name: &str,
    labels: &Value,
) -> String {
    let what = format!(
        "{} is there, and a Pod of this CollaSet waits for it",
        describe_pvc(name)
    );
    let owner = there.and_then(|claim| claim.controller.as_deref());
    if owner.is_some_and(|owner| owner != work.uid()) {
        return format!(
            "{what}, but another CollaSet owns it: delete the Pod, so that it is made again with a PVC of its own"
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
         it is made again with a PVC of its own"
    )
}

fn pvc_patch(
    work: &PlanExecution<'_>,
    claim: &Pvc,
    labels: &LabelPatch,
    ownership: OwnershipChange,
) -> Value {
    let mut metadata = json!({ "uid": claim.uid, "resourceVersion": claim.resource_version });
    if !labels.is_empty() {
        metadata["labels"] = labels.to_merge_patch();
    }
    if let Some(owners) = owner::owner_references_patch(work.set, ownership) {
        metadata["ownerReferences"] = owners;
    }
    json!({ "metadata": metadata })
}

fn describe_pvc(name: &str) -> String {
    format!("PersistentVolumeClaim {name}")
}
