//! Decides which Pods get the updated revision, and how each Pod gets there (contract 6.5).

mod bounds;
mod pods;
mod scope;
mod slot_goals;
mod slots;
mod targets;
mod way;

use std::sync::Arc;

use super::draft::Draft;
use super::observed::Revision;
use super::pool;
use super::set_facts::{SetFacts, Target};
use super::set_operations::{self, SetOperation};
use crate::domain::pod::Pod;
pub use bounds::{MaxUnavailableUse, max_surge_use, max_unavailable_use};
pub use pods::{is_updated_by_deletion, return_to_service};
pub use scope::{ids_in_scope as in_scope, rolled_back_ids};
use slot_goals::SlotGoals;
use slots::UpdateSlots;
pub use targets::targets;

/// Begins, carries out, finishes and cancels updates, and records of what each instance is made in the pool.
pub fn update_instances(facts: &SetFacts, draft: &mut Draft) {
    let counted = pool::counted_ids(facts, draft);
    let scope = targets::scope_of_update(facts, draft, &counted);
    let targets = targets::targets(facts, draft);
    let vacant = counted.iter().filter(|id| !facts.members.contains_key(id));
    for id in vacant {
        record_unmade_composition(facts, draft, *id, scope.contains(id));
    }
    record_decorations_of_halves(facts, draft);
    let mut pods: Vec<(i64, &Arc<Pod>, &Target)> = targets
        .iter()
        .filter_map(|(id, target)| Some((*id, facts.members.get(id)?, target)))
        .collect();
    let slot_goals = SlotGoals::from_targets(facts, draft, &counted);
    let is_proven = slot_goals.are_proven(facts);
    // Updates that have begun come first, because they already have a place. A Pod whose change or deletion is refused
    // takes no place from another.
    pods.sort_by_cached_key(|(id, pod, target)| {
        let underway = SetOperation::Update.is_in_progress(pod);
        // A Pod whose update was refused takes no place, and comes before Pods that can't be written.
        let is_stubborn = facts.observed.refused.pods.contains(&pod.metadata.uid);
        let is_refused = pods::is_update_refused(facts, *id, pod, target);
        let order = scope::update_order(facts, draft, *id);
        let ends_late = !is_proven && slots::may_end_slowly(facts, pod);
        (!underway, is_stubborn, is_refused, ends_late, order)
    });
    let underway = pods
        .iter()
        .take_while(|(_, pod, _)| SetOperation::Update.is_in_progress(pod))
        .filter(|(id, pod, target)| pods::is_updated_by_deletion(facts, *id, pod, target))
        .count();
    for pod in facts.members.values() {
        if let Some(labels) = set_operations::undo_foreign_run(pod) {
            draft.patch_labels(pod, labels);
        }
    }
    let waiting = pods.iter().rev().filter(|(id, pod, target)| {
        let waits =
            SetOperation::Update.is_in_progress(pod) && set_operations::is_awaiting_rules(pod);
        let is_wanted = target.is_behind || scope.contains(id);
        is_wanted && waits && pod.is_available()
    });
    let waiting = waiting.map(|(_, pod, _)| *pod);
    let unmade = slots::origins_beyond_surge(facts, draft, &pods);
    let mut slots = UpdateSlots::from_facts(
        facts,
        draft,
        &counted,
        &slot_goals,
        underway,
        waiting,
        unmade,
    );
    for (id, pod, target) in pods {
        pods::update_pod(facts, draft, &mut slots, (id, pod), target);
    }
    targets::report_failures(facts, draft);
}

/// Records of what a missing Pod will be created. A revision that does not exist any more is replaced.
fn record_unmade_composition(facts: &SetFacts, draft: &mut Draft, id: i64, in_scope: bool) {
    let recorded = draft
        .ids
        .get(&id)
        .and_then(|data| data.get(pool::REVISION))
        .and_then(|name| facts.history.find_revision(name));
    let revision = match recorded {
        _ if in_scope => &facts.history.updated,
        Some(recorded) => recorded,
        None => &facts.history.current,
    };
    pool::set_entry_mark(draft, id, pool::REVISION, &revision.name);
    record_wanted_decorations(facts, draft, id, revision);
}

/// Records the decorations of the new Pods of pairs, which become instances of their own.
fn record_decorations_of_halves(facts: &SetFacts, draft: &mut Draft) {
    let halves = draft.ids.iter();
    let halves = halves.filter(|(_, data)| pool::is_entry_of_half(facts, data));
    let halves: Vec<i64> = halves.map(|(id, _)| *id).collect();
    for id in halves {
        let recorded = draft.ids.get(&id).and_then(|data| data.get(pool::REVISION));
        let revision = recorded.and_then(|name| facts.history.find_revision(name));
        if let Some(revision) = revision {
            record_wanted_decorations(facts, draft, id, revision);
        }
    }
}

fn record_wanted_decorations(facts: &SetFacts, draft: &mut Draft, id: i64, template: &Revision) {
    if facts.strategy.paused {
        return;
    }
    let pod = facts.members.get(&id).map(|pod| &**pod);
    let entry = draft.ids.get(&id);
    let wanted = facts.wanted_decorations((id, entry), (pod, true), template);
    let recorded = facts.to_record(&wanted.sure, entry);
    pool::record_decorations(draft, id, &recorded);
}
