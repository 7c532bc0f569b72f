//! Reads from the labels and annotations of a single Pod how far its deletion is.

use std::time::Duration;

use crate::api::keys::Family;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

/// After the rules have held a Pod for this long, the owner may choose another Pod instead.
const MAX_HOLD: Duration = Duration::from_secs(300);

/// An owner that still wants to delete a Pod asks again whenever one of its Pods changes. If the owner has not asked
/// for this long, it may have chosen another Pod.
pub(super) const LAPSE_AFTER: Duration = Duration::from_secs(10);

/// The clocks of two servers differ by less than this.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Whether a user or another controller has asked for the deletion of a Pod, so that the Pod goes whatever its owner
/// chooses.
pub(super) fn is_requested_by_others(pod: &Pod) -> bool {
    grace_delete::is_deletion_requested(pod) && grace_delete::scale_in_replica_set(pod).is_none()
}

/// Whether the choice of a Pod may lapse: its owner has not asked for the deletion lately, or the rules have held the
/// Pod for too long.
pub(super) fn may_lapse(pod: &Pod, now_nanos: u64) -> bool {
    is_forgotten_by_owner(pod, now_nanos) || is_held_too_long(pod, now_nanos)
}

/// Whether nobody has asked for the deletion of a Pod for [`LAPSE_AFTER`].
pub(super) fn is_forgotten_by_owner(pod: &Pod, now_nanos: u64) -> bool {
    let requested_at = grace_delete::deletion_requested_at(pod).unwrap_or(0);
    has_passed(requested_at, LAPSE_AFTER, now_nanos)
}

/// Whether the deletion of a Pod has waited for its rules for longer than [`MAX_HOLD`].
pub(super) fn is_held_too_long(pod: &Pod, now_nanos: u64) -> bool {
    let since = waits_since(pod).and_then(|at| at.parse().ok());
    since.is_some_and(|since| has_passed(since, MAX_HOLD, now_nanos))
}

/// Whether only the owner has chosen a Pod, the Pod is off traffic or goes off, and the owner no longer asks for the
/// deletion.
pub(super) fn is_abandoned(pod: &Pod, now_nanos: u64) -> bool {
    grace_delete::scale_in_replica_set(pod).is_some()
        && !is_deletion_waiting(pod)
        && is_forgotten_by_owner(pod, now_nanos)
}

/// Whether the deletion of a Pod has not begun, or waits for its rules.
pub(super) fn is_deletion_waiting(pod: &Pod) -> bool {
    !grace_delete::is_deletion_in_flight(pod) || waits_since(pod).is_some()
}

fn waits_since(pod: &Pod) -> Option<&str> {
    pod.label(&Family::PreCheck.key(grace_delete::DELETION_ID))
}

/// Whether `span` has passed since `since`. A time in the future counts as passed if it is more than [`MAX_CLOCK_SKEW`]
/// ahead, because no server writes such a time.
pub(super) fn has_passed(since: u64, span: Duration, now_nanos: u64) -> bool {
    let span = if since > now_nanos {
        MAX_CLOCK_SKEW
    } else {
        span
    };
    u128::from(now_nanos.abs_diff(since)) > span.as_nanos()
}
