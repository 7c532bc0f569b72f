//! The pools of instance IDs, also when people edit them.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::api::resourcecontext::{ContextDetail, ResourceContext};
use operating::domain::collaset::headroom;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::{Bed, wait};

use crate::fixtures::{Pods, Set, condition, image, label, uids, until_condition_false};

/// Waits until the pool holds this number of IDs with the updated revision.
async fn until_mended(set: &Set<'_>, count: usize) -> ResourceContext {
    wait::value("the pool to be mended", async || {
        let updated = set.get().await.status.unwrap().updated_revision;
        let pool = set.pools().get_opt(set.name).await.unwrap()?;
        let mut contexts = pool.spec.contexts.iter().enumerate();
        let good = |(index, context): (usize, &ContextDetail)| {
            usize::try_from(context.id) == Ok(index)
                && context.data.get("Owner").map(String::as_str) == Some(set.name)
                && context.data.get("Revision") == Some(&updated)
        };
        (pool.spec.contexts.len() == count && contexts.all(good)).then_some(pool)
    })
    .await
}

#[tokio::test]
async fn edited_pool_is_repaired_and_no_pod_is_deleted() {
    let scope = Bed::shared().await.scope("pool").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    let mut contexts = until_mended(&set, 3).await.spec.contexts;
    contexts[0]
        .data
        .insert("Revision".into(), "web-nonsense".into());
    contexts[1].id = 7;
    let edit = Patch::Merge(json!({ "spec": { "contexts": contexts } }));
    set.pools()
        .patch("web", &PatchParams::default(), &edit)
        .await
        .unwrap();
    until_mended(&set, 3).await;
    set.settled().await;
    assert_eq!(uids(&set.pods().await), uids(&before));
}

#[tokio::test]
async fn pool_lost_during_update_is_recreated() {
    let scope = Bed::shared().await.scope("pool-lost").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    set.hold().await;
    set.image("app:2").await;
    set.until_pods("to be begun", |pods| {
        pods.values().all(crate::fixtures::is_operating)
    })
    .await;
    set.pools()
        .delete("web", &Default::default())
        .await
        .unwrap();
    until_mended(&set, 3).await;
    set.release().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
    assert_eq!(uids(&set.pods().await), uids(&before));
}

#[tokio::test]
async fn younger_of_two_pods_with_equal_id_is_deleted() {
    let scope = Bed::shared().await.scope("pool-twice").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let owner = before[&0].owner_references()[0].clone();
    // Creation timestamps have whole seconds, so the test makes them differ.
    let born = before[&0].creation_timestamp().unwrap();
    wait::until("another second", async || {
        k8s_openapi::jiff::Timestamp::now().as_second() > born.0.as_second() + 1
    })
    .await;
    let twin = json!({
        "metadata": {
            "name": "twin", "ownerReferences": [owner],
            "labels": {
                "app": "web", keys::CONTROL: "true", keys::INSTANCE_ID: "0",
                keys::REVISION: label(&before[&0], keys::REVISION),
            },
        },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    let twin = serde_json::from_value(twin).unwrap();
    let twin = scope
        .pods()
        .create(&PostParams::default(), &twin)
        .await
        .unwrap();
    scope.until_gone(&twin).await;
    set.settled().await;
    assert_eq!(uids(&set.pods().await), uids(&before));
}

#[tokio::test]
async fn empty_pool_is_deleted_unless_a_set_uses_it() {
    let scope = Bed::shared().await.scope("pool-empty").await;
    let context = json!({ "scaleStrategy": { "context": "used" } });
    let set = Set::new(&scope, "web", 0, context).await;
    let entry = json!({ "id": 0, "data": { "Owner": "somebody" } });
    let pools = [
        ("used", json!([])),
        ("taken", json!([entry])),
        ("empty", json!([])),
    ];
    for (name, contexts) in &pools {
        let pool = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "ResourceContext",
            "metadata": { "name": name }, "spec": { "contexts": contexts },
        });
        let pool = serde_json::from_value(pool).unwrap();
        let created = set.pools().create(&PostParams::default(), &pool).await;
        created.unwrap();
    }
    let exists = async |name: &str| set.pools().get_opt(name).await.unwrap().is_some();
    wait::until("the empty pool to be deleted", async || {
        !exists("empty").await
    })
    .await;
    assert!(exists("used").await && exists("taken").await);
    // No CollaSet uses the other pool, so it can be deleted once its entries are gone.
    let edit = Patch::Merge(json!({ "spec": { "contexts": null } }));
    let (pools, params) = (set.pools(), PatchParams::default());
    pools.patch("taken", &params, &edit).await.unwrap();
    wait::until("the unused pool to be deleted", async || {
        !exists("taken").await
    })
    .await;
    assert!(exists("used").await);
}

/// Largest object in bytes that etcd stores.
const ETCD: usize = 1_572_864;

/// A pool with these entries.
fn pool_of(name: &str, contexts: &[Value]) -> ResourceContext {
    let pool = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "ResourceContext",
        "metadata": { "name": name }, "spec": { "contexts": contexts },
    });
    serde_json::from_value(pool).unwrap()
}

#[tokio::test]
async fn largest_pool_is_stored_with_bytes_to_spare() {
    let scope = Bed::shared().await.scope("pool-large").await;
    let set = Set::named(&scope, "web");
    let owner = "n".repeat(34);
    let fresh = |count: usize| -> Vec<Value> {
        let revision = format!("{owner}-5f6d7c8b9d");
        let data = json!({ "Owner": owner, "PodJustCreate": "true", "Revision": revision });
        let ids = 0..count;
        ids.map(|id| json!({ "id": id + 10_000, "data": data }))
            .collect()
    };
    let (create, params) = (PostParams::default(), PatchParams::default());
    for count in [2_000, headroom::max_replicas(&owner)] {
        let name = format!("pool-{count}");
        let pool = pool_of(&name, &fresh(1));
        set.pools().create(&create, &pool).await.unwrap();
        let all = Patch::Merge(json!({ "spec": { "contexts": fresh(count) } }));
        set.pools().patch(&name, &params, &all).await.unwrap();
        let stored = set.pools().get(&name).await.unwrap();
        let managed = serde_json::to_string(&stored.metadata.managed_fields).unwrap();
        let (object, managed) = (serde_json::to_string(&stored).unwrap().len(), managed.len());
        println!("{count} IDs: {object} bytes, of them {managed} of managedFields");
        // The list of contexts is atomic: server-side apply treats it as one field, however long it is.
        assert!(managed < 2_000 && object + 50_000 < ETCD, "{object}");
    }
    let beyond = pool_of("beyond", &fresh(ETCD / 130));
    let refused = set.pools().create(&create, &beyond).await.unwrap_err();
    println!("{refused:?}");
    assert!(refused.to_string().contains("too large"), "{refused}");
}

#[tokio::test]
async fn set_with_full_pool_continues_with_its_instance_ids() {
    let scope = Bed::shared().await.scope("pool-full").await;
    let set = Set::named(&scope, "web");
    // The pool has room for five IDs of the set.
    let entry = headroom::MAX_POOL_BYTES / headroom::max_replicas("web");
    let foreign = |id: usize, filler: usize| {
        let data =
            json!({ "Owner": "somebody", "PodJustCreate": "true", "Note": "x".repeat(filler) });
        json!({ "id": id, "data": data })
    };
    // The size as the bound counts it, with the commas after the last key and after the entry.
    let frame = foreign(1000, 0).to_string().len() + 2;
    let bytes = headroom::MAX_POOL_BYTES - 5 * entry - entry / 2;
    let filler = |id: usize| bytes / 100 - frame + if id == 1000 { bytes % 100 } else { 0 };
    let others = (1000..1100).map(|id| foreign(id, filler(id)));
    let others: Vec<Value> = others.collect();
    let pool = pool_of("shared", &others);
    let created = set.pools().create(&PostParams::default(), &pool).await;
    created.unwrap();
    let context = json!({ "scaleStrategy": { "context": "shared" } });
    let set = Set::new(&scope, "web", 3, context).await;
    let before = uids(&set.pods().await);
    set.edit(json!({ "replicas": 12 })).await;
    let full =
        "ResourceContext shared is full with 5 instance IDs of this CollaSet and 100 of others";
    until_condition_false(&set, "Scale", "Scaling", full).await;
    let five = |pods: &Pods| pods.len() == 5 && pods.values().all(is_available);
    set.until_pods("those that there is room for", five).await;
    set.image("app:2").await;
    let pods = set
        .until_pods("the new image", |pods| {
            five(pods) && pods.values().all(|pod| image(pod) == "app:2")
        })
        .await;
    for (id, uid) in &before {
        assert_eq!(pods[id].uid().as_ref(), Some(uid), "changed in place");
    }
    let name = pods[&0].name_any();
    scope.delete(&name).await.unwrap();
    set.until_pods("the first again", |pods| {
        five(pods) && pods[&0].uid().as_ref() != before.get(&0)
    })
    .await;
    assert_eq!(
        condition(&set.get().await, "Scale").unwrap().status,
        "False"
    );
    wait::until("the others to be deleted", async || {
        let mut pool = set.pools().get("shared").await.unwrap();
        let others = |c: &ContextDetail| c.data["Owner"] == "somebody";
        pool.spec.contexts.retain(|context| !others(context));
        let params = PostParams::default();
        set.pools().replace("shared", &params, &pool).await.is_ok()
    })
    .await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 12]);
}
