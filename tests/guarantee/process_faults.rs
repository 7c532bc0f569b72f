//! Faults of a running replica: its rights are removed, it is stopped, or it has no file descriptors left. It continues
//! as far as it can, the other replicas continue too, and no rule is broken.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, PostParams};
use rustix::process::{Resource, Rlimit, Signal, prlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use testbed::bed::STALLED;
use testbed::fleet::HOME;
use testbed::observer::Observer;
use testbed::pods::{at_once, names};
use testbed::proxy::{Effect, Fault};
use testbed::{Bed, Scope, wait};

/// Name of the server's roles.
const ROLE: &str = "operating";

async fn web(bed: &Bed) -> Scope {
    let scope = bed.scope("outside").await;
    scope.web_under_rule(6, json!(2)).await;
    scope
}

async fn until_evicted(scope: &Scope) {
    wait::until("an eviction to pass", async || {
        let pods = names(&scope.list("app=web").await);
        at_once(&pods, async |pod| scope.evict(&pod).await)
            .await
            .iter()
            .any(Result::is_ok)
    })
    .await;
}

async fn until_logged(bed: &Bed, index: usize, text: &str) {
    let description = format!("{text:?} in the log of replica {index}");
    wait::until(&description, async || bed.log_of(index).contains(text)).await;
}

async fn until_ready(bed: &Bed, index: usize) {
    wait::until("readiness", async || {
        let answer = bed.get(index, "/readyz").await;
        answer.is_some_and(|(code, _)| code == 200)
    })
    .await;
}

async fn until_leaders(bed: &Bed, count: usize) {
    wait::until(&format!("{count} leaders"), async || {
        let leaders = bed.metric("operating_leader").await;
        leaders.iter().filter(|leads| **leads == 1.0).count() == count
    })
    .await;
}

/// Deletes all Pods at once, and waits until they are available again.
async fn disrupt(scope: &Scope) {
    let pods = names(&scope.all_available("app=web", 6).await);
    scope.until_at_rest("web", 6).await;
    at_once(&pods, async |pod| scope.delete(&pod).await).await;
    until_evicted(scope).await;
    scope.all_available("app=web", 6).await;
    scope.until_at_rest("web", 6).await;
}

fn concern(rule: &PolicyRule, resource: &str) -> bool {
    let mut resources = rule.resources.iter().flatten();
    resources.any(|r| r == resource)
}

/// Puts the server's role in place of the stored one.
async fn store<R>(roles: &Api<R>, role: &R) -> R
where
    R: Clone + Debug + DeserializeOwned + Serialize,
{
    let stored = roles.replace(ROLE, &PostParams::default(), role).await;
    stored.unwrap()
}

#[tokio::test]
async fn budget_is_exact_without_a_leader() {
    let bed = Bed::own().await;
    let scope = bed.scope("lease").await;
    scope.deploy_where_open("web", 5).await;
    let pods = names(&scope.all_available("app=web", 5).await);
    scope.rule("web", json!({"app": "web"}), json!(2)).await;
    scope.until_at_rest("web", 5).await;
    scope.close_nodes().await;
    until_leaders(&bed, 1).await;

    let roles: Api<Role> = Api::namespaced(bed.admin(), HOME);
    let mut role = roles.get(ROLE).await.unwrap();
    let rights = role.rules.clone();
    role.rules
        .get_or_insert_default()
        .retain(|rule| !concern(rule, "leases"));
    role = store(&roles, &role).await;
    until_leaders(&bed, 0).await;
    let outcomes = at_once(&pods, async |pod| scope.delete(&pod).await).await;
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 2);
    bed.assert_all_run().await;

    role.rules = rights;
    store(&roles, &role).await;
    until_leaders(&bed, 1).await;
    scope.open_nodes().await;
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
}

#[tokio::test]
async fn replicas_without_pod_watch_right_break_no_rule() {
    let bed = Bed::own().await;
    let scope = web(&bed).await;
    let roles: Api<ClusterRole> = Api::all(bed.admin());
    let mut role = roles.get(ROLE).await.unwrap();
    let rights = role.rules.clone();
    for rule in role.rules.iter_mut().flatten() {
        if concern(rule, "pods") {
            rule.verbs.retain(|verb| verb == "patch");
        }
    }
    role = store(&roles, &role).await;
    // The API server checks rights when a watch begins.
    bed.stop_apiserver().await.unwrap();
    bed.start_apiserver().await.unwrap();
    let observer = Observer::start(&scope).await;
    for index in 0..3 {
        let denied = "list failed; trying again path=\"/api/v1/pods\"";
        until_logged(&bed, index, denied).await;
    }
    let pods = names(&scope.list("app=web").await);
    for _ in 0..3 {
        at_once(&pods, async |pod| scope.delete(&pod).await).await;
    }
    bed.assert_all_run().await;

    role.rules = rights;
    store(&roles, &role).await;
    until_evicted(&scope).await;
    disrupt(&scope).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
    bed.assert_all_run().await;
}

#[tokio::test]
async fn stalled_leader_is_replaced_and_stays_follower() {
    let bed = Bed::own().await;
    let scope = web(&bed).await;
    let observer = Observer::start(&scope).await;
    let frozen = bed.leader().await;
    bed.signal(frozen, Signal::STOP).await;
    wait::until("another leader", async || bed.leader().await != frozen).await;
    disrupt(&scope).await;
    bed.signal(frozen, Signal::CONT).await;
    until_ready(&bed, frozen).await;
    until_leaders(&bed, 1).await;
    assert_ne!(bed.leader().await, frozen);
    disrupt(&scope).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
    bed.assert_all_run().await;
}

#[tokio::test]
async fn replica_without_file_descriptors_answers_again_once_it_has_some() {
    const FEW: u64 = 16;
    let bed = Bed::own().await;
    let scope = web(&bed).await;
    let observer = Observer::start(&scope).await;
    let process = Some(bed.process(0).await);
    let few = |usual: &Rlimit| Rlimit {
        current: Some(FEW),
        maximum: usual.maximum,
    };
    // The process keeps the descriptors that it has. Only a new descriptor must be below the limit.
    let usual = rustix::process::getrlimit(Resource::Nofile);
    let usual = prlimit(process, Resource::Nofile, few(&usual)).unwrap();
    wait::until("no answer", async || bed.get(0, "/livez").await.is_none()).await;
    until_logged(&bed, 0, "accept failed").await;
    until_evicted(&scope).await;
    bed.assert_all_run().await;
    prlimit(process, Resource::Nofile, usual).unwrap();
    until_ready(&bed, 0).await;
    disrupt(&scope).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
    bed.assert_all_run().await;
}

#[tokio::test]
#[ignore = "takes six minutes: a watch counts as silent after five minutes without a bookmark"]
async fn silent_watches_are_reported_and_end_no_process() {
    let bed = Bed::with_faults_on_one().await;
    let until_logged = async |text: &str| {
        let since = Instant::now();
        while !bed.log_of(STALLED).contains(text) {
            assert!(since.elapsed() < Duration::from_secs(900), "{text}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    bed.faults().set(Fault::new(Effect::Freeze));
    until_logged(
        "has stalled probe=\"watch-silent\" why=\"no event or bookmark came from the watch of",
    )
    .await;
    let (code, text) = bed.get(STALLED, "/livez").await.unwrap();
    assert_eq!(code, 200, "a restart would not help: {text}");
    let scraped = bed.get(STALLED, "/metrics").await.unwrap().1;
    assert!(scraped.contains("operating_stalled{probe=\"watch-silent\"} 1"));
    bed.faults().end_fault();
    until_logged("has recovered probe=\"watch-silent\"").await;
    bed.assert_all_run().await;
}
