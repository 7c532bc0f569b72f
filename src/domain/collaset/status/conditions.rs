//! Sets the conditions of a CollaSet.
//!
//! `Scale`, `Update` and `Terminating` are True when their goal is reached. Until then they are False, with the reasons
//! that Kuperator also uses for a step that failed. `Ready` says whether everything is as the spec asks. `Stalled`
//! appears if the set can't reach its spec without a change, in the form that tools for rollouts read (kstatus).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::draft::Draft;
use super::super::plan::Shortfall;
use super::super::set_facts::SetFacts;
use super::condition_inputs::ConditionInputs;
use super::condition_time::condition_time;
use super::{deletion_waits, progress, waits};
use crate::api::collaset::{CollaSetCondition, CollaSetStatus};
use crate::domain::messages;

/// Reports an invalid spec in the conditions. If the set is being deleted, only `Ready` reports the invalid spec.
pub(super) fn report_invalid_spec(
    status: &mut CollaSetStatus,
    message: &str,
    now: Timestamp,
    goes: bool,
) {
    for (type_, is_so) in [("Scale", false), ("Update", false), ("Stalled", true)] {
        match goes {
            true => status.conditions.retain(|c| c.type_ != type_),
            false => set_condition(status, now, type_, is_so, "Invalid", message.to_owned()),
        }
    }
    set_condition(status, now, "Ready", false, "Invalid", message.to_owned());
}

/// Sets the conditions that follow from the facts. Other conditions stay unchanged.
pub(super) fn update_conditions(facts: &SetFacts, draft: &mut Draft, status: &mut CollaSetStatus) {
    let now = condition_time(facts.observed.now_nanos);
    if facts.observed.set.metadata.deletion_timestamp.is_some() {
        set_deletion_conditions(facts, draft, status, now);
        return;
    }
    let view = ConditionInputs::from_facts(facts, draft, status);
    draft.shortfall = Shortfall {
        rollout: view.remaining_rollout_suffix(facts, status),
        down: waits::describe_refused_deletion(facts)
            + &view.describe_unavailable(facts)
            + &view.describe_single_pods(),
    };
    match view.scaling_condition(facts) {
        None => set_condition(status, now, "Scale", true, "Scaled", String::new()),
        Some((reason, message)) => {
            let cause = match reason {
                "ScaleOutFailed" => view.describe_single_pods(),
                _ => String::new(),
            };
            let message = with_remedy(reason, message) + &cause;
            set_condition(status, now, "Scale", false, reason, message);
        }
    }
    let (updated, reason, message) =
        update_condition(facts, &view, status, &draft.shortfall.rollout);
    set_condition(status, now, "Update", updated, reason, message);
    let (ready, reason, message) = view.ready_condition(facts, status);
    set_condition(status, now, "Ready", ready, reason, message.clone());
    let is_overdue = progress::is_deadline_exceeded(facts, draft, status, &view);
    let cause = is_overdue.then_some(&*message);
    match stall_condition(facts, &view, cause) {
        Some((reason, message)) => set_condition(status, now, "Stalled", true, reason, message),
        None => status.conditions.retain(|c| c.type_ != "Stalled"),
    }
}

/// Sets the conditions of a set that is being deleted. Such a set neither scales nor updates, so the conditions about
/// scaling and updating have no meaning.
fn set_deletion_conditions(
    facts: &SetFacts,
    draft: &Draft,
    status: &mut CollaSetStatus,
    now: Timestamp,
) {
    let pod_count = facts.observed.pods.len();
    let orphaning = deletion_waits::describe_orphaning(facts);
    let refusal = facts.observed.refused.finalizer.as_ref();
    let remaining_pvcs = deletion_waits::describe_remaining_pvcs(draft);
    let (done, reason) = match (&orphaning, pod_count, refusal) {
        (None, 0, None) if remaining_pvcs.is_empty() => (true, "Deleted"),
        _ => (false, "ReclaimingTargetsDeletion"),
    };
    let refusal = refusal.map(|refusal| {
        format!("; its finalizer can't be removed: {refusal}; let the server update the CollaSet")
    });
    let refusal = refusal.unwrap_or_default();
    let remaining = || {
        format!(
            "{} left{}{remaining_pvcs}",
            messages::count_pods(pod_count),
            deletion_waits::describe_leaving_pods(facts)
        )
    };
    let message = format!("{}{refusal}", orphaning.unwrap_or_else(remaining));
    set_condition(status, now, "Terminating", done, reason, message.clone());
    set_condition(status, now, "Ready", false, "Terminating", message);
    let is_kept = |type_: &str| !["Scale", "Update", "Stalled"].contains(&type_);
    status.conditions.retain(|c| is_kept(&c.type_));
}

/// Status, reason and message of `Update`. `remaining_rollout` describes the rest of the rollout.
fn update_condition(
    facts: &SetFacts,
    view: &ConditionInputs,
    status: &CollaSetStatus,
    remaining_rollout: &str,
) -> (bool, &'static str, String) {
    if let Some(stuck) = &view.stuck {
        return (false, "UpdateFailed", format!("{stuck}{remaining_rollout}"));
    }
    let failed = view
        .refused
        .iter()
        .find(|(reason, _)| *reason == "UpdateFailed");
    if let Some((reason, message)) = failed {
        return (false, reason, format!("{message}{remaining_rollout}"));
    }
    if waits::is_abort_pending(facts, status) {
        let message = waits::describe_pending_abort(facts);
        return (false, "RolloutAborted", message);
    }
    let paused = facts.strategy.paused;
    if facts.rollout.is_aborted() {
        let remedy = match paused && view.behind + view.updates > 0 {
            true => waits::UNPAUSE_REMEDY,
            false => "",
        };
        let message = view.describe_aborted(facts) + remedy;
        return (false, "RolloutAborted", message);
    }
    if view.is_updating(facts) {
        let pause = waits::describe_pause(facts, status).filter(|_| !paused);
        let reason = match (paused, &pause) {
            (true, _) => "Paused",
            (false, Some(_)) => "StepPaused",
            (false, None) => "Updating",
        };
        let message =
            pause.unwrap_or_else(|| view.describe_remaining_update(facts)) + &view.left_out;
        return (false, reason, with_remedy(reason, message));
    }
    let message = waits::describe_kept_pods(facts, view.staying_outdated);
    (true, "Updated", message)
}

/// Reason and message of `Stalled`; `None` if the set is not stalled. `cause` is the message of `Ready` if the set has
/// made no progress for the duration of its deadline.
fn stall_condition(
    facts: &SetFacts,
    view: &ConditionInputs,
    cause: Option<&str>,
) -> Option<(&'static str, String)> {
    if facts.rollout.is_aborted() && view.behind + view.updates + view.missing == 0 {
        return Some(("RolloutAborted", view.describe_aborted(facts)));
    }
    let cause = cause?;
    let seconds = facts.observed.set.spec.progress_deadline_seconds;
    let seconds = seconds.unwrap_or_default();
    let message = format!("no progress for {seconds} s (progressDeadlineSeconds): {cause}");
    Some((progress::DEADLINE_REASON, message))
}

/// Adds to the message of a paused set the field that resumes it.
pub(super) fn with_remedy(reason: &str, message: String) -> String {
    match reason {
        "Paused" => message + waits::UNPAUSE_REMEDY,
        _ => message,
    }
}

/// Sets a condition. Its transition time changes only when its status changes.
pub(super) fn set_condition(
    status: &mut CollaSetStatus,
    now: Timestamp,
    type_: &str,
    value: bool,
    reason: &str,
    message: String,
) {
    let value = if value { "True" } else { "False" };
    let generation = Some(status.observed_generation).filter(|g| *g > 0);
    let existing = status.conditions.iter_mut().find(|c| c.type_ == type_);
    let since = existing
        .as_ref()
        .filter(|c| c.status == value)
        .and_then(|c| c.last_transition_time.clone());
    let condition = CollaSetCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        observed_generation: generation,
        last_transition_time: since.or(Some(Time(now))),
        reason: reason.to_owned(),
        message,
    };
    match existing {
        Some(existing) => *existing = condition,
        None => status.conditions.push(condition),
    }
}
