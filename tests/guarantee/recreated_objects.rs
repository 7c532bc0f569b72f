//! A Pod, a rule or a namespace that is deleted and created again under its name is another object: nothing that was
//! known or admitted of the former object counts for the new object.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::bed::STALLED;
use testbed::endpoint::{Reply, RuleServer};
use testbed::observer::Observer;
use testbed::pods::{at_once, is_available, names};
use testbed::proxy::{Asked, Effect, Fault};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};
use tokio::sync::Notify;

/// Holds back every eviction of a namespace between mutating admission and the delete, until the answer is released.
/// The API server calls validating webhooks after all mutating webhooks, and continues when the connection is closed.
async fn hold_evictions(scope: &Scope) -> (RuleServer, Arc<Notify>) {
    let go_on = Arc::new(Notify::new());
    let answer_now = go_on.clone();
    let endpoint = RuleServer::start(move |_| Reply::CloseAfter(answer_now.clone())).await;
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": scope.namespace},
        "webhooks": [{
            "name": "waits.plane.test",
            "clientConfig": endpoint.config(),
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"],
            }],
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "timeoutSeconds": 30,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scope.namespace}},
        }],
    }))
    .unwrap();
    let all: Api<ValidatingWebhookConfiguration> = Api::all(scope.client.clone());
    all.create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    (endpoint, go_on)
}

/// A StatefulSet `web` of available Pods under a rule `web` of one.
async fn stateful_web(scope: &Scope, replicas: usize) {
    scope.stateful_set(replicas).await;
    scope.all_available("app=web", replicas).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope
        .until_at_rest("web", i32::try_from(replicas).unwrap())
        .await;
}

#[tokio::test]
async fn admitted_eviction_spares_recreated_pod_of_same_name() {
    let scope = Bed::shared().await.scope("replaced").await;
    stateful_web(&scope, 3).await;
    let (endpoint, go_on) = hold_evictions(&scope).await;
    let observer = Observer::start(&scope).await;
    let evicting = {
        let scope = scope.clone();
        tokio::spawn(async move { scope.evict("web-0").await })
    };
    wait::until("the eviction to be admitted", async || {
        !endpoint.heard().is_empty()
    })
    .await;

    let old = scope.get("web-0").await;
    let force = DeleteParams::default().grace_period(0);
    scope.pods().delete("web-0", &force).await.unwrap();
    scope.until_gone(&old).await;
    scope.all_available("app=web", 3).await;
    // The claim of the eviction ended with its Pod, and another Pod now uses the whole budget.
    scope.until_at_rest("web", 3).await;
    let new = scope.get("web-0").await;
    scope.pause_kubelet("web-1").await;
    scope.delete("web-1").await.unwrap();

    go_on.notify_one();
    let status = refusal(evicting.await.unwrap());
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert!(
        status.message.contains(&old.uid().unwrap()),
        "{}",
        status.message
    );
    let pod = scope.get("web-0").await;
    assert!(pod.uid() == new.uid() && is_available(&pod));
    observer.fewest_available(|_| true, 3).await.at_least(2);
    scope.resume_kubelet("web-1").await;
}

fn rule_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path().ends_with("/podtransitionrules")
}

/// Names of the Pods whose deletion passed. Asserts that all other deletions were refused by a rule, or because the
/// replica did not know the rules.
async fn passed(scope: &Scope, pods: &[String]) -> Vec<String> {
    let outcomes = at_once(pods, async |pod| (scope.delete(&pod).await, pod)).await;
    let mut passed = Vec::new();
    for (outcome, pod) in outcomes {
        match outcome {
            Ok(()) => passed.push(pod),
            refused => {
                let status = refusal(refused);
                // On a loaded machine the API server may give up the call of the webhook.
                let given_up = status.message.contains("deadline exceeded");
                assert!(status.code == 429 || given_up, "{pod}: {status:?}");
            }
        }
    }
    passed
}

#[tokio::test]
async fn rule_recreated_during_frozen_rule_watch_keeps_its_limit() {
    let bed = Bed::with_faults_on_one().await;
    let scope = bed.scope("replace").await;
    scope.deploy_where_open("web", 20).await;
    let pods = names(&scope.all_available("app=web", 20).await);
    scope.close_nodes().await;
    scope.rule("web", json!({"app": "web"}), json!(2)).await;
    scope.until_at_rest("web", 20).await;
    let before = scope.rules().get("web").await.unwrap();
    let observer = Observer::start(&scope).await;

    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": {"name": "web", "namespace": scope.namespace},
        "spec": before.data["spec"],
    });
    let replace = ["replace", "--force"];
    let _ = bed.ask_kubectl_about(&replace, &rule).await.success();
    assert_ne!(
        scope.rules().get("web").await.unwrap().uid(),
        before.uid(),
        "another rule of the name"
    );

    // First any replica answers, then only the replica that knows only the earlier rule.
    let mut deleted = passed(&scope, &pods).await;
    bed.only_the_stalled_answers().await;
    let remaining = |deleted: &[String]| {
        let remaining = pods.iter().filter(|pod| !deleted.contains(pod));
        remaining.cloned().collect::<Vec<_>>()
    };
    deleted.extend(passed(&scope, &remaining(&deleted)).await);
    assert!(deleted.len() <= 2, "{deleted:?}");
    bed.faults().end_fault();
    wait::until("the places of the rule to be given", async || {
        deleted.extend(passed(&scope, &remaining(&deleted)).await);
        deleted.len() == 2
    })
    .await;
    deleted.extend(passed(&scope, &remaining(&deleted)).await);
    assert_eq!(deleted.len(), 2, "{deleted:?}");
    observer.fewest_available(|_| true, 20).await.at_least(18);
}

fn pod_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path() == "/api/v1/pods"
}

#[tokio::test]
async fn recreated_rule_counts_pod_deleted_under_its_predecessor() {
    let bed = Bed::with_faults(std::time::Duration::from_secs(60)).await;
    let scope = bed.scope("remade").await;
    scope.deploy_where_open("web", 10).await;
    scope.all_available("app=web", 10).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 10).await;
    // The first claim waits until the caches have reached the watermark of the ledger, which a frozen watch never
    // reaches.
    let first = names(&scope.list("app=web").await)[0].clone();
    scope.delete(&first).await.unwrap();
    let pods = scope.all_available("app=web", 10).await;
    scope.until_at_rest("web", 10).await;
    scope.close_nodes().await;
    let observer = Observer::start(&scope).await;
    // From here on the caches show ten available Pods, whatever happens.
    bed.faults().set(Fault::new(Effect::Freeze).on(pod_watches));
    let name = names(&pods)[0].clone();
    scope.delete(&name).await.unwrap();
    scope.until_gone(&pods[0]).await;
    let rules = scope.rules();
    rules.delete("web", &DeleteParams::default()).await.unwrap();
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope
        .until_status("web", "enforcement", |s: &RuleStatus| {
            let mut of_it = s.conditions.iter();
            of_it.any(|c| c.type_ == "Enforced" && c.status == "True")
        })
        .await;
    let rest = names(&pods)[1..].to_vec();
    let outcomes = at_once(&rest, async |pod| scope.delete(&pod).await).await;
    let passed = outcomes.iter().filter(|o| o.is_ok()).count();
    assert_eq!(passed, 0, "{outcomes:?}");
    bed.faults().end_fault();
    scope.open_nodes().await;
    scope.all_available("app=web", 10).await;
    scope.until_at_rest("web", 10).await;
    let again = names(&scope.list("app=web").await);
    scope.delete(&again[0]).await.unwrap();
    observer.fewest_available(|_| true, 10).await.at_least(9);
}

/// Deletes a namespace, and creates another namespace of the same name.
async fn make_namespace_again(scope: &Scope) {
    scope.delete_namespace().await;
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let again = json!({"metadata": {"name": scope.namespace}});
    let again = serde_json::from_value(again).unwrap();
    namespaces
        .create(&PostParams::default(), &again)
        .await
        .unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(scope.client.clone(), &scope.namespace);
    wait::until("the default service account", async || {
        let found = accounts.get_opt("default").await;
        found.is_ok_and(|account| account.is_some())
    })
    .await;
}

/// Waits until the leader has seen a change of the namespace that this function makes, and therefore all earlier
/// changes.
async fn until_namespace_is_seen(scope: &Scope) {
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    for (value, enforced) in [(json!("true"), "False"), (json!(null), "True")] {
        let patch = json!({"metadata": {"labels": {keys::NAMESPACE_EXCLUDED: value}}});
        let patch = Patch::Merge(patch);
        namespaces
            .patch(&scope.namespace, &PatchParams::default(), &patch)
            .await
            .unwrap();
        let description = format!("Enforced {enforced}");
        scope
            .until_status("web", &description, |s: &RuleStatus| {
                let mut conditions = s.conditions.iter();
                conditions.any(|c| c.type_ == "Enforced" && c.status == enforced)
            })
            .await;
    }
}

#[tokio::test]
async fn rule_in_recreated_namespace_holds_while_watch_is_frozen() {
    let bed = Bed::with_faults_on_one().await;
    let scope = bed.scope("again").await;
    scope.web_under_rule(3, json!(0)).await;
    let namespaces = |asked: &Asked| asked.watches() && asked.uri.path() == "/api/v1/namespaces";
    bed.faults().set(Fault::new(Effect::Freeze).on(namespaces));
    // From here on only the replica that knows the earlier namespace answers.
    bed.only_the_stalled_answers().await;
    make_namespace_again(&scope).await;
    scope.deploy_where_open("web", 10).await;
    let pods = names(&scope.all_available("app=web", 10).await);
    scope.close_nodes().await;
    wait::until("the replica that is left to lead", async || {
        bed.leader().await == STALLED
    })
    .await;
    let observer = Observer::start(&scope).await;
    scope.rule("web", json!({"app": "web"}), json!(3)).await;
    scope.until_at_rest("web", 10).await;

    let deleted = passed(&scope, &pods).await;
    assert_eq!(deleted.len(), 3, "{deleted:?}");
    bed.faults().end_fault();
    until_namespace_is_seen(&scope).await;
    for pod in pods.iter().filter(|pod| !deleted.contains(pod)) {
        let status = refusal(scope.delete(pod).await);
        assert!(status.message.contains("3 of 10 Pods"), "{status:?}");
    }
    observer.fewest_available(|_| true, 10).await.at_least(7);
}
