//! A work queue. Only one worker at a time works on a key, a waiting key that is added again is merged, and a failed
//! key is retried after a growing, jittered pause. The namespaces of the keys share the workers.

mod fair_queue;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error};

use self::fair_queue::FairQueue;

/// The result of a reconcile of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileOutcome {
    /// Nothing more to do until something changes.
    Done,
    /// Reconcile again after this time.
    After(Duration),
    /// Nothing was reconciled, because it is too early. Reconcile after this time.
    Early(Duration),
    /// The reconcile failed. Reconcile again with backoff.
    Retry,
}

/// Counts the runs of a queue's workers since the start.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Runs that have begun.
    pub begun: AtomicU64,
    /// Runs that ended with [`ReconcileOutcome::Done`].
    pub done: AtomicU64,
    /// Runs that ended with [`ReconcileOutcome::After`] or [`ReconcileOutcome::Early`].
    pub later: AtomicU64,
    /// Runs that ended with [`ReconcileOutcome::Retry`].
    pub retry: AtomicU64,
    /// Runs that ended by a panic of the reconciler.
    pub panic: AtomicU64,
}

impl QueueCounters {
    /// A number that grows with each begin and each end of a run.
    pub fn progress_count(&self) -> u64 {
        let all = [
            &self.begun,
            &self.done,
            &self.later,
            &self.retry,
            &self.panic,
        ];
        all.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

pub trait QueueKey: Clone + Eq + Hash + Send + Sync + std::fmt::Debug + 'static {
    /// The namespace that the key belongs to. Namespaces share the workers.
    fn namespace(&self) -> &str;
}

impl QueueKey for String {
    fn namespace(&self) -> &str {
        self
    }
}

impl<T: Clone + Eq + Hash + Send + Sync + std::fmt::Debug + 'static> QueueKey for (String, T) {
    fn namespace(&self) -> &str {
        &self.0
    }
}

/// The queue. Its size is bounded by the number of distinct keys.
pub struct WorkQueue<K> {
    state: Mutex<QueueState<K>>,
    wake: Notify,
    counters: Arc<QueueCounters>,
}

struct QueueState<K> {
    ready: FairQueue<K>,
    /// Keys that are in `ready`, or that are added to it when their worker has finished.
    wanted: HashSet<K>,
    working: HashSet<K>,
    failures: HashMap<K, u32>,
    /// When each key is added next, and the task that waits for this time. A key has one such time, however often it
    /// was requested.
    due: HashMap<K, (Instant, AbortOnDropHandle<()>)>,
    /// Keys whose last run failed slowly. No worker takes them before they are due.
    resting: HashSet<K>,
}

/// First pause after a failure.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// Longest pause after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// A run that failed after this long has kept a worker from other keys, most likely by a call that timed out. Its key
/// pauses for about as long as the run took, even if the object changes in the meantime.
const SLOW_RUN: Duration = Duration::from_secs(1);

/// The two tokens that stop a queue.
#[derive(Clone, Debug, Default)]
pub struct StopTokens {
    /// No new run begins.
    pub begun: CancellationToken,
    /// The runs that are under way are dropped.
    pub dropped: CancellationToken,
}

impl From<CancellationToken> for StopTokens {
    /// Uses one token for both.
    fn from(stop: CancellationToken) -> StopTokens {
        StopTokens {
            begun: stop.clone(),
            dropped: stop,
        }
    }
}

impl<K: QueueKey> WorkQueue<K> {
    /// Creates an empty queue that counts its runs in `turns`.
    pub fn new(turns: &Arc<QueueCounters>) -> Arc<Self> {
        let state = QueueState {
            ready: FairQueue::default(),
            wanted: HashSet::new(),
            working: HashSet::new(),
            failures: HashMap::new(),
            due: HashMap::new(),
            resting: HashSet::new(),
        };
        Arc::new(WorkQueue {
            state: Mutex::new(state),
            wake: Notify::new(),
            counters: Arc::clone(turns),
        })
    }

    /// Adds a key. A key that is already waiting is not added again.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        if state.resting.contains(&key) {
            return;
        }
        if state.wanted.insert(key.clone()) && !state.working.contains(&key) {
            state.ready.push(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Adds a key after a pause. If the key is already due earlier, keep that time; the earlier run schedules the next
    /// one.
    pub fn add_after(self: &Arc<Self>, key: K, pause: Duration) {
        let at = Instant::now() + pause;
        let mut state = self.state.lock();
        let is_resting = state.resting.contains(&key);
        if is_resting || state.due.get(&key).is_some_and(|(due, _)| *due <= at) {
            return;
        }
        self.add_at(&mut state, key, at);
    }

    /// Schedules a key for this time, in place of any former time.
    fn add_at(self: &Arc<Self>, state: &mut QueueState<K>, key: K, at: Instant) {
        let (queue, added) = (Arc::downgrade(self), key.clone());
        let waits = tokio::spawn(async move {
            sleep_until(at).await;
            if let Some(queue) = queue.upgrade()
                && queue.is_scheduled_by(&added, at)
            {
                queue.add(added);
            }
        });
        state.due.insert(key, (at, AbortOnDropHandle::new(waits)));
    }

    /// Whether a key is still scheduled for this time. Returns true only once for each time.
    fn is_scheduled_by(&self, key: &K, at: Instant) -> bool {
        let mut state = self.state.lock();
        let due = state.due.get(key).is_some_and(|(due, _)| *due == at);
        if due {
            if let Some((_, own)) = state.due.remove(key) {
                own.detach(); // the task that asks
            }
            state.resting.remove(key);
        }
        due
    }

    /// How many keys wait.
    pub fn depth(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Works on keys until stopped, `workers` at a time. A panic of the reconciler counts as a failure of its key. Any
    /// other panic of a worker is passed on to the caller.
    ///
    /// A namespace gets another worker only while it holds fewer workers than are free. Therefore other namespaces find
    /// a worker, however many keys this namespace has and however long each key takes.
    pub async fn run_workers<F, R>(self: Arc<Self>, workers: usize, stop: StopTokens, reconcile: R)
    where
        R: Fn(K) -> F + Send + Sync + 'static,
        F: Future<Output = ReconcileOutcome> + Send,
    {
        self.state.lock().ready.set_workers(workers);
        let reconcile = Arc::new(reconcile);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..workers {
            let queue = Arc::clone(&self);
            let (StopTokens { begun, dropped }, reconcile) = (stop.clone(), Arc::clone(&reconcile));
            tasks.spawn(async move {
                loop {
                    let key = tokio::select! { biased; () = begun.cancelled() => return, key = queue.next_key() => key };
                    increment_counter(&queue.counters.begun);
                    let begun = Instant::now();
                    let work = std::panic::AssertUnwindSafe(reconcile(key.clone())).catch_unwind();
                    let ended = tokio::select! {
                        biased;
                        () = dropped.cancelled() => return,
                        ended = work => ended,
                    };
                    let turns = &queue.counters;
                    increment_counter(match ended {
                        Ok(ReconcileOutcome::Done) => &turns.done,
                        Ok(ReconcileOutcome::After(_) | ReconcileOutcome::Early(_)) => &turns.later,
                        Ok(ReconcileOutcome::Retry) => &turns.retry,
                        Err(_) => &turns.panic,
                    });
                    let outcome = ended.unwrap_or_else(|_| {
                        error!(?key, "a reconciler panicked; the key will be tried again");
                        ReconcileOutcome::Retry
                    });
                    queue.finish_key(key, outcome, begun.elapsed());
                    // A reconciler that never yields would keep a runtime thread from all other tasks.
                    tokio::task::yield_now().await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }

    async fn next_key(&self) -> K {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(key) = state.ready.take_next() {
                    state.wanted.remove(&key);
                    state.working.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Records that a worker has finished a key, and how long the run took.
    fn finish_key(self: &Arc<Self>, key: K, outcome: ReconcileOutcome, took: Duration) {
        let mut state = self.state.lock();
        state.working.remove(&key);
        state.ready.release_worker(&key);
        if outcome == ReconcileOutcome::Retry && took >= SLOW_RUN {
            state.wanted.remove(&key);
            state.resting.insert(key.clone());
        } else if state.wanted.contains(&key) {
            state.ready.push(key.clone());
        }
        if !state.ready.is_empty() {
            self.wake.notify_one();
        }
        let pause = match outcome {
            ReconcileOutcome::Done => {
                state.failures.remove(&key);
                return;
            }
            ReconcileOutcome::After(pause) => {
                state.failures.remove(&key);
                pause
            }
            ReconcileOutcome::Early(pause) => pause,
            ReconcileOutcome::Retry => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = (*failures + 1).min(12);
                let most = (MIN_BACKOFF * 2u32.pow(*failures)).max(took);
                debug!(?key, failures, "will be tried again");
                most.min(MAX_BACKOFF).mul_f64(rand::random_range(0.5..1.0))
            }
        };
        if state.resting.contains(&key) {
            self.add_at(&mut state, key, Instant::now() + pause);
            return;
        }
        drop(state);
        self.add_after(key, pause);
    }
}

fn increment_counter(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    impl QueueKey for &'static str {
        fn namespace(&self) -> &str {
            self.split_once('/').map_or("", |(namespace, _)| namespace)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_key_is_merged_and_retried_after_panic() {
        let turns = Arc::default();
        let queue = WorkQueue::new(&turns);
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.depth(), 1);
        let (seen, stop) = (Arc::new(AtomicU32::new(0)), CancellationToken::new());
        let (counter, done) = (Arc::clone(&seen), stop.clone());
        Arc::clone(&queue)
            .run_workers(2, stop.into(), move |_| {
                let (counter, done) = (Arc::clone(&counter), done.clone());
                async move {
                    if counter.fetch_add(1, Ordering::SeqCst) == 0 {
                        panic!("first");
                    }
                    done.cancel();
                    ReconcileOutcome::Done
                }
            })
            .await;
        assert_eq!(seen.load(Ordering::SeqCst), 2);
        let counts = [&turns.begun, &turns.panic, &turns.retry, &turns.done];
        assert_eq!(counts.map(|c| c.load(Ordering::Relaxed)), [2, 1, 0, 1]);
    }

    /// A key whose hash panics when its flag is set.
    #[derive(Clone, Debug)]
    struct Fragile(Arc<AtomicBool>);

    impl PartialEq for Fragile {
        fn eq(&self, _other: &Self) -> bool {
            true
        }
    }

    impl Eq for Fragile {}

    impl QueueKey for Fragile {
        fn namespace(&self) -> &'static str {
            ""
        }
    }

    impl Hash for Fragile {
        fn hash<H: std::hash::Hasher>(&self, _state: &mut H) {
            assert!(!self.0.load(Ordering::SeqCst), "as asked");
        }
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "as asked")]
    async fn panic_of_a_worker_goes_on_to_the_caller() {
        let queue = WorkQueue::new(&Arc::default());
        let breaks = Arc::new(AtomicBool::new(false));
        queue.add(Fragile(Arc::clone(&breaks)));
        breaks.store(true, Ordering::SeqCst);
        queue
            .run_workers(1, StopTokens::default(), |_| async {
                ReconcileOutcome::Done
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn rescheduled_key_has_one_waiting_task() {
        let queue = WorkQueue::new(&Arc::default());
        let tasks = tokio::runtime::Handle::current().metrics();
        for _ in 0..100 {
            queue.add_after("a", Duration::from_secs(3600));
            queue.add_after("a", Duration::from_secs(1));
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        assert!(tasks.num_alive_tasks() <= 1, "{}", tasks.num_alive_tasks());
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_of_several_requeue_times_counts() {
        let queue = WorkQueue::new(&Arc::default());
        for seconds in [20, 10, 10, 30] {
            queue.add_after("a", Duration::from_secs(seconds));
        }
        let (looks, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let (seen, start) = (Arc::clone(&looks), Instant::now());
        let working =
            tokio::spawn(
                Arc::clone(&queue).run_workers(1, stop.clone().into(), move |_| {
                    let mut seen = seen.lock();
                    seen.push(start.elapsed().as_secs());
                    let next = match seen.len() {
                        1 => ReconcileOutcome::After(Duration::from_secs(5)),
                        _ => ReconcileOutcome::Done,
                    };
                    async move { next }
                }),
            );
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop.cancel();
        working.await.unwrap();
        assert_eq!(*looks.lock(), [10, 15]);
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_with_thousands_of_slow_keys_leaves_workers_to_others() {
        let queue = WorkQueue::new(&Arc::default());
        for key in 0..2_000 {
            queue.add(("busy".to_owned(), key));
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (looks, stop) = (Arc::clone(&seen), CancellationToken::new());
        let working =
            tokio::spawn(
                Arc::clone(&queue).run_workers(16, stop.clone().into(), move |key| {
                    looks.lock().push(key.clone());
                    async move {
                        // The API server does not answer requests about the busy namespace.
                        let takes = if key.0 == "busy" { 15 } else { 0 };
                        tokio::time::sleep(Duration::from_secs(takes)).await;
                        ReconcileOutcome::Done
                    }
                }),
            );
        tokio::time::sleep(Duration::from_secs(1)).await;
        for other in ["a", "b", "c"] {
            queue.add((other.to_owned(), 0));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        working.await.unwrap();
        let seen = seen.lock();
        let of = |namespace: &str| seen.iter().filter(|key| key.0 == namespace).count();
        assert_eq!(["busy", "a", "b", "c"].map(of), [8, 1, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn early_reconcile_does_not_reset_backoff() {
        let queue = WorkQueue::new(&Arc::default());
        let looks = Arc::new(Mutex::new((0, None::<Instant>)));
        let (seen, stop) = (Arc::clone(&looks), CancellationToken::new());
        queue.add("n/a");
        let working =
            tokio::spawn(
                Arc::clone(&queue).run_workers(1, stop.clone().into(), move |_| {
                    let mut seen = seen.lock();
                    let next = seen.1.map(|last| last + Duration::from_millis(50));
                    let left = next.map_or(Duration::ZERO, |next| next - Instant::now().min(next));
                    let outcome = match left.is_zero() {
                        true => {
                            *seen = (seen.0 + 1, Some(Instant::now()));
                            ReconcileOutcome::Retry
                        }
                        false => ReconcileOutcome::Early(left),
                    };
                    async move { outcome }
                }),
            );
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop.cancel();
        working.await.unwrap();
        let looks = looks.lock().0;
        assert!((8..40).contains(&looks), "{looks}");
    }

    #[tokio::test(start_paused = true)]
    async fn running_reconcile_continues_after_stop_until_dropped() {
        let second = Duration::from_secs(1);
        for (takes, ends) in [(second, 1), (3 * second, 0)] {
            let queue = WorkQueue::new(&Arc::default());
            let (ended, stop) = (Arc::new(AtomicU32::new(0)), StopTokens::default());
            for key in ["n/a", "n/b"] {
                queue.add(key);
            }
            let counter = Arc::clone(&ended);
            let working =
                tokio::spawn(Arc::clone(&queue).run_workers(1, stop.clone(), move |_| {
                    let counter = Arc::clone(&counter);
                    async move {
                        tokio::time::sleep(takes).await;
                        counter.fetch_add(1, Ordering::SeqCst);
                        ReconcileOutcome::Done
                    }
                }));
            tokio::time::sleep(takes / 4).await;
            stop.begun.cancel();
            tokio::time::sleep(2 * second).await;
            stop.dropped.cancel();
            working.await.unwrap();
            assert_eq!(ended.load(Ordering::SeqCst), ends, "and no other begins");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_failed_reconcile_backs_off_despite_object_changes() {
        let queue = WorkQueue::new(&Arc::default());
        let begun = Arc::new(AtomicU32::new(0));
        let (counter, stop) = (Arc::clone(&begun), CancellationToken::new());
        queue.add("n/a");
        let working =
            tokio::spawn(
                Arc::clone(&queue).run_workers(4, stop.clone().into(), move |_| {
                    counter.fetch_add(1, Ordering::SeqCst);
                    async move {
                        tokio::time::sleep(Duration::from_secs(10)).await;
                        ReconcileOutcome::Retry
                    }
                }),
            );
        // Each run takes 10 s, with a pause of at least 5 s after it.
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            queue.add("n/a");
            queue.add_after("n/a", Duration::from_millis(10));
        }
        stop.cancel();
        working.await.unwrap();
        let begun = begun.load(Ordering::SeqCst);
        assert!((3..=4).contains(&begun), "{begun}");
    }
}
