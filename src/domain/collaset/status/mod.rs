//! The status of a CollaSet: counts and conditions (contract 6.9, contract 2.4).

mod canaries;
mod condition_inputs;
mod condition_time;
mod conditions;
mod deletion_waits;
mod failed_step;
mod finalizer_waits;
mod membership_requests;
mod pods_down;
mod progress;
mod readiness;
mod remaining_work;
mod rollout_events;
pub(super) mod waits;

pub use canaries::{CanaryWatch, rollout_pause};
pub use condition_time::condition_time;
pub use failed_step::{FailedStep, report_failed_step};
pub use rollout_events::rollout_events;

use std::sync::Arc;

use super::draft::Draft;
use super::observed::ObservedSet;
use super::rollout;
use super::set_facts::SetFacts;
use super::set_operations::{self, SetOperation};
use crate::api::collaset::{CollaSetStatus, RolloutStatus};
use crate::api::keys;
use crate::domain::lifecycle::{Phase, stored_phase};
use crate::domain::pod::Pod;

/// Most Pods that one message names.
const MAX_NAMES: usize = 3;

/// Builds the status from the facts and the position of the rollout.
pub fn build_status(
    facts: &SetFacts,
    draft: &mut Draft,
    rollout: Option<RolloutStatus>,
) -> CollaSetStatus {
    let set = &facts.observed.set;
    let stored = set.status.clone().unwrap_or_default();
    let pods: Vec<&Arc<Pod>> = facts.members.values().chain(&facts.misnumbered).collect();
    let mut status = CollaSetStatus {
        observed_generation: set.metadata.generation.unwrap_or(0),
        label_selector: facts.selector.to_string(),
        current_revision: match &rollout {
            // An abort keeps the stable revision, even if the rollout is complete in this plan.
            Some(next) if next.aborted => facts.history.stable.clone(),
            _ => current_revision(facts, &pods),
        },
        updated_revision: facts.history.updated.name.clone(),
        collision_count: facts.history.collisions,
        last_progress_time: stored.last_progress_time,
        conditions: stored.conditions,
        ..CollaSetStatus::default()
    };
    count_pods(&mut status, facts.observed, &pods, |pod| {
        facts.is_updated(pod)
    });
    // A complete rollout has no position any more.
    status.rollout = match rollout {
        Some(over) if over.revision == status.current_revision => rollout::remaining_command(&over),
        rollout => rollout,
    };
    conditions::update_conditions(facts, draft, &mut status);
    status
}

/// Nanoseconds after which the controller looks again at a Pod with an operation in progress, because no watch reports
/// that a step of its lifecycle is refused.
const RECHECK_NANOS: u64 = 10_000_000_000;

/// Requests another plan if a Pod has an operation in progress.
pub fn requeue_under_way(facts: &SetFacts, draft: &mut Draft) {
    let mut pods = facts.observed.pods.iter();
    let is_under_way = |pod: &Arc<Pod>| {
        let phase = || stored_phase(pod, set_operations::LIFECYCLE_ID);
        let waits = || !matches!(phase(), Phase::Idle | Phase::Operate);
        !pod.is_terminating() && (set_operations::is_leaving(pod) || is_operating(pod) && waits())
    };
    if !facts.observed.refused.unstepped.is_empty() || pods.any(is_under_way) {
        draft.requeue_after(RECHECK_NANOS);
    }
}

/// The status of a set with an invalid spec: the counts of its Pods, and why the set does nothing.
pub fn invalid_spec_status(observed: &ObservedSet, message: &str) -> CollaSetStatus {
    let set = &observed.set;
    let mut status = set.status.clone().unwrap_or_default();
    let present = observed.pods.iter();
    let present = present.filter(|pod| !pod.is_terminating() && !pod.is_finished());
    let present: Vec<&Arc<Pod>> = present.collect();
    let updated = status.updated_revision.clone();
    count_pods(&mut status, observed, &present, |pod| {
        pod.label(keys::REVISION) == Some(&updated)
    });
    status.observed_generation = set.metadata.generation.unwrap_or(0);
    let goes = set.metadata.deletion_timestamp.is_some();
    conditions::report_invalid_spec(
        &mut status,
        message,
        condition_time(observed.now_nanos),
        goes,
    );
    status
}

fn is_operating(pod: &Pod) -> bool {
    SetOperation::Update.is_in_progress(pod) || SetOperation::ScaleIn.is_in_progress(pod)
}

/// Fills the counts of a status.
fn count_pods(
    status: &mut CollaSetStatus,
    observed: &ObservedSet,
    pods: &[&Arc<Pod>],
    is_updated: impl Fn(&Pod) -> bool,
) {
    let count = |test: &dyn Fn(&Pod) -> bool| count_to_i32(pods.iter().filter(|p| test(p)).count());
    status.replicas = count_to_i32(pods.len());
    status.scheduled_replicas = count(&|p| p.condition("PodScheduled") == Some(true));
    status.ready_replicas = count(&Pod::is_ready);
    status.available_replicas = count(&Pod::is_available);
    status.updated_replicas = count(&is_updated);
    status.updated_ready_replicas = count(&|p| is_updated(p) && p.is_ready());
    status.updated_available_replicas = count(&|p| is_updated(p) && p.is_available());
    status.operating_replicas = count(&is_operating);
    let terminating = observed.pods.iter().filter(|pod| pod.is_terminating());
    status.terminating_replicas = count_to_i32(terminating.count());
}

/// Returns the stable revision. The updated revision becomes the stable one when all Pods have it and enough of them
/// are Ready (contract Q47).
fn current_revision(facts: &SetFacts, pods: &[&Arc<Pod>]) -> String {
    let updated = pods.iter().filter(|p| facts.is_updated(p));
    // With `minReadySeconds`, Ready alone is not enough.
    let is_long_ready = |p: &Pod| facts.strategy.min_ready_seconds == 0 || p.is_available();
    let ready = updated.clone().filter(|p| p.is_ready() && is_long_ready(p));
    let complete = ready.count() >= facts.strategy.replicas && updated.count() == pods.len();
    if complete && !facts.strategy.paused && !facts.rollout.has_steps_left() {
        facts.history.updated.name.clone()
    } else {
        facts.history.stable.clone()
    }
}

fn count_to_i32(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
