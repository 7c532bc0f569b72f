//! Which Pods do not serve after an operation of the set, and which Pods do not run until somebody corrects the cause.

use std::sync::Arc;

use super::super::set_facts::SetFacts;
use super::super::set_operations::{self, SetOperation};
use super::MAX_NAMES;
use crate::domain::lifecycle::{Phase, Stage, stored_phase};
use crate::domain::not_ready::NotReadyCause;
use crate::domain::pod::Pod;

/// Whether an operation of the set on the Pod has ended and the Pod does not serve yet.
pub(super) fn is_coming_back(pod: &Pod) -> bool {
    let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
    let is_over = !operations.any(|operation| operation.is_in_progress(pod));
    is_over && !pod.is_available() && stored_phase(pod, set_operations::LIFECYCLE_ID) != Phase::Idle
}

/// Whether a Pod that the set works on can't go on by itself: it waits for rules, or it does not start until somebody
/// corrects the cause.
pub(super) fn is_held_up(pod: &Pod) -> bool {
    let phase = stored_phase(pod, set_operations::LIFECYCLE_ID);
    matches!(phase, Phase::PreCheck | Phase::PostCheck)
        || NotReadyCause::of_pod(pod)
            // Every Pod is without a report of a scheduler at first.
            .is_some_and(|cause| cause.is_stuck() && cause != NotReadyCause::NoScheduler)
}

/// Whether a Pod that does not serve has the updated revision or waits in PostCheck for rules, and has no operation of
/// the set.
pub(super) fn is_down(facts: &SetFacts, pod: &Pod) -> bool {
    let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
    let is_of_rollout =
        facts.is_updated(pod) || set_operations::awaited_rule_stage(pod) == Some(Stage::PostCheck);
    is_of_rollout && !operations.any(|operation| operation.is_in_progress(pod))
}

/// Describes why the first Pods of the updated revision do not run; `None` if there are none.
pub(super) fn describe_stuck_pods(facts: &SetFacts, pods: &[&Arc<Pod>]) -> Option<String> {
    let stuck = pods.iter().filter(|p| is_pod_stuck(facts, p));
    let descriptions = stuck.filter_map(|p| {
        Some(format!(
            "Pod {}: {}",
            p.metadata.name,
            container_failure(p)?
        ))
    });
    let descriptions: Vec<String> = descriptions.take(MAX_NAMES).collect();
    (!descriptions.is_empty()).then(|| descriptions.join("; "))
}

pub(super) fn is_pod_stuck(facts: &SetFacts, pod: &Pod) -> bool {
    facts.is_updated(pod) && container_failure(pod).is_some()
}

/// Reasons of a waiting container that last until somebody corrects the cause.
const FATAL_WAITING_REASONS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// Describes why a container of a Pod does not run, if somebody must correct the cause.
pub(super) fn container_failure(pod: &Pod) -> Option<String> {
    let status = &pod.status;
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses);
    all.into_iter().find_map(|container| {
        let waiting = container.state.waiting.as_deref()?;
        FATAL_WAITING_REASONS
            .contains(&waiting.reason.as_str())
            .then(|| {
                let (name, reason, message) = (&container.name, &waiting.reason, &waiting.message);
                format!("container {name}: {reason}: {message}")
            })
    })
}
