//! The cost of one plan: allocations and time.

use std::alloc::System;
use std::hint::black_box;
use std::time::Instant;

use operating::domain::collaset::observed::ObservedSet;
use operating::domain::collaset::planner::plan_set;
use stats_alloc::{Region, StatsAlloc};

/// Number of plans, of which the fastest gives the time.
const RUNS: usize = 7;

/// The allocations of one plan.
pub struct Cost {
    /// Number of allocations and reallocations.
    pub allocations: usize,
    /// Sum of their bytes.
    pub bytes: usize,
}

/// Counts the allocations of one plan. No other thread may allocate at this time.
pub fn count_allocations(heap: &StatsAlloc<System>, observed: &ObservedSet) -> Cost {
    let region = Region::new(heap);
    let planned = black_box(plan_set(observed));
    let change = region.change();
    drop(planned);
    Cost {
        allocations: change.allocations + change.reallocations,
        bytes: change.bytes_allocated,
    }
}

/// The time of a plan: the minimum of several, because other load on the machine can only make a plan slower.
pub fn milliseconds(observed: &ObservedSet) -> f64 {
    let runs = (0..RUNS).map(|_| {
        let start = Instant::now();
        let planned = black_box(plan_set(observed));
        let took = start.elapsed();
        drop(planned);
        took.as_secs_f64() * 1e3
    });
    runs.fold(f64::INFINITY, f64::min)
}
