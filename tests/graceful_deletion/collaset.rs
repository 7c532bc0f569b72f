//! Pods that a CollaSet deletes have completed a lifecycle already (contract Q22).

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::{Scope, wait};

use crate::{bed, marked};

async fn set(scope: &Scope, replicas: usize) -> Api<CollaSet> {
    let api: Api<CollaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"podUpgradePolicy": "Recreate"},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "app:1"}], "terminationGracePeriodSeconds": 1},
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    api.create(&PostParams::default(), &set).await.unwrap();
    scope.all_available("app=web", replicas).await;
    api
}

async fn edit(api: &Api<CollaSet>, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    api.patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

fn image(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.containers.first()?.image.clone()
}

#[tokio::test]
async fn scaling_in_and_recreating_begin_no_second_lifecycle() {
    let scope = bed().await.scope("set").await;
    let api = set(&scope, 3).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    let observer = Observer::start(&scope).await;
    edit(&api, json!({"replicas": 2})).await;
    scope.all_available("app=web", 2).await;
    let container = json!([{"name": "app", "image": "app:2"}]);
    edit(
        &api,
        json!({"template": {"spec": {"containers": container}}}),
    )
    .await;
    wait::until("both to be made anew", async || {
        let pods = scope.list("app=web").await;
        pods.len() == 2 && pods.iter().all(|p| image(p).as_deref() == Some("app:2"))
    })
    .await;
    scope.all_available("app=web", 2).await;
    let versions = observer.versions().await;
    assert_eq!(marked(&versions), Vec::<String>::new());
    assert!(
        versions
            .iter()
            .any(|p| p.metadata.deletion_timestamp.is_some())
    );
    observer.fewest_available(|_| true, 3).await.at_least(1);
}

#[tokio::test]
async fn pod_deleted_by_hand_is_recreated_after_its_lifecycle() {
    let scope = bed().await.scope("set").await;
    set(&scope, 2).await;
    let pod = scope.list("app=web").await.remove(0);
    let refused = scope.delete(&pod.name_any()).await;
    let message = testbed::scope::refusal(refused).message;
    assert!(message.contains(crate::UNDERWAY), "{message}");
    scope.until_gone(&pod).await;
    scope.all_available("app=web", 2).await;
}

#[tokio::test]
async fn deleted_set_completes_its_lifecycle_under_a_full_budget() {
    let scope = bed().await.scope("set").await;
    let api = set(&scope, 3).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 3).await;
    let observer = Observer::start(&scope).await;
    let background = DeleteParams::background();
    api.delete("web", &background).await.unwrap();
    wait::until("the set to be deleted", async || {
        api.get_opt("web").await.unwrap().is_none()
    })
    .await;
    let serving = |pod: &Pod| pod.labels().contains_key(keys::SERVICE_AVAILABLE);
    let versions = observer.versions().await;
    let terminating = versions
        .iter()
        .filter(|p| p.metadata.deletion_timestamp.is_some());
    assert!(terminating.clone().count() >= 3);
    assert!(
        !terminating.into_iter().any(serving),
        "on traffic to the end"
    );
}
