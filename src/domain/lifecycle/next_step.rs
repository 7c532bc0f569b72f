//! What the lifecycle controller does for a Pod: its own rows of contract 3.2, and the steps that the webhook missed.

use serde_json::{Value, json};

use super::expected_finalizers::without_entries;
use super::{ExpectedFinalizers, LabelPatch, LifecycleWrite, Phase, Stage, min_ready, restarts};
use crate::api::keys;
use crate::domain::pod::{Pod, PodCondition};

/// What the controller must do for a Pod now. If all fields are empty, the controller writes nothing (contract Q5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleStep {
    /// Labels to write. They are written before the condition, so that a Pod stops counting as available before it goes
    /// off traffic.
    pub labels: LabelPatch,
    /// Value to write to the condition `pod.kusionstack.io/service-ready`, through `pods/status`. The write must fail
    /// if the Pod has changed since it was read. The value depends only on the stored labels, not on those in `labels`.
    /// It changes from False to True only after the kubelet has set Ready to False.
    pub service_ready: Option<bool>,
    /// Keys `<Kind>/<namespace>/<name>` of the annotation `pod.kusionstack.io/available-conditions` whose finalizer is
    /// missing. A key is dirty if its object does not exist, or is a Service that does not select the Pod any more.
    /// Then see [`LifecycleStep::drop_dirty_patch`].
    pub dirty: Vec<String>,
    /// IDs that wait for the rules of a stage. If the rules pass, see [`controller_step_with_passed`].
    pub reevaluate: Vec<(Stage, String)>,
    /// Why the Pod cannot come back without a change by its user, for an Event.
    pub problem: Option<String>,
    /// Nanoseconds until the Pod has been Ready for long enough to be available, if nothing changes.
    pub requeue_after_nanos: Option<u64>,
}

impl LifecycleStep {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == LifecycleStep::default()
    }

    /// The merge patch that removes the entries `stale_keys` from the Pod's annotation. `stale_keys` are the keys in
    /// [`LifecycleStep::dirty`] whose object does not exist, or whose Service no longer selects the Pod. `None`
    /// if the annotation has none of these entries.
    pub fn drop_dirty_patch(pod: &Pod, stale_keys: &[String]) -> Option<Value> {
        let text = without_entries(pod.annotation(keys::AVAILABLE_CONDITIONS)?, stale_keys)?;
        Some(json!({ "metadata": { "annotations": { keys::AVAILABLE_CONDITIONS: text } } }))
    }
}

/// What the controller must do for `pod` at `now_nanos` since 1970. Nothing for a Pod that is terminating or not
/// managed.
///
/// The condition depends on all IDs together (rows 4, 10, 12). If any ID keeps the Pod off traffic, the condition is
/// False. Otherwise the Pod belongs on traffic, and so does a new Pod that its kubelet has seen. A Pod without the
/// readiness gate has no condition, and its label `service-available` follows Ready.
///
/// `stay-offline` keeps a Pod off traffic that is off already. It never takes an available Pod off, because no rule was
/// asked. Once an operation or a lost readiness has taken such a Pod off, the controller does not bring it back, and
/// the Pod's operations end without waiting for traffic.
pub fn controller_step(pod: &Pod, now_nanos: u64) -> LifecycleStep {
    controller_step_with_passed(pod, &[], now_nanos)
}

/// Like [`controller_step`], where the rules have passed for the IDs in `passed`. Rows 2 and 8: the step only writes
/// the labels `pre-checked` or `post-checked`, because admission decides about them. The webhook takes the following
/// steps in the same write. If the webhook is down, the next call of this function takes them.
pub fn controller_step_with_passed(
    pod: &Pod,
    passed: &[(Stage, String)],
    now_nanos: u64,
) -> LifecycleStep {
    if pod.is_terminating() || !pod.is_managed() {
        return LifecycleStep::default();
    }
    let mut run = LifecycleWrite::from_write(Some(pod), pod, now_nanos);
    let changes_stage = passed
        .iter()
        .any(|(stage, id)| run.ids_awaiting_stage(*stage).contains(id));
    for (stage, id) in passed {
        run.pass_stage(*stage, id);
    }
    if !changes_stage {
        run.advance_all();
    }
    // A step that was missed is written first, in its own write, because admission may hold it. Until the step is
    // stored, the condition must not depend on it.
    let is_up_to_date = run.patch().is_empty();
    let other_labels = run.other_labels_mut();
    if !pod.is_ready() || min_ready::is_label_stale(pod, now_nanos) {
        other_labels.remove(keys::SERVICE_AVAILABLE);
    }
    let available = other_labels.contains_key(keys::SERVICE_AVAILABLE);
    let awaiting = |stage| {
        run.ids_awaiting_stage(stage)
            .into_iter()
            .map(move |id| (stage, id))
    };
    let mut step = LifecycleStep {
        labels: run.patch(),
        service_ready: wanted_service_ready(pod, &run, available).filter(|_| is_up_to_date),
        reevaluate: awaiting(Stage::PreCheck)
            .chain(awaiting(Stage::PostCheck))
            .collect(),
        ..LifecycleStep::default()
    };
    if !available && run.service_label_obstacle().is_none() {
        step.requeue_after_nanos = min_ready::remaining_nanos(pod, now_nanos);
    }
    if !available
        && !run.all_phases().any(Phase::holds_offline)
        && pod.label(keys::STAY_OFFLINE).is_none()
    {
        match ExpectedFinalizers::from_pod(pod) {
            Ok(expected) => {
                step.dirty = expected
                    .missing_keys(pod)
                    .filter(|k| names_object(k))
                    .map(str::to_owned)
                    .collect();
            }
            Err(error) => {
                step.problem = Some(format!(
                    "annotation {}: {error}; the Pod stays unavailable until it is corrected or removed",
                    keys::AVAILABLE_CONDITIONS
                ));
            }
        }
    }
    step
}

/// Adds the controller's next change of the condition to the write of the status that turns a Pod into `pod`. Labels of
/// the steps that this change permits are added too. Returns the new value of the condition, or `None` if it does not
/// change.
pub fn follow_readiness(pod: &mut Pod, now_nanos: u64) -> Option<bool> {
    let ready = controller_step(pod, now_nanos).service_ready?;
    let conditions = &mut pod.status.conditions;
    conditions.retain(|condition| condition.type_ != keys::SERVICE_READY);
    conditions.push(PodCondition {
        type_: keys::SERVICE_READY.to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        ..PodCondition::default()
    });
    let next = controller_step(pod, now_nanos).labels;
    // A Pod becomes available by a write that asks for nothing else. The validation could not distinguish this write
    // from a forged one.
    if !next.0.contains_key(keys::SERVICE_AVAILABLE) {
        next.apply(&mut pod.metadata.labels);
    }
    Some(ready)
}

/// The value to write to the condition. `None` if the condition is right already, or the Pod has no readiness gate.
fn wanted_service_ready(pod: &Pod, run: &LifecycleWrite<'_>, available: bool) -> Option<bool> {
    if !pod.has_service_ready_gate() {
        return None;
    }
    let present = pod.condition(keys::SERVICE_READY);
    if run.all_phases().any(|p| p == Phase::Preparing) {
        // Row 4. The condition is also written if it is absent, because cooperators wait for it.
        return (present != Some(false)).then_some(false);
    }
    if run.all_phases().any(Phase::holds_offline) {
        return (present == Some(true)).then_some(false);
    }
    if pod.label(keys::STAY_OFFLINE).is_some() {
        return (present == Some(true) && !available).then_some(false);
    }
    // Rows 10 and 12. A finished Pod gets the condition only for an operation in Completing that waits for it.
    let must_be_ready = !pod.is_finished() || run.all_phases().any(|p| p == Phase::Completing);
    // The kubelet has not seen that the Pod was off traffic. If the condition became True now, the Pod would count as
    // available until the kubelet's late update.
    let is_unnoticed = present == Some(false) && pod.is_ready() && !pod.is_finished();
    // Until the kubelet has reported about a new Pod, the scheduler and the kubelet write its status. The controller
    // waits to avoid conflicts with them.
    let is_unreported = present.is_none() && pod.condition("Ready").is_none();
    // The kubelet writes the status before it ends the containers of a change, so Ready does not prove that the change
    // is over.
    let has_restarted = restarts::pending_restarts(pod).is_none();
    (must_be_ready && has_restarted && present != Some(true) && !is_unnoticed && !is_unreported)
        .then_some(true)
}

/// Whether a key of the expected finalizers names an object. For any other key, only its author can add the finalizer
/// or remove the entry.
fn names_object(key: &str) -> bool {
    let parts: Vec<_> = key.split('/').collect();
    parts.len() == 3 && parts.iter().all(|part| !part.is_empty())
}
