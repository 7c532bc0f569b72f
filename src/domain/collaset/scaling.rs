//! Fits the number of Pods to `spec.replicas` and chooses the Pods to scale in (contract 6.4).

use std::cmp::Reverse;
use std::sync::Arc;

use super::draft::Draft;
use super::pool;
use super::set_facts::SetFacts;
use super::set_operations::{self, OperationState, SetOperation};
use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Most Pods that one Event names. All names of a large set would exceed the size of an Event many times.
const MAX_NAMES: usize = 20;

/// Nanoseconds after which the controller looks again at a Pod that is being deleted and still exists.
const DELETION_RECHECK_NANOS: u64 = 5_000_000_000;

/// Fits the number of instance IDs to the replicas, removes surplus Pods through the lifecycle, and cancels scale-ins
/// that are no longer wanted (contract Q33).
pub fn fit_replicas(facts: &SetFacts, draft: &mut Draft) {
    if facts.strategy.paused {
        stop_scale_in(facts, draft);
        return;
    }
    let pod_of = |id: &i64| facts.members.get(id);
    // A Pod with a request to exclude it leaves by itself, so it is neither chosen nor counted (contract Q34). Under
    // `PersistentSequence` no Pod can be excluded.
    let leaves = |id: &i64| {
        let pod = pod_of(id).or_else(|| facts.recreated_later.get(id));
        !facts.strategy.sequence && pod.is_some_and(|pod| facts.is_to_exclude(pod))
    };
    // An instance whose Pod is missing for now counts like the others: its Pod is created again, and it has volumes.
    let mut instances = pool::counted_ids(facts, draft);
    instances.retain(|id| !leaves(id));
    instances.sort_by_cached_key(|id| scale_in_order(facts, draft, *id));
    let surplus = instances.len().saturating_sub(facts.strategy.replicas);
    let (surplus_ids, staying) = instances.split_at(surplus);
    for id in surplus_ids {
        draft.surplus.insert(*id);
        match pod_of(id) {
            Some(pod) => scale_in_pod(facts, draft, *id, pod),
            None => match facts.recreated_later.get(id) {
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
            None => pool::remove_entry_mark(draft, *id, pool::SCALE_IN), // the instance is wanted again
        }
    }
    announce_scale_in(draft, surplus_ids.iter().filter_map(pod_of));
    // The new Pods of pairs stand for their origins, so they are neither chosen nor counted.
    for (id, pod) in &facts.members {
        let half = draft.ids.get(id);
        if half.is_some_and(|data| pool::is_entry_of_half(facts, data)) {
            if SetOperation::ScaleIn.is_in_progress(pod) && !set_operations::is_leaving(pod) {
                // The scale-in began while the pool had no entry of the pair.
                draft.patch_labels(pod, SetOperation::ScaleIn.undo_labels(pod));
            }
            delete_named_pod(facts, draft, *id, pod);
        }
    }
    pool::grow_to(facts, draft, facts.strategy.replicas);
}

/// Names in an Event the Pods whose scale-in begins.
fn announce_scale_in<'a>(draft: &mut Draft, pods: impl Iterator<Item = &'a Arc<Pod>>) {
    let beginning = pods.filter(|pod| {
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

/// Stops scale-ins, because a paused set removes no Pod. A Pod that is off traffic for its scale-in comes back, and is
/// scaled in when the set is no longer paused.
fn stop_scale_in(facts: &SetFacts, draft: &mut Draft) {
    for (id, pod) in &facts.members {
        if SetOperation::ScaleIn.is_in_progress(pod) && !set_operations::is_leaving(pod) {
            pool::remove_entry_mark(draft, *id, pool::SCALE_IN);
            draft.patch_labels(pod, SetOperation::ScaleIn.undo_labels(pod));
        }
    }
}

/// Orders instances; those to scale in come first. First come instances that the pool marks as scaled in and whose Pod
/// is gone, then instances that `podToDelete` names, then instances whose scale-in has begun. A Pod whose scale-in has
/// begun stays chosen, even if another Pod is lost or deleted by a rollout before the end, because that other Pod is
/// created again.
fn scale_in_order<'a>(facts: &'a SetFacts, draft: &Draft, id: i64) -> impl Ord + use<'a> {
    let pod = facts.members.get(&id);
    let strategy = &facts.strategy;
    let mut any = pod
        .into_iter()
        .chain(facts.former_pods(id).filter(|_| pod.is_none()));
    // A persistent name in `podToDelete` tells which instance was meant, although its Pod is gone and the pool has no
    // note about the reason.
    let is_vacant = strategy.sequence && pod.is_none() && !strategy.delete.is_empty();
    let is_named = any.any(|pod| strategy.delete.contains(&pod.metadata.name))
        || is_vacant && strategy.delete.contains(&facts.persistent_pod_name(id));
    let chosen = pod.or_else(|| facts.recreated_later.get(&id)).map(|pod| {
        let is_on_its_way =
            set_operations::is_leaving(pod) || SetOperation::ScaleIn.is_in_progress(pod);
        (
            // If several Pods can't be deleted, prefer those that the pool marks as scaled in. Another Pod may be
            // leaving for another reason, such as its replacement.
            !(is_on_its_way && pool::has_entry_mark(draft, id, pool::SCALE_IN)),
            !is_on_its_way,
            // A Pod in `podToInclude` stays, although it may be the youngest.
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
        // Prefer a Pod that has not entered yet, because nothing is lost with it.
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

/// The value of the Pod's annotation for its deletion cost; 0 without one
/// (<https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost>).
fn deletion_cost(pod: &Pod) -> i32 {
    let cost = pod.annotation(keys::DELETION_COST);
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// Deletes the new Pod of a pair whose origin is scaled in. It has no place without its origin (contract Q35), and is
/// not created again.
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

/// Deletes a Pod that `podToDelete` names, through the lifecycle; the set creates it again under its ID. Under
/// `PersistentSequence` the pool records which Pod was meant, because the next Pod has the same name.
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

/// Whether `podToDelete` means this Pod, and not an earlier Pod of the same name.
pub fn is_named_for_deletion(facts: &SetFacts, draft: &Draft, id: i64, pod: &Pod) -> bool {
    let mark = draft.ids.get(&id).and_then(|data| data.get(pool::DELETED));
    let is_meant = || match mark {
        None => true,
        Some(mark) if *mark == pool::pod_digest(pod) => true,
        // An older version recorded the name, either for the Pod whose deletion it asked for or for the next Pod.
        Some(mark) => *mark == pod.metadata.name && set_operations::can_withdraw_deletion(pod),
    };
    facts.strategy.delete.contains(&pod.metadata.name) && is_meant()
}

/// Plans again for a Pod that is being deleted and still exists, because no watch reports that its deletion is refused
/// or no longer refused.
pub fn recheck_deletion(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    if facts.must_leave(pod) || facts.deletion_refusal(pod).is_some() {
        draft.requeue_after(DELETION_RECHECK_NANOS);
    }
}

/// Withdraws the deletion of Pods that no step of this plan wants deleted any more: the list has changed, the set is
/// paused, the replacement was cancelled, or its new Pod is down again.
pub fn withdraw_deletions(facts: &SetFacts, draft: &mut Draft) {
    for pod in facts.members.values() {
        recheck_deletion(facts, draft, pod);
        if !draft.is_deletion_planned(pod) {
            draft.withdraw_deletion(facts, pod);
        }
    }
}
