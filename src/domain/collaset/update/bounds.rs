//! Finds the Pods that use up `maxUnavailable` and `maxSurge`, for the status of the set.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::draft::Draft;
use super::super::pool;
use super::super::set_facts::{SetFacts, Target};
use super::super::set_operations::{self, SetOperation};
use super::super::strategy::UpdatePolicy;
use super::{pods, slots, targets};
use crate::api::keys;
use crate::domain::pod::Pod;

/// What uses up `maxUnavailable` while the update of at least one Pod waits for a slot. Empty if no update waits.
#[derive(Debug, Default)]
pub struct MaxUnavailableUse {
    /// Pods that are not available, or that an operation or a deletion takes off traffic.
    pub pods: Vec<Arc<Pod>>,
    /// Number of missing Pods that the rollout has not deleted.
    pub missing: usize,
}

/// Returns what uses up `maxUnavailable`, see [`MaxUnavailableUse`].
pub fn max_unavailable_use(facts: &SetFacts, draft: &Draft) -> MaxUnavailableUse {
    let strategy = &facts.strategy;
    let is_bound = strategy.max_unavailable.is_some() && strategy.policy != UpdatePolicy::Replace;
    if !is_bound || strategy.paused {
        return MaxUnavailableUse::default();
    }
    let targets = targets::targets(facts, draft);
    if !targets.values().any(|target| target.is_behind) {
        return MaxUnavailableUse::default();
    }
    let counted = pool::counted_ids(facts, draft);
    let (free, _) = slots::count_spare_available(facts, draft, &counted);
    if free > 0 {
        return MaxUnavailableUse::default();
    }
    let waits = |(id, target): (&i64, &Target)| {
        let pod = facts.members.get(id).filter(|_| target.is_behind);
        pod.is_some_and(|pod| {
            !pods::is_change_refused(facts, *id, pod, target) && slots::stays_available(draft, pod)
        })
    };
    if !targets.iter().any(waits) {
        return MaxUnavailableUse::default();
    }
    let members = counted.iter().filter_map(|id| facts.members.get(id));
    let away = members.filter(|pod| !slots::stays_available(draft, pod));
    let is_new = |id: &&i64| {
        let mut ending = facts.terminating.get(id).into_iter().flatten();
        let is_deleted = ending.any(|pod| !SetOperation::Update.is_in_progress(pod));
        !facts.members.contains_key(id)
            && (pool::has_entry_mark(draft, **id, pool::JUST_CREATE) || is_deleted)
    };
    let unmade = strategy.replicas.saturating_sub(counted.len());
    MaxUnavailableUse {
        pods: away.cloned().collect(),
        missing: counted.iter().filter(is_new).count() + unmade,
    }
}

/// Returns the Pods whose replacements use up `maxSurge` while at least one other Pod waits to be replaced. Empty if no
/// Pod waits.
pub fn max_surge_use(facts: &SetFacts, draft: &Draft) -> Vec<Arc<Pod>> {
    let strategy = &facts.strategy;
    let most = strategy.max_surge;
    let most = most.filter(|_| strategy.policy == UpdatePolicy::Replace && !strategy.paused);
    let Some(most) = most else {
        return Vec::new();
    };
    let origins: Vec<_> = slots::surging_origins(facts, draft).cloned().collect();
    if origins.len() < most {
        return Vec::new();
    }
    let replaced: BTreeSet<&str> = origins.iter().map(|pod| &*pod.metadata.uid).collect();
    let waits = |(id, target): (&i64, &Target)| {
        let pod = facts.members.get(id).filter(|_| target.is_behind);
        pod.is_some_and(|pod| {
            let goes = set_operations::is_leaving(pod)
                || SetOperation::ScaleIn.is_in_progress(pod)
                || draft.removes_pod(pod);
            let is_replaced =
                pod.label(keys::TO_REPLACE).is_some() || replaced.contains(&*pod.metadata.uid);
            !goes && !is_replaced
        })
    };
    match targets::targets(facts, draft).iter().any(waits) {
        true => origins,
        false => Vec::new(),
    }
}
