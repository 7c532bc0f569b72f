//! One write of a Pod: every ID on its own, then what they mean for the Pod together.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::label_name::is_label_name;
use super::operation::{OperationWrite, PodGates};
use super::operator;
use super::phase::OperationLabels;
use super::{ExpectedFinalizers, LabelPatch, Phase, Stage, min_ready, restarts};
use crate::api::keys::{self, Family};
use crate::domain::pod::Pod;

/// One write of a Pod, from what the operator asked for to the labels that are stored.
///
/// The order is [`open`](Run::open), then for every ID that is [`awaiting`](Run::awaiting) either
/// [`pass`](Run::pass) or [`hold`](Run::hold), then [`settle`](Run::settle) and [`patch`](Run::patch). An ID that is
/// given no answer is held.
#[derive(Clone, Debug)]
pub struct LifecycleWrite<'a> {
    old: Option<&'a Pod>,
    new: &'a Pod,
    gates: PodGates,
    /// Whether the write leaves the labels of all IDs as they are.
    asks_nothing: bool,
    operations: BTreeMap<String, OperationWrite>,
    /// Labels that belong to no ID.
    others: BTreeMap<String, String>,
    /// Permissions of both objects, by type; the old one's value counts.
    permissions: BTreeMap<String, String>,
    /// Nanoseconds since 1970.
    now: u64,
    stamp: String,
}

impl<'a> LifecycleWrite<'a> {
    /// Opens the write that turns `old` (`None`: a CREATE) into `new`, at `now_nanos` since the epoch: cancels what is
    /// undone, ends or finishes runs whose `operating` is gone, begins fresh ones with `pre-check`.
    ///
    /// Labels that only the webhook writes are taken from `old`, and with them `pre-checked` and `post-checked`:
    /// where this very write brings such a mark, the ID is [`awaiting`](Run::awaiting).
    pub fn from_write(old: Option<&'a Pod>, new: &'a Pod, now_nanos: u64) -> LifecycleWrite<'a> {
        let nothing = BTreeMap::new();
        let (mut before, old_permissions) =
            labels_by_id(old.map_or(&nothing, |pod| &pod.metadata.labels));
        let (mut asked, new_permissions) = labels_by_id(&new.metadata.labels);
        let asks_nothing = before == asked;
        let ids: BTreeSet<String> = before.keys().chain(asked.keys()).cloned().collect();
        let operations = ids.into_iter().map(|id| {
            let before = before.remove(&id).unwrap_or_default();
            let asked = asked.remove(&id).unwrap_or_default();
            let operation = OperationWrite::from_write(
                &before,
                asked,
                |t| old_permissions.contains_key(t),
                now_nanos,
            );
            (id, operation)
        });
        let operations: BTreeMap<String, OperationWrite> = operations.collect();
        let stamp = now_nanos.to_string();
        let mut others = new.metadata.labels.clone();
        others.retain(|key, _| lifecycle_label_owner(key).is_none());
        if old.is_none() {
            others.remove(keys::SERVICE_AVAILABLE);
        }
        if let Some(since) = announced_deletion_value(old, new, &operations, &stamp) {
            others.insert(keys::PREPARING_TO_DELETE.to_owned(), since);
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
            others,
            permissions,
            now: now_nanos,
            stamp,
        }
    }

    /// IDs that wait for the rules of `stage`, in order; among them those for which this very write brings a fresh
    /// mark, since that only asks.
    pub fn ids_awaiting_stage(&self, stage: Stage) -> Vec<String> {
        self.operations
            .iter()
            .filter(|(_, op)| op.awaits_stage(stage))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Since when `id` waits for the rules of `stage`, as its label says or will say: what tells one run of an ID from
    /// the next.
    pub fn waits_since(&self, stage: Stage, id: &str) -> Option<&str> {
        let labels = &self.operations.get(id)?.labels;
        labels.get(&stage.family()).map(String::as_str)
    }

    /// The rules of `stage` passed for `id`, and for no other ID (contract Q6c). No effect on an ID that is not
    /// [`awaiting`](Run::awaiting).
    pub fn pass_stage(&mut self, stage: Stage, id: &str) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.pass_stage(stage);
        }
    }

    /// The rules of `stage` did not pass for `id`: it stays where it is, and an earlier [`pass`](Run::pass) of this
    /// write is taken back. No effect once the write is settled.
    pub fn hold_stage(&mut self, stage: Stage, id: &str) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.hold_stage(stage);
        }
    }

    /// Advances every ID as far as it goes, and draws the sum: an ID that holds the Pod off traffic drops
    /// `service-available` (row 3), a Pod that is back gets it (row 12), and `preparing-to-delete` goes with the run
    /// that has announced it (contract Q6).
    pub fn advance_all(&mut self) {
        for operation in self.operations.values_mut() {
            operation.advance(self.gates);
        }
        if self.all_phases().any(Phase::holds_offline) {
            self.others.remove(keys::SERVICE_AVAILABLE);
        }
        let ended = self.operations.values().any(|operation| operation.ended);
        // An announcement ends with the operation that has made it: it must not pass for that of another one.
        let announced = self.others.get(keys::PREPARING_TO_DELETE);
        let stands = |op: &OperationWrite| op.labels.get(&Family::Operating) == announced;
        if ended && !self.operations.values().any(stands) {
            self.others.remove(keys::PREPARING_TO_DELETE);
        }
        // Row 12, unless this very write takes the label away by hand. Nor does one bring it that changes a run or asks
        // its rules: the validation sees the outcome alone, and could not tell such a write from a forged one.
        let missing = |pod: &Pod| pod.label(keys::SERVICE_AVAILABLE).is_none();
        if self.asks_nothing
            && self.old.is_some_and(missing)
            && missing(self.new)
            && !self.has_passed()
            && self.unavailable_reason().is_none()
            && min_ready::remaining_nanos(self.new, self.now).is_none()
        {
            let since = self.stamp.clone();
            self.others
                .insert(keys::SERVICE_AVAILABLE.to_owned(), since);
        }
        // A Pod that is available is no new one any more, whoever has said so.
        if self.others.contains_key(keys::SERVICE_AVAILABLE) {
            self.others.remove(keys::CREATING);
            self.others.remove(keys::COMPLETING);
        }
    }

    /// Whether this write makes an available Pod unavailable: it was available before, and `service-available` is
    /// gone now. By a run, or by whoever removed the label.
    pub fn takes_offline(&self) -> bool {
        self.old.is_some_and(Pod::is_available)
            && !self.others.contains_key(keys::SERVICE_AVAILABLE)
    }

    /// Whether rules have passed for an ID in this write.
    pub fn has_passed(&self) -> bool {
        self.operations.values().any(OperationWrite::has_passed)
    }

    /// What must change in the labels of the new object.
    pub fn patch(&self) -> LabelPatch {
        LabelPatch::between(&self.new.metadata.labels, &self.result_labels())
    }

    /// The phase of `id`; [`Phase::Idle`] when it has no labels.
    pub fn phase_of(&self, id: &str) -> Phase {
        self.operations
            .get(id)
            .map_or(Phase::Idle, OperationWrite::phase)
    }

    /// The phases of all IDs.
    pub(super) fn all_phases(&self) -> impl Iterator<Item = Phase> {
        self.operations.values().map(OperationWrite::phase)
    }

    /// Labels that belong to no ID, for the controller's rows.
    pub(super) fn other_labels_mut(&mut self) -> &mut BTreeMap<String, String> {
        &mut self.others
    }

    /// Row 12: why the Pod may not carry `service-available`; `None` when it may.
    ///
    /// An ID that only waits in PreCheck is no obstacle, as it takes nothing away from a Pod that serves (row 1): a
    /// Pod that flaps while a rule holds it must not count as lost for as long as the rule holds.
    pub(in crate::domain) fn unavailable_reason(&self) -> Option<Cow<'static, str>> {
        let pod = self.new;
        let because = if pod.is_terminating() {
            Some("the Pod is ending")
        } else if pod.is_finished() {
            let phase = &pod.status.phase;
            return Some(format!("the Pod has run to its end ({phase})").into());
        } else if !self
            .all_phases()
            .all(|p| matches!(p, Phase::Idle | Phase::PreCheck))
        {
            Some("an operation is in flight on the Pod")
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
        because.map(Cow::Borrowed)
    }

    fn result_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.others.clone();
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

/// Where each ID on the Pod stands, as stored; IDs that are idle are left out. Empty: nothing is in flight.
pub fn stored_phases(pod: &Pod) -> BTreeMap<String, Phase> {
    let (ids, _) = labels_by_id(&pod.metadata.labels);
    let phases = ids
        .into_iter()
        .map(|(id, labels)| (id, Phase::from_labels(&labels)));
    phases.filter(|(_, phase)| *phase != Phase::Idle).collect()
}

/// Whether an ID says of which type its operation is. Without the label no rule is asked about it.
pub fn has_operation_type(pod: &Pod, id: &str) -> bool {
    pod.label(&Family::OperationType.key(id))
        .is_some_and(is_label_name)
}

/// IDs that wait in PreCheck and cannot leave it, as the label with their type is missing; sorted.
pub fn ids_without_type(pod: &Pod) -> Vec<String> {
    let undone = |id: &str| pod.label(&Family::UndoOperationType.key(id)).is_some();
    let waiting = stored_phases(pod)
        .into_iter()
        .filter(|(_, phase)| *phase == Phase::PreCheck);
    waiting
        .map(|(id, _)| id)
        .filter(|id| !has_operation_type(pod, id) && !undone(id))
        .collect()
}

/// Whether an ID keeps the Pod off traffic. It came there by the leave of its rules.
pub fn is_held_offline(pod: &Pod) -> bool {
    stored_phases(pod).into_values().any(Phase::holds_offline)
}

/// Row 5, finalizers first (contract Q3), and the kubelet has followed the condition: while Ready is still True,
/// traffic is still on, and a run that ended before the kubelet noticed would bring the Pod back only to lose it to the
/// kubelet's late answer. A Pod without the gate is off traffic as far as the lifecycle can bring it.
pub fn is_ready_to_operate(pod: &Pod) -> bool {
    !pod.is_protected()
        && (!pod.has_service_ready_gate()
            || pod.condition(keys::SERVICE_READY) != Some(true) && !pod.is_ready())
}

/// Row 11: traffic is back on, or the user wants it to stay off.
fn is_traffic_restored(pod: &Pod) -> bool {
    pod.label(keys::STAY_OFFLINE).is_some() || may_serve(pod) && ExpectedFinalizers::are_met(pod)
}

/// Whether the lifecycle itself lets the Pod serve. While a container is yet to restart for a change that was made off
/// traffic, the Pod would be back only to be lost again, without a claim.
fn may_serve(pod: &Pod) -> bool {
    restarts::pending_restarts(pod).is_none()
        && (!pod.has_service_ready_gate() || pod.condition(keys::SERVICE_READY) == Some(true))
}

/// The family and the ID (a type for a permission) of a label that the state machine rules over. Malformed keys
/// belong to nobody: they are left for the API server to refuse.
fn lifecycle_label_owner(key: &str) -> Option<(Family, &str)> {
    Family::parse(key).filter(|(_, id)| is_label_name(id))
}

/// What to store for an announcement that this write brings: the value of `operating` of the operation that makes it, which is the only
/// one that begins in the write, or the only one that still waits for its rules. An announcement of an operation that its rules
/// have let go already comes too late to permit a deletion, and gets the time `stamp`. `None` where nothing is announced.
fn announced_deletion_value(
    old: Option<&Pod>,
    new: &Pod,
    operations: &BTreeMap<String, OperationWrite>,
    stamp: &str,
) -> Option<String> {
    let announced = new.label(keys::PREPARING_TO_DELETE)?;
    let before = |key: &str| old.and_then(|old| old.label(key));
    if before(keys::PREPARING_TO_DELETE) == Some(announced) {
        return None;
    }
    let since = |op: &OperationWrite| op.labels.get(&Family::Operating).cloned();
    // Also one of another type under the same ID, which waits anew.
    let waits = |op: &OperationWrite| op.labels.contains_key(&Family::PreCheck);
    let waiting = operations.iter().filter(|(_, op)| waits(op));
    let waiting = waiting.filter_map(|(id, op)| Some((id, since(op)?)));
    let waiting: Vec<_> = waiting.collect();
    if waiting.iter().any(|(_, since)| since == announced) {
        return None;
    }
    let others = waiting.into_iter();
    let others = others.filter(|(id, _)| *id != operator::DELETION);
    let (begun, known): (Vec<_>, Vec<_>) =
        others.partition(|(id, _)| before(&Family::Operating.key(id)).is_none());
    Some(match (&begun[..], &known[..]) {
        ([(_, since)], _) | ([], [(_, since)]) => since.clone(),
        _ => stamp.to_owned(),
    })
}

/// Labels by ID, and permissions by type.
fn labels_by_id(
    labels: &BTreeMap<String, String>,
) -> (BTreeMap<String, OperationLabels>, BTreeMap<String, String>) {
    let (mut ids, mut permissions) = (BTreeMap::<String, OperationLabels>::new(), BTreeMap::new());
    for (key, value) in labels {
        match lifecycle_label_owner(key) {
            Some((Family::OperationPermission, type_)) => {
                permissions.insert(type_.to_owned(), value.clone());
            }
            Some((family, id)) => {
                ids.entry(id.to_owned())
                    .or_default()
                    .insert(family, value.clone());
            }
            None => {}
        }
    }
    (ids, permissions)
}
