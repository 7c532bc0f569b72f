//! Writes that fail again and again: each is tried after a pause that grows, and the log is told now and then.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// First pause after a failure.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The log is told again after this long.
const TELL_AGAIN: Duration = Duration::from_secs(600);

/// What failed the last time, by what it is about.
#[derive(Debug)]
pub struct Failures<K>(Mutex<HashMap<K, Failure>>);

#[derive(Clone, Copy, Debug)]
struct Failure {
    pause: Duration,
    until: Instant,
    told: Instant,
}

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Failures(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> Failures<K> {
    /// How long nothing is to be tried; `None` if now.
    pub fn pause(&self, key: &K, now: Instant) -> Option<Duration> {
        let left = self.0.lock().get(key)?.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Whether another failure is worth a line in the log: the first one is, and one after a long time.
    pub fn is_news(&self, key: &K, now: Instant) -> bool {
        let failures = self.0.lock();
        let failure = failures.get(key);
        failure.is_none_or(|failure| now - failure.told >= TELL_AGAIN)
    }

    /// A try has failed. Returns whether that [`is_news`](Self::is_news), once.
    pub fn failed(&self, key: &K, now: Instant) -> bool {
        let is_news = self.is_news(key, now);
        let mut failures = self.0.lock();
        let known = failures.get(key);
        let pause = known.map_or(MIN_PAUSE, |failure| (failure.pause * 2).min(MAX_PAUSE));
        let told = known.map(|failure| failure.told).filter(|_| !is_news);
        let failure = Failure {
            pause,
            until: now + pause,
            told: told.unwrap_or(now),
        };
        failures.insert(key.clone(), failure);
        is_news
    }

    /// A try has succeeded, or there is nothing to try any more.
    pub fn forget(&self, key: &K) {
        self.0.lock().remove(key);
    }

    /// Forgets all but these.
    pub fn retain(&self, keep: impl Fn(&K) -> bool) {
        self.0.lock().retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_the_log_is_told_seldom() {
        let (failures, begin) = (Failures::default(), Instant::now());
        let (mut now, mut tries, mut told) = (begin, 0, 0);
        while now - begin < 2 * TELL_AGAIN {
            tries += 1;
            told += u32::from(failures.failed(&"web", now));
            let pause = failures.pause(&"web", now);
            now += pause.unwrap_or_default();
        }
        assert!((80..100).contains(&tries), "{tries} tries in 20 minutes");
        assert_eq!(told, 2);
        assert_eq!(failures.pause(&"web", now), None);
        failures.forget(&"web");
        assert!(failures.failed(&"web", now), "another failure is news");
        assert_eq!(failures.pause(&"web", now), Some(MIN_PAUSE));
    }
}
