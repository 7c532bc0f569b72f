//! Evictions, and the real `kubectl drain`.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::{EvictParams, PostParams};
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::{condition, is_available, may_operate, service_ready};
use testbed::scope::refusal;

use crate::{UNDERWAY, bed, drop_protection, is_marked, is_terminating, leaving, protected};

#[tokio::test]
async fn eviction_starts_lifecycle_and_pod_is_drained() {
    let bed = bed().await;
    for ruled in [false, true] {
        let scope = protected(bed, ruled).await;
        let pod = scope.get("web").await;
        let dry = EvictParams {
            post_options: PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            ..EvictParams::default()
        };
        let status = refusal(scope.pods().evict("web", &dry).await);
        assert!(status.message.contains("being drained"), "{status:?}");
        assert!(!is_marked(&scope.get("web").await));

        let status = refusal(scope.evict("web").await);
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests")
        );
        assert!(status.message.contains("is being drained"), "{status:?}");
        assert!(status.message.contains(UNDERWAY), "{status:?}");
        assert!(
            status.details.is_none_or(|d| d.retry_after_seconds == 0),
            "drain would wait in silence"
        );
        scope
            .until_pod("web", "taken off", |p| service_ready(p) == Some(false))
            .await;
        let again = refusal(scope.evict("web").await);
        assert!(again.message.contains("with finalizers: ["), "{again:?}");
        assert!(!is_terminating(&scope.get("web").await));
        drop_protection(&scope).await;
        scope.until_gone(&pod).await;
    }
}

#[tokio::test]
async fn eviction_is_admitted_when_operate_is_reached() {
    let scope = bed().await.scope("operate").await;
    scope.pod("web", json!({})).await;
    scope.until_pod("web", "available", is_available).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 1).await;
    scope.label("web", leaving("mine")).await.unwrap();
    let pod = scope
        .until_pod("web", "operate", |p| may_operate(p, "mine"))
        .await;
    scope.evict("web").await.unwrap();
    scope.until_gone(&pod).await;
    // The claims of the begin and of the eviction are released.
    scope.until_at_rest("web", 0).await;
}

#[tokio::test]
async fn drain_is_graceful_and_stays_within_budget() {
    let bed = bed().await;
    let scope = bed.scope("drain").await;
    bed.deploy_web_for_drain(&scope, 6).await;
    scope.rule("web", json!({"app": "web"}), json!(2)).await;
    scope.until_at_rest("web", 6).await;
    let observer = Observer::start(&scope).await;
    let output = bed.drain_web(&scope, 6).await;
    assert!(output.contains("is being drained"), "{output}");
    scope.until_at_rest("web", 6).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
    // No Pod was deleted before its traffic was off.
    let mut before = BTreeMap::new();
    let mut ended = 0;
    for pod in observer.versions().await {
        let uid = pod.uid().unwrap();
        let last = before.insert(uid, pod.clone());
        if let Some(last) = last.filter(|l| is_terminating(&pod) && !is_terminating(l)) {
            assert_eq!(service_ready(&last), Some(false), "{}", last.name_any());
            assert_eq!(
                condition(&last, "Ready"),
                Some(false),
                "{}",
                last.name_any()
            );
            ended += 1;
        }
    }
    assert_eq!(ended, 6);
}
