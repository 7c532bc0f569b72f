//! The lifecycle of a CollaSet's own operations: ID `collaset`, types `update` and `scale-in` (contract 3.1).

use serde_json::{Map, Value, json};

use super::strategy::ResolvedStrategy;
use crate::api::keys::{self, Family};
use crate::domain::grace_delete;
use crate::domain::lifecycle::{
    LabelPatch, Phase, Stage, is_ready_to_operate, operator, stored_phases,
};
use crate::domain::pod::{Owner, Pod};

/// The lifecycle ID of both operations. A change of type is a fresh run (contract Q4).
pub const LIFECYCLE_ID: &str = "collaset";

/// An operation of a CollaSet on a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOperation {
    /// To another revision.
    Update,
    /// Away.
    ScaleIn,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// Not begun.
    Idle,
    /// Begun; the Pod may still serve. Or undone, and not yet over.
    Waiting,
    /// The Pod may be operated on after so many nanoseconds.
    Delayed(u64),
    /// The Pod may be operated on.
    Allowed,
}

impl SetOperation {
    /// Its type in the labels.
    pub const fn operation_type(self) -> &'static str {
        match self {
            SetOperation::Update => "update",
            SetOperation::ScaleIn => "scale-in",
        }
    }

    /// Nanoseconds between `operate` and the work, as the set asks for.
    pub fn delay_nanos(self, strategy: &ResolvedStrategy) -> u64 {
        match self {
            SetOperation::Update => strategy.update_delay,
            SetOperation::ScaleIn => strategy.scale_delay,
        }
    }

    /// Begins it; `deletes` tells cooperators that the Pod will not come back.
    pub fn begin_labels(self, pod: &Pod, deletes: bool, now: u64) -> LabelPatch {
        operator::begin_labels(pod, LIFECYCLE_ID, self.operation_type(), deletes, now)
    }

    /// Cancels it, and the word that the Pod would go (contract Q6).
    pub fn undo_labels(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::undo_labels(LIFECYCLE_ID, self.operation_type());
        remove_deletion_label(pod, &mut labels);
        labels
    }

    /// Says that it is done, and takes back the word that the Pod would go.
    pub fn finish_labels(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::finish_labels(pod, LIFECYCLE_ID);
        remove_deletion_label(pod, &mut labels);
        labels
    }

    /// Where it stands, with `delay` nanoseconds to wait once it is allowed.
    pub fn operation_state(self, pod: &Pod, delay: u64, now: u64) -> OperationState {
        if !operator::is_in_progress(pod, LIFECYCLE_ID, self.operation_type()) {
            return OperationState::Idle;
        }
        // Until an undo has been carried out nothing begins in its place: two that want different things of the Pod
        // would take turns for ever.
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

    /// Whether the very write that changes the Pod lets it be operated on: it has come off traffic, and admission steps on with
    /// any write of it. A delay counts from a step that is stored.
    pub fn is_allowed_by_same_write(self, pod: &Pod, delay: u64) -> bool {
        delay == 0
            && operator::is_in_progress(pod, LIFECYCLE_ID, self.operation_type())
            && !self.is_undone(pod)
            && stored_phases(pod).get(LIFECYCLE_ID) == Some(&Phase::Preparing)
            && is_ready_to_operate(pod)
    }

    fn is_undone(self, pod: &Pod) -> bool {
        pod.label(&Family::UndoOperationType.key(LIFECYCLE_ID)) == Some(self.operation_type())
    }

    /// Whether it has begun and is not over.
    pub fn is_in_progress(self, pod: &Pod) -> bool {
        self.operation_state(pod, 0, 0) != OperationState::Idle
    }
}

/// Whether the Pod is on its way out through the lifecycle `pod-delete`, or told to go that way.
pub fn is_leaving(pod: &Pod) -> bool {
    pod.label(keys::TO_DELETE).is_some()
        || operator::is_in_progress(pod, grace_delete::DELETION_ID, grace_delete::DELETION_TYPE)
}

/// A number above this one is a time in nanoseconds: 2001 began later.
const MIN_TIMESTAMP_NANOS: u64 = 900_000_000_000_000_000;

/// Whether a set wrote this value of the label `to-replace`: it writes a time in nanoseconds, users and jobs write other words, such
/// as `true` (contract 2.1).
pub fn is_set_timestamp(value: &str) -> bool {
    value
        .parse()
        .is_ok_and(|nanos: u64| nanos > MIN_TIMESTAMP_NANOS)
}

/// Whether the Pod is told to go by its set and still serves: the word can be taken back, and nobody notices. Once its rules have let
/// it go, it goes, and so does one that a user has deleted meanwhile.
pub fn can_withdraw_deletion(pod: &Pod) -> bool {
    let phase = stored_phases(pod).get(grace_delete::DELETION_ID).copied();
    is_deletion_requested_by_set(pod) && matches!(phase, None | Some(Phase::PreCheck))
}

/// Whether the Pod is told to go by its set, and by nobody else.
pub fn is_deletion_requested_by_set(pod: &Pod) -> bool {
    let told = pod.label(keys::TO_DELETE);
    told.is_some()
        && told == pod.annotation(keys::SENT_AWAY)
        && !grace_delete::is_deletion_requested_again(pod)
        && !pod.is_terminating()
}

/// Whether the Pod is to go, by its set's word or a user's, and the rules have yet to let it: it serves meanwhile.
pub fn awaits_leave_permission(pod: &Pod) -> bool {
    is_leaving(pod) && stored_phases(pod).get(grace_delete::DELETION_ID) == Some(&Phase::PreCheck)
}

/// The labels that cancel a run of the set's own ID that is none of its operations, as after an edit by hand: nobody else would
/// end it.
pub fn undo_foreign_run(pod: &Pod) -> Option<LabelPatch> {
    let label = |family: Family| pod.label(&family.key(LIFECYCLE_ID));
    let type_ = label(Family::OperationType).unwrap_or_default();
    let known = [SetOperation::Update, SetOperation::ScaleIn].map(SetOperation::operation_type);
    let other = label(Family::Operating).is_some() && !known.contains(&type_);
    let undone = label(Family::UndoOperationType).is_some();
    (other && !undone).then(|| operator::undo_labels(LIFECYCLE_ID, type_))
}

/// Whether a set makes this step of a Pod in the very write that updates it in place: the Pod has come off traffic and may be
/// operated on.
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

/// The stage in which a Pod of a CollaSet waits for rules: PreCheck of an operation of the set, or of the deletion that it has asked
/// for, else PostCheck of any operation, which keeps the Pod off traffic.
pub fn awaited_rule_stage(pod: &Pod) -> Option<Stage> {
    if is_awaiting_rules(pod) {
        return Some(Stage::PreCheck);
    }
    let mut phases = stored_phases(pod).into_values();
    let is_held_back = phases.any(|phase| phase == Phase::PostCheck);
    is_held_back.then_some(Stage::PostCheck)
}

/// Whether an operation of a CollaSet on the Pod waits in PreCheck for the rules, or the deletion that a set has asked for.
pub fn is_awaiting_rules(pod: &Pod) -> bool {
    let phases = stored_phases(pod);
    let waits = |id| phases.get(id) == Some(&Phase::PreCheck);
    waits(LIFECYCLE_ID) || waits(grace_delete::DELETION_ID)
}

/// What to merge into the metadata of a Pod on which a CollaSet began an operation, or which it told to go, and which none controls any
/// more: by the selector, an exclusion, a deletion of the set that leaves its Pods, or a reference that was dropped. It cancels the
/// operation, which only another set that includes the Pod would end, and forgets what the set noted for it. Otherwise the Pod
/// would stay off traffic, in a place of its budgets. It takes the word back by which the Pod would be deleted once its rules let it
/// go. The instance ID tells that the Pod was of a set: the operation ID alone
/// may be somebody else's.
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
