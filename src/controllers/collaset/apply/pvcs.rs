//! Writes PersistentVolumeClaims (contract 6.8).

use std::time::Duration;

use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::super::names::NameSlot;
use super::super::owner;
use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{RequestError, StageError, request_with_deadline, worse_result};
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

pub async fn write_pvcs(
    execution: &PlanExecution<'_>,
    changes: Vec<PvcChange>,
    live_state: &LiveState,
) -> Result<(), StageError> {
    let creates = |change: &PvcChange| matches!(change, PvcChange::Create { .. });
    let (created, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(creates);
    let others = others
        .into_iter()
        .map(|change| pvc_write_request(execution, change, live_state));
    let changed = batch::send_batch(execution, BatchKind::PvcWrites, false, others).await;
    let created = created
        .into_iter()
        .map(|change| pvc_write_request(execution, change, live_state));
    worse_result(
        changed,
        batch::send_batch(execution, BatchKind::PvcCreations, true, created).await,
    )
}

fn pvc_write_request<'a>(
    execution: &'a PlanExecution<'a>,
    change: PvcChange,
    live_state: &'a LiveState,
) -> WriteRequest<impl Future<Output = Result<(), StageError>> + 'a> {
    let key = match &change {
        PvcChange::Create { id, template, .. } => RefusalKey::Pvc(*id, template.clone()),
        PvcChange::Patch { pvc, .. } | PvcChange::Delete(pvc) | PvcChange::Retain(pvc) => {
            RefusalKey::PvcWrite(pvc.name.clone())
        }
    };
    let step = pvc_step(execution, &change);
    let request = async move {
        let result = apply_pvc_change(execution, change, live_state).await;
        result.map_err(|error| match error {
            StageError::Failed(_, message) => StageError::Failed(step, message),
            error => error,
        })
    };
    WriteRequest { key, step, request }
}

/// The step that a change of a PVC belongs to.
fn pvc_step(execution: &PlanExecution<'_>, change: &PvcChange) -> FailedStep {
    let is_live = execution.set.metadata.deletion_timestamp.is_none();
    let scaling = execution.set.spec.scale_strategy.as_ref();
    let includes = scaling.is_some_and(|scaling| !scaling.pod_to_include.is_empty());
    match change {
        PvcChange::Patch {
            ownership, labels, ..
        } if is_live => match ownership {
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
    execution: &PlanExecution<'_>,
    change: PvcChange,
    live_state: &LiveState,
) -> Result<(), StageError> {
    let result = match change {
        PvcChange::Create { id, template, body } => {
            let result = match live_state.unmanaged_pvc(id, &template) {
                Some(pvc) => restore_pvc_label(execution, pvc).await,
                None => create_pvc(execution, &NameSlot::Pvc(id, template), body).await,
            };
            return execution.requeue_if_written(result);
        }
        PvcChange::Patch {
            pvc,
            labels,
            ownership,
        } => patch_pvc_metadata(execution, &pvc, &labels, ownership).await,
        PvcChange::Retain(pvc) => {
            let mut labels = pvcs::left_behind_labels();
            labels.0.extend(plan::remove_kept_label(&pvc));
            patch_pvc_metadata(execution, &pvc, &labels, OwnershipChange::Release).await
        }
        PvcChange::Delete(pvc) => return delete_pvc(execution, &pvc, live_state).await,
    };
    result.map_err(|error| error.into_stage_error(FailedStep::Pvcs))
}

/// Deletes a PVC, unless a Pod mounts it. The live reads show such a Pod even if no cache contains the Pod.
async fn delete_pvc(
    execution: &PlanExecution<'_>,
    pvc: &Pvc,
    live_state: &LiveState,
) -> Result<(), StageError> {
    let now = Instant::now();
    if let Some(remaining) = execution.mounted_pvc_backoff(pvc, now) {
        execution.requeue_after(remaining);
        return Ok(());
    }
    if let Some(pod) = live_state.pod_mounting_pvc(&pvc.name) {
        debug!(pvc = pvc.name, pod, "a PVC that is mounted is not deleted");
        return spare_mounted_pvc(execution, pvc).await;
    }
    let object = (execution.namespace(), &*pvc.name, &*pvc.uid);
    if !live_state.is_fresh() {
        return Err(StageError::Moved);
    }
    execution.state.unfence_pvc(&pvc.uid);
    // The PVC may have left the set by now.
    let version = Some(&*pvc.resource_version);
    let request = object_requests::delete_object::<PvcObject>(
        execution.client(),
        execution.objects(),
        object,
        version,
    );
    let description = format!("deletion of {}", describe_pvc(&pvc.name));
    let deleted = execution.requeue_if_written(request_with_deadline(&description, request).await);
    if deleted.is_ok() {
        execution.deleted_pvcs.lock().push(pvc.name.clone());
    }
    deleted.map_err(|error| error.into_stage_error(FailedStep::Pvcs))
}

/// Handles a PVC to be deleted that is mounted by a Pod which no cache contains. The PVC stays for now. A set that is
/// being deleted releases the PVC; otherwise the garbage collector would delete the PVC.
async fn spare_mounted_pvc(execution: &PlanExecution<'_>, pvc: &Pvc) -> Result<(), StageError> {
    if execution.set.metadata.deletion_timestamp.is_none() {
        execution
            .state
            .hold_object_for(&pvc.uid, Instant::now(), MOUNTED_RETRY);
        execution.requeue_after(MOUNTED_RETRY);
        return Ok(());
    }
    let result = patch_pvc_metadata(
        execution,
        pvc,
        &LabelPatch::default(),
        OwnershipChange::Release,
    )
    .await;
    result.map_err(|error| error.into_stage_error(FailedStep::Pvcs))
}

async fn patch_pvc_metadata(
    execution: &PlanExecution<'_>,
    pvc: &Pvc,
    labels: &LabelPatch,
    ownership: OwnershipChange,
) -> Result<(), RequestError> {
    let patch = Patch::Strategic(pvc_patch(execution, pvc, labels, ownership));
    let object = (execution.namespace(), &*pvc.name);
    let request = object_requests::patch_object::<PvcObject>(
        execution.client(),
        execution.objects(),
        object,
        &patch,
        false,
    );
    request_with_deadline(&describe_pvc(&pvc.name), request).await?;
    let cached = execution
        .objects()
        .pvcs
        .get(execution.namespace(), &pvc.name);
    let is_written = cached.is_none_or(|cached| {
        let mut labels = labels.0.iter();
        let is_own = cached.controller.as_deref() == Some(execution.uid());
        let is_owned_so = match ownership {
            OwnershipChange::Adopt => is_own,
            OwnershipChange::Release => !is_own,
            OwnershipChange::Keep => true,
        };
        is_owned_so && labels.all(|(key, value)| cached.labels.get(key) == value.as_ref())
    });
    if is_written {
        record_pvc_retention(execution, pvc, labels);
    }
    match is_written {
        true => execution.requeue_if_written(Ok(())),
        false => Err(RequestError::not_as_written(&describe_pvc(&pvc.name))),
    }
}

/// Records that a PVC becomes kept or is released, for the Events. No other object shows this change.
fn record_pvc_retention(execution: &PlanExecution<'_>, pvc: &Pvc, labels: &LabelPatch) {
    let is_kept = pvc.is_kept_for(Some(execution.uid()));
    match labels.0.get(keys::KEPT_FOR) {
        Some(Some(_)) if !is_kept => execution.retained_pvcs.lock().push(pvc.name.clone()),
        Some(None) if is_kept && labels.0.contains_key(keys::ORPHANED) => {
            execution.released_pvcs.lock().push(pvc.name.clone());
        }
        _ => {}
    }
}

/// Gives a PVC its control label back, which somebody removed. Without the label the caches do not show the PVC, and
/// the next Pod of its instance would start with an empty PVC.
async fn restore_pvc_label(execution: &PlanExecution<'_>, pvc: &Pvc) -> Result<(), StageError> {
    let control = Some(keys::CONTROL_VALUE.to_owned());
    let labels = LabelPatch([(keys::CONTROL.to_owned(), control)].into());
    let result = patch_pvc_metadata(execution, pvc, &labels, OwnershipChange::Keep).await;
    result.map_err(|error| error.into_stage_error(FailedStep::Pvcs))
}

async fn create_pvc(
    execution: &PlanExecution<'_>,
    slot: &NameSlot,
    mut body: Value,
) -> Result<(), StageError> {
    let is_given = body["metadata"]["name"].is_string();
    let name = pods::assign_name(execution, slot, &mut body);
    let (client, objects, namespace) = (
        execution.client(),
        execution.objects(),
        execution.namespace(),
    );
    let description = describe_pvc(&name);
    let stage_error = |error: RequestError| error.into_stage_error(FailedStep::Pvcs);
    let request = object_requests::create_object::<PvcObject>(client, objects, namespace, &body);
    match request_with_deadline(&description, request).await {
        Ok(uid) if is_pvc_as_written(execution, &name, &body) => {
            execution.state.fence_pvc(&uid);
            execution.state.forget_name(slot);
            return Ok(());
        }
        Ok(uid) => {
            execution.state.mark_altered(slot, uid); // the name is kept; otherwise another PVC would be made each time
            return Err(stage_error(RequestError::not_as_created(&description)));
        }
        Err(RequestError::Exists) => {}
        Err(error) => return Err(stage_error(error)),
    }
    let request = object_requests::get_object::<PvcObject>(client, objects, (namespace, &name));
    let existing = request_with_deadline(&description, request)
        .await
        .map_err(stage_error)?;
    if is_pvc_as_written(execution, &name, &body) {
        execution.state.forget_name(slot);
        return Ok(());
    }
    if is_given {
        let labels = &body["metadata"]["labels"];
        let message = describe_foreign_pvc(execution, existing.as_deref(), &name, labels);
        return Err(StageError::Failed(FailedStep::Pvcs, message));
    }
    if execution.state.altered_uid(slot).is_some() {
        return Err(stage_error(RequestError::not_as_created(&description)));
    }
    execution.state.forget_name(slot); // another object has the name
    Err(StageError::Moved)
}

/// Whether the cache contains the PVC of this body, with its owner and the labels that identify it.
fn is_pvc_as_written(execution: &PlanExecution<'_>, name: &str, body: &Value) -> bool {
    let labels = &body["metadata"]["labels"];
    let pvc = execution.objects().pvcs.get(execution.namespace(), name);
    pvc.is_some_and(|pvc| {
        let mut keys = [keys::CONTROL, keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
        let as_written = |key| pvc.labels.get(key).map(String::as_str) == labels[key].as_str();
        pvc.controller.as_deref() == Some(execution.uid()) && keys.all(as_written)
    })
}

/// Describes a PVC that a Pod mounts and that exists, but is not managed as a PVC of its instance.
fn describe_foreign_pvc(
    execution: &PlanExecution<'_>,
    existing: Option<&Pvc>,
    name: &str,
    labels: &Value,
) -> String {
    let problem = format!(
        "{} exists, and a Pod of this CollaSet waits for it",
        describe_pvc(name)
    );
    let owner = existing.and_then(|pvc| pvc.controller.as_deref());
    if owner.is_some_and(|owner| owner != execution.uid()) {
        return format!(
            "{problem}, but another CollaSet owns it: delete the Pod, so that it is recreated with a PVC of its own"
        );
    }
    let labels = labels.as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let labels: Vec<_> = labels.collect();
    let remedy = format!(
        "`kubectl label pvc {name} -n {} {} --overwrite`",
        execution.namespace(),
        labels.join(" ")
    );
    format!(
        "{problem}, but it is not managed: {remedy}, if it holds the data of that instance and has no other owner; delete the Pod otherwise, so that \
         it is recreated with a PVC of its own"
    )
}

fn pvc_patch(
    execution: &PlanExecution<'_>,
    pvc: &Pvc,
    labels: &LabelPatch,
    ownership: OwnershipChange,
) -> Value {
    let mut metadata = json!({ "uid": pvc.uid, "resourceVersion": pvc.resource_version });
    if !labels.is_empty() {
        metadata["labels"] = labels.to_merge_patch();
    }
    if let Some(owners) = owner::owner_references_patch(execution.set, ownership) {
        metadata["ownerReferences"] = owners;
    }
    json!({ "metadata": metadata })
}

fn describe_pvc(name: &str) -> String {
    format!("PersistentVolumeClaim {name}")
}
