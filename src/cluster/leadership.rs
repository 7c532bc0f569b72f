//! Remembers until when this process may act as the leader.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The leadership of this process, by its own monotonic clock. This clock also runs while the process is paused. So a
/// process that was paused sees here, before it acts, that another replica may be the leader now.
#[derive(Clone, Debug, Default)]
pub struct Leadership(Arc<Mutex<LeadershipState>>);

#[derive(Clone, Copy, Debug, Default)]
enum LeadershipState {
    #[default]
    Over,
    Until(Instant),
    Always,
}

impl Leadership {
    /// The leadership of a process that leads without an election.
    #[must_use]
    pub fn permanent() -> Leadership {
        Leadership(Arc::new(Mutex::new(LeadershipState::Always)))
    }

    /// Records that a request that began `at` this moment renewed the Lease. The leadership is valid for `holds` from
    /// then.
    pub(crate) fn extend_leadership(&self, at: Instant, holds: Duration) {
        *self.0.lock() = LeadershipState::Until(at + holds);
    }

    /// Ends the leadership of this process.
    pub(super) fn end_leadership(&self) {
        *self.0.lock() = LeadershipState::Over;
    }

    /// Whether this process leads, and no other process can lead at this moment.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        match *self.0.lock() {
            LeadershipState::Over => false,
            LeadershipState::Until(until) => Instant::now() < until,
            LeadershipState::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lead_ends_without_renewal() {
        let tenure = Leadership::default();
        assert!(!tenure.is_leading());
        let second = Duration::from_secs(1);
        let asked = Instant::now();
        tokio::time::advance(second).await;
        tenure.extend_leadership(asked, 3 * second);
        tokio::time::advance(second).await;
        assert!(tenure.is_leading());
        tokio::time::advance(second).await;
        assert!(!tenure.is_leading(), "it goes by when the request began");
        tenure.extend_leadership(Instant::now(), second);
        tenure.end_leadership();
        assert!(!tenure.is_leading());
        assert!(Leadership::permanent().is_leading());
    }
}
