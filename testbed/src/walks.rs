//! Random walks: each walk draws actions from a seed and performs them in a namespace of its own, while replicas of the
//! server die.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{join, join_all};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::bed::Bed;
use crate::fleet::REPLICAS;

/// Claims on the budget that a dead replica leaves behind lapse after this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The walks of a test. The environment can change how they run:
///
/// | Variable | Meaning |
/// |---|---|
/// | `WALK_SEED` | the seed of the first walk. Each walk prints its seed; the same seed repeats its choices |
/// | `WALKS` | how many walks run side by side |
/// | `WALK_MINUTES` | for how long a new walk begins where one has ended; by default, none does |
pub struct Walks {
    /// How many walks run side by side by default.
    pub places: u64,
    /// How many times a replica is killed at least.
    pub kills: usize,
    /// How many milliseconds pass before a kill, by the seed of the first walk and the number of earlier kills.
    pub pause: fn(u64, usize) -> Range<u64>,
}

impl Walks {
    /// Runs `walk` with one seed after the other on a bed of their own, and returns what the walks returned. Panics
    /// with the seeds of the walks that panicked.
    pub async fn run<T>(&self, walk: impl AsyncFn(&Bed, u64) -> T) -> Vec<T> {
        let first = variable("WALK_SEED").unwrap_or_else(rand::random);
        let places = variable("WALKS").unwrap_or(self.places);
        let minutes = variable("WALK_MINUTES").unwrap_or(0);
        let begin = Instant::now();
        let is_over = || begin.elapsed() >= Duration::from_secs(60 * minutes);
        let bed = Bed::with_request_timeout(REQUEST_TIMEOUT).await;
        let next = AtomicU64::new(first);
        let (results, bad) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let place = async || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                match AssertUnwindSafe(walk(&bed, seed)).catch_unwind().await {
                    Ok(result) => results.lock().push(result),
                    Err(_) => {
                        println!("VIOLATION in the walk WALK_SEED={seed} WALKS=1");
                        bad.lock().push(seed);
                    }
                }
                if is_over() {
                    return;
                }
            }
        };
        let places = (0..places).map(|_| place());
        join(join_all(places), self.kill_replicas(&bed, first, is_over)).await;
        bed.assert_all_run().await;
        let (results, bad) = (results.into_inner(), bad.into_inner());
        println!(
            "from WALK_SEED={first}: {} walks without violation",
            results.len()
        );
        assert!(bad.is_empty(), "violations in the walks of seeds {bad:?}");
        results
    }

    /// Kills the leader and others without warning, and starts them again, until the walks are over.
    async fn kill_replicas(&self, bed: &Bed, seed: u64, is_over: impl Fn() -> bool) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut kill = 0;
        while kill < self.kills || !is_over() {
            let pause = rng.random_range((self.pause)(seed, kill));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let victim = match kill % 3 {
                1 => rng.random_range(0..REPLICAS),
                _ => bed.leader().await,
            };
            bed.kill(victim).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            bed.restart(victim).await;
            kill += 1;
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}
