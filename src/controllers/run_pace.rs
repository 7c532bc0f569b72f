//! Spaces the runs for one object, so that many events cause one run, and an expensive plan is made less often.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum time between two runs. Many Pod events cause one run. A change of the spec does not wait.
pub const MIN_RUN_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time between the end of a run and the next run that is due.
const MAX_RUN_INTERVAL: Duration = Duration::from_secs(5);
/// The time between two runs is at least this multiple of the time that the last plan took, so that a large namespace
/// with many Pod events does not keep a core busy.
const RUN_INTERVAL_PER_PLAN: u32 = 10;

/// When runs begin.
#[derive(Debug, Default)]
pub struct RunPace {
    /// The begin of the last run, and the generation that it read.
    last_run: Option<(Instant, i64)>,
    plan_duration: Duration,
}

impl RunPace {
    /// Begins a run. If it is too early for a run, returns the remaining time.
    pub fn begin_run(&mut self, now: Instant, generation: i64) -> Option<Duration> {
        let pause = self.plan_duration * RUN_INTERVAL_PER_PLAN;
        let pause = pause.clamp(MIN_RUN_INTERVAL, MAX_RUN_INTERVAL);
        let last_run = self.last_run.filter(|(_, known)| *known == generation);
        let remaining = last_run.map(|(begin, _)| (begin + pause).saturating_duration_since(now));
        if let Some(remaining) = remaining.filter(|remaining| !remaining.is_zero()) {
            return Some(remaining);
        }
        self.last_run = Some((now, generation));
        None
    }

    /// Records how long a plan took.
    pub fn record_plan(&mut self, duration: Duration) {
        self.plan_duration = duration;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn long_plans_are_made_less_often() {
        let (mut pace, begin) = (RunPace::default(), Instant::now());
        assert_eq!(pace.begin_run(begin, 1), None);
        assert_eq!(pace.begin_run(begin, 1), Some(MIN_RUN_INTERVAL));
        assert_eq!(pace.begin_run(begin + MIN_RUN_INTERVAL, 1), None);
        pace.record_plan(Duration::from_millis(30));
        let next = begin + 2 * MIN_RUN_INTERVAL;
        let remaining = Duration::from_millis(250);
        assert_eq!(pace.begin_run(next, 1), Some(remaining));
        assert_eq!(pace.begin_run(next, 2), None, "another spec");
        pace.record_plan(Duration::from_mins(1));
        assert_eq!(pace.begin_run(next, 2), Some(MAX_RUN_INTERVAL));
    }
}
