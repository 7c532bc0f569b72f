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

/// A Pod that goes and is not gone is looked at again after this many nanoseconds.
const UNDELETED: u64 = 5_000_000_000;

/// Fits the instance IDs to the replicas, takes surplus Pods away through the lifecycle, and brings back those whose
/// scale-in is no longer wanted (contract Q33).
pub fn step(facts: &Facts, draft: &mut Draft) {
    if facts.strategy.paused {
        stop(facts, draft);
        return;
    }
    let pod_of = |id: &i64| facts.members.get(id);
    // What is to be excluded leaves by itself: it is neither chosen nor counted (contract Q34). Where names persist
    // nothing can be excluded.
    let leaves = |id: &i64| {
        let pod = pod_of(id).or_else(|| facts.waiting.get(id));
        !facts.strategy.sequence && pod.is_some_and(|pod| facts.is_to_exclude(pod))
    };
    // An instance whose Pod is missing for now is as good as others: it is made again, and has its volumes.
    let mut instances = pool::counted(facts, draft);
    instances.retain(|id| !leaves(id));
    instances.sort_by_cached_key(|id| first_to_go(facts, draft, *id));
    let surplus = instances.len().saturating_sub(facts.strategy.replicas);
    let (going, staying) = instances.split_at(surplus);
    for id in going {
        draft.surplus.insert(*id);
        match pod_of(id) {
            Some(pod) => take_away(facts, draft, *id, pod),
            None => match facts.waiting.get(id) {
                Some(ended) => {
                    take_half_away(facts, draft, *id);
                    pool::mark(draft, *id, pool::SCALE_IN, "true");
                    draft.delete(ended);
                }
                None if facts.is_held(*id) => pool::mark(draft, *id, pool::SCALE_IN, "true"),
                None => pool::free(draft, *id),
            },
        }
    }
    for id in staying {
        match pod_of(id) {
            Some(pod) => keep(facts, draft, *id, pod),
            None => pool::unmark(draft, *id, pool::SCALE_IN), // wanted after all
        }
    }
    tell(draft, going.iter().filter_map(pod_of));
    // New halves stand for their origins, and are neither chosen nor counted.
    for (id, pod) in &facts.members {
        let half = draft.ids.get(id);
        if half.is_some_and(|data| pool::is_new_half(facts, data)) {
            if Operation::ScaleIn.is_on(pod) && !lifecycle::is_leaving(pod) {
                draft.labels(pod, Operation::ScaleIn.undo(pod)); // its pair was lost for a while
            }
            delete_by_name(facts, draft, *id, pod);
        }
    }
    pool::grow(facts, draft, facts.strategy.replicas);
}

/// Names the Pods whose scale-in is to begin.
fn tell<'a>(draft: &mut Draft, going: impl Iterator<Item = &'a Arc<Pod>>) {
    let beginning =
        going.filter(|pod| !Operation::ScaleIn.is_on(pod) && !lifecycle::is_leaving(pod));
    let names: Vec<&str> = beginning.map(|pod| &*pod.metadata.name).collect();
    if !names.is_empty() {
        let message = format!("to be scaled in: {}", wording::listed(&names, NAMED));
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

/// Orders instances, first those to go: those that have gone already, then by name, then those on their way. Who is on the way stays
/// chosen although another is lost meanwhile, or deleted by a rollout: that one is made again.
fn first_to_go<'a>(facts: &'a Facts, draft: &Draft, id: i64) -> impl Ord + use<'a> {
    let pod = facts.members.get(&id);
    let strategy = &facts.strategy;
    let mut any = pod
        .into_iter()
        .chain(facts.former(id).filter(|_| pod.is_none()));
    // A name that persists tells which instance was meant though its Pod has gone, and nobody has noted why.
    let is_vacant = strategy.sequence && pod.is_none() && !strategy.delete.is_empty();
    let is_named = any.any(|pod| strategy.delete.contains(&pod.metadata.name))
        || is_vacant && strategy.delete.contains(&pool::name_of(facts, id));
    let chosen = pod.or_else(|| facts.waiting.get(&id)).map(|pod| {
        let is_on_its_way = lifecycle::is_leaving(pod) || Operation::ScaleIn.is_on(pod);
        (
            // Of several that can't be deleted, one may be on its way for another reason, such as its replacement.
            !(is_on_its_way && pool::is_marked(draft, id, pool::SCALE_IN)),
            !is_on_its_way,
            // Whom the user asks for stays, though it is the youngest.
            strategy.include.contains(&pod.metadata.name),
        )
    });
    let ready_since = pod.and_then(|pod| {
        let mut conditions = pod.status.conditions.iter();
        let ready = conditions.find(|c| c.type_ == "Ready")?;
        ready.last_transition_time.as_deref()
    });
    (
        pod.is_some() || !pool::is_marked(draft, id, pool::SCALE_IN),
        !is_named,
        chosen.unwrap_or((true, true, false)),
        facts.strategy.sequence.then_some(Reverse(id)),
        // Of one that could not enter nothing is lost.
        !draft.entering.contains(&id),
        pod.is_some(),
        !pool::is_marked(draft, id, pool::JUST_CREATE),
        pod.is_some_and(|pod| pod.is_ready()),
        pod.map_or(0, |pod| deletion_cost(pod)),
        Reverse(ready_since),
        Reverse(pod.and_then(|pod| pod.metadata.creation_timestamp.as_deref())),
        Reverse(id),
    )
}

/// What the deletion of a Pod costs, as its annotation says; 0 without one
/// (<https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost>).
fn deletion_cost(pod: &Pod) -> i32 {
    let cost = pod.annotation(keys::DELETION_COST);
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// A new half has no place without its origin (contract Q35), and is not made again.
fn take_half_away(facts: &Facts, draft: &mut Draft, origin: i64) {
    let Some(new) = draft.ids.get(&origin).and_then(pool::new_of) else {
        return;
    };
    match facts.members.get(&new) {
        Some(half) if facts.must_leave(half) => {}
        Some(half) => draft.send_away(half, facts.observed.now_nanos),
        None if facts.is_held(new) => {}
        None => {
            pool::unmark(draft, origin, pool::REPLACE_NEW);
            pool::retire(facts, draft, new);
        }
    }
}

fn take_away(facts: &Facts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    let now = facts.observed.now_nanos;
    take_half_away(facts, draft, id);
    if lifecycle::is_leaving(pod) {
        pool::mark(draft, id, pool::SCALE_IN, "true");
        if facts.may_stay(pod) {
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
            let message = format!("Pod {} is scaled in", pod.metadata.name);
            draft.delete_and_tell(pod, "TargetDeleted", message);
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

/// Looks again at a Pod that goes and is not gone: nothing tells that its deletion is refused, or no more.
pub fn await_deletion(facts: &Facts, draft: &mut Draft, pod: &Pod) {
    if facts.must_leave(pod) || facts.undeleted(pod).is_some() {
        draft.again(UNDELETED);
    }
}

/// Pods that were told to go, and that no step wants away any more: the list is another, the set is paused, the pair was cancelled
/// or its new Pod is down again.
pub fn take_back(facts: &Facts, draft: &mut Draft) {
    for pod in facts.members.values() {
        await_deletion(facts, draft, pod);
        if !draft.is_sent_away(pod) {
            draft.call_back(facts, pod);
        }
    }
}
