//! The time of the plan. The time of the API server can jump, when another API server answers or when its clock is set.
//! A drain time would then end too early, or a call would wait for hours. The plan of a term needs differences only, so it
//! has a clock that goes on from the time at its start.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp, Unit};

/// A clock that never jumps.
pub struct PlanClock {
    start: Timestamp,
    since: Instant,
}

impl PlanClock {
    /// A clock that shows `start` now.
    pub fn new(start: Timestamp) -> PlanClock {
        PlanClock {
            start,
            since: Instant::now(),
        }
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        let passed = self.since.elapsed();
        self.start.saturating_add(passed).unwrap_or(self.start)
    }

    /// How far this clock is behind another one that shows `time` now, in whole seconds: a report must not change because
    /// of the time between two readings.
    pub fn behind(&self, time: Timestamp) -> SignedDuration {
        let exact = time.duration_since(self.now());
        let seconds = exact.round(Unit::Second).map(|rounded| rounded.as_secs());
        SignedDuration::from_secs(seconds.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jump_of_another_clock_is_told_and_not_followed() {
        let start = Timestamp::UNIX_EPOCH;
        let clock = PlanClock::new(start);
        let hour = SignedDuration::from_hours(1);
        assert_eq!(clock.behind(start + hour), hour);
        assert_eq!(clock.behind(start), SignedDuration::ZERO);
        assert!(clock.now() < start + hour);
    }
}
