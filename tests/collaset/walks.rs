//! Random walks: whatever is done to sets while the server's replicas die, once they are left alone they come to rest as
//! their specs say, and no rule was broken on the way.
//!
//! `WALK_SEED=…` repeats a walk's choices (each prints its own; with `WALKS=1` it walks alone), `WALKS=…` asks for more.

use std::time::Duration;

use futures::future::{join, join_all};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use operating::api::keys;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::at_rest::{Rest, no_id_was_shared, until_at_rest};
use crate::bed::observer::Observer;
use crate::bed::{Bed, wait};
use crate::claims::{template, volumes};
use crate::sets::{Set, label};

const STEPS: usize = 16;
const REPLICAS: i32 = 3;
const MAX_UNAVAILABLE: i32 = 1;

/// One thing that somebody does. Pods are told by their place among all of the set.
#[derive(Clone, Debug)]
enum Act {
    Scale(i32),
    Image(u8),
    /// With as many Pods kept as they are.
    Partition(i32),
    ByLabel,
    Policy(&'static str),
    Pause(bool),
    /// A Pod is deleted, fails for good, or gets a label.
    Kill(usize),
    Fail(usize),
    Label(usize, &'static str),
    TakeBack(usize),
}

fn draw(rng: &mut StdRng, fails: bool) -> Act {
    let pod = rng.random_range(0..6);
    match rng.random_range(0..100) {
        0..20 => Act::Scale(rng.random_range(REPLICAS..=5)),
        20..38 => Act::Image(rng.random_range(1..4)),
        38..46 => Act::Partition(rng.random_range(0..4)),
        46..49 => Act::ByLabel,
        49..57 => {
            let policies = ["Recreate", "InPlaceIfPossible", "Replace"];
            Act::Policy(policies.choose(rng).unwrap())
        }
        57..61 => Act::Pause(true),
        61..67 => Act::Pause(false),
        67..77 => Act::Kill(pod),
        77..82 => Act::Label(pod, keys::TO_DELETE),
        82..90 => Act::Label(pod, keys::TO_REPLACE),
        90..94 => Act::TakeBack(pod),
        94..96 => Act::Label(pod, keys::UPDATE_INCLUDED),
        _ if fails => Act::Fail(pod),
        _ => Act::Kill(pod),
    }
}

/// The part of the spec that an act edits.
fn edit(act: &Act) -> Option<Value> {
    let rolling = |rolling: Value| json!({ "updateStrategy": { "rollingUpdate": rolling } });
    match act {
        Act::Scale(replicas) => Some(json!({ "replicas": replicas })),
        Act::Image(n) => Some(image(&format!("app:{n}"))),
        Act::Partition(n) => Some(rolling(
            json!({ "byLabel": null, "byPartition": { "partition": n } }),
        )),
        Act::ByLabel => Some(rolling(json!({ "byLabel": {}, "byPartition": null }))),
        Act::Policy(policy) => Some(json!({ "updateStrategy": { "podUpgradePolicy": policy } })),
        Act::Pause(paused) => Some(json!({ "paused": paused })),
        _ => None,
    }
}

fn image(image: &str) -> Value {
    let app = json!({ "name": "app", "image": image, "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    json!({ "template": { "spec": { "containers": [app] } } })
}

/// Does it. An edit of the spec is repeated until it is taken; what is done to a Pod may be refused, or come too late.
async fn act_on(set: &Set<'_>, act: &Act) {
    if let Some(spec) = edit(act) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        wait::until(&format!("{act:?} to be taken"), async || {
            passed(
                set.api
                    .patch(set.name, &PatchParams::default(), &patch)
                    .await,
            )
        })
        .await;
        return;
    }
    let api = set.scope.pods();
    let pods = api.list(&ListParams::default()).await.unwrap().items;
    let (Act::Kill(pod) | Act::Fail(pod) | Act::Label(pod, _) | Act::TakeBack(pod)) = act else {
        return;
    };
    let Some(name) = pods.get(*pod).map(ResourceExt::name_any) else {
        return;
    };
    match act {
        Act::Kill(_) => passed(set.scope.delete(&name).await),
        Act::Fail(_) => {
            let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
            passed(
                api.patch_status(&name, &PatchParams::default(), &failed)
                    .await,
            )
        }
        Act::Label(_, key) => passed(set.scope.label(&name, json!({ *key: "1" })).await),
        _ => passed(
            set.scope
                .label(&name, json!({ keys::TO_REPLACE: null }))
                .await,
        ),
    };
}

/// Whether a request had its way. 404 and 409: the Pod has gone, or moved on. 429: a rule holds it. 500 and 504 is what the
/// API server makes of a webhook that is killed.
fn passed<T>(outcome: kube::Result<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if [404, 409, 429, 500, 504].contains(&status.code) => false,
        Err(other) => panic!("{other:?}"),
    }
}

/// One walk in a namespace of its own.
async fn walk(bed: &Bed, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (sequence, fails) = (rng.random_bool(0.4), rng.random_bool(0.5));
    let acts: Vec<_> = (0..STEPS)
        .map(|_| (draw(&mut rng, fails), rng.random_range(50..1500)))
        .collect();
    let scope = bed.scope("walk").await;
    println!(
        "WALK_SEED={seed} WALKS=1 in {}: sequence {sequence}, {acts:?}",
        scope.namespace
    );
    // Each step makes at most as many new IDs, and so claims, as there are Pods.
    volumes(&scope, 6 * STEPS + 20).await;
    scope
        .rule("web", json!({ "app": "web" }), json!(MAX_UNAVAILABLE))
        .await;
    let observer = Observer::start(&scope).await;
    let mut spec = template(&scope, "1Gi");
    let naming = if sequence {
        "PersistentSequence"
    } else {
        "Random"
    };
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": naming });
    let set = Set::unsettled(&scope, "web", REPLICAS, spec).await;
    until_at_rest(&set).await;
    for (act, pause) in &acts {
        act_on(&set, act).await;
        tokio::time::sleep(Duration::from_millis(*pause)).await;
    }
    act_on(&set, &Act::Pause(false)).await;
    let rest = until_at_rest(&set).await;
    assert_revisions(&set, &rest).await;
    no_id_was_shared(&observer).await;
    // Failures are nobody's decision. No act scales below the first number.
    let failed = acts.iter().filter(|(act, _)| matches!(act, Act::Fail(_)));
    let most = usize::try_from(MAX_UNAVAILABLE).unwrap() + failed.count();
    let first = usize::try_from(REPLICAS).unwrap();
    let fewest = observer.fewest_available(|_| true, first).await;
    fewest.at_least(first.saturating_sub(most));
}

/// As many Pods of older revisions as the strategy allows.
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
    let kept = rolling.by_partition.and_then(|p| p.partition).unwrap_or(0);
    assert!(
        old.count() <= usize::try_from(kept).unwrap(),
        "{kept} of {rest:#?}"
    );
}

/// Kills the leader and others without warning, and starts them again.
async fn kill_replicas(bed: &Bed, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(rng.random_range(2000..6000))).await;
        let victim = match round {
            1 => rng.random_range(0..3),
            _ => bed.leader().await,
        };
        bed.kill(victim).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        bed.restart(victim).await;
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_done_to_sets_while_replicas_die_they_come_to_rest() {
    let seed = variable("WALK_SEED").unwrap_or_else(rand::random);
    // Claims on the budget that a dead replica leaves behind lapse early.
    let bed = Bed::with_request_timeout(Duration::from_secs(20)).await;
    let walks = (0..variable("WALKS").unwrap_or(3)).map(|n| walk(&bed, seed.wrapping_add(n)));
    join(join_all(walks), kill_replicas(&bed, seed)).await;
    bed.assert_all_run().await;
}
