//! The Pods of a CollaSet that is being deleted are exempt from the budgets, and no other Pods are.

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Error, ResourceExt};
use operating::api::collaset::CollaSet;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::{is_available, names};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

const API: &str = "apps.kusionstack.io/v1alpha1";

fn sets(scope: &Scope) -> Api<CollaSet> {
    Api::namespaced(scope.client.clone(), &scope.namespace)
}

/// A CollaSet of Pods labelled `app=<name>`.
async fn make(scope: &Scope, name: &str, replicas: usize, finalizers: Value) -> CollaSet {
    let set = json!({
        "apiVersion": API, "kind": "CollaSet",
        "metadata": {"name": name, "finalizers": finalizers},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    let params = PostParams::default();
    sets(scope).create(&params, &set).await.unwrap()
}

/// A CollaSet under deletion, which a foreign finalizer keeps until the test ends.
async fn deleted(scope: &Scope, name: &str) -> CollaSet {
    make(scope, name, 0, json!(["plane.test/stays"])).await;
    let background = DeleteParams::background();
    sets(scope).delete(name, &background).await.unwrap();
    sets(scope).get(name).await.unwrap()
}

async fn remove_finalizers(scope: &Scope, name: &str) {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    let params = PatchParams::default();
    let released = sets(scope).patch(name, &params, &patch).await;
    assert!(matches!(released, Ok(_) | Err(Error::Api(_))));
}

fn reference(set: &CollaSet, controller: bool) -> Value {
    json!({
        "apiVersion": API, "kind": "CollaSet", "name": set.name_any(), "uid": set.uid(), "controller": controller,
    })
}

/// Three Pods of a set `web` under a rule that allows no disruption.
async fn set_under_zero_budget(scope: &Scope) -> (CollaSet, Vec<String>) {
    let set = make(scope, "web", 3, json!([])).await;
    let pods = names(&scope.all_available("app=web", 3).await);
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 3).await;
    (set, pods)
}

async fn is_held(scope: &Scope, pod: &str) {
    for outcome in [scope.delete(pod).await, scope.evict(pod).await] {
        let status = refusal(outcome);
        assert_eq!(status.code, 429, "{status:?}");
    }
}

#[tokio::test]
async fn reference_to_a_deleted_set_frees_no_pod_of_another() {
    let scope = Bed::shared().await.scope("deleted-other").await;
    let (web, pods) = set_under_zero_budget(&scope).await;
    let going = deleted(&scope, "going").await;
    // A second owner that is no controller is allowed, and does not exempt the Pod.
    let beside =
        json!({"metadata": {"ownerReferences": [reference(&web, true), reference(&going, false)]}});
    scope.patch(&pods[0], beside).await.unwrap();
    is_held(&scope, &pods[0]).await;
    // The deleted set can't replace the controller of the Pod.
    let instead = json!({"metadata": {"ownerReferences": [reference(&going, true)]}});
    let status = refusal(scope.patch(&pods[0], instead).await);
    assert_eq!(status.code, 429, "{status:?}");
    // An operation that deletes the Pod does not begin beyond the budget either.
    let labelled = scope.label(&pods[0], json!({operating::api::keys::TO_DELETE: "1"}));
    labelled.await.unwrap();
    scope
        .until_status("web", "the Pod that waits", |s: &RuleStatus| {
            s.waiting_pods == 1
        })
        .await;
    is_held(&scope, &pods[0]).await;
    assert!(is_available(&scope.get(&pods[0]).await));
    remove_finalizers(&scope, "going").await;
}

#[tokio::test]
async fn recreated_set_holds_its_pods() {
    let scope = Bed::shared().await.scope("deleted-again").await;
    let (web, pods) = set_under_zero_budget(&scope).await;
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    sets(&scope).delete("web", &orphan).await.unwrap();
    wait::until("the set to be deleted", async || {
        sets(&scope).get_opt("web").await.unwrap().is_none()
    })
    .await;
    let again = make(&scope, "web", 3, json!([])).await;
    assert_ne!(again.uid(), web.uid());
    for pod in &pods {
        let owned = |p: &k8s_openapi::api::core::v1::Pod| {
            p.owner_references()
                .iter()
                .any(|o| Some(&o.uid) == again.uid().as_ref())
        };
        scope.until_pod(pod, "adopted", owned).await;
        is_held(&scope, pod).await;
    }
}

/// The Pods of a deleted set neither use the budget of the other Pods nor add to it.
#[tokio::test]
async fn budget_of_other_pods_outlives_a_deleted_set() {
    let scope = Bed::shared().await.scope("deleted-beside").await;
    make(&scope, "web", 3, json!([])).await;
    make(&scope, "api", 3, json!([])).await;
    scope.all_available("app=web", 3).await;
    let stay = names(&scope.all_available("app=api", 3).await);
    let spec = json!({
        "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]},
        "rules": [{"name": "availability", "availablePolicy": {"maxUnavailableValue": 0}}],
    });
    scope.try_rule("both", spec).await.unwrap();
    scope
        .until_status("both", "six Pods", |s: &RuleStatus| s.available_pods == 6)
        .await;
    let background = DeleteParams::background();
    sets(&scope).delete("web", &background).await.unwrap();
    wait::until("the set to be deleted", async || {
        is_held(&scope, &stay[0]).await;
        sets(&scope).get_opt("web").await.unwrap().is_none()
    })
    .await;
    is_held(&scope, &stay[1]).await;
    assert!(is_available(&scope.get(&stay[0]).await));
}
