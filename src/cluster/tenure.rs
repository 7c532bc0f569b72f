//! Until when this process may take itself for the leader.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The lead of this process, by its own clock. A process that stood still finds out here, before it has done anything, that another may
/// lead by now: that clock goes on meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Tenure(Arc<Mutex<Until>>);

#[derive(Clone, Copy, Debug, Default)]
enum Until {
    #[default]
    Over,
    At(Instant),
    Always,
}

impl Tenure {
    /// That of a process that leads without an election.
    #[must_use]
    pub fn always() -> Tenure {
        Tenure(Arc::new(Mutex::new(Until::Always)))
    }

    /// The lease was renewed by a request that began `at` this moment; it holds for so long.
    pub(crate) fn renew(&self, at: Instant, holds: Duration) {
        *self.0.lock() = Until::At(at + holds);
    }

    /// This process leads no more.
    pub(super) fn end(&self) {
        *self.0.lock() = Until::Over;
    }

    /// Whether nobody else can lead at this moment.
    #[must_use]
    pub fn holds(&self) -> bool {
        match *self.0.lock() {
            Until::Over => false,
            Until::At(until) => Instant::now() < until,
            Until::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lead_is_over_when_it_was_not_renewed() {
        let tenure = Tenure::default();
        assert!(!tenure.holds());
        let second = Duration::from_secs(1);
        let asked = Instant::now();
        tokio::time::advance(second).await;
        tenure.renew(asked, 3 * second);
        tokio::time::advance(second).await;
        assert!(tenure.holds());
        tokio::time::advance(second).await;
        assert!(!tenure.holds(), "it goes by when the request began");
        tenure.renew(Instant::now(), second);
        tenure.end();
        assert!(!tenure.holds());
        assert!(Tenure::always().holds());
    }
}
