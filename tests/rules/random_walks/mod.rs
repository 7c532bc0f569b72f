//! Random walks: rules change and endpoints answer at random while the server's replicas die. No operation may continue
//! without the approval of every endpoint that it waits for, and at the end no operation may wait forever.
//!
//! `WALK_SEED=…` repeats the choices of a walk (each walk prints its seed; `WALKS=1` runs the walk alone). `WALKS=…`
//! sets the number of concurrent walks. With `WALK_MINUTES=30` each of them is followed by further walks until the time
//! is over.
//!
//! | File | Content |
//! |---|---|
//! | `acts` | the actions |
//! | `world` | how actions are carried out, and how all faults end |
//! | `endpoints` | endpoints that lie, are slow, die and come back |
//! | `history` | the record of a walk |
//! | `judge` | the invariants that hold at every moment |
//! | `control` | histories that the judge must reject |

mod acts;
mod control;
mod endpoints;
mod history;
mod judge;
mod world;

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::podtransitionrule::PodTransitionRule;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use acts::{Act, Draft, OBJECTS, drafts, draw};
use endpoints::Endpoint;
use history::{History, ObjectVersion, PodVersion};
use judge::judge;
use testbed::endpoint::now;
use testbed::observer::{Change, Observer};
use testbed::{Bed, wait};
use world::World;

const STEPS: usize = 40;

/// The parameters of a walk.
struct Plan {
    pods: usize,
    endpoints: usize,
    objects: Vec<Vec<Draft>>,
    /// The actions, each with the pause after it in milliseconds.
    acts: Vec<(Act, u64)>,
}

fn choose(seed: u64) -> Plan {
    let mut rng = StdRng::seed_from_u64(seed);
    let (pods, endpoints) = (rng.random_range(4..=8), rng.random_range(2..=3));
    let objects = rng.random_range(1..=OBJECTS);
    Plan {
        pods,
        endpoints,
        objects: (0..objects).map(|_| drafts(&mut rng, endpoints)).collect(),
        acts: (0..STEPS)
            .map(|_| (draw(&mut rng, pods, endpoints), rng.random_range(20..500)))
            .collect(),
    }
}

/// The outcome of walks.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    walks: usize,
    acts: usize,
    grants: usize,
    judged: usize,
}

/// One walk in a namespace of its own.
async fn walk(bed: &Bed, seed: u64) -> Sum {
    let plan = choose(seed);
    let scope = bed.scope("rule-walk").await;
    println!("WALK_SEED={seed} WALKS=1 in {}", scope.namespace);
    let names: Vec<_> = (0..plan.pods).map(|n| format!("p{n}")).collect();
    let endpoints = (0..plan.endpoints).map(|n| {
        let seed = seed.wrapping_add(u64::try_from(n).unwrap());
        Endpoint::start(seed, names.clone())
    });
    let endpoints = join_all(endpoints).await;
    let pods = Observer::start(&scope).await;
    let objects = Observer::<PodTransitionRule>::follow(&scope).await;
    let mut world = World::new(scope, endpoints, names);
    join_all((0..plan.pods).map(|index| world.make(index))).await;
    world.scope.all_available("app=web", plan.pods).await;
    for (object, drafts) in plan.objects.iter().enumerate() {
        wait::until("a rule", async || world.rule(object, drafts).await).await;
    }
    // Edits before this moment do not excuse operations that begin later.
    tokio::time::sleep(Duration::from_nanos(history::BEFORE)).await;
    let walking = async {
        for (act, pause) in &plan.acts {
            world.act(act).await;
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
        world.lift().await;
        world.until_idle().await
    };
    // The invariants of each moment are judged even if the walk does not complete.
    let ended = AssertUnwindSafe(walking).catch_unwind().await;
    let history = history_of(&world, pods.history().await, objects.history().await);
    let verdict = judge(&history);
    for (grant, violation) in &verdict.violations {
        let (from, until) = (grant.since - 8_000_000_000, grant.until + 1_000_000_000);
        let story = history.story(&grant.pod, from, until);
        let (id, uid) = (&grant.id, &grant.uid);
        println!(
            "WALK_SEED={seed}: VIOLATION by {id} of Pod {uid}: {violation}: {grant:?}\n{story}"
        );
    }
    let stuck = ended.unwrap_or_else(|panic| {
        println!("WALK_SEED={seed} ends in the middle: {:#?}", world.acts);
        std::panic::resume_unwind(panic)
    });
    for pod in &stuck {
        let story = history.story(&pod.name_any(), now() - 240_000_000_000, now());
        println!(
            "WALK_SEED={seed}: {} WAITS FOR EVER\n{story}",
            pod.name_any()
        );
        let rules = world.scope.rules().list(&Default::default()).await.unwrap();
        for rule in rules {
            println!("{}: {}", rule.name_any(), rule.data["status"]);
        }
    }
    assert!(stuck.is_empty() && verdict.violations.is_empty());
    Sum {
        walks: 1,
        acts: world.done,
        grants: verdict.grants,
        judged: verdict.judged,
    }
}

fn history_of(
    world: &World,
    pods: Vec<Change<Pod>>,
    objects: Vec<Change<PodTransitionRule>>,
) -> History {
    let (moment, nanos) = (Instant::now(), now());
    let at = |at: Instant| nanos - u64::try_from((moment - at).as_nanos()).unwrap();
    let mut names = std::collections::BTreeMap::new();
    let pods = pods.into_iter().map(|change| {
        if let Some(pod) = &change.object {
            names.insert(change.uid.clone(), pod.name_any());
        }
        PodVersion {
            name: names[&change.uid].clone(),
            labels: change.object.as_ref().map(|pod| pod.labels().clone()),
            at: at(change.at),
            uid: change.uid,
        }
    });
    let objects = objects.into_iter().map(|change| {
        let object = change
            .object
            .as_deref()
            .filter(|o| o.metadata.deletion_timestamp.is_none());
        ObjectVersion {
            name: object.map(ResourceExt::name_any).unwrap_or_default(),
            rules: object.map(|o| o.spec.rules.iter().map(|rule| json!(rule)).collect()),
            at: at(change.at),
            uid: change.uid,
        }
    });
    let turned_away = world.endpoints.iter().flat_map(|endpoint| {
        let times = endpoint.server.turned_away().into_iter();
        times.map(|at| (endpoint.host(), at))
    });
    History {
        pods: pods.collect(),
        objects: objects.collect(),
        calls: world.endpoints.iter().flat_map(Endpoint::calls).collect(),
        turned_away: turned_away.collect(),
        undone: world.undone.clone(),
        acts: world.acts.clone(),
    }
}

/// Kills the leader and other replicas without warning, and starts them again, until `over` and at least once. The seed
/// decides whether this happens every few seconds, or so rarely that no later leader corrects what an earlier leader
/// forgot.
async fn kill_replicas(bed: &Bed, seed: u64, over: impl Fn() -> bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut round, calm) = (0, rng.random_bool(0.5));
    while round < 1 || !over() {
        let pause = match round {
            0 => rng.random_range(3000..6000),
            _ if calm => rng.random_range(100_000..250_000),
            _ => rng.random_range(6_000..25_000),
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
async fn no_pod_operates_unapproved_or_waits_forever() {
    let seed = variable("WALK_SEED").unwrap_or_else(rand::random);
    let places = variable("WALKS").unwrap_or(2);
    let (begun, minutes) = (Instant::now(), variable("WALK_MINUTES").unwrap_or(0));
    let over = || begun.elapsed() >= Duration::from_secs(60 * minutes);
    // Claims of a dead replica lapse early.
    let bed = Bed::with_request_timeout(Duration::from_secs(20)).await;
    let (next, sums) = (Mutex::new(seed), Mutex::new(Vec::new()));
    let bad = Mutex::new(Vec::new());
    let place = async || {
        loop {
            let seed = {
                let mut next = next.lock();
                let seed = *next;
                *next = next.wrapping_add(1);
                seed
            };
            match AssertUnwindSafe(walk(&bed, seed)).catch_unwind().await {
                Ok(sum) => sums.lock().push(sum),
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
    let sum = sums
        .into_inner()
        .into_iter()
        .fold(Sum::default(), |sum, walk| Sum {
            walks: sum.walks + walk.walks,
            acts: sum.acts + walk.acts,
            grants: sum.grants + walk.grants,
            judged: sum.judged + walk.judged,
        });
    println!("from WALK_SEED={seed}, without violation: {sum:?}");
    let bad = bad.into_inner();
    assert!(bad.is_empty(), "violations in the walks of seeds {bad:?}");
}
