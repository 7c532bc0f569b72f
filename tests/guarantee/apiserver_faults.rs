//! An API server that is slow or frozen, or that answers the replicas with errors: requests that need a claim are held
//! with the reason, other requests pass, and everything recovers by itself.

use std::time::Duration;

use http::{Method, StatusCode};
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{at_once, is_available, may_operate, names};
use testbed::proxy::{Asked, Effect, Fault};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::in_place::set_image;

/// Request timeout of the API server; a claim lapses 15 s after it.
const USUAL: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(10);
const ID: &str = "upgrade";

/// Matches writes of claims, and not writes of the counts in the status.
fn ledger_writes(asked: &Asked) -> bool {
    let path = asked.uri.path();
    asked.method == Method::PATCH
        && path.contains("/podtransitionrules/")
        && path.ends_with("/status")
        && String::from_utf8_lossy(&asked.body).contains("\"ledger\"")
}

/// Available Pods of a Deployment `web` under a rule `web`.
async fn web(bed: &Bed, replicas: usize, max_unavailable: Value) -> Scope {
    let scope = bed.scope("faults").await;
    scope.web_under_rule(replicas, max_unavailable).await;
    scope
}

/// Creates two Pods beside the Deployment that may be deleted without a claim: `plain` is not managed. `down` is not
/// available, and already holds a claim for an image change that the kubelet can't complete.
async fn make_free_pods(scope: &Scope) {
    let plain = json!({"metadata": {"labels": {"app": "web", keys::CONTROL: null}}});
    scope.pod("plain", plain).await;
    let web = json!({"metadata": {"labels": {"app": "web"}}});
    scope.pod("down", web).await;
    scope.until_pod("down", "available", is_available).await;
    // A replica denies the change while its cache lags behind the new rule.
    wait::until("the change of the image", async || {
        match set_image(scope, "down", "web:non-exist").await {
            Err(kube::Error::Api(status)) if status.code == 429 => false,
            outcome => {
                outcome.unwrap();
                true
            }
        }
    })
    .await;
    scope.until_pod("down", "down", |p| !is_available(p)).await;
}

async fn until_free_pods_are_gone(scope: &Scope) {
    for pod in ["plain", "down"] {
        wait::until(&format!("{pod} to be deleted"), async || {
            scope.pods().get_opt(pod).await.unwrap().is_none()
        })
        .await;
    }
}

fn assert_held(outcome: kube::Result<()>, parts: &[&str]) {
    let status = refusal(outcome);
    assert_eq!(
        (status.code, status.reason.as_str()),
        (429, "TooManyRequests"),
        "{status:?}"
    );
    for part in parts {
        assert!(status.message.contains(part), "{part:?} in {status:?}");
    }
}

/// Whether the API server gave up the call to a replica. On a loaded machine an answer at the deadline may arrive too
/// late. These tests do not judge how often this happens.
fn is_late(outcome: &kube::Result<()>) -> bool {
    matches!(outcome, Err(kube::Error::Api(s)) if s.message.contains("failed calling webhook"))
}

/// The outcome of a request that a replica has answered in time, within a few attempts.
async fn answered(request: impl AsyncFn() -> kube::Result<()>) -> kube::Result<()> {
    for _ in 0..4 {
        let outcome = request().await;
        if !is_late(&outcome) {
            return outcome;
        }
    }
    panic!("no replica ever answers in time");
}

/// Ends an operation once the Pod may be operated on.
async fn operate(scope: &Scope, pod: &str) {
    scope
        .until_pod(pod, "to operate", |p| may_operate(p, ID))
        .await;
    scope.finish(pod, ID).await.unwrap();
}

#[tokio::test]
async fn unwritable_ledger_holds_only_requests_that_need_claims() {
    let bed = Bed::with_faults(USUAL).await;
    let scope = web(&bed, 5, json!(3)).await;
    for (code, why) in [
        (409, "too many operations ask for its budget at once"),
        (429, "its budget can't be read or written"),
        (500, "its budget can't be read or written"),
    ] {
        let pods = names(&scope.all_available("app=web", 5).await);
        scope.until_at_rest("web", 5).await;
        make_free_pods(&scope).await;
        let effect = Effect::Answer(StatusCode::from_u16(code).unwrap());
        bed.faults().set(Fault::new(effect).on(ledger_writes));
        for (pod, outcome) in [
            (&pods[0], scope.delete(&pods[0]).await),
            (&pods[1], scope.evict(&pods[1]).await),
        ] {
            let whose = format!("Pod {pod} is held by PodTransitionRule web");
            assert_held(outcome, &[&whose, why, "try again in a moment"]);
        }
        // An operation begins even without free budget, and waits in PreCheck.
        let begun = scope.begin(&pods[2], ID).await.unwrap();
        assert!(is_available(&begun), "{begun:?}");
        // In this namespace the API server sends every eviction to the replicas.
        scope.evict("plain").await.unwrap();
        scope.evict("down").await.unwrap();
        until_free_pods_are_gone(&scope).await;
        assert!(bed.faults().affected_requests() >= 3);
        bed.assert_all_run().await;

        bed.faults().end_fault();
        scope.delete(&pods[0]).await.unwrap();
        operate(&scope, &pods[2]).await;
    }
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
}

#[tokio::test]
async fn replicas_answer_in_time_while_api_server_is_frozen() {
    let bed = Bed::with_faults(USUAL).await;
    let scope = web(&bed, 5, json!(3)).await;
    let pods = names(&scope.list("app=web").await);
    make_free_pods(&scope).await;
    bed.faults().set(Fault::new(Effect::Freeze));
    let (deleted, evicted, begun, plain, down) = tokio::join!(
        answered(async || scope.delete(&pods[0]).await),
        answered(async || scope.evict(&pods[1]).await),
        answered(async || scope.begin(&pods[2], ID).await.map(drop)),
        answered(async || scope.evict("plain").await),
        scope.delete("down"),
    );
    down.unwrap();
    // The review of an eviction does not contain the Pod, and the absence of the Pod from the caches proves nothing.
    assert_held(
        plain,
        &["the eviction of Pod plain is held", "try again in a moment"],
    );
    // The text must come from the replica, and not from the API server about a webhook that did not answer.
    assert_held(deleted, &[&format!("Pod {} is held", pods[0])]);
    let whose = format!("the eviction of Pod {} is held", pods[1]);
    assert_held(evicted, &[&whose, "try again in a moment"]);
    begun.unwrap();
    assert!(is_available(&scope.get(&pods[2]).await));
    assert!(bed.faults().affected_requests() > 0);
    bed.assert_all_run().await;

    bed.faults().end_fault();
    wait::until("plain to be evicted", async || {
        scope.evict("plain").await.is_ok()
    })
    .await;
    until_free_pods_are_gone(&scope).await;
    wait::until("a place to be given", async || {
        scope.delete(&pods[0]).await.is_ok()
    })
    .await;
    operate(&scope, &pods[2]).await;
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
}

#[tokio::test]
async fn with_a_slow_api_server_the_rule_still_holds() {
    let bed = Bed::with_faults(USUAL).await;
    let scope = web(&bed, 50, json!("10%")).await;
    let pods = names(&scope.list("app=web").await);
    let observer = Observer::start(&scope).await;
    // A claim takes one such delay, and two more for each concurrent writer of the ledger.
    let delay = Duration::from_millis(700);
    bed.faults().set(Fault::new(Effect::Delay(delay)));
    let outcomes = at_once(&pods[..20], async |pod| scope.delete(&pod).await).await;
    // The number of admitted deletions depends on how many Pods become available again in the meantime. The observer
    // checks that it was never too many.
    let refused = outcomes.into_iter().filter(Result::is_err);
    for outcome in refused.filter(|outcome| !is_late(outcome)) {
        assert_held(outcome, &["is held"]);
    }
    // Other Pods get claims as earlier claims are released.
    for pod in &pods[40..] {
        wait::until(&format!("a place for {pod}"), async || {
            scope.delete(pod).await.is_ok()
        })
        .await;
    }
    assert!(bed.faults().affected_requests() > 0);
    bed.faults().end_fault();
    scope.all_available("app=web", 50).await;
    scope.until_at_rest("web", 50).await;
    observer.fewest_available(|_| true, 50).await.at_least(45);
}

#[tokio::test]
async fn claim_with_lost_reply_breaks_no_rule_and_lapses() {
    let bed = Bed::with_faults(SHORT).await;
    let scope = web(&bed, 30, json!(5)).await;
    let observer = Observer::start(&scope).await;
    bed.faults()
        .set(Fault::new(Effect::LoseReply).on(ledger_writes).every(2));
    let mut passed = 0;
    for _ in 0..4 {
        let pods = names(&scope.all_available("app=web", 30).await);
        let outcomes = at_once(&pods, async |pod| scope.delete(&pod).await).await;
        for outcome in outcomes {
            match outcome {
                Ok(()) => passed += 1,
                refused => assert_held(refused, &["is held"]),
            }
        }
    }
    assert!(passed > 0);
    assert!(bed.faults().affected_requests() >= 4);
    // The replies to some claims were lost. These claims lapse, and their release may take several attempts, too.
    scope.all_available("app=web", 30).await;
    scope.until_at_rest("web", 30).await;
    observer.fewest_available(|_| true, 30).await.at_least(25);
    bed.assert_all_run().await;
}

#[tokio::test]
async fn claim_without_answer_is_requested_again() {
    // With this request timeout the claim would lapse only long after the end of this test.
    let bed = Bed::with_faults(Duration::from_secs(600)).await;
    let scope = web(&bed, 2, json!(1)).await;
    let pods = names(&scope.list("app=web").await);
    bed.faults()
        .set(Fault::new(Effect::LoseReply).on(ledger_writes));
    scope.begin(&pods[0], ID).await.unwrap();
    wait::until("a claim to be written", async || {
        scope.claims("web").await == 1
    })
    .await;
    bed.faults().end_fault();
    operate(&scope, &pods[0]).await;
    scope.all_available("app=web", 2).await;
    scope.until_at_rest("web", 2).await;
}

#[tokio::test]
async fn lifecycles_finish_though_every_third_request_fails() {
    let bed = Bed::with_faults(USUAL).await;
    let scope = web(&bed, 5, json!(2)).await;
    let pods = names(&scope.list("app=web").await);
    let observer = Observer::start(&scope).await;
    let error = Effect::Answer(StatusCode::INTERNAL_SERVER_ERROR);
    bed.faults().set(Fault::new(error).every(3));
    let lifecycles = at_once(&pods, async |pod| {
        scope.begin(&pod, ID).await.unwrap();
        operate(&scope, &pod).await;
    });
    lifecycles.await;
    for pod in scope.all_available("app=web", 5).await {
        let name = pod.metadata.name.unwrap();
        let idle = scope.until_pod(&name, "idle", |p| {
            let mut labels = p.metadata.labels.iter().flat_map(|l| l.keys());
            is_available(p) && !labels.any(|k| k.contains(keys::LIFECYCLE_DOMAIN))
        });
        idle.await;
    }
    scope.until_at_rest("web", 5).await;
    assert!(bed.faults().affected_requests() > 0);
    observer.fewest_available(|_| true, 5).await.at_least(3);
    bed.assert_all_run().await;
}

#[tokio::test]
async fn failed_release_is_retried_without_further_changes() {
    let bed = Bed::with_faults(SHORT).await;
    let scope = web(&bed, 3, json!(2)).await;
    make_free_pods(&scope).await;
    assert_eq!(scope.claims("web").await, 1);
    let error = Effect::Answer(StatusCode::INTERNAL_SERVER_ERROR);
    bed.faults().set(Fault::new(error).on(ledger_writes));
    scope.delete("down").await.unwrap();
    scope.delete("plain").await.unwrap();
    until_free_pods_are_gone(&scope).await;
    wait::until("a release to fail", async || {
        bed.faults().affected_requests() > 0
    })
    .await;
    scope
        .until_status("web", "the Pod that went", |s: &RuleStatus| {
            s.expected_pods == 3
        })
        .await;
    // Waits past the deadline of the claim, at which the leader checks the claim in any case.
    tokio::time::sleep(SHORT + Duration::from_secs(20)).await;
    assert_eq!(scope.claims("web").await, 1);
    bed.faults().end_fault();
    scope.until_at_rest("web", 3).await;
}

/// Lists and watches of all Pods.
fn reads_all_pods(asked: &Asked) -> bool {
    asked.method == Method::GET && asked.uri.path() == "/api/v1/pods"
}

#[tokio::test]
async fn while_the_watch_of_pods_is_refused_nothing_is_claimed() {
    let bed = Bed::with_faults(USUAL).await;
    let scope = web(&bed, 4, json!(1)).await;
    let pods = names(&scope.all_available("app=web", 4).await);
    let effect = Effect::Answer(StatusCode::TOO_MANY_REQUESTS);
    bed.faults().set(Fault::new(effect).on(reads_all_pods));
    bed.stop_apiserver().await.unwrap(); // ends the watches
    bed.start_apiserver().await.unwrap();
    // The Pod caches are cut off and do not see this loss.
    scope.lose_readiness(&pods[0]).await;
    for outcome in [
        answered(async || scope.delete(&pods[1]).await).await,
        answered(async || scope.evict(&pods[2]).await).await,
    ] {
        assert_held(outcome, &["has not yet seen", "try again in a moment"]);
    }
    assert!(bed.faults().affected_requests() > 0);
    bed.assert_all_run().await;

    bed.faults().end_fault();
    wait::until("the caches to see the Pod", async || {
        let refused = scope.delete(&pods[1]).await.unwrap_err();
        refused.to_string().contains("1 of 4")
    })
    .await;
    scope.resume_kubelet(&pods[0]).await;
    wait::until("a place", async || scope.delete(&pods[1]).await.is_ok()).await;
    scope.all_available("app=web", 4).await;
    scope.until_at_rest("web", 4).await;
}

#[tokio::test]
async fn first_claim_under_a_new_rule_has_no_pods_listed() {
    let bed = Bed::with_faults(USUAL).await;
    let scope = web(&bed, 4, json!(4)).await;
    let count = Fault::new(Effect::Delay(Duration::ZERO));
    bed.faults().set(count.on(|asked| {
        let query = asked.uri.query().unwrap_or_default();
        let is_one = query
            .split('&')
            .any(|pair| pair.starts_with("fieldSelector="));
        reads_all_pods(asked) && !asked.watches() && !is_one
    }));
    for round in 0..3 {
        let rule = format!("new-{round}");
        scope.rule(&rule, json!({"app": "web"}), json!(4)).await;
        let pods = names(&scope.all_available("app=web", 4).await);
        wait::until("a place", async || scope.delete(&pods[0]).await.is_ok()).await;
    }
    assert_eq!(bed.faults().affected_requests(), 0);
}
