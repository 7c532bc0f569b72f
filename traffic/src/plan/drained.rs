//! Whether the Pods that are off get no request any more at an adapter that only observes, and has no member to remove.

use std::time::Duration;

use jiff::Timestamp;

use super::marks::{Mark, marks};
use super::memory::Memory;
use super::view::View;

/// Whether no protected Pod that should not serve may still get requests. An adapter that refuses the employer is not
/// asked: then the Pods drain from the time when they went off.
pub fn all_drained(view: &View, memory: &Memory, now: Timestamp) -> bool {
    if view.refused.is_some() {
        return refused_drain(view, memory, now).is_zero();
    }
    let marks = marks(view, memory, now);
    view.off_pods()
        .all(|uid| marks.get(uid) == Some(&Mark::Release))
}

/// How long the last of the Pods that are off still drains at an adapter that refuses the employer.
pub fn refused_drain(view: &View, memory: &Memory, now: Timestamp) -> Duration {
    let left = view.off_pods().map(|uid| {
        let turned = memory.turned_at(uid).unwrap_or(now);
        let passed = Duration::try_from(now.duration_since(turned)).unwrap_or_default();
        view.drain_time.saturating_sub(passed)
    });
    left.max().unwrap_or_default()
}
