//! What was in flight ends once that is gone which held it.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use operating::api::keys::{self, Family};
use operating::api::operationjob::OperationJob;
use serde_json::json;
use testbed::pods::is_available;
use testbed::{Scope, wait};

use crate::sets::{Set, ids, is_paired, label, uids};
use crate::taken_over::taken_over;
use crate::unblock::{release, release_pod, until_at_rest, with_image};

/// The IDs of the running containers, which change with a restart.
fn container(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?;
    status.first()?.container_id.clone()
}

#[tokio::test]
async fn rollout_at_partition_continues_when_partition_falls() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "half");
    let before = set.pods().await;
    set.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 0 } } } }),
    )
    .await;
    until_at_rest(&set).await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(set.images().await, ["nginx:2"; 6]);
    for id in [0, 3, 5] {
        assert_eq!(container(&after[&id]), container(&before[&id]), "ID {id}");
    }
    for id in [1, 2, 4] {
        assert_ne!(container(&after[&id]), container(&before[&id]), "ID {id}");
    }
}

#[tokio::test]
async fn rollout_to_missing_image_ends_with_existing_image() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "pair");
    let before = set.pods().await;
    set.edit(with_image("nginx:3")).await;
    until_at_rest(&set).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    assert_eq!(set.images().await, ["nginx:3"; 2]);
}

#[tokio::test]
async fn update_in_preparing_ends_without_finalizer() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "prep");
    let before = set.pods().await;
    // The others wait for their own finalizers.
    release_pod(&scope, &before[&1]).await;
    let is_first = |pods: &crate::sets::Pods| is_available(&pods[&1]);
    let pods = set
        .until_pods("the first one to be updated", is_first)
        .await;
    for id in [0, 2] {
        assert_eq!(pods[&id].labels(), before[&id].labels(), "ID {id}");
        assert_eq!(pods[&id].spec, before[&id].spec, "ID {id}");
    }
    release(&scope, "prep").await;
    until_at_rest(&set).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    assert_eq!(set.images().await, ["nginx:2"; 3]);
}

#[tokio::test]
async fn scale_in_ends_with_pods_that_it_chose() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "shrink");
    let before = set.pods().await;
    release(&scope, "shrink").await;
    set.until_pods("two Pods", |pods| pods.len() == 2).await;
    until_at_rest(&set).await;
    let mut kept = before.clone();
    kept.retain(|_, pod| is_available(pod));
    let after = set.pods().await;
    assert_eq!(ids(&kept), [0, 1]);
    assert_eq!(uids(&after), uids(&kept));
    for (id, pod) in &after {
        assert_eq!(container(pod), container(&before[id]));
        assert_eq!(pod.labels(), before[id].labels());
    }
}

/// The label `podopslifecycle.kusionstack.io/to-delete` of the dump is from old documents: Kuperator does not read it.
#[tokio::test]
async fn label_that_kuperator_does_not_read_deletes_nothing() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "gone");
    let before = set.pods().await;
    release(&scope, "gone").await;
    until_at_rest(&set).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    // The label that counts.
    let pod = before[&0].name_any();
    scope
        .label(&pod, json!({ keys::TO_DELETE: "true" }))
        .await
        .unwrap();
    scope.until_gone(&before[&0]).await;
    until_at_rest(&set).await;
    let mut after = uids(&set.pods().await);
    assert_ne!(after[&0], before[&0].uid().unwrap());
    after.insert(0, before[&0].uid().unwrap());
    assert_eq!(after, uids(&before));
}

#[tokio::test]
async fn completed_set_is_updated_under_its_rule() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "wait");
    let before = set.pods().await;
    set.edit(with_image("nginx:3")).await;
    until_at_rest(&set).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    assert_eq!(set.images().await, ["nginx:3"; 4]);
}

#[tokio::test]
async fn decoration_continues_in_place() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "decorated");
    let before = set.pods().await;
    let side = |image: &str| json!([{ "name": "side", "image": image, "injectPolicy": "AfterPrimaryContainer" }]);
    let patch = Patch::Merge(json!({ "spec": { "template": { "containers": side("side:2") } } }));
    let decorations = crate::store::api(&scope, "PodDecoration");
    decorations
        .patch("deco", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let has_new =
        |pod: &Pod| pod.spec.as_ref().unwrap().containers[1].image.as_deref() == Some("side:2");
    set.until_pods("the new sidecar", |pods| pods.values().all(has_new))
        .await;
    until_at_rest(&set).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    assert_eq!(set.images().await, ["nginx:1"; 3]);
}

/// `seq` is at rest. Its names come back.
#[tokio::test]
async fn persistent_name_returns_after_deletion() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "seq");
    let before = set.pods().await;
    scope
        .label("seq-1", json!({ keys::TO_DELETE: "true" }))
        .await
        .unwrap();
    scope.until_gone(&before[&1]).await;
    until_at_rest(&set).await;
    assert_eq!(set.names().await, ["seq-0", "seq-1", "seq-2"]);
}

/// Provides a volume for the claim of a new Pod.
async fn volume(scope: &Scope) {
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let volume = json!({
        "metadata": { "name": scope.namespace },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/nowhere" },
        },
    });
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
}

#[tokio::test]
async fn pending_job_replaces_its_pod_when_partition_rises() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "idle");
    let before = set.pods().await;
    volume(&scope).await;
    let jobs = scope.api::<OperationJob>();
    let partition = Patch::Merge(json!({ "spec": { "partition": 1 } }));
    jobs.patch("swap", &PatchParams::default(), &partition)
        .await
        .unwrap();
    wait::until("the job to succeed", async || {
        let status = jobs.get("swap").await.unwrap().status.unwrap_or_default();
        serde_json::to_value(status).unwrap()["progress"] == "Succeeded"
    })
    .await;
    until_at_rest(&set).await;
    let after = set.pods().await;
    assert_eq!(after.len(), 5);
    let former: Vec<_> = uids(&before).into_values().collect();
    let new: Vec<_> = after
        .values()
        .filter(|pod| !former.contains(&pod.uid().unwrap()))
        .collect();
    assert_eq!(new.len(), 1);
    let is_target = |pod: &&Pod| pod.name_any() == "idle-bn84v";
    assert_eq!(after.values().filter(is_target).count(), 0);
}

async fn derived() -> Scope {
    let cluster = taken_over().await;
    cluster.scope(&cluster.derived)
}

#[tokio::test]
async fn recreation_in_preparing_ends_without_finalizer() {
    let scope = derived().await;
    let set = Set::named(&scope, "rec");
    let before = set.pods().await;
    release(&scope, "rec").await;
    until_at_rest(&set).await;
    let after = set.pods().await;
    assert_eq!(ids(&after), ids(&before));
    assert_eq!(set.images().await, ["nginx:2"; 3]);
    for (id, pod) in &after {
        assert_ne!(pod.uid(), before[id].uid(), "ID {id}");
    }
}

#[tokio::test]
async fn open_pairs_end_with_existing_image() {
    let scope = derived().await;
    let set = Set::named(&scope, "pair");
    let origins: Vec<_> = set
        .pods()
        .await
        .into_values()
        .filter(is_available)
        .collect();
    assert_eq!(origins.len(), 2);
    set.edit(with_image("nginx:3")).await;
    until_at_rest(&set).await;
    let after = set.pods().await;
    assert_eq!(after.len(), 2);
    assert_eq!(set.images().await, ["nginx:3"; 2]);
    assert!(!after.values().any(is_paired));
    for origin in &origins {
        scope.until_gone(origin).await;
    }
}

#[tokio::test]
async fn deletion_in_preparing_ends_without_finalizer() {
    let scope = derived().await;
    let set = Set::named(&scope, "gone");
    let before = set.pods().await;
    let (id, pod) = before
        .iter()
        .find(|(_, pod)| label(pod, keys::TO_DELETE).is_some())
        .unwrap();
    release(&scope, "gone").await;
    scope.until_gone(pod).await;
    until_at_rest(&set).await;
    let mut after = uids(&set.pods().await);
    assert_ne!(after.insert(*id, pod.uid().unwrap()), pod.uid());
    assert_eq!(after, uids(&before));
}

/// The Pod in Operate continues at the take-over. The others follow one by one.
#[tokio::test]
async fn rollout_under_rule_continues_in_precheck() {
    let scope = derived().await;
    let set = Set::named(&scope, "wait");
    until_at_rest(&set).await;
    assert_eq!(set.images().await, ["nginx:2"; 4]);
    let after = set.pods().await;
    let operating = Family::Operating.key("collaset");
    assert!(after.values().all(|pod| label(pod, &operating).is_none()));
    let cluster = taken_over().await;
    for pod in after.values() {
        let key = ("Pod".to_owned(), pod.name_any());
        let before = &cluster.derived.before[&key];
        assert_eq!(pod.uid().as_deref(), before["metadata"]["uid"].as_str());
    }
}
