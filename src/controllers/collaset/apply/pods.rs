//! Creates, patches and deletes Pods.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::names::NameSlot;
use super::super::reconcile_state::{HELD_BACKOFF, MIN_RECONCILE_INTERVAL};
use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{RequestError, StageError, request_with_deadline, worse_result};
use super::PlanExecution;
use super::batch::{self, WriteRequest};
use super::dry_runs::{self, DryRunOutcome};
use super::fence;
use super::live_state::{self, LiveState};
use super::pod_patches::{
    describe_pod_change, describe_pod_deletion, pod_patch_body, pod_preconditions, resize_patch,
};
use crate::api::collaset::CollaSet;
use crate::api::keys::{self, Family};
use crate::cluster::pod_requests;
use crate::domain::collaset::composition::composition_name_of;
use crate::domain::collaset::plan::{OwnershipChange, PodChange, PodPatch};
use crate::domain::collaset::status::FailedStep;
use crate::domain::collaset::{LIFECYCLE_ID, SetOperation};
use crate::domain::deletion::DeletionOptions;
use crate::domain::pod::{Owner, Pod};

/// A plan that is older than this takes no Pod off traffic, because other Pods may be unavailable by now. A plan
/// becomes old if other writes take long or the process is suspended.
const MAX_PLAN_AGE: Duration = Duration::from_secs(5);

/// Writes the changes of Pods. A failure that concerns existing Pods does not prevent the creation of others.
pub async fn write_pods(
    execution: &PlanExecution<'_>,
    changes: Vec<PodChange>,
    live_state: &LiveState,
) -> Result<(), StageError> {
    let is_creation = |change: &PodChange| matches!(change, PodChange::Create { .. });
    let has_dry_run = |change: &PodChange| matches!(change, PodChange::Patch(patch) if dry_runs::needs_dry_run(execution, patch));
    let is_in_place = |change: &PodChange| matches!(change, PodChange::Patch(patch) if patch.in_place_target.is_some());
    let (creations, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_creation);
    let (with_dry_run, others): (Vec<_>, Vec<_>) = others.into_iter().partition(has_dry_run);
    let (in_place, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_in_place);
    let send = |kind, carefully, changes: Vec<PodChange>| {
        let writes = changes.into_iter();
        let writes = writes.map(|change| pod_write_request(execution, change, live_state));
        batch::send_batch(execution, kind, carefully, writes)
    };
    let (others, in_place, with_dry_run) = tokio::join!(
        send(BatchKind::PodWrites, false, others),
        send(BatchKind::PodChanges, false, in_place),
        send(BatchKind::PodDryRuns, true, with_dry_run),
    );
    let creations = send(BatchKind::PodCreations, true, creations).await;
    [in_place, with_dry_run, creations]
        .into_iter()
        .fold(others, worse_result)
}

fn pod_write_request<'a>(
    execution: &'a PlanExecution<'a>,
    change: PodChange,
    live_state: &'a LiveState,
) -> WriteRequest<impl Future<Output = Result<(), StageError>> + 'a> {
    let pod_write_key = |pod: &Pod| RefusalKey::PodWrite(pod.metadata.uid.clone());
    let (key, step) = match &change {
        PodChange::Create { id, body } => (RefusalKey::Pod(*id), creation_step(body)),
        PodChange::Patch(change) => {
            let new_type = change.labels.0.get(&operation_type_key());
            let key = match change.in_place_target.is_some()
                || dry_runs::needs_dry_run(execution, change)
            {
                true => RefusalKey::PodChange(change.pod.metadata.uid.clone()),
                false => pod_write_key(&change.pod),
            };
            (key, pod_step(&change.pod, new_type, change.ownership))
        }
        PodChange::Delete(pod, _) => (pod_write_key(pod), deletion_step(pod)),
    };
    WriteRequest {
        key,
        step,
        request: apply_pod_change(execution, change, step, live_state),
    }
}

async fn apply_pod_change(
    execution: &PlanExecution<'_>,
    change: PodChange,
    step: FailedStep,
    live_state: &LiveState,
) -> Result<(), StageError> {
    match change {
        PodChange::Create { id, body } => create_pod(execution, id, body, step, live_state).await,
        PodChange::Patch(change) => {
            let result = back_off_if_held(execution, &change.pod, patch_pod(execution, &change));
            result.await.map_err(|error| error.into_stage_error(step))
        }
        PodChange::Delete(pod, event) => {
            let request = async {
                let options = DeletionOptions::default();
                let request = pod_requests::delete_pod(execution.client(), &pod, &options);
                let result =
                    request_with_deadline(&describe_pod_deletion(&pod.metadata.name), request)
                        .await;
                dry_runs::record_deletion_result(execution, &pod, &result);
                execution.state.record_pod_write(result?);
                execution
                    .patch_events
                    .lock()
                    .extend(event.map(|event| *event));
                Ok(())
            };
            let result = back_off_if_held(execution, &pod, request);
            result.await.map_err(|error| error.into_stage_error(step))
        }
    }
}

/// Runs a request. If admission denies the request, the Pod is not written until its backoff ends, and the set is
/// requeued.
async fn back_off_if_held(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    request: impl Future<Output = Result<(), RequestError>>,
) -> Result<(), RequestError> {
    let uid = &pod.metadata.uid;
    if let Some(remaining) = execution.state.hold_remaining(uid, Instant::now()) {
        execution.requeue_after(remaining);
        return Ok(());
    }
    match request.await {
        Err(RequestError::Held(message)) => {
            execution
                .state
                .record_held_write(uid, &message, Instant::now());
            execution.requeue_after(HELD_BACKOFF);
            Ok(())
        }
        Ok(()) => {
            execution.state.clear_hold(uid);
            Ok(())
        }
        failed => failed,
    }
}

async fn create_pod(
    execution: &PlanExecution<'_>,
    id: i64,
    mut body: Value,
    step: FailedStep,
    live_state: &LiveState,
) -> Result<(), StageError> {
    if !live_state.is_enough_for(&body) {
        return Err(StageError::Moved);
    }
    if let Some(pod) = live_state.unmanaged_pod(id, live_state::mounted_pvc_names(&body)) {
        return restore_pod_label(execution, pod).await;
    }
    if let Some((pvc, pod)) = live_state.find_writable_pvc(live_state::mounted_pvc_names(&body)) {
        let message = format!(
            "instance ID {id}: waiting for Pod {pod}, which still mounts PVC {pvc}, to end"
        );
        return Err(StageError::Failed(step, message));
    }
    fence::fence_pvcs(execution, live_state::mounted_pvc_names(&body))
        .await
        .map_err(|error| error.into_stage_error(step))?;
    let slot = NameSlot::Pod(id);
    let name = assign_name(execution, &slot, &mut body);
    let request = pod_requests::create_pod(execution.client(), execution.namespace(), &body);
    let description = format!("creation of Pod {name}{}", describe_decorations(&body));
    match request_with_deadline(&description, request).await {
        Ok(pod) => {
            execution
                .state
                .record_pod_write(pod.metadata.resource_version);
            if !is_own_pod(execution.set, id, &pod) || !pod.is_managed() {
                // The name of the Pod is kept. Otherwise another Pod would be created each time, because no cache shows
                // a Pod without the control label.
                execution.state.mark_altered(&slot, pod.metadata.uid);
                return Err(
                    RequestError::not_as_created(&format!("Pod {name}")).into_stage_error(step)
                );
            }
            execution.state.forget_name(&slot);
            record_composition(execution, &pod, &body);
            execution.created.lock().push(name);
            Ok(())
        }
        Err(RequestError::Exists) => {
            resolve_name_conflict(execution, id, &slot, &name, &body).await
        }
        Err(error) => Err(error.into_stage_error(step)),
    }
}

/// The step that the creation of a Pod belongs to. The new Pod of a replace pair adds none to the set.
fn creation_step(body: &Value) -> FailedStep {
    match body["metadata"]["labels"][keys::REPLACE_PAIR_ORIGIN_NAME] {
        Value::String(_) => FailedStep::Update,
        _ => FailedStep::ScaleOut,
    }
}

/// Gives a Pod its control label back, which somebody removed. Without the label the caches do not show the Pod, and
/// the controller would create another Pod beside it.
async fn restore_pod_label(execution: &PlanExecution<'_>, pod: &Pod) -> Result<(), StageError> {
    let mut metadata = pod_preconditions(pod, pod.metadata.resource_version);
    metadata["labels"] = json!({ keys::CONTROL: keys::CONTROL_VALUE });
    let sent = patch_for_pod(execution, pod, None, json!({ "metadata": metadata })).await;
    let written = sent.map_err(|error| error.into_stage_error(FailedStep::ScaleOut))?;
    match written.is_managed() {
        true => Ok(()),
        false => {
            let description = format!("Pod {}", pod.metadata.name);
            Err(RequestError::not_as_written(&description).into_stage_error(FailedStep::ScaleOut))
        }
    }
}

/// Handles a Pod that already has the name. An earlier attempt whose answer was lost may have created the Pod, or the
/// Pod belongs to somebody else.
async fn resolve_name_conflict(
    execution: &PlanExecution<'_>,
    id: i64,
    slot: &NameSlot,
    name: &str,
    body: &Value,
) -> Result<(), StageError> {
    let request = pod_requests::get_pod(execution.client(), execution.namespace(), name);
    let existing = request_with_deadline(&format!("reading of Pod {name}"), request)
        .await
        .map_err(|error| error.into_stage_error(FailedStep::ScaleOut))?;
    let Some(existing) = existing else {
        return Err(StageError::Moved); // the Pod has gone since
    };
    let is_chosen = body["metadata"]["generateName"].is_string();
    if is_own_pod(execution.set, id, &existing) && !existing.is_managed() {
        // The Pod is not in the caches, so no event will report its end.
        if !existing.is_terminating() {
            restore_pod_label(execution, &existing).await?;
            execution.state.forget_name(slot);
            return Ok(());
        }
        execution.state.forget_name(slot);
        if is_chosen {
            return Err(StageError::Moved); // the next Pod has another name
        }
        let message = format!(
            "instance ID {id}: waiting for the terminating Pod {name}, which lacks the label {}, to end",
            keys::CONTROL
        );
        return Err(StageError::Failed(FailedStep::ScaleOut, message));
    }
    if is_own_pod(execution.set, id, &existing) {
        execution
            .state
            .record_pod_write(existing.metadata.resource_version);
        execution.state.forget_name(slot);
        return Ok(());
    }
    let is_altered = execution.state.altered_uid(slot).as_deref() == Some(&*existing.metadata.uid);
    // By now the Pod may belong to another instance or another owner.
    let is_other = |owner: &Owner| owner.uid != execution.uid();
    let is_foreign = existing.controller().is_some_and(is_other)
        || existing
            .label(keys::INSTANCE_ID)
            .is_some_and(|label| label != id.to_string());
    if is_altered && !is_foreign && !existing.is_terminating() {
        return Err(RequestError::not_as_created(&format!("Pod {name}"))
            .into_stage_error(creation_step(body)));
    }
    if is_chosen {
        execution.state.forget_name(slot);
        return Err(StageError::Moved);
    }
    if existing.is_terminating() {
        return Err(StageError::Moved);
    }
    let message = format!(
        "Pod {name} has the name of instance ID {id} and does not belong to this CollaSet; delete it"
    );
    Err(StageError::Failed(FailedStep::ScaleOut, message))
}

fn is_own_pod(set: &CollaSet, id: i64, pod: &Pod) -> bool {
    let controller = pod.controller().map(|owner| owner.uid.as_str());
    controller == set.metadata.uid.as_deref()
        && pod.label(keys::INSTANCE_ID) == Some(&id.to_string())
}

async fn patch_pod(execution: &PlanExecution<'_>, change: &PodPatch) -> Result<(), RequestError> {
    let needs_dry_run = dry_runs::needs_dry_run(execution, change);
    if needs_dry_run {
        match dry_runs::dry_run_update(execution, change).await? {
            DryRunOutcome::Passed => {}
            DryRunOutcome::Later | DryRunOutcome::NotInPlace => return Ok(()),
        }
    }
    if begins_operation(change) && execution.is_older_than(MAX_PLAN_AGE) {
        execution.requeue_after(MIN_RECONCILE_INTERVAL);
        return Ok(());
    }
    let mut version = change.pod.metadata.resource_version;
    let revision = change.in_place_target.as_deref();
    if let Some(spec) = &change.resize {
        let body = resize_patch(&change.pod, version, spec);
        let sent = patch_for_version(execution, &change.pod, Some("resize"), body).await;
        version = match sent {
            Ok(stored) => stored,
            Err(RequestError::Refused(message)) => {
                dry_runs::give_up_resize(
                    execution,
                    &change.pod,
                    revision.unwrap_or_default(),
                    &message,
                );
                return Ok(());
            }
            denied => {
                dry_runs::record_change_result(
                    execution,
                    &change.pod,
                    revision.unwrap_or_default(),
                    &denied,
                );
                return denied.map(|_| ());
            }
        };
    }
    if let Some(body) = pod_patch_body(execution.set, change, version) {
        let by_status = begins_or_ends_operation(change).then_some("status");
        let sent = patch_for_pod(execution, &change.pod, by_status, body).await;
        let sent = sent.and_then(|pod| check_pod_written(execution, change, &pod));
        if let Some(revision) = revision {
            dry_runs::record_change_result(execution, &change.pod, revision, &sent);
        }
        if needs_dry_run {
            dry_runs::record_begin_result(execution, &change.pod, &sent);
        }
        sent?;
        if change.dry_run_change.is_some() || change.deletes {
            execution
                .state
                .forget_passed_dry_run(&change.pod.metadata.uid);
        }
        execution
            .patch_events
            .lock()
            .extend(change.success_event.as_deref().cloned());
    }
    Ok(())
}

/// Records that the API server accepts Pods of this composition. If admission changed the decorations in the labels, the
/// Pod would be recreated without end, so that is recorded, too.
fn record_composition(execution: &PlanExecution<'_>, pod: &Pod, body: &Value) {
    let Some(composition) = composition_name_of(pod) else {
        return;
    };
    let asked_for: Pod = serde_json::from_value(body.clone()).unwrap_or_default();
    match composition_name_of(&asked_for) {
        Some(asked_for) if asked_for != composition => {
            execution
                .state
                .record_altered_pod(&pod.metadata.uid, &asked_for);
        }
        _ => execution.state.record_created_pod(&composition),
    }
}

/// Names the PodDecorations of a Pod that is created, because one of them may be the cause of a refusal. Empty if the Pod
/// has none.
fn describe_decorations(body: &Value) -> String {
    let labels = body["metadata"]["labels"].as_object().into_iter().flatten();
    let names = labels.filter_map(|(key, _)| key.strip_prefix(keys::DECORATION_PREFIX));
    let names: Vec<String> = names.map(|name| format!("PodDecoration {name}")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" with {}", names.join(", ")),
    }
}

/// Checks the owner, the instance ID, the revision and the label `to-delete` of the stored Pod. If a webhook changed
/// one of them, the controller would write it again without end. Other labels are not checked; admission changes the
/// lifecycle labels in the same request.
fn check_pod_written(
    execution: &PlanExecution<'_>,
    change: &PodPatch,
    pod: &Pod,
) -> Result<u64, RequestError> {
    let is_own = pod
        .controller()
        .is_some_and(|owner| owner.uid == execution.uid());
    let is_owned_so = match change.ownership {
        OwnershipChange::Adopt => is_own,
        OwnershipChange::Release => !is_own,
        OwnershipChange::Keep => true,
    };
    let mut keys = [keys::INSTANCE_ID, keys::REVISION, keys::TO_DELETE].into_iter();
    let is_labelled = keys.all(|key| {
        let written = change.labels.0.get(key);
        written.is_none_or(|written| pod.label(key) == written.as_deref())
    });
    match is_owned_so && is_labelled {
        true => Ok(pod.metadata.resource_version),
        false => Err(RequestError::not_as_written(&describe_pod_change(
            &pod.metadata.name,
        ))),
    }
}

/// Whether a change begins an operation, which takes the Pod off traffic. Such a change needs to know which other Pods
/// are unavailable.
fn begins_operation(change: &PodPatch) -> bool {
    let operating = change.labels.0.get(&Family::Operating.key(LIFECYCLE_ID));
    operating.is_some_and(Option::is_some)
}

/// Whether a change begins or ends an operation and changes neither the spec nor an owner. Such a change is sent as a
/// write of the status, so that admission can set the readiness condition in the same request.
fn begins_or_ends_operation(change: &PodPatch) -> bool {
    let operating = Family::Operating.key(LIFECYCLE_ID);
    let is_changed = change.labels.0.contains_key(&operating);
    is_changed
        && change.spec.is_none()
        && change.ownership == OwnershipChange::Keep
        && change.decoration_owners.is_empty()
}

/// Sends a patch. Returns the new resourceVersion.
async fn patch_for_version(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<u64, RequestError> {
    let written = patch_for_pod(execution, pod, subresource, body).await?;
    Ok(written.metadata.resource_version)
}

/// Sends a patch. Returns the new Pod.
async fn patch_for_pod(
    execution: &PlanExecution<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<Pod, RequestError> {
    let name = &*pod.metadata.name;
    let request = pod_requests::patch_pod(
        execution.client(),
        (execution.namespace(), name),
        subresource,
        body,
    );
    let written = request_with_deadline(&describe_pod_change(name), request).await?;
    execution
        .state
        .record_pod_write(written.metadata.resource_version);
    Ok(written)
}

/// Keeps the name of the body. Without a name in the body, sets a name that begins with `generateName`, the same for
/// each attempt of the slot. Returns the name.
pub fn assign_name(execution: &PlanExecution<'_>, slot: &NameSlot, body: &mut Value) -> String {
    if let Some(name) = body["metadata"]["name"].as_str() {
        execution.state.record_given_name(slot, name);
        return name.to_owned();
    }
    let prefix = body["metadata"]["generateName"]
        .as_str()
        .unwrap_or_default();
    let name = execution.state.choose_name(slot, prefix);
    body["metadata"]["name"] = json!(name);
    name
}

fn operation_type_key() -> String {
    Family::OperationType.key(LIFECYCLE_ID)
}

/// The step that a change of a Pod belongs to. An adoption or a release decides first, then the operation type in the
/// change (`new_type`), then the operation type on the Pod.
fn pod_step(
    pod: &Pod,
    new_type: Option<&Option<String>>,
    ownership: OwnershipChange,
) -> FailedStep {
    match ownership {
        OwnershipChange::Adopt => return FailedStep::Include,
        OwnershipChange::Release => return FailedStep::Exclude,
        OwnershipChange::Keep => {}
    }
    let new_type = new_type.and_then(Option::as_deref);
    match new_type.or_else(|| pod.label(&operation_type_key())) {
        Some(type_) if type_ == SetOperation::ScaleIn.operation_type() => FailedStep::ScaleIn,
        _ => FailedStep::Update,
    }
}

/// The step that the deletion of a Pod belongs to. The deletion of a finished Pod is a cleanup, and no update waits for
/// it.
fn deletion_step(pod: &Pod) -> FailedStep {
    match pod.is_finished() {
        true => FailedStep::ScaleIn,
        false => pod_step(pod, None, OwnershipChange::Keep),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod() -> Pod {
        let pod = json!({ "metadata": { "name": "web-a", "uid": "1", "resourceVersion": "7" } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn creation_of_replacement_counts_as_update() {
        assert_eq!(
            creation_step(&json!({ "metadata": {} })),
            FailedStep::ScaleOut
        );
        let labels = json!({ keys::REPLACE_PAIR_ORIGIN_NAME: "web-a" });
        let half = json!({ "metadata": { "labels": labels } });
        assert_eq!(creation_step(&half), FailedStep::Update);
    }

    #[test]
    fn step_follows_from_operation_type() {
        let mut pod = pod();
        assert_eq!(
            pod_step(&pod, None, OwnershipChange::Keep),
            FailedStep::Update
        );
        assert_eq!(
            pod_step(&pod, Some(&Some("scale-in".into())), OwnershipChange::Keep),
            FailedStep::ScaleIn
        );
        pod.metadata
            .labels
            .insert(operation_type_key(), "scale-in".into());
        assert_eq!(
            pod_step(&pod, None, OwnershipChange::Keep),
            FailedStep::ScaleIn
        );
        assert_eq!(
            pod_step(&pod, Some(&None), OwnershipChange::Keep),
            FailedStep::ScaleIn
        );
        assert_eq!(
            pod_step(&pod, Some(&Some("update".into())), OwnershipChange::Keep),
            FailedStep::Update
        );
        assert_eq!(
            pod_step(&pod, None, OwnershipChange::Release),
            FailedStep::Exclude
        );
        assert_eq!(
            pod_step(&pod, None, OwnershipChange::Adopt),
            FailedStep::Include
        );
    }
}
