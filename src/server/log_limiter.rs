//! Limits the log lines that unknown clients can cause.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, sleep_until};

/// The period of a count.
const PERIOD: Duration = Duration::from_secs(10);

/// Allows a number of log lines of one kind in a period, and logs at its end how many lines were left out. Clones share
/// the count.
#[derive(Clone, Debug)]
pub(super) struct LogLimiter(Arc<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    /// The subject of the lines for the summary, as in "and 3 more calls that were refused".
    subject: &'static str,
    most: u64,
    unlogged: Counter,
    count: Mutex<PeriodCount>,
}

#[derive(Debug)]
struct PeriodCount {
    since: Instant,
    lines: u64,
}

impl From<Instant> for PeriodCount {
    fn from(since: Instant) -> PeriodCount {
        PeriodCount { since, lines: 0 }
    }
}

impl LogLimiter {
    pub(super) fn new(subject: &'static str, most: u64, unlogged: Counter) -> LogLimiter {
        LogLimiter(Arc::new(LimiterState {
            subject,
            most,
            unlogged,
            count: Mutex::new(PeriodCount::from(Instant::now())),
        }))
    }

    /// Whether another line may be logged now. Needs a Tokio runtime.
    pub(super) fn may_log(&self) -> bool {
        let mut count = self.0.count.lock();
        let now = Instant::now();
        // The task that reports the left-out lines ends a period with such lines.
        if count.lines <= self.0.most && now >= count.since + PERIOD {
            *count = PeriodCount::from(now);
        }
        count.lines += 1;
        if count.lines <= self.0.most {
            return true;
        }
        if count.lines == self.0.most + 1 {
            tokio::spawn(self.clone().report_unlogged(count.since + PERIOD));
        }
        self.0.unlogged.inc();
        false
    }

    async fn report_unlogged(self, at: Instant) {
        sleep_until(at).await;
        let (more, subject) = (self.reset_count(), self.0.subject);
        tracing::warn!(
            "and {more} more {subject} in the last {} s",
            PERIOD.as_secs()
        );
    }

    /// Returns how many lines were left out, and starts a new count.
    fn reset_count(&self) -> u64 {
        let count = std::mem::replace(&mut *self.0.count.lock(), PeriodCount::from(Instant::now()));
        count.lines.saturating_sub(self.0.most)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio::time::advance;

    use super::*;

    fn logged(quiet: &LogLimiter, lines: usize) -> usize {
        (0..lines).filter(|_| quiet.may_log()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn lines_beyond_the_bound_are_counted() {
        let unlogged = Counter::default();
        let quiet = LogLimiter::new("calls", 3, unlogged.clone());
        assert_eq!(logged(&quiet, 10), 3);
        assert_eq!(unlogged.get(), 7);
        // The task that reports the left-out lines has not run yet.
        advance(PERIOD).await;
        assert_eq!(quiet.reset_count(), 7);
        assert_eq!(logged(&quiet, 2), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn few_lines_in_each_period_are_all_logged() {
        let quiet = LogLimiter::new("calls", 3, Counter::default());
        for _ in 0..5 {
            assert_eq!(logged(&quiet, 3), 3);
            advance(PERIOD).await;
        }
    }
}
