//! Status, warnings, `why` and `budget` of rules that hold nothing, and of Pods that something else holds.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use operating::admission::routes;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::{Bed, Scope, wait};

use crate::plugin::{ask_plugin, until_why};
use crate::wait_events::bed;

fn budget(selector: Value) -> Value {
    json!({ "selector": selector, "rules": [{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }] })
}

/// Applies a rule `web` as users do. Returns the output of kubectl with the warnings.
async fn apply(bed: &Bed, scope: &Scope, spec: &Value) -> String {
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "web" }, "spec": spec,
    });
    let apply = ["apply", "-n", &scope.namespace];
    bed.ask_kubectl_about(&apply, &rule).await.success().err
}

/// Waits for a condition of the rule `web`.
async fn until(scope: &Scope, type_: &str, status: &str, reason: &str) {
    scope
        .until_status(
            "web",
            &format!("{type_} {status} {reason}"),
            |s: &RuleStatus| {
                s.conditions
                    .iter()
                    .any(|c| c.type_ == type_ && c.status == status && c.reason == reason)
            },
        )
        .await;
}

/// The rule shows no limit, neither in its status nor in `budget`.
async fn shows_no_limit(bed: &Bed, scope: &Scope) {
    let status = scope.status::<RuleStatus>("web").await;
    assert_eq!(
        (status.unavailable_limit, status.disruptions_allowed),
        (None, None)
    );
    let args = ["budget", "-n", &scope.namespace, "-o", "json"];
    let row = &ask_plugin(bed, None, &args).await.json()["rules"][0];
    assert_eq!(
        (&row["limit"], &row["allowed"]),
        (&Value::Null, &Value::Null)
    );
    let table = ask_plugin(bed, None, &args[..3]).await;
    assert!(!table.out.contains('['), "{table:?}");
}

async fn label_namespace(scope: &Scope, labels: Value) {
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
    namespaces
        .patch(&scope.namespace, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn running(scope: &Scope, pod: &str, labels: Value) {
    scope
        .pod(pod, json!({ "metadata": { "labels": labels } }))
        .await;
}

#[tokio::test]
async fn rule_in_excluded_namespace_says_it_holds_nothing() {
    let bed = bed().await;
    let scope = bed.scope("excluded").await;
    label_namespace(&scope, json!({ (keys::NAMESPACE_EXCLUDED): "" })).await;
    running(&scope, "web-0", json!({ "app": "web" })).await;
    // The API server learns of the label by a watch, and each change of the spec gives the warning again.
    let mut key = 0;
    wait::until("the warning", async || {
        key += 1;
        let absent = json!({ "key": format!("absent-{key}"), "operator": "DoesNotExist" });
        let spec = budget(json!({ "matchLabels": { "app": "web" }, "matchExpressions": [absent] }));
        apply(bed, &scope, &spec)
            .await
            .contains("this PodTransitionRule holds nothing")
    })
    .await;
    until(&scope, "Enforced", "False", "NamespaceExcluded").await;
    shows_no_limit(bed, &scope).await;
    let diagnosis = until_why(&scope, "web-0", "an answer", |_| true).await;
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(
        summary.contains("rules are not enforced here, because"),
        "{summary}"
    );
    assert_eq!(diagnosis["rules"][0]["verdict"], "notApplying");
    // The namespace is no longer excluded, and the condition changes with the label.
    label_namespace(&scope, json!({ (keys::NAMESPACE_EXCLUDED): null })).await;
    until(&scope, "Enforced", "True", "Enforced").await;
}

#[tokio::test]
async fn rule_over_unmanaged_pods_warns_and_reports_it() {
    let bed = bed().await;
    let scope = bed.scope("unmanaged").await;
    running(
        &scope,
        "web-0",
        json!({ "app": "web", (keys::CONTROL): null }),
    )
    .await;
    let output = apply(
        bed,
        &scope,
        &budget(json!({ "matchLabels": { "app": "web" } })),
    )
    .await;
    assert!(
        output.contains("Warning:") && output.contains("web-0") && output.contains(keys::CONTROL),
        "{output}"
    );
    until(&scope, "Enforced", "True", "Enforced").await;
    until(&scope, "Matched", "False", "NoManagedPods").await;
    shows_no_limit(bed, &scope).await;
    // With the label the rule holds the Pod, and the condition changes.
    scope
        .label("web-0", json!({ (keys::CONTROL): keys::CONTROL_VALUE }))
        .await
        .unwrap();
    until(&scope, "Matched", "True", "PodsMatched").await;
}

#[tokio::test]
async fn rule_made_before_its_pods_is_enforced_and_unmatched() {
    let bed = bed().await;
    let scope = bed.scope("unmatched").await;
    let output = apply(
        bed,
        &scope,
        &budget(json!({ "matchLabels": { "app": "web" } })),
    )
    .await;
    assert!(output.contains("holds no Pod yet"), "{output}");
    until(&scope, "Enforced", "True", "Enforced").await;
    until(&scope, "Matched", "False", "NoPodsMatched").await;
    shows_no_limit(bed, &scope).await;
    running(&scope, "web-0", json!({ "app": "web" })).await;
    until(&scope, "Matched", "True", "PodsMatched").await;
    // A limit on Pods without an owner holds only few of them.
    until(&scope, "ExpectedKnown", "False", "ExpectedUnknown").await;
    let mut by_count = budget(json!({ "matchLabels": { "app": "web" } }));
    by_count["rules"][0]["name"] = json!("renamed");
    let output = apply(bed, &scope, &by_count).await;
    assert!(
        output.contains("none of the selected Pods has an owner"),
        "{output}"
    );
    by_count["rules"][0]["availablePolicy"] = json!({ "minAvailableValue": 0 });
    let quiet = apply(bed, &scope, &by_count).await;
    assert!(!quiet.contains("Warning:"), "{quiet}");
}

#[tokio::test]
async fn filter_that_matches_no_selected_pod_is_warned_of() {
    let bed = bed().await;
    let scope = bed.scope("filtered").await;
    scope.deploy("web", 2, json!({})).await;
    scope.all_available("app=web", 2).await;
    let mut spec = budget(json!({ "matchLabels": { "app": "web" } }));
    let filter = |app: &str| json!({ "labelSelector": { "matchLabels": { "app": app } } });
    spec["rules"][0]["filter"] = filter("wbe");
    let output = apply(bed, &scope, &spec).await;
    assert!(
        output.contains("Warning: PodTransitionRule web: no deletion or eviction is held"),
        "{output}"
    );
    until(&scope, "Matched", "False", "FilterMatchesNothing").await;
    shows_no_limit(bed, &scope).await;
    spec["rules"][0]["filter"] = filter("web");
    let quiet = apply(bed, &scope, &spec).await;
    assert!(!quiet.contains("Warning:"), "{quiet}");
    until(&scope, "Matched", "True", "PodsMatched").await;
}

#[tokio::test]
async fn rules_without_a_budget_say_what_they_hold() {
    let bed = bed().await;
    let ask = json!({ "name": "ask", "webhook": { "clientConfig": { "url": "https://example.com/check" } } });
    let labels =
        json!({ "name": "labels", "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } });
    for (rules, status, reason) in [
        (json!([]), "False", "NoRules"),
        (json!([ask]), "True", "LifecycleOnly"),
        (json!([labels]), "True", "LifecycleOnly"),
    ] {
        let scope = bed.scope("no-budget").await;
        running(&scope, "web-0", json!({ "app": "web" })).await;
        let output = apply(bed, &scope, &json!({ "selector": {}, "rules": rules })).await;
        assert!(
            output.contains("Warning: PodTransitionRule web: "),
            "{output}"
        );
        until(&scope, "Enforced", status, reason).await;
        shows_no_limit(bed, &scope).await;
    }
}

#[tokio::test]
async fn why_names_the_pod_disruption_budget_that_holds() {
    let bed = bed().await;
    let scope = bed.scope("pdb").await;
    running(&scope, "web-0", json!({ "app": "web" })).await;
    scope.all_available("app=web", 1).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "no-eviction" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
        Api::namespaced(scope.client.clone(), &scope.namespace);
    budgets
        .create(
            &Default::default(),
            &serde_json::from_value(budget).unwrap(),
        )
        .await
        .unwrap();
    let diagnosis = until_why(
        &scope,
        "web-0",
        "the PodDisruptionBudget to be judged",
        |diagnosis| {
            let reason = diagnosis["disruptionBudgets"][0]["reason"].as_str();
            reason.is_some_and(|reason| reason.contains("no disruption is allowed"))
        },
    )
    .await;
    assert_eq!(diagnosis["disruptionBudgets"][0]["name"], "no-eviction");
    assert_eq!(diagnosis["disruptionBudgets"][0]["holds"], true);
    assert_eq!(diagnosis["deletion"]["outcome"], "allowed");
}

#[tokio::test]
async fn rules_say_when_webhook_configurations_are_gone_or_changed() {
    let bed = Bed::own().await;
    let scope = bed.scope("unregistered").await;
    scope.web_under_rule(2, json!(1)).await;
    until(&scope, "Enforced", "True", "Enforced").await;
    let message = async || {
        let status = scope.status::<RuleStatus>("web").await;
        let mut all = status.conditions.into_iter();
        all.find(|c| c.type_ == "Enforced").unwrap().message
    };

    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(scope.client.clone());
    let name = routes::VALIDATING_CONFIGURATION;
    // The leader would correct the webhooks of its own version.
    let newer = json!({ keys::WEBHOOK_REVISION: "999" });
    let ignored = json!({
        "metadata": { "annotations": newer },
        "webhooks": [{ "name": "pod-delete.apps.kusionstack.io", "failurePolicy": "Ignore" }],
    });
    configurations
        .patch(name, &PatchParams::default(), &Patch::Strategic(ignored))
        .await
        .unwrap();
    until(&scope, "Enforced", "False", "NotRegistered").await;
    let message_now = message().await;
    assert!(
        message_now.contains("pod-delete.apps.kusionstack.io") && message_now.contains("Ignore"),
        "{message_now}"
    );
    shows_no_limit(&bed, &scope).await;

    configurations
        .delete(name, &Default::default())
        .await
        .unwrap();
    wait::until("the deletion to be told", async || {
        message().await.contains(&format!("{name} does not exist"))
    })
    .await;

    let installed = bed.operating(&["install", "--webhook-url", bed.url()]);
    assert!(installed.status.success(), "{installed:?}");
    until(&scope, "Enforced", "True", "Enforced").await;
}

#[tokio::test]
async fn recreate_rollout_is_told_before_and_while_it_stands_still() {
    let bed = bed().await;
    let scope = bed.scope("recreate").await;
    scope.deploy("web", 3, json!({})).await;
    let recreate = json!({ "spec": { "strategy": { "type": "Recreate", "rollingUpdate": null } } });
    let (params, recreate) = (PatchParams::default(), Patch::Merge(recreate));
    scope
        .deployments()
        .patch("web", &params, &recreate)
        .await
        .unwrap();
    scope.all_available("app=web", 3).await;
    let spec = budget(json!({ "matchLabels": { "app": "web" } }));
    let output = apply(bed, &scope, &spec).await;
    assert!(
        output.contains("Warning: PodTransitionRule web: the next rollout of Deployment web"),
        "{output}"
    );
    until(&scope, "RolloutsHeld", "False", "RecreateUnderRule").await;

    let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": "web:2" }] } } } });
    scope
        .deployments()
        .patch("web", &PatchParams::default(), &Patch::Strategic(image))
        .await
        .unwrap();
    until(&scope, "RolloutsHeld", "True", "RecreateHeld").await;
    // A denial says the same as the condition.
    wait::until("a denial with the reason of the rollout", async || {
        let pods = scope.list("app=web").await;
        let mut denied = Vec::new();
        for pod in pods.iter().filter(|pod| is_available(pod)) {
            denied.extend(scope.delete(&pod.name_any()).await.err());
        }
        denied.iter().any(|error| {
            error
                .to_string()
                .contains("strategy Recreate deletes every Pod")
        })
    })
    .await;
    let table = ask_plugin(bed, None, &["budget", "-n", &scope.namespace]).await;
    assert!(
        table.out.contains("RecreateHeld: Deployment web"),
        "{table:?}"
    );

    // The remedy ends the stuck rollout, and the condition reports its end.
    let mut relaxed = spec;
    relaxed["rules"][0]["availablePolicy"]["maxUnavailableValue"] = json!("100%");
    let output = apply(bed, &scope, &relaxed).await;
    assert!(!output.contains("Warning:"), "{output}");
    scope
        .until_status("web", "no rollout to be held", |s: &RuleStatus| {
            s.conditions.iter().all(|c| c.type_ != "RolloutsHeld")
        })
        .await;
    let is_new =
        |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("web:2");
    wait::until("three new Pods", async || {
        let pods = scope.list("app=web").await;
        pods.len() == 3 && pods.iter().all(is_new)
    })
    .await;
}

#[tokio::test]
async fn rule_that_allows_no_disruption_warns() {
    let bed = bed().await;
    let scope = bed.scope("frozen").await;
    let mut spec = budget(json!({ "matchLabels": { "app": "web" } }));
    spec["rules"][0]["availablePolicy"] = json!({ "minAvailableValue": "100%" });
    let output = apply(bed, &scope, &spec).await;
    assert!(
        output.contains("rule budget lets no Pod go (minAvailableValue is 100%)")
            && output.contains("lower minAvailableValue unless this is intended"),
        "{output}"
    );
    until(&scope, "Enforced", "True", "Enforced").await;
    let table = bed.ask_kubectl_in(&scope, &["get", "ptr", "web"]).await.out;
    let mut rows = table.lines().map(|line| line.split_whitespace().take(2));
    assert!(rows.next().unwrap().eq(["NAME", "ENFORCED"]), "{table}");
    assert!(rows.next().unwrap().eq(["web", "True"]), "{table}");
}

#[tokio::test]
async fn owner_with_a_single_managed_pod_is_reported() {
    let bed = bed().await;
    let scope = bed.scope("partly").await;
    let plain = json!({ "metadata": { "labels": { (keys::CONTROL): null } } });
    scope.deploy("web", 4, plain).await;
    let pods = wait::value("four Pods", async || {
        let pods = scope.list("app=web").await;
        (pods.len() == 4).then_some(pods)
    })
    .await;
    let managed = pods[0].metadata.name.clone().unwrap();
    scope
        .label(&managed, json!({ (keys::CONTROL): keys::CONTROL_VALUE }))
        .await
        .unwrap();
    apply(
        bed,
        &scope,
        &budget(json!({ "matchLabels": { "app": "web" } })),
    )
    .await;
    until(&scope, "Matched", "True", "TemplateNotMatched").await;
    let table = ask_plugin(bed, None, &["budget", "-n", &scope.namespace]).await;
    assert!(
        table.out.contains("are selected than asked for"),
        "{table:?}"
    );
    until_why(&scope, &managed, "the same from why", |diagnosis| {
        let reason = diagnosis["rules"][0]["reason"].as_str();
        reason.is_some_and(|reason| reason.contains("are selected than asked for"))
    })
    .await;
}

#[tokio::test]
async fn briefly_unready_pod_is_reported_as_held() {
    let bed = bed().await;
    let scope = bed.scope("moment").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    scope.pause_kubelet(&pods[0]).await;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let lost = json!({ "type": "Ready", "status": "False", "lastTransitionTime": now.to_string() });
    let status = Patch::Strategic(json!({ "status": { "conditions": [lost] } }));
    scope
        .pods()
        .patch_status(&pods[0], &PatchParams::default(), &status)
        .await
        .unwrap();
    let diagnosis = until_why(&scope, &pods[0], "the rule to hold it", |diagnosis| {
        diagnosis["rules"][0]["verdict"] == "holds"
    })
    .await;
    let reason = diagnosis["rules"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("until about") && reason.contains("after that it may go"),
        "{reason}"
    );
    // The statement of the output is true.
    let refused = testbed::scope::refusal(scope.evict(&pods[0]).await);
    assert_eq!(refused.code, 429, "{refused:?}");
}

/// Runs the commands of `docs/server-down.md` while every replica is dead.
#[tokio::test]
async fn why_reports_dead_server_and_documented_recovery_works() {
    let bed = Bed::own().await;
    let scope = bed.scope("down").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    let args = ["why", &pods[0], "-n", &scope.namespace, "-o", "json"];
    let before = ask_plugin(&bed, None, &args).await.json();
    assert_eq!(before["deletion"]["outcome"], "denied", "{before}");
    assert_eq!(before["deletion"]["code"], 429);

    bed.kill_all().await;
    let after = ask_plugin(&bed, None, &args).await.json();
    assert_eq!(after["deletion"]["outcome"], "unanswered", "{after}");
    let summary = after["summary"].as_str().unwrap();
    assert!(
        summary.contains("does not answer") && summary.contains("docs/server-down.md"),
        "{summary}"
    );
    // The deletion of the rule releases nothing: the enforcement label of the namespace stays until a leader is back.
    scope
        .rules()
        .delete("web", &Default::default())
        .await
        .unwrap();
    let refused = testbed::scope::refusal(scope.delete(&pods[0]).await);
    assert!(
        refused.message.contains("failed calling webhook"),
        "{refused:?}"
    );
    label_namespace(&scope, json!({ (keys::NAMESPACE_EXCLUDED): "" })).await;
    wait::until("the exclusion to be seen", async || {
        scope.delete(&pods[0]).await.is_ok()
    })
    .await;
}
