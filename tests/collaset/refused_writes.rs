//! Writes that the API server refuses: a condition or an Event reports each, and everything else continues.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::is_available;
use testbed::{Bed, Scope, wait};

use crate::admission_policies::Policy;
use crate::fixtures::{Set, condition, ids, image, uids, until_condition_false};
use crate::membership::until_event;
use crate::pvcs::{template, volumes};
use crate::spec_changes::Dead;

/// Limits the number of PVCs in the namespace.
async fn quota(scope: &Scope, pvcs: u32) {
    let quotas: Api<ResourceQuota> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let hard = pvcs.to_string();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "pvcs" },
        "spec": { "hard": { "persistentvolumeclaims": hard } },
    });
    let force = PatchParams::apply("test").force();
    quotas
        .patch("pvcs", &force, &Patch::Apply(quota))
        .await
        .unwrap();
    wait::until("the quota to be counted", async || {
        let quota = quotas.get("pvcs").await.unwrap();
        let counted = quota.status.unwrap_or_default().hard.unwrap_or_default();
        counted
            .get("persistentvolumeclaims")
            .is_some_and(|q| q.0 == hard)
    })
    .await;
}

/// A spec whose container requests this much memory, and restarts when the amount changes.
pub fn memory(amount: &str) -> Value {
    json!({ "template": { "spec": { "containers": [{
        "name": "app", "image": "app:1", "resources": { "requests": { "memory": amount } },
        "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
    }] } } })
}

#[tokio::test]
async fn refused_pvc_blocks_only_its_own_pod() {
    let scope = Bed::shared().await.scope("pvc-quota").await;
    volumes(&scope, 6).await;
    quota(&scope, 3).await;
    let set = Set::new(&scope, "web", 2, template(&scope, "1Gi")).await;
    set.edit(json!({ "replicas": 5 })).await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "exceeded quota").await;
    let pods = set
        .until_pods("the third, whose PVC exists", |pods| {
            ids(pods) == [0, 1, 2] && pods.values().all(is_available)
        })
        .await;
    scope.delete(&pods[&0].name_any()).await.unwrap();
    let old = pods[&0].uid();
    set.until_pods("the first again", |pods| {
        ids(pods) == [0, 1, 2] && pods[&0].uid() != old && is_available(&pods[&0])
    })
    .await;
    set.edit(json!({ "template": { "spec": { "containers": [{
        "name": "app", "image": "app:2", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    }] } } }))
    .await;
    set.until_pods("the new image", |pods| {
        pods.len() == 3
            && pods
                .values()
                .all(|p| image(p) == "app:2" && is_available(p))
    })
    .await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "exceeded quota").await;
    quota(&scope, 9).await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 5]);
}

#[tokio::test]
async fn set_continues_with_existing_revision_if_new_one_is_missing() {
    let scope = Bed::shared().await.scope("no-revision").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let create = ("CREATE", "apps:controllerrevisions");
    let policy = Policy::new(&scope, create, "false", "Forbidden").await;
    set.image("app:2").await;
    until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
    let before = set.pods().await;
    scope.delete(&before[&0].name_any()).await.unwrap();
    set.edit(json!({ "replicas": 3 })).await;
    let after = set
        .until_pods("three of the former image", |pods| {
            pods.len() == 3
                && pods
                    .values()
                    .all(|p| image(p) == "app:1" && is_available(p))
        })
        .await;
    assert_eq!(after[&1].uid(), before[&1].uid());
    until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
    policy.lift().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
}

#[tokio::test]
async fn refused_pool_write_blocks_only_new_ids() {
    let scope = Bed::shared().await.scope("no-pool").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let update = ("UPDATE", "apps.kusionstack.io:resourcecontexts");
    let policy = Policy::new(&scope, update, "false", "Forbidden").await;
    set.edit(json!({ "replicas": 3 })).await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "not as long as the test").await;
    let before = set.pods().await;
    assert_eq!(ids(&before), [0, 1]);
    scope.delete(&before[&0].name_any()).await.unwrap();
    let old = before[&0].uid();
    set.until_pods("the first again", |pods| {
        ids(pods) == [0, 1] && pods[&0].uid() != old && is_available(&pods[&0])
    })
    .await;
    policy.lift().await;
    set.settled().await;
    assert_eq!(ids(&set.pods().await), [0, 1, 2]);
}

/// The memory that the container of a Pod requests.
fn requested(pod: &Pod) -> String {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let requests = container.resources.clone().unwrap().requests.unwrap();
    requests["memory"].0.clone()
}

#[tokio::test]
async fn resize_denied_by_policy_with_any_reason_recreates_no_pod() {
    // A policy without a reason of its own answers `Invalid`.
    for reason in ["Invalid", "Forbidden"] {
        let scope = Bed::shared().await.scope("no-resize").await;
        let set = Set::new(&scope, "web", 3, memory("1Mi")).await;
        let before = uids(&set.pods().await);
        let policy = Policy::new(&scope, ("UPDATE", "pods/resize"), "false", reason).await;
        let observer = Observer::start(&scope).await;
        set.edit(memory("2Mi")).await;
        until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        observer.fewest_available(|_| true, 3).await.at_least(3);
        assert_eq!(uids(&set.pods().await), before);
        policy.lift().await;
        set.settled().await;
        let after = set.pods().await;
        assert_eq!(uids(&after), before);
        assert!(after.values().all(|pod| requested(pod) == "2Mi"));
    }
}

#[tokio::test]
async fn change_refused_after_passed_dry_run_backs_off_exponentially() {
    let scope = Bed::shared().await.scope("late-refusal").await;
    let max_unavailable = json!({ "updateStrategy": { "maxUnavailable": 1 } });
    let set = Set::new(&scope, "web", 3, max_unavailable).await;
    let passes = "(has(request.dryRun) && request.dryRun) || object.spec.containers.all(c, c.image != 'app:2')";
    let policy = Policy::new(&scope, ("UPDATE", "pods"), passes, "Forbidden").await;
    set.image("app:2").await;
    until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
    let (mut times, mut all_serve) = (0, true);
    for _ in 0..400 {
        let serve = set.pods().await.values().all(is_available);
        times += usize::from(all_serve && !serve);
        all_serve = serve;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(times < 15, "a Pod went off traffic {times} times");
    until_condition_false(&set, "Ready", "UpdateFailed", "not as long as the test").await;
    policy.lift().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
}

#[tokio::test]
async fn pods_on_node_too_small_for_resize_are_recreated() {
    let scope = Bed::shared().await.scope("small-node").await;
    let set = Set::new(&scope, "web", 2, memory("1Mi")).await;
    let before = uids(&set.pods().await);
    set.edit(memory("900Ti")).await;
    set.until_pods("one made again", |pods| {
        let old = before.values();
        ids(pods) == [0, 1] && uids(pods).values().ne(old)
    })
    .await;
    until_event(&scope, "ResizeRefused", "allocatable").await;
}

#[tokio::test]
async fn denied_resize_takes_no_pod_off_traffic() {
    let scope = Bed::shared().await.scope("resize-quota").await;
    let quotas: Api<ResourceQuota> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let quota = |amount: &str| {
        json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "memory" },
            "spec": { "hard": { "requests.memory": amount } },
        })
    };
    let force = PatchParams::apply("test").force();
    let apply = async |amount: &str| {
        let quota = Patch::Apply(quota(amount));
        quotas.patch("memory", &force, &quota).await.unwrap();
    };
    let set = Set::new(&scope, "web", 3, memory("1Mi")).await;
    let before = uids(&set.pods().await);
    apply("4Mi").await;
    wait::until("the quota to be counted", async || {
        let status = quotas.get("memory").await.unwrap().status;
        let used = status.unwrap_or_default().used.unwrap_or_default();
        used.get("requests.memory")
            .is_some_and(|used| used.0 == "3Mi")
    })
    .await;
    let observer = Observer::start(&scope).await;
    set.edit(memory("3Mi")).await;
    until_condition_false(&set, "Update", "UpdateFailed", "exceeded quota").await;
    until_condition_false(&set, "Ready", "UpdateFailed", "exceeded quota").await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    observer.fewest_available(|_| true, 3).await.at_least(3);
    let after = set.pods().await;
    assert_eq!(uids(&after), before);
    assert!(after.values().all(|pod| requested(pod) == "1Mi"));
    apply("30Mi").await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(uids(&after), before);
    assert!(after.values().all(|pod| requested(pod) == "3Mi"));
}

#[tokio::test]
async fn resize_with_refused_image_is_reverted_with_template() {
    let scope = Bed::shared().await.scope("half-resized").await;
    let resized = |image: &str, amount: &str, delay: u32| {
        let mut spec = memory(amount);
        spec["template"]["spec"]["containers"][0]["image"] = json!(image);
        spec["updateStrategy"] = json!({ "operationDelaySeconds": delay });
        spec
    };
    let set = Set::new(&scope, "web", 2, resized("app:1", "1Mi", 15)).await;
    let before = uids(&set.pods().await);
    set.edit(resized("app:2", "2Mi", 15)).await;
    set.until_pods("all off traffic", |pods| !pods.values().any(is_available))
        .await;
    let policy = Policy::new(&scope, ("UPDATE", "pods"), NOT_APP_2, "Forbidden").await;
    until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
    set.until_pods("resized, and back", |pods| {
        let back = |pod| is_available(pod) && image(pod) == "app:1" && requested(pod) == "2Mi";
        pods.values().all(back)
    })
    .await;
    policy.lift().await;
    set.edit(resized("app:1", "1Mi", 0)).await;
    set.until_pods("resized back", |pods| {
        let back = |pod| is_available(pod) && requested(pod) == "1Mi";
        pods.values().all(back)
    })
    .await;
    set.settled().await;
    assert_eq!(uids(&set.pods().await), before);
}

#[tokio::test]
async fn no_more_pods_are_deleted_while_new_pods_are_refused() {
    let scope = Bed::shared().await.scope("no-new-pods").await;
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let set = Set::new(&scope, "web", 4, recreate).await;
    let passes = "object.spec.containers.all(c, c.image != 'app:2')";
    let policy = Policy::new(&scope, ("CREATE", "pods"), passes, "Forbidden").await;
    let observer = Observer::start(&scope).await;
    set.image("app:2").await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "not as long as the test").await;
    // Longer than the longest pause between two tries.
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    let fewest = observer.fewest_available(|_| true, 4).await;
    fewest.at_least(3);
    policy.lift().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 4]);
}

#[tokio::test]
async fn refused_image_takes_no_pod_off_traffic() {
    for (policy, rule) in [("InPlaceIfPossible", None), ("InPlaceIfPossible", Some(1))] {
        let scope = Bed::shared().await.scope("no-image").await;
        if let Some(most) = rule {
            scope
                .rule("web", json!({ "app": "web" }), json!(most))
                .await;
        }
        let spec = json!({ "updateStrategy": { "podUpgradePolicy": policy } });
        let set = Set::new(&scope, "web", 4, spec).await;
        let policy = Policy::new(&scope, ("UPDATE", "pods"), NOT_APP_2, "Forbidden").await;
        let observer = Observer::start(&scope).await;
        set.image("app:2").await;
        until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
        until_condition_false(&set, "Ready", "UpdateFailed", "not as long as the test").await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        observer.fewest_available(|_| true, 4).await.at_least(4);
        policy.lift().await;
        set.settled().await;
        assert_eq!(set.images().await, ["app:2"; 4]);
    }
}

/// A policy that refuses the image `app:2`.
const NOT_APP_2: &str = "object.spec.containers.all(c, c.image != 'app:2')";

#[tokio::test]
async fn pods_return_when_image_is_refused_while_off_traffic() {
    let scope = Bed::shared().await.scope("late-policy").await;
    let set = Set::new(
        &scope,
        "web",
        3,
        json!({ "updateStrategy": { "operationDelaySeconds": 15 } }),
    )
    .await;
    set.image("app:2").await;
    set.until_pods("all off traffic", |pods| !pods.values().any(is_available))
        .await;
    let policy = Policy::new(&scope, ("UPDATE", "pods"), NOT_APP_2, "Forbidden").await;
    until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
    set.until_pods("all serve again", |pods| {
        let serves = |pod| is_available(pod) && image(pod) == "app:1";
        pods.len() == 3 && pods.values().all(serves)
    })
    .await;
    policy.lift().await;
    set.edit(json!({ "updateStrategy": { "operationDelaySeconds": 0 } }))
        .await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
}

#[tokio::test]
async fn names_that_others_have_hold_up_no_other_pod() {
    let scope = Bed::shared().await.scope("taken").await;
    for n in 0..3 {
        let other = json!({
            "metadata": { "name": format!("web-{n}") },
            "spec": { "containers": [{ "name": "app", "image": "a:1" }], "terminationGracePeriodSeconds": 1 },
        });
        let other = serde_json::from_value(other).unwrap();
        let created = scope.pods().create(&PostParams::default(), &other).await;
        created.unwrap();
    }
    let spec = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let set = Set::unsettled(&scope, "web", 6, spec).await;
    set.until_pods("the others", |pods| ids(pods) == [3, 4, 5])
        .await;
    until_event(&scope, "ScaleOutFailed", "Pod web-0 has the name of").await;
}

#[tokio::test]
async fn pods_return_when_policy_refuses_their_deletion() {
    let scope = Bed::shared().await.scope("no-deletion").await;
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let set = Set::new(&scope, "web", 3, recreate).await;
    let before = uids(&set.pods().await);
    let policy = Policy::new(&scope, ("DELETE", "pods"), "false", "Forbidden").await;
    set.image("app:2").await;
    until_condition_false(&set, "Update", "UpdateFailed", "not as long as the test").await;
    set.until_pods("all serve", |pods| pods.values().all(is_available))
        .await;
    let observer = Observer::start(&scope).await;
    assert_all_serve(&set, &observer, &before).await;
    policy.lift().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
}

/// Checks for some seconds that the three Pods of before serve.
async fn assert_all_serve(set: &Set<'_>, observer: &Observer, before: &BTreeMap<i64, String>) {
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    observer.fewest_available(|_| true, 3).await.at_least(3);
    assert_eq!(uids(&set.pods().await), *before);
}

#[tokio::test]
async fn unwritable_pool_takes_no_pod_off_traffic_for_deletion() {
    let scope = Bed::shared().await.scope("no-pool").await;
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let set = Set::new(&scope, "web", 3, recreate).await;
    let before = uids(&set.pods().await);
    let pools = ("UPDATE", "apps.kusionstack.io:resourcecontexts");
    let policy = Policy::new(&scope, pools, "false", "Forbidden").await;
    let observer = Observer::start(&scope).await;
    set.image("app:2").await;
    until_condition_false(&set, "Scale", "ScaleOutFailed", "not as long as the test").await;
    assert_all_serve(&set, &observer, &before).await;
    policy.lift().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
}

#[tokio::test]
async fn pods_return_when_the_webhook_of_their_change_fails() {
    let scope = Bed::shared().await.scope("webhook-down").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = uids(&set.pods().await);
    // The webhook fails only for real requests, like a webhook that dies between the dry run and the request.
    let change = "!(has(request.dryRun) && request.dryRun) && object.spec.containers.exists(c, c.image == 'app:2')";
    let dead = Dead::for_updates(&scope, change).await;
    set.image("app:2").await;
    until_condition_false(&set, "Update", "UpdateFailed", "failed calling webhook").await;
    set.until_pods("all serve", |pods| pods.values().all(is_available))
        .await;
    assert_eq!(uids(&set.pods().await), before);
    dead.lift().await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
    assert_eq!(uids(&set.pods().await), before);
}

/// A policy for `pods` lets writes of `pods/status` pass, and such a write begins the operation.
#[tokio::test]
async fn refused_lifecycle_step_is_reported_by_pod_and_set() {
    let scope = Bed::shared().await.scope("refused-step").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let policy = Policy::new(&scope, ("UPDATE", "pods"), "false", "Forbidden").await;
    set.edit(json!({ "replicas": 1 })).await;
    let message = "the next step of its lifecycle can't be written";
    set.until("the refusal to be told", |set| {
        condition(set, "Ready").is_some_and(|c| c.status == "False" && c.message.contains(message))
    })
    .await;
    until_event(
        &scope,
        "LifecycleStepRefused",
        "its next step can't be written and will be tried again",
    )
    .await;
    policy.lift().await;
    set.settled().await;
    assert_eq!(set.pods().await.len(), 1);
}
