//! Crashes, and requests without effect: no claim outlives its deadline, and everything recovers by itself.

use std::time::Duration;

use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::names;
use testbed::{Bed, wait};

/// Request timeout of the API server. A claim without effect lives this long, plus a margin.
const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn no_claim_of_a_killed_replica_stays() {
    let bed = Bed::with_request_timeout(TIMEOUT).await;
    let scope = bed.scope("crash").await;
    scope.deploy("web", 20, json!({})).await;
    scope.all_available("app=web", 20).await;
    scope.rule("web", json!({"app": "web"}), json!(5)).await;
    scope.until_at_rest("web", 20).await;
    let observer = Observer::start(&scope).await;
    for round in 0..6 {
        let pods = names(&scope.list("app=web").await);
        let disrupt =
            futures::future::join_all(pods.iter().enumerate().map(async |(index, pod)| {
                // Some of these requests are refused, and some lose the replica that granted their claim.
                let _ = if index % 2 == 0 {
                    scope.delete(pod).await
                } else {
                    scope.evict(pod).await
                };
            }));
        let kill = async {
            tokio::time::sleep(Duration::from_millis(20 * (round + 1))).await;
            let victim = if round % 2 == 0 {
                bed.leader().await
            } else {
                (round % 3) as usize
            };
            bed.kill(victim).await;
            victim
        };
        let (_, victim) = futures::future::join(disrupt, kill).await;
        bed.restart(victim).await;
    }
    scope.all_available("app=web", 20).await;
    scope.until_at_rest("web", 20).await;
    observer.fewest_available(|_| true, 20).await.at_least(15);
}

#[tokio::test]
async fn api_server_may_go_and_come_back() {
    let bed = Bed::own().await;
    let scope = bed.scope("restart").await;
    scope.deploy("web", 10, json!({})).await;
    scope.all_available("app=web", 10).await;
    scope.rule("web", json!({"app": "web"}), json!(3)).await;
    scope.until_at_rest("web", 10).await;
    bed.stop_apiserver().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    bed.start_apiserver().await.unwrap();
    let pods = names(&scope.list("app=web").await);
    wait::until("a place to be given", async || {
        scope.delete(&pods[0]).await.is_ok()
    })
    .await;
    let observer_needs = scope.all_available("app=web", 10).await;
    scope.until_at_rest("web", 10).await;
    let observer = Observer::start(&scope).await;
    let pods = names(&observer_needs);
    let outcomes = futures::future::join_all(pods.iter().map(|pod| scope.delete(pod))).await;
    assert_eq!(
        outcomes.iter().filter(|o| o.is_ok()).count(),
        3,
        "{outcomes:?}"
    );
    scope.all_available("app=web", 10).await;
    observer.fewest_available(|_| true, 10).await.at_least(7);
}

#[tokio::test]
async fn replica_that_is_told_to_end_fails_no_review() {
    let bed = Bed::own().await;
    let scope = bed.scope("drain").await;
    scope.deploy("web", 10, json!({})).await;
    scope.all_available("app=web", 10).await;
    scope.rule("web", json!({"app": "web"}), json!(3)).await;
    scope.until_at_rest("web", 10).await;
    let pods = names(&scope.list("app=web").await);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let ask = async {
        let mut asked = 0;
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            let dry = kube::api::DeleteParams::default().dry_run();
            scope.pods().delete(&pods[asked % 10], &dry).await.unwrap();
            asked += 1;
        }
        asked
    };
    let end = async {
        let code = bed.terminate(0).await;
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        code
    };
    let (asked, code) = futures::future::join(ask, end).await;
    assert_eq!(code, Some(0));
    assert!(asked > 0);
}
