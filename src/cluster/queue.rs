//! A work queue: each key is worked on by one worker at a time, keys that come again while waiting are merged, and
//! failures come back later with a growing, jittered pause.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
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

/// The queue. Bounded by the number of distinct keys.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
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
    /// An empty queue.
    pub fn new() -> Arc<Self> {
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

    /// Works on keys until cancelled, `workers` at a time. A panic of the reconciler counts as a failure of its key.
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
                    let work = std::panic::AssertUnwindSafe(reconcile(key.clone())).catch_unwind();
                    let outcome = tokio::select! {
                        () = stop.cancelled() => return,
                        outcome = work => outcome.unwrap_or_else(|_| {
                            error!(?key, "a reconciler panicked");
                            Outcome::Retry
                        }),
                    };
                    queue.done(key, outcome);
                }
            });
        }
        while tasks.join_next().await.is_some() {}
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_merged_while_waiting_and_tried_again_after_a_panic() {
        let queue = Queue::new();
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
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_later_times_only_the_earliest_counts() {
        let queue = Queue::new();
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
