//! The steps in which a server ends.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// The three steps of a shutdown. Each step includes those before it:
///
/// 1. *Draining*: the server is not ready, an answer closes its connection, and new connections are still served.
/// 2. *Stopping*: the server accepts no new connection, and open connections end after their request.
/// 3. *Aborting*: the server cuts all remaining connections.
///
/// Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    stopping: CancellationToken,
    aborting: CancellationToken,
}

impl Shutdown {
    /// Takes all steps: draining now, stopping after `lame_duck`, aborting after a further `drain`. The caller drops
    /// this future if the listeners end earlier.
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

    /// Stops accepting connections.
    pub fn stop(&self) {
        self.drain();
        self.stopping.cancel();
    }

    /// Cuts open connections.
    pub fn abort(&self) {
        self.stop();
        self.aborting.cancel();
    }

    /// Whether draining has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Completes when no connection is accepted any more.
    pub fn stopping(&self) -> WaitForCancellationFuture<'_> {
        self.stopping.cancelled()
    }

    /// Completes when open connections are cut.
    pub fn aborting(&self) -> WaitForCancellationFuture<'_> {
        self.aborting.cancelled()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shutdown_steps_come_in_order() {
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
    fn later_step_implies_earlier_ones() {
        let shutdown = Shutdown::default();
        shutdown.abort();
        assert!(shutdown.is_draining() && shutdown.stopping.is_cancelled());
    }
}
