//! Reads that several employers share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use traffic::AdapterError;

/// Number of keys from which on unused keys are forgotten.
const MANY: usize = 4096;

/// Reads by key, for example by load balancer. All questions that wait when a read begins share its answer, and no
/// question gets the answer of a read that began before the question, unless it allows an age. Only one read of a key
/// is under way, and two reads of a key have some time between them.
pub(crate) struct Reads<K, T> {
    spacing: Duration,
    slots: Mutex<HashMap<K, Arc<Slot<T>>>>,
}

struct Slot<T> {
    /// Number of questions so far.
    questions: AtomicU64,
    /// Whether something was written since the last read began.
    is_outdated: AtomicBool,
    last: tokio::sync::Mutex<Option<Last<T>>>,
}

struct Last<T> {
    /// Number of questions when the read began. It answers all of them.
    answers: u64,
    at: Instant,
    result: Result<Arc<T>, AdapterError>,
}

impl<K: Eq + Hash + Clone, T> Reads<K, T> {
    /// Reads with at least this time between the beginnings of two reads of a key.
    pub(crate) fn new(spacing: Duration) -> Self {
        Reads {
            spacing,
            slots: Mutex::default(),
        }
    }

    /// The answer of a read that begins after this call, or at most `age` before it.
    ///
    /// # Errors
    /// The error of that read.
    pub(crate) async fn read<F>(
        &self,
        key: &K,
        age: Duration,
        fetch: impl FnOnce() -> F,
    ) -> Result<Arc<T>, AdapterError>
    where
        F: Future<Output = Result<T, AdapterError>>,
    {
        let slot = self.slot(key);
        let question = slot.questions.fetch_add(1, Ordering::SeqCst) + 1;
        // The lock is fair. If this future is dropped, the next question reads.
        let mut last = slot.last.lock().await;
        if let Some(last) = &*last {
            let is_young = age > Duration::ZERO
                && last.at.elapsed() <= age
                && last.result.is_ok()
                && !slot.is_outdated.load(Ordering::SeqCst);
            if last.answers >= question || is_young {
                return last.result.clone();
            }
            tokio::time::sleep_until(last.at + self.spacing).await;
        }
        let answers = slot.questions.load(Ordering::SeqCst);
        slot.is_outdated.store(false, Ordering::SeqCst);
        let at = Instant::now();
        let result = fetch().await.map(Arc::new);
        *last = Some(Last {
            answers,
            at,
            result: result.clone(),
        });
        result
    }

    /// Something was written: no question from now on gets the answer of an earlier read.
    pub(crate) fn outdate(&self, key: &K) {
        self.slot(key).is_outdated.store(true, Ordering::SeqCst);
    }

    fn slot(&self, key: &K) -> Arc<Slot<T>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() > MANY {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        let slot = slots.entry(key.clone()).or_insert_with(|| {
            Arc::new(Slot {
                questions: AtomicU64::new(0),
                is_outdated: AtomicBool::new(false),
                last: tokio::sync::Mutex::new(None),
            })
        });
        slot.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const SPACING: Duration = Duration::from_secs(1);

    /// Counts its reads; each takes 100 ms and returns its number.
    struct Counted {
        reads: Reads<&'static str, usize>,
        count: AtomicUsize,
    }

    impl Counted {
        fn new() -> Counted {
            Counted {
                reads: Reads::new(SPACING),
                count: AtomicUsize::new(0),
            }
        }

        async fn ask(&self, age: Duration) -> usize {
            let answer = self.reads.read(&"key", age, || async {
                let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(number)
            });
            *answer.await.unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_questions_share_a_read() {
        let counted = Counted::new();
        let questions = (0..50).map(|_| counted.ask(Duration::ZERO));
        let answers = futures::future::join_all(questions).await;
        // The first question starts a read at once; the others came before or during it.
        assert!(counted.count.load(Ordering::SeqCst) <= 2, "{answers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn read_that_began_earlier_does_not_answer() {
        let counted = Counted::new();
        let late = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            counted.ask(Duration::ZERO).await
        };
        let (early, late) = tokio::join!(counted.ask(Duration::ZERO), late);
        assert_eq!((early, late), (1, 2));
        assert_eq!(counted.ask(Duration::from_secs(5)).await, 2);
        assert_eq!(counted.ask(Duration::ZERO).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn read_before_a_write_does_not_answer() {
        let counted = Counted::new();
        let age = Duration::from_secs(60);
        assert_eq!(counted.ask(age).await, 1);
        assert_eq!(counted.ask(age).await, 1);
        counted.reads.outdate(&"key");
        assert_eq!(counted.ask(age).await, 2);
        assert_eq!(counted.ask(age).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_keep_their_distance() {
        let counted = Counted::new();
        let start = Instant::now();
        for _ in 0..3 {
            counted.ask(Duration::ZERO).await;
        }
        assert_eq!(start.elapsed(), SPACING * 2 + Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_question_does_not_block_others() {
        let counted = Counted::new();
        let dropped = tokio::time::timeout(Duration::from_millis(10), counted.ask(Duration::ZERO));
        let (dropped, answer) = tokio::join!(dropped, async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            counted.ask(Duration::ZERO).await
        });
        assert!(dropped.is_err());
        assert_eq!(answer, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_questions_share_an_error() {
        let reads: Reads<&str, ()> = Reads::new(SPACING);
        let count = AtomicUsize::new(0);
        let ask = || {
            reads.read(&"key", Duration::ZERO, || async {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                Err(AdapterError::Transient("down".to_owned()))
            })
        };
        let answers = futures::future::join_all((0..20).map(|_| ask())).await;
        assert!(answers.iter().all(Result::is_err));
        assert!(count.load(Ordering::SeqCst) <= 2);
    }
}
