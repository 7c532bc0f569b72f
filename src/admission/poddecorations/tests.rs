#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::admission::dry_run::fake_api_server::{FakeApiServer, deadline, denied};

async fn mutate(api_server: &FakeApiServer, request: &Request) -> Verdict {
    let handler = PodDecorationMutator(Arc::clone(&api_server.context));
    handler.review(request, deadline()).await
}

async fn validate(api_server: &FakeApiServer, request: &Request) -> Verdict {
    let handler = PodDecorationValidator(Arc::clone(&api_server.context));
    handler.review(request, deadline()).await
}

/// A valid PodDecoration with `part` merged into its spec.
fn decoration_json(part: Value) -> Value {
    let mut spec = json!({
        "historyLimit": 20, "weight": 0, "selector": { "matchLabels": { "app": "a" } },
        "template": { "tolerations": [{ "key": "a", "operator": "Exists" }] },
    });
    json_patch::merge(&mut spec, &part);
    json!({ "metadata": { "name": "log" }, "spec": spec })
}

fn request(old: Option<Value>, new: Value) -> Request {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let kind =
        json!({ "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "PodDecoration" });
    let resource = json!({ "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "poddecorations" });
    let request = json!({
        "uid": "u", "kind": kind, "resource": resource, "name": "log", "namespace": "shop", "operation": operation,
        "object": new, "oldObject": old, "dryRun": true,
    });
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
    Request::parse(review.to_string().as_bytes()).unwrap()
}

fn create(part: Value) -> Request {
    request(None, decoration_json(part))
}

fn update(old: Value, new: Value) -> Request {
    request(Some(decoration_json(old)), decoration_json(new))
}

#[tokio::test]
async fn defaults_are_written_in_a_dry_run_too() {
    let api_server = FakeApiServer::accepting_all();
    let containers =
        json!({ "historyLimit": 0, "template": { "containers": [{ "name": "log" }] } });
    let verdict = mutate(&api_server, &create(containers)).await;
    let patch = serde_json::to_value(verdict.patch().unwrap()).unwrap();
    let add = |path: &str, value: Value| json!({ "op": "add", "path": path, "value": value });
    assert_eq!(
        patch,
        json!([
            add("/spec/historyLimit", json!(20)),
            add(
                "/spec/template/containers/0/injectPolicy",
                json!("BeforePrimaryContainer")
            ),
        ])
    );
    assert_eq!(
        api_server.request_count(),
        0,
        "the validating webhook sends the dry run"
    );
}

#[tokio::test]
async fn all_errors_are_reported_before_schema_validation() {
    let causes = json!([{ "message": "Invalid value", "field": "metadata.labels" }]);
    let api_server = FakeApiServer::refusing(422, "m", causes);
    let part = json!({ "selector": null, "historyLimit": -1, "template": { "metadata": [{ "labels": { "a": "b" } }] } });
    let verdict = mutate(&api_server, &create(part)).await;
    let want = "PodDecoration log is invalid: spec.selector: is required: set it to labels of the Pods to decorate, or to {} \
                for all Pods of CollaSets; spec.historyLimit: -1: must be 0 or more; spec.template.metadata: Invalid value";
    assert_eq!(denied(&verdict), (422, "Invalid", want));
    // The schema reports the path of a value of the wrong type.
    let verdict = mutate(&api_server, &create(json!({ "weight": "x" }))).await;
    assert!(verdict.is_allowed());
}

#[tokio::test]
async fn new_or_changed_template_is_created_in_dry_run() {
    let api_server = FakeApiServer::accepting_all();
    let verdict = validate(&api_server, &create(json!({}))).await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    assert_eq!(
        verdict.warnings(),
        ["spec.template: unknown field \"spec.newer\""]
    );
    let (uri, pod) = api_server.requests.lock().remove(0);
    let query = "?dryRun=All&fieldValidation=Warn&fieldManager=operating";
    assert_eq!(uri, format!("/api/v1/namespaces/shop/pods{query}"));
    assert_eq!(pod["spec"]["containers"][0]["name"], "placeholder");

    let image = json!({ "template": { "tolerations": [] } });
    for (old, new, count) in [
        (json!({}), json!({ "weight": 4 }), 0),
        (json!({}), json!({ "selector": null }), 0),
        (json!({}), json!({ "template": null }), 0),
        (json!({}), image, 1),
        (json!({ "template": null }), json!({}), 2),
    ] {
        let verdict = validate(&api_server, &update(old, new)).await;
        assert!(verdict.is_allowed(), "{}", verdict.message());
        assert_eq!(api_server.request_count(), count);
    }
}

#[tokio::test]
async fn answers_of_the_api_server_become_verdicts() {
    let causes = json!([{ "message": "no", "field": "spec.hostNetwork" }]);
    let verdict = validate(
        &FakeApiServer::refusing(422, "m", causes),
        &create(json!({})),
    )
    .await;
    let want = "PodDecoration log is invalid: spec.template: a Pod that has it is refused: spec.hostNetwork: no";
    assert_eq!(denied(&verdict), (422, "Invalid", want));

    let quota = "pods \"dry-run-x\" is forbidden: exceeded quota: q";
    let api_server = FakeApiServer::refusing(403, quota, json!([]));
    let verdict = validate(&api_server, &create(json!({}))).await;
    assert!(verdict.is_allowed());
    assert!(
        verdict.warnings()[0].ends_with(quota),
        "{:?}",
        verdict.warnings()
    );

    let api_server = FakeApiServer::refusing(500, "oh", json!([]));
    let verdict = validate(&api_server, &create(json!({}))).await;
    let want = "the PodDecoration can't be checked: the API server answers 500 to a dry-run, oh; try again in a moment";
    assert_eq!(denied(&verdict), (503, "ServiceUnavailable", want));
    let changed = update(json!({ "template": null }), json!({}));
    let verdict = validate(&api_server, &changed).await;
    assert!(
        verdict.is_allowed(),
        "a failing dry run does not block a rollback"
    );
    assert!(verdict.warnings()[0].starts_with("the templates were not tried"));
}

#[tokio::test]
async fn creation_needs_short_name_and_selector() {
    let api_server = FakeApiServer::accepting_all();
    let mut long = decoration_json(json!({}));
    for (name, prefix, is_short) in [
        (Some("a".repeat(60)), None, true),
        (Some("a".repeat(61)), None, false),
        (None, Some("a".repeat(55)), true),
        (None, Some("a".repeat(56)), false),
    ] {
        long["metadata"] = json!({ "name": name, "generateName": prefix });
        let verdict = validate(&api_server, &request(None, long.clone())).await;
        assert_eq!(verdict.is_allowed(), is_short, "{}", verdict.message());
    }
    let mut changed = long.clone();
    changed["spec"]["weight"] = 1.into();
    let verdict = validate(&api_server, &request(Some(long), changed)).await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    // A stored PodDecoration may lose its selector.
    let without = json!({ "selector": null });
    assert_eq!(
        validate(&api_server, &create(without.clone())).await.code(),
        422
    );
    let verdict = validate(&api_server, &update(json!({}), without)).await;
    assert!(verdict.is_allowed());
    assert!(verdict.warnings()[0].starts_with("spec.selector: is left out"));
}

#[tokio::test]
async fn stored_fault_does_not_block_other_changes() {
    let api_server = FakeApiServer::accepting_all();
    let invalid = json!({
        "historyLimit": -1,
        "selector": { "matchExpressions": [{ "key": "a", "operator": "In" }] },
        "template": { "metadata": [{ "labels": { "a": "b" } }] },
    });
    let mut changed = invalid.clone();
    changed["weight"] = 5.into();
    let verdict = validate(&api_server, &update(invalid.clone(), changed.clone())).await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    changed["historyLimit"] = (-2).into();
    let verdict = validate(&api_server, &update(invalid.clone(), changed)).await;
    let want = "PodDecoration log is invalid: spec.historyLimit: -2: must be 0 or more";
    assert_eq!(denied(&verdict), (422, "Invalid", want));
    assert_eq!(validate(&api_server, &create(invalid)).await.code(), 422);
}

#[tokio::test]
async fn only_a_changed_spec_is_judged() {
    let api_server = FakeApiServer::refusing(500, "oh", json!([]));
    let invalid = json!({ "historyLimit": -1, "template": { "containers": [{}] } });
    let mut finalized = decoration_json(invalid.clone());
    finalized["metadata"]["finalizers"] = json!(["a"]);
    let mut deleting = decoration_json(json!({ "historyLimit": -2 }));
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for new in [finalized, deleting] {
        let request = request(Some(decoration_json(invalid.clone())), new);
        let verdicts = [
            mutate(&api_server, &request).await,
            validate(&api_server, &request).await,
        ];
        assert!(verdicts.iter().all(Verdict::is_allowed));
    }
    assert_eq!(api_server.request_count(), 0);
}

#[tokio::test]
async fn fallback_skips_defaults_and_denies_validation() {
    let api_server = FakeApiServer::accepting_all();
    let request = create(json!({}));
    let context = Arc::clone(&api_server.context);
    let mutator = PodDecorationMutator(context).fallback(&request, "why");
    assert!(mutator.is_allowed() && mutator.patch().is_none());
    let validator = PodDecorationValidator(api_server.context);
    let denial = validator.fallback(&request, "the server is overloaded");
    let want =
        "the PodDecoration can't be checked: the server is overloaded; try again in a moment";
    assert_eq!(denied(&denial), (503, "ServiceUnavailable", want));
    let excessive = validator.deny_excessive(&request, "it takes too much memory");
    let want = "PodDecoration: it takes too much memory; make the templates smaller";
    assert_eq!(denied(&excessive), (413, "RequestEntityTooLarge", want));
}
