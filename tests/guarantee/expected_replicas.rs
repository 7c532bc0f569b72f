//! How many Pods are expected for each kind of owner: the number that users asked for, whatever controllers do during a
//! rollout.

use futures::future::join_all;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{at_once, is_available, labels, names};
use testbed::proxy::{Asked, Effect, Fault};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

const GROUP: &str = "owners.test";

/// A Deployment `web` at rest under a rule of maxUnavailable 1, and an observer of its Pods.
pub async fn web(replicas: usize, strategy: Value) -> (Scope, Observer) {
    let scope = Bed::shared().await.scope("rollout").await;
    scope.deploy("web", replicas, json!({})).await;
    patch_web(&scope, json!({"spec": {"strategy": strategy}})).await;
    scope.all_available("app=web", replicas).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope
        .until_at_rest("web", i32::try_from(replicas).unwrap())
        .await;
    let observer = Observer::start(&scope).await;
    (scope, observer)
}

pub async fn patch_web(scope: &Scope, patch: Value) {
    let patch = Patch::Merge(patch);
    let deployments = scope.deployments();
    deployments
        .patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn new_image(scope: &Scope) {
    let containers = json!([{"name": "main", "image": "web:2"}]);
    patch_web(
        scope,
        json!({"spec": {"template": {"spec": {"containers": containers}}}}),
    )
    .await;
}

fn is_new(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("web:2")
}

/// Waits until all Pods have the new image. After denied deletions the ReplicaSet controller backs off for longer than
/// this wait, unless the leader wakes it.
async fn finish(scope: &Scope, replicas: usize) {
    wait::until("the rollout to end", async || {
        let pods = scope.list("app=web").await;
        pods.iter().all(is_new) && pods.iter().filter(|p| is_available(p)).count() == replicas
    })
    .await;
}

#[tokio::test]
async fn default_rollout_keeps_to_the_limit() {
    let (scope, observer) = web(20, json!({"type": "RollingUpdate"})).await;
    new_image(&scope).await;
    finish(&scope, 20).await;
    observer.fewest_available(|_| true, 20).await.at_least(19);
}

#[tokio::test]
async fn rollout_without_surge_keeps_to_the_limit() {
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}});
    let (scope, observer) = web(10, strategy).await;
    new_image(&scope).await;
    finish(&scope, 10).await;
    observer.fewest_available(|_| true, 10).await.at_least(9);
}

#[tokio::test]
async fn recreate_keeps_to_the_limit() {
    let strategy = json!({"type": "Recreate", "rollingUpdate": null});
    let (scope, observer) = web(10, strategy).await;
    new_image(&scope).await;
    // The old ReplicaSet has 0 replicas, and its controller has tried to delete all of its Pods: one Pod went, and
    // nothing replaces it.
    wait::until("one of ten to be deleted", async || {
        scope.list("app=web").await.len() == 9
    })
    .await;
    for pod in names(&scope.list("app=web").await) {
        let status = refusal(scope.delete(&pod).await);
        assert!(status.message.contains("1 of 10 Pods"), "{status:?}");
    }
    observer.fewest_available(|_| true, 10).await.at_least(9);
}

#[tokio::test]
async fn replica_set_deleted_below_its_deployment_keeps_to_the_limit() {
    let (scope, observer) = web(10, json!({"type": "RollingUpdate"})).await;
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let old = sets.list(&ListParams::default()).await.unwrap().items[0].name_any();
    let before = names(&scope.list("app=web").await);
    sets.delete(&old, &DeleteParams::background())
        .await
        .unwrap();
    wait::until("ten Pods of the new ReplicaSet", async || {
        let pods = scope.list("app=web").await;
        let new = pods.iter().filter(|p| !before.contains(&p.name_any()));
        new.filter(|p| is_available(p)).count() == 10
    })
    .await;
    observer.fewest_available(|_| true, 10).await.at_least(9);
}

#[tokio::test]
async fn bare_pods_do_not_enlarge_the_percentage_of_a_deployment() {
    let scope = Bed::shared().await.scope("bare").await;
    scope.deploy_where_open("web", 10).await;
    let owned = names(&scope.all_available("app=web", 10).await);
    scope.close_nodes().await;
    let bare = (0..30).map(|n| format!("bare-{n}")).collect::<Vec<_>>();
    let extra = || json!({"metadata": {"labels": {"app": "web"}}});
    at_once(&bare, async |name| scope.pod(&name, extra()).await).await;
    scope.all_available("app=web", 40).await;
    scope.rule("web", json!({"app": "web"}), json!("30%")).await;
    scope.until_at_rest("web", 40).await;
    let outcomes = at_once(&owned, async |pod| scope.delete(&pod).await).await;
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 3);
    for status in outcomes.into_iter().filter(Result::is_err).map(refusal) {
        assert!(status.message.contains("the limit is 3"), "{status:?}");
    }
    assert_eq!(refusal(scope.delete("bare-0").await).code, 429);
    scope.open_nodes().await;
}

/// Creates a kind of owner without a controller, with or without the subresource `scale`.
pub async fn kind(scope: &Scope, name: &str, scale: bool) -> ApiResource {
    let plural = format!("{}s", name.to_lowercase());
    let mut version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    });
    if scale {
        let paths =
            json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
        version["subresources"] = json!({"scale": paths});
    }
    let crd: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced", "versions": [version],
            "names": {"kind": name, "plural": plural, "singular": name.to_lowercase()},
        },
    }))
    .unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(scope.client.clone());
    crds.create(&PostParams::default(), &crd).await.unwrap();
    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", name), &plural);
    let api = owners(scope, &kind);
    wait::until("the kind to be served", async || {
        api.list(&ListParams::default()).await.is_ok()
    })
    .await;
    kind
}

fn owners(scope: &Scope, kind: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(scope.client.clone(), &scope.namespace, kind)
}

/// An owner `web` of this kind. Returns a controller reference to it.
pub async fn owner(scope: &Scope, kind: &ApiResource, replicas: usize) -> Value {
    let object = DynamicObject::new("web", kind).data(json!({"spec": {"replicas": replicas}}));
    let made = owners(scope, kind)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    json!([{
        "apiVersion": kind.api_version, "kind": kind.kind, "name": "web", "uid": made.uid(), "controller": true,
    }])
}

/// Creates this many available Pods of an owner that does not replace them.
async fn pods_of(scope: &Scope, owner: &Value, count: usize) -> Vec<String> {
    let pods = (0..count).map(|n| format!("web-{n}")).collect::<Vec<_>>();
    let extra = || json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": owner}});
    at_once(&pods, async |name| scope.pod(&name, extra()).await).await;
    names(&scope.all_available("app=web", count).await)
}

pub async fn delete_and_wait(scope: &Scope, name: &str) {
    let pod = scope.get(name).await;
    scope.delete(name).await.unwrap();
    scope.until_gone(&pod).await;
}

#[tokio::test]
async fn custom_owner_is_expected_by_its_scale() {
    let scope = Bed::shared().await.scope("scale").await;
    let kind = kind(&scope, "Fleet", true).await;
    let owner = owner(&scope, &kind, 10).await;
    let pods = pods_of(&scope, &owner, 10).await;
    scope.rule("web", json!({"app": "web"}), json!("20%")).await;
    scope.until_at_rest("web", 10).await;
    delete_and_wait(&scope, &pods[0]).await;
    delete_and_wait(&scope, &pods[1]).await;
    let status = refusal(scope.delete(&pods[2]).await);
    assert!(status.message.contains("2 of 10 Pods"), "{status:?}");
    // The owner is scaled in. No watch delivers the change, so only a live read for the next request shows it.
    let patch = Patch::Merge(json!({"spec": {"replicas": 5}}));
    owners(&scope, &kind)
        .patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
    wait::until("the surplus to be deleted", async || {
        scope.delete(&pods[2]).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn custom_owner_without_scale_counts_by_its_living_pods() {
    let scope = Bed::shared().await.scope("unscaled").await;
    let kind = kind(&scope, "Crowd", false).await;
    let owner = owner(&scope, &kind, 10).await;
    let pods = pods_of(&scope, &owner, 4).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 4).await;
    wait::until("the condition that names the owner", async || {
        let conditions = scope.status::<RuleStatus>("web").await.conditions;
        let found = conditions.iter().find(|c| c.type_ == "ExpectedKnown");
        found.is_some_and(|c| {
            c.status == "False" && c.reason == "ExpectedUnknown" && c.message.starts_with("Crowd ")
        })
    })
    .await;
    for pod in &pods[..3] {
        delete_and_wait(&scope, pod).await;
    }
    scope.until_at_rest("web", 1).await;
}

#[tokio::test]
async fn replica_set_counts_by_the_scale_of_its_custom_controller() {
    let scope = Bed::shared().await.scope("rollouts").await;
    let kind = kind(&scope, "Wave", true).await;
    let owner = owner(&scope, &kind, 10).await;
    let set: ReplicaSet = serde_json::from_value(json!({
        "metadata": {"name": "web", "ownerReferences": owner},
        "spec": {
            "replicas": 10, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": labels("web")},
                "spec": {"containers": [{"name": "main", "image": "web:1"}], "terminationGracePeriodSeconds": 1},
            },
        },
    }))
    .unwrap();
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    sets.create(&PostParams::default(), &set).await.unwrap();
    scope.all_available("app=web", 10).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 10).await;
    let observer = Observer::start(&scope).await;
    // Scales the old ReplicaSet to 0, like a rollout without surge.
    let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
    sets.patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
    wait::until("one of ten to be deleted", async || {
        scope.list("app=web").await.len() == 9
    })
    .await;
    for pod in names(&scope.list("app=web").await) {
        let status = refusal(scope.delete(&pod).await);
        assert!(status.message.contains("1 of 10 Pods"), "{status:?}");
    }
    observer.fewest_available(|_| true, 10).await.at_least(9);
}

/// Creates an owner of a built-in kind whose Pods run until they are deleted.
async fn built_in(scope: &Scope, path: &str, spec: Value) {
    let body = json!({"metadata": {"name": "web"}, "spec": spec});
    let path = format!("{path}/namespaces/{}/{}", scope.namespace, {
        if path.contains("batch") {
            "jobs"
        } else {
            "daemonsets"
        }
    });
    let request = http::Request::post(path)
        .body(serde_json::to_vec(&body).unwrap())
        .unwrap();
    scope.client.request::<Value>(request).await.unwrap();
}

/// Asserts that only one Pod of an owner at rest under maxUnavailable 1 can be deleted while this Pod is terminating.
async fn only_one_goes(scope: &Scope, replicas: usize) {
    let pods = names(&scope.all_available("app=web", replicas).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope
        .until_at_rest("web", i32::try_from(replicas).unwrap())
        .await;
    scope.pause_kubelet(&pods[0]).await;
    scope.delete(&pods[0]).await.unwrap();
    let outcomes = join_all(pods[1..].iter().map(|pod| scope.delete(pod))).await;
    for status in outcomes.into_iter().map(refusal) {
        assert_eq!(status.code, 429, "{status:?}");
        let figures = format!("1 of {replicas} Pods");
        assert!(status.message.contains(&figures), "{status:?}");
    }
    scope.resume_kubelet(&pods[0]).await;
}

fn template(restart_policy: &str) -> Value {
    json!({
        "metadata": {"labels": labels("web")},
        "spec": {
            "containers": [{"name": "main", "image": "web:1"}],
            "terminationGracePeriodSeconds": 30, "restartPolicy": restart_policy,
        },
    })
}

#[tokio::test]
async fn daemon_set_is_expected_on_every_node() {
    let scope = Bed::shared().await.scope("daemons").await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(scope.client.clone());
    let nodes = nodes
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .len();
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template("Always")});
    built_in(&scope, "/apis/apps/v1", spec).await;
    only_one_goes(&scope, nodes).await;
}

#[tokio::test]
async fn job_is_expected_with_its_parallelism() {
    let scope = Bed::shared().await.scope("job").await;
    let spec = json!({
        "parallelism": 4, "completions": 100, "podReplacementPolicy": "Failed", "template": template("Never"),
    });
    built_in(&scope, "/apis/batch/v1", spec).await;
    only_one_goes(&scope, 4).await;
}

/// Matches the watches of the owners of a Deployment's Pods.
fn owner_watches(asked: &Asked) -> bool {
    let path = asked.uri.path();
    asked.watches() && ["/apis/apps/v1/replicasets", "/apis/apps/v1/deployments"].contains(&path)
}

#[tokio::test]
async fn scale_out_counts_while_owner_watches_are_frozen() {
    let bed = Bed::with_faults(std::time::Duration::from_secs(60)).await;
    let scope = bed.scope("stalled").await;
    scope.deploy_where_open("web", 10).await;
    scope.all_available("app=web", 10).await;
    scope.rule("web", json!({"app": "web"}), json!("10%")).await;
    scope.until_at_rest("web", 10).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(owner_watches));
    scope.scale("web", 30).await.unwrap();
    let pods = names(&scope.all_available("app=web", 30).await);
    scope.close_nodes().await;
    let observer = Observer::start(&scope).await;
    let outcomes = at_once(&pods, async |pod| scope.delete(&pod).await).await;
    let passed = outcomes.iter().filter(|o| o.is_ok()).count();
    assert_eq!(passed, 3);
    for status in outcomes.into_iter().filter(Result::is_err).map(refusal) {
        assert!(status.message.contains("of 30 Pods"), "{status:?}");
    }
    observer.fewest_available(|_| true, 30).await.at_least(27);
    bed.faults().end_fault();
}

#[tokio::test]
async fn pods_with_unreadable_owner_are_held_with_the_reason() {
    let bed = Bed::with_faults(std::time::Duration::from_secs(60)).await;
    let scope = bed.scope("unread").await;
    let kind = kind(&scope, "Fleet", true).await;
    let owner = owner(&scope, &kind, 4).await;
    let pods = pods_of(&scope, &owner, 4).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 4).await;
    let scales = |asked: &Asked| asked.uri.path().ends_with("/scale");
    bed.faults()
        .set(Fault::new(Effect::Answer(http::StatusCode::FORBIDDEN)).on(scales));
    // The server uses an earlier reading for one second.
    wait::until("the server to miss the owner", async || {
        let dry = DeleteParams::default().dry_run();
        scope.pods().delete(&pods[0], &dry).await.is_err()
    })
    .await;
    let status = refusal(scope.delete(&pods[0]).await);
    assert_eq!(status.code, 429, "{status:?}");
    assert!(
        status.message.contains("Fleet web can't be read"),
        "{status:?}"
    );
    bed.faults().end_fault();
    wait::until("a Pod to be deleted", async || {
        scope.delete(&pods[0]).await.is_ok()
    })
    .await;
}
