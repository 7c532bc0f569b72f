//! One write of a Pod: advances each operation by itself, then decides what the operations together mean for the Pod.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::operation::{OperationWrite, PodGates};
use super::operator::DELETION_ID;
use super::stored_operations::{labels_by_id, lifecycle_label_owner, stored_phases, was_taken_off};
use super::{ExpectedFinalizers, LabelPatch, Phase, Stage, min_ready, restarts};
use crate::api::keys::{self, Family};
use crate::domain::pod::Pod;

/// One write of a Pod, from the labels that the operator asks for to the labels that are stored.
///
/// The order of the calls is [`from_write`](Self::from_write), then for each of the
/// [`ids_awaiting_stage`](Self::ids_awaiting_stage) either [`pass_stage`](Self::pass_stage) or
/// [`hold_stage`](Self::hold_stage), then [`advance_all`](Self::advance_all) and [`patch`](Self::patch). An ID without
/// an answer is held.
#[derive(Clone, Debug)]
pub struct LifecycleWrite<'a> {
    old: Option<&'a Pod>,
    new: &'a Pod,
    gates: PodGates,
    /// Whether the write leaves the labels of all IDs unchanged.
    asks_nothing: bool,
    operations: BTreeMap<String, OperationWrite>,
    /// Labels that belong to no ID.
    other_labels: BTreeMap<String, String>,
    /// Operation permissions of both objects, by type. If both objects have one, the value of the old object is kept.
    permissions: BTreeMap<String, String>,
    /// Nanoseconds since 1970.
    now: u64,
    stamp: String,
}

impl<'a> LifecycleWrite<'a> {
    /// Opens the write that turns `old` (`None` for a CREATE) into `new`, at `now_nanos` since 1970. It cancels
    /// operations with an undo label, ends or finishes operations without the label `operating`, and begins new
    /// operations with `pre-check`.
    ///
    /// Labels that only the webhook writes are taken from `old`, and so are `pre-checked` and `post-checked`. If this
    /// write adds such a label, the ID is one of the [`ids_awaiting_stage`](Self::ids_awaiting_stage).
    pub fn from_write(old: Option<&'a Pod>, new: &'a Pod, now_nanos: u64) -> LifecycleWrite<'a> {
        let nothing = BTreeMap::new();
        let (mut before, old_permissions) =
            labels_by_id(old.map_or(&nothing, |pod| &pod.metadata.labels));
        let (mut requested, new_permissions) = labels_by_id(&new.metadata.labels);
        let asks_nothing = before == requested;
        let ids: BTreeSet<String> = before.keys().chain(requested.keys()).cloned().collect();
        let operations = ids.into_iter().map(|id| {
            let before = before.remove(&id).unwrap_or_default();
            let requested = requested.remove(&id).unwrap_or_default();
            let operation = OperationWrite::from_write(
                &before,
                requested,
                |t| old_permissions.contains_key(t),
                now_nanos,
            );
            (id, operation)
        });
        let operations: BTreeMap<String, OperationWrite> = operations.collect();
        let stamp = now_nanos.to_string();
        let mut other_labels = new.metadata.labels.clone();
        other_labels.retain(|key, _| lifecycle_label_owner(key).is_none());
        if old.is_none() {
            other_labels.remove(keys::SERVICE_AVAILABLE);
        }
        if let Some(since) = announced_deletion_value(old, new, &operations, &stamp) {
            other_labels.insert(keys::PREPARING_TO_DELETE.to_owned(), since);
        }
        let mut permissions = new_permissions;
        permissions.extend(old_permissions);
        let gates = PodGates {
            operable: is_ready_to_operate(new),
            restored: is_traffic_restored(new),
        };
        LifecycleWrite {
            old,
            new,
            gates,
            asks_nothing,
            operations,
            other_labels,
            permissions,
            now: now_nanos,
            stamp,
        }
    }

    /// IDs that wait for the rules of `stage`, in order. An ID to which this write adds the label `pre-checked` or
    /// `post-checked` is included, because the label only asks for the decision.
    pub fn ids_awaiting_stage(&self, stage: Stage) -> Vec<String> {
        self.operations
            .iter()
            .filter(|(_, op)| op.awaits_stage(stage))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// The time since when `id` waits for the rules of `stage`, as its label has it after this write. The time
    /// distinguishes one run of an ID from the next.
    pub fn waits_since(&self, stage: Stage, id: &str) -> Option<&str> {
        let labels = &self.operations.get(id)?.labels;
        labels.get(&stage.family()).map(String::as_str)
    }

    /// Records that the rules of `stage` passed for `id`, and for no other ID (contract Q6c). No effect if the ID is
    /// not one of the [`ids_awaiting_stage`](Self::ids_awaiting_stage).
    pub fn pass_stage(&mut self, stage: Stage, id: &str) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.pass_stage(stage);
        }
    }

    /// Records that the rules of `stage` did not pass for `id`. The ID stays where it is, and an earlier
    /// [`pass_stage`](Self::pass_stage) of this write is reverted. No effect after [`advance_all`](Self::advance_all).
    pub fn hold_stage(&mut self, stage: Stage, id: &str) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.hold_stage(stage);
        }
    }

    /// Advances every ID as far as possible, and then sets the labels of the Pod as a whole. If an ID keeps the Pod off
    /// traffic, the Pod loses `service-available` (row 3). If the Pod is back, it gets the label (row 12).
    /// `preparing-to-delete` is removed with the operation that announced the deletion (contract Q6).
    pub fn advance_all(&mut self) {
        for operation in self.operations.values_mut() {
            operation.advance(self.gates);
        }
        if self.all_phases().any(Phase::holds_offline) {
            self.other_labels.remove(keys::SERVICE_AVAILABLE);
        }
        let has_ended = self.operations.values().any(|operation| operation.ended);
        // An announcement ends with its operation, so that it does not count as the announcement of another operation.
        let announced = self.other_labels.get(keys::PREPARING_TO_DELETE);
        let is_announced = |op: &OperationWrite| op.labels.get(&Family::Operating) == announced;
        if has_ended && !self.operations.values().any(is_announced) {
            self.other_labels.remove(keys::PREPARING_TO_DELETE);
        }
        // Row 12, unless this write removes the label by hand. A write that changes an operation or asks for rules does
        // not add the label either: the validation sees only the result, and could not distinguish such a write from a
        // forged one.
        let lacks_label = |pod: &Pod| pod.label(keys::SERVICE_AVAILABLE).is_none();
        if self.asks_nothing
            && self.old.is_some_and(lacks_label)
            && lacks_label(self.new)
            && !self.has_passed_stage()
            && self.service_label_obstacle().is_none()
            && min_ready::remaining_nanos(self.new, self.now).is_none()
        {
            let value = self.stamp.clone();
            self.other_labels
                .insert(keys::SERVICE_AVAILABLE.to_owned(), value);
        }
        // An available Pod is not a new Pod any more, whoever wrote the label.
        if self.other_labels.contains_key(keys::SERVICE_AVAILABLE) {
            self.other_labels.remove(keys::CREATING);
            self.other_labels.remove(keys::COMPLETING);
        }
    }

    /// Whether this write makes an available Pod unavailable: the Pod was available before, and the write removes
    /// `service-available`, because of an operation or because a client removed the label.
    pub fn takes_offline(&self) -> bool {
        self.old.is_some_and(Pod::is_available)
            && !self.other_labels.contains_key(keys::SERVICE_AVAILABLE)
    }

    /// Whether an ID that did not keep the Pod off traffic for its work does so from this write on.
    pub fn begins_off_traffic(&self) -> bool {
        let before = self.old.map(stored_phases).unwrap_or_default();
        let works = |phase: Phase| matches!(phase, Phase::Preparing | Phase::Operate);
        let worked = |id: &String| before.get(id).is_some_and(|phase| works(*phase));
        let mut operations = self.operations.iter();
        operations.any(|(id, op)| works(op.phase()) && !worked(id))
    }

    /// Whether the write begins to bring the Pod back: an ID has taken it off traffic, and none keeps it off any more.
    pub fn returns_to_traffic(&self) -> bool {
        self.old.is_some_and(was_taken_off) && !self.all_phases().any(Phase::holds_offline)
    }

    /// Keeps every ID out of Operate in this write, because the write adds the protection of a cooperator (row 5).
    pub fn wait_for_protection(&mut self) {
        self.gates.operable = false;
    }

    /// Keeps every ID in Completing in this write, because the write removes the protection of a cooperator (row 11).
    pub fn wait_for_traffic(&mut self) {
        self.gates.restored &= self.new.label(keys::STAY_OFFLINE).is_some();
    }

    /// Whether rules have passed for an ID in this write.
    pub fn has_passed_stage(&self) -> bool {
        self.operations
            .values()
            .any(OperationWrite::has_passed_stage)
    }

    /// The changes to the labels of the new object.
    pub fn patch(&self) -> LabelPatch {
        LabelPatch::between(&self.new.metadata.labels, &self.result_labels())
    }

    /// The phase of `id`. [`Phase::Idle`] if the ID has no labels.
    pub fn phase_of(&self, id: &str) -> Phase {
        self.operations
            .get(id)
            .map_or(Phase::Idle, OperationWrite::phase)
    }

    /// The phases of all IDs.
    pub(super) fn all_phases(&self) -> impl Iterator<Item = Phase> {
        self.operations.values().map(OperationWrite::phase)
    }

    /// Labels that belong to no ID, for the rows of the state table that the controller carries out.
    pub(super) fn other_labels_mut(&mut self) -> &mut BTreeMap<String, String> {
        &mut self.other_labels
    }

    /// Row 12: why the Pod may not have `service-available`. `None` if it may.
    ///
    /// An ID that only waits in PreCheck is no obstacle, because it does not take a serving Pod off traffic (row 1). If
    /// such a wait were an obstacle, a Pod that loses Ready for a moment would count as unavailable until the rule lets
    /// the ID pass.
    pub(in crate::domain) fn service_label_obstacle(&self) -> Option<Cow<'static, str>> {
        let pod = self.new;
        let obstacle = if pod.is_terminating() {
            Some("the Pod is terminating")
        } else if pod.is_finished() {
            let phase = &pod.status.phase;
            return Some(format!("the Pod has finished ({phase})").into());
        } else if !self
            .all_phases()
            .all(|p| matches!(p, Phase::Idle | Phase::PreCheck))
        {
            Some("an operation is in flight on the Pod")
        } else if self.returns_to_traffic() {
            // Its protections are from the time before, and go with this write.
            Some("an operation that took the Pod off traffic has just ended")
        } else if pod.label(keys::STAY_OFFLINE).is_some() {
            Some("the Pod is labelled podopslifecycle.kusionstack.io/stay-offline")
        } else if let Some(restarts) = restarts::describe_pending(pod) {
            return Some(format!("it waits for {restarts}").into());
        } else if !may_serve(pod) {
            Some("its condition pod.kusionstack.io/service-ready is not True")
        } else if !pod.is_ready() {
            Some("the Pod is not Ready")
        } else if !ExpectedFinalizers::are_met(pod) {
            Some(
                "finalizers expected by the annotation pod.kusionstack.io/available-conditions are missing",
            )
        } else {
            None
        };
        obstacle.map(Cow::Borrowed)
    }

    fn result_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.other_labels.clone();
        for (id, operation) in &self.operations {
            labels.extend(
                operation
                    .labels
                    .iter()
                    .map(|(family, value)| (family.key(id), value.clone())),
            );
            if let Some(type_) = operation.permitted_type() {
                let since = self.permissions.get(type_).unwrap_or(&self.stamp);
                labels.insert(Family::OperationPermission.key(type_), since.clone());
            }
        }
        labels
    }
}

/// Row 5: whether the operator may work. The protection finalizers must be gone (contract Q3), and the kubelet must
/// have followed the condition. While Ready is still True, the Pod still gets traffic. If the operation ended before
/// the kubelet set Ready to False, the Pod would come back and then become unavailable again by the kubelet's late
/// update. For a Pod without the readiness gate, the kubelet need not follow, because the lifecycle cannot take such a
/// Pod off traffic.
pub fn is_ready_to_operate(pod: &Pod) -> bool {
    !pod.is_protected()
        && (!pod.has_service_ready_gate()
            || pod.condition(keys::SERVICE_READY) != Some(true) && !pod.is_ready())
}

/// Row 11: whether the Pod is back on traffic, or a user wants it to stay off.
fn is_traffic_restored(pod: &Pod) -> bool {
    pod.label(keys::STAY_OFFLINE).is_some() || may_serve(pod) && ExpectedFinalizers::are_met(pod)
}

/// Whether the lifecycle lets the Pod serve. A Pod waits while a container has yet to restart for a change that was
/// made off traffic: otherwise the Pod would come back and become unavailable again without a claim.
fn may_serve(pod: &Pod) -> bool {
    restarts::pending_restarts(pod).is_none()
        && (!pod.has_service_ready_gate() || pod.condition(keys::SERVICE_READY) == Some(true))
}

/// The value to store for an announcement of a deletion that this write adds: the value of `operating` of the operation
/// that announces. This is the only operation that begins in the write, or else the only one that still waits for its
/// rules. If there is no such operation, the value is `stamp`: the announcement comes too late to permit a deletion.
/// `None` if the write adds no announcement, or if the announcement has the right value already.
fn announced_deletion_value(
    old: Option<&Pod>,
    new: &Pod,
    operations: &BTreeMap<String, OperationWrite>,
    stamp: &str,
) -> Option<String> {
    let announced = new.label(keys::PREPARING_TO_DELETE)?;
    let old_label = |key: &str| old.and_then(|old| old.label(key));
    if old_label(keys::PREPARING_TO_DELETE) == Some(announced) {
        return None;
    }
    let operating_value = |op: &OperationWrite| op.labels.get(&Family::Operating).cloned();
    // Includes an operation that begins again under the same ID with another type.
    let waits_for_rules = |op: &OperationWrite| op.labels.contains_key(&Family::PreCheck);
    let waiting = operations.iter().filter(|(_, op)| waits_for_rules(op));
    let waiting = waiting.filter_map(|(id, op)| Some((id, operating_value(op)?)));
    let waiting: Vec<_> = waiting.collect();
    if waiting
        .iter()
        .any(|(_, operating_value)| operating_value == announced)
    {
        return None;
    }
    let candidates = waiting.into_iter();
    let candidates = candidates.filter(|(id, _)| *id != DELETION_ID);
    let (begun_now, earlier): (Vec<_>, Vec<_>) =
        candidates.partition(|(id, _)| old_label(&Family::Operating.key(id)).is_none());
    Some(match (&begun_now[..], &earlier[..]) {
        ([(_, operating_value)], _) | ([], [(_, operating_value)]) => operating_value.clone(),
        _ => stamp.to_owned(),
    })
}
