//! Pods with forged controller references: the API server verifies neither the kind nor the name of an owner.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{at_once, is_available, labels};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::expected_replicas;

#[tokio::test]
async fn forged_owner_name_does_not_hide_the_owner() {
    let scope = Bed::shared().await.scope("forged").await;
    let set = scope.stateful_set(0).await.uid();
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    let owner = json!([{
        "apiVersion": "foo/v1", "kind": "Foo", "name": "a/b", "uid": set, "controller": true,
    }]);
    let forged = json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": owner}});
    scope.pod("forged", forged).await;
    // An eviction makes the server read the owners of the rule's Pods, whether it passes or not.
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
async fn forged_owner_name_does_not_hide_a_custom_owner() {
    let scope = Bed::shared().await.scope("forged-custom").await;
    let kind = expected_replicas::kind(&scope, "Armada", true).await;
    let owner = expected_replicas::owner(&scope, &kind, 4).await;
    let mut forged = owner.clone();
    // The forged kind is not served. For a kind that is served, the garbage collector would find that the object is
    // absent and delete the Pod.
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
    expected_replicas::delete_and_wait(&scope, &pods[0]).await;
    for pod in &pods[1..] {
        let status = refusal(scope.delete(pod).await);
        assert!(status.message.contains("1 of 5 Pods"), "{status:?}");
    }
}

/// The garbage collector deletes a ReplicaSet whose controller does not exist, and then its Pods. The Deployment stays.
#[tokio::test]
async fn replica_set_with_a_forged_controller_keeps_its_pods() {
    let scope = Bed::shared().await.scope("forged-maker").await;
    scope.web_under_rule(6, json!(1)).await;
    let observer = Observer::start(&scope).await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "gone", "controller": true,
        "uid": "11111111-1111-4111-8111-111111111111",
    });
    let set = give_controller(&scope, owner).await;
    other_replica_set_takes_over(&scope, &set, &observer).await;
}

#[tokio::test]
async fn deleted_replica_set_with_configmap_owner_keeps_its_pods() {
    let scope = Bed::shared().await.scope("forged-thing").await;
    scope.web_under_rule(6, json!(1)).await;
    let thing = serde_json::from_value(json!({"metadata": {"name": "thing"}})).unwrap();
    let things: Api<ConfigMap> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let thing = things.create(&PostParams::default(), &thing).await.unwrap();
    let observer = Observer::start(&scope).await;
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "thing", "controller": true, "uid": thing.uid(),
    });
    let set = give_controller(&scope, owner).await;
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    sets.delete(&set.name_any(), &DeleteParams::background())
        .await
        .unwrap();
    other_replica_set_takes_over(&scope, &set, &observer).await;
}

/// Another Deployment adopts the ReplicaSet, scales it to 0, and is deleted. The garbage collector then deletes the
/// ReplicaSet.
#[tokio::test]
async fn deletion_of_another_deployment_keeps_pods_of_replica_set() {
    let scope = Bed::shared().await.scope("forged-other").await;
    scope.web_under_rule(6, json!(1)).await;
    let other = serde_json::from_value(json!({
        "metadata": {"name": "other"},
        "spec": {
            "replicas": 0, "paused": true,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": labels("web")},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }))
    .unwrap();
    let deployments = scope.deployments();
    let params = PostParams::default();
    let other = deployments.create(&params, &other).await.unwrap();
    let observer = Observer::start(&scope).await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "other", "controller": true, "uid": other.uid(),
    });
    let set = give_controller(&scope, owner).await;
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    wait::until("the other Deployment to set it to none", async || {
        let set = sets.get(&set.name_any()).await.unwrap();
        set.spec.is_some_and(|spec| spec.replicas == Some(0))
    })
    .await;
    let params = DeleteParams::background();
    deployments.delete("other", &params).await.unwrap();
    other_replica_set_takes_over(&scope, &set, &observer).await;
}

/// Names another controller in the only ReplicaSet. Returns the ReplicaSet.
async fn give_controller(scope: &Scope, owner: Value) -> ReplicaSet {
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let all = sets.list(&ListParams::default()).await.unwrap();
    let [set] = all.items.as_slice() else {
        panic!("one ReplicaSet: {all:?}")
    };
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    let params = PatchParams::default();
    sets.patch(&set.name_any(), &params, &patch).await.unwrap()
}

/// The Deployment of six creates another ReplicaSet, whose Pods replace the old Pods one by one.
async fn other_replica_set_takes_over(scope: &Scope, former: &ReplicaSet, observer: &Observer) {
    let former = former.uid().unwrap();
    let is_of_former = |pod: &Pod| pod.owner_references().iter().any(|o| o.uid == former);
    wait::until("six Pods of another ReplicaSet", async || {
        let pods = scope.list("app=web").await;
        let taken_over = pods.iter().all(|p| is_available(p) && !is_of_former(p));
        pods.len() == 6 && taken_over
    })
    .await;
    observer.fewest_available(|_| true, 6).await.at_least(5);
}
