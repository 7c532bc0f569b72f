//! How many Pods, and which go (contract 6.4).

use std::cmp::Reverse;
use std::sync::Arc;

use super::draft::Draft;
use super::facts::Facts;
use super::lifecycle::{self, Operation, Turn};
use super::pool;
use crate::api::keys;
use crate::domain::pod::Pod;
use crate::domain::wording;

/// Pods that an Event names at most: those of the largest sets would fill it many times over.
const NAMED: usize = 20;

/// Fits the instance IDs to the replicas, takes surplus Pods away through the lifecycle, and brings back those whose
/// scale-in is no longer wanted (contract 10.4 Q33).
pub fn step(facts: &Facts, draft: &mut Draft) {
    let counted: Vec<i64> = pool::counted(facts, draft)
        .into_iter()
        .filter(|id| facts.is_held(*id))
        .collect();
    if facts.strategy.paused {
        stop(facts, draft);
        return;
    }
    // What is to be excluded leaves by itself: it is neither chosen nor counted (contract 10.4 Q34). Where names persist
    // nothing can be excluded.
    let mut staying: Vec<(i64, &Arc<Pod>)> = counted
        .iter()
        .filter_map(|id| Some((*id, facts.members.get(id)?)))
        .filter(|(_, pod)| facts.strategy.sequence || !facts.is_to_exclude(pod))
        .collect();
    staying.sort_by(|a, b| first_to_go(facts, a).cmp(&first_to_go(facts, b)));
    let surplus = staying.len().saturating_sub(facts.strategy.replicas);
    for (index, (id, pod)) in staying.iter().enumerate() {
        if index < surplus {
            draft.surplus.insert(*id);
            take_away(facts, draft, *id, pod);
        } else {
            keep(facts, draft, *id, pod);
        }
    }
    tell(draft, &staying[..surplus]);
    // New halves stand for their origins, and are neither chosen nor counted.
    for (id, pod) in &facts.members {
        let half = draft.ids.get(id);
        if half.is_some_and(|data| pool::is_new_half(facts, data)) {
            delete_by_name(facts, draft, *id, pod);
        }
    }
    pool::fit(facts, draft, facts.strategy.replicas.max(counted.len()));
}

/// Names the Pods whose scale-in begins.
fn tell(draft: &mut Draft, going: &[(i64, &Arc<Pod>)]) {
    let beginning = going
        .iter()
        .filter(|(_, pod)| !Operation::ScaleIn.is_on(pod) && !lifecycle::is_leaving(pod));
    let names: Vec<&str> = beginning.map(|(_, pod)| &*pod.metadata.name).collect();
    if !names.is_empty() {
        let message = format!("scaling in {}", wording::listed(&names, NAMED));
        draft.event(false, "BeginScaleInLifecycle", message);
    }
}

/// A set that is paused takes nobody away: who is off traffic for that comes back, and goes when the set goes on.
fn stop(facts: &Facts, draft: &mut Draft) {
    for (id, pod) in &facts.members {
        if Operation::ScaleIn.is_on(pod) && !lifecycle::is_leaving(pod) {
            pool::unmark(draft, *id, pool::SCALE_IN);
            draft.labels(pod, Operation::ScaleIn.undo(pod));
        }
    }
}

/// Orders Pods, first those to go.
fn first_to_go<'a>(facts: &Facts, (id, pod): &(i64, &'a Arc<Pod>)) -> impl Ord + use<'a> {
    let ready_since = pod
        .status
        .conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .and_then(|c| c.last_transition_time.as_deref());
    (
        !facts.strategy.delete.contains(&pod.metadata.name),
        !(lifecycle::is_leaving(pod) || Operation::ScaleIn.is_on(pod)),
        // Whom the user asks for stays, though it is the youngest.
        facts.strategy.include.contains(&pod.metadata.name),
        facts.strategy.sequence.then_some(Reverse(*id)),
        pod.is_ready(),
        deletion_cost(pod),
        Reverse(ready_since),
        Reverse(pod.metadata.creation_timestamp.as_deref()),
        Reverse(*id),
    )
}

/// What the deletion of a Pod costs, as its annotation says; 0 without one
/// (<https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost>).
fn deletion_cost(pod: &Pod) -> i32 {
    let cost = pod.annotation(keys::DELETION_COST);
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn take_away(facts: &Facts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    let now = facts.observed.now_nanos;
    // A new half has no place without its origin (contract 10.4 Q35), and is not made again.
    if let Some(new) = draft.ids.get(&id).and_then(pool::new_of) {
        match facts.members.get(&new) {
            Some(half) if lifecycle::must_leave(half) => {}
            Some(half) => draft.send_away(half, now),
            None if facts.is_held(new) => {}
            None => {
                pool::unmark(draft, id, pool::REPLACE_NEW);
                pool::retire(facts, draft, new);
            }
        }
    }
    if lifecycle::is_leaving(pod) {
        pool::mark(draft, id, pool::SCALE_IN, "true");
        if lifecycle::may_stay(pod) {
            draft.send_away(pod, now);
        }
        return;
    }
    match Operation::ScaleIn.turn(pod, facts.strategy.scale_delay, now) {
        Turn::Idle => draft.labels(pod, Operation::ScaleIn.begin(pod, true, now)),
        Turn::Waiting => {}
        Turn::Delayed(nanos) => draft.again(nanos),
        Turn::Allowed => {
            pool::mark(draft, id, pool::SCALE_IN, "true");
            draft.event(
                false,
                "TargetDeleted",
                format!("Pod {} is scaled in", pod.metadata.name),
            );
            draft.delete(pod);
        }
    }
}

fn keep(facts: &Facts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    pool::unmark(draft, id, pool::SCALE_IN);
    if Operation::ScaleIn.is_on(pod) {
        draft.labels(pod, Operation::ScaleIn.undo(pod));
    }
    delete_by_name(facts, draft, id, pod);
}

/// Has a Pod deleted that `podToDelete` names, through the lifecycle; it is made again under its ID. Where names persist the pool notes
/// which Pod was meant: another one of that name is the one that was made again.
fn delete_by_name(facts: &Facts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    if !facts.strategy.delete.contains(&pod.metadata.name) {
        pool::unmark(draft, id, pool::DELETED);
        return;
    }
    if is_to_be_deleted(facts, draft, id, pod) {
        if facts.strategy.sequence {
            pool::mark(draft, id, pool::DELETED, &pool::note_of(pod));
        }
        draft.send_away(pod, facts.observed.now_nanos);
    }
}

/// Whether `podToDelete` means this very Pod, and not one of its name that has gone.
pub fn is_to_be_deleted(facts: &Facts, draft: &Draft, id: i64, pod: &Pod) -> bool {
    let noted = draft.ids.get(&id).and_then(|data| data.get(pool::DELETED));
    let is_meant = || match noted {
        None => true,
        Some(noted) if *noted == pool::note_of(pod) => true,
        // An older build has noted the name: of the Pod that was told to go, or of the one after it.
        Some(noted) => *noted == pod.metadata.name && lifecycle::may_stay(pod),
    };
    facts.strategy.delete.contains(&pod.metadata.name) && is_meant()
}

/// Pods that were told to go, and that no step wants away any more: the list is another, the set is paused, the pair was cancelled
/// or its new Pod is down again.
pub fn take_back(facts: &Facts, draft: &mut Draft) {
    for pod in facts.members.values() {
        if !draft.is_sent_away(pod) {
            draft.call_back(pod);
        }
    }
}
