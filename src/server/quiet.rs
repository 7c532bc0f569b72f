//! Bounds the log lines that strangers can cause.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, sleep_until};

/// How long a count lasts.
const PERIOD: Duration = Duration::from_secs(10);

/// Lets so many lines of one kind through in a period, and says how many more there were at its end. Cloning shares the
/// count.
#[derive(Clone, Debug)]
pub(super) struct Quiet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// What the lines are, as in "and 3 more calls that were refused".
    what: &'static str,
    most: u64,
    unlogged: Counter,
    count: Mutex<Count>,
}

#[derive(Debug)]
struct Count {
    since: Instant,
    lines: u64,
}

impl From<Instant> for Count {
    fn from(since: Instant) -> Count {
        Count { since, lines: 0 }
    }
}

impl Quiet {
    pub(super) fn new(what: &'static str, most: u64, unlogged: Counter) -> Quiet {
        Quiet(Arc::new(Inner {
            what,
            most,
            unlogged,
            count: Mutex::new(Count::from(Instant::now())),
        }))
    }

    /// Whether another line may be logged now. Needs a Tokio runtime.
    pub(super) fn may_log(&self) -> bool {
        let mut count = self.0.count.lock();
        let now = Instant::now();
        // A period in which lines were left out is ended by telling of them.
        if count.lines <= self.0.most && now >= count.since + PERIOD {
            *count = Count::from(now);
        }
        count.lines += 1;
        if count.lines <= self.0.most {
            return true;
        }
        if count.lines == self.0.most + 1 {
            tokio::spawn(self.clone().tell(count.since + PERIOD));
        }
        self.0.unlogged.inc();
        false
    }

    async fn tell(self, at: Instant) {
        sleep_until(at).await;
        let (more, what) = (self.end(), self.0.what);
        tracing::warn!("and {more} more {what} in the last {} s", PERIOD.as_secs());
    }

    /// How many lines were left out; begins anew.
    fn end(&self) -> u64 {
        let count = std::mem::replace(&mut *self.0.count.lock(), Count::from(Instant::now()));
        count.lines.saturating_sub(self.0.most)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio::time::advance;

    use super::*;

    fn logged(quiet: &Quiet, lines: usize) -> usize {
        (0..lines).filter(|_| quiet.may_log()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn lines_beyond_the_bound_are_counted() {
        let unlogged = Counter::default();
        let quiet = Quiet::new("calls", 3, unlogged.clone());
        assert_eq!(logged(&quiet, 10), 3);
        assert_eq!(unlogged.get(), 7);
        // The task that tells of them has not run yet.
        advance(PERIOD).await;
        assert_eq!(quiet.end(), 7);
        assert_eq!(logged(&quiet, 2), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn few_lines_in_each_period_are_all_logged() {
        let quiet = Quiet::new("calls", 3, Counter::default());
        for _ in 0..5 {
            assert_eq!(logged(&quiet, 3), 3);
            advance(PERIOD).await;
        }
    }
}
