//! Sets that are deleted.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::fleet::REPLICAS;
use testbed::mutating_policy::MutatingPolicy;
use testbed::pods::is_available;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::admission_policies::Policy;
use crate::fixtures::{Set, condition, label, uids};
use crate::membership::until_event;

async fn until_gone(set: &Set<'_>) {
    wait::until("the set to be deleted", async || {
        set.api.get_opt(set.name).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn deleted_set_waits_for_lifecycle_of_its_pods() {
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
    let survives = |uid: &String| after.iter().any(|p| p.metadata.uid.as_ref() == Some(uid));
    assert!(uids(&before).values().all(survives));
    for pod in after {
        assert_eq!(pod.metadata.owner_references, None);
        assert_eq!(label(&pod, keys::TO_DELETE), None);
    }
}

/// A rule `web` under which no Pod may go, with further rules.
async fn none_may_go(scope: &Scope, pods: i32, more: Value) {
    let mut rules = vec![json!({
        "name": "availability", "availablePolicy": { "minAvailableValue": 2, "maxUnavailableValue": 0 },
    })];
    rules.extend(more.as_array().cloned().unwrap_or_default());
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "rules": rules });
    scope.try_rule("web", spec).await.unwrap();
    scope.until_at_rest("web", pods).await;
}

fn by(policy: PropagationPolicy) -> DeleteParams {
    DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    }
}

#[tokio::test]
async fn budget_holds_no_pod_of_a_deleted_set() {
    for policy in [PropagationPolicy::Background, PropagationPolicy::Foreground] {
        let scope = Bed::shared().await.scope("delete-budget").await;
        let set = Set::new(&scope, "web", 3, json!({})).await;
        none_may_go(&scope, 3, json!([])).await;
        set.api.delete("web", &by(policy)).await.unwrap();
        until_gone(&set).await;
        assert_eq!(scope.list("app=web").await.len(), 0);
        let rule = scope
            .status::<RuleStatus>("web")
            .await
            .ledger
            .unwrap_or_default();
        assert!(rule.claims.is_empty(), "{rule:?}");
    }
}

#[tokio::test]
async fn set_and_its_rule_are_deleted_at_the_same_time() {
    let scope = Bed::shared().await.scope("delete-both").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    none_may_go(&scope, 3, json!([])).await;
    let (of_set, of_rule) = (by(PropagationPolicy::Background), DeleteParams::default());
    let rules = scope.rules();
    let (set_deleted, rule_deleted) = tokio::join!(
        set.api.delete("web", &of_set),
        rules.delete("web", &of_rule)
    );
    set_deleted.unwrap();
    rule_deleted.unwrap();
    until_gone(&set).await;
    assert_eq!(scope.list("app=web").await.len(), 0);
}

/// A Pod whose operation waits for the budget does not delay the deletion of its set.
#[tokio::test]
async fn pod_waiting_for_the_budget_is_deleted_with_its_set() {
    let scope = Bed::shared().await.scope("delete-waiting").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    none_may_go(&scope, 3, json!([])).await;
    set.image("app:2").await;
    let waits = |pod: &Pod| label(pod, &Family::PreCheck.key("collaset")).is_some();
    set.until_pods("all to wait", |pods| pods.values().all(waits))
        .await;
    let reason = "of PodTransitionRule web: at most 0 of 3 Pods may be unavailable";
    let names_budget = |set: &operating::api::collaset::CollaSet| {
        condition(set, "Ready").is_some_and(|c| c.message.contains(reason))
    };
    set.until("the budget to be named", names_budget).await;
    let background = by(PropagationPolicy::Background);
    set.api.delete("web", &background).await.unwrap();
    until_gone(&set).await;
}

/// A label check may protect data, so it is asked during the deletion of a set too. The status names it.
#[tokio::test]
async fn other_rules_hold_a_deleted_set_and_are_named() {
    let scope = Bed::shared().await.scope("delete-checks").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let drained = json!([
        { "name": "drained", "labelCheck": { "requires": { "matchLabels": { "drained": "1" } } } },
    ]);
    none_may_go(&scope, 3, drained).await;
    let before = set.pods().await;
    let background = by(PropagationPolicy::Background);
    set.api.delete("web", &background).await.unwrap();
    let first = before[&0].name_any().min(before[&1].name_any());
    let first = first.min(before[&2].name_any());
    let reason = format!(
        "3 Pods left; Pod {first} waits for rule drained of PodTransitionRule web: block by label check policy"
    );
    let names_rule = |set: &operating::api::collaset::CollaSet| {
        condition(set, "Terminating").is_some_and(|c| c.message.starts_with(&reason))
    };
    set.until("to name the rule", names_rule).await;
    for pod in before.values() {
        let pod = scope.get(&pod.name_any()).await;
        assert!(is_available(&pod), "{:?}", pod.labels());
    }
    // Neither a label check nor the budget holds a deletion by hand.
    scope.delete(&before[&0].name_any()).await.unwrap();
    scope.evict(&before[&1].name_any()).await.unwrap();
    let last = before[&2].name_any();
    scope.label(&last, json!({ "drained": "1" })).await.unwrap();
    until_gone(&set).await;
}

#[tokio::test]
async fn set_that_is_deleted_waits_for_cooperators_and_names_them() {
    let scope = Bed::shared().await.scope("delete-traffic").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await.name_any();
    let finalizer = "prot.podopslifecycle.kusionstack.io/traffic";
    let protect = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
    let protected = protect(json!([finalizer]));
    scope.patch(&pod, protected).await.unwrap();
    let background = by(PropagationPolicy::Background);
    set.api.delete("web", &background).await.unwrap();
    let message = format!("1 Pod left; Pod {pod} waits until finalizer {finalizer} is removed");
    let names_finalizer = |set: &operating::api::collaset::CollaSet| {
        condition(set, "Terminating").is_some_and(|c| c.message == message)
    };
    set.until("to name the finalizer", names_finalizer).await;
    scope.patch(&pod, protect(json!([]))).await.unwrap();
    until_gone(&set).await;
}

#[tokio::test]
async fn orphaned_pods_of_deleted_set_are_held() {
    let scope = Bed::shared().await.scope("orphan-held").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    none_may_go(&scope, 3, json!([])).await;
    let names = set.names().await;
    let orphan = by(PropagationPolicy::Orphan);
    set.api.delete("web", &orphan).await.unwrap();
    // Deletions are held before, while and after the garbage collector removes the owner references.
    wait::until("the set to be deleted", async || {
        for name in &names {
            assert_eq!(refusal(scope.delete(name).await).code, 429);
            assert_eq!(refusal(scope.evict(name).await).code, 429);
        }
        set.api.get_opt("web").await.unwrap().is_none()
    })
    .await;
    for name in &names {
        assert_eq!(refusal(scope.delete(name).await).code, 429);
        assert!(is_available(&scope.get(name).await));
    }
}

/// No other object reports why a Pod stays off traffic.
#[tokio::test]
async fn refused_deletion_is_reported_on_the_pod() {
    let scope = Bed::shared().await.scope("delete-refused").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let refusing = Policy::new(&scope, ("DELETE", "pods"), "false", "Forbidden").await;
    let background = by(PropagationPolicy::Background);
    set.api.delete("web", &background).await.unwrap();
    until_event(&scope, "FailedDelete", "not as long as the test says so").await;
    refusing.lift().await;
    until_gone(&set).await;
}

/// A set that has begun to delete one of its Pods, which a rule holds.
async fn held_from_deletion<'a>(scope: &'a Scope) -> (Set<'a>, String) {
    let set = Set::new(scope, "web", 2, json!({})).await;
    set.hold().await;
    let name = set.pod(0).await.name_any();
    set.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }))
        .await;
    let is_marked = |p: &Pod| label(p, keys::TO_DELETE).is_some();
    scope
        .until_pod(&name, "to get the label to-delete", is_marked)
        .await;
    (set, name)
}

fn is_called_back(pod: &Pod) -> bool {
    let free = pod.metadata.owner_references.is_none() && label(pod, keys::TO_DELETE).is_none();
    free && pod.metadata.deletion_timestamp.is_none() && is_available(pod)
}

#[tokio::test]
async fn orphan_under_deletion_returns_to_traffic() {
    let scope = Bed::shared().await.scope("orphan-told").await;
    let (set, name) = held_from_deletion(&scope).await;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    set.api.delete("web", &orphan).await.unwrap();
    until_gone(&set).await;
    scope
        .until_pod(&name, "to be called back", is_called_back)
        .await;
}

/// A rollout is under way, so the controller has Pods to create at each look.
#[tokio::test]
async fn ending_namespace_causes_no_warnings() {
    let bed = Bed::shared().await;
    let scope = bed.scope("ending").await;
    let strategy = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let set = Set::new(&scope, "web", 10, strategy).await;
    set.settled().await;
    let containers = json!([{ "name": "app", "image": "app:2" }]);
    set.edit(json!({ "template": { "spec": { "containers": containers } } }))
        .await;
    scope.delete_namespace().await;
    for index in 0..REPLICAS {
        let log = bed.log_of(index);
        let warnings: Vec<_> = log
            .lines()
            .filter(|line| line.contains("WARN") && line.contains(&scope.namespace))
            .collect();
        assert_eq!(warnings, Vec::<&str>::new());
    }
}

/// Webhooks of other programs may put a finalizer back that was just removed. The set still exists then.
#[tokio::test]
async fn set_goes_as_soon_as_no_policy_puts_its_finalizer_back() {
    let scope = Bed::shared().await.scope("delete-kept").await;
    let finalizer = keys::PRE_RECLAIM_FINALIZER;
    let without = "!has(object.metadata.finalizers) || object.metadata.finalizers.size() == 0";
    let put_back =
        format!("[JSONPatch{{op: 'add', path: '/metadata/finalizers', value: ['{finalizer}']}}]");
    let policy = MutatingPolicy {
        scope: &scope,
        suffix: "kept-finalizer",
        spec: json!({
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [keys::GROUP], "apiVersions": ["*"], "resources": ["collasets"],
                "operations": ["UPDATE"],
            }] },
            "matchConditions": [{ "name": "without-finalizers", "expression": without }],
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": put_back } }],
        }),
    };
    let set = Set::new(&scope, "web", 1, json!({})).await;
    if !policy.begin().await {
        return; // Kubernetes does not know such policies before 1.36.
    }
    wait::until("the policy to be in effect", async || {
        let bare = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let params = PatchParams::default();
        let stored = set.api.patch("web", &params, &bare).await.unwrap();
        !stored.finalizers().is_empty()
    })
    .await;
    set.api
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    until_event(&scope, "FailedRemoveFinalizer", "finalizer").await;
    assert!(policy.end().await);
    until_gone(&set).await;
}
