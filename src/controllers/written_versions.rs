//! Remembers writes that the cache does not show yet. A run with the old state would send the same write again, and the
//! write would fail because the object has changed.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ledger::store::Uid;

/// After this time a run uses the cached object in any case. The written version may never appear, for example after a
/// restore of etcd.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(2);

/// The versions that a controller wrote last, by object. If an entry is lost, only a superfluous request follows.
#[derive(Default)]
pub struct WrittenVersions(Mutex<HashMap<Uid, (u64, Instant)>>);

impl WrittenVersions {
    /// Records the resourceVersion of an object that was written.
    pub fn record_version(&self, uid: &str, version: u64, now: Instant) {
        self.0.lock().insert(uid.into(), (version, now));
    }

    /// How long the next run for an object must wait if the cache contains `version`; `None` if the cache shows the
    /// last write.
    pub fn time_until_visible(&self, uid: &str, version: u64, now: Instant) -> Option<Duration> {
        let mut written = self.0.lock();
        let (last_version, written_at) = *written.get(uid)?;
        let remaining = VISIBILITY_TIMEOUT.saturating_sub(now - written_at);
        if version >= last_version || remaining.is_zero() {
            written.remove(uid);
            return None;
        }
        Some(remaining)
    }

    /// Forgets an object that is gone.
    pub fn forget_object(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn object_waits_until_the_write_shows_or_for_a_while() {
        let (written, now) = (WrittenVersions::default(), Instant::now());
        assert_eq!(written.time_until_visible("a", 7, now), None);
        written.record_version("a", 8, now);
        assert_eq!(
            written.time_until_visible("a", 7, now),
            Some(VISIBILITY_TIMEOUT)
        );
        assert_eq!(written.time_until_visible("b", 7, now), None);
        assert_eq!(written.time_until_visible("a", 8, now), None);
        written.record_version("a", 9, now);
        assert_eq!(
            written.time_until_visible("a", 8, now + VISIBILITY_TIMEOUT),
            None
        );
        written.record_version("a", 9, now);
        written.forget_object("a");
        assert!(written.0.lock().is_empty());
    }
}
