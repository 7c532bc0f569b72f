//! Replacements of decorated Pods: each member is disrupted once.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{Decoration, begins, by_partition, instances, side_images};
use crate::sets::{Set, ids, is_paired, label};

fn replace() -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } })
}

/// Names of the Pods that have existed, and of those of them that are new halves or were so.
async fn existed(observer: &Observer) -> (BTreeSet<String>, BTreeMap<String, Pod>) {
    let (mut all, mut new) = (BTreeSet::new(), BTreeMap::new());
    for pod in observer.versions().await {
        all.insert(pod.name_any());
        if label(&pod, keys::REPLACE_PAIR_ORIGIN_NAME).is_some() {
            new.entry(pod.name_any()).or_insert(pod);
        }
    }
    (all, new)
}

#[tokio::test]
async fn replacement_with_instance_selector_disrupts_each_member_once() {
    let scope = Bed::shared().await.scope("replace-ids").await;
    // The new Pods have IDs 2 and 3, so they are not decorated.
    let part = json!({ "selector": instances(&[0, 1]) });
    let log = Decoration::new(&scope, "log", part).await;
    let set = Set::new(&scope, "web", 2, replace()).await;
    assert_eq!(side_images(&set.pods().await), [Some("side:1"); 2]);
    let observer = Observer::start(&scope).await;
    set.image("app:2").await;
    set.settled().await;
    log.settled().await;
    let pods = set.pods().await;
    assert_eq!(ids(&pods), [2, 3]);
    assert_eq!(side_images(&pods), [None; 2]);
    assert!(!pods.values().any(is_paired));
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let (all, new) = existed(&observer).await;
    assert_eq!((all.len(), new.len()), (4, 2));
    let begins = begins(&observer).await;
    assert!(
        !begins.keys().any(|name| new.contains_key(name)),
        "{begins:?}"
    );
}

#[tokio::test]
async fn new_pod_of_replacement_is_born_with_new_revision() {
    let scope = Bed::shared().await.scope("replace-new").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, replace()).await;
    let observer = Observer::start(&scope).await;
    log.image("side:2").await;
    log.settled().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [Some("side:2"); 2]);
    let (all, new) = existed(&observer).await;
    assert_eq!((all.len(), new.len()), (4, 2));
    for pod in new.values() {
        assert_eq!(crate::fixtures::image_of(pod, "side"), Some("side:2"));
    }
}

#[tokio::test]
async fn partition_counts_replace_pair_once() {
    let scope = Bed::shared().await.scope("replace-partition").await;
    let log = Decoration::new(&scope, "log", by_partition(0)).await;
    let set = Set::new(&scope, "web", 2, replace()).await;
    log.settled().await;
    log.partition(1).await;
    log.image("side:2").await;
    log.settled().await;
    set.settled().await;
    // The Pod that the new Pod has replaced may still be terminating. The list comes before the observer, which would
    // otherwise know a Pod that is gone before it is listed.
    let all = scope.api::<Pod>().list(&Default::default()).await.unwrap();
    let earlier: BTreeSet<_> = all.items.iter().map(ResourceExt::name_any).collect();
    let observer = Observer::start(&scope).await;
    let pods = set.pods().await;
    let mut images = side_images(&pods);
    images.sort_unstable();
    assert_eq!(images, [Some("side:1"), Some("side:2")]);
    // Each new Pod takes the place of its origin in the partition.
    set.image("app:2").await;
    set.settled().await;
    log.settled().await;
    let pods = set.pods().await;
    let mut images = side_images(&pods);
    images.sort_unstable();
    assert_eq!(images, [Some("side:1"), Some("side:2")]);
    let (all, _) = existed(&observer).await;
    let made: Vec<_> = all.difference(&earlier).collect();
    assert_eq!(made.len(), 2, "{made:?} after {earlier:?}");
}
