//! The lifecycle operations of a CollaSet: ID `collaset`, types `update` and `scale-in` (contract 3.1).

use serde_json::{Map, Value, json};

use super::strategy::ResolvedStrategy;
use crate::api::keys::{self, Family};
use crate::domain::grace_delete;
use crate::domain::lifecycle::{
    LabelPatch, Phase, Stage, is_ready_to_operate, operator, stored_phase, stored_phases,
};
use crate::domain::pod::{Owner, Pod};

/// The lifecycle ID of both operations. A change of the type begins a fresh run (contract Q4).
pub const LIFECYCLE_ID: &str = "collaset";

/// An operation of a CollaSet on a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOperation {
    /// Changes the Pod to another revision.
    Update,
    /// Deletes the Pod.
    ScaleIn,
}

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// The operation has not begun.
    Idle,
    /// The operation has begun and waits, so the Pod may still serve. Also an operation that is undone and not yet
    /// over.
    Waiting,
    /// The set may operate on the Pod after this many nanoseconds.
    Delayed(u64),
    /// The set may operate on the Pod now.
    Allowed,
}

impl SetOperation {
    /// The value of the label `operation-type`.
    pub const fn operation_type(self) -> &'static str {
        match self {
            SetOperation::Update => "update",
            SetOperation::ScaleIn => "scale-in",
        }
    }

    /// Nanoseconds between the label `operate` and the work, as the spec asks for.
    pub fn delay_nanos(self, strategy: &ResolvedStrategy) -> u64 {
        match self {
            SetOperation::Update => strategy.update_delay,
            SetOperation::ScaleIn => strategy.scale_delay,
        }
    }

    /// Returns the labels that begin the operation. `deletes` tells cooperators that the Pod will not come back.
    pub fn begin_labels(self, pod: &Pod, deletes: bool, now: u64) -> LabelPatch {
        operator::begin_labels(pod, LIFECYCLE_ID, self.operation_type(), deletes, now)
    }

    /// Returns the labels that cancel the operation and the announcement that the Pod will be deleted (contract Q6).
    pub fn undo_labels(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::undo_labels(LIFECYCLE_ID, self.operation_type());
        remove_deletion_label(pod, &mut labels);
        labels
    }

    /// Returns the labels that report the operation as done, and that withdraw the announcement of a deletion.
    pub fn finish_labels(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::finish_labels(pod, LIFECYCLE_ID);
        remove_deletion_label(pod, &mut labels);
        labels
    }

    /// Returns the progress of the operation. `delay` is in nanoseconds and counts from the moment at which the
    /// operation is allowed.
    pub fn operation_state(self, pod: &Pod, delay: u64, now: u64) -> OperationState {
        if !operator::is_in_progress(pod, LIFECYCLE_ID, self.operation_type()) {
            return OperationState::Idle;
        }
        // Until an undo has been carried out, no other operation begins in its place. Otherwise two operations that
        // want different changes of the Pod would alternate forever.
        if self.is_undone(pod)
            || !operator::is_operation_due(pod, LIFECYCLE_ID, self.operation_type(), 0, now)
        {
            return OperationState::Waiting;
        }
        if operator::is_operation_due(pod, LIFECYCLE_ID, self.operation_type(), delay, now) {
            return OperationState::Allowed;
        }
        let since = pod
            .label(&Family::Operate.key(LIFECYCLE_ID))
            .and_then(|s| s.parse::<u64>().ok())
            .unwrap_or(now);
        OperationState::Delayed((since.saturating_add(delay)).saturating_sub(now).max(1))
    }

    /// Whether the write that changes the Pod also allows the operation: the Pod is off traffic, and admission makes
    /// the next lifecycle step in any write of the Pod. This is only possible without a delay, because a delay counts
    /// from a step that is stored.
    pub fn is_allowed_by_same_write(self, pod: &Pod, delay: u64) -> bool {
        delay == 0
            && operator::is_in_progress(pod, LIFECYCLE_ID, self.operation_type())
            && !self.is_undone(pod)
            && stored_phase(pod, LIFECYCLE_ID) == Phase::Preparing
            && is_ready_to_operate(pod)
    }

    fn is_undone(self, pod: &Pod) -> bool {
        pod.label(&Family::UndoOperationType.key(LIFECYCLE_ID)) == Some(self.operation_type())
    }

    /// Whether the operation has begun and is not over.
    pub fn is_in_progress(self, pod: &Pod) -> bool {
        self.operation_state(pod, 0, 0) != OperationState::Idle
    }
}

/// Whether the Pod goes through the lifecycle `pod-delete`, or has the label that asks for it.
pub fn is_leaving(pod: &Pod) -> bool {
    pod.label(keys::TO_DELETE).is_some()
        || operator::is_in_progress(pod, grace_delete::DELETION_ID, grace_delete::DELETION_TYPE)
}

/// A number above this one is a time in nanoseconds since 1970: this value is reached in July 1998.
const MIN_TIMESTAMP_NANOS: u64 = 900_000_000_000_000_000;

/// Whether a set wrote this value of the label `to-replace`. A set writes a time in nanoseconds. Users and jobs write
/// other words, such as `true` (contract 2.1).
pub fn is_set_timestamp(value: &str) -> bool {
    value
        .parse()
        .is_ok_and(|nanos: u64| nanos > MIN_TIMESTAMP_NANOS)
}

/// Whether the set has asked for the deletion of the Pod and the Pod still serves. Then the set can withdraw the
/// request without an effect on traffic. The set can't withdraw the request once the rules have allowed the deletion,
/// or once a user has deleted the Pod.
pub fn can_withdraw_deletion(pod: &Pod) -> bool {
    let phase = stored_phase(pod, grace_delete::DELETION_ID);
    is_deletion_requested_by_set(pod) && matches!(phase, Phase::Idle | Phase::PreCheck)
}

/// Whether the set, and nobody else, has asked for the deletion of the Pod.
pub fn is_deletion_requested_by_set(pod: &Pod) -> bool {
    let deletion_label = pod.label(keys::TO_DELETE);
    deletion_label.is_some()
        && deletion_label == pod.annotation(keys::SENT_AWAY)
        && !grace_delete::is_deletion_requested_again(pod)
        && !pod.is_terminating()
}

/// Whether the deletion of the Pod, by its set or by a user, waits in PreCheck for the rules. Meanwhile the Pod serves.
pub fn awaits_leave_permission(pod: &Pod) -> bool {
    is_leaving(pod) && stored_phase(pod, grace_delete::DELETION_ID) == Phase::PreCheck
}

/// Returns the labels that cancel a run under the set's own ID whose type is none of the set's operations, for example
/// after an edit by hand. Nobody else would end such a run.
pub fn undo_foreign_run(pod: &Pod) -> Option<LabelPatch> {
    let label = |family: Family| pod.label(&family.key(LIFECYCLE_ID));
    let type_ = label(Family::OperationType).unwrap_or_default();
    let own_types = [SetOperation::Update, SetOperation::ScaleIn].map(SetOperation::operation_type);
    let other = label(Family::Operating).is_some() && !own_types.contains(&type_);
    let undone = label(Family::UndoOperationType).is_some();
    (other && !undone).then(|| operator::undo_labels(LIFECYCLE_ID, type_))
}

/// Whether a set makes this lifecycle step in the same write that updates the Pod in place: the Pod is off traffic and
/// the operation may begin.
pub fn updates_in_step_write(pod: &Pod, step: &LabelPatch) -> bool {
    let own = |key: &String| Family::parse(key).is_some_and(|(_, id)| id == LIFECYCLE_ID);
    let lets = matches!(
        step.0.get(&Family::Operate.key(LIFECYCLE_ID)),
        Some(Some(_))
    );
    lets && step.0.keys().all(own)
        && pod.controller().is_some_and(Owner::is_collaset)
        && pod.label(keys::PREPARING_TO_DELETE).is_none()
        && SetOperation::Update.is_allowed_by_same_write(pod, 0)
}

/// The stage in which a Pod of a CollaSet waits for rules. It is PreCheck for an operation of the set, or for the
/// deletion that the set has asked for. Otherwise it is PostCheck of any operation, which keeps the Pod off traffic.
pub fn awaited_rule_stage(pod: &Pod) -> Option<Stage> {
    if is_awaiting_rules(pod) {
        return Some(Stage::PreCheck);
    }
    let mut phases = stored_phases(pod).into_values();
    let is_held_back = phases.any(|phase| phase == Phase::PostCheck);
    is_held_back.then_some(Stage::PostCheck)
}

/// Whether an operation of a CollaSet on the Pod, or the deletion that a set has asked for, waits in PreCheck for the
/// rules.
pub fn is_awaiting_rules(pod: &Pod) -> bool {
    let waits = |id| stored_phase(pod, id) == Phase::PreCheck;
    waits(LIFECYCLE_ID) || waits(grace_delete::DELETION_ID)
}

/// Returns the metadata to merge into a Pod that no CollaSet controls any more, if a CollaSet began an operation on it
/// or asked for its deletion. `None` if nothing is left to cancel.
///
/// A Pod loses its set if the selector no longer matches it, if it is excluded, if the set is deleted without its Pods,
/// or if somebody removes the owner reference. The patch cancels the operation and removes the set's annotations about
/// it. Without the patch, only another set that includes the Pod would end the operation. Until then the Pod would stay
/// off traffic and take a place in the budgets of its rules. The patch also withdraws the request to delete the Pod.
///
/// The instance ID shows that the Pod belonged to a set. The operation ID alone may belong to somebody else.
pub fn abandoned_metadata_patch(pod: &Pod) -> Option<Value> {
    let of_a_set = pod.label(keys::INSTANCE_ID).is_some();
    let controlled = pod.controller().is_some_and(Owner::is_collaset);
    if !of_a_set || controlled || !pod.is_managed() || pod.is_terminating() {
        return None;
    }
    let label = |family: Family| pod.label(&family.key(LIFECYCLE_ID));
    let (mut labels, mut annotations) = (LabelPatch::default(), Map::new());
    if label(Family::Operating).is_some() && label(Family::UndoOperationType).is_none() {
        let type_ = label(Family::OperationType).unwrap_or_default();
        labels = operator::undo_labels(LIFECYCLE_ID, type_);
        annotations.insert(keys::LAST_POD_STATUS.to_owned(), Value::Null);
        if pod.annotation(keys::RESIZING).is_some() {
            annotations.insert(keys::RESIZING.to_owned(), Value::Null);
        }
    }
    if can_withdraw_deletion(pod) {
        labels.0.insert(keys::TO_DELETE.to_owned(), None);
        annotations.insert(keys::SENT_AWAY.to_owned(), Value::Null);
    }
    let any = !labels.is_empty();
    any.then(|| json!({ "labels": labels.to_merge_patch(), "annotations": annotations }))
}

fn remove_deletion_label(pod: &Pod, labels: &mut LabelPatch) {
    if pod.label(keys::PREPARING_TO_DELETE).is_some() && !is_leaving(pod) {
        labels.0.insert(keys::PREPARING_TO_DELETE.to_owned(), None);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pod(owners: Value, more: &[(&str, &str)]) -> Pod {
        let mut labels = json!({
            "kusionstack.io/control": "true",
            "collaset.kusionstack.io/instance-id": "0",
            "operating.podopslifecycle.kusionstack.io/collaset": "1",
            "operation-type.podopslifecycle.kusionstack.io/collaset": "update",
        });
        for (key, value) in more {
            labels[key] = json!(value);
        }
        let metadata = json!({ "name": "web", "labels": labels, "ownerReferences": owners });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn owner(api_version: &str, kind: &str) -> Value {
        json!([{ "apiVersion": api_version, "kind": kind, "name": "web", "uid": "1", "controller": true }])
    }

    const UNDO: &str = "undo-operation-type.podopslifecycle.kusionstack.io/collaset";

    #[test]
    fn operation_of_a_set_that_has_gone_is_cancelled_once() {
        let undo = |type_: &str| json!({ "labels": { UNDO: type_ }, "annotations": { keys::LAST_POD_STATUS: null } });
        let mut orphan = pod(json!([]), &[]);
        assert_eq!(abandoned_metadata_patch(&orphan), Some(undo("update")));
        let type_ = Family::OperationType.key(LIFECYCLE_ID);
        orphan.metadata.labels.remove(&type_);
        assert_eq!(abandoned_metadata_patch(&orphan), Some(undo("")));
        let foreign = pod(owner("apps/v1", "ReplicaSet"), &[]);
        assert!(abandoned_metadata_patch(&foreign).is_some());
        let mark = (keys::RESIZING.to_owned(), "web-1@1".to_owned());
        orphan.metadata.annotations.extend([mark]);
        let forgotten = abandoned_metadata_patch(&orphan).unwrap();
        assert_eq!(
            forgotten["annotations"].get(keys::RESIZING),
            Some(&Value::Null)
        );
        assert_eq!(
            abandoned_metadata_patch(&pod(json!([]), &[(UNDO, "update")])),
            None
        );
    }

    #[test]
    fn deletion_request_of_deleted_set_is_withdrawn_while_pod_serves() {
        let mut orphan = pod(json!([]), &[(UNDO, "update"), (keys::TO_DELETE, "5")]);
        assert_eq!(
            abandoned_metadata_patch(&orphan),
            None,
            "a user told it to go"
        );
        let mut note = |key: &str, value: &str| {
            let annotations = &mut orphan.metadata.annotations;
            annotations.insert(key.to_owned(), value.to_owned());
            abandoned_metadata_patch(&orphan)
        };
        let taken_back = json!({ "labels": { keys::TO_DELETE: null }, "annotations": { keys::SENT_AWAY: null } });
        assert_eq!(note(keys::SENT_AWAY, "5"), Some(taken_back.clone()));
        assert_eq!(note(keys::DELETE_TIMESTAMP, "4"), Some(taken_back));
        assert_eq!(note(keys::DELETE_TIMESTAMP, "6"), None, "a user deleted it");
    }

    #[test]
    fn operation_of_existing_set_or_other_operator_continues() {
        let owned = pod(owner("apps.kusionstack.io/v1alpha1", "CollaSet"), &[]);
        assert_eq!(abandoned_metadata_patch(&owned), None);
        let mut other = pod(json!([]), &[]);
        other.metadata.labels.remove(keys::INSTANCE_ID);
        assert_eq!(abandoned_metadata_patch(&other), None);
        other = pod(json!([]), &[]);
        other.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        assert_eq!(abandoned_metadata_patch(&other), None);
        let unmanaged = pod(json!([]), &[("kusionstack.io/control", "false")]);
        assert_eq!(abandoned_metadata_patch(&unmanaged), None);
    }
}
