//! Decides which Pods get the updated revision, and how each Pod gets there (contract 6.5).

mod bounds;
mod pods;
mod scope;
mod slots;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::draft::Draft;
use super::pool;
use super::set_facts::SetFacts;
use super::set_operations::{self, SetOperation};
use crate::domain::pod::Pod;
pub use bounds::{MaxUnavailableUse, max_surge_use, max_unavailable_use};
pub use pods::{is_updated_by_deletion, return_to_service};
pub use scope::{ids_in_scope as in_scope, rolled_back_ids};
use slots::UpdateSlots;

/// Begins, carries out, finishes and cancels updates, and records the revision of each instance ID in the pool.
pub fn update_instances(facts: &SetFacts, draft: &mut Draft) {
    let counted = pool::counted_ids(facts, draft);
    let scope = if facts.strategy.paused {
        BTreeSet::new()
    } else {
        scope::ids_in_scope(facts, draft, &counted)
    };
    let (present, vacant): (Vec<i64>, Vec<i64>) = counted
        .iter()
        .partition(|id| facts.members.contains_key(id));
    for id in vacant {
        record_unmade_revision(facts, draft, id, scope.contains(&id));
    }
    let mut pods: Vec<(i64, &Arc<Pod>)> = present
        .iter()
        .filter_map(|id| Some((*id, facts.members.get(id)?)))
        .collect();
    let is_proven = slots::is_creation_proven(facts);
    // Updates that have begun come first, because they already have a place. A Pod whose change or deletion is refused
    // takes no place from another.
    pods.sort_by_cached_key(|(id, pod)| {
        let underway = SetOperation::Update.is_in_progress(pod);
        // A Pod whose update was refused takes no place, and comes before Pods that can't be written.
        let is_stubborn = facts.observed.refused.pods.contains(&pod.metadata.uid);
        let is_refused = pods::is_update_refused(facts, *id, pod);
        let order = scope::update_order(facts, draft, *id);
        let ends_late = !is_proven && slots::may_end_slowly(facts, pod);
        (!underway, is_stubborn, is_refused, ends_late, order)
    });
    let underway = pods
        .iter()
        .take_while(|(_, pod)| SetOperation::Update.is_in_progress(pod))
        .filter(|(id, pod)| scope.contains(id) && pods::is_updated_by_deletion(facts, *id, pod))
        .count();
    for pod in facts.members.values() {
        if let Some(labels) = set_operations::undo_foreign_run(pod) {
            draft.patch_labels(pod, labels);
        }
    }
    let waiting = pods.iter().rev().filter(|(id, pod)| {
        let waits =
            SetOperation::Update.is_in_progress(pod) && set_operations::is_awaiting_rules(pod);
        scope.contains(id) && waits && pod.is_available()
    });
    let waiting = waiting.map(|(_, pod)| *pod);
    let unmade = slots::origins_beyond_surge(facts, draft, &pods);
    let mut slots = UpdateSlots::from_facts(facts, draft, &counted, underway, waiting, unmade);
    for (id, pod) in pods {
        pods::update_pod(facts, draft, &mut slots, (id, pod), scope.contains(&id));
    }
}

/// Records the revision of which a missing Pod will be created. A revision that does not exist any more is replaced.
fn record_unmade_revision(facts: &SetFacts, draft: &mut Draft, id: i64, in_scope: bool) {
    let recorded = draft
        .ids
        .get(&id)
        .and_then(|data| data.get(pool::REVISION))
        .filter(|name| facts.history.find_revision(name).is_some());
    let revision = match recorded {
        _ if in_scope => &facts.history.updated.name,
        Some(name) => name,
        None => &facts.history.current.name,
    }
    .clone();
    pool::set_entry_mark(draft, id, pool::REVISION, &revision);
}
