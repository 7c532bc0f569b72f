//! Restarts of containers in place: by OpenKruise, whose part a double plays, and by another reference to the image.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use operating::api::keys::{self, Family};
use operating::api::operationjob::Progress;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::recreate_double::{self, Mode, RecreateDouble};
use testbed::scope::PAUSED;
use testbed::{Bed, Scope};

use crate::fixtures::{Job, info, reason};
use crate::sets::{Set, label};

const VERSION: &str = "v1alpha1";

/// Restart by another reference to the image.
fn by_image() -> Value {
    json!({ "metadata": { "annotations": { (keys::RESTART_BY): "ImageReference" } } })
}

/// Pods with two containers.
fn two_containers(image: &str) -> Value {
    json!({ "template": { "spec": { "containers": [
        { "name": "app", "image": image }, { "name": "side", "image": "side:1" },
    ] } } })
}

/// The ID of each container.
fn container_ids(pod: &Pod) -> BTreeMap<String, String> {
    let status = pod.status.as_ref().unwrap();
    let statuses = status.container_statuses.iter().flatten();
    let ids = statuses.map(|s| (s.name.clone(), s.container_id.clone().unwrap_or_default()));
    ids.collect()
}

fn image<'a>(pod: &'a Pod, container: &str) -> &'a str {
    let mut containers = pod.spec.as_ref().unwrap().containers.iter();
    let container = containers.find(|c| c.name == container).unwrap();
    container.image.as_deref().unwrap()
}

/// Number of operations that began on the Pods, by Pod.
async fn begins(observer: &Observer, id: &str) -> BTreeMap<String, usize> {
    let key = Family::Operating.key(id);
    let mut begun: BTreeMap<String, std::collections::BTreeSet<String>> = BTreeMap::new();
    for pod in observer.versions().await {
        if let Some(since) = label(&pod, &key) {
            begun
                .entry(pod.name_any())
                .or_default()
                .insert(since.to_owned());
        }
    }
    begun
        .into_iter()
        .map(|(name, begun)| (name, begun.len()))
        .collect()
}

/// The Pods of a set by instance ID, once they are available again.
async fn restarted(
    scope: &Scope,
    set: &Set<'_>,
    before: &BTreeMap<i64, Pod>,
) -> BTreeMap<i64, Pod> {
    scope
        .all_available(&format!("app={}", set.name), before.len())
        .await;
    set.settled().await;
    let after = set.pods().await;
    for (id, pod) in &after {
        assert_eq!(pod.uid(), before[id].uid(), "the same Pod");
    }
    after
}

#[tokio::test]
async fn openkruise_restarts_named_containers_under_the_budget() {
    let bed = Bed::own().await;
    recreate_double::install(&bed.admin(), &["v1beta1", VERSION]).await;
    let scope = bed.scope("job-restart").await;
    let set = Set::new(&scope, "web", 3, two_containers("app:1")).await;
    let rules = json!([{ "name": "one", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let selector = json!({ "matchLabels": { "app": "web" } });
    scope
        .try_rule("one", json!({ "selector": selector, "rules": rules }))
        .await
        .unwrap();
    scope
        .until_status(
            "one",
            "its Pods",
            |s: &operating::api::podtransitionrule::PodTransitionRuleStatus| s.expected_pods == 3,
        )
        .await;
    let before = set.pods().await;
    let _double = RecreateDouble::start(bed.admin(), &scope.namespace, VERSION, Mode::Works);
    let observer = Observer::start(&scope).await;
    let targets: Vec<Value> = before
        .values()
        .map(|pod| json!({ "name": pod.name_any(), "containers": ["side"] }))
        .collect();
    let part = json!({ "spec": { "targets": targets } });
    let job = Job::new(&scope, "again", "Restart", &[], part).await;
    let status = job.succeeded().await;
    assert_eq!(status.succeeded_pod_count, 3);
    let after = restarted(&scope, &set, &before).await;
    for (id, pod) in &after {
        let (old, new) = (container_ids(&before[id]), container_ids(pod));
        assert_eq!(old["app"], new["app"]);
        assert_ne!(old["side"], new["side"]);
        assert_eq!(image(pod, "side"), "side:1");
    }
    for detail in &status.target_details {
        assert_eq!(info(detail, "Method"), Some("ContainerRecreateRequest"));
    }
    let begun = begins(&observer, "operationjob-again").await;
    assert!(
        begun.len() == 3 && begun.values().all(|n| *n == 1),
        "{begun:?}"
    );
    observer
        .fewest_available(testbed::observer::serves, 3)
        .await
        .at_least(2);
}

#[tokio::test]
async fn image_reference_restarts_where_the_job_asks_for_it() {
    let scope = Bed::shared().await.scope("job-by-image").await;
    let set = Set::new(&scope, "web", 1, two_containers("app:1")).await;
    let before = set.pods().await;
    let pod = before[&0].name_any();
    let mut part = by_image();
    part["spec"] = json!({ "targets": [{ "name": pod, "containers": ["app"] }] });
    let job = Job::new(&scope, "again", "Restart", &[], part).await;
    let status = job.succeeded().await;
    assert_eq!(
        info(&status.target_details[0], "Method"),
        Some("ImageReference")
    );
    let after = restarted(&scope, &set, &before).await;
    let (old, new) = (container_ids(&before[&0]), container_ids(&after[&0]));
    assert_ne!(old["app"], new["app"]);
    assert_eq!(old["side"], new["side"]);
    assert!(
        image(&after[&0], "app").starts_with("app:1@sha256:"),
        "{}",
        image(&after[&0], "app")
    );
    assert!(!after[&0].annotations().contains_key(keys::FORMER_IMAGES));
    assert_eq!(set.get().await.status.unwrap().updated_replicas, 1);
}

#[tokio::test]
async fn restart_is_not_supported_without_a_method() {
    let scope = Bed::shared().await.scope("job-no-method").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await.name_any();
    let job = Job::new(&scope, "again", "Restart", &[&pod], json!({})).await;
    let status = job.failed().await;
    let detail = &status.target_details[0];
    assert_eq!(reason(detail), "RestartNotSupported");
    let message = &detail.error.as_ref().unwrap().message;
    assert!(
        message.contains("OpenKruise") && message.contains("replace or delete"),
        "{message}"
    );
    scope.all_available("app=web", 1).await;
    let no_digest = Set::new(
        &scope,
        "other",
        1,
        json!({ "template": { "spec": { "containers": [
        { "name": "app", "image": "no-digest:1" },
    ] } } }),
    )
    .await;
    let pod = no_digest.pod(0).await.name_any();
    let job = Job::new(&scope, "image", "Restart", &[&pod], by_image()).await;
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "RestartNotSupported");
    scope.all_available("app=other", 1).await;
}

#[tokio::test]
async fn no_daemon_is_not_supported_and_auto_goes_on_by_image() {
    let bed = Bed::own().await;
    recreate_double::install(&bed.admin(), &[VERSION]).await;
    let scope = bed.scope("job-no-daemon").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let before = set.pods().await;
    let pod = before[&0].name_any();
    let _double = RecreateDouble::start(bed.admin(), &scope.namespace, VERSION, Mode::NoDaemon);
    let job = Job::new(&scope, "plain", "Restart", &[&pod], json!({})).await;
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "RestartNotSupported");
    restarted(&scope, &set, &before).await;
    let part = json!({ "metadata": { "annotations": { (keys::RESTART_BY): "auto" } } });
    let job = Job::new(&scope, "auto", "Restart", &[&pod], part).await;
    let status = job.succeeded().await;
    assert_eq!(
        info(&status.target_details[0], "Method"),
        Some("ImageReference")
    );
    restarted(&scope, &set, &before).await;
}

#[tokio::test]
async fn refusal_of_the_daemon_is_told_and_the_pod_serves_again() {
    let bed = Bed::own().await;
    recreate_double::install(&bed.admin(), &[VERSION]).await;
    let scope = bed.scope("job-daemon-fails").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let before = set.pods().await;
    let mode = Mode::Fails("preStop hook hangs".to_owned());
    let _double = RecreateDouble::start(bed.admin(), &scope.namespace, VERSION, mode);
    let job = Job::new(
        &scope,
        "again",
        "Restart",
        &[&before[&0].name_any()],
        json!({}),
    )
    .await;
    let status = job.failed().await;
    let detail = &status.target_details[0];
    assert_eq!(reason(detail), "RestartFailed");
    assert!(
        detail
            .error
            .as_ref()
            .unwrap()
            .message
            .contains("preStop hook hangs")
    );
    restarted(&scope, &set, &before).await;
    let requests = recreate_double::requests(&bed.admin(), &scope.namespace, VERSION);
    let left = requests.list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "the requests of a failed target go");
}

#[tokio::test]
async fn image_that_does_not_resolve_is_put_back() {
    let scope = Bed::shared().await.scope("job-put-back").await;
    let set = Set::new(&scope, "web", 1, two_containers("tag-only:1")).await;
    let before = set.pods().await;
    let job = Job::new(
        &scope,
        "again",
        "Restart",
        &[&before[&0].name_any()],
        by_image(),
    )
    .await;
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "RestartFailed");
    let after = restarted(&scope, &set, &before).await;
    assert_eq!(image(&after[&0], "app"), "tag-only:1");
    assert_eq!(image(&after[&0], "side"), "side:1");
    assert!(!after[&0].annotations().contains_key(keys::FORMER_IMAGES));
}

#[tokio::test]
async fn missing_container_fails_before_anything_begins() {
    let scope = Bed::shared().await.scope("job-container").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await.name_any();
    let part = json!({ "spec": { "targets": [{ "name": pod, "containers": ["nobody"] }] } });
    let job = Job::new(&scope, "again", "Restart", &[], part).await;
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "ContainerNotFound");
    assert_eq!(
        label(
            &scope.get(&pod).await,
            &Family::Operating.key("operationjob-again")
        ),
        None
    );
}

/// The leader is killed again and again: each container is restarted once.
#[tokio::test]
async fn restart_survives_kill_of_the_leader_and_happens_once() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-restart-killed").await;
    let set = Set::new(&scope, "web", 4, json!({})).await;
    let before = set.pods().await;
    let names: Vec<String> = before.values().map(|pod| pod.name_any()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let observer = Observer::start(&scope).await;
    let job = Job::new(&scope, "again", "Restart", &names, by_image()).await;
    for _ in 0..3 {
        let leader = bed.leader().await;
        bed.kill(leader).await;
        bed.restart(leader).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let status = job.ended(Progress::Succeeded).await;
    assert_eq!(status.succeeded_pod_count, 4);
    restarted(&scope, &set, &before).await;
    assert_restarted_once(&observer).await;
}

/// The kubelet has not looked at the new image yet when the job is deleted.
#[tokio::test]
async fn image_in_flight_is_put_back_when_the_job_is_deleted() {
    let scope = Bed::shared().await.scope("job-in-flight").await;
    let set = Set::new(&scope, "web", 1, two_containers("tag-only:1")).await;
    let before = set.pods().await;
    let name = before[&0].name_any();
    let mut part = by_image();
    part["spec"] = json!({ "operationDelaySeconds": 2 });
    let job = Job::new(&scope, "again", "Restart", &[&name], part).await;
    let is_delayed = |d: &operating::api::operationjob::TargetDetail| {
        info(d, "Waiting").is_some_and(|wait| wait.contains("operationDelaySeconds"))
    };
    job.until_target(&name, "its delay", is_delayed).await;
    let pause = |value: Option<&str>| json!({ "metadata": { "annotations": { (PAUSED): value } } });
    scope.patch(&name, pause(Some("true"))).await.unwrap();
    scope
        .until_pod(&name, "its image to be changed", |pod| {
            image(pod, "app").contains("@sha256:")
        })
        .await;
    job.delete().await;
    job.gone().await;
    scope.patch(&name, pause(None)).await.unwrap();
    let after = restarted(&scope, &set, &before).await;
    assert_eq!(image(&after[&0], "app"), "tag-only:1");
}

/// The leader is killed again and again: OpenKruise is asked once for each Pod.
#[tokio::test]
async fn restart_by_openkruise_survives_kill_of_the_leader() {
    let bed = Bed::own().await;
    recreate_double::install(&bed.admin(), &[VERSION]).await;
    let scope = bed.scope("job-crr-killed").await;
    let set = Set::new(&scope, "web", 4, json!({})).await;
    let before = set.pods().await;
    let names: Vec<String> = before.values().map(|pod| pod.name_any()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let _double = RecreateDouble::start(bed.admin(), &scope.namespace, VERSION, Mode::Works);
    let observer = Observer::start(&scope).await;
    let job = Job::new(&scope, "again", "Restart", &names, json!({})).await;
    for _ in 0..3 {
        let leader = bed.leader().await;
        bed.kill(leader).await;
        bed.restart(leader).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let status = job.succeeded().await;
    restarted(&scope, &set, &before).await;
    assert_restarted_once(&observer).await;
    for detail in &status.target_details {
        let request = info(detail, "Request").unwrap();
        let requests = recreate_double::requests(&bed.admin(), &scope.namespace, VERSION);
        assert!(requests.get_opt(request).await.unwrap().is_some());
    }
}

/// Checks that each Pod had two containers one after the other.
async fn assert_restarted_once(observer: &Observer) {
    let mut ids: BTreeMap<String, std::collections::BTreeSet<String>> = BTreeMap::new();
    for pod in observer.versions().await {
        let own = container_ids(&pod)
            .remove("app")
            .filter(|id| !id.is_empty());
        ids.entry(pod.name_any()).or_default().extend(own);
    }
    assert!(ids.values().all(|ids| ids.len() == 2), "{ids:?}");
}
