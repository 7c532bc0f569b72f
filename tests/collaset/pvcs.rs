//! PersistentVolumeClaims of a set.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use serde_json::{Value, json};
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Set, ids};
use crate::membership::until_event;

/// Creates volumes that the PVCs of the namespace can bind.
pub async fn volumes(scope: &Scope, count: usize) {
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    for index in 0..count {
        let volume = json!({
            "metadata": { "name": format!("{}-{index}", scope.namespace) },
            "spec": {
                "storageClassName": scope.namespace, "capacity": { "storage": "5Gi" },
                "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/nowhere" },
                "persistentVolumeReclaimPolicy": "Retain",
            },
        });
        let volume = serde_json::from_value(volume).unwrap();
        volumes
            .create(&PostParams::default(), &volume)
            .await
            .unwrap();
    }
}

/// Spec of a set whose Pods mount a PVC `data` of this size.
pub fn template(scope: &Scope, size: &str) -> Value {
    json!({
        "volumeClaimTemplates": [{
            "metadata": { "name": "data" },
            "spec": {
                "storageClassName": scope.namespace, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": size } },
            },
        }],
        "template": { "spec": { "containers": [{
            "name": "app", "image": "app:1", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        }] } },
    })
}

pub fn api(scope: &Scope) -> Api<PersistentVolumeClaim> {
    Api::namespaced(scope.client.clone(), &scope.namespace)
}

pub async fn get(scope: &Scope, name: &str) -> PersistentVolumeClaim {
    api(scope).get(name).await.unwrap()
}

/// The PVCs that are not terminating.
pub async fn list_live(scope: &Scope) -> Vec<PersistentVolumeClaim> {
    let mut pvcs = api(scope).list(&ListParams::default()).await.unwrap().items;
    pvcs.retain(|pvc| pvc.metadata.deletion_timestamp.is_none());
    pvcs
}

/// PVCs of an instance ID that a set owns.
pub async fn list_of_instance(scope: &Scope, id: i64) -> Vec<PersistentVolumeClaim> {
    let mut pvcs = list_live(scope).await;
    pvcs.retain(|pvc| {
        pvc.labels()[keys::INSTANCE_ID] == id.to_string() && !pvc.owner_references().is_empty()
    });
    pvcs
}

pub async fn names(scope: &Scope) -> Vec<String> {
    list_live(scope)
        .await
        .iter()
        .map(ResourceExt::name_any)
        .collect()
}

/// Removes the control label from the PVC of instance 1, so that no cache shows the PVC, and deletes the Pod. Asserts
/// that the next Pod mounts the same PVC, and that the label is restored.
pub async fn assert_control_label_comes_back(scope: &Scope, set: &Set<'_>) {
    let pod = set.pods().await[&1].clone();
    let pvc = mounted(&pod).remove(0);
    let edit = Patch::Merge(json!({ "metadata": { "labels": { keys::CONTROL: null } } }));
    let lost = api(scope).patch(&pvc, &PatchParams::default(), &edit).await;
    lost.unwrap();
    scope.delete(&pod.name_any()).await.unwrap();
    scope.until_gone(&pod).await;
    let pods = set
        .until_pods("the next one", |pods| ids(pods) == [0, 1])
        .await;
    assert_eq!(mounted(&pods[&1]), std::slice::from_ref(&pvc));
    let pvc = get(scope, &pvc).await;
    assert_eq!(pvc.labels()[keys::CONTROL], keys::CONTROL_VALUE);
}

/// Names of the PVCs that a Pod mounts.
pub fn mounted(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let pvcs = volumes.filter_map(|v| v.persistent_volume_claim.as_ref());
    pvcs.map(|c| c.claim_name.clone()).collect()
}

async fn until_count(scope: &Scope, count: usize) {
    wait::until(&format!("{count} PVCs"), async || {
        list_live(scope).await.len() == count
    })
    .await;
}

async fn delete(set: &Set<'_>) {
    set.api
        .delete(set.name, &DeleteParams::default())
        .await
        .unwrap();
    wait::until("the set to be deleted", async || {
        set.api.get_opt(set.name).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn pvcs_are_deleted_with_their_pods() {
    let scope = Bed::shared().await.scope("pvcs").await;
    volumes(&scope, 4).await;
    let set = Set::new(&scope, "web", 2, template(&scope, "1Gi")).await;
    for (id, pod) in set.pods().await {
        assert_eq!(
            mounted(&pod),
            [list_of_instance(&scope, id).await[0].name_any()]
        );
    }
    // A recreated Pod finds its data.
    let before = set.pod(0).await;
    scope.delete(&before.name_any()).await.unwrap();
    let after = set
        .until_pods("the lost one", |pods| {
            pods.get(&0).is_some_and(|p| p.uid() != before.uid())
        })
        .await;
    assert_eq!(mounted(&after[&0]), mounted(&before));
    set.settled().await;
    set.edit(json!({ "replicas": 1 })).await;
    until_count(&scope, 1).await;
    let remaining = set.until_pods("one", |pods| pods.len() == 1).await;
    let remaining = remaining.values().next().unwrap();
    assert_eq!(mounted(remaining), names(&scope).await);
    delete(&set).await;
    until_count(&scope, 0).await;
}

#[tokio::test]
async fn events_name_deleted_pvcs() {
    let scope = Bed::shared().await.scope("pvcs-told").await;
    volumes(&scope, 2).await;
    let mut spec = template(&scope, "1Gi");
    spec["scaleStrategy"] =
        json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Retain" } });
    let set = Set::new(&scope, "web", 2, spec).await;
    let all = names(&scope).await;
    set.edit(json!({ "replicas": 1 })).await;
    set.settled().await;
    // The scale-in keeps the Pod that became Ready first, which may be either.
    let remaining = set.until_pods("one", |pods| pods.len() == 1).await;
    let mounted = mounted(remaining.values().next().unwrap());
    let retained = all.iter().find(|pvc| !mounted.contains(pvc)).unwrap();
    // The API server keeps a mounted PVC until its Pod has ended.
    let pvcs = api(&scope);
    let params = DeleteParams::default();
    pvcs.delete(&mounted[0], &params).await.unwrap();
    until_event(&scope, "ClaimTerminating", &mounted[0]).await;
    set.edit(json!({ "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": null } }))
        .await;
    until_event(&scope, "ClaimDeleted", retained).await;
}

#[tokio::test]
async fn deleted_pvc_of_unschedulable_pod_is_recreated() {
    let scope = Bed::shared().await.scope("unscheduled").await;
    volumes(&scope, 2).await;
    let mut spec = template(&scope, "1Gi");
    spec["template"]["spec"]["nodeSelector"] = json!({ "plane.test/none": "true" });
    let set = Set::unsettled(&scope, "web", 1, spec).await;
    let pods = set.until_pods("its Pod", |pods| ids(pods) == [0]).await;
    let name = mounted(&pods[&0])[0].clone();
    let uid = get(&scope, &name).await.uid();
    wait::until("it to be bound", async || {
        let status = get(&scope, &name).await.status;
        status.is_some_and(|status| status.phase.as_deref() == Some("Bound"))
    })
    .await;
    // Nothing keeps this PVC: its Pod is on no node.
    api(&scope)
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    wait::until("another PVC of the name", async || {
        let pvc = api(&scope).get_opt(&name).await.unwrap();
        pvc.is_some_and(|pvc| pvc.uid() != uid)
    })
    .await;
    assert_eq!(list_of_instance(&scope, 0).await.len(), 1);
    assert_eq!(set.pod(0).await.uid(), pods[&0].uid());
}

#[tokio::test]
async fn retained_pvcs_are_reused() {
    let scope = Bed::shared().await.scope("retain").await;
    volumes(&scope, 2).await;
    let mut spec = template(&scope, "1Gi");
    spec["scaleStrategy"] = json!({ "persistentVolumeClaimRetentionPolicy": {
        "whenScaled": "Retain", "whenDeleted": "Retain",
    } });
    let set = Set::new(&scope, "web", 2, spec.clone()).await;
    let pvcs = names(&scope).await;
    set.edit(json!({ "replicas": 0 })).await;
    set.settled().await;
    assert_eq!(names(&scope).await, pvcs);
    set.edit(json!({ "replicas": 2 })).await;
    set.settled().await;
    assert_eq!(names(&scope).await, pvcs);
    delete(&set).await;
    assert_eq!(names(&scope).await, pvcs);
    for pvc in list_live(&scope).await {
        assert!(pvc.owner_references().is_empty());
    }
    let set = Set::new(&scope, "web", 2, spec).await;
    let pods = set.pods().await;
    let mut mounted: Vec<_> = pods.values().flat_map(mounted).collect();
    mounted.sort();
    assert_eq!((mounted, names(&scope).await), (pvcs.clone(), pvcs));
    for pvc in list_live(&scope).await {
        assert_eq!(pvc.owner_references().len(), 1);
    }
}

#[tokio::test]
async fn retention_policies_apply_independently() {
    for (scaled, deleted, remaining) in [("Delete", "Retain", [1, 1]), ("Retain", "Delete", [2, 0])]
    {
        let scope = Bed::shared().await.scope("retain-mixed").await;
        volumes(&scope, 2).await;
        let mut spec = template(&scope, "1Gi");
        spec["scaleStrategy"] = json!({ "persistentVolumeClaimRetentionPolicy": {
            "whenScaled": scaled, "whenDeleted": deleted,
        } });
        let set = Set::new(&scope, "web", 2, spec).await;
        set.edit(json!({ "replicas": 1 })).await;
        set.settled().await;
        until_count(&scope, remaining[0]).await;
        let pods = set.pods().await;
        let mounted: Vec<_> = pods.values().flat_map(mounted).collect();
        let existing = names(&scope).await;
        assert!(existing.contains(&mounted[0]), "{existing:?}");
        delete(&set).await;
        until_count(&scope, remaining[1]).await;
        let freed = list_live(&scope)
            .await
            .iter()
            .all(|c| c.owner_references().is_empty());
        assert!(freed, "what is retained belongs to nobody");
    }
}

#[tokio::test]
async fn changed_pvc_template_recreates_pods_and_pvcs() {
    let scope = Bed::shared().await.scope("pvc-update").await;
    volumes(&scope, 4).await;
    let set = Set::new(&scope, "web", 2, template(&scope, "1Gi")).await;
    let (before, pods) = (names(&scope).await, set.names().await);
    set.edit(template(&scope, "2Gi")).await;
    set.settled().await;
    assert!(set.names().await.iter().all(|name| !pods.contains(name)));
    assert_eq!(ids(&set.pods().await), [0, 1]);
    wait::until("the old PVCs to be deleted", async || {
        let names = names(&scope).await;
        names.len() == 2 && names.iter().all(|name| !before.contains(name))
    })
    .await;
    for pvc in list_live(&scope).await {
        let requests = pvc.spec.unwrap().resources.unwrap().requests.unwrap();
        assert_eq!(requests["storage"].0, "2Gi");
    }
}
