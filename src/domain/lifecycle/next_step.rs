//! What the controller does for a Pod: the rows of contract 3.2 that are its own, and whatever the webhook
//! missed.

use super::{ExpectedFinalizers, LabelPatch, LifecycleWrite, Phase, Stage, min_ready, restarts};
use crate::api::keys;
use crate::domain::pod::{Condition, Pod};

/// What the controller must do for a Pod now. All empty: nothing, and nothing is written (contract Q5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleStep {
    /// Labels to write, before the condition: a Pod leaves the count of available ones before it leaves traffic.
    pub labels: LabelPatch,
    /// Value to write to condition `pod.kusionstack.io/service-ready`, by way of `pods/status`, if the Pod is still the
    /// very version that was looked at. Follows from what is stored, never from what `labels` asks for. From False to
    /// True only once Ready has followed.
    pub service_ready: Option<bool>,
    /// Keys `<Kind>/<namespace>/<name>` of the annotation `pod.kusionstack.io/available-conditions` that keep the Pod from
    /// coming back: dirty if the object does not exist, or is a Service that does not select the Pod any more; then see
    /// [`Step::drop_dirty`].
    pub dirty: Vec<String>,
    /// IDs that wait for the rules of a stage, to be granted through [`controller_step_passing`].
    pub reevaluate: Vec<(Stage, String)>,
    /// Why the Pod cannot come back without its user, for an event.
    pub problem: Option<String>,
    /// Nanoseconds after which the Pod has been Ready for long enough to be available, although nothing changes.
    pub requeue_after_nanos: Option<u64>,
}

impl LifecycleStep {
    /// Whether nothing is to be done, written or asked.
    pub fn is_empty(&self) -> bool {
        *self == LifecycleStep::default()
    }
}

/// What the controller must do for `pod` at `now_nanos` since the epoch. Nothing for Pods that are terminating or not
/// managed.
///
/// The condition follows all IDs together (rows 4, 10, 12): an ID that holds the Pod off traffic wins over any that
/// wants it back; without one the Pod belongs on traffic, a new Pod that its kubelet has seen included. A Pod without the readiness gate has no
/// condition, and its `service-available` follows Ready.
///
/// `stay-offline` keeps off traffic what is off: it never takes an available Pod away, since no rule was asked. Once
/// such a Pod has gone, by a run or by not being Ready, it is not brought back, and its runs end without waiting for
/// traffic.
pub fn controller_step(pod: &Pod, now_nanos: u64) -> LifecycleStep {
    controller_step_with_passed(pod, &[], now_nanos)
}

/// [`controller_step`] where the rules of the IDs in `passed` have been seen to pass. Row 2 and 8: it asks by the marks
/// alone and takes nothing yet, as admission may know better; the webhook steps on in the same write, and where it is
/// down the next step does.
pub fn controller_step_with_passed(
    pod: &Pod,
    passed: &[(Stage, String)],
    now_nanos: u64,
) -> LifecycleStep {
    if pod.is_terminating() || !pod.is_managed() {
        return LifecycleStep::default();
    }
    let mut run = LifecycleWrite::from_write(Some(pod), pod, now_nanos);
    let asks = passed
        .iter()
        .any(|(stage, id)| run.ids_awaiting_stage(*stage).contains(id));
    for (stage, id) in passed {
        run.pass_stage(*stage, id);
    }
    if !asks {
        run.advance_all();
    }
    // A step that was missed comes first, in a write of its own, since admission may hold what it is asked for there:
    // until it is stored, the condition may not build on it.
    let up_to_date = run.patch().is_empty();
    let others = run.other_labels_mut();
    if !pod.is_ready() || min_ready::is_label_stale(pod, now_nanos) {
        others.remove(keys::SERVICE_AVAILABLE);
    }
    let available = others.contains_key(keys::SERVICE_AVAILABLE);
    let waiting = |stage| {
        run.ids_awaiting_stage(stage)
            .into_iter()
            .map(move |id| (stage, id))
    };
    let mut step = LifecycleStep {
        labels: run.patch(),
        service_ready: wanted_service_ready(pod, &run, available).filter(|_| up_to_date),
        reevaluate: waiting(Stage::PreCheck)
            .chain(waiting(Stage::PostCheck))
            .collect(),
        ..LifecycleStep::default()
    };
    if !available && run.unavailable_reason().is_none() {
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
                    "annotation {}: {error}; the Pod stays unavailable until it is mended or removed",
                    keys::AVAILABLE_CONDITIONS
                ));
            }
        }
    }
    step
}

/// What the controller would write next of the condition, made in the very write of the status that turns a Pod into `pod`; the
/// labels of the steps that this opens come with it. Returns the value of the condition, `None` if it is to stay.
pub fn follow_readiness(pod: &mut Pod, now_nanos: u64) -> Option<bool> {
    let ready = controller_step(pod, now_nanos).service_ready?;
    let conditions = &mut pod.status.conditions;
    conditions.retain(|condition| condition.type_ != keys::SERVICE_READY);
    conditions.push(Condition {
        type_: keys::SERVICE_READY.to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        ..Condition::default()
    });
    let next = controller_step(pod, now_nanos).labels;
    // A Pod becomes available by a write that asks for nothing: the validation could not tell this one from a forged one.
    if !next.0.contains_key(keys::SERVICE_AVAILABLE) {
        next.apply(&mut pod.metadata.labels);
    }
    Some(ready)
}

/// The value to write to the condition; `None` when it has the right one, or the Pod has no gate.
fn wanted_service_ready(pod: &Pod, run: &LifecycleWrite<'_>, available: bool) -> Option<bool> {
    if !pod.has_service_ready_gate() {
        return None;
    }
    let now = pod.condition(keys::SERVICE_READY);
    if run.all_phases().any(|p| p == Phase::Preparing) {
        // Row 4. Written where absent too: cooperators wait for it.
        return (now != Some(false)).then_some(false);
    }
    if run.all_phases().any(Phase::holds_offline) {
        return (now == Some(true)).then_some(false);
    }
    if pod.label(keys::STAY_OFFLINE).is_some() {
        return (now == Some(true) && !available).then_some(false);
    }
    // Rows 10 and 12. A Pod that has run to its end is only woken for a run that waits for it.
    let wanted = !pod.is_finished() || run.all_phases().any(|p| p == Phase::Completing);
    // Put back before the kubelet has noticed that it was off, the Pod would count as available until the late answer.
    let unnoticed = now == Some(false) && pod.is_ready() && !pod.is_finished();
    // Until the kubelet has spoken of a new Pod, scheduler and kubelet write it at the same time: no need to meet them.
    let unseen = now.is_none() && pod.condition("Ready").is_none();
    // The kubelet writes the status before it ends the containers of a change, so Ready alone does not say that the change
    // is over.
    let restarted = restarts::pending_restarts(pod).is_none();
    (wanted && restarted && now != Some(true) && !unnoticed && !unseen).then_some(true)
}

/// Whether a key of the expected finalizers names an object. The finalizer of any other key can only be added, or its
/// entry taken out, by whoever wrote it.
fn names_object(key: &str) -> bool {
    let parts: Vec<_> = key.split('/').collect();
    parts.len() == 3 && parts.iter().all(|part| !part.is_empty())
}
