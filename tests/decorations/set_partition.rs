//! The scope of a set's own rollout holds back its template, and not its decorations.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::Bed;

use crate::fixtures::{Decoration, SIDE, image_of, side_images};
use crate::sets::{Set, label, uids};

/// Decorations come, change and go on two Pods whose template revision the strategy holds back.
async fn decorations_arrive_alone(namespace: &str, rolling_update: Value) {
    let scope = Bed::shared().await.scope(namespace).await;
    let strategy = json!({ "updateStrategy": { "rollingUpdate": rolling_update } });
    let set = Set::new(&scope, "web", 2, strategy).await;
    let template = label(&set.pod(0).await, keys::REVISION).unwrap().to_owned();
    let is_held_back = async || {
        for (id, pod) in set.pods().await {
            assert_eq!(label(&pod, keys::REVISION), Some(&*template), "ID {id}");
            assert_eq!(image_of(&pod, "app"), Some("app:1"), "ID {id}");
        }
    };
    set.image("app:2").await;
    set.settled().await;
    is_held_back().await;

    let log = Decoration::new(&scope, "log", json!({})).await;
    log.settled().await;
    set.settled().await;
    let decorated = set.pods().await;
    assert_eq!(side_images(&decorated), [Some("side:1"); 2]);
    is_held_back().await;

    log.image("side:2").await;
    log.settled().await;
    set.settled().await;
    let changed = set.pods().await;
    assert_eq!(uids(&changed), uids(&decorated));
    assert_eq!(side_images(&changed), [Some("side:2"); 2]);
    is_held_back().await;

    log.delete().await;
    log.until_gone().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [None; 2]);
    is_held_back().await;
}

#[tokio::test]
async fn partition_of_set_does_not_hold_decorations_back() {
    let all = json!({ "byPartition": { "partition": 2 } });
    decorations_arrive_alone("held-partition", all).await;
}

#[tokio::test]
async fn by_label_does_not_hold_decorations_back() {
    decorations_arrive_alone("held-by-label", json!({ "byLabel": {} })).await;
}

#[tokio::test]
async fn paused_set_keeps_decorations_until_it_goes_on() {
    let scope = Bed::shared().await.scope("held-paused").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    set.edit(json!({ "paused": true })).await;
    log.image("side:2").await;
    log.until_condition("Ready", "False", "").await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    for (id, pod) in set.pods().await {
        assert_eq!(image_of(&pod, SIDE), Some("side:1"));
        assert_eq!(pod.uid(), before[&id].uid());
    }
    set.edit(json!({ "paused": false })).await;
    log.settled().await;
    assert_eq!(side_images(&set.pods().await), [Some("side:2"); 2]);
}
