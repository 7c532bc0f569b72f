//! Many disruptions at once: exactly as many pass as the budget allows.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::Status;
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::{at_once, may_operate, names};
use testbed::scope::refusal;
use testbed::{Bed, Scope};

const PODS: usize = 100;
const LIMIT: usize = 10;
const REQUESTS: usize = 50;

/// 100 available Pods under a rule of 10%.
async fn web(bed: &Bed) -> Scope {
    let scope = bed.scope("fifty").await;
    scope.deploy_where_open("web", PODS).await;
    scope.all_available("app=web", PODS).await;
    scope.rule("web", json!({"app": "web"}), json!("10%")).await;
    scope
}

/// Asserts that the denial says that the budget is used up, with the figures and the remedy. A request that is judged
/// late finds the Pods of the claims down already.
fn assert_full(status: &Status) {
    assert_eq!(
        (status.code, status.reason.as_str()),
        (429, "TooManyRequests"),
        "{status:?}"
    );
    for part in [
        "rule availability of PodTransitionRule web",
        "10 of 100 Pods are unavailable, the limit is 10",
        "try again when one of them is available",
    ] {
        assert!(
            status.message.contains(part),
            "{part:?} in {:?}",
            status.message
        );
    }
    let holders = status.message.matches(" for ").count();
    let is_named = status.message.contains("(used by web-") && (1..=3).contains(&holders);
    let are_down = !status.message.contains("used by");
    assert!(is_named || are_down, "{}", status.message);
}

/// Part of the denial by a replica that has not seen the last decision yet, and of the error for a call that the API
/// server gave up on a loaded machine. Such a request has neither passed nor met a full budget.
const LATER: &str = "try again in a moment";

/// Repeats the request while the denial contains `later`.
async fn patiently(
    later: &str,
    mut request: impl AsyncFnMut() -> kube::Result<()>,
) -> kube::Result<()> {
    loop {
        let done = request().await;
        let message = done.as_ref().err().map(ToString::to_string);
        if !message.is_some_and(|message| message.contains(later)) {
            return done;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn exactly_ten_pass(scope: &Scope, evict: bool) {
    for _ in 0..3 {
        let pods = names(&scope.all_available("app=web", PODS).await);
        scope.until_at_rest("web", 100).await;
        // No replacement becomes available while the requests are sent.
        scope.close_nodes().await;
        let observer = Observer::start(scope).await;
        let outcomes = at_once(&pods[..REQUESTS], async |pod| {
            patiently(LATER, async || match evict {
                true => scope.evict(&pod).await,
                false => scope.delete(&pod).await,
            })
            .await
        })
        .await;
        let (passed, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        let refused: Vec<_> = refused.into_iter().map(refusal).collect();
        let reasons: Vec<_> = refused.iter().map(|s| &s.message).collect();
        assert_eq!(passed.len(), LIMIT, "{reasons:#?}");
        refused.iter().for_each(assert_full);
        observer
            .fewest_available(|_| true, PODS)
            .await
            .at_least(PODS - LIMIT);
        scope.open_nodes().await;
    }
}

#[tokio::test]
async fn of_fifty_deletes_at_once_exactly_ten_pass() {
    let bed = Bed::shared().await;
    exactly_ten_pass(&web(bed).await, false).await;
    // All replicas decided some of the requests.
    let granted = bed.metric("operating_ledger_claims_granted_total").await;
    let refused = bed.metric("operating_ledger_claims_refused_total").await;
    assert!(
        granted.iter().zip(&refused).all(|(g, r)| g + r > 0.0),
        "{granted:?} {refused:?}"
    );
}

#[tokio::test]
async fn of_fifty_evictions_at_once_exactly_ten_pass() {
    exactly_ten_pass(&web(Bed::shared().await).await, true).await;
}

#[tokio::test]
async fn new_rule_holds_immediately() {
    let scope = Bed::shared().await.scope("fresh").await;
    scope.deploy_where_open("web", PODS).await;
    let pods = names(&scope.all_available("app=web", PODS).await);
    scope.close_nodes().await;
    let observer = Observer::start(&scope).await;
    scope.rule("web", json!({"app": "web"}), json!("10%")).await;
    let outcomes = at_once(&pods[..REQUESTS], async |pod| scope.delete(&pod).await).await;
    let passed = outcomes.iter().filter(|o| o.is_ok()).count();
    assert!(passed <= LIMIT, "{passed}");
    for status in outcomes.into_iter().filter(Result::is_err).map(refusal) {
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests"),
            "{status:?}"
        );
    }
    observer
        .fewest_available(|_| true, PODS)
        .await
        .at_least(PODS - LIMIT);
}

#[tokio::test]
async fn deletes_evictions_and_lifecycles_at_once_share_one_budget() {
    let scope = web(Bed::shared().await).await;
    let pods = scope.all_available("app=web", PODS).await;
    scope.until_at_rest("web", 100).await;
    let observer = Observer::start(&scope).await;
    let requests: Vec<_> = pods[..REQUESTS].iter().map(ResourceExt::name_any).collect();
    let outcomes =
        futures::future::join_all(requests.iter().enumerate().map(async |(index, pod)| {
            match index % 3 {
                0 => scope.delete(pod).await,
                1 => scope.evict(pod).await,
                _ => scope.begin(pod, "upgrade").await.map(drop),
            }
        }))
        .await;
    for (index, outcome) in outcomes.into_iter().enumerate() {
        // A lifecycle without free budget begins, and waits in PreCheck.
        if index % 3 == 2 {
            outcome.unwrap();
        } else if outcome.is_err() {
            let refused = refusal(outcome);
            assert_eq!(refused.code, 429, "{refused:?}");
        }
    }
    // The waiting operations are granted as Pods become available again, until all are granted.
    let operations = requests.iter().skip(2).step_by(3).map(async |pod| {
        scope
            .until_pod(pod, "granted", |p| may_operate(p, "upgrade"))
            .await;
        scope.finish(pod, "upgrade").await.unwrap();
    });
    futures::future::join_all(operations).await;
    scope.all_available("app=web", PODS).await;
    scope.until_at_rest("web", 100).await;
    observer
        .fewest_available(|_| true, PODS)
        .await
        .at_least(PODS - LIMIT);
}

/// The watermark of a new ledger is the present position of the Pods, and each write to the ledger of another rule
/// moves this position on.
#[tokio::test]
async fn first_disruption_under_sixteen_new_rules_is_admitted() {
    let scope = Bed::shared().await.scope("sixteen").await;
    scope.deploy_where_open("web", 4).await;
    let pods = names(&scope.all_available("app=web", 4).await);
    scope.rule("first", json!({"app": "web"}), json!(4)).await;
    scope.until_at_rest("first", 4).await;
    for n in 0..15 {
        let name = format!("more-{n:02}");
        scope.rule(&name, json!({"app": "web"}), json!(1)).await;
        scope.until_at_rest(&name, 4).await;
    }
    let admitted = patiently("Too many requests", async || scope.delete(&pods[0]).await).await;
    admitted.unwrap();
}
