//! Decorations of running Pods: how they arrive, change and go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::may_operate;
use testbed::{Bed, Scope};

use crate::fixtures::{Decoration, SIDE, begins, by_partition, image_of, revision, side_images};
use crate::sets::{Set, image, label, uids};

/// IDs of the running containers by name.
fn runs(pod: &Pod) -> BTreeMap<String, Option<String>> {
    let statuses = pod.status.iter().flat_map(|s| &s.container_statuses);
    let statuses = statuses.flatten();
    statuses
        .map(|s| (s.name.clone(), s.container_id.clone()))
        .collect()
}

#[tokio::test]
async fn sidecar_is_added_by_recreation_within_the_rule() {
    let scope = Bed::shared().await.scope("added").await;
    let set = Set::new(&scope, "web", 4, json!({})).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    scope.until_at_rest("web", 4).await;
    let before = set.pods().await;
    let observer = Observer::start(&scope).await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    log.settled().await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(side_images(&after), [Some("side:1"); 4]);
    for (id, pod) in &after {
        assert_ne!(pod.metadata.uid, before[id].metadata.uid, "ID {id}");
    }
    observer.fewest_available(|_| true, 4).await.at_least(3);
    assert_eq!(begins(&observer).await.into_values().max(), Some(1));
    let status = log.status().await;
    assert_eq!(status.current_revision, status.updated_revision);
}

#[tokio::test]
async fn sidecar_image_changes_in_place() {
    let scope = Bed::shared().await.scope("sidecar-image").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let second = log.image("side:2").await;
    log.settled().await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(side_images(&after), [Some("side:2"); 2]);
    for (id, pod) in &after {
        assert_eq!(revision(pod, "log"), Some(&*second));
        let (now, former) = (runs(pod), runs(&before[id]));
        assert_eq!(now["app"], former["app"], "it did not restart");
        assert_ne!(now[SIDE], former[SIDE]);
    }
}

#[tokio::test]
async fn change_of_weight_alone_restarts_nothing() {
    let scope = Bed::shared().await.scope("weight").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let second = log.edit(json!({ "weight": 5 })).await;
    log.settled().await;
    set.settled().await;
    let after = set.pods().await;
    for (id, pod) in &after {
        assert_eq!(revision(pod, "log"), Some(&*second));
        assert_eq!(runs(pod), runs(&before[id]));
    }
}

#[tokio::test]
async fn template_and_decoration_change_in_one_operation() {
    let scope = Bed::shared().await.scope("both-changes").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    // Both changes are there before the first Pod may change.
    set.hold().await;
    let observer = Observer::start(&scope).await;
    set.edit(
        json!({ "template": { "spec": { "containers": [{ "name": "app", "image": "app:2" }] } } }),
    )
    .await;
    log.image("side:2").await;
    set.release().await;
    log.settled().await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    for pod in after.values() {
        let images = (image_of(pod, "app"), image_of(pod, SIDE));
        assert_eq!(images, (Some("app:2"), Some("side:2")));
    }
    let begins = begins(&observer).await;
    assert_eq!(begins.into_values().collect::<Vec<_>>(), [1; 3]);
}

/// A set of two Pods that stay off traffic, because their decoration changes and the operation has to wait.
async fn stuck_in_operation(scope: &Scope) -> (Decoration<'_>, Set<'_>, String) {
    let log = Decoration::new(scope, "log", json!({})).await;
    let delay = json!({ "updateStrategy": { "operationDelaySeconds": 3600 } });
    let set = Set::new(scope, "web", 2, delay).await;
    let second = log.image("side:2").await;
    set.until_pods("both off traffic", |pods| {
        pods.values().all(|pod| may_operate(pod, "collaset"))
    })
    .await;
    (log, set, second)
}

#[tokio::test]
async fn pod_lost_during_change_is_created_once_with_new_revision() {
    let scope = Bed::shared().await.scope("lost").await;
    let (log, set, second) = stuck_in_operation(&scope).await;
    let lost = set.pod(0).await;
    let observer = Observer::start(&scope).await;
    scope
        .delete(lost.metadata.name.as_ref().unwrap())
        .await
        .unwrap();
    set.until_pods("another Pod", |pods| {
        pods.get(&0)
            .is_some_and(|pod| pod.metadata.uid != lost.metadata.uid)
    })
    .await;
    set.edit(json!({ "updateStrategy": { "operationDelaySeconds": 0 } }))
        .await;
    log.settled().await;
    set.settled().await;
    let mut created = BTreeMap::new();
    for pod in observer.versions().await {
        if label(&pod, operating::api::keys::INSTANCE_ID) != Some("0") {
            continue;
        }
        let first = revision(&pod, "log").map(str::to_owned);
        created.entry(pod.metadata.uid.clone()).or_insert(first);
    }
    created.remove(&lost.metadata.uid);
    assert_eq!(created.into_values().collect::<Vec<_>>(), [Some(second)]);
    assert_eq!(side_images(&set.pods().await), [Some("side:2"); 2]);
}

#[tokio::test]
async fn lost_pod_beyond_partition_keeps_its_revision() {
    let scope = Bed::shared().await.scope("lost-stable").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let first = log.updated_revision().await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    log.settled().await;
    log.edit(by_partition(2)).await;
    log.image("side:2").await;
    log.settled().await;
    let lost = set.pod(1).await;
    scope
        .delete(lost.metadata.name.as_ref().unwrap())
        .await
        .unwrap();
    scope.until_gone(&lost).await;
    set.settled().await;
    let pods = set.pods().await;
    assert_eq!(side_images(&pods), [Some("side:1"); 2]);
    assert_eq!(revision(&pods[&1], "log"), Some(&*first));
    assert!(
        pods.values().all(|pod| image(pod) == "side:1"),
        "it is the first container"
    );
}
