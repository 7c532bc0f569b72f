//! Pods with controller references that their author invented: the API server checks neither kind nor name of one.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::bed::objects::{at_once, is_available, refusal};
use crate::bed::observer::Observer;
use crate::bed::{Bed, wait};
use crate::owners;

#[tokio::test]
async fn pod_with_a_forged_owner_name_does_not_hide_the_owner() {
    let scope = Bed::shared().await.scope("forged").await;
    let set = scope.stateful_set(0).await.uid();
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    let owner = json!([{
        "apiVersion": "foo/v1", "kind": "Foo", "name": "a/b", "uid": set, "controller": true,
    }]);
    let forged = json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": owner}});
    scope.pod("forged", forged).await;
    // An eviction asks for the owners of the rule, whether it goes through or not.
    let _ = scope.evict("forged").await;
    let replicas = Patch::Merge(json!({"spec": {"replicas": 6}}));
    let sets = scope.stateful_sets();
    sets.patch("web", &PatchParams::default(), &replicas)
        .await
        .unwrap();
    wait::until("six Pods of the StatefulSet", async || {
        let pods = scope.list("app=web").await;
        let own = pods.iter().filter(|p| p.name_any() != "forged");
        own.filter(|p| is_available(p)).count() == 6
    })
    .await;
    let _ = scope.delete("forged").await;
    let observer = Observer::start(&scope).await;
    let pods: Vec<_> = (0..6).map(|n| format!("web-{n}")).collect();
    let outcomes = at_once(&pods, async |pod| scope.delete(&pod).await).await;
    assert!(outcomes.iter().filter(|o| o.is_ok()).count() <= 1);
    observer
        .fewest_available(|p| p.name_any() != "forged", 6)
        .await
        .at_least(5);
}

#[tokio::test]
async fn pod_with_a_forged_owner_name_does_not_hide_a_custom_owner() {
    let scope = Bed::shared().await.scope("forged-custom").await;
    let kind = owners::kind(&scope, "Armada", true).await;
    let owner = owners::owner(&scope, &kind, 4).await;
    let mut forged = owner.clone();
    // Of a kind that is not served: of one that is, the garbage collector would miss the object and delete the Pod.
    forged[0]["apiVersion"] = json!("forged.test/v1");
    let forged = json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": forged}});
    scope.pod("forged", forged).await;
    scope.all_available("app=web", 1).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 1).await;
    let pods: Vec<_> = (0..4).map(|n| format!("web-{n}")).collect();
    let extra = || json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": owner}});
    at_once(&pods, async |name| scope.pod(&name, extra()).await).await;
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
    owners::delete_and_wait(&scope, &pods[0]).await;
    for pod in &pods[1..] {
        let status = refusal(scope.delete(pod).await);
        assert!(status.message.contains("1 of 5 Pods"), "{status:?}");
    }
}
