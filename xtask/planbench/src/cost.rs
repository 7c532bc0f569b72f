//! One plan: how much it allocates, and how long it takes.

use std::alloc::System;
use std::hint::black_box;
use std::time::Instant;

use operating::domain::collaset::observed::ObservedSet;
use operating::domain::collaset::planner::plan_set;
use stats_alloc::{Region, StatsAlloc};

/// Plans of which the fastest counts for the time.
const RUNS: usize = 7;

/// What one plan asks of the allocator.
pub struct Cost {
    /// How often it asks: for a block, or to enlarge one.
    pub allocations: usize,
    /// Bytes that it asks for in all.
    pub bytes: usize,
}

/// Counts the allocations of one plan. No other thread may allocate meanwhile.
pub fn of(heap: &StatsAlloc<System>, observed: &ObservedSet) -> Cost {
    let region = Region::new(heap);
    let planned = black_box(plan_set(observed));
    let change = region.change();
    drop(planned);
    Cost {
        allocations: change.allocations + change.reallocations,
        bytes: change.bytes_allocated,
    }
}

/// How long a plan takes: the fastest of some, as whatever else runs on the machine only ever makes one slower.
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
