//! Walks of an employer that moves along a chain of three adapters, as `TrafficController::look_at` drives it. Adapters
//! disappear from the configuration and come back, each Pod may have ports of its own, operations begin, are undone and
//! end between two calls, and the cache of Pods may be late.
//!
//! | File | What it has |
//! |---|---|
//! | `adapter` | an adapter that only computes, and the ports of the employer |
//! | `state` | the employer, its Pods and load balancers, and what the leader knows |
//! | `operations` | how operations take Pods off traffic, and what the webhook writes then |
//! | `pods` | Pods that come, go and change |
//! | `disturb` | what happens to the employer, its adapters and the leader |
//! | `watched` | the controllers of load balancers that the adapters only observe |
//! | `look` | a look at the present adapter |
//! | `formers` | a look at the former adapters |
//! | `calls` | the calls of a look |
//! | `marks` | the marks that the leader writes |
//! | `checks` | what must hold after each step |
//! | `ends` | what must hold when nothing happens any more, or the employer is deleted |

mod adapter;
mod calls;
mod checks;
mod disturb;
mod ends;
mod formers;
mod look;
mod marks;
mod operations;
mod pods;
mod state;
mod watched;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use state::Chain;

/// The last events of a walk that a failure shows.
const SHOWN: usize = 40;

fn walk(chain: &mut Chain, deletes: bool) {
    for _ in 0..150 {
        if chain.random.one_in(2) {
            chain.disturb();
            chain.check_operations();
        }
        let wake = chain.look();
        chain.check_operations();
        let later = chain.now + Duration::from_secs(1 + chain.random.below(7));
        chain.now = match wake.filter(|wake| *wake > chain.now) {
            Some(wake) if chain.random.one_in(2) => wake.min(later),
            _ => later,
        };
    }
    match deletes {
        true => chain.delete(),
        false => chain.settle(),
    }
}

#[test]
fn random_walks_along_a_chain_of_moves() {
    let first: u64 = std::env::var("WALK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count: u64 = std::env::var("WALK_COUNT").map_or(300, |count| count.parse().unwrap());
    for seed in first..first + count {
        let mut chain = Chain::new(seed);
        let deletes = seed.is_multiple_of(4);
        let result = catch_unwind(AssertUnwindSafe(|| walk(&mut chain, deletes)));
        let events = &chain.events[chain.events.len().saturating_sub(SHOWN)..];
        assert!(result.is_ok(), "seed {seed}:\n{}", events.join("\n"));
    }
}
