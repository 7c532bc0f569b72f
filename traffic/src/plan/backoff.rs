//! Pauses after failures and between reads.

use std::time::Duration;

use jiff::Timestamp;

use crate::{AdapterError, Settings};

/// Longest wait that a load balancer may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The pause after `count` tries: `poll_min`, doubled with each try up to `poll_max`.
pub(super) fn pause(settings: &Settings, count: u32) -> Duration {
    let factor = 1_u32.checked_shl(count).unwrap_or(u32::MAX);
    let pause = settings.poll_min.saturating_mul(factor);
    pause.min(settings.poll_max)
}

/// The pause after `count` failures before this one. A permanent failure waits longest, because somebody must change
/// something first.
pub(super) fn pause_after(settings: &Settings, error: &AdapterError, count: u32) -> Duration {
    let pause = pause(settings, count);
    match error {
        AdapterError::Throttled { wait, .. } | AdapterError::Unavailable { wait, .. } => {
            wait.unwrap_or(pause).clamp(pause, LONGEST_WAIT.max(pause))
        }
        AdapterError::Transient(_) => pause,
        AdapterError::Permanent(_) => settings.poll_max,
    }
}

/// `time` plus `pause`; the latest time that there is if the sum has no time.
pub(super) fn later(time: Timestamp, pause: Duration) -> Timestamp {
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}
