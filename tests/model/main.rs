//! The ledger's own transitions, explored exhaustively within bounds, and controls that take one rule out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod claims;
mod cluster;
mod fault;
mod model;
mod state;
mod steps;

use std::time::Instant;

use fault::Fault;
use model::{Rule, World};
use operating::ledger::protocol::Operation::{self, *};
use state::Mishaps;
use stateright::{Checker, Model};

const ONE: &[Rule] = &[Rule { covers: &[0, 1], max: 1 }];
const THREE: &[Rule] = &[Rule { covers: &[0, 1, 2], max: 1 }];
const TWO_RULES: &[Rule] = &[Rule { covers: &[0, 1], max: 1 }, Rule { covers: &[0, 2], max: 1 }];

fn world(rules: &'static [Rule], requests: &'static [(Operation, u8, u8)]) -> World {
    World {
        rules,
        replicas: 2,
        requests,
        mishaps: Mishaps { flaps: 1, crashes: 1, lost: 1, rejoins: 0 },
        split_writes: false,
        split_releases: false,
        at_once: false,
        fault: None,
    }
}

#[test]
fn explore() {
    let list: Vec<(&str, World)> = vec![
        ("d0 d1", world(ONE, &[(Delete, 0, 1), (Delete, 1, 1)])),
        ("e0 d1", world(ONE, &[(Evict, 0, 1), (Delete, 1, 1)])),
        ("b0 e1", world(ONE, &[(Begin, 0, 1), (Evict, 1, 1)])),
        ("i0 d1", world(ONE, &[(InPlace, 0, 1), (Delete, 1, 1)])),
        ("i0 i0 d1", world(ONE, &[(InPlace, 0, 0), (InPlace, 0, 0), (Delete, 1, 0)])),
        ("l0 e0 d1", World { mishaps: Mishaps { rejoins: 1, ..Default::default() }, ..world(ONE, &[(Leave, 0, 0), (Evict, 0, 0), (Delete, 1, 0)]) }),
        ("two e0 d0 ", world(TWO_RULES, &[(Evict, 0, 1), (Delete, 1, 0), (Delete, 2, 0)])),
        ("two d0 d0 d1 split rel", World { split_releases: true, mishaps: Mishaps { flaps: 1, crashes: 0, lost: 0, rejoins: 0 }, ..world(TWO_RULES, &[(Delete, 0, 1), (Evict, 0, 0), (Delete, 1, 0)]) }),
        ("three d0 d1 e2", world(THREE, &[(Delete, 0, 0), (Delete, 1, 0), (Evict, 2, 0)])),
    ];
    for (name, world) in list {
        let t = Instant::now();
        let checker = world.checker().threads(2).spawn_bfs().join();
        println!("{name}: {} states, {:?}", checker.unique_state_count(), t.elapsed());
        for (property, path) in checker.discoveries() {
            println!("  {property}");
            for step in path.into_actions() {
                println!("    {step:?}");
            }
        }
    }
    let _ = Fault::NoWatermark;
}
