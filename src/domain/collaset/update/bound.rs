//! Which Pods use `maxUnavailable` of the set up, for its status.

use std::sync::Arc;

use super::super::draft::Draft;
use super::super::facts::Facts;
use super::super::pool;
use super::super::strategy::Policy;
use super::{places, pods, scope};
use crate::domain::pod::Pod;

/// The Pods that use `maxUnavailable` up, while the update of at least one other Pod waits for a place; empty where none does.
pub fn using_up(facts: &Facts, draft: &Draft) -> Vec<Arc<Pod>> {
    let strategy = &facts.strategy;
    let is_bound = strategy.max_unavailable.is_some() && strategy.policy != Policy::Replace;
    if !is_bound || strategy.paused || !facts.rolls {
        return Vec::new();
    }
    let counted = pool::counted(facts, draft);
    let (free, _) = places::available(facts, draft, &counted);
    if free > 0 {
        return Vec::new();
    }
    let waits = |id: &i64| {
        let pod = facts
            .members
            .get(id)
            .filter(|_| !draft.leaving.contains(id));
        pod.is_some_and(|pod| {
            let is_older = !facts.is_updated(pod) && !pods::is_change_refused(facts, *id, pod);
            is_older && places::stays(draft, pod)
        })
    };
    if !scope::of(facts, draft, &counted).iter().any(waits) {
        return Vec::new();
    }
    let members = counted.iter().filter_map(|id| facts.members.get(id));
    let away = members.filter(|pod| !places::stays(draft, pod));
    away.cloned().collect()
}
