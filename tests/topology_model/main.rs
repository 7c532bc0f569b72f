//! The arithmetic of a budget by zone (docs/adr/0020), explored exhaustively within stated bounds: replicas with caches
//! that lag behind, crashes, lost replies, conflicts, outages. Every world ends by itself, because requests, retries
//! and failures are limited, so the exploration is complete. `TOPOLOGY_MODEL` restricts the run to worlds and controls
//! whose name contains its value.
//!
//! The model uses no code of the project, because the arithmetic is a proposal. `ledger_model` explores the other parts
//! of the ledger (attempts, closing claims, several rules, late restarts after in-place changes).
#![allow(clippy::unwrap_used, clippy::panic)]

mod arithmetic;
mod cluster;
mod fault;
mod model;
mod state;
mod steps;
mod worlds;

use std::time::Instant;

use model::World;
use stateright::{Checker, Model};

fn is_wanted(world: &World) -> bool {
    let name = format!("{world} {:?}", world.fault);
    std::env::var("TOPOLOGY_MODEL").map_or(true, |set| name.contains(&set))
}

fn explore(world: World) -> usize {
    let (name, begin) = (world.to_string(), Instant::now());
    let checker = world.clone().checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    let seconds = begin.elapsed().as_secs_f32();
    println!("{states:>10} states  {name}  ({seconds:.1} s)");
    for (property, path) in checker.discoveries() {
        assert!(
            property == model::SHARED,
            "{name}: property violated: {property}:\n{path}"
        );
    }
    let is_shared = checker.discovery(model::SHARED).is_some();
    assert!(
        is_shared || !world.shared,
        "{name}: no state was found in which {}",
        model::SHARED
    );
    assert!(checker.is_done());
    states
}

#[test]
fn one_zone_at_a_time_and_every_world_settles() {
    let worlds: Vec<_> = worlds::usual().into_iter().filter(is_wanted).collect();
    let count = worlds.len();
    let states: usize = worlds.into_iter().map(explore).sum();
    println!(
        "{states} unique states in {count} worlds: no rule is broken, everything comes to rest"
    );
}

#[test]
fn each_omitted_arithmetic_rule_breaks_an_invariant() {
    for world in worlds::controls().into_iter().filter(is_wanted) {
        let fault = world.fault.unwrap();
        // One thread: breadth first then finds a shortest way.
        let checker = world.clone().checker().spawn_bfs().join();
        let Some(path) = checker.discovery(fault.breaks()) else {
            let states = checker.unique_state_count();
            panic!("{fault:?} breaks nothing in {world} ({states} states)");
        };
        let steps = path.into_actions();
        println!("{fault:?} breaks {world} in {} steps:", steps.len());
        for step in steps {
            println!("    {step:?}");
        }
    }
}
