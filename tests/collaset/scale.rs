//! How many Pods a set has, and which Pods a scale-in deletes.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::pods::is_available;
use testbed::{Bed, Scope};

use crate::fixtures::{Set, ids, image, is_operating, label, uids};

#[tokio::test]
async fn scale_in_deletes_named_pods_first() {
    let scope = Bed::shared().await.scope("scale").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    set.edit(json!({ "replicas": 4 })).await;
    set.settled().await;
    let pods = set.pods().await;
    let name = pods[&1].name_any();
    set.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [name] } }))
        .await;
    set.settled().await;
    assert_eq!(ids(&set.pods().await), [0, 2, 3]);
    set.edit(json!({ "replicas": 0, "scaleStrategy": null }))
        .await;
    set.settled().await;
    assert!(set.pods().await.is_empty());
    assert_eq!(set.get().await.status.unwrap().replicas, 0);
}

#[tokio::test]
async fn pod_to_delete_is_recreated_without_scale_in() {
    let scope = Bed::shared().await.scope("to-delete").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let name = before[&0].name_any();
    set.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }))
        .await;
    let after = set
        .until_pods("another Pod of ID 0", |pods| {
            ids(pods) == [0, 1] && pods[&0].uid() != before[&0].uid()
        })
        .await;
    assert_eq!(after[&1].uid(), before[&1].uid());
    set.settled().await;
}

#[tokio::test]
async fn privileged_pod_is_made() {
    let scope = Bed::shared().await.scope("privileged").await;
    let container =
        json!({ "name": "app", "image": "app:1", "securityContext": { "privileged": true } });
    let template = json!({ "template": { "spec": { "containers": [container] } } });
    let set = Set::new(&scope, "web", 1, template).await;
    let spec = set.pod(0).await.spec.unwrap();
    let context = spec.containers[0].security_context.clone().unwrap();
    assert_eq!(context.privileged, Some(true));
}

#[tokio::test]
async fn lost_pod_returns_with_its_id_and_recorded_revision() {
    let scope = Bed::shared().await.scope("lost").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let first = lose(&scope, &set, 1).await;
    set.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 2 } } } }),
    )
    .await;
    set.image("app:2").await;
    set.settled().await;
    let images = |pods: &crate::fixtures::Pods| pods.values().map(image).collect::<Vec<_>>();
    let before = images(&set.pods().await);
    assert_eq!(before.iter().filter(|i| *i == "app:2").count(), 1);
    for id in 0..3 {
        lose(&scope, &set, id).await;
    }
    assert_eq!(images(&set.pods().await), before, "each as it was");
    assert!(label(&first, keys::COMPLETING).is_some() || is_available(&first));
}

/// Deletes the Pod of an ID. Returns the next Pod of this ID.
async fn lose(scope: &Scope, set: &Set<'_>, id: i64) -> k8s_openapi::api::core::v1::Pod {
    let before = set.pod(id).await;
    scope.delete(&before.name_any()).await.unwrap();
    let again = set
        .until_pods("the lost one to be back", |pods| {
            pods.get(&id).is_some_and(|p| p.uid() != before.uid())
        })
        .await;
    let pod = again[&id].clone();
    assert_eq!(label(&pod, keys::REVISION), label(&before, keys::REVISION));
    pod
}

#[tokio::test]
async fn scale_in_that_waits_is_taken_back() {
    let scope = Bed::shared().await.scope("scale-back").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    set.hold().await;
    set.edit(json!({ "replicas": 1 })).await;
    let key = Family::PreCheck.key("collaset");
    set.until_pods("two to wait", |pods| {
        pods.values().filter(|p| label(p, &key).is_some()).count() == 2
    })
    .await;
    set.edit(json!({ "replicas": 3 })).await;
    set.until_pods("none to wait", |pods| !pods.values().any(is_operating))
        .await;
    set.release().await;
    set.settled().await;
    assert_eq!(uids(&set.pods().await), uids(&before));
}

#[tokio::test]
async fn pod_off_traffic_returns_when_scale_in_is_cancelled() {
    let scope = Bed::shared().await.scope("scale-undo").await;
    let delay = json!({ "scaleStrategy": { "operationDelaySeconds": 3600 } });
    let set = Set::new(&scope, "web", 2, delay).await;
    let before = set.pods().await;
    set.edit(json!({ "replicas": 1 })).await;
    let key = Family::Operate.key("collaset");
    set.until_pods("one off traffic", |pods| {
        pods.values()
            .any(|p| label(p, &key).is_some() && !is_available(p))
    })
    .await;
    set.edit(json!({ "replicas": 2 })).await;
    let status = set.settled().await.status.unwrap();
    assert_eq!(
        (status.available_replicas, status.operating_replicas),
        (2, 0)
    );
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    for pod in after.values() {
        assert_eq!(label(pod, keys::PREPARING_TO_DELETE), None);
    }
}

#[tokio::test]
async fn failed_pod_is_deleted_and_made_again() {
    let scope = Bed::shared().await.scope("failed").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let sequence = Set::new(&scope, "seq", 2, naming).await;
    for set in [set, sequence] {
        let before = set.pods().await;
        let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
        scope
            .pods()
            .patch_status(&before[&0].name_any(), &PatchParams::default(), &failed)
            .await
            .unwrap();
        scope.until_gone(&before[&0]).await;
        let after = set
            .until_pods("both", |pods| {
                ids(pods) == [0, 1] && pods.values().all(is_available)
            })
            .await;
        assert_eq!(after[&1].uid(), before[&1].uid());
        assert_eq!(scope.list(&format!("app={}", set.name)).await.len(), 2);
    }
}
