//! Random walks: random actions and refused writes hit sets while the server's replicas die. Nothing may be lost or
//! reported wrongly at any moment, and sets that are left alone must settle as their specs say.
//!
//! `WALK_SEED=…` repeats the choices of a walk (each walk prints its seed; `WALKS=1` runs the walk alone). `WALKS=…`
//! sets the number of concurrent walks. With `WALK_MINUTES=30` each of them is followed by further walks until the time
//! is over.
//!
//! | File | Content |
//! |---|---|
//! | `acts` | the actions |
//! | `world` | how actions are carried out, and how all faults end |
//! | `rewriting` | a policy that rewrites images |
//! | `judge` | the invariants that hold at every moment |

mod acts;
mod judge;
mod rewriting;
mod world;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use operating::api::collaset::CollaSet;
use operating::api::keys;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::fixtures::{Set, label};
use crate::invariants::{Rest, until_at_rest};
use crate::pvcs::{template, volumes};
use acts::{Act, REPLICAS, draw};
use judge::{History, judge};
use testbed::observer::Observer;
use testbed::scope::availability;
use testbed::{Bed, wait};
use world::World;

const STEPS: usize = 16;

/// The parameters of a walk.
#[derive(Clone, Debug)]
pub struct Manner {
    sequence: bool,
    fails: bool,
    /// Whether the walk also has faults and writes of others, besides edits and deaths.
    troubled: bool,
    /// Whether the set's `maxUnavailable` always amounts to 1. The limit of the rule is then higher.
    paced: bool,
    /// Whether the set's `maxSurge` always amounts to 1, and no user asks for a replacement.
    surge: bool,
    /// The rule's `maxUnavailable`.
    rule: i32,
    edits_ids: bool,
}

fn choose(seed: u64) -> (Manner, Vec<(Act, u64)>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (sequence, fails) = (rng.random_bool(0.4), rng.random_bool(0.5));
    let paced = rng.random_bool(0.3);
    let mut manner = Manner {
        sequence,
        fails,
        troubled: rng.random_bool(0.8),
        paced,
        surge: rng.random_bool(0.3),
        rule: if paced { REPLICAS } else { 1 },
        edits_ids: false,
    };
    let acts: Vec<_> = (0..STEPS)
        .map(|_| (draw(&mut rng, &manner), rng.random_range(50..1500)))
        .collect();
    let edits = |act: &Act| matches!(act, Act::Label(_, keys::INSTANCE_ID, _));
    manner.edits_ids = acts.iter().any(|(act, _)| edits(act));
    (manner, acts)
}

/// One walk in a namespace of its own. Returns how many actions succeeded.
async fn walk(bed: &Bed, seed: u64) -> usize {
    let (manner, acts) = choose(seed);
    let scope = bed.scope("walk").await;
    println!(
        "WALK_SEED={seed} WALKS=1 in {}: {manner:?}, {acts:?}",
        scope.namespace
    );
    // Each step creates at most as many new IDs, and therefore PVCs, as there are Pods.
    volumes(&scope, 6 * STEPS + 20).await;
    // Another walk may just have killed the replica that reviews the request.
    let rule = availability(json!({ "app": "web" }), json!(manner.rule));
    wait::until("the rule to be stored", async || {
        world::passed(scope.try_rule("web", rule.clone()).await)
    })
    .await;
    let pods = Observer::start(&scope).await;
    let volumes = Observer::<PersistentVolumeClaim>::follow(&scope).await;
    let sets = Observer::<CollaSet>::follow(&scope).await;
    let mut spec = template(&scope, "1Gi");
    let naming = if manner.sequence {
        "PersistentSequence"
    } else {
        "Random"
    };
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": naming });
    if manner.paced {
        spec["updateStrategy"]["maxUnavailable"] = json!(1);
    }
    if manner.surge {
        spec["updateStrategy"]["maxSurge"] = json!(1);
        spec["updateStrategy"]["podUpgradePolicy"] = json!("Replace");
    }
    let set = Set::unsettled(&scope, "web", REPLICAS, spec).await;
    until_at_rest(&set).await;
    let mut world = World::new(set);
    let ending = async {
        for (act, pause) in &acts {
            world.act(act).await;
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
        world.lift().await;
        let rest = until_at_rest(&world.set).await;
        assert_revisions(&world.set, &rest).await;
    };
    // The invariants of each moment are judged even if a set has not settled.
    let ending = AssertUnwindSafe(ending).catch_unwind().await;
    if ending.is_err() {
        println!(
            "WALK_SEED={seed} does not come to rest:\n{}",
            world.describe().await
        );
    }
    let history = History {
        pods: pods.history().await,
        pvcs: volumes.history().await,
        sets: sets.history().await,
    };
    judge(&history, &manner, &world.excuses, &world.deleted);
    if let Err(panic) = ending {
        std::panic::resume_unwind(panic);
    }
    world.done
}

/// The number of Pods on older revisions that the strategy allows.
async fn assert_revisions(set: &Set<'_>, rest: &Rest) {
    let object = set.get().await;
    let updated = object.status.unwrap_or_default().updated_revision;
    let rolling = object.spec.update_strategy.and_then(|u| u.rolling_update);
    let rolling = rolling.unwrap_or_default();
    if rolling.by_label.is_some() {
        for pod in set.pods().await.values() {
            let included = label(pod, keys::UPDATE_INCLUDED).is_some();
            assert!(
                !included || label(pod, keys::REVISION) == Some(&updated),
                "{pod:?}"
            );
        }
        return;
    }
    let old = rest
        .pods
        .values()
        .filter(|(_, revision)| *revision != updated);
    let partition = rolling.by_partition.and_then(|p| p.partition).unwrap_or(0);
    assert!(
        old.count() <= usize::try_from(partition).unwrap(),
        "{partition} of {rest:#?}"
    );
}

/// Kills the leader and other replicas without warning, and starts them again: every few seconds at first, then less
/// often, at least three times, and until `over`.
async fn kill_replicas(bed: &Bed, seed: u64, over: impl Fn() -> bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut round = 0;
    while round < 3 || !over() {
        let pause = match round {
            0..3 => rng.random_range(2000..6000),
            _ => rng.random_range(20_000..60_000),
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let victim = match round % 3 {
            1 => rng.random_range(0..3),
            _ => bed.leader().await,
        };
        bed.kill(victim).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        bed.restart(victim).await;
        round += 1;
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_to_sets_settle_while_replicas_die() {
    let seed = variable("WALK_SEED").unwrap_or_else(rand::random);
    let places = variable("WALKS").unwrap_or(3);
    let (begun, minutes) = (Instant::now(), variable("WALK_MINUTES").unwrap_or(0));
    let over = || begun.elapsed() >= Duration::from_secs(60 * minutes);
    // Claims of a dead replica lapse early.
    let bed = Bed::with_request_timeout(Duration::from_secs(20)).await;
    let (next, walks, acts) = (
        AtomicU64::new(seed),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let bad = parking_lot::Mutex::new(Vec::new());
    let place = async || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match AssertUnwindSafe(walk(&bed, seed)).catch_unwind().await {
                Ok(done) => {
                    walks.fetch_add(1, Ordering::Relaxed);
                    acts.fetch_add(done, Ordering::Relaxed);
                }
                Err(_) => {
                    println!("VIOLATION in the walk WALK_SEED={seed} WALKS=1");
                    bad.lock().push(seed);
                }
            }
            if over() {
                return;
            }
        }
    };
    let places = (0..places).map(|_| place());
    join(join_all(places), kill_replicas(&bed, seed, over)).await;
    bed.assert_all_run().await;
    println!(
        "from WALK_SEED={seed}: {} walks with {} acts without violation",
        walks.load(Ordering::Relaxed),
        acts.load(Ordering::Relaxed)
    );
    let bad = bad.into_inner();
    assert!(bad.is_empty(), "violations in the walks of seeds {bad:?}");
}
