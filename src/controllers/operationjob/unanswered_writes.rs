//! Writes of Pods that were sent and not answered. The API server may have made such a write, and a cache that does not
//! show it yet looks as if nothing was written.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::pod::Pod;

/// For this time after it was sent, a write may still take effect: etcd may store it after the API server has given up.
const SETTLING: Duration = Duration::from_secs(10);
/// Time between two live reads while the cache is behind.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The last such write of each Pod, by UID: the resourceVersion on which it depended, and when the Pod may be read.
#[derive(Default)]
pub struct UnansweredWrites(Mutex<HashMap<String, (u64, Instant)>>);

impl UnansweredWrites {
    /// Records that a write of this Pod was not answered.
    pub fn record(&self, pod: &Pod, now: Instant) {
        let metadata = &pod.metadata;
        let write = (metadata.resource_version, now + SETTLING);
        self.0.lock().insert(metadata.uid.clone(), write);
    }

    /// The UIDs of the Pods whose write may be missing in these cached states. A newer state decides: it contains the write,
    /// or the write can't be made any more.
    pub fn open(&self, cached: &[Arc<Pod>]) -> BTreeSet<String> {
        let mut writes = self.0.lock();
        for pod in cached {
            let (uid, version) = (&pod.metadata.uid, pod.metadata.resource_version);
            if writes.get(uid).is_some_and(|(base, _)| version > *base) {
                writes.remove(uid);
            }
        }
        writes.keys().cloned().collect()
    }

    /// How long to wait before the Pod is read; `None` if it may be read now.
    pub fn time_until_read(&self, uid: &str, now: Instant) -> Option<Duration> {
        let writes = self.0.lock();
        let (_, read_at) = writes.get(uid)?;
        let remaining = read_at.saturating_duration_since(now);
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Notes what a live read has found: the resourceVersion of the Pod, or `None` if the Pod is gone. Returns whether the
    /// outcome of the write is known now. If not, the cache must show the version that was read.
    pub fn settle(&self, uid: &str, found: Option<u64>, now: Instant) -> bool {
        let mut writes = self.0.lock();
        let Some((base, read_at)) = writes.get_mut(uid) else {
            return true;
        };
        let is_known = found.is_none_or(|version| version <= *base);
        if is_known {
            writes.remove(uid);
        } else {
            *read_at = now + READ_INTERVAL;
        }
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(version: u64) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = "a".to_owned();
        pod.metadata.resource_version = version;
        pod
    }

    #[tokio::test(start_paused = true)]
    async fn write_is_open_until_a_newer_state_or_a_late_read() {
        let (writes, now) = (UnansweredWrites::default(), Instant::now());
        let is_open = |version| !writes.open(&[Arc::new(pod(version))]).is_empty();
        writes.record(&pod(7), now);
        assert!(is_open(7));
        let pause = |now| writes.time_until_read("a", now);
        assert_eq!(pause(now), Some(SETTLING), "it may still be made");
        assert_eq!(pause(now + SETTLING), None);
        assert!(!writes.settle("a", Some(8), now + SETTLING) && is_open(7));
        assert_eq!(pause(now + SETTLING), Some(READ_INTERVAL));
        assert!(!is_open(8) && !is_open(7));
        writes.record(&pod(8), now);
        assert!(writes.settle("a", Some(8), now) && !is_open(8));
        writes.record(&pod(8), now);
        assert!(writes.settle("a", None, now) && !is_open(8));
    }
}
