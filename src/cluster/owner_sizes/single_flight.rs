//! Shares one read among all callers that ask at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many answers are kept before old ones are dropped.
const MAX_ENTRIES: usize = 1024;
/// An answer that is older than this may be dropped.
const ENTRY_TTL: Duration = Duration::from_secs(300);

type Slot<V> = tokio::sync::Mutex<Option<(Instant, V)>>;

/// The last answer for each key. If several callers ask for a key at the same time, one of them reads, and the others
/// wait for its answer. If this caller gives up, the next one reads.
#[derive(Debug)]
pub(super) struct SingleFlightCache<K, V>(Mutex<HashMap<K, Arc<Slot<V>>>>);

impl<K, V> Default for SingleFlightCache<K, V> {
    fn default() -> Self {
        SingleFlightCache(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, V: Clone> SingleFlightCache<K, V> {
    /// Returns the last answer if its read began less than `age(answer)` ago. Otherwise reads again.
    pub async fn get_or_read<F: Future<Output = V>>(
        &self,
        key: &K,
        age: impl Fn(&V) -> Duration,
        read: impl FnOnce() -> F,
    ) -> V {
        let slot = self.slot(key);
        let mut last = slot.lock().await;
        if let Some((began, answer)) = &*last
            && began.elapsed() < age(answer)
        {
            return answer.clone();
        }
        let began = Instant::now();
        let answer = read().await;
        *last = Some((began, answer.clone()));
        answer
    }

    fn slot(&self, key: &K) -> Arc<Slot<V>> {
        let mut slots = self.0.lock();
        if slots.len() >= MAX_ENTRIES && !slots.contains_key(key) {
            slots.retain(|_, slot| {
                Arc::strong_count(slot) > 1
                    || slot.try_lock().is_ok_and(|last| {
                        last.as_ref()
                            .is_some_and(|(began, _)| began.elapsed() < ENTRY_TTL)
                    })
            });
        }
        Arc::clone(slots.entry(key.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_read() {
        let (shared, reads) = (SingleFlightCache::<&str, u32>::default(), AtomicU32::new(0));
        let ask = || {
            shared.get_or_read(
                &"a",
                |_| Duration::from_secs(1),
                || async {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    reads.fetch_add(1, Ordering::Relaxed)
                },
            )
        };
        assert_eq!(tokio::join!(ask(), ask(), ask()), (0, 0, 0));
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!(ask().await, 0);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(ask().await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn next_caller_reads_after_reader_gave_up() {
        let shared = SingleFlightCache::<&str, u32>::default();
        let age = |_: &u32| Duration::from_secs(1);
        let stuck = shared.get_or_read(&"a", age, std::future::pending);
        let given_up = tokio::time::timeout(Duration::from_secs(1), stuck).await;
        assert!(given_up.is_err());
        assert_eq!(shared.get_or_read(&"a", age, || async { 7 }).await, 7);
    }
}
