//! Random walks: rules change and endpoints answer at random while the server's replicas die. No operation may continue
//! without the approval of every endpoint that it waits for, and at the end no operation may wait forever.
//!
//! `WALK_SEED`, `WALKS` and `WALK_MINUTES` choose the walks: see [`testbed::walks::Walks`].
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

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::podtransitionrule::PodTransitionRule;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use acts::{Act, Draft, OBJECTS, drafts, draw};
use endpoints::Endpoint;
use history::{History, ObjectVersion, PodVersion};
use judge::judge;
use testbed::endpoint::now;
use testbed::observer::{Change, Observer};
use testbed::walks::Walks;
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

/// What came of a walk.
struct Sum {
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

/// Replicas die every few seconds, or, by the seed, so rarely that what a leader forgets to do is not made up for by
/// the next leader.
fn pause_before_kill(seed: u64, kill: usize) -> Range<u64> {
    let is_calm = seed.is_multiple_of(2);
    match kill {
        0 => 3_000..6_000,
        _ if is_calm => 100_000..250_000,
        _ => 6_000..25_000,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pod_operates_unapproved_or_waits_forever() {
    let walks = Walks {
        places: 2,
        kills: 1,
        pause: pause_before_kill,
    };
    let (mut acts, mut grants, mut judged) = (0, 0, 0);
    for sum in walks.run(walk).await {
        acts += sum.acts;
        grants += sum.grants;
        judged += sum.judged;
    }
    println!("{acts} acts, {grants} grants, {judged} judged");
}
