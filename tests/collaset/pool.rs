//! Instance IDs, and people who edit them.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::api::resourcecontext::{ContextDetail, ResourceContext};
use serde_json::json;

use crate::bed::{Bed, wait};
use crate::sets::{Set, label, uids};

/// Waits until the pool holds as many IDs with the updated revision.
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
async fn a_pool_that_was_edited_is_mended_and_no_pod_goes() {
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
async fn a_pool_that_is_lost_in_an_update_is_made_again() {
    let scope = Bed::shared().await.scope("pool-lost").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    set.hold().await;
    set.image("app:2").await;
    set.until_pods("to be begun", |pods| {
        pods.values().all(crate::sets::is_operating)
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
async fn of_two_pods_with_one_id_the_younger_goes() {
    let scope = Bed::shared().await.scope("pool-twice").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let owner = before[&0].owner_references()[0].clone();
    // Times of creation are whole seconds.
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
async fn an_empty_pool_goes_unless_a_set_uses_it() {
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
    let there = async |name: &str| set.pools().get_opt(name).await.unwrap().is_some();
    wait::until("the empty one to go", async || !there("empty").await).await;
    assert!(there("used").await && there("taken").await);
    // Nobody is left to use the other one once its entries are gone.
    let edit = Patch::Merge(json!({ "spec": { "contexts": null } }));
    let (pools, params) = (set.pools(), PatchParams::default());
    pools.patch("taken", &params, &edit).await.unwrap();
    wait::until("that one to go", async || !there("taken").await).await;
    assert!(there("used").await);
}
