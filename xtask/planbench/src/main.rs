//! The cost of plans of CollaSets. Prints a line of JSON for each plan, which `cargo xtask bench` puts into its table.
//!
//! Without arguments it plans each state with 1,000 and with 10,000 Pods. With the argument `decorations` it plans a
//! set at rest first without PodDecorations, and then with them.

mod cost;
mod decorated;
mod states;

use std::alloc::System;
use std::process::ExitCode;

use operating::domain::collaset::observed::ObservedSet;
use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use cost::Cost;
use states::STATES;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Numbers of Pods of a set.
const SIZES: [usize; 2] = [1_000, 10_000];
/// Number of Pods of the set with PodDecorations.
const DECORATED: usize = 1_000;
/// Number of PodDecorations of each of these Pods.
const DECORATIONS: usize = 50;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        None => {
            for (state, observed) in STATES {
                for size in SIZES {
                    print_cost(state, size, &observed(size));
                }
            }
        }
        Some("decorations") => {
            for count in [0, DECORATIONS] {
                let state = format!("at rest with {count} PodDecorations");
                print_cost(&state, DECORATED, &decorated::decorated(DECORATED, count));
            }
        }
        Some(other) => {
            eprintln!("unknown argument {other:?}: expected none, or decorations");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn print_cost(state: &str, size: usize, observed: &ObservedSet) {
    let Cost { allocations, bytes } = cost::count_allocations(HEAP, observed);
    let milliseconds = cost::milliseconds(observed);
    let line = json!({
        "state": state, "pods": size, "milliseconds": milliseconds, "allocations": allocations, "bytes": bytes,
    });
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of Pods of a set in tests. They are small because debug builds are slow.
    const SIZES: [usize; 2] = [300, 3_000];
    /// Limit of the allocations for each Pod in the larger set, relative to the smaller set.
    const MOST: f64 = 1.3;
    /// Limit of allocations for each Pod. Work that is equal for many Pods, such as the change from one
    /// revision to another, is done once.
    const EACH: f64 = 150.0;

    #[test]
    fn plan_of_many_pods_allocates_no_more_per_pod() {
        let mut wrong = Vec::new();
        for (state, observed) in STATES {
            let per_pod = SIZES.map(|size| {
                let Cost { allocations, bytes } = cost::count_allocations(HEAP, &observed(size));
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
