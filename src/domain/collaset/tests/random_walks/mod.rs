//! Random walks: random actions and refused writes. Every step must keep the invariants, and a set that is left alone
//! must settle as its spec says.
//!
//! `WALK_STEPS=1000000 cargo test --release --lib -- random_walks:: --nocapture` runs this many steps; without the
//! variable the test takes a few seconds. A step is one action with all its consequences. `WALK_SEED=…` chooses other
//! walks, or repeats one that has failed. A walk that fails is reduced to the few actions that make it fail; these
//! become a test in `regressions.rs`.
//!
//! | File | Contents |
//! |---|---|
//! | `actions` | the actions of a walk |
//! | `invariants` | the checks after every step |
//! | `at_rest` | the checks at the end |
//! | `decorations` | the PodDecorations of a walk, and their checks |
//! | `print` | a short print of a world |

mod actions;
mod at_rest;
mod decorations;
mod invariants;
mod print;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::world::World;
use crate::domain::collaset::planner;
use actions::{WalkAction, apply_action};
use invariants::ensure;

/// Steps of a run without `WALK_STEPS`.
const STEPS: usize = 15_000;
/// Seed of a run without `WALK_SEED`. It is fixed, so that a failure comes from a change of the code and not from a new
/// seed.
const SEED: u64 = 1;
/// Rounds within which a set must come to rest.
const ROUNDS: usize = 400;

#[derive(Clone, Debug)]
struct Walk {
    replicas: i32,
    sequence: bool,
    pvc_templates: u8,
    acts: Vec<WalkAction>,
    /// Whether to print the world after each action.
    shown: bool,
}

impl Walk {
    fn draw(seed: u64) -> Walk {
        let mut rng = StdRng::seed_from_u64(seed);
        Walk {
            replicas: rng.random_range(0..5),
            sequence: rng.random_bool(0.4),
            pvc_templates: match rng.random_bool(0.5) {
                true => 0,
                false => rng.random_range(1..4),
            },
            acts: actions::draw_actions(&mut rng),
            shown: false,
        }
    }

    /// Runs the walk. The error names the check that failed and the action.
    fn run(&self) -> Result<(), String> {
        let mut at = None;
        let done = catch_unwind(AssertUnwindSafe(|| self.walk(&mut at)));
        let describe_place = || match at {
            Some(at) => format!("after act {at}, {:?}", self.acts[at]),
            None => "in the end".to_owned(),
        };
        match done {
            Ok(done) => done.map_err(|error| format!("{}: {error}", describe_place())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Err(format!("{}: {}", describe_place(), text.unwrap_or("panic")))
            }
        }
    }

    fn walk(&self, at: &mut Option<usize>) -> Result<(), String> {
        let spec = json!({
            "namingStrategy": actions::naming(self.sequence),
            "volumeClaimTemplates": actions::templates(self.pvc_templates),
        });
        let mut world = World::on_plane(self.replicas, spec);
        settle(&mut world)?;
        for (index, act) in self.acts.iter().enumerate() {
            *at = Some(index);
            match act {
                WalkAction::Step(most) => {
                    carry_out_plan(&mut world, *most)?;
                }
                WalkAction::Turn(mask) => {
                    world.run_pods(*mask);
                    world.recreate_set();
                }
                WalkAction::Settle => settle(&mut world)?,
                act => apply_action(&mut world, act),
            }
            if self.shown {
                print::print_cluster(&world, &format!("{index}: {act:?}"));
            }
            invariants::judge_cluster(&world)?;
        }
        *at = None;
        if world.set.metadata.deletion_timestamp.is_some() {
            at_rest::lift_obstacles(&mut world);
            settle(&mut world)?;
        }
        at_rest::lift_obstacles(&mut world);
        let settled = settle(&mut world);
        if self.shown {
            print::print_cluster(&world, "in the end");
        }
        settled.and_then(|()| at_rest::check_at_rest(&world))
    }

    /// Removes actions as long as the walk still fails in the same way.
    fn shrink(mut self) -> Walk {
        let mut size = self.acts.len().div_ceil(2);
        while size > 0 {
            let mut from = 0;
            while from < self.acts.len() {
                let mut less = self.clone();
                less.acts.drain(from..(from + size).min(less.acts.len()));
                match less.run() {
                    Err(_) => self = less,
                    Ok(()) => from += size,
                }
            }
            size /= 2;
        }
        self
    }
}

/// Plans and carries out the plan, up to `most` writes. Returns whether something was written.
fn carry_out_plan(world: &mut World, most: usize) -> Result<bool, String> {
    if world.is_deleted {
        world.recreate_set();
    }
    world.run_decorations();
    world.run_jobs();
    let plan = planner::plan_set(&world.observe());
    invariants::judge_plan(world, &plan).inspect_err(|violation| {
        print::print_cluster(world, violation);
        println!("{plan:#?}");
    })?;
    let before = (world.pods.clone(), world.pvcs.clone(), world.pool.clone());
    let done = world.apply_plan(plan, most);
    let useless = done.useless;
    ensure!(useless.is_empty(), "written for nothing: {useless:?}");
    invariants::judge_cluster(world)?;
    // A refusal that only changes the status does not count. The controller tries several refused writes again from
    // time to time, and the status names a different one each time.
    let has_refusals = !done.refused.is_empty()
        && before == (world.pods.clone(), world.pvcs.clone(), world.pool.clone());
    let decorated = world.run_decorations();
    let operated = world.run_jobs();
    Ok(decorated || operated || done.written > 0 && !has_refusals)
}

/// Continues until nothing changes any more, however long something has to wait.
fn settle(world: &mut World) -> Result<(), String> {
    let mut still = 0;
    for _ in 0..ROUNDS {
        let mut busy = false;
        for _ in 0..3 {
            busy = carry_out_plan(world, usize::MAX)?;
            if !busy {
                break;
            }
        }
        busy |= world.run_pods(u8::MAX);
        invariants::judge_cluster(world)?;
        world.recreate_set();
        still = if busy { 0 } else { still + 1 };
        if still > 3 {
            return invariants::judge_stuck(world);
        }
        if !busy {
            world.advance_time(30);
        }
    }
    let plan = planner::plan_set(&world.observe());
    Err(format!("never at rest: {plan:#?}"))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn random_actions_leave_nothing_lost_stuck_or_misreported() {
    let steps = variable("WALK_STEPS").map_or(STEPS, |steps| usize::try_from(steps).unwrap());
    let seed = variable("WALK_SEED").unwrap_or(SEED);
    println!("WALK_SEED={seed}");
    let (mut walked, mut walks) = (0, 0);
    while walked < steps {
        let of = seed.wrapping_add(walks);
        let walk = Walk::draw(of);
        (walked, walks) = (walked + walk.acts.len(), walks + 1);
        if let Err(first) = walk.run() {
            let mut least = walk.shrink();
            least.shown = true;
            let violation = least.run().unwrap_err();
            panic!("WALK_SEED={of} WALK_STEPS=1: {first}\ncut down to {least:#?}\n{violation}");
        }
    }
    println!("{walked} steps in {walks} walks without violation");
}
