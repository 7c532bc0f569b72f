//! Which Pods are to be of the updated revision, and how each gets there (contract 6.5).

mod bound;
mod places;
mod pods;
mod scope;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::draft::Draft;
use super::facts::Facts;
use super::lifecycle::{self, Operation};
use super::pool;
use crate::domain::pod::Pod;
pub use bound::{UsingUp, using_surge_up, using_up};
use places::Places;
pub use pods::{is_given_up, serve_meanwhile};
pub use scope::{of as in_scope, taken_back};

/// Begins, does, finishes and cancels updates, and records the revision that each instance ID is to have.
pub fn step(facts: &Facts, draft: &mut Draft) {
    let counted = pool::counted(facts, draft);
    let scope = if facts.strategy.paused {
        BTreeSet::new()
    } else {
        scope::of(facts, draft, &counted)
    };
    let (present, vacant): (Vec<i64>, Vec<i64>) = counted
        .iter()
        .partition(|id| facts.members.contains_key(id));
    for id in vacant {
        placeholder(facts, draft, id, scope.contains(&id));
    }
    let mut pods: Vec<(i64, &Arc<Pod>)> = present
        .iter()
        .filter_map(|id| Some((*id, facts.members.get(id)?)))
        .collect();
    let is_proven = places::is_proven(facts);
    // Those under way have their places already. A Pod whose change or deletion is refused takes no place from another.
    pods.sort_by_cached_key(|(id, pod)| {
        let underway = Operation::Update.is_on(pod);
        // Those whose update was refused take no place, and come before those that can't be written.
        let is_stubborn = facts.observed.refused.pods.contains(&pod.metadata.uid);
        let is_refused = pods::is_refused(facts, *id, pod);
        let order = scope::first_to_update(facts, draft, *id);
        let ends_late = !is_proven && places::may_end_late(facts, pod);
        (!underway, is_stubborn, is_refused, ends_late, order)
    });
    let underway = pods
        .iter()
        .take_while(|(_, pod)| Operation::Update.is_on(pod))
        .filter(|(id, pod)| scope.contains(id) && pods::is_given_up(facts, *id, pod))
        .count();
    for pod in facts.members.values() {
        if let Some(labels) = lifecycle::undo_other(pod) {
            draft.labels(pod, labels);
        }
    }
    let waiting = pods.iter().rev().filter(|(id, pod)| {
        let waits = Operation::Update.is_on(pod) && lifecycle::waits_for_rules(pod);
        scope.contains(id) && waits && pod.is_available()
    });
    let waiting = waiting.map(|(_, pod)| *pod);
    let unmade = places::beyond_surge(facts, draft, &pods);
    let mut places = Places::of(facts, draft, &counted, underway, waiting, unmade);
    for (id, pod) in pods {
        pods::step(facts, draft, &mut places, (id, pod), scope.contains(&id));
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
