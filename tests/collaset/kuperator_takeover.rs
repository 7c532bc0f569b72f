//! A set that Kuperator has stored, and that Operating takes over.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::resourcecontext::ResourceContext;
use serde_json::{Value, json};
use testbed::{Bed, Scope};

use crate::fixtures::{Set, ids, uids};

const REVISION: &str = "web-6d4cf56db6";
/// Kuperator's hash of the PVC template below, from `golden-1.22.jsonl`.
const PVC_HASH: &str = "55999b8fb9";

fn pvc_template() -> Value {
    json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn containers() -> Value {
    json!([{ "name": "app", "image": "app:1", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }])
}

/// The objects that Kuperator stores for a set of two Pods with one PVC each.
async fn left_behind(scope: &Scope) {
    let set: CollaSet = scope.store(
        json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": "web", "finalizers": [keys::PRE_RECLAIM_FINALIZER] },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "web" } },
                "updateStrategy": {
                    "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": {} },
                },
                "template": {
                    "metadata": { "labels": { "app": "web" } }, "spec": { "containers": containers() },
                },
                "volumeClaimTemplates": [pvc_template()],
            },
        }),
    )
    .await;
    let owner = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web",
        "uid": set.uid().unwrap(), "controller": true, "blockOwnerDeletion": true,
    });
    let status = json!({
        "observedGeneration": 1, "currentRevision": REVISION, "updatedRevision": REVISION, "collisionCount": 0,
        "replicas": 2, "scheduledReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "updatedReplicas": 2, "updatedReadyReplicas": 2, "updatedAvailableReplicas": 2, "operatingReplicas": 0,
        "conditions": [
            { "type": "Scale", "status": "True", "reason": "Scaled", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            { "type": "Update", "status": "True", "reason": "Updated", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ],
    });
    scope.store_status::<CollaSet>("web", status).await;
    // The form in which Go writes typed objects: with nulls and empty values, without defaults.
    let mut by_go = containers();
    by_go[0]["resources"] = json!({});
    let mut pvc = pvc_template();
    pvc["metadata"]["creationTimestamp"] = Value::Null;
    pvc["status"] = json!({});
    scope.store::<ControllerRevision>(
        json!({
            "metadata": {
                "name": REVISION, "ownerReferences": [owner],
                "labels": { "app": "web", keys::REVISION_DATA_HASH: "6d4cf56db6", keys::REVISION_COLLISION: "0" },
            },
            "revision": 1,
            "data": { "spec": {
                "template": {
                    "$patch": "replace",
                    "metadata": { "creationTimestamp": null, "labels": { "app": "web" } },
                    "spec": { "containers": by_go },
                },
                "volumeClaimTemplates": [pvc],
            } },
        }),
    )
    .await;
    let entry = |id: i64| json!({ "id": id, "data": { "Owner": "web", "Revision": REVISION } });
    scope
        .store::<ResourceContext>(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "ResourceContext",
            "metadata": { "name": "web" }, "spec": { "contexts": [entry(0), entry(1)] },
        }))
        .await;
    for id in 0..2 {
        instance(scope, id, &owner).await;
    }
}

/// Creates a serving Pod and its PVC.
async fn instance(scope: &Scope, id: i64, owner: &Value) {
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let volume = json!({
        "metadata": { "name": format!("{}-{id}", scope.namespace) },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "hostPath": { "path": "/nowhere" },
        },
    });
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    let mut pvc = pvc_template();
    pvc["metadata"] = json!({
        "generateName": "web-data-", "ownerReferences": [owner],
        "labels": {
            "app": "web", keys::CONTROL: "true", keys::INSTANCE_ID: id.to_string(),
            keys::PVC_TEMPLATE_NAME: "data", keys::PVC_TEMPLATE_HASH: PVC_HASH,
        },
    });
    let pvc: PersistentVolumeClaim = scope.store(pvc).await;
    scope.store_serving_pod(
        json!({
            "metadata": {
                "generateName": "web-", "ownerReferences": [owner],
                "labels": {
                    "app": "web", keys::CONTROL: "true", keys::INSTANCE_ID: id.to_string(),
                    keys::REVISION: REVISION, keys::SERVICE_AVAILABLE: "1700000000000000000",
                },
            },
            "spec": {
                "containers": containers(),
                "readinessGates": [{ "conditionType": keys::SERVICE_READY }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": pvc.name_any() } }],
            },
        }),
    )
    .await;
}

async fn pvc_uids(scope: &Scope) -> Vec<Option<String>> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let list = api.list(&ListParams::default()).await.unwrap();
    list.items.into_iter().map(|c| c.metadata.uid).collect()
}

#[tokio::test]
async fn kuperator_objects_are_taken_over_without_touching_pods() {
    let bed = Bed::own().await;
    let scope = bed.scope("takeover").await;
    bed.without_server().await;
    left_behind(&scope).await;
    scope.all_available("app=web", 2).await;
    let api = Api::namespaced(scope.client.clone(), &scope.namespace);
    let set = Set {
        scope: &scope,
        name: "web",
        api,
    };
    let (before, pvcs_before) = (set.pods().await, pvc_uids(&scope).await);
    bed.with_server().await;

    let status = set.settled().await.status.unwrap();
    assert_eq!(
        (&*status.current_revision, &*status.updated_revision),
        (REVISION, REVISION)
    );
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    for (id, pod) in &after {
        assert_eq!(pod.labels(), before[id].labels());
        assert_eq!(pod.metadata.generation, before[id].metadata.generation);
    }
    assert_eq!(pvc_uids(&scope).await, pvcs_before);
    let revisions: Api<ControllerRevision> =
        Api::namespaced(scope.client.clone(), &scope.namespace);
    assert_eq!(
        revisions
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );

    // The set continues from there.
    let mut next = containers();
    next[0]["image"] = json!("app:2");
    set.edit(json!({ "template": { "spec": { "containers": next } } }))
        .await;
    set.settled().await;
    let updated = set.pods().await;
    assert_eq!(uids(&updated), uids(&before));
    assert_eq!(set.images().await, ["app:2"; 2]);
    set.edit(json!({ "template": { "spec": { "containers": containers() } } }))
        .await;
    let status = set.settled().await.status.unwrap();
    assert_eq!(status.current_revision, REVISION);
    set.edit(json!({ "replicas": 1 })).await;
    set.settled().await;
    assert_eq!(ids(&set.pods().await).len(), 1);
}
