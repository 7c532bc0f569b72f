//! The ledger's own transition functions, explored exhaustively within stated bounds: replicas with caches that lag
//! behind, two leaders at once, crashes, lost replies, conflicts, and short losses of Ready. Every world ends by
//! itself, because requests, retries and failures are limited, so the exploration is complete. `LEDGER_MODEL=full` also
//! explores larger worlds. Any other value explores only the worlds and controls whose name contains it:
//! `LEDGER_MODEL=full cargo test -p ledger_model`.
//!
//! Bounds: up to 3 Pods, 2 rules, 3 replicas, 4 requests. The model does not contain
//!
//! - a Pod that joins a rule, or becomes managed again, while an eviction that was admitted before is in flight;
//! - a rule that is created (also under a former name) or tightened while disruptions are in flight;
//! - a rule that is tightened while caches lag behind;
//! - a container that crashes at the very moment of an in-place change that keeps its image (a resize, or another name
//!   of the same image). Nothing that the kubelet reports distinguishes such a crash from the restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod claims;
mod cluster;
mod fault;
mod model;
mod scenarios;
mod state;
mod steps;

use std::collections::HashSet;
use std::time::Instant;

use model::World;
use stateright::{Checker, Model};

fn set() -> Option<String> {
    std::env::var("LEDGER_MODEL").ok()
}

fn is_wanted(world: &World) -> bool {
    let name = format!("{world} {:?}", world.fault);
    set().is_none_or(|set| set == "full" || name.contains(&set))
}

fn explore(world: World) -> usize {
    let (name, begin) = (world.to_string(), Instant::now());
    let checker = world.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!(
        "{states:>10} states  {name}  ({:.1} s)",
        begin.elapsed().as_secs_f32()
    );
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{name}: property violated: {property}:\n{path}");
    }
    assert!(checker.is_done());
    states
}

#[test]
fn no_rule_is_broken_and_every_world_settles() {
    let full = set().is_some_and(|set| set == "full");
    let more = if full { scenarios::more() } else { Vec::new() };
    let mut worlds: Vec<_> = scenarios::usual().into_iter().chain(more).collect();
    worlds.retain(is_wanted);
    // A control shows something only if its world holds with the whole protocol.
    let of_controls = scenarios::controls().into_iter().filter(is_wanted);
    worlds.extend(of_controls.map(|world| World {
        fault: None,
        ..world
    }));
    let mut seen = HashSet::new();
    worlds.retain(|world| seen.insert(format!("{world:?}")));
    let count = worlds.len();
    let states: usize = worlds.into_iter().map(explore).sum();
    println!(
        "{states} unique states in {count} worlds: no rule is broken, everything comes to rest"
    );
}

#[test]
fn each_omitted_protocol_rule_breaks_the_limit() {
    for world in scenarios::controls().into_iter().filter(is_wanted) {
        let fault = world.fault.unwrap();
        // One thread: breadth first then finds a shortest way.
        let checker = world.clone().checker().spawn_bfs().join();
        let Some(path) = checker.discovery(fault.breaks()) else {
            panic!("{fault:?} breaks nothing in {world}");
        };
        let steps = path.into_actions();
        println!("{fault:?} breaks {world} in {} steps:", steps.len());
        for step in steps {
            println!("    {step:?}");
        }
    }
}
