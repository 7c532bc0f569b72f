//! Until when this process may take itself for the leader.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The lead of this process, by its own clock. A process that stood still finds out here, before it has done anything, that another may
/// lead by now: that clock goes on meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Leadership(Arc<Mutex<LeadershipState>>);

#[derive(Clone, Copy, Debug, Default)]
enum LeadershipState {
    #[default]
    Over,
    At(Instant),
    Always,
}

impl Leadership {
    /// That of a process that leads without an election.
    #[must_use]
    pub fn permanent() -> Leadership {
        Leadership(Arc::new(Mutex::new(LeadershipState::Always)))
    }

    /// The lease was renewed by a request that began `at` this moment; it holds for so long.
    pub(crate) fn extend_leadership(&self, at: Instant, holds: Duration) {
        *self.0.lock() = LeadershipState::At(at + holds);
    }

    /// This process leads no more.
    pub(super) fn end_leadership(&self) {
        *self.0.lock() = LeadershipState::Over;
    }

    /// Whether nobody else can lead at this moment.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        match *self.0.lock() {
            LeadershipState::Over => false,
            LeadershipState::At(until) => Instant::now() < until,
            LeadershipState::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lead_is_over_when_it_was_not_renewed() {
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
