//! Updates that create the new Pod first, also when the spec changes midway.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::{Bed, Scope};

use crate::fixtures::{Pods, Set, ids, image, is_paired, label, uids};

fn replace(rolling_update: Value) -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "rollingUpdate": rolling_update } })
}

/// Two Pods in the middle of a replacement by new Pods that never serve.
async fn midway(scope: &Scope) -> (Set<'_>, Pods) {
    let set = Set::new(scope, "web", 2, replace(Value::Null)).await;
    let before = set.pods().await;
    set.image("app:non-exist").await;
    let new_halves = |pods: &Pods| {
        let new = pods
            .values()
            .filter(|p| label(p, keys::REPLACE_PAIR_ORIGIN_NAME).is_some());
        new.count()
    };
    set.until_pods("two pairs", |pods| new_halves(pods) == 2)
        .await;
    (set, before)
}

#[tokio::test]
async fn partition_keeps_origins_until_it_is_lowered() {
    let scope = Bed::shared().await.scope("replace-part").await;
    let partition = |n: usize| replace(json!({ "byPartition": { "partition": n } }));
    let set = Set::new(&scope, "web", 2, partition(1)).await;
    let before = set.names().await;
    set.image("app:2").await;
    set.settled().await;
    let count_kept = |names: &[String]| names.iter().filter(|n| before.contains(n)).count();
    assert_eq!(count_kept(&set.names().await), 1);
    let mut images = set.images().await;
    images.sort();
    assert_eq!(images, ["app:1", "app:2"]);
    set.edit(partition(0)).await;
    set.settled().await;
    assert_eq!(count_kept(&set.names().await), 0);
    assert_eq!(set.images().await, ["app:2"; 2]);
}

#[tokio::test]
async fn by_label_replaces_only_labelled_pods() {
    let scope = Bed::shared().await.scope("replace-label").await;
    let set = Set::new(&scope, "web", 2, replace(json!({ "byLabel": {} }))).await;
    let before = set.pods().await;
    let chosen = before[&1].name_any();
    scope
        .label(&chosen, json!({ keys::UPDATE_INCLUDED: "1" }))
        .await
        .unwrap();
    set.image("app:2").await;
    scope.until_gone(&before[&1]).await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(ids(&after), [0, 2]);
    assert_eq!(after[&0].uid(), before[&0].uid());
    assert_eq!(set.images().await, ["app:1", "app:2"]);
    assert_eq!(label(&after[&2], keys::UPDATE_INCLUDED), None);
}

#[tokio::test]
async fn rollback_midway_keeps_the_origins() {
    let scope = Bed::shared().await.scope("replace-back").await;
    let (set, before) = midway(&scope).await;
    set.image("app:1").await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    assert!(!after.values().any(is_paired));
    let status = set.get().await.status.unwrap();
    assert_eq!(status.current_revision, status.updated_revision);
}

#[tokio::test]
async fn pods_are_replaced_by_the_newest_revision() {
    let scope = Bed::shared().await.scope("replace-on").await;
    let (set, before) = midway(&scope).await;
    set.image("app:3").await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(set.images().await, ["app:3"; 2]);
    assert!(!after.values().any(is_paired));
    assert!(
        after
            .values()
            .all(|p| !before.values().any(|b| b.uid() == p.uid()))
    );
}

#[tokio::test]
async fn pairs_finish_when_the_policy_changes_midway() {
    let scope = Bed::shared().await.scope("replace-switch").await;
    let (set, _) = midway(&scope).await;
    set.edit(json!({
        "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" },
        "template": { "spec": { "containers": [{ "name": "app", "image": "app:3" }] } },
    }))
    .await;
    set.settled().await;
    let pods = set.pods().await;
    assert_eq!(pods.values().map(image).collect::<Vec<_>>(), ["app:3"; 2]);
    assert!(!pods.values().any(is_paired));
    // From now on the set updates in place.
    let uids_before = uids(&pods);
    set.image("app:4").await;
    set.settled().await;
    assert_eq!(uids(&set.pods().await), uids_before);
}

#[tokio::test]
async fn excluded_origin_returns_to_traffic_and_leaves_alive() {
    let scope = Bed::shared().await.scope("exclude-origin").await;
    let set = Set::new(&scope, "web", 1, replace(Value::Null)).await;
    set.hold().await;
    let name = set.pod(0).await.name_any();
    set.image("app:2").await;
    let is_told = |pod: &Pod| label(pod, keys::TO_DELETE).is_some();
    scope
        .until_pod(&name, "to get the label to-delete", is_told)
        .await;
    set.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }))
        .await;
    let has_left = |pod: &Pod| {
        let free = pod.metadata.owner_references.is_none() && !is_told(pod);
        free && is_available(pod) && label(pod, keys::TO_REPLACE).is_none()
    };
    scope.until_pod(&name, "to have left", has_left).await;
    set.release().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"]);
    scope.until_pod(&name, "to be there", has_left).await;
}
