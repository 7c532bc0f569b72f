//! A CustomResourceDefinition that does not keep the ledgers: other tools put theirs back, people change it by hand.
//!
//! A claim that is not stored admits nothing, whatever the API server answers to the write.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::{at_once, names};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

const CRD: &str = "podtransitionrules.apps.kusionstack.io";
const PODS: usize = 8;

/// Changes the definition.
async fn change(bed: &Bed, operations: Value) {
    let definitions: Api<CustomResourceDefinition> = Api::all(bed.admin());
    let patch = serde_json::from_value(operations).unwrap();
    let patch = Patch::<()>::Json(patch);
    let params = PatchParams::default();
    definitions.patch(CRD, &params, &patch).await.unwrap();
}

/// Eight Pods under a rule that allows one disruption. Deleted Pods are not replaced.
async fn web(bed: &Bed) -> (Scope, Vec<String>) {
    let scope = bed.scope("foreign").await;
    scope.deploy_where_open("web", PODS).await;
    let pods = names(&scope.all_available("app=web", PODS).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 8).await;
    scope.close_nodes().await;
    (scope, pods)
}

/// Deletes all Pods at once. Returns the messages of the refusals.
async fn refusals(scope: &Scope, pods: &[String]) -> Vec<String> {
    let outcomes = at_once(pods, async |pod| scope.delete(&pod).await).await;
    let refused = outcomes.into_iter().filter(Result::is_err);
    refused.map(|outcome| refusal(outcome).message).collect()
}

/// Asserts that all disruptions are denied under the definition that `broken` makes, and that exactly one passes after
/// `operating install` has restored the definition. `condition_reasons` are the reasons of the rule's condition before
/// and after the restoration, if the condition can be written.
async fn nothing_goes_until_the_definition_is_put_back(
    broken: Value,
    is_in_force: impl AsyncFn(&Scope) -> bool,
    reason: &str,
    condition_reasons: Option<(&str, &str)>,
) {
    let bed = Bed::own().await;
    let (scope, pods) = web(&bed).await;
    change(&bed, broken).await;
    wait::until("the changed definition", async || is_in_force(&scope).await).await;
    let refused = wait::value("refusals that say why", async || {
        let refused = refusals(&scope, &pods).await;
        assert_eq!(refused.len(), PODS, "{refused:#?}");
        // For a moment after the change the API server does not serve the kind.
        let is_settled = |message: &String| {
            !message.contains("(re)initializing") && !message.contains("404 page not found")
        };
        refused.iter().all(is_settled).then_some(refused)
    });
    for message in &refused.await {
        assert!(message.contains(reason), "{message}");
        assert!(message.contains("operating crds"), "{message}");
    }
    if let Some((meanwhile, _)) = condition_reasons {
        until_usable(&scope, "False", meanwhile).await;
    }

    let installed = bed.operating(&["install", "--webhook-url", bed.url()]);
    assert!(installed.status.success(), "{installed:?}");
    wait::until("a place to be given", async || {
        scope.delete(&pods[0]).await.is_ok()
    })
    .await;
    let refused = refusals(&scope, &pods[1..]).await;
    assert_eq!(refused.len(), PODS - 1, "{refused:#?}");
    if let Some((_, after)) = condition_reasons {
        until_usable(&scope, "True", after).await;
    }
}

/// Waits until the condition `LedgerUsable` of the rule `web` has this status and reason.
async fn until_usable(scope: &Scope, status: &str, reason: &str) {
    wait::until("the condition LedgerUsable", async || {
        let conditions = scope.status::<RuleStatus>("web").await.conditions;
        let mut of_ledger = conditions.iter().filter(|c| c.type_ == "LedgerUsable");
        of_ledger.any(|c| c.status == status && c.reason == reason)
    })
    .await;
}

/// Whether the API server answers a write of the status of the rule `web` with 404.
async fn status_is_not_served(scope: &Scope) -> bool {
    let touch = Patch::Merge(json!({"status": {}}));
    let params = PatchParams::default();
    let written = scope.rules().patch_status("web", &params, &touch).await;
    matches!(written, Err(kube::Error::Api(status)) if status.code == 404)
}

#[tokio::test]
async fn without_a_status_subresource_nothing_is_admitted() {
    let broken = json!([{"op": "remove", "path": "/spec/versions/0/subresources"}]);
    let (is_broken, why) = (status_is_not_served, "does not serve");
    nothing_goes_until_the_definition_is_put_back(broken, is_broken, why, None).await;
}

#[tokio::test]
async fn version_that_is_not_served_frees_no_pod() {
    let broken = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    let (is_broken, why) = (status_is_not_served, "does not serve");
    nothing_goes_until_the_definition_is_put_back(broken, is_broken, why, None).await;
}

#[tokio::test]
async fn claim_dropped_by_the_schema_admits_nothing() {
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/ledger";
    let broken = json!([{"op": "remove", "path": path}]);
    let is_dropped = async |scope: &Scope| scope.status::<RuleStatus>("web").await.ledger.is_none();
    let (why, condition_reasons) = ("status.ledger", Some(("LedgerNotStored", "LedgerStored")));
    nothing_goes_until_the_definition_is_put_back(broken, is_dropped, why, condition_reasons).await;
}

/// The replica that needs a claim may not be the leader, and no watch event reports a claim that was not stored.
#[tokio::test]
async fn dropped_ledger_is_reported_before_any_request() {
    let bed = Bed::own().await;
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    let drop = |field: &str| json!([{"op": "remove", "path": format!("{status}/{field}")}]);
    let scope = bed.scope("foreign").await;
    scope.rule("first", json!({"app": "web"}), json!(1)).await;
    change(&bed, drop("ledger")).await;
    scope.deploy_where_open("web", 2).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    until_usable(&scope, "False", "LedgerNotStored").await;

    // If the conditions are dropped, too, the metric reports the problem.
    change(&bed, drop("conditions")).await;
    wait::until("the metric", async || {
        let replicas = bed.metric("operating_ledgers_not_stored").await;
        replicas.iter().any(|rules| *rules >= 1.0)
    })
    .await;
}

/// Writes the ledger as a replica does that was started while the definition dropped the ledger: this replica remembers
/// no claim.
#[tokio::test]
async fn ledger_that_was_begun_without_its_claims_gets_them_back() {
    let scope = Bed::shared().await.scope("forgotten").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    let metadata = scope.get(&pods[0]).await.metadata;
    let time = k8s_openapi::jiff::Timestamp::now().to_string();
    let claim = json!({
        "podName": pods[0], "podUID": metadata.uid, "operation": "Evict", "resourceVersion": metadata.resource_version, "attempt": 9,
        "since": time, "until": time,
    });
    let write = async |attempts: i32, claims: Vec<Value>| {
        let ledger = json!({ "formatVersion": 1, "watermark": metadata.resource_version, "attempts": attempts, "claims": claims });
        let patch = Patch::Merge(json!({ "status": { "ledger": ledger } }));
        let params = PatchParams::default();
        scope
            .rules()
            .patch_status("web", &params, &patch)
            .await
            .unwrap();
    };
    write(9, vec![claim]).await;
    wait::until("the place to be taken", async || {
        let dry = DeleteParams::default().dry_run();
        scope.pods().delete(&pods[1], &dry).await.is_err()
    })
    .await;
    write(1, Vec::new()).await;
    wait::until("the claim to be written back", async || {
        let ledger = scope
            .status::<RuleStatus>("web")
            .await
            .ledger
            .unwrap_or_default();
        ledger.claims.len() == 1 && ledger.attempts > 9
    })
    .await;
    let refused = refusals(&scope, &pods[1..]).await;
    assert_eq!(refused.len(), 2, "{refused:#?}");
}

/// Control: a deleted rule holds no Pod from the moment of its deletion.
#[tokio::test]
async fn deleted_rule_frees_its_pods() {
    let scope = Bed::shared().await.scope("freed").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    scope.delete(&pods[0]).await.unwrap();
    let deleted = scope.rules().delete("web", &Default::default()).await;
    deleted.unwrap();
    wait::until("the rule to be gone", async || {
        scope.rules().get_opt("web").await.unwrap().is_none()
    })
    .await;
    for pod in &pods[1..] {
        wait::until("a deletion to pass", async || {
            scope.delete(pod).await.is_ok()
        })
        .await;
    }
}
