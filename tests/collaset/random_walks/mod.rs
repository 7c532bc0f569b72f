//! Random walks: random actions and refused writes hit sets while the server's replicas die. Nothing may be lost or
//! reported wrongly at any moment, and sets that are left alone must settle as their specs say.
//!
//! `WALK_SEED`, `WALKS` and `WALK_MINUTES` choose the walks: see [`testbed::walks::Walks`].
//!
//! | File | Content |
//! |---|---|
//! | `acts` | the actions |
//! | `world` | how actions are carried out, and how all faults end |
//! | `requests` | which failures of requests are expected |
//! | `rewriting` | a policy that rewrites images |
//! | `decorations` | what users do with PodDecorations |
//! | `decorations_at_rest` | the checks of PodDecorations at the end |
//! | `jobs` | what users do with OperationJobs, and how all end |
//! | `judge` | the invariants that hold at every moment |

mod acts;
mod decorations;
mod decorations_at_rest;
mod jobs;
mod judge;
mod requests;
mod rewriting;
mod world;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
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
use decorations_at_rest::until_decorated;
use judge::{History, judge};
use requests::passed;
use testbed::observer::Observer;
use testbed::scope::availability;
use testbed::walks::Walks;
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
    /// Whether users create, edit and delete PodDecorations.
    decorated: bool,
    /// Whether users create and delete OperationJobs.
    jobs: bool,
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
        decorated: rng.random_bool(0.7),
        jobs: rng.random_bool(0.7),
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
        passed(scope.try_rule("web", rule.clone()).await)
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
        jobs::until_ended(&scope).await;
        until_at_rest(&world.set).await;
        until_decorated(&world.set).await;
        // The set may have seemed to be at rest before its controller saw the last edit of a PodDecoration.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_to_sets_settle_while_replicas_die() {
    let walks = Walks {
        places: 3,
        kills: 3,
        pause: |_, kill| match kill {
            0..3 => 2_000..6_000,
            _ => 20_000..60_000,
        },
    };
    let acts: usize = walks.run(walk).await.into_iter().sum();
    println!("{acts} acts");
}
