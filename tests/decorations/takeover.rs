//! Objects as Kuperator stored them, which Operating takes over without a change of a Pod.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use kube::api::ListParams;
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::poddecoration::PodDecoration;
use operating::api::resourcecontext::ResourceContext;
use serde_json::{Value, json};
use testbed::{Bed, Scope};

use crate::fixtures::{Decoration, SIDE, by_partition, image_of, mark, side_images};
use crate::sets::{Pods, Set, uids};

const API: &str = "apps.kusionstack.io/v1alpha1";
/// Names that Kuperator gave to the revisions of the objects below.
const SET_REVISION: &str = "web-84dc4b6f4b";
const REVISION: &str = "deco-5fc49b7cf4";

/// What Kuperator had done when it was stopped.
struct Stored {
    /// `rollingUpdate` of the set.
    rolling_update: Value,
    /// Whether the Pods have the decoration.
    is_decorated: bool,
}

fn sidecar() -> Value {
    json!({ "name": SIDE, "image": "side:1" })
}

/// A revision in the form in which Go writes it.
fn revision(name: &str, owner: &Value, data: Value) -> Value {
    let hash = name.rsplit('-').next();
    json!({
        "metadata": { "name": name, "ownerReferences": [owner], "labels": {
            "app": "web", keys::REVISION_DATA_HASH: hash, keys::REVISION_COLLISION: "0",
        } },
        "revision": 1, "data": { "spec": data },
    })
}

fn owner(kind: &str, name: &str, uid: Option<String>) -> Value {
    json!({
        "apiVersion": API, "kind": kind, "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true,
    })
}

/// Creates a set of two Pods. Returns the reference to it.
async fn store_set(scope: &Scope, rolling_update: &Value) -> Value {
    let set: CollaSet = scope
        .store(json!({
            "apiVersion": API, "kind": "CollaSet",
            "metadata": { "name": "web", "finalizers": [keys::PRE_RECLAIM_FINALIZER] },
            "spec": {
                "replicas": 2, "scaleStrategy": {}, "selector": { "matchLabels": { "app": "web" } },
                "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": rolling_update },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
                },
            },
        }))
        .await;
    let counts = [
        "replicas",
        "scheduledReplicas",
        "readyReplicas",
        "availableReplicas",
        "updatedReplicas",
    ];
    let mut status = json!({
        "observedGeneration": 1, "currentRevision": SET_REVISION, "updatedRevision": SET_REVISION, "collisionCount": 0,
    });
    for count in counts {
        status[count] = json!(2);
    }
    scope.store_status::<CollaSet>("web", status).await;
    let owner = owner("CollaSet", "web", set.uid());
    let template = json!({
        "$patch": "replace", "metadata": { "creationTimestamp": null, "labels": { "app": "web" } },
        "spec": { "containers": [{ "image": "app:1", "name": "app", "resources": {} }] },
    });
    let data = json!({ "template": template });
    scope
        .store::<ControllerRevision>(revision(SET_REVISION, &owner, data))
        .await;
    owner
}

/// Creates the PodDecoration `deco`. Returns the reference that Kuperator adds to Pods.
async fn store_decoration(scope: &Scope, is_decorated: bool) -> Value {
    let additions = || json!([{ "annotations": { "deco": "1" }, "patchPolicy": "Overwrite" }]);
    let mut container = sidecar();
    container["injectPolicy"] = json!("AfterPrimaryContainer");
    let stored: PodDecoration = scope
        .store(json!({
            "apiVersion": API, "kind": "PodDecoration",
            "metadata": { "name": "deco", "finalizers": ["finalizer.operating.kusionstack.io/protected"] },
            "spec": {
                "historyLimit": 20, "weight": 0, "updateStrategy": {}, "selector": { "matchLabels": { "app": "web" } },
                "template": { "containers": [container], "metadata": additions() },
            },
        }))
        .await;
    let current = if is_decorated { REVISION } else { "" };
    let decorated = if is_decorated { 2 } else { 0 };
    scope
        .store_status::<PodDecoration>(
            "deco",
            json!({
                "observedGeneration": 1, "currentRevision": current, "updatedRevision": REVISION,
                "matchedPods": 2, "injectedPods": decorated, "updatedPods": decorated,
                "details": [{ "collaSet": "web", "affectedReplicas": 2 }],
            }),
        )
        .await;
    // Go adds empty fields.
    container["resources"] = json!({});
    let template =
        json!({ "$patch": "replace", "containers": [container], "metadata": additions() });
    let mut owner = owner("PodDecoration", "deco", stored.uid());
    let data = json!({ "template": template, "weight": 0 });
    scope
        .store::<ControllerRevision>(revision(REVISION, &owner, data))
        .await;
    let reference = owner.as_object_mut().unwrap();
    reference.retain(|key, _| !["controller", "blockOwnerDeletion"].contains(&key.as_str()));
    owner
}

/// Creates the Pods and the pool.
async fn store_pods(scope: &Scope, mut owners: Vec<Value>, is_decorated: bool) {
    let record = match is_decorated {
        true => json!([{ "name": "deco", "revision": REVISION }]).to_string(),
        false => "[]".to_owned(),
    };
    let entry = |id: i64| {
        let data =
            json!({ "Owner": "web", "Revision": SET_REVISION, "PodDecorationRevisions": record });
        json!({ "id": id, "data": data })
    };
    scope
        .store::<ResourceContext>(json!({
            "apiVersion": API, "kind": "ResourceContext",
            "metadata": { "name": "web" }, "spec": { "contexts": [entry(0), entry(1)] },
        }))
        .await;
    let mut containers = vec![json!({ "name": "app", "image": "app:1" })];
    let mut annotations = json!({ keys::DECORATIONS: record });
    let mut labels = json!({
        "app": "web", keys::CONTROL: "true", keys::REVISION: SET_REVISION,
        keys::SERVICE_AVAILABLE: "1700000000000000000",
    });
    if is_decorated {
        containers.push(sidecar());
        annotations["deco"] = json!("1");
        labels[mark("deco")] = json!(REVISION);
    } else {
        owners.truncate(1);
    }
    for id in 0..2 {
        labels[keys::INSTANCE_ID] = json!(id.to_string());
        scope
            .store_serving_pod(json!({
                "metadata": {
                    "generateName": "web-", "ownerReferences": owners, "labels": labels, "annotations": annotations,
                },
                "spec": {
                    "containers": containers, "readinessGates": [{ "conditionType": keys::SERVICE_READY }],
                },
            }))
            .await;
    }
}

/// Takes over what Kuperator stored. Returns the Pods as they were before.
async fn taken_over<'a>(
    bed: &Bed,
    scope: &'a Scope,
    stored: Stored,
) -> (Set<'a>, Decoration<'a>, Pods) {
    bed.without_server().await;
    let set_owner = store_set(scope, &stored.rolling_update).await;
    let decoration_owner = store_decoration(scope, stored.is_decorated).await;
    let owners = vec![set_owner, decoration_owner];
    store_pods(scope, owners, stored.is_decorated).await;
    scope.all_available("app=web", 2).await;
    let set = Set::named(scope, "web");
    let before = set.pods().await;
    bed.with_server().await;
    (set, Decoration::named(scope, "deco"), before)
}

fn assert_unchanged(before: &Pods, after: &Pods) {
    assert_eq!(uids(after), uids(before));
    for (id, pod) in after {
        let (now, former) = (&pod.metadata, &before[id].metadata);
        assert_eq!(now.labels, former.labels, "ID {id}");
        assert_eq!(now.annotations, former.annotations, "ID {id}");
        assert_eq!(now.owner_references, former.owner_references, "ID {id}");
        assert_eq!(now.generation, former.generation, "ID {id}");
    }
}

#[tokio::test]
async fn kuperator_decorations_are_taken_over_without_touching_pods() {
    let bed = Bed::own().await;
    let scope = bed.scope("deco-takeover").await;
    let stored = Stored {
        rolling_update: json!({ "byPartition": {} }),
        is_decorated: true,
    };
    let (set, deco, before) = taken_over(&bed, &scope, stored).await;
    let status = deco.settled().await.status.unwrap();
    set.settled().await;
    let revisions = (&*status.current_revision, &*status.updated_revision);
    assert_eq!(revisions, (REVISION, REVISION));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_unchanged(&before, &set.pods().await);
    let revisions = scope.api::<ControllerRevision>();
    let list = revisions.list(&ListParams::default()).await.unwrap();
    let names: BTreeSet<_> = list.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, [SET_REVISION, REVISION].map(str::to_owned).into());

    // The rollout goes on from there.
    let next = json!({ "template": { "containers": [
        { "name": SIDE, "image": "side:2", "injectPolicy": "AfterPrimaryContainer" },
    ] } });
    deco.edit(next).await;
    deco.settled().await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(side_images(&after), [Some("side:2"); 2]);
    deco.delete().await;
    deco.until_gone().await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [None; 2]);
}

/// Kuperator does not decorate the Pods of a set whose partition holds all of them back.
#[tokio::test]
async fn set_that_kuperator_held_back_is_left_alone_until_a_change() {
    let bed = Bed::own().await;
    let scope = bed.scope("deco-held-back").await;
    let stored = Stored {
        rolling_update: json!({ "byPartition": { "partition": 2 } }),
        is_decorated: false,
    };
    let (set, deco, before) = taken_over(&bed, &scope, stored).await;
    set.settled().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_unchanged(&before, &set.pods().await);
    // Another leader does not change this.
    let leader = bed.leader().await;
    bed.kill(leader).await;
    bed.restart(leader).await;
    bed.leader().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_unchanged(&before, &set.pods().await);

    deco.edit(json!({ "weight": 1 })).await;
    deco.settled().await;
    set.settled().await;
    let pods = set.pods().await;
    assert_eq!(side_images(&pods), [Some("side:1"); 2]);
    assert!(
        pods.values()
            .all(|pod| image_of(pod, "app") == Some("app:1"))
    );
    deco.edit(by_partition(0)).await;
    deco.settled().await;
}
