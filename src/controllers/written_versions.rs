//! Writes that the cache does not show yet. A look at what was there before would send the same write again, in vain: the object
//! has moved on.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ledger::store::Uid;

/// An object is looked at as the cache has it after this long: the version that was written may never come, as after a restore
/// of etcd.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(2);

/// The versions that a controller wrote last, by object. Losing one costs a request.
#[derive(Default)]
pub struct WrittenVersions(Mutex<HashMap<Uid, (u64, Instant)>>);

impl WrittenVersions {
    /// An object was written, and has this version now.
    pub fn record_version(&self, uid: &str, version: u64, now: Instant) {
        self.0.lock().insert(uid.into(), (version, now));
    }

    /// How long a look at an object is to wait of which the cache has this version; `None` if it shows the last write.
    pub fn time_until_visible(&self, uid: &str, version: u64, now: Instant) -> Option<Duration> {
        let mut written = self.0.lock();
        let (last, at) = *written.get(uid)?;
        let left = VISIBILITY_TIMEOUT.saturating_sub(now - at);
        if version >= last || left.is_zero() {
            written.remove(uid);
            return None;
        }
        Some(left)
    }

    /// An object is gone.
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
