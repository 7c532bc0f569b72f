//! The order in which a server ends.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// Three steps, each implying those before it: *draining* (not ready, answers close their connection, new connections
/// are still served), *stopping* (no new connection, open ones end after their request), *aborting* (the rest is cut).
/// Cloning shares the state.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    stopping: CancellationToken,
    aborting: CancellationToken,
}

impl Shutdown {
    /// Takes all steps: draining now, stopping after `lame_duck`, aborting `drain` later. Ends early only by being
    /// dropped, once the listeners have ended by themselves.
    pub async fn run(&self, lame_duck: Duration, drain: Duration) {
        self.drain();
        sleep(lame_duck).await;
        self.stop();
        sleep(drain).await;
        self.abort();
    }

    /// Begins to drain.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Stops to accept.
    pub fn stop(&self) {
        self.drain();
        self.stopping.cancel();
    }

    /// Cuts what is open.
    pub fn abort(&self) {
        self.stop();
        self.aborting.cancel();
    }

    /// Whether draining has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Waits until nothing is accepted any more.
    pub fn stopping(&self) -> WaitForCancellationFuture<'_> {
        self.stopping.cancelled()
    }

    /// Waits until open connections are cut.
    pub fn aborting(&self) -> WaitForCancellationFuture<'_> {
        self.aborting.cancelled()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_steps_come_in_order() {
        let shutdown = Shutdown::default();
        assert!(!shutdown.is_draining());
        let run = tokio::spawn({
            let shutdown = shutdown.clone();
            async move {
                shutdown
                    .run(Duration::from_secs(5), Duration::from_secs(20))
                    .await
            }
        });
        shutdown.draining.cancelled().await;
        assert!(!shutdown.stopping.is_cancelled());
        shutdown.stopping().await;
        assert!(!shutdown.aborting.is_cancelled());
        shutdown.aborting().await;
        run.await.unwrap();
    }

    #[test]
    fn a_later_step_implies_the_earlier_ones() {
        let shutdown = Shutdown::default();
        shutdown.abort();
        assert!(shutdown.is_draining() && shutdown.stopping.is_cancelled());
    }
}
