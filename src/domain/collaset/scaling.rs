//! How many Pods, and which go (contract 6.4).

use std::cmp::Reverse;
use std::sync::Arc;

use super::draft::Draft;
use super::pool;
use super::set_facts::SetFacts;
use super::set_operations::{self, OperationState, SetOperation};
use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Pods that an Event names at most: those of the largest sets would fill it many times over.
const MAX_NAMES: usize = 20;

/// A Pod that goes and is not gone is looked at again after this many nanoseconds.
const DELETION_RECHECK_NANOS: u64 = 5_000_000_000;

/// Fits the instance IDs to the replicas, takes surplus Pods away through the lifecycle, and brings back those whose
/// scale-in is no longer wanted (contract Q33).
pub fn fit_replicas(facts: &SetFacts, draft: &mut Draft) {
    if facts.strategy.paused {
        stop_scale_in(facts, draft);
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
    let mut instances = pool::counted_ids(facts, draft);
    instances.retain(|id| !leaves(id));
    instances.sort_by_cached_key(|id| scale_in_order(facts, draft, *id));
    let surplus = instances.len().saturating_sub(facts.strategy.replicas);
    let (going, staying) = instances.split_at(surplus);
    for id in going {
        draft.surplus.insert(*id);
        match pod_of(id) {
            Some(pod) => scale_in_pod(facts, draft, *id, pod),
            None => match facts.waiting.get(id) {
                Some(ended) => {
                    delete_new_half(facts, draft, *id);
                    pool::set_entry_mark(draft, *id, pool::SCALE_IN, "true");
                    draft.delete_pod(ended);
                }
                None if facts.is_id_held(*id) => {
                    pool::set_entry_mark(draft, *id, pool::SCALE_IN, "true")
                }
                None => pool::free_id(draft, *id),
            },
        }
    }
    for id in staying {
        match pod_of(id) {
            Some(pod) => keep_pod(facts, draft, *id, pod),
            None => pool::remove_entry_mark(draft, *id, pool::SCALE_IN), // wanted after all
        }
    }
    announce_scale_in(draft, going.iter().filter_map(pod_of));
    // New halves stand for their origins, and are neither chosen nor counted.
    for (id, pod) in &facts.members {
        let half = draft.ids.get(id);
        if half.is_some_and(|data| pool::is_entry_of_half(facts, data)) {
            if SetOperation::ScaleIn.is_in_progress(pod) && !set_operations::is_leaving(pod) {
                draft.patch_labels(pod, SetOperation::ScaleIn.undo_labels(pod)); // its pair was lost for a while
            }
            delete_named_pod(facts, draft, *id, pod);
        }
    }
    pool::grow_to(facts, draft, facts.strategy.replicas);
}

/// Names the Pods whose scale-in is to begin.
fn announce_scale_in<'a>(draft: &mut Draft, going: impl Iterator<Item = &'a Arc<Pod>>) {
    let beginning = going.filter(|pod| {
        !SetOperation::ScaleIn.is_in_progress(pod) && !set_operations::is_leaving(pod)
    });
    let names: Vec<&str> = beginning.map(|pod| &*pod.metadata.name).collect();
    if !names.is_empty() {
        let message = format!(
            "to be scaled in: {}",
            messages::list_names(&names, MAX_NAMES)
        );
        draft.announce_event(false, "BeginScaleInLifecycle", message);
    }
}

/// A set that is paused takes nobody away: who is off traffic for that comes back, and goes when the set goes on.
fn stop_scale_in(facts: &SetFacts, draft: &mut Draft) {
    for (id, pod) in &facts.members {
        if SetOperation::ScaleIn.is_in_progress(pod) && !set_operations::is_leaving(pod) {
            pool::remove_entry_mark(draft, *id, pool::SCALE_IN);
            draft.patch_labels(pod, SetOperation::ScaleIn.undo_labels(pod));
        }
    }
}

/// Orders instances, first those to go: those that have gone already, then by name, then those on their way. Who is on the way stays
/// chosen although another is lost meanwhile, or deleted by a rollout: that one is made again.
fn scale_in_order<'a>(facts: &'a SetFacts, draft: &Draft, id: i64) -> impl Ord + use<'a> {
    let pod = facts.members.get(&id);
    let strategy = &facts.strategy;
    let mut any = pod
        .into_iter()
        .chain(facts.former_pods(id).filter(|_| pod.is_none()));
    // A name that persists tells which instance was meant though its Pod has gone, and nobody has noted why.
    let is_vacant = strategy.sequence && pod.is_none() && !strategy.delete.is_empty();
    let is_named = any.any(|pod| strategy.delete.contains(&pod.metadata.name))
        || is_vacant
            && strategy
                .delete
                .contains(&pool::persistent_pod_name(facts, id));
    let chosen = pod.or_else(|| facts.waiting.get(&id)).map(|pod| {
        let is_on_its_way =
            set_operations::is_leaving(pod) || SetOperation::ScaleIn.is_in_progress(pod);
        (
            // Of several that can't be deleted, one may be on its way for another reason, such as its replacement.
            !(is_on_its_way && pool::has_entry_mark(draft, id, pool::SCALE_IN)),
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
        pod.is_some() || !pool::has_entry_mark(draft, id, pool::SCALE_IN),
        !is_named,
        chosen.unwrap_or((true, true, false)),
        facts.strategy.sequence.then_some(Reverse(id)),
        // Of one that could not enter nothing is lost.
        !draft.entering.contains(&id),
        pod.is_some(),
        !pool::has_entry_mark(draft, id, pool::JUST_CREATE),
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
fn delete_new_half(facts: &SetFacts, draft: &mut Draft, origin: i64) {
    let Some(new) = draft.ids.get(&origin).and_then(pool::new_of) else {
        return;
    };
    match facts.members.get(&new) {
        Some(half) if facts.must_leave(half) => {}
        Some(half) => draft.request_deletion(half, facts.observed.now_nanos),
        None if facts.is_id_held(new) => {}
        None => {
            pool::remove_entry_mark(draft, origin, pool::REPLACE_NEW);
            pool::retire_half_id(facts, draft, new);
        }
    }
}

fn scale_in_pod(facts: &SetFacts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    let now = facts.observed.now_nanos;
    delete_new_half(facts, draft, id);
    if set_operations::is_leaving(pod) {
        pool::set_entry_mark(draft, id, pool::SCALE_IN, "true");
        if facts.may_stay(pod) {
            draft.request_deletion(pod, now);
        }
        return;
    }
    match SetOperation::ScaleIn.operation_state(pod, facts.strategy.scale_delay, now) {
        OperationState::Idle => {
            draft.patch_labels(pod, SetOperation::ScaleIn.begin_labels(pod, true, now))
        }
        OperationState::Waiting => {}
        OperationState::Delayed(nanos) => draft.requeue_after(nanos),
        OperationState::Allowed => {
            pool::set_entry_mark(draft, id, pool::SCALE_IN, "true");
            let message = format!("Pod {} is scaled in", pod.metadata.name);
            draft.delete_and_announce(pod, "TargetDeleted", message);
        }
    }
}

fn keep_pod(facts: &SetFacts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    pool::remove_entry_mark(draft, id, pool::SCALE_IN);
    if SetOperation::ScaleIn.is_in_progress(pod) {
        draft.patch_labels(pod, SetOperation::ScaleIn.undo_labels(pod));
    }
    delete_named_pod(facts, draft, id, pod);
}

/// Has a Pod deleted that `podToDelete` names, through the lifecycle; it is made again under its ID. Where names persist the pool notes
/// which Pod was meant: another one of that name is the one that was made again.
fn delete_named_pod(facts: &SetFacts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    if !facts.strategy.delete.contains(&pod.metadata.name) {
        pool::remove_entry_mark(draft, id, pool::DELETED);
        return;
    }
    if is_named_for_deletion(facts, draft, id, pod) {
        if facts.strategy.sequence {
            pool::set_entry_mark(draft, id, pool::DELETED, &pool::pod_digest(pod));
        }
        draft.request_deletion(pod, facts.observed.now_nanos);
    }
}

/// Whether `podToDelete` means this very Pod, and not one of its name that has gone.
pub fn is_named_for_deletion(facts: &SetFacts, draft: &Draft, id: i64, pod: &Pod) -> bool {
    let noted = draft.ids.get(&id).and_then(|data| data.get(pool::DELETED));
    let is_meant = || match noted {
        None => true,
        Some(noted) if *noted == pool::pod_digest(pod) => true,
        // An older build has noted the name: of the Pod that was told to go, or of the one after it.
        Some(noted) => *noted == pod.metadata.name && set_operations::can_withdraw_deletion(pod),
    };
    facts.strategy.delete.contains(&pod.metadata.name) && is_meant()
}

/// Looks again at a Pod that goes and is not gone: nothing tells that its deletion is refused, or no more.
pub fn recheck_deletion(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    if facts.must_leave(pod) || facts.deletion_refusal(pod).is_some() {
        draft.requeue_after(DELETION_RECHECK_NANOS);
    }
}

/// Pods that were told to go, and that no step wants away any more: the list is another, the set is paused, the pair was cancelled
/// or its new Pod is down again.
pub fn withdraw_deletions(facts: &SetFacts, draft: &mut Draft) {
    for pod in facts.members.values() {
        recheck_deletion(facts, draft, pod);
        if !draft.is_deletion_planned(pod) {
            draft.withdraw_deletion(facts, pod);
        }
    }
}
