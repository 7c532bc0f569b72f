//! webhook rules whose endpoint answers at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, CustomResourceExt};
use operating::api::keys;
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus as RuleStatus};
use serde_json::json;
use testbed::endpoint::{Reply, RuleServer};
use testbed::{Bed, Scope, wait};

use crate::helpers::{RuleScope, ask, reason, spec, waits, webhook_status};

#[tokio::test]
async fn endpoint_is_called_once_per_pod_and_passes_it() {
    let server = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("asked").await;
    let pods = scope.deployed("web", 6).await;
    scope
        .create_rule("web", json!([ask(server.config(), json!({}))]))
        .await;
    for pod in &pods {
        let begun = scope.begin(pod, "x").await.unwrap();
        assert!(
            waits(&begun, "x"),
            "an admission never waits for an endpoint"
        );
    }
    for pod in &pods {
        scope.until_past_precheck(pod, "x").await;
        assert_eq!(server.times(pod), 1, "{pod}");
    }
    for request in server.asked() {
        assert_eq!(request.target, "/check");
        assert_eq!(request.body["ruleName"], "ask");
        assert_eq!(request.body.get("stage"), None, "the spec does not say one");
        assert!(request.body["traceId"].as_str().unwrap().len() == 36);
        let resource = &request.body["resources"][0];
        assert_eq!(
            (&resource["apiVersion"], &resource["kind"]),
            (&json!("core/v1"), &json!("Pod"))
        );
        let mut sorted = request.names();
        sorted.sort();
        assert_eq!(request.names(), sorted);
    }
}

/// See contract Q12: an answer counts only for the operation that the call was about.
#[tokio::test]
async fn old_answer_is_never_used_for_new_operation() {
    let server = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("anew").await;
    let pods = scope.deployed("web", 1).await;
    scope
        .create_rule("web", json!([ask(server.config(), json!({}))]))
        .await;
    for round in 1..=2 {
        scope.begin(&pods[0], "x").await.unwrap();
        scope.until_past_precheck(&pods[0], "x").await;
        assert_eq!(server.times(&pods[0]), round);
        scope.operate(&pods[0], "x").await;
        scope.until_idle(&pods[0]).await;
    }
    server.answer(|_| Reply::refuse("not now"));
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_reason("web", &pods[0], "ask", "not now").await;
    let pod = scope.get(&pods[0]).await;
    assert!(waits(&pod, "x"), "{:?}", pod.metadata.labels);
}

#[tokio::test]
async fn refusal_passes_pods_that_it_names_and_is_retried() {
    let server = RuleServer::start(|_| Reply::refuse("busy")).await;
    let scope = Bed::shared().await.scope("refused").await;
    let pods = scope.deployed("web", 3).await;
    scope
        .create_rule(
            "web",
            json!([ask(server.config(), json!({"failurePolicy": "Fail"}))]),
        )
        .await;
    for pod in &pods {
        scope.begin(pod, "x").await.unwrap();
    }
    for pod in &pods {
        scope.until_reason("web", pod, "ask", "busy").await;
    }
    // Names of other Pods in the answer have no effect.
    let first = pods[0].clone();
    server.answer(move |_| {
        Reply::Json(
            json!({"success": false, "message": "some", "finishedNames": ["stranger", first]}),
        )
    });
    scope.until_past_precheck(&pods[0], "x").await;
    scope.until_reason("web", &pods[1], "ask", "some").await;
    let status = scope.status::<RuleStatus>("web").await;
    let passed = webhook_status(&status, "ask").passed;
    assert!(passed.iter().all(|p| p.name == pods[0]), "{passed:?}");
    server.answer(|_| Reply::pass());
    for pod in &pods {
        scope.until_past_precheck(pod, "x").await;
    }
}

#[tokio::test]
async fn parameters_are_taken_from_the_pod() {
    let server = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("parameters").await;
    let annotations = json!({"metadata": {"annotations": {"note": "a b"}}});
    scope.pod("web", annotations).await;
    scope.until_idle("web").await;
    let from =
        |key: &str, path: &str| json!({"key": key, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let parameters = json!([
        {"key": "literal", "value": "v"},
        from("app", "metadata.labels['app']"),
        from("note", "metadata.annotations['note']"),
        from("node", "spec.nodeName"),
        from("missing", "status.nominatedNodeName"),
        from("deeper", "spec.securityContext.windowsOptions.runAsUserName"),
    ]);
    let rule = json!({"name": "ask", "stage": "PreCheck",
        "webhook": {"clientConfig": server.config(), "parameters": parameters}});
    scope.create_rule("web", json!([rule])).await;
    scope.begin("web", "x").await.unwrap();
    scope.until_past_precheck("web", "x").await;
    let asked = &server.asked()[0];
    assert_eq!(asked.body["stage"], "PreCheck");
    let node = scope.get("web").await.spec.unwrap().node_name.unwrap();
    let want = json!({"literal": "v", "app": "web", "note": "a b", "node": node, "missing": "", "deeper": ""});
    assert_eq!(asked.body["resources"][0]["parameters"], want);
}

/// See contract Q15: while nothing changes, the server neither writes nor calls.
#[tokio::test]
async fn idle_rules_cause_no_calls_or_writes() {
    let server = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("rest").await;
    let pods = scope.deployed("web", 3).await;
    let rules = json!([
        ask(server.config(), json!({})),
        {"name": "fit", "labelCheck": {"requires": {"matchLabels": {"fit": "yes"}}}},
    ]);
    scope.create_rule("web", rules).await;
    scope.label(&pods[0], json!({"fit": "yes"})).await.unwrap();
    for pod in &pods {
        scope.begin(pod, "x").await.unwrap();
    }
    scope.operate(&pods[0], "x").await;
    scope.until_idle(&pods[0]).await;
    scope
        .until_status(
            "web",
            "two that wait and one that is back",
            |s: &RuleStatus| {
                s.waiting_pods == 2
                    && s.available_pods == 3
                    && webhook_status(s, "ask").passed.is_empty()
                    && reason(s, &pods[1], "PreCheck", "ask").is_some()
            },
        )
        .await;
    let state = async || {
        let version = scope
            .rules()
            .get("web")
            .await
            .unwrap()
            .metadata
            .resource_version;
        (version, server.heard().len())
    };
    let mut before = state().await;
    wait::until("three seconds of rest", async || {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let now = state().await;
        std::mem::replace(&mut before, now.clone()) == now
    })
    .await;
    assert_eq!(server.asked().len(), 1, "only about the one that could go");
    assert_eq!(server.times(&pods[0]), 1);
}

#[tokio::test]
async fn second_webhook_rule_is_asked_after_the_first_passes() {
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let first = RuleServer::start(move |_| match gate.load(Ordering::SeqCst) {
        true => Reply::pass(),
        false => Reply::refuse("closed"),
    })
    .await;
    let second = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("two").await;
    let pods = scope.deployed("web", 1).await;
    let mut other = ask(second.config(), json!({}));
    other["name"] = json!("then");
    scope
        .create_rule("web", json!([ask(first.config(), json!({})), other]))
        .await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_reason("web", &pods[0], "ask", "closed").await;
    assert_eq!(second.asked().len(), 0);
    open.store(true, Ordering::SeqCst);
    scope.until_past_precheck(&pods[0], "x").await;
    assert_eq!(second.times(&pods[0]), 1);
}

/// Excludes a namespace from admission, or includes it again.
async fn exclude(scope: &Scope, value: serde_json::Value) {
    let label = json!({"metadata": {"labels": {keys::NAMESPACE_EXCLUDED: value}}});
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let (params, label) = (PatchParams::default(), Patch::Merge(label));
    namespaces
        .patch(&scope.namespace, &params, &label)
        .await
        .unwrap();
}

/// Removes the checks of the list of rules from the CRD. CRDs of other installations have no such checks.
async fn take_checks_out(scope: &Scope) {
    let checks = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rules/x-kubernetes-validations";
    let patch = json!([{"op": "remove", "path": checks}]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
    let crds: Api<CustomResourceDefinition> = Api::all(scope.client.clone());
    let name = PodTransitionRule::crd_name();
    crds.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Both the CRD and admission refuse two rules of one name. An object that was stored before them may still have such
/// rules.
#[tokio::test]
async fn stored_rules_of_one_name_share_no_answer() {
    let yes = RuleServer::passing().await;
    let no = RuleServer::start(|_| Reply::refuse("not now")).await;
    let bed = Bed::own().await;
    let scope = bed.scope("twins").await;
    let pod = scope.deployed("web", 1).await.remove(0);
    let fail = json!({"failurePolicy": "Fail"});
    let rules = json!([ask(yes.config(), fail.clone()), ask(no.config(), fail)]);
    exclude(&scope, json!("true")).await;
    take_checks_out(&scope).await;
    wait::until("the rule to be stored", async || {
        let stored = scope.try_rule("web", spec("web", rules.clone())).await;
        stored.is_ok()
    })
    .await;
    let installed = bed.operating(&["install", "--webhook-url", bed.url()]);
    assert!(installed.status.success(), "{installed:?}");
    wait::until("such objects to be refused again", async || {
        let refused = scope.try_rule("late", spec("web", rules.clone())).await;
        if refused.is_ok() {
            let delete = DeleteParams::default();
            scope.rules().delete("late", &delete).await.unwrap();
        }
        refused.is_err_and(|e| e.to_string().contains("two rules have the same name"))
    })
    .await;
    exclude(&scope, json!(null)).await;

    wait::until("admission to be asked again", async || {
        waits(&scope.dry_begin(&pod, "x").await, "x")
    })
    .await;
    scope.begin_under_rule("web", &pod, "x").await;
    scope.until_reason("web", &pod, "ask#2", "not now").await;
    assert!(yes.times(&pod) > 0 && no.times(&pod) > 0);
    assert!(waits(&scope.get(&pod).await, "x"));
    no.answer(|_| Reply::pass());
    scope.until_past_precheck(&pod, "x").await;
}
