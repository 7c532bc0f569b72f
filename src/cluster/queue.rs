//! A work queue: each key is worked on by one worker at a time, keys that come again while waiting are merged, and
//! failures come back later with a growing, jittered pause.

use std::collections::{HashMap, HashSet, VecDeque};
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
use tracing::{debug, error};

/// What a reconciler says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Done,
    /// Look again after this time.
    After(Duration),
    /// Failed; look again after a back-off.
    Retry,
}

/// What the workers of a queue did since the start.
#[derive(Debug, Default)]
pub struct Turns {
    /// Keys taken up.
    pub begun: AtomicU64,
    /// Ended by [`Outcome::Done`].
    pub done: AtomicU64,
    /// Ended by [`Outcome::After`].
    pub later: AtomicU64,
    /// Ended by [`Outcome::Retry`].
    pub retry: AtomicU64,
    /// Ended by a panic of the reconciler.
    pub panic: AtomicU64,
}

impl Turns {
    /// A number that grows with all that is done.
    pub fn progress(&self) -> u64 {
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

/// The queue. Bounded by the number of distinct keys.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    turns: Arc<Turns>,
}

struct State<K> {
    ready: VecDeque<K>,
    /// In `ready`, or to be put there when its worker is done.
    wanted: HashSet<K>,
    working: HashSet<K>,
    failures: HashMap<K, u32>,
    /// When a key is to be added next: one time each, however often it was asked for.
    due: HashMap<K, Instant>,
}

/// First pause after a failure.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(15);

impl<K: Clone + Eq + Hash + Send + Sync + std::fmt::Debug + 'static> Queue<K> {
    /// An empty queue, which counts in `turns`.
    pub fn new(turns: &Arc<Turns>) -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            wanted: HashSet::new(),
            working: HashSet::new(),
            failures: HashMap::new(),
            due: HashMap::new(),
        };
        Arc::new(Queue {
            state: Mutex::new(state),
            wake: Notify::new(),
            turns: Arc::clone(turns),
        })
    }

    /// Asks for a key to be worked on.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        if state.wanted.insert(key.clone()) && !state.working.contains(&key) {
            state.ready.push_back(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Asks for a key to be worked on later. If that is to happen earlier already, the outcome of then says when next.
    pub fn add_after(self: &Arc<Self>, key: K, pause: Duration) {
        let at = Instant::now() + pause;
        {
            let mut state = self.state.lock();
            if state.due.get(&key).is_some_and(|due| *due <= at) {
                return;
            }
            state.due.insert(key.clone(), at);
        }
        let queue = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep_until(at).await;
            if let Some(queue) = queue.upgrade()
                && queue.is_due(&key, at)
            {
                queue.add(key);
            }
        });
    }

    /// Whether a key is still to be added at this time, and no earlier one has taken its place. Says yes once.
    fn is_due(&self, key: &K, at: Instant) -> bool {
        let mut state = self.state.lock();
        let due = state.due.get(key) == Some(&at);
        if due {
            state.due.remove(key);
        }
        due
    }

    /// How many keys wait.
    pub fn depth(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Works on keys until cancelled, `workers` at a time. A panic of the reconciler counts as a failure of its key; any
    /// other panic of a worker goes on to the caller.
    pub async fn run<F, R>(self: Arc<Self>, workers: usize, stop: CancellationToken, reconcile: R)
    where
        R: Fn(K) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send,
    {
        let reconcile = Arc::new(reconcile);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..workers {
            let (queue, stop, reconcile) =
                (Arc::clone(&self), stop.clone(), Arc::clone(&reconcile));
            tasks.spawn(async move {
                loop {
                    let key = tokio::select! { () = stop.cancelled() => return, key = queue.next() => key };
                    count(&queue.turns.begun);
                    let work = std::panic::AssertUnwindSafe(reconcile(key.clone())).catch_unwind();
                    let ended = tokio::select! {
                        () = stop.cancelled() => return,
                        ended = work => ended,
                    };
                    let turns = &queue.turns;
                    count(match ended {
                        Ok(Outcome::Done) => &turns.done,
                        Ok(Outcome::After(_)) => &turns.later,
                        Ok(Outcome::Retry) => &turns.retry,
                        Err(_) => &turns.panic,
                    });
                    let outcome = ended.unwrap_or_else(|_| {
                        error!(?key, "a reconciler panicked");
                        Outcome::Retry
                    });
                    queue.done(key, outcome);
                    // A reconciler that never waits would keep a thread of the runtime from all other tasks.
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

    async fn next(&self) -> K {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(key) = state.ready.pop_front() {
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

    fn done(self: &Arc<Self>, key: K, outcome: Outcome) {
        let mut state = self.state.lock();
        state.working.remove(&key);
        if state.wanted.contains(&key) {
            state.ready.push_back(key.clone());
            self.wake.notify_one();
        }
        let pause = match outcome {
            Outcome::Done => {
                state.failures.remove(&key);
                return;
            }
            Outcome::After(pause) => {
                state.failures.remove(&key);
                pause
            }
            Outcome::Retry => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = (*failures + 1).min(12);
                let most = MAX_PAUSE.min(MIN_PAUSE * 2u32.pow(*failures));
                debug!(?key, failures, "will be tried again");
                most.mul_f64(rand::random_range(0.5..1.0))
            }
        };
        drop(state);
        self.add_after(key, pause);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_merged_while_waiting_and_tried_again_after_a_panic() {
        let turns = Arc::default();
        let queue = Queue::new(&turns);
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.depth(), 1);
        let (seen, stop) = (Arc::new(AtomicU32::new(0)), CancellationToken::new());
        let (counter, done) = (Arc::clone(&seen), stop.clone());
        Arc::clone(&queue)
            .run(2, stop, move |_| {
                let (counter, done) = (Arc::clone(&counter), done.clone());
                async move {
                    if counter.fetch_add(1, Ordering::SeqCst) == 0 {
                        panic!("first");
                    }
                    done.cancel();
                    Outcome::Done
                }
            })
            .await;
        assert_eq!(seen.load(Ordering::SeqCst), 2);
        let counts = [&turns.begun, &turns.panic, &turns.retry, &turns.done];
        assert_eq!(counts.map(|c| c.load(Ordering::Relaxed)), [2, 1, 0, 1]);
    }

    /// A key whose hash panics once it is told to.
    #[derive(Clone, Debug)]
    struct Fragile(Arc<AtomicBool>);

    impl PartialEq for Fragile {
        fn eq(&self, _other: &Self) -> bool {
            true
        }
    }

    impl Eq for Fragile {}

    impl Hash for Fragile {
        fn hash<H: std::hash::Hasher>(&self, _state: &mut H) {
            assert!(!self.0.load(Ordering::SeqCst), "as asked");
        }
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "as asked")]
    async fn panic_of_a_worker_goes_on_to_the_caller() {
        let queue = Queue::new(&Arc::default());
        let breaks = Arc::new(AtomicBool::new(false));
        queue.add(Fragile(Arc::clone(&breaks)));
        breaks.store(true, Ordering::SeqCst);
        queue
            .run(1, CancellationToken::new(), |_| async { Outcome::Done })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_later_times_only_the_earliest_counts() {
        let queue = Queue::new(&Arc::default());
        for seconds in [20, 10, 10, 30] {
            queue.add_after("a", Duration::from_secs(seconds));
        }
        let (looks, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let (seen, start) = (Arc::clone(&looks), Instant::now());
        let working = tokio::spawn(Arc::clone(&queue).run(1, stop.clone(), move |_| {
            let mut seen = seen.lock();
            seen.push(start.elapsed().as_secs());
            let next = match seen.len() {
                1 => Outcome::After(Duration::from_secs(5)),
                _ => Outcome::Done,
            };
            async move { next }
        }));
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop.cancel();
        working.await.unwrap();
        assert_eq!(*looks.lock(), [10, 15]);
    }
}
