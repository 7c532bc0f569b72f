//! All kinds of operations at once while replicas are killed: no rule is broken.

use std::time::Duration;

use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch};
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::{may_operate, names};
use testbed::scope::claims;
use testbed::{Bed, Scope, wait};

const HALF: usize = 50;
const OPERATIONS: usize = 200;
/// How often each action is tried.
const ATTEMPTS: usize = 8;
/// Fewest replicas that the storm scales the left half to.
const SMALLEST: usize = 47;

/// One action of a user.
#[derive(Debug)]
enum Action {
    Delete,
    DeleteCollection,
    Evict,
    Operate,
    InPlace(u32),
    DropControl,
    LeaveWorkload,
    LeaveRule,
    Scale(usize),
}

fn draw(rng: &mut StdRng) -> Action {
    match rng.random_range(0..100) {
        0..25 => Action::Delete,
        25..27 => Action::DeleteCollection,
        27..50 => Action::Evict,
        50..70 => Action::Operate,
        70..82 => Action::InPlace(rng.random_range(2..5)),
        82..86 => Action::DropControl,
        86..90 => Action::LeaveWorkload,
        90..94 => Action::LeaveRule,
        _ => Action::Scale(rng.random_range(SMALLEST..HALF + 4)),
    }
}

/// Performs the action on a Pod, with retries after a refusal, as controllers and `kubectl drain` do. The storm expects
/// refusals and absent Pods.
async fn act(scope: &Scope, pod: &str, action: &Action, id: usize, pause: Duration) {
    for _ in 0..ATTEMPTS {
        match act_once(scope, pod, action, id).await {
            // The API server answers 500 if the webhook was killed, and 504 if the request took too long.
            Err(kube::Error::Api(status)) if [409, 429, 500, 504].contains(&status.code) => {
                tokio::time::sleep(pause).await
            }
            Err(kube::Error::Api(status)) if [403, 404].contains(&status.code) => return,
            Err(kube::Error::Api(status)) => panic!("{action:?} of {pod}: {status:?}"),
            _ => return,
        }
    }
}

async fn act_once(scope: &Scope, pod: &str, action: &Action, id: usize) -> kube::Result<()> {
    match action {
        Action::Delete => scope.delete(pod).await,
        Action::DeleteCollection => {
            let all = ListParams::default().labels("app=right");
            scope
                .pods()
                .delete_collection(&DeleteParams::default(), &all)
                .await
                .map(drop)
        }
        Action::Evict => scope.evict(pod).await,
        Action::Operate => operate(scope, pod, &format!("op-{id}")).await,
        Action::InPlace(version) => {
            let image = json!({"spec": {"containers": [{"name": "main", "image": format!("web:{version}")}]}});
            scope
                .pods()
                .patch(pod, &Default::default(), &Patch::Strategic(image))
                .await
                .map(drop)
        }
        Action::DropControl => scope
            .label(pod, json!({keys::CONTROL: null}))
            .await
            .map(drop),
        Action::LeaveWorkload => scope.label(pod, json!({"app": "away"})).await.map(drop),
        Action::LeaveRule => scope.label(pod, json!({"site": null})).await.map(drop),
        Action::Scale(replicas) => scope.scale("left", *replicas).await,
    }
}

/// A whole lifecycle, as far as the Pod lives long enough.
async fn operate(scope: &Scope, pod: &str, id: &str) -> kube::Result<()> {
    let uid = scope.begin(pod, id).await?.metadata.uid;
    wait::until(&format!("{pod} to operate or to go"), async || match scope
        .pods()
        .get_opt(pod)
        .await
    {
        Ok(Some(p)) if p.metadata.uid == uid => {
            may_operate(&p, id) || p.labels().get(keys::CONTROL).is_none()
        }
        Ok(_) => true,
        Err(_) => false,
    })
    .await;
    while let Err(kube::Error::Api(status)) = scope.finish(pod, id).await {
        match status.code {
            404 => break,
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    Ok(())
}

/// Kills the leader and others without warning, and starts them again.
async fn kill_replicas(bed: &Bed) {
    for round in 0..4 {
        let victim = if round % 2 == 0 {
            bed.leader().await
        } else {
            round % 3
        };
        bed.kill(victim).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        bed.restart(victim).await;
    }
}

fn carries(pod: &Pod, key: &str, value: &str) -> bool {
    pod.labels().get(key).is_some_and(|v| v == value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_operations_break_no_rule_while_replicas_die() {
    let seed = std::env::var("STORM_SEED")
        .ok()
        .map_or_else(rand::random, |s| s.parse().unwrap());
    println!("STORM_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let bed = Bed::own().await;
    let scope = bed.scope("storm").await;
    for half in ["left", "right"] {
        scope
            .deploy(half, HALF, json!({"metadata": {"labels": {"site": "web"}}}))
            .await;
    }
    let pods = names(&scope.all_available("site=web", 2 * HALF).await);
    scope
        .rule("all", json!({"site": "web"}), json!("15%"))
        .await;
    scope.rule("right", json!({"app": "right"}), json!(4)).await;
    scope.until_at_rest("all", 100).await;
    scope.until_at_rest("right", 50).await;

    let observer = Observer::start(&scope).await;
    let drawn: Vec<_> = (0..OPERATIONS)
        .map(|id| {
            (
                id,
                draw(&mut rng),
                rng.random_range(0..pods.len()),
                rng.random_range(100..2000),
            )
        })
        .collect();
    let storm = drawn.iter().map(|(id, action, pod, pause)| {
        // Lifecycles and in-place changes use different Pods: if a Pod comes back on traffic before its kubelet has
        // applied an image that was set during the operation, its operator has made a mistake, and the rule is not at
        // fault.
        let pod = match action {
            Action::Operate => *pod & !1,
            Action::InPlace(_) => *pod | 1,
            _ => *pod,
        };
        act(
            &scope,
            &pods[pod],
            action,
            *id,
            Duration::from_millis(*pause),
        )
    });
    join(join_all(storm), kill_replicas(&bed)).await;

    until_healed(&scope).await;
    assert_limits_were_kept(&observer).await;
}

/// Waits until both rules are at rest. A Pod that left its rule or lost the label of managed Pods counts as missing
/// until it is deleted.
async fn until_healed(scope: &Scope) {
    scope.scale("left", HALF).await.unwrap();
    wait::until("the Pods that left to be deleted", async || {
        let selectors = [format!("{}!=true", keys::CONTROL), "site!=web".to_owned()];
        let mut none = true;
        for selector in &selectors {
            for pod in scope.list(selector).await {
                none = false;
                let _ = scope.delete(&pod.name_any()).await;
            }
        }
        none
    })
    .await;
    scope
        .until_status("right", "fifty available, no claim", |s: &RuleStatus| {
            s.available_pods == 50 && claims(s) == 0
        })
        .await;
    scope
        .until_status("all", "all available, no claim", |s: &RuleStatus| {
            s.available_pods == s.expected_pods && claims(s) == 0 && s.waiting_pods == 0
        })
        .await;
}

/// Fails if a rule ever had fewer available Pods than it allows.
async fn assert_limits_were_kept(observer: &Observer) {
    // The storm changes the replicas, which changes the limit of the first rule. The test compares with the smallest
    // limit.
    let fewest_expected = SMALLEST + HALF;
    let limit = (fewest_expected * 15).div_ceil(100);
    let managed = |p: &Pod| carries(p, keys::CONTROL, keys::CONTROL_VALUE);
    let all = observer
        .fewest_available(|p| managed(p) && carries(p, "site", "web"), 2 * HALF)
        .await;
    all.at_least(fewest_expected - limit);
    let right = observer
        .fewest_available(|p| managed(p) && carries(p, "app", "right"), HALF)
        .await;
    right.at_least(HALF - 4);
    println!(
        "fewest available: {} of rule all, {} of rule right",
        all.count, right.count
    );
}
