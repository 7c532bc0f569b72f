//! Decides whether the watches that decisions rest on, those of Pods and rules, are fresh enough.
//!
//! A connection can die without a sign: a firewall drops its packets, or an API server hangs. The watch is then as
//! silent as a watch of objects that nobody changes. Therefore both watches end every [`WATCH_TIMEOUT_SECONDS`], after
//! a bookmark. A watch whose last news is older than [`TRUST_DURATION`] is not trusted, even if its connection seems to
//! work: after a hang, the events that it delivers may be as old.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long, in seconds, a watch that decisions rest on lives. The API server sends a bookmark one to three seconds
/// before its end.
pub const WATCH_TIMEOUT_SECONDS: u32 = 5;
/// How long a watch is trusted after the last moment up to which all events are known.
pub const TRUST_DURATION: Duration = Duration::from_secs(10);

/// The two watches that decisions rest on.
#[derive(Debug, Default)]
pub struct DecisionWatches {
    /// The watch of Pods.
    pub pods: WatchTrust,
    /// The watch of rules.
    pub rules: WatchTrust,
}

impl DecisionWatches {
    /// Trusts both watches for one year, for objects that were read from files and do not change.
    pub fn trust_for_a_year(&self) {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        for followed in [&self.pods, &self.rules] {
            followed.0.send_replace(Some(Instant::now() + YEAR));
        }
    }
}

/// Until when a watch is trusted. `None` while it is disconnected.
#[derive(Debug, Default)]
pub struct WatchTrust(watch::Sender<Option<Instant>>);

impl WatchTrust {
    /// Records that all events until `at` are known.
    pub fn extend_trust(&self, at: Instant) {
        let until = at + TRUST_DURATION;
        self.0
            .send_modify(|known| *known = Some(known.map_or(until, |known| known.max(until))));
    }

    /// Records that the watch was disconnected.
    pub fn end_trust(&self) {
        self.0.send_replace(None);
    }

    /// Whether all events are known, except those of the last [`TRUST_DURATION`].
    pub fn is_trusted_now(&self) -> bool {
        is_not_expired(*self.0.borrow())
    }

    /// Returns when [`WatchTrust::is_trusted_now`] is true.
    pub fn wait_trusted(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut until = self.0.subscribe();
        async move {
            if until
                .wait_for(|until| is_not_expired(*until))
                .await
                .is_err()
            {
                std::future::pending::<()>().await; // the watch was dropped and is never trusted again
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
    async fn untrusted_watch_waits_for_next_delivery() {
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
        // The known state is up to three seconds older than the end of a watch, because the bookmark comes earlier. The
        // next bookmark may be late.
        assert!(Duration::from_secs(u64::from(WATCH_TIMEOUT_SECONDS) + 3) < TRUST_DURATION);
    }
}
