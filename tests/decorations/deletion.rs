//! Deletion of a PodDecoration: its Pods lose it, then the object goes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::poddecoration::PodDecoration;
use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{Decoration, SIDE, image_of, reference, revision, side_images};
use crate::sets::Set;

#[tokio::test]
async fn object_goes_after_pods_lose_the_decoration() {
    let scope = Bed::shared().await.scope("deleted").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let pods = Observer::<Pod>::follow(&scope).await;
    let decorations = Observer::<PodDecoration>::follow(&scope).await;
    log.delete().await;
    log.until_gone().await;
    set.settled().await;
    for pod in set.pods().await.values() {
        assert_eq!((revision(pod, "log"), image_of(pod, SIDE)), (None, None));
        assert_eq!(reference(pod, "log"), None);
        let record = pod.annotations().get(keys::DECORATIONS);
        assert!(record.is_none_or(|text| text == "[]"), "{record:?}");
    }
    let history = decorations.history().await;
    let removal = history
        .iter()
        .find(|change| change.object.is_none())
        .unwrap();
    let mut decorated = BTreeMap::new();
    for change in pods.history().await {
        if change.version < removal.version {
            let has_it = |pod: &Pod| revision(pod, "log").is_some();
            decorated.insert(change.uid, change.object.is_some_and(|pod| has_it(&pod)));
        }
    }
    let remaining = decorated.into_values().filter(|has_it| *has_it).count();
    assert_eq!(remaining, 0, "Pods still had it when the object went");
}

#[tokio::test]
async fn excluded_pod_survives_deletion_and_does_not_delay_it() {
    let scope = Bed::shared().await.scope("excluded").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let excluded = set.pod(0).await;
    let name = excluded.name_any();
    scope
        .label(&name, json!({ keys::TO_EXCLUDE: "1" }))
        .await
        .unwrap();
    let is_free = |pod: &Pod| pod.metadata.owner_references.is_none();
    let free = scope.until_pod(&name, "to be free", is_free).await;
    assert!(
        revision(&free, "log").is_some(),
        "its label says what it contains"
    );
    log.delete().await;
    log.until_gone().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [None; 2]);
    // The garbage collector would need less time to delete it.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let survivor = scope.get(&name).await;
    assert_eq!(survivor.uid(), excluded.uid());
    assert_eq!(survivor.metadata.deletion_timestamp, None);
    assert_eq!(image_of(&survivor, SIDE), Some("side:1"));
}

#[tokio::test]
async fn deletion_names_paused_set_that_delays_it() {
    let scope = Bed::shared().await.scope("deletion-paused").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    log.settled().await;
    set.edit(json!({ "paused": true })).await;
    log.delete().await;
    let waiting = log.until_condition("Ready", "False", "paused").await;
    let ready = crate::fixtures::condition(&waiting, "Ready").unwrap();
    assert_eq!(ready.reason, "Deleting");
    assert!(ready.message.contains("CollaSet web"), "{}", ready.message);
    assert_eq!(side_images(&set.pods().await), [Some("side:1"); 2]);
    set.edit(json!({ "paused": false })).await;
    log.until_gone().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [None; 2]);
}

/// A Pod whose only owner is a deleted PodDecoration would be deleted by the garbage collector.
#[tokio::test]
async fn orphaned_pods_survive_deletion_of_decoration() {
    let scope = Bed::shared().await.scope("orphans-decorated").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let mut before = BTreeSet::new();
    for name in ["web", "api", "job"] {
        let set = Set::new(&scope, name, 4, json!({})).await;
        before.extend(crate::sets::uids(&set.pods().await).into_values());
    }
    log.delete().await;
    let params = kube::api::DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..kube::api::DeleteParams::default()
    };
    for name in ["web", "api", "job"] {
        scope.api::<CollaSet>().delete(name, &params).await.unwrap();
    }
    log.until_gone().await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let pods = scope.api::<Pod>().list(&Default::default()).await.unwrap();
    let alive = pods
        .items
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let uids: BTreeSet<_> = alive.filter_map(ResourceExt::uid).collect();
    let lost: Vec<_> = before.difference(&uids).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
