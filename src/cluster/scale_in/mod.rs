//! Scale-in of a ReplicaSet or a ReplicationController under GraceDelete: decides which of its Pods go through their
//! lifecycle to be deleted. At most as many Pods go as the owner has too many. Each further Pod would go off traffic
//! for nothing.
//!
//! The owner chooses Pods by its own ranking. It asks again, perhaps for other Pods, whenever one of its Pods changes.
//! Therefore the server records the choice on the Pod, refuses choices beyond the surplus, and withdraws a choice if
//! the owner has chosen other Pods since.

mod begun_pods;
mod deletion_marks;
mod owner_wake;
#[cfg(test)]
mod tests;

use super::index::NamespaceIndex;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

use deletion_marks::{is_abandoned, is_held_too_long, is_requested_by_others, may_lapse};

pub use begun_pods::BegunPods;
pub use owner_wake::should_wake_owner;

/// How many other Pods are already chosen, if this owner may not choose `pod` in addition to them at `now_nanos`.
/// `None` if the owner may choose it.
///
/// The owner prefers a Pod that is down to all Pods that serve. Therefore a chosen Pod that serves does not prevent the
/// choice of a Pod that is down. A chosen Pod that is off traffic and that the owner no longer asks for does not
/// prevent it either: only the owner deletes that Pod, and the owner asks only for the other Pod.
pub fn excess_choices(
    home: &NamespaceIndex,
    owner: &str,
    pod: &Pod,
    now_nanos: u64,
) -> Option<usize> {
    let serves = pod.is_available();
    let going = home.living_pods_of(owner).filter(|other| {
        grace_delete::is_deletion_requested(other)
            && !is_held_too_long(other, now_nanos)
            && (serves
                || is_requested_by_others(other)
                || !(other.is_available() || is_abandoned(other, now_nanos)))
    });
    let going = going.count();
    (going >= max_chosen_pods(home, owner)).then_some(going)
}

/// Whether the choice of a Pod must be withdrawn: its owner has chosen other Pods instead, no longer has too many Pods,
/// or has released the Pod.
pub fn has_choice_lapsed(home: &NamespaceIndex, owner: &str, pod: &Pod, now_nanos: u64) -> bool {
    let is_released = pod.controller().is_none_or(|by| by.uid != owner);
    if is_released || owner_wake::is_given_up(home, owner, pod, now_nanos) {
        return true;
    }
    // This check reads only this Pod. The following checks read all Pods of the owner.
    if !may_lapse(pod, now_nanos) {
        return false;
    }
    // For each Pod whose deletion others have requested, the owner needs to choose one Pod less.
    let by_others = home
        .living_pods_of(owner)
        .filter(|other| is_requested_by_others(other) && !is_held_too_long(other, now_nanos));
    let wanted = (home.max_surplus_pods(owner) as usize).saturating_sub(by_others.count());
    let chosen = home
        .living_pods_of(owner)
        .filter(|other| grace_delete::scale_in_replica_set(other) == Some(owner));
    let lapsing = lapsing_pods(chosen.map(|other| &**other).collect(), wanted, now_nanos);
    lapsing
        .iter()
        .any(|other| other.metadata.uid == pod.metadata.uid)
}

/// The chosen Pods that stay if `wanted` of them go. Pods that serve stay first, then Pods that their rules have held
/// for a long time, then Pods for which the owner has not asked for the longest time.
fn lapsing_pods(mut chosen: Vec<&Pod>, wanted: usize, now_nanos: u64) -> Vec<&Pod> {
    let too_many = chosen.len().saturating_sub(wanted);
    if too_many == 0 {
        return Vec::new();
    }
    chosen.sort_by_cached_key(|pod| {
        (
            !pod.is_available(),
            !is_held_too_long(pod, now_nanos),
            grace_delete::deletion_requested_at(pod),
        )
    });
    chosen.truncate(too_many);
    chosen.retain(|pod| may_lapse(pod, now_nanos));
    chosen
}

/// How many Pods an owner may choose. If the cache shows no surplus, the owner may choose one Pod, because the cache
/// may be behind and does not have the owner's unmanaged Pods.
fn max_chosen_pods(home: &NamespaceIndex, owner: &str) -> usize {
    home.surplus_pods(owner).max(1) as usize
}
