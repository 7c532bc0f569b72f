//! Decides when the leader wakes an owner that backs off. After a denial, an owner asks again with a backoff of up to
//! 1000 s, or at once when one of its Pods changes.

use jiff::Timestamp;

use super::deletion_marks::{LAPSE_AFTER, has_passed, is_abandoned, is_held_too_long};
use crate::api::keys;
use crate::cluster::index::NamespaceIndex;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

/// Whether the leader should wake an owner for a Pod that it chose. This is so if the owner no longer asks for the Pod,
/// or the rules have held the Pod for a long time, and the owner may now choose another Pod or delete this one.
pub fn should_wake_owner(
    namespace_index: &NamespaceIndex,
    owner: &str,
    pod: &Pod,
    now_nanos: u64,
) -> bool {
    // Conditions on this Pod come first, because the other conditions read all Pods of the owner.
    let is_alive = !pod.is_terminating() && !pod.is_finished();
    is_alive
        && is_wake_due(pod, now_nanos)
        && match is_abandoned(pod, now_nanos) {
            true => grace_delete::permits_deletion(pod) || has_down_rival(namespace_index, owner),
            false => is_held_too_long(pod, now_nanos) && has_down_rival(namespace_index, owner),
        }
        && namespace_index.max_surplus_pods(owner) > 0
}

/// Whether the pause since the last wake is over. Each pause is as long as the time from the choice to the last wake,
/// so the pauses double.
fn is_wake_due(pod: &Pod, now_nanos: u64) -> bool {
    let chosen = pod.label(keys::TO_DELETE).and_then(|at| at.parse().ok());
    let chosen: u64 = chosen.unwrap_or(0);
    let pause = last_woken_nanos(pod).and_then(|woken| Some((woken, woken.checked_sub(chosen)?)));
    pause.is_none_or(|(woken, pause)| now_nanos.saturating_sub(woken) > pause)
}

/// Whether an owner has not asked for a Pod although the leader woke the owner, and has another Pod that is down.
pub(super) fn is_given_up(
    namespace_index: &NamespaceIndex,
    owner: &str,
    pod: &Pod,
    now_nanos: u64,
) -> bool {
    let requested_at = grace_delete::deletion_requested_at(pod).unwrap_or(0);
    let unanswered_wake = last_woken_nanos(pod)
        .filter(|woken| woken.saturating_sub(requested_at) > grace_delete::REFRESH_NANOS);
    is_abandoned(pod, now_nanos)
        && unanswered_wake.is_some_and(|woken| has_passed(woken, LAPSE_AFTER, now_nanos))
        && has_down_rival(namespace_index, owner)
}

/// Whether an owner has a Pod that is down and whose deletion nobody has requested. The owner prefers such a Pod to all
/// Pods that serve.
fn has_down_rival(namespace_index: &NamespaceIndex, owner: &str) -> bool {
    namespace_index.living_pods_of(owner).any(|other| {
        !(grace_delete::is_deletion_requested(other)
            || grace_delete::is_deletion_in_flight(other)
            || other.is_available())
    })
}

/// When the leader last woke the owner through this Pod, in nanoseconds since 1970.
fn last_woken_nanos(pod: &Pod) -> Option<u64> {
    let at: Timestamp = pod.annotation(keys::CONTROLLER_WOKEN)?.parse().ok()?;
    u64::try_from(at.as_nanosecond()).ok()
}
