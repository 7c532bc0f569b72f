//! What a plan of a CollaSet costs at 1,000 and at 10,000 Pods. Prints a line of JSON for each state and size, which
//! `cargo xtask bench` puts into its table.

mod cost;
mod states;

use std::alloc::System;

use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use cost::Cost;
use states::STATES;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Pods of a set.
const SIZES: [usize; 2] = [1_000, 10_000];

fn main() {
    for (state, observed) in STATES {
        for size in SIZES {
            let observed = observed(size);
            let Cost { allocations, bytes } = cost::of(HEAP, &observed);
            let milliseconds = cost::milliseconds(&observed);
            let line = json!({
                "state": state, "pods": size, "milliseconds": milliseconds, "allocations": allocations, "bytes": bytes,
            });
            println!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pods of a set: debug builds are slow, and growth shows as well.
    const SIZES: [usize; 2] = [300, 3_000];
    /// A Pod of the larger set may allocate so many times as much as one of the smaller.
    const MOST: f64 = 1.3;
    /// Allocations for each Pod. What is the same for many Pods, as the way from one revision to another, is worked out once.
    const EACH: f64 = 150.0;

    #[test]
    fn plan_of_many_pods_allocates_no_more_per_pod() {
        let mut wrong = Vec::new();
        for (state, observed) in STATES {
            let per_pod = SIZES.map(|size| {
                let Cost { allocations, bytes } = cost::of(HEAP, &observed(size));
                [allocations, bytes].map(|all| all as f64 / size as f64)
            });
            let [few, many] = per_pod;
            println!("{state}: {few:.1?} allocations and bytes per Pod, and {many:.1?}");
            let grows = many.iter().zip(few).any(|(many, few)| *many > MOST * few);
            if grows || many[0] > EACH {
                wrong.push(format!("{state}: {few:.1?} became {many:.1?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
