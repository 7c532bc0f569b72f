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
pub const SECONDS: u32 = 5;
/// How long a watch is trusted after the last moment of which all is known.
pub const TRUSTED: Duration = Duration::from_secs(10);

/// The two watches that decisions rest on.
#[derive(Debug, Default)]
pub struct Following {
    /// That of Pods.
    pub pods: Followed,
    /// That of rules.
    pub rules: Followed,
}

impl Following {
    /// Trusts both for a year: what was read from files does not change.
    pub fn trust(&self) {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        for followed in [&self.pods, &self.rules] {
            followed.0.send_replace(Some(Instant::now() + YEAR));
        }
    }
}

/// Until when a watch is trusted; `None` while it is lost.
#[derive(Debug, Default)]
pub struct Followed(watch::Sender<Option<Instant>>);

impl Followed {
    /// All is known that had happened `at` this moment.
    pub fn hear(&self, at: Instant) {
        let until = at + TRUSTED;
        self.0
            .send_modify(|known| *known = Some(known.map_or(until, |known| known.max(until))));
    }

    /// It has broken off.
    pub fn lose(&self) {
        self.0.send_replace(None);
    }

    /// Whether all that has happened is known, but for the last [`TRUSTED`].
    pub fn is_alive(&self) -> bool {
        is_trusted(*self.0.borrow())
    }

    /// Returns when [`Followed::is_alive`] holds.
    pub fn alive(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut until = self.0.subscribe();
        async move {
            if until.wait_for(|until| is_trusted(*until)).await.is_err() {
                std::future::pending::<()>().await; // nobody follows any more
            }
        }
    }
}

fn is_trusted(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watch_is_trusted_for_a_while_after_it_was_heard_of() {
        let followed = Followed::default();
        assert!(!followed.is_alive());
        followed.hear(Instant::now());
        tokio::time::advance(TRUSTED - Duration::from_millis(1)).await;
        assert!(followed.is_alive());
        followed.hear(Instant::now());
        tokio::time::advance(TRUSTED - Duration::from_millis(1)).await;
        assert!(followed.is_alive());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!followed.is_alive());
        followed.hear(Instant::now());
        followed.lose();
        assert!(!followed.is_alive());
    }

    #[tokio::test(start_paused = true)]
    async fn sign_of_life_is_waited_for() {
        let followed = Followed::default();
        followed.hear(Instant::now());
        tokio::time::advance(TRUSTED).await;
        let waiting = tokio::spawn(followed.alive());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        followed.hear(Instant::now());
        assert!(waiting.await.is_ok());
    }

    #[test]
    fn bookmark_comes_before_trust_ends() {
        // What is known is as old as the bookmark may be early, and the next one may be late.
        assert!(Duration::from_secs(u64::from(SECONDS) + 3) < TRUSTED);
    }
}
