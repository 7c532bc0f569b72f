//! The time of the plan. The time of the API server can jump, when another API server answers or when its clock is set.
//! A drain time would then end too early, or a call would wait for hours. The plan of a term needs differences only, so it
//! has a clock that goes on from the time at its start.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

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

    /// How far this clock is behind another one that shows `time` now.
    pub fn behind(&self, time: Timestamp) -> SignedDuration {
        time.duration_since(self.now())
    }
}
