//! Updates that are cancelled, and updates that meet another operation on the Pod.

use kube::ResourceExt;
use operating::api::keys::Family;
use serde_json::json;
use testbed::Bed;
use testbed::pods::{is_available, may_operate};

use crate::fixtures::{Set, image, is_operating, label, uids};

#[tokio::test]
async fn pod_that_leaves_partition_is_not_updated() {
    let scope = Bed::shared().await.scope("leave").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    set.hold().await;
    set.image("app:2").await;
    let key = Family::PreCheck.key("collaset");
    set.until_pods("all to wait", |pods| {
        pods.values().all(|p| label(p, &key).is_some())
    })
    .await;
    set.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } }),
    )
    .await;
    set.until_pods("none to wait", |pods| !pods.values().any(is_operating))
        .await;
    set.release().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:1"; 3]);
    assert_eq!(uids(&set.pods().await), uids(&before));
}

#[tokio::test]
async fn update_and_foreign_operation_share_one_pod() {
    let scope = Bed::shared().await.scope("both").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await;
    let name = pod.name_any();
    scope.begin(&name, "other").await.unwrap();
    scope
        .until_pod(&name, "off traffic", |p| may_operate(p, "other"))
        .await;
    set.image("app:2").await;
    let updated = scope
        .until_pod(&name, "to be updated", |p| {
            let running = p.status.clone().unwrap().container_statuses.unwrap();
            image(p) == "app:2" && running[0].image == "app:2" && !is_operating(p)
        })
        .await;
    assert!(!is_available(&updated), "the other is not done");
    scope.finish(&name, "other").await.unwrap();
    set.settled().await;
    assert_eq!(set.pod(0).await.uid(), pod.uid());
}
