//! Delays writes that fail repeatedly: the pause before each retry grows, and failures are logged at intervals.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// First pause after a failure.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// Longest pause after failures.
const MAX_DELAY: Duration = Duration::from_secs(15);
/// A repeated failure is logged again after this long.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// The last failure of each key.
#[derive(Debug)]
pub struct WriteBackoff<K>(Mutex<HashMap<K, BackoffEntry>>);

#[derive(Clone, Copy, Debug)]
struct BackoffEntry {
    pause: Duration,
    until: Instant,
    logged_at: Instant,
}

impl<K> Default for WriteBackoff<K> {
    fn default() -> Self {
        WriteBackoff(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> WriteBackoff<K> {
    /// How long to wait before the next try. `None` if it can be made now.
    pub fn remaining_delay(&self, key: &K, now: Instant) -> Option<Duration> {
        let remaining = self.0.lock().get(key)?.until.saturating_duration_since(now);
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Whether another failure should be logged: the first one, and one after a long time.
    pub fn should_log_failure(&self, key: &K, now: Instant) -> bool {
        let failures = self.0.lock();
        let failure = failures.get(key);
        failure.is_none_or(|failure| now - failure.logged_at >= LOG_INTERVAL)
    }

    /// Records a failed try. Returns whether to log it, see [`Self::should_log_failure`].
    pub fn record_failure(&self, key: &K, now: Instant) -> bool {
        let is_news = self.should_log_failure(key, now);
        let mut failures = self.0.lock();
        let known = failures.get(key);
        let pause = known.map_or(MIN_DELAY, |failure| (failure.pause * 2).min(MAX_DELAY));
        let last_logged = known.map(|failure| failure.logged_at).filter(|_| !is_news);
        let failure = BackoffEntry {
            pause,
            until: now + pause,
            logged_at: last_logged.unwrap_or(now),
        };
        failures.insert(key.clone(), failure);
        is_news
    }

    /// Forgets the failures of a key, because a try has succeeded or there is nothing left to try.
    pub fn forget_key(&self, key: &K) {
        self.0.lock().remove(key);
    }

    /// Forgets all keys for which `keep` returns false.
    pub fn retain(&self, keep: impl Fn(&K) -> bool) {
        self.0.lock().retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_log_lines_are_rare() {
        let (failures, begin) = (WriteBackoff::default(), Instant::now());
        let (mut now, mut tries, mut last_logged) = (begin, 0, 0);
        while now - begin < 2 * LOG_INTERVAL {
            tries += 1;
            last_logged += u32::from(failures.record_failure(&"web", now));
            let pause = failures.remaining_delay(&"web", now);
            now += pause.unwrap_or_default();
        }
        assert!((80..100).contains(&tries), "{tries} tries in 20 minutes");
        assert_eq!(last_logged, 2);
        assert_eq!(failures.remaining_delay(&"web", now), None);
        failures.forget_key(&"web");
        assert!(
            failures.record_failure(&"web", now),
            "another failure is news"
        );
        assert_eq!(failures.remaining_delay(&"web", now), Some(MIN_DELAY));
    }
}
