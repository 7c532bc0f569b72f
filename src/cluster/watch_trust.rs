//! Whether this replica still follows what is decided by: the Pods and the rules.
//!
//! A connection can die without a sign: a firewall drops its packets, or an API server stands still. A watch over it is as
//! silent as one of objects that nobody changes. So both watches end every [`SECONDS`], with a bookmark before. What was known
//! longer than [`TRUSTED`] ago is not enough, whatever the connection looks like from here: what comes over one that stood still
//! may be as old.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long a watch of what is decided by lives, in seconds. The API server sends a bookmark one to three seconds before its end.
pub const WATCH_TIMEOUT_SECONDS: u32 = 5;
/// How long a watch is trusted after the last moment of which all is known.
pub const TRUST_DURATION: Duration = Duration::from_secs(10);

/// The two watches that decisions rest on.
#[derive(Debug, Default)]
pub struct DecisionWatches {
    /// That of Pods.
    pub pods: WatchTrust,
    /// That of rules.
    pub rules: WatchTrust,
}

impl DecisionWatches {
    /// Trusts both for a year: what was read from files does not change.
    pub fn trust_for_a_year(&self) {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        for followed in [&self.pods, &self.rules] {
            followed.0.send_replace(Some(Instant::now() + YEAR));
        }
    }
}

/// Until when a watch is trusted; `None` while it is lost.
#[derive(Debug, Default)]
pub struct WatchTrust(watch::Sender<Option<Instant>>);

impl WatchTrust {
    /// All is known that had happened `at` this moment.
    pub fn extend_trust(&self, at: Instant) {
        let until = at + TRUST_DURATION;
        self.0
            .send_modify(|known| *known = Some(known.map_or(until, |known| known.max(until))));
    }

    /// It has broken off.
    pub fn end_trust(&self) {
        self.0.send_replace(None);
    }

    /// Whether all that has happened is known, but for the last [`TRUSTED`].
    pub fn is_trusted_now(&self) -> bool {
        is_not_expired(*self.0.borrow())
    }

    /// Returns when [`Followed::is_alive`] holds.
    pub fn wait_trusted(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut until = self.0.subscribe();
        async move {
            if until
                .wait_for(|until| is_not_expired(*until))
                .await
                .is_err()
            {
                std::future::pending::<()>().await; // nobody follows any more
            }
        }
    }
}

fn is_not_expired(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watch_is_trusted_for_limited_time_after_delivery() {
        let followed = WatchTrust::default();
        assert!(!followed.is_trusted_now());
        followed.extend_trust(Instant::now());
        tokio::time::advance(TRUST_DURATION - Duration::from_millis(1)).await;
        assert!(followed.is_trusted_now());
        followed.extend_trust(Instant::now());
        tokio::time::advance(TRUST_DURATION - Duration::from_millis(1)).await;
        assert!(followed.is_trusted_now());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!followed.is_trusted_now());
        followed.extend_trust(Instant::now());
        followed.end_trust();
        assert!(!followed.is_trusted_now());
    }

    #[tokio::test(start_paused = true)]
    async fn sign_of_life_is_waited_for() {
        let followed = WatchTrust::default();
        followed.extend_trust(Instant::now());
        tokio::time::advance(TRUST_DURATION).await;
        let waiting = tokio::spawn(followed.wait_trusted());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        followed.extend_trust(Instant::now());
        assert!(waiting.await.is_ok());
    }

    #[test]
    fn bookmark_comes_before_trust_ends() {
        // What is known is as old as the bookmark may be early, and the next one may be late.
        assert!(Duration::from_secs(u64::from(WATCH_TIMEOUT_SECONDS) + 3) < TRUST_DURATION);
    }
}
