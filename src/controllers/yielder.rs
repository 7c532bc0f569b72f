//! Divides long work on the state of a namespace into parts, so that other tasks can run in between.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

/// After this many steps, about a millisecond of work, other tasks may run.
pub const STEPS_PER_YIELD: usize = 1_000;

/// After long work on the state of a namespace, the same work pauses for this many times as long as it took. Therefore
/// the work for one namespace takes less than a tenth of one processor, however many rules and Pods a tenant creates.
pub const REST_FACTOR: u32 = 10;

/// Yields to other tasks every [`STEPS_PER_YIELD`] steps, and measures the time in between.
pub struct Yielder {
    /// The steps so far. A step is about one visit of a Pod, a rule or a claim. The caller counts the steps here.
    pub steps: usize,
    /// The steps at the last pause.
    paused_at: usize,
    /// The largest number of steps between two pauses.
    max_burst: usize,
    elapsed: Duration,
    since: Instant,
}

impl Yielder {
    /// Starts with no steps.
    pub fn new() -> Yielder {
        Yielder {
            steps: 0,
            paused_at: 0,
            max_burst: 0,
            elapsed: Duration::ZERO,
            since: Instant::now(),
        }
    }

    /// Yields if enough steps were made since the last pause.
    pub async fn yield_if_due(&mut self) {
        if self.steps - self.paused_at >= STEPS_PER_YIELD {
            self.record_pause();
            yield_now().await;
            self.since = Instant::now();
        }
    }

    fn record_pause(&mut self) {
        self.elapsed += self.since.elapsed();
        self.max_burst = self.max_burst.max(self.steps - self.paused_at);
        self.paused_at = self.steps;
    }

    /// The number of steps, the largest number between two pauses, and the time that the steps took.
    pub fn into_totals(mut self) -> (usize, usize, Duration) {
        self.record_pause();
        (self.steps, self.max_burst, self.elapsed)
    }
}
