//! Stores objects as they were in another cluster: with their status, their generation, and owners of the new UIDs.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::observer::resource;
use testbed::scope::PAUSED;
use testbed::{Scope, wait};

use crate::fixture::{kind, name};

/// The kinds of the objects, owners first.
pub const KINDS: [(&str, &str); 9] = [
    ("apps.kusionstack.io/v1alpha1", "CollaSet"),
    ("apps.kusionstack.io/v1alpha1", "PodDecoration"),
    ("apps.kusionstack.io/v1alpha1", "PodTransitionRule"),
    ("apps.kusionstack.io/v1alpha1", "OperationJob"),
    ("apps.kusionstack.io/v1alpha1", "ResourceContext"),
    ("apps/v1", "ControllerRevision"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Pod"),
    ("v1", "Event"),
];

/// The objects of a kind in the namespace of a test.
pub fn api(scope: &Scope, kind: &str) -> Api<DynamicObject> {
    let (version, kind) = KINDS.into_iter().find(|(_, known)| *known == kind).unwrap();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = resource(group, version, kind);
    Api::namespaced_with(scope.client.clone(), &scope.namespace, &resource)
}

/// Stores all objects. The server must not run, because its admission would judge them.
pub async fn store(scope: &Scope, objects: &[Value]) {
    let mut uids = HashMap::new();
    for (_, of_kind) in KINDS {
        for object in objects.iter().filter(|object| kind(object) == of_kind) {
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            let stored = store_one(scope, object.clone(), &uids).await;
            uids.insert(uid, stored.uid().unwrap());
        }
    }
    until_bound(scope).await;
    // The kubelet has been paused until all Pods had their statuses.
    let pods = scope.pods();
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        scope.resume_kubelet(&pod.name_any()).await;
    }
}

async fn store_one(
    scope: &Scope,
    mut object: Value,
    uids: &HashMap<String, String>,
) -> DynamicObject {
    let api = api(scope, kind(&object));
    let name = name(&object).to_owned();
    let status = object["status"].take();
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "namespace",
    ] {
        metadata.remove(key);
    }
    for owner in metadata
        .get_mut("ownerReferences")
        .into_iter()
        .flat_map(|o| o.as_array_mut().unwrap())
    {
        let uid = owner["uid"].as_str().unwrap();
        owner["uid"] = uids[uid].clone().into();
    }
    match kind(&object) {
        "PersistentVolumeClaim" => prepare_pvc(scope, &mut object).await,
        "Pod" => prepare_pod(&mut object),
        _ => (),
    }
    let mut first = object.clone();
    if generation > 1 {
        age(&mut first);
    }
    let first = serde_json::from_value(first).unwrap();
    let mut stored = api.create(&PostParams::default(), &first).await.unwrap();
    if generation > 1 && stored.metadata.generation == Some(1) {
        let spec = Patch::Merge(json!({ "spec": object["spec"] }));
        stored = api
            .patch(&name, &PatchParams::default(), &spec)
            .await
            .unwrap();
    }
    // The volume controller of the plane writes the status of PVCs.
    if !status.is_null() && kind(&object) != "PersistentVolumeClaim" {
        let status = Patch::Merge(json!({ "status": status }));
        let params = PatchParams::default();
        stored = api.patch_status(&name, &params, &status).await.unwrap();
    }
    stored
}

/// Changes the spec, so that the real spec is a second generation.
fn age(object: &mut Value) {
    match kind(object) {
        "CollaSet" => object["spec"]["replicas"] = json!(0),
        "Pod" => object["spec"]["containers"][0]["image"] = json!("older:1"),
        _ => (),
    }
}

/// Gives a claim the volume to which it is bound.
async fn prepare_pvc(scope: &Scope, object: &mut Value) {
    let volume = format!("{}-{}", scope.namespace, name(object));
    object["spec"]["volumeName"] = json!(volume);
    // The volume controller of the plane writes these annotations when it binds the claim.
    object["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("annotations");
    let volume = json!({
        "metadata": { "name": volume },
        "spec": {
            "capacity": object["spec"]["resources"]["requests"],
            "accessModes": object["spec"]["accessModes"],
            "storageClassName": object["spec"]["storageClassName"],
            "claimRef": { "namespace": scope.namespace, "name": name(object) },
            "hostPath": { "path": "/nowhere" },
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
}

/// Puts the Pod on a node of the plane, whose kubelet leaves it alone for now.
fn prepare_pod(object: &mut Value) {
    let node = object["spec"]["nodeName"].as_str().unwrap();
    object["spec"]["nodeName"] = json!(match node {
        "node-1" => "worker-0",
        _ => "worker-1",
    });
    object["metadata"]["annotations"][PAUSED] = json!("true");
}

async fn until_bound(scope: &Scope) {
    let claims = scope.api::<PersistentVolumeClaim>();
    wait::until("all claims to be bound", async || {
        let list = claims.list(&ListParams::default()).await.unwrap();
        let is_bound = |claim: &PersistentVolumeClaim| {
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            phase == Some("Bound")
        };
        list.items.iter().all(is_bound)
    })
    .await;
}
