//! Which Pods are to be of the updated revision, and how each gets there (contract 6.5).

mod pods;
mod scope;

use std::collections::BTreeSet;

use super::draft::Draft;
use super::facts::Facts;
use super::pool;

/// Begins, does, finishes and cancels updates, and records the revision that each instance ID is to have.
pub fn step(facts: &Facts, draft: &mut Draft) {
    let counted = pool::counted(facts, draft);
    let scope = if facts.strategy.paused {
        BTreeSet::new()
    } else {
        scope::of(facts, draft, &counted)
    };
    for id in counted {
        match facts.members.get(&id) {
            Some(pod) => pods::step(facts, draft, id, pod, scope.contains(&id)),
            None => placeholder(facts, draft, id, scope.contains(&id)),
        }
    }
}

/// The revision that a Pod will be made of. One that is not known any more is no use.
fn placeholder(facts: &Facts, draft: &mut Draft, id: i64, in_scope: bool) {
    let recorded = draft
        .ids
        .get(&id)
        .and_then(|data| data.get(pool::REVISION))
        .filter(|name| facts.history.find(name).is_some());
    let revision = match recorded {
        _ if in_scope => &facts.history.updated.name,
        Some(name) => name,
        None => &facts.history.current.name,
    }
    .clone();
    pool::mark(draft, id, pool::REVISION, &revision);
}
