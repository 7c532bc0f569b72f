//! Connections to the API server that die without a sign: nothing is decided without the events that they do not
//! deliver.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use operating::cluster::watch_trust::TRUST_DURATION;
use operating::domain::pod::BRIEFLY_DOWN;
use serde_json::json;
use testbed::Bed;
use testbed::Scope;
use testbed::pods::{condition, may_operate, names};
use testbed::proxy::{Asked, Effect, Fault};
use testbed::scope::refusal;
use tokio::task::JoinHandle;
use tokio::time::sleep;

fn rule_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path().ends_with("/podtransitionrules")
}

fn pod_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path().ends_with("/pods")
}

/// Deletes a Pod, with retries: on a slow machine a replica denies a request whose rules it could not read in time.
async fn until_deleted(scope: &Scope, pod: &str) {
    testbed::wait::until("the Pod to be let go", async || {
        scope.delete(pod).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn rule_that_no_watch_delivers_holds_its_pods() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("dead").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    // The replicas know all rules.
    until_deleted(&scope, &pods[0]).await;

    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    for denied in [scope.delete(&pods[1]).await, scope.evict(&pods[2]).await] {
        let status = refusal(denied);
        assert_eq!(status.code, 429, "{status:?}");
    }
    bed.faults().end_fault();
    testbed::wait::until("the rule to be known", async || {
        let status = refusal(scope.delete(&pods[1]).await);
        status.message.contains("PodTransitionRule stop")
    })
    .await;
}

/// Writes an object continuously, as in any cluster that is in use. In a cluster without writes, one read of the
/// position proves for some time that no rule is missing, and a rule that is created in this time may be unknown until
/// the proof expires.
async fn write_always(scope: &Scope) -> JoinHandle<()> {
    let maps: Api<ConfigMap> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let map = serde_json::from_value(json!({ "metadata": { "name": "busy" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    tokio::spawn(async move {
        for count in 0_u64.. {
            let data = Patch::Merge(json!({ "data": { "count": count.to_string() } }));
            let written = maps.patch("busy", &PatchParams::default(), &data).await;
            written.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
    })
}

#[tokio::test]
async fn undelivered_rule_holds_its_pods_when_new_watches_begin() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("mute").await;
    let pods = scope.web_under_rule(12, json!(11)).await;
    let busy = write_always(&scope).await;
    bed.faults().set(Fault::new(Effect::Mute).on(rule_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    // Watches end and begin continuously, and none of them delivers the rule.
    for pod in &pods[1..] {
        let status = refusal(scope.delete(pod).await);
        assert_eq!(status.code, 429, "{status:?}");
        sleep(Duration::from_secs(2)).await;
    }
    assert!(!busy.is_finished());
    busy.abort();
    bed.faults().end_fault();
    testbed::wait::until("the rule to be known", async || {
        let status = refusal(scope.delete(&pods[1]).await);
        status.message.contains("PodTransitionRule stop")
    })
    .await;
}

#[tokio::test]
async fn undelivered_recreated_rule_holds_its_pods() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("anew").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    // This rule has another selector, and more generations than the rule that replaces it.
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
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    let deleted = scope.rules().delete("stop", &DeleteParams::default()).await;
    assert!(deleted.unwrap().is_right(), "at once");
    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    for denied in [scope.delete(&pods[1]).await, scope.evict(&pods[2]).await] {
        let status = refusal(denied);
        assert_eq!(status.code, 429, "{status:?}");
    }
    bed.faults().end_fault();
}

#[tokio::test]
async fn terminating_rule_holds_no_pod_while_rules_are_read_live() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("ending").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    scope.rule("ending", json!({"app": "web"}), json!(0)).await;
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    let (name, params) = ("ending", PatchParams::default());
    let rules = scope.rules();
    rules
        .patch(name, &params, &Patch::Merge(finalizer))
        .await
        .unwrap();
    rules.delete(name, &DeleteParams::default()).await.unwrap();
    until_deleted(&scope, &pods[0]).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    until_deleted(&scope, &pods[1]).await;
    bed.faults().end_fault();
    let free = json!({ "metadata": { "finalizers": null } });
    rules
        .patch(name, &params, &Patch::Merge(free))
        .await
        .unwrap();
}

#[tokio::test]
async fn replica_started_in_quiet_cluster_admits_the_whole_budget() {
    let bed = Bed::own().await;
    let scope = bed.scope("quiet").await;
    let pods = scope.web_under_rule(20, json!(20)).await;
    // Only one replica runs: other replicas would read the positions, and such reads make the API server send
    // bookmarks.
    bed.kill_all().await;
    bed.restart(0).await;
    sleep(TRUST_DURATION - Duration::from_secs(1)).await;
    for pod in &pods[..12] {
        sleep(Duration::from_secs(1)).await;
        let deleted = scope.delete(pod).await;
        assert!(deleted.is_ok(), "{:?}", refusal(deleted));
    }
}

#[tokio::test]
async fn unavailable_pod_stays_while_pod_watches_are_dead() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("others").await;
    let strict = json!({"maxUnavailableValue": 1, "unhealthyPodPolicy": "IfHealthyBudget"});
    let rules = json!([{ "name": "availability", "availablePolicy": strict }]);
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "rules": rules });
    scope.deploy("web", 4, json!({})).await;
    let pods = names(&scope.all_available("app=web", 4).await);
    scope.try_rule("strict", spec).await.unwrap();
    scope.until_at_rest("strict", 4).await;
    scope.lose_readiness(&pods[0]).await;
    scope
        .until_status("strict", "one to be down", |s: &RuleStatus| {
            s.available_pods == 3
        })
        .await;
    bed.faults().set(Fault::new(Effect::Freeze).on(pod_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    for pod in &pods[1..3] {
        scope.lose_readiness(pod).await;
    }
    for denied in [scope.delete(&pods[0]).await, scope.evict(&pods[0]).await] {
        let status = refusal(denied);
        assert_eq!(status.code, 429, "{status:?}");
    }
    // A dry run is the verdict of the moment.
    let dry = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let status = refusal(scope.pods().delete(&pods[3], &dry).await);
    assert_eq!(status.code, 429, "{status:?}");
    bed.faults().end_fault();
}

#[tokio::test]
async fn undelivered_recovery_does_not_count_pod_as_long_unavailable() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("blip").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    scope.lose_readiness(&pods[0]).await;
    scope
        .until_status("web", "one to be down", |s: &RuleStatus| {
            s.available_pods == 2
        })
        .await;
    sleep(BRIEFLY_DOWN + Duration::from_secs(1)).await;
    bed.faults().set(Fault::new(Effect::Freeze).on(pod_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    scope.become_ready(&pods[0]).await;
    for pod in [&pods[1], &pods[0]] {
        scope.lose_readiness(pod).await;
    }
    // Both Pods become available again by themselves.
    let status = refusal(scope.evict(&pods[0]).await);
    assert_eq!(status.code, 429, "{status:?}");
    let image = json!({"spec": {"containers": [{"name": "main", "image": "web:2"}]}});
    let (api, params, image) = (
        scope.pods(),
        PatchParams::default(),
        Patch::Strategic(image),
    );
    let status = refusal(api.patch(&pods[0], &params, &image).await);
    assert!([403, 429].contains(&status.code), "{status:?}");
    let begun = scope.begin(&pods[0], "op").await;
    assert!(begun.is_ok_and(|pod| !may_operate(&pod, "op")));
    bed.faults().end_fault();
}

#[tokio::test]
async fn pod_with_pending_restart_cannot_enter_undelivered_rule() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("lone").await;
    // With a rule in the namespace, the API server sends its requests to the webhooks.
    scope.rule("other", json!({"app": "other"}), json!(1)).await;
    let labels = json!({"metadata": {"labels": {"app": "lone", (keys::CONTROL): null}}});
    let pod = scope.pod("lone", labels).await.name_any();
    scope
        .until_pod(&pod, "to run", |pod| condition(pod, "Ready") == Some(true))
        .await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    scope.rule("lone", json!({"app": "lone"}), json!(0)).await;
    scope.pause_kubelet(&pod).await;
    let image = json!({"spec": {"containers": [{"name": "main", "image": "web:2"}]}});
    let (api, params, image) = (
        scope.pods(),
        PatchParams::default(),
        Patch::Strategic(image),
    );
    api.patch(&pod, &params, &image).await.unwrap();
    let managed = scope.label(&pod, json!({(keys::CONTROL): "true"})).await;
    let status = refusal(managed);
    assert!([403, 422, 429].contains(&status.code), "{status:?}");
    bed.faults().end_fault();
}

#[tokio::test]
async fn operation_waits_for_a_rule_that_no_watch_delivers() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("checks").await;
    let pods = scope.web_under_rule(3, json!(2)).await;
    scope.begin(&pods[0], "first").await.unwrap();
    scope
        .until_pod(&pods[0], "operate", |pod| may_operate(pod, "first"))
        .await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUST_DURATION + Duration::from_secs(1)).await;
    let check = |stage: &str| json!([{ "name": "check", "stage": stage, "labelCheck": { "requires": { "matchLabels": { "go": "1" } } } }]);
    for (name, stage) in [("before", "PreCheck"), ("after", "PostCheck")] {
        let spec =
            json!({ "selector": { "matchLabels": { "app": "web" } }, "rules": check(stage) });
        scope.try_rule(name, spec).await.unwrap();
    }
    let label = |pod: &Pod, family: Family, id: &str| pod.labels().contains_key(&family.key(id));
    let second = scope.begin(&pods[0], "second").await.unwrap();
    assert!(
        label(&second, Family::PreCheck, "second"),
        "{:?}",
        second.labels()
    );
    assert!(!label(&second, Family::PreChecked, "second"));
    let first = scope.finish(&pods[0], "first").await.unwrap();
    assert!(
        label(&first, Family::PostCheck, "first"),
        "{:?}",
        first.labels()
    );
    assert!(!label(&first, Family::PostChecked, "first"));
    bed.faults().end_fault();
}
