//! Sets that are deleted.

use kube::api::{DeleteParams, ListParams, Preconditions, PropagationPolicy};
use operating::api::keys;
use serde_json::json;

use crate::bed::{Bed, wait};
use crate::sets::{Set, condition, label, uids};

async fn until_gone(set: &Set<'_>) {
    wait::until("the set to go", async || {
        set.api.get_opt(set.name).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn its_pods_go_through_their_lifecycle_before_it() {
    let scope = Bed::shared().await.scope("delete").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    set.hold().await;
    set.api
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    set.until_pods("all to be told", |pods| {
        pods.len() == 2 && pods.values().all(|p| label(p, keys::TO_DELETE).is_some())
    })
    .await;
    let going = set
        .until("to say that it is going", |set| {
            condition(set, "Terminating").is_some()
        })
        .await;
    let terminating = condition(&going, "Terminating").unwrap();
    assert_eq!(
        (&*terminating.status, &*terminating.reason),
        ("False", "ReclaimingTargetsDeletion")
    );
    set.release().await;
    until_gone(&set).await;
    assert_eq!(scope.list("app=web").await.len(), 0);
    assert_eq!(
        set.pools()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        0
    );
}

#[tokio::test]
async fn orphaned_pods_stay_and_serve() {
    let scope = Bed::shared().await.scope("orphan").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        preconditions: Some(Preconditions::default()),
        ..DeleteParams::default()
    };
    set.api.delete("web", &orphan).await.unwrap();
    until_gone(&set).await;
    let after = scope.all_available("app=web", 2).await;
    let kept = |uid: &String| after.iter().any(|p| p.metadata.uid.as_ref() == Some(uid));
    assert!(uids(&before).values().all(kept));
    for pod in after {
        assert_eq!(pod.metadata.owner_references, None);
        assert_eq!(label(&pod, keys::TO_DELETE), None);
    }
}
