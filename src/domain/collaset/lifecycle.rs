//! The lifecycle of a CollaSet's own operations: ID `collaset`, types `update` and `scale-in` (contract 3.1).

use serde_json::{Map, Value, json};

use super::strategy::Strategy;
use crate::api::keys::{self, Family};
use crate::domain::grace;
use crate::domain::lifecycle::{LabelPatch, Phase, Stage, is_operable, operator, phases};
use crate::domain::pod::{Owner, Pod};

/// The lifecycle ID of both operations. A change of type is a fresh run (contract Q4).
pub const ID: &str = "collaset";

/// An operation of a CollaSet on a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To another revision.
    Update,
    /// Away.
    ScaleIn,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Not begun.
    Idle,
    /// Begun; the Pod may still serve. Or undone, and not yet over.
    Waiting,
    /// The Pod may be operated on after so many nanoseconds.
    Delayed(u64),
    /// The Pod may be operated on.
    Allowed,
}

impl Operation {
    /// Its type in the labels.
    pub const fn type_(self) -> &'static str {
        match self {
            Operation::Update => "update",
            Operation::ScaleIn => "scale-in",
        }
    }

    /// Nanoseconds between `operate` and the work, as the set asks for.
    pub fn delay(self, strategy: &Strategy) -> u64 {
        match self {
            Operation::Update => strategy.update_delay,
            Operation::ScaleIn => strategy.scale_delay,
        }
    }

    /// Begins it; `deletes` tells cooperators that the Pod will not come back.
    pub fn begin(self, pod: &Pod, deletes: bool, now: u64) -> LabelPatch {
        operator::begin(pod, ID, self.type_(), deletes, now)
    }

    /// Cancels it, and the word that the Pod would go (contract Q6).
    pub fn undo(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::undo(ID, self.type_());
        forget_deletion(pod, &mut labels);
        labels
    }

    /// Says that it is done, and takes back the word that the Pod would go.
    pub fn finish(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::finish(pod, ID);
        forget_deletion(pod, &mut labels);
        labels
    }

    /// Where it stands, with `delay` nanoseconds to wait once it is allowed.
    pub fn turn(self, pod: &Pod, delay: u64, now: u64) -> Turn {
        if !operator::is_during(pod, ID, self.type_()) {
            return Turn::Idle;
        }
        // Until an undo has been carried out nothing begins in its place: two that want different things of the Pod
        // would take turns for ever.
        if self.is_undone(pod) || !operator::is_allowed(pod, ID, self.type_(), 0, now) {
            return Turn::Waiting;
        }
        if operator::is_allowed(pod, ID, self.type_(), delay, now) {
            return Turn::Allowed;
        }
        let since = pod
            .label(&Family::Operate.key(ID))
            .and_then(|s| s.parse::<u64>().ok())
            .unwrap_or(now);
        Turn::Delayed((since.saturating_add(delay)).saturating_sub(now).max(1))
    }

    /// Whether the very write that changes the Pod lets it be operated on: it has come off traffic, and admission steps on with
    /// any write of it. A delay counts from a step that is stored.
    pub fn is_let_by_its_write(self, pod: &Pod, delay: u64) -> bool {
        delay == 0
            && operator::is_during(pod, ID, self.type_())
            && !self.is_undone(pod)
            && phases(pod).get(ID) == Some(&Phase::Preparing)
            && is_operable(pod)
    }

    fn is_undone(self, pod: &Pod) -> bool {
        pod.label(&Family::UndoOperationType.key(ID)) == Some(self.type_())
    }

    /// Whether it has begun and is not over.
    pub fn is_on(self, pod: &Pod) -> bool {
        self.turn(pod, 0, 0) != Turn::Idle
    }
}

/// Whether the Pod is on its way out through the lifecycle `pod-delete`, or told to go that way.
pub fn is_leaving(pod: &Pod) -> bool {
    pod.label(keys::TO_DELETE).is_some() || operator::is_during(pod, grace::ID, grace::TYPE)
}

/// A number above this one is a time in nanoseconds: 2001 began later.
const A_TIME: u64 = 900_000_000_000_000_000;

/// Whether a set wrote this value of the label `to-replace`: it writes a time in nanoseconds, users and jobs write other words, such
/// as `true` (contract 2.1).
pub fn is_own_word(value: &str) -> bool {
    value.parse().is_ok_and(|nanos: u64| nanos > A_TIME)
}

/// Whether the Pod is told to go by its set and still serves: the word can be taken back, and nobody notices. Once its rules have let
/// it go, it goes, and so does one that a user has deleted meanwhile.
pub fn may_stay(pod: &Pod) -> bool {
    let phase = phases(pod).get(grace::ID).copied();
    is_told(pod) && matches!(phase, None | Some(Phase::PreCheck))
}

/// Whether the Pod is told to go by its set, and by nobody else.
pub fn is_told(pod: &Pod) -> bool {
    let told = pod.label(keys::TO_DELETE);
    told.is_some()
        && told == pod.annotation(keys::SENT_AWAY)
        && !grace::is_asked_again(pod)
        && !pod.is_terminating()
}

/// Whether the Pod is to go, by its set's word or a user's, and the rules have yet to let it: it serves meanwhile.
pub fn waits_to_leave(pod: &Pod) -> bool {
    is_leaving(pod) && phases(pod).get(grace::ID) == Some(&Phase::PreCheck)
}

/// The labels that cancel a run of the set's own ID that is none of its operations, as after an edit by hand: nobody else would
/// end it.
pub fn undo_other(pod: &Pod) -> Option<LabelPatch> {
    let label = |family: Family| pod.label(&family.key(ID));
    let type_ = label(Family::OperationType).unwrap_or_default();
    let known = [Operation::Update, Operation::ScaleIn].map(Operation::type_);
    let other = label(Family::Operating).is_some() && !known.contains(&type_);
    let undone = label(Family::UndoOperationType).is_some();
    (other && !undone).then(|| operator::undo(ID, type_))
}

/// Whether a set makes this step of a Pod in the very write that updates it in place: the Pod has come off traffic and may be
/// operated on.
pub fn makes_the_step(pod: &Pod, step: &LabelPatch) -> bool {
    let own = |key: &String| Family::parse(key).is_some_and(|(_, id)| id == ID);
    let lets = matches!(step.0.get(&Family::Operate.key(ID)), Some(Some(_)));
    lets && step.0.keys().all(own)
        && pod.controller().is_some_and(Owner::is_collaset)
        && pod.label(keys::PREPARING_TO_DELETE).is_none()
        && Operation::Update.is_let_by_its_write(pod, 0)
}

/// The stage in which a Pod of a CollaSet waits for rules: PreCheck of an operation of the set, or of the deletion that it has asked
/// for, else PostCheck of any operation, which keeps the Pod off traffic.
pub fn stage_of_rules(pod: &Pod) -> Option<Stage> {
    if waits_for_rules(pod) {
        return Some(Stage::PreCheck);
    }
    let mut phases = phases(pod).into_values();
    let is_held_back = phases.any(|phase| phase == Phase::PostCheck);
    is_held_back.then_some(Stage::PostCheck)
}

/// Whether an operation of a CollaSet on the Pod waits in PreCheck for the rules, or the deletion that a set has asked for.
pub fn waits_for_rules(pod: &Pod) -> bool {
    let phases = phases(pod);
    let waits = |id| phases.get(id) == Some(&Phase::PreCheck);
    waits(ID) || waits(grace::ID)
}

/// What to merge into the metadata of a Pod on which a CollaSet began an operation, or which it told to go, and which none controls any
/// more: by the selector, an exclusion, a deletion of the set that leaves its Pods, or a reference that was dropped. It cancels the
/// operation, which only another set that includes the Pod would end, and forgets what the set noted for it. Otherwise the Pod
/// would stay off traffic, in a place of its budgets. It takes the word back by which the Pod would be deleted once its rules let it
/// go. The instance ID tells that the Pod was of a set: the operation ID alone
/// may be somebody else's.
pub fn abandoned(pod: &Pod) -> Option<Value> {
    let of_a_set = pod.label(keys::INSTANCE_ID).is_some();
    let controlled = pod.controller().is_some_and(Owner::is_collaset);
    if !of_a_set || controlled || !pod.is_managed() || pod.is_terminating() {
        return None;
    }
    let label = |family: Family| pod.label(&family.key(ID));
    let (mut labels, mut annotations) = (LabelPatch::default(), Map::new());
    if label(Family::Operating).is_some() && label(Family::UndoOperationType).is_none() {
        let type_ = label(Family::OperationType).unwrap_or_default();
        labels = operator::undo(ID, type_);
        annotations.insert(keys::LAST_POD_STATUS.to_owned(), Value::Null);
        if pod.annotation(keys::RESIZING).is_some() {
            annotations.insert(keys::RESIZING.to_owned(), Value::Null);
        }
    }
    if may_stay(pod) {
        labels.0.insert(keys::TO_DELETE.to_owned(), None);
        annotations.insert(keys::SENT_AWAY.to_owned(), Value::Null);
    }
    let any = !labels.is_empty();
    any.then(|| json!({ "labels": labels.to_merge_patch(), "annotations": annotations }))
}

fn forget_deletion(pod: &Pod, labels: &mut LabelPatch) {
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
        assert_eq!(abandoned(&orphan), Some(undo("update")));
        let type_ = Family::OperationType.key(ID);
        orphan.metadata.labels.remove(&type_);
        assert_eq!(abandoned(&orphan), Some(undo("")));
        let foreign = pod(owner("apps/v1", "ReplicaSet"), &[]);
        assert!(abandoned(&foreign).is_some());
        let mark = (keys::RESIZING.to_owned(), "web-1@1".to_owned());
        orphan.metadata.annotations.extend([mark]);
        let forgotten = abandoned(&orphan).unwrap();
        assert_eq!(
            forgotten["annotations"].get(keys::RESIZING),
            Some(&Value::Null)
        );
        assert_eq!(abandoned(&pod(json!([]), &[(UNDO, "update")])), None);
    }

    #[test]
    fn word_of_a_set_that_has_gone_is_taken_back_while_the_pod_serves() {
        let mut orphan = pod(json!([]), &[(UNDO, "update"), (keys::TO_DELETE, "5")]);
        assert_eq!(abandoned(&orphan), None, "a user told it to go");
        let mut note = |key: &str, value: &str| {
            let annotations = &mut orphan.metadata.annotations;
            annotations.insert(key.to_owned(), value.to_owned());
            abandoned(&orphan)
        };
        let taken_back = json!({ "labels": { keys::TO_DELETE: null }, "annotations": { keys::SENT_AWAY: null } });
        assert_eq!(note(keys::SENT_AWAY, "5"), Some(taken_back.clone()));
        assert_eq!(note(keys::DELETE_TIMESTAMP, "4"), Some(taken_back));
        assert_eq!(note(keys::DELETE_TIMESTAMP, "6"), None, "a user deleted it");
    }

    #[test]
    fn operation_of_a_set_that_is_there_or_of_somebody_else_goes_on() {
        let owned = pod(owner("apps.kusionstack.io/v1alpha1", "CollaSet"), &[]);
        assert_eq!(abandoned(&owned), None);
        let mut other = pod(json!([]), &[]);
        other.metadata.labels.remove(keys::INSTANCE_ID);
        assert_eq!(abandoned(&other), None);
        other = pod(json!([]), &[]);
        other.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        assert_eq!(abandoned(&other), None);
        let unmanaged = pod(json!([]), &[("kusionstack.io/control", "false")]);
        assert_eq!(abandoned(&unmanaged), None);
    }
}
