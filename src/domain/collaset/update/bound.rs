//! Which Pods use `maxUnavailable` and `maxSurge` of the set up, for its status.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::draft::Draft;
use super::super::facts::Facts;
use super::super::lifecycle::{self, Operation};
use super::super::pool;
use super::super::strategy::Policy;
use super::{places, pods, scope};
use crate::api::keys;
use crate::domain::pod::Pod;

/// What uses `maxUnavailable` up while the update of at least one Pod waits for a place; nothing where none does.
#[derive(Debug, Default)]
pub struct UsingUp {
    /// The Pods that do not serve, or go.
    pub pods: Vec<Arc<Pod>>,
    /// How many Pods are not there that the rollout has not deleted.
    pub missing: usize,
}

/// What uses `maxUnavailable` up, see [`UsingUp`].
pub fn using_up(facts: &Facts, draft: &Draft) -> UsingUp {
    let strategy = &facts.strategy;
    let is_bound = strategy.max_unavailable.is_some() && strategy.policy != Policy::Replace;
    if !is_bound || strategy.paused || !facts.rolls {
        return UsingUp::default();
    }
    let counted = pool::counted(facts, draft);
    let (free, _) = places::available(facts, draft, &counted);
    if free > 0 {
        return UsingUp::default();
    }
    let waits = |id: &i64| {
        let pod = facts.members.get(id);
        pod.is_some_and(|pod| {
            let is_older = !facts.is_updated(pod) && !pods::is_change_refused(facts, *id, pod);
            is_older && places::stays(draft, pod)
        })
    };
    if !scope::of(facts, draft, &counted).iter().any(waits) {
        return UsingUp::default();
    }
    let members = counted.iter().filter_map(|id| facts.members.get(id));
    let away = members.filter(|pod| !places::stays(draft, pod));
    let is_new = |id: &&i64| {
        let mut ending = facts.terminating.get(id).into_iter().flatten();
        let is_deleted = ending.any(|pod| !Operation::Update.is_on(pod));
        !facts.members.contains_key(id)
            && (pool::is_marked(draft, **id, pool::JUST_CREATE) || is_deleted)
    };
    let unmade = strategy.replicas.saturating_sub(counted.len());
    UsingUp {
        pods: away.cloned().collect(),
        missing: counted.iter().filter(is_new).count() + unmade,
    }
}

/// The Pods whose replacements use `maxSurge` up, while at least one other Pod waits to be replaced; empty where none does.
pub fn using_surge_up(facts: &Facts, draft: &Draft) -> Vec<Arc<Pod>> {
    let strategy = &facts.strategy;
    let most = strategy.max_surge;
    let most = most.filter(|_| strategy.policy == Policy::Replace && !strategy.paused);
    let Some(most) = most.filter(|_| facts.rolls) else {
        return Vec::new();
    };
    let origins: Vec<_> = places::surging(facts, draft).cloned().collect();
    if origins.len() < most {
        return Vec::new();
    }
    let replaced: BTreeSet<&str> = origins.iter().map(|pod| &*pod.metadata.uid).collect();
    let waits = |id: &i64| {
        let pod = facts.members.get(id);
        pod.is_some_and(|pod| {
            let goes = lifecycle::is_leaving(pod)
                || Operation::ScaleIn.is_on(pod)
                || draft.takes_away(pod);
            let is_replaced =
                pod.label(keys::TO_REPLACE).is_some() || replaced.contains(&*pod.metadata.uid);
            !facts.is_updated(pod) && !goes && !is_replaced
        })
    };
    let counted = pool::counted(facts, draft);
    match scope::of(facts, draft, &counted).iter().any(waits) {
        true => origins,
        false => Vec::new(),
    }
}
