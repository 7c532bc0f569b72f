//! Rollouts that must not stall under a rule: over failing Pods, and after the rule has released them.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::{Bed, Scope, wait};

use crate::expected_replicas::{patch_web, web};

const REPLICAS: usize = 10;

/// An image that no kubelet can pull.
const BAD: &str = "web:non-exist";

async fn set_image(scope: &Scope, image: &str) {
    let containers = json!([{"name": "main", "image": image}]);
    let template = json!({"spec": {"containers": containers}});
    patch_web(scope, json!({"spec": {"template": template}})).await;
}

fn has_image(pod: &Pod, image: &str) -> bool {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image)
}

async fn with_image(scope: &Scope, image: &str) -> Vec<Pod> {
    let mut pods = scope.list("app=web").await;
    pods.retain(|pod| has_image(pod, image));
    pods
}

/// Waits until the rollout to `image` has ended.
async fn finish(scope: &Scope, image: &str) {
    wait::until("the rollout to end", async || {
        let pods = scope.list("app=web").await;
        pods.iter()
            .all(|pod| has_image(pod, image) && is_available(pod))
            && pods.len() == REPLICAS
    })
    .await;
}

fn surge(max_surge: Value, max_unavailable: Value) -> Value {
    let rolling = json!({"maxSurge": max_surge, "maxUnavailable": max_unavailable});
    json!({"type": "RollingUpdate", "rollingUpdate": rolling})
}

/// A rollout to the image [`BAD`] that has come to a stop: `failing` Pods, and one old Pod less.
async fn fail(scope: &Scope, failing: usize) {
    set_image(scope, BAD).await;
    wait::until("the failing Pods", async || {
        let old = with_image(scope, "web:1").await.len();
        (with_image(scope, BAD).await.len(), old) == (failing, REPLICAS - 1)
    })
    .await;
}

async fn events(scope: &Scope, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let listed = events.list(&ListParams::default()).await.unwrap();
    let all = listed.items.into_iter();
    all.filter(|e| e.reason.as_deref() == Some(reason))
        .collect()
}

/// Rolls forward to a good image while Pods fail.
async fn roll_over_failing_pods(strategy: Value, failing: usize) {
    let (scope, observer) = web(REPLICAS, strategy).await;
    fail(&scope, failing).await;
    set_image(&scope, "web:2").await;
    finish(&scope, "web:2").await;
    observer
        .fewest_available(|_| true, REPLICAS)
        .await
        .at_least(REPLICAS - 1);
    let scale_back_events = events(&scope, "ReplicaSetScaledBack").await;
    let message = scale_back_events[0].message.clone().unwrap_or_default();
    assert!(
        scale_back_events[0].involved_object.kind.as_deref() == Some("Deployment")
            && message.contains("back to its 9 Pods")
            && message.contains("PodTransitionRule web"),
        "{message}"
    );
}

#[tokio::test]
async fn rollout_over_a_bad_image_ends() {
    roll_over_failing_pods(surge(json!("25%"), json!("25%")), 5).await;
}

#[tokio::test]
async fn rollout_over_a_bad_image_without_surge_ends() {
    roll_over_failing_pods(surge(json!(0), json!("50%")), 5).await;
}

#[tokio::test]
async fn rollout_that_is_undone_ends() {
    let (scope, observer) = web(REPLICAS, surge(json!("25%"), json!("25%"))).await;
    fail(&scope, 5).await;
    set_image(&scope, "web:1").await;
    finish(&scope, "web:1").await;
    observer
        .fewest_available(|_| true, REPLICAS)
        .await
        .at_least(REPLICAS - 1);
}

/// A StatefulSet whose rollout never ends and deletes no Pod, because of its partition, under a rule that allows no
/// disruption. Its controller does nothing by itself, so only the leader changes its Pods.
async fn held_set(scope: &Scope) {
    scope.stateful_set(3).await;
    scope.all_available("app=web", 3).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 3).await;
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 3}});
    let containers = json!([{"name": "main", "image": "web:2"}]);
    let template = json!({"spec": {"containers": containers}});
    let patch = json!({"spec": {"updateStrategy": rolling, "template": template}});
    let (sets, patch) = (scope.stateful_sets(), Patch::Merge(patch));
    sets.patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
    wait::until("the new revision", async || {
        let status = sets.get("web").await.unwrap().status.unwrap();
        status.update_revision.is_some() && status.update_revision != status.current_revision
    })
    .await;
    assert!(!is_woken(scope).await);
}

async fn is_woken(scope: &Scope) -> bool {
    let pods = scope.list("app=web").await;
    pods.iter()
        .any(|pod| pod.annotations().contains_key(keys::CONTROLLER_WOKEN))
}

async fn until_woken(scope: &Scope) {
    wait::until("the leader to wake the StatefulSet", async || {
        is_woken(scope).await
    })
    .await;
}

#[tokio::test]
async fn owner_is_woken_once_the_rule_selects_other_pods() {
    let scope = Bed::shared().await.scope("unselected").await;
    held_set(&scope).await;
    let selector = json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}});
    let (rules, patch) = (scope.rules(), Patch::Merge(selector));
    rules
        .patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until_woken(&scope).await;
}

#[tokio::test]
async fn owner_is_woken_once_its_namespace_is_excluded() {
    let scope = Bed::shared().await.scope("excluded").await;
    held_set(&scope).await;
    let label = json!({"metadata": {"labels": {(keys::NAMESPACE_EXCLUDED): "true"}}});
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let (params, patch) = (PatchParams::default(), Patch::Merge(label));
    namespaces
        .patch(&scope.namespace, &params, &patch)
        .await
        .unwrap();
    until_woken(&scope).await;
}

#[tokio::test]
async fn owner_is_woken_once_its_rule_is_deleted() {
    let scope = Bed::shared().await.scope("unruled").await;
    held_set(&scope).await;
    let delete = DeleteParams::default();
    scope.rules().delete("web", &delete).await.unwrap();
    until_woken(&scope).await;
}

#[tokio::test]
async fn owner_is_woken_when_rule_was_deleted_without_leader() {
    let bed = Bed::own().await;
    let scope = bed.scope("unled").await;
    held_set(&scope).await;
    bed.kill_all().await;
    let delete = DeleteParams::default();
    scope.rules().delete("web", &delete).await.unwrap();
    bed.restart(0).await;
    until_woken(&scope).await;
}

/// A policy of the namespace that refuses updates of one resource.
struct Policy {
    name: String,
    all: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
}

impl Policy {
    /// `condition` is the CEL expression for the updates that pass.
    async fn new(scope: &Scope, group: &str, resource: &str, condition: &str) -> Policy {
        let name = format!("{}.plane.test", scope.namespace);
        let policy = Policy {
            name: name.clone(),
            all: Api::all(scope.client.clone()),
            bindings: Api::all(scope.client.clone()),
        };
        let updates = json!({
            "apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["UPDATE"],
        });
        let refusing = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [updates]},
                "validations": [{"expression": condition}],
            },
        }));
        let of = json!({"matchLabels": {"kubernetes.io/metadata.name": scope.namespace}});
        let binding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": of},
            },
        }));
        let create = PostParams::default();
        policy
            .all
            .create(&create, &refusing.unwrap())
            .await
            .unwrap();
        let binding = binding.unwrap();
        policy.bindings.create(&create, &binding).await.unwrap();
        policy
    }

    async fn lift(self) {
        let delete = DeleteParams::default();
        self.bindings.delete(&self.name, &delete).await.unwrap();
        self.all.delete(&self.name, &delete).await.unwrap();
    }
}

/// Longer than all tries of the leader take, if refused tries counted as tries.
const REFUSED: Duration = Duration::from_secs(10);

#[tokio::test]
async fn owner_is_woken_although_the_first_wakes_are_refused() {
    let scope = Bed::shared().await.scope("refusedwakes").await;
    held_set(&scope).await;
    let woken = format!("'{}'", keys::CONTROLLER_WOKEN);
    let passes =
        format!("!has(object.metadata.annotations) || !({woken} in object.metadata.annotations)");
    let policy = Policy::new(&scope, "", "pods", &passes).await;
    let pod = scope.list("app=web").await.remove(0).name_any();
    let wake = json!({"metadata": {"annotations": {(keys::CONTROLLER_WOKEN): "x"}}});
    let (dry, wake) = (PatchParams::default().dry_run(), Patch::Merge(wake));
    wait::until("wakes to be refused", async || {
        scope.pods().patch(&pod, &dry, &wake).await.is_err()
    })
    .await;
    let delete = DeleteParams::default();
    scope.rules().delete("web", &delete).await.unwrap();
    tokio::time::sleep(REFUSED).await;
    assert!(!is_woken(&scope).await);
    policy.lift().await;
    until_woken(&scope).await;
}

#[tokio::test]
async fn owner_is_not_woken_while_the_ledger_cannot_be_written() {
    let scope = Bed::shared().await.scope("refusedledger").await;
    held_set(&scope).await;
    let group = "apps.kusionstack.io";
    let policy = Policy::new(&scope, group, "podtransitionrules/status", "false").await;
    let time = Patch::Merge(json!({"status": {"updateTime": "2026-01-01T00:00:00Z"}}));
    let dry = PatchParams::default().dry_run();
    wait::until("writes of the status to be refused", async || {
        scope
            .rules()
            .patch_status("web", &dry, &time)
            .await
            .is_err()
    })
    .await;
    let rule = json!({"availablePolicy": {"maxUnavailableValue": 1}, "name": "web"});
    let patch = Patch::Merge(json!({"spec": {"rules": [rule]}}));
    let (rules, params) = (scope.rules(), PatchParams::default());
    rules.patch("web", &params, &patch).await.unwrap();
    tokio::time::sleep(REFUSED).await;
    assert!(!is_woken(&scope).await);
    policy.lift().await;
    until_woken(&scope).await;
}

#[tokio::test]
async fn rollout_over_bad_image_ends_despite_refused_reverts() {
    let strategy = surge(json!("25%"), json!("25%"));
    let (scope, _observer) = web(REPLICAS, strategy).await;
    fail(&scope, 5).await;
    let policy = Policy::new(&scope, "apps", "replicasets/scale", "false").await;
    let set = scope.list("app=web").await.remove(0);
    let set = set.owner_references()[0].name.clone();
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let (dry, replica) = (
        PatchParams::default().dry_run(),
        Patch::Merge(json!({"spec": {"replicas": 1}})),
    );
    wait::until("changes of the number to be refused", async || {
        sets.patch_scale(&set, &dry, &replica).await.is_err()
    })
    .await;
    set_image(&scope, "web:2").await;
    wait::until("the Event that the rollout is held", async || {
        !events(&scope, "RolloutHeld").await.is_empty()
    })
    .await;
    tokio::time::sleep(REFUSED).await;
    assert!(events(&scope, "ReplicaSetScaledBack").await.is_empty());
    policy.lift().await;
    finish(&scope, "web:2").await;
}
