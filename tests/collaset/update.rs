//! How a new revision reaches the Pods.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::Bed;
use testbed::pods::is_available;

use crate::fixtures::{Set, image, label, uids};

#[tokio::test]
async fn image_update_under_a_rule_keeps_pod_names() {
    let scope = Bed::shared().await.scope("inplace").await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    let set = Set::new(&scope, "web", 4, json!({})).await;
    let before = set.names().await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 4]);
    assert_eq!(set.names().await, before);
}

#[tokio::test]
async fn change_impossible_in_place_recreates_pod_with_same_id() {
    let scope = Bed::shared().await.scope("recreate").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.names().await;
    set.edit(json!({ "template": { "spec": { "terminationGracePeriodSeconds": 7 } } }))
        .await;
    set.settled().await;
    let after = set.names().await;
    assert_eq!(after.len(), 3);
    assert!(after.iter().all(|name| !before.contains(name)));
    assert_eq!(set.pods().await.into_keys().collect::<Vec<_>>(), [0, 1, 2]);
}

#[tokio::test]
async fn replace_update_makes_new_pod_available_first() {
    let scope = Bed::shared().await.scope("replace").await;
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let set = Set::new(&scope, "web", 2, replace).await;
    let before = set.names().await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 2]);
    assert!(set.names().await.iter().all(|name| !before.contains(name)));
}

#[tokio::test]
async fn recreate_policy_recreates_pods_for_image_change() {
    let scope = Bed::shared().await.scope("recreate-image").await;
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let set = Set::new(&scope, "web", 2, recreate).await;
    let before = set.names().await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 2]);
    assert!(set.names().await.iter().all(|name| !before.contains(name)));
}

#[tokio::test]
async fn pod_with_sidecar_changes_in_place() {
    let scope = Bed::shared().await.scope("sidecar").await;
    let images = |app: &str, sidecar: &str| {
        json!({ "template": { "spec": {
            "initContainers": [{ "name": "sidecar", "image": sidecar, "restartPolicy": "Always" }],
            "containers": [{ "name": "app", "image": app }],
        } } })
    };
    let set = Set::new(&scope, "web", 2, images("app:1", "proxy:1")).await;
    let before = set.pods().await;
    let changes = [
        ("app:2", "proxy:1"),
        ("app:2", "proxy:2"),
        ("app:3", "proxy:3"),
    ];
    for (app, sidecar) in changes {
        set.edit(images(app, sidecar)).await;
        set.settled().await;
        let pods = set.pods().await;
        assert_eq!(uids(&pods), uids(&before));
        for pod in pods.values() {
            let spec = pod.spec.as_ref().unwrap();
            let init = spec.init_containers.as_ref().unwrap();
            assert_eq!(spec.containers[0].image.as_deref(), Some(app));
            assert_eq!(init[0].image.as_deref(), Some(sidecar));
            let status = pod.status.as_ref().unwrap();
            let runs = |of: &Option<Vec<ContainerStatus>>| of.as_ref().unwrap()[0].image.clone();
            assert_eq!(runs(&status.container_statuses), app);
            assert_eq!(runs(&status.init_container_statuses), sidecar);
        }
    }
}

#[tokio::test]
async fn labels_and_annotations_change_without_a_restart() {
    let scope = Bed::shared().await.scope("metadata").await;
    let metadata = |labels: Value, annotations: Value| json!({ "template": { "metadata": { "labels": labels, "annotations": annotations } } });
    let first = metadata(json!({ "old": "1" }), json!({ "old": "1" }));
    let set = Set::new(&scope, "web", 2, first).await;
    let before = set.pods().await;
    let next = metadata(
        json!({ "old": null, "new": "2" }),
        json!({ "old": null, "new": "2" }),
    );
    set.edit(next).await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    for (id, pod) in &after {
        assert_eq!((label(pod, "old"), label(pod, "new")), (None, Some("2")));
        assert_eq!(label(pod, "app"), Some("web"));
        assert_eq!(pod.annotations().get("old"), None);
        assert_eq!(pod.annotations()["new"], "2");
        assert_eq!(running(pod), running(&before[id]));
    }
}

/// IDs of the running containers.
fn running(pod: &Pod) -> Vec<Option<String>> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    let running: Vec<_> = statuses.map(|s| s.container_id.clone()).collect();
    assert_eq!(running.len(), 1);
    running
}

#[tokio::test]
async fn labelled_pods_are_updated_and_lose_the_label() {
    let scope = Bed::shared().await.scope("by-label").await;
    let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
    let set = Set::new(&scope, "web", 3, by_label).await;
    let name = set.pod(1).await.name_any();
    set.image("app:2").await;
    set.until("to have seen it", |set| {
        let status = set.status.clone().unwrap_or_default();
        status.current_revision != status.updated_revision
    })
    .await;
    scope
        .label(&name, json!({ keys::UPDATE_INCLUDED: "1" }))
        .await
        .unwrap();
    let updated = scope
        .until_pod(&name, "to be updated", |p| {
            image(p) == "app:2" && is_available(p)
        })
        .await;
    assert_eq!(label(&updated, keys::UPDATE_INCLUDED), None);
    set.settled().await;
    assert_eq!(set.images().await, ["app:1", "app:2", "app:1"]);
}

#[tokio::test]
async fn percentage_rollout_follows_the_order_label() {
    let scope = Bed::shared().await.scope("percent").await;
    let rolling = |percent| {
        let rolling =
            json!({ "priorityLabel": "order", "byPartition": { "partitionPercent": percent } });
        json!({ "updateStrategy": { "rollingUpdate": rolling } })
    };
    let set = Set::new(&scope, "web", 4, rolling(50)).await;
    for (id, pod) in set.pods().await {
        let order = ["3", "9", "1", "10"][usize::try_from(id).unwrap()];
        let order = json!({ "metadata": { "labels": { "order": order } } });
        scope.patch(&pod.name_any(), order).await.unwrap();
    }
    // Pods and sets have separate watches, so the labels very probably arrive first.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:1", "app:2", "app:1", "app:2"]);
    set.edit(rolling(0)).await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 4]);
}

#[tokio::test]
async fn partition_keeps_its_number_of_pods_unchanged() {
    let scope = Bed::shared().await.scope("partition").await;
    let partition =
        |n| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": n } } } });
    let set = Set::new(&scope, "web", 3, partition(3)).await;
    let before = set.pods().await;
    set.image("app:2").await;
    let mut former = Vec::new();
    for partition_size in [3, 1, 0] {
        set.edit(partition(partition_size)).await;
        let status = set.settled().await.status.unwrap();
        let images = set.images().await;
        let updated: Vec<_> = (0..3).filter(|i| images[*i] == "app:2").collect();
        assert_eq!(updated.len(), 3 - partition_size, "{images:?}");
        assert!(
            former.iter().all(|i| updated.contains(i)),
            "those stay updated"
        );
        assert_eq!(
            usize::try_from(status.updated_replicas).unwrap(),
            3 - partition_size
        );
        assert_eq!(
            status.current_revision == status.updated_revision,
            partition_size == 0
        );
        former = updated;
    }
    assert_eq!(uids(&set.pods().await), uids(&before));
}
