//! A rollout to the members that a selector matches.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::Bed;

use crate::fixtures::{Decoration, instances, revision, side_images};
use crate::sets::{Pods, Set, label, until_condition_false};

/// A rollout to these instance IDs alone.
fn to(ids: &[i64]) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "selector": instances(ids) } } })
}

fn revisions(pods: &Pods) -> Vec<Option<&str>> {
    pods.values().map(|pod| revision(pod, "log")).collect()
}

#[tokio::test]
async fn unchosen_pod_keeps_its_revision_without_current_revision() {
    let scope = Bed::shared().await.scope("rollout-selector").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let log = Decoration::new(&scope, "log", to(&[1])).await;
    let first = log.updated_revision().await;
    log.settled().await;
    set.settled().await;
    let pods = set.pods().await;
    assert_eq!(revisions(&pods), [None, Some(&*first), None]);
    assert_eq!(log.status().await.current_revision, "");

    let mut both = to(&[0]);
    json_patch::merge(&mut both, &crate::fixtures::sidecar("side:2"));
    let second = log.edit(both).await;
    log.settled().await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(revisions(&after), [Some(&*second), Some(&*first), None]);
    assert_eq!(side_images(&after), [Some("side:2"), Some("side:1"), None]);
    assert_eq!(after[&1].metadata.uid, pods[&1].metadata.uid);
    assert_eq!(after[&2].metadata.uid, pods[&2].metadata.uid);
    assert_eq!(log.status().await.current_revision, "");

    let all = json!({ "updateStrategy": { "rollingUpdate": null } });
    log.edit(all).await;
    let status = log.settled().await.status.unwrap();
    set.settled().await;
    assert_eq!(revisions(&set.pods().await), [Some(&*second); 3]);
    assert_eq!(status.current_revision, second);
}

#[tokio::test]
async fn selector_wins_over_partition() {
    let scope = Bed::shared().await.scope("selector-wins").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let mut part = to(&[0]);
    part["updateStrategy"]["rollingUpdate"]["partition"] = json!(2);
    let log = Decoration::new(&scope, "log", part).await;
    log.settled().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [Some("side:1"), None]);
}

#[tokio::test]
async fn pod_that_is_no_longer_selected_loses_the_decoration() {
    let scope = Bed::shared().await.scope("deselected").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    log.edit(json!({ "selector": instances(&[1]) })).await;
    log.settled().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [None, Some("side:1")]);
}

/// A decoration that sets one label and adds no container.
fn label_alone(selected: Value, key: &str) -> Value {
    json!({
        "selector": { "matchLabels": selected },
        "template": {
            "containers": null,
            "metadata": [{ "patchPolicy": "Retain", "labels": { key: "yes" } }],
        },
    })
}

#[tokio::test]
async fn label_set_by_hand_selects_running_pod() {
    let scope = Bed::shared().await.scope("by-hand").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let part = label_alone(json!({ "app": null, "canary": "1" }), "team");
    Decoration::new(&scope, "log", part).await;
    let before = set.pod(0).await;
    let name = before.name_any();
    let has_team = |pod: &Pod| label(pod, "team") == Some("yes") && revision(pod, "log").is_some();
    scope.label(&name, json!({ "canary": "1" })).await.unwrap();
    let decorated = scope.until_pod(&name, "to be decorated", has_team).await;
    assert_eq!(decorated.uid(), before.uid());
    assert_eq!(revision(&set.pod(1).await, "log"), None);
    scope.label(&name, json!({ "canary": null })).await.unwrap();
    let is_plain = |pod: &Pod| label(pod, "team").is_none() && revision(pod, "log").is_none();
    scope.until_pod(&name, "to be plain again", is_plain).await;
    set.settled().await;
    assert_eq!(set.pod(0).await.uid(), before.uid());
}

#[tokio::test]
async fn labels_of_decorations_select_nobody() {
    let scope = Bed::shared().await.scope("chained").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let first = Decoration::new(&scope, "first", label_alone(json!({}), "team")).await;
    first.settled().await;
    set.settled().await;
    assert_eq!(label(&set.pod(0).await, "team"), Some("yes"));
    let part = label_alone(json!({ "app": null, "team": "yes" }), "second");
    let second = Decoration::new(&scope, "second", part).await;
    second.settled().await;
    assert_eq!(second.status().await.matched_pods, 0);
    assert_eq!(label(&set.pod(0).await, "second"), None);
}

/// The API server copies such labels from the node, and webhooks set them at the creation of a Pod.
#[tokio::test]
async fn label_of_single_pod_recreates_no_pod() {
    let scope = Bed::shared().await.scope("single-label").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = crate::sets::uids(&set.pods().await);
    for pod in set.pods().await.values() {
        scope
            .label(&pod.name_any(), json!({ "zone": "a" }))
            .await
            .unwrap();
    }
    let part = json!({ "selector": { "matchLabels": { "app": null, "zone": "a" } } });
    Decoration::new(&scope, "log", part).await;
    until_condition_false(
        &set,
        "Update",
        "UpdateFailed",
        "PodDecoration log selects by labels",
    )
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(crate::sets::uids(&set.pods().await), before);
}
