//! Whether a set makes progress (`spec.progressDeadlineSeconds`).
//!
//! The status stores the time of the last progress. The deadline counts only while the set has work that waits neither
//! for a rule, nor for a person, nor for a delay in the spec. Therefore a rollout that waits for a budget is not
//! stalled.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::draft::Draft;
use super::super::rollout;
use super::super::set_facts::SetFacts;
use super::super::set_operations::{self, OperationState, SetOperation};
use super::condition_inputs::ConditionInputs;
use super::condition_time;
use crate::api::collaset::CollaSetStatus;
use crate::domain::pod::Pod;

/// Reason of the condition `Stalled`; a Deployment's condition `Progressing` has the same.
pub const DEADLINE_REASON: &str = "ProgressDeadlineExceeded";

/// Whether the set has made no progress for the duration of its deadline. This function stores the time of the last
/// progress in the status, and requests another plan for the end of the deadline.
pub fn is_deadline_exceeded(
    facts: &SetFacts,
    draft: &mut Draft,
    status: &mut CollaSetStatus,
    view: &ConditionInputs,
) -> bool {
    let deadline = facts.strategy.progress_deadline;
    let Some(deadline) = deadline.filter(|_| is_progress_expected(facts, status, view)) else {
        status.last_progress_time = None;
        return false;
    };
    let now = facts.observed.now_nanos;
    let former = facts.observed.set.status.as_ref();
    let progress = former.is_none_or(|former| has_progressed(former, status, view));
    let since = status.last_progress_time.take().filter(|_| !progress);
    let since = since.unwrap_or(Time(condition_time(now)));
    let began = u64::try_from(since.0.as_nanosecond()).unwrap_or(0);
    status.last_progress_time = Some(since);
    let remaining = began.saturating_add(deadline).saturating_sub(now);
    if remaining > 0 {
        draft.requeue_after(remaining);
    }
    remaining == 0
}

/// Whether the set is closer to its goal than before: more Pods are available or updated, or there are fewer surplus
/// Pods.
fn has_progressed(
    former: &CollaSetStatus,
    status: &CollaSetStatus,
    view: &ConditionInputs,
) -> bool {
    let counts = |s: &CollaSetStatus| {
        [
            s.available_replicas,
            s.updated_replicas,
            s.updated_available_replicas,
        ]
    };
    let more = counts(former)
        .into_iter()
        .zip(counts(status))
        .any(|(former, now)| now > former);
    let beyond = view.missing == 0 && (view.surplus > 0 || view.pairs > 0);
    let fewer = beyond && status.replicas < former.replicas;
    let step = |s: &CollaSetStatus| {
        s.rollout
            .as_ref()
            .map_or((0, false), |r| (r.step, r.aborted))
    };
    more || fewer
        || former.observed_generation != status.observed_generation
        || step(former) != step(status)
}

/// Whether the set has work that waits for nobody.
fn is_progress_expected(facts: &SetFacts, status: &CollaSetStatus, view: &ConditionInputs) -> bool {
    if facts.strategy.paused {
        return false;
    }
    if view.missing > 0 {
        return true;
    }
    let leaving = || facts.misnumbered.iter().chain(&facts.unselected);
    let members = || facts.members.values().chain(leaving());
    let operations = [SetOperation::Update, SetOperation::ScaleIn];
    let is_delayed = |pod: &Pod| {
        operations.iter().any(|operation| {
            let delay = operation.delay_nanos(&facts.strategy);
            let turn = operation.operation_state(pod, delay, facts.observed.now_nanos);
            matches!(turn, OperationState::Delayed(_))
        })
    };
    let waits = |pod: &Pod| set_operations::awaited_rule_stage(pod).is_some() || is_delayed(pod);
    let is_busy = |pod: &&Arc<Pod>| {
        let is_on = operations
            .iter()
            .any(|operation| operation.is_in_progress(pod));
        !waits(pod) && (!pod.is_available() || is_on)
    };
    if members().any(|pod| is_busy(&pod)) {
        return true;
    }
    let at_pause = status
        .rollout
        .as_ref()
        .and_then(|r| rollout::pause_wait(facts, r));
    let has_requests = view.requests.has_moving_pods() || view.requests.unpaired > 0;
    let update = view.to_decorate > 0 || view.behind > 0 && at_pause.is_none();
    let has_work = view.surplus > 0 || view.pairs > 0 || has_requests || update;
    has_work && !members().any(|pod| waits(pod))
}
