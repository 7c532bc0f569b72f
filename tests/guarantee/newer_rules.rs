//! Rules that a newer version of the server has stored, under a definition of its own.

use std::ops::Not;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus as RuleStatus};
use serde_json::{Value, json};
use testbed::pods::names;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

/// Makes the API server store any spec of rules, as the definition of a newer version may do.
async fn open_definition(bed: &Bed) {
    let definitions: Api<CustomResourceDefinition> = Api::all(bed.admin());
    let name = "podtransitionrules.apps.kusionstack.io";
    let mut definition = serde_json::to_value(definitions.get(name).await.unwrap()).unwrap();
    definition["metadata"]["annotations"][keys::CRD_REVISION] = json!("99");
    let version = &mut definition["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    definitions
        .replace(
            name,
            &PostParams::default(),
            &serde_json::from_value(definition).unwrap(),
        )
        .await
        .unwrap();
}

/// While the namespace is excluded, the API server does not send its rules to a webhook. The rules are thus stored as
/// if another version had admitted them.
async fn exclude(bed: &Bed, scope: &Scope, value: Value) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {keys::NAMESPACE_EXCLUDED: value}}}));
    Api::<Namespace>::all(bed.admin())
        .patch(&scope.namespace, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn write(scope: &Scope, rules: &Value) -> kube::Result<PodTransitionRule> {
    let patch = Patch::Merge(json!({"spec": {"rules": rules}}));
    let params = PatchParams::default();
    scope.api().patch("web", &params, &patch).await
}

/// The denial of a deletion in a dry run; `None` if it passes.
async fn denial_message(scope: &Scope, pod: &str) -> Option<String> {
    let dry = DeleteParams::default().dry_run();
    let outcome = scope.pods().delete(pod, &dry).await;
    outcome.is_ok().not().then(|| refusal(outcome).message)
}

#[tokio::test]
async fn rule_that_this_version_cannot_read_holds_its_pods() {
    let bed = Bed::own().await;
    let scope = bed.scope("unreadable").await;
    let pods = scope.web_under_rule(3, json!(2)).await;
    scope.deploy("db", 1, json!({})).await;
    let db = names(&scope.all_available("app=db", 1).await);
    assert_eq!(denial_message(&scope, &pods[0]).await, None);

    open_definition(&bed).await;
    exclude(&bed, &scope, json!("")).await;
    let newer = json!([{"name": "availability", "availablePolicy": "balanced"}]);
    wait::until("the API server to store the rule", async || {
        write(&scope, &newer)
            .await
            .is_ok_and(|rule| rule.spec.unreadable.is_some())
    })
    .await;
    exclude(&bed, &scope, json!(null)).await;

    let field =
        "spec.rules[0].availablePolicy: this version of the server can't read a string here";
    let is_held = async || {
        wait::until("the rule to hold", async || {
            let why = denial_message(&scope, &pods[0]).await;
            why.is_some_and(|why| why.contains("PodTransitionRule web") && why.contains(field))
        })
        .await;
        // A Pod that the selector does not match is free.
        wait::until("another Pod to be free", async || {
            denial_message(&scope, &db[0]).await.is_none()
        })
        .await;
    };
    is_held().await;
    assert_eq!(refusal(scope.evict(&pods[1]).await).code, 429);
    scope
        .until_status(
            "web",
            "the field in the condition",
            |status: &RuleStatus| {
                let mut conditions = status.conditions.iter();
                conditions.any(|c| {
                    c.type_ == "Enforced" && c.reason == "Invalid" && c.message.contains(field)
                })
            },
        )
        .await;

    // A replica that starts lists the rule, and so does every replica whose watch has broken off.
    bed.kill_all().await;
    for index in 0..3 {
        bed.restart(index).await;
    }
    is_held().await;

    let good = json!([{"name": "availability", "availablePolicy": {"maxUnavailableValue": 2}}]);
    write(&scope, &good).await.unwrap();
    wait::until("the rule to be read again", async || {
        denial_message(&scope, &pods[0]).await.is_none()
    })
    .await;
    scope.until_at_rest("web", 3).await;
}
