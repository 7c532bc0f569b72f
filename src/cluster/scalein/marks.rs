//! What the marks of a single Pod tell of its deletion.

use std::time::Duration;

use crate::api::keys::Family;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

/// Once the rules have held a Pod for so long, the owner may choose another Pod in its place.
const HELD: Duration = Duration::from_secs(300);

/// An owner that still wants a Pod to go asks for it again whenever one of its Pods changes. If the owner has not asked for so long,
/// it may have chosen another Pod.
pub(super) const LAPSE: Duration = Duration::from_secs(10);

/// The clocks of two servers differ by less than this.
const AHEAD: Duration = Duration::from_secs(300);

/// Whether a Pod is to go whatever its owner chooses: somebody else has asked for its deletion.
pub(super) fn is_firm(pod: &Pod) -> bool {
    grace_delete::is_deletion_requested(pod) && grace_delete::scale_in_replica_set(pod).is_none()
}

/// Whether a Pod that its owner has chosen may lapse: nobody has asked for it lately, or its rules hold it whoever asks.
pub(super) fn may_lapse(pod: &Pod, now_nanos: u64) -> bool {
    is_forgotten(pod, now_nanos) || is_held(pod, now_nanos)
}

/// Whether nobody has asked for the deletion of a Pod for [`LAPSE`].
pub(super) fn is_forgotten(pod: &Pod, now_nanos: u64) -> bool {
    let asked = grace_delete::deletion_requested_at(pod).unwrap_or(0);
    is_past(asked, LAPSE, now_nanos)
}

/// Whether the deletion of a Pod waits for its rules for longer than [`HELD`].
pub(super) fn is_held(pod: &Pod, now_nanos: u64) -> bool {
    let since = waits_since(pod).and_then(|at| at.parse().ok());
    since.is_some_and(|since| is_past(since, HELD, now_nanos))
}

/// Whether a Pod that its owner alone has chosen is off traffic, or goes off, and the owner has forgotten it.
pub(super) fn is_left(pod: &Pod, now_nanos: u64) -> bool {
    grace_delete::scale_in_replica_set(pod).is_some() && !waits(pod) && is_forgotten(pod, now_nanos)
}

/// Whether the deletion of a Pod has not begun, or waits for its rules.
pub(super) fn waits(pod: &Pod) -> bool {
    !grace_delete::is_deletion_in_flight(pod) || waits_since(pod).is_some()
}

fn waits_since(pod: &Pod) -> Option<&str> {
    pod.label(&Family::PreCheck.key(grace_delete::DELETION_ID))
}

/// Whether `span` has passed. No server writes a time further ahead than [`AHEAD`]; such a time counts as past.
pub(super) fn is_past(since: u64, span: Duration, now_nanos: u64) -> bool {
    let span = if since > now_nanos { AHEAD } else { span };
    u128::from(now_nanos.abs_diff(since)) > span.as_nanos()
}
