//! The budget of a rule object, counted as the server counts it.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::waves::{Budget, Floor, Share};
use crate::api::int_or_percent::IntOrPercent;
use crate::domain::diagnosis::RuleObject;
use crate::domain::pending_disruption::counts_as_available;
use crate::domain::pod::Pod;
use crate::domain::pod_size::MAX_POD_BYTES;
use crate::domain::rules::{AvailabilityLimits, AvailabilityRules, ExpectedPods};

/// Why a budget is not known if the Pods of its namespace are not.
pub const PODS_UNREADABLE: &str = "the Pods of its namespace could not be read";

/// Operations whose claims end with the Pod, so that a new Pod takes its place.
const DELETING: [&str; 2] = ["Delete", "Evict"];

/// What is known of the budget of a rule object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleBudget {
    /// The object limits nothing, or is not enforced.
    None,
    /// The budget.
    Known(Budget),
    /// The object denies every disruption, for this reason.
    DeniesAll(String),
    /// How many Pods may go is not known, for this reason (a clause).
    Unknown(String),
}

/// The Pods of a namespace, as a budget sees them.
#[derive(Clone, Copy)]
pub struct PodsInView<'a> {
    /// All Pods of the namespace. `None` if they could not be read.
    pub pods: Option<&'a [Arc<Pod>]>,
    /// The UIDs of the Pods that the drain evicts.
    pub drained: &'a HashSet<&'a str>,
    /// The present time.
    pub now: Timestamp,
}

/// The budget of a rule object.
pub fn rule_budget(object: &RuleObject, view: PodsInView<'_>) -> RuleBudget {
    if object.set.availability_limits().next().is_none() {
        return RuleBudget::None;
    }
    let name = &object.set.name;
    let Some(status) = object.current_status() else {
        return RuleBudget::Unknown(format!(
            "the server has not counted the Pods of PodTransitionRule {name} yet; if this does not change, check whether \
             the server runs"
        ));
    };
    if unenforced(object).is_some() {
        return RuleBudget::None;
    }
    if let Some(message) = object.denies_all_message() {
        return RuleBudget::DeniesAll(message.to_owned());
    }
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let total = count(status.expected_pods);
    let Some(pods) = view.pods else {
        return RuleBudget::Unknown(PODS_UNREADABLE.to_owned());
    };
    let selected: Vec<&Pod> = pods
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| object.set.selects(pod))
        .collect();
    if has_unclear_percentages(object, &selected) {
        return RuleBudget::Unknown(format!(
            "the status of PodTransitionRule {name} does not show on how many Pods its percentages are based"
        ));
    }
    let left = selected.iter().filter(|pod| is_left(object, pod));
    let left = u32::try_from(left.count()).unwrap_or(u32::MAX);
    // Such a status is older than the Pods. By now, the server may expect more Pods than the status says.
    if left > count(status.available_pods) {
        return RuleBudget::Unknown(format!(
            "the status of PodTransitionRule {name} counts fewer available Pods than there are; look again"
        ));
    }
    let stays_away = |pod: &&&Pod| {
        let is_living = !pod.is_terminating() && !pod.is_finished();
        let is_drained = view.drained.contains(pod.metadata.uid.as_str());
        is_living && !is_left(object, pod) && (is_drained || !comes_back(object, pod, view.now))
    };
    let away = selected.iter().filter(stays_away).count();
    let away = u32::try_from(away).unwrap_or(u32::MAX);
    RuleBudget::Known(Budget {
        left,
        size: ExpectedPods {
            total,
            base: percentage_base(&selected, total),
        },
        returning: total.saturating_sub(left).saturating_sub(away),
        unknown: 0,
    })
}

/// Why the rules of the object hold nothing. `None` if this was written about an older version of the object.
pub fn unenforced(object: &RuleObject) -> Option<&str> {
    object.current_status()?;
    object.unenforced()
}

/// Whether the server counts the Pod as available, and the Pod has no claim. The server can't count a Pod that is too
/// large for its cache.
fn is_left(object: &RuleObject, pod: &Pod) -> bool {
    counts_as_available(pod)
        && pod.pod_bytes() <= MAX_POD_BYTES
        && claims(object, pod).next().is_none()
}

/// The operations for which the Pod has a claim.
fn claims<'a>(object: &'a RuleObject, pod: &'a Pod) -> impl Iterator<Item = &'a str> {
    let claims = object.claims().filter(|(uid, _)| *uid == pod.metadata.uid);
    claims.map(|(_, operation)| operation)
}

/// Whether an available Pod takes the place of a Pod that is not left, before long and without anybody's help: the Pod
/// starts, or it is about to be deleted and a controller replaces it.
fn comes_back(object: &RuleObject, pod: &Pod, now: Timestamp) -> bool {
    let mut claims = claims(object, pod).peekable();
    match claims.peek() {
        Some(_) => claims.all(|claim| DELETING.contains(&claim)) && pod.controller().is_some(),
        None => pod.is_starting(now),
    }
}

/// Kinds of owners that ask for a number of Pods.
const NUMBERED_OWNERS: [&str; 4] = [
    "CollaSet",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
];

/// Whether percentages of the object are based on a number of Pods that is not known: the server leaves out Pods whose
/// owners ask for no number of Pods if other owners do. If there is only one limit, the status shows it as a number.
fn has_unclear_percentages(object: &RuleObject, selected: &[&Pod]) -> bool {
    let limits = || object.set.availability_limits();
    let is_percentage =
        |value: &Option<IntOrPercent>| matches!(value, Some(IntOrPercent::Percent(_)));
    let living = selected
        .iter()
        .filter(|pod| !pod.is_terminating() && !pod.is_finished());
    let kinds = living.map(|pod| {
        let owner = pod.controller()?;
        let is_numbered = NUMBERED_OWNERS.contains(&owner.kind.as_str());
        Some(if is_numbered { "" } else { &owner.kind })
    });
    object.counted_limit().is_none()
        && limits().any(|limits| {
            is_percentage(&limits.max_unavailable) || is_percentage(&limits.min_available)
        })
        && kinds.collect::<HashSet<_>>().len() > 1
}

/// On how many of the expected Pods percentages are based: Pods without a controller are left out if controllers ask for
/// Pods.
fn percentage_base(selected: &[&Pod], total: u32) -> u32 {
    let living = selected
        .iter()
        .filter(|pod| !pod.is_terminating() && !pod.is_finished());
    let alone = living.filter(|pod| pod.controller().is_none()).count();
    match total.saturating_sub(u32::try_from(alone).unwrap_or(u32::MAX)) {
        0 => total,
        owned => owned,
    }
}

/// What a Pod is to the budget of a rule object. `None` if the budget does not count the Pod. `is_refused` is whether
/// the API server refuses the eviction of the Pod now.
pub fn rule_share(
    object: &RuleObject,
    pod: &Pod,
    index: usize,
    size: ExpectedPods,
    is_refused: bool,
) -> Option<Share> {
    if !object.set.selects(pod) || pod.is_finished() {
        return None;
    }
    let is_available = pod.is_available();
    let held = match object.set.availability_rules(pod) {
        AvailabilityRules::Held(held) => held,
        AvailabilityRules::NotHeld | AvailabilityRules::Broken { .. } => Vec::new(),
    };
    let limits = held.into_iter().map(|(_, limits)| limits);
    // A rule holds a Pod that is not available if the rule says so, or for a moment after the Pod went down.
    let holding = limits.filter(|limits| is_available || limits.if_healthy || is_refused);
    let holding: Vec<AvailabilityLimits> = holding.cloned().collect();
    Some(Share {
        budget: index,
        takes: is_left(object, pod),
        floor: (!holding.is_empty()).then(|| counted_floor(object, holding, size)),
    })
}

/// The floor of these limits. The status shows the limit that the server has counted, which is exact if the object has
/// only one limit.
fn counted_floor(
    object: &RuleObject,
    limits: Vec<AvailabilityLimits>,
    size: ExpectedPods,
) -> Floor {
    let floor = Floor::Limits(limits);
    match object.counted_limit() {
        Some(limit) if floor.count(size) != size.total.saturating_sub(limit) => {
            Floor::Count(size.total.saturating_sub(limit))
        }
        _ => floor,
    }
}
