//! Long work on the state of a namespace, in parts: it holds no lock and lets others in.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

/// Others are let in after so many steps, about a millisecond of work.
pub const STEPS_PER_YIELD: usize = 1_000;

/// Lets others in every [`STEPS_AT_ONCE`] steps, and measures the time in between.
pub struct Yielder {
    /// Steps so far: about so many looks at a Pod, a rule or a claim. Whoever works counts them here.
    pub steps: usize,
    /// The steps at the last pause.
    paused_at: usize,
    /// Most steps between two pauses.
    at_once: usize,
    spent: Duration,
    since: Instant,
}

impl Yielder {
    /// No step yet.
    pub fn new() -> Yielder {
        Yielder {
            steps: 0,
            paused_at: 0,
            at_once: 0,
            spent: Duration::ZERO,
            since: Instant::now(),
        }
    }

    /// Pauses if it is time.
    pub async fn yield_if_due(&mut self) {
        if self.steps - self.paused_at >= STEPS_PER_YIELD {
            self.record_pause();
            yield_now().await;
            self.since = Instant::now();
        }
    }

    fn record_pause(&mut self) {
        self.spent += self.since.elapsed();
        self.at_once = self.at_once.max(self.steps - self.paused_at);
        self.paused_at = self.steps;
    }

    /// All steps, most of them at once, and the time that they took.
    pub fn into_totals(mut self) -> (usize, usize, Duration) {
        self.record_pause();
        (self.steps, self.at_once, self.spent)
    }
}
