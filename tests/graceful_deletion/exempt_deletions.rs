//! Deletions that GraceDelete does not hold.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use operating::api::keys;
use serde_json::json;
use testbed::pods::{is_available, labels, may_operate};
use testbed::{Scope, wait};

use crate::{bed, is_terminating, leaving};

/// A namespace with two available Pods, and with a rule that allows no disruption if `ruled`.
async fn two(ruled: bool) -> Scope {
    let scope = bed().await.scope("never").await;
    scope.deploy("web", 2, json!({})).await;
    scope.all_available("app=web", 2).await;
    if ruled {
        scope.rule("web", json!({"app": "web"}), json!(0)).await;
        scope.until_at_rest("web", 2).await;
    }
    scope
}

#[tokio::test]
async fn namespace_can_be_deleted() {
    for ruled in [false, true] {
        let scope = two(ruled).await;
        let namespaces: Api<Namespace> = Api::all(scope.client.clone());
        namespaces
            .delete(&scope.namespace, &DeleteParams::default())
            .await
            .unwrap();
        wait::until("the namespace to be deleted", async || {
            let found = namespaces.get_opt(&scope.namespace).await;
            found.is_ok_and(|n| n.is_none())
        })
        .await;
    }
}

#[tokio::test]
async fn owners_deletion_takes_its_pods() {
    for ruled in [false, true] {
        let scope = two(ruled).await;
        let pods = scope.list("app=web").await;
        scope
            .deployments()
            .delete("web", &DeleteParams::background())
            .await
            .unwrap();
        for pod in &pods {
            scope.until_gone(pod).await;
        }
    }
}

#[tokio::test]
async fn unmanaged_pods_and_those_without_the_gate_go_at_once() {
    let scope = bed().await.scope("bare").await;
    let unmanaged = json!({"metadata": {"labels": {keys::CONTROL: null}}});
    for name in ["unmanaged", "late", "evicted"] {
        scope.pod(name, unmanaged.clone()).await;
    }
    scope.label("late", labels("late")).await.unwrap();
    scope.until_pod("late", "available", is_available).await;
    for name in ["unmanaged", "late"] {
        scope.delete(name).await.unwrap();
    }
    scope.evict("evicted").await.unwrap();
}

#[tokio::test]
async fn finished_pods_go_at_once() {
    let scope = two(false).await;
    let pod = scope.list("app=web").await.remove(0);
    let name = pod.name_any();
    scope.pause_kubelet(&name).await;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    scope
        .pods()
        .patch_status(&name, &PatchParams::default(), &failed)
        .await
        .unwrap();
    scope.delete(&name).await.unwrap();
    scope.until_gone(&pod).await;
}

#[tokio::test]
async fn terminating_pods_go_at_once() {
    let scope = bed().await.scope("ending").await;
    scope.pod("web", json!({})).await;
    scope.until_pod("web", "available", is_available).await;
    scope.label("web", leaving("mine")).await.unwrap();
    let pod = scope
        .until_pod("web", "operate", |p| may_operate(p, "mine"))
        .await;
    scope.pause_kubelet("web").await;
    scope.delete("web").await.unwrap();
    assert!(is_terminating(&scope.get("web").await));
    // An impatient user deletes the Pod again, and at last the kubelet deletes it.
    scope.delete("web").await.unwrap();
    scope.evict("web").await.unwrap();
    let now = DeleteParams::default().grace_period(0);
    scope.pods().delete("web", &now).await.unwrap();
    scope.until_gone(&pod).await;
}
