//! Connections to the API server that die without a sign: what they do not deliver is not decided without.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams};
use operating::cluster::following::TRUSTED;
use serde_json::json;
use tokio::time::sleep;
use xtask::proxy::{Asked, Effect, Fault};

use crate::bed::Bed;
use crate::bed::objects::{Scope, refusal};

fn rule_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path().ends_with("/podtransitionrules")
}

/// A slow machine may need several tries: what is not known in time is denied.
async fn until_deleted(scope: &Scope, pod: &str) {
    crate::bed::wait::until("the Pod to be let go", async || {
        scope.delete(pod).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn rule_that_no_watch_delivers_holds_its_pods_all_the_same() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("dead").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUSTED + Duration::from_secs(1)).await;
    // The rules are as the replicas know them.
    until_deleted(&scope, &pods[0]).await;

    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    for denied in [scope.delete(&pods[1]).await, scope.evict(&pods[2]).await] {
        let status = refusal(denied);
        assert_eq!(status.code, 429, "{status:?}");
    }
    bed.faults().lift();
    crate::bed::wait::until("the rule to be known", async || {
        let status = refusal(scope.delete(&pods[1]).await);
        status.message.contains("PodTransitionRule stop")
    })
    .await;
}

#[tokio::test]
async fn rule_that_no_watch_delivers_holds_its_pods_though_watches_begin() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("mute").await;
    let pods = scope.web_under_rule(12, json!(11)).await;
    bed.faults().set(Fault::new(Effect::Mute).on(rule_watches));
    sleep(TRUSTED + Duration::from_secs(1)).await;
    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    // Watches end and begin all the time; none of them delivers the rule.
    for pod in &pods[1..] {
        let status = refusal(scope.delete(pod).await);
        assert_eq!(status.code, 429, "{status:?}");
        sleep(Duration::from_secs(2)).await;
    }
    bed.faults().lift();
    crate::bed::wait::until("the rule to be known", async || {
        let status = refusal(scope.delete(&pods[1]).await);
        status.message.contains("PodTransitionRule stop")
    })
    .await;
}

#[tokio::test]
async fn rule_that_is_made_anew_under_its_name_holds_its_pods_all_the_same() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("anew").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    // Of another selector, with more generations than the next one has.
    scope.rule("stop", json!({"app": "other"}), json!(0)).await;
    let rules =
        json!([{ "name": "availability", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let patch = Patch::Merge(json!({ "spec": { "rules": rules } }));
    let changed = scope
        .rules()
        .patch("stop", &PatchParams::default(), &patch)
        .await;
    assert_eq!(changed.unwrap().metadata.generation, Some(2));
    until_deleted(&scope, &pods[0]).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUSTED + Duration::from_secs(1)).await;
    let deleted = scope.rules().delete("stop", &DeleteParams::default()).await;
    assert!(deleted.unwrap().is_right(), "at once");
    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    for denied in [scope.delete(&pods[1]).await, scope.evict(&pods[2]).await] {
        let status = refusal(denied);
        assert_eq!(status.code, 429, "{status:?}");
    }
    bed.faults().lift();
}

#[tokio::test]
async fn rule_whose_deletion_somebody_holds_up_keeps_no_pod_while_rules_are_read_live() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("ending").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    scope.rule("ending", json!({"app": "web"}), json!(0)).await;
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    let (name, params) = ("ending", PatchParams::default());
    let rules = scope.rules();
    rules
        .patch(name, &params, &Patch::Merge(held))
        .await
        .unwrap();
    rules.delete(name, &DeleteParams::default()).await.unwrap();
    until_deleted(&scope, &pods[0]).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUSTED + Duration::from_secs(1)).await;
    until_deleted(&scope, &pods[1]).await;
    bed.faults().lift();
    let free = json!({ "metadata": { "finalizers": null } });
    rules
        .patch(name, &params, &Patch::Merge(free))
        .await
        .unwrap();
}

#[tokio::test]
async fn replica_that_starts_where_nothing_happens_admits_what_the_budget_allows() {
    let bed = Bed::own().await;
    let scope = bed.scope("quiet").await;
    let pods = scope.web_under_rule(20, json!(20)).await;
    // Alone: others would read the positions, which has the API server send bookmarks.
    bed.kill_all().await;
    bed.restart(0).await;
    sleep(TRUSTED - Duration::from_secs(1)).await;
    for pod in &pods[..12] {
        sleep(Duration::from_secs(1)).await;
        let deleted = scope.delete(pod).await;
        assert!(deleted.is_ok(), "{:?}", refusal(deleted));
    }
}
