//! Programs that change objects in the moment in which they are written.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::mutating_policy::MutatingPolicy;
use testbed::{Bed, Scope, wait};

use crate::fixtures::Employer;
use crate::sets::Set;

/// A policy that removes finalizers with this prefix from objects.
fn stripping<'a>(
    scope: &'a Scope,
    suffix: &'static str,
    resource: &str,
    prefix: &str,
) -> MutatingPolicy<'a> {
    let kept = format!("object.metadata.finalizers.filter(f, !f.startsWith('{prefix}'))");
    let expression =
        format!("[JSONPatch{{op: 'replace', path: '/metadata/finalizers', value: {kept}}}]");
    let condition = format!(
        "has(object.metadata.finalizers) && object.metadata.finalizers.exists(f, f.startsWith('{prefix}'))"
    );
    let spec = json!({
        "matchConstraints": { "resourceRules": [{
            "apiGroups": [""], "apiVersions": ["*"], "resources": [resource], "operations": ["UPDATE"],
        }] },
        "matchConditions": [{ "name": "has-finalizer", "expression": condition }],
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }],
    });
    MutatingPolicy {
        scope,
        suffix,
        spec,
    }
}

fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

/// Without its finalizer, a Service could go before its members. The report says why nothing begins, and the write is not
/// repeated at once.
#[tokio::test]
async fn service_whose_finalizer_is_removed_by_a_policy_is_told() {
    let scope = Bed::shared().await.scope("traffic-no-finalizer").await;
    let policy = stripping(&scope, "services", "services", keys::CLEAN_FINALIZER);
    if !policy.begin().await {
        return; // Kubernetes before 1.36
    }
    let probe = Employer::new(
        &scope,
        "probe",
        json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } }),
    )
    .await;
    wait::until("the policy to be in force", async || {
        probe
            .edit(json!({ "metadata": { "finalizers": [keys::CLEAN_FINALIZER] } }))
            .await;
        let stripped = probe.get().await.finalizers().is_empty();
        probe
            .edit(json!({ "metadata": { "finalizers": [] } }))
            .await;
        stripped
    })
    .await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let report = web
        .until("the reason", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(error.contains(keys::CLEAN_FINALIZER), "{error}");
    let before = version(&web.get().await);
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    assert_eq!(version(&web.get().await), before, "no write in 6 s");
    assert!(!web.protects(&set.pod(0).await));
    assert!(policy.end().await);
    web.consistent(1).await;
}

/// Marks that a policy takes back are an error in the report, and are written again ever more rarely.
#[tokio::test]
async fn marks_that_are_taken_back_are_told() {
    let scope = Bed::shared().await.scope("traffic-no-marks").await;
    let prefix = keys::PROTECTION_FINALIZER_PREFIX;
    let policy = stripping(&scope, "pods", "pods", prefix);
    if !policy.begin().await {
        return; // Kubernetes before 1.36
    }
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let name = set.pod(0).await.name_any();
    wait::until("the policy to be in force", async || {
        let finalizers = json!({ "metadata": { "finalizers": [format!("{prefix}/probe")] } });
        scope.patch(&name, finalizers).await.unwrap();
        let stripped = scope.get(&name).await.finalizers().is_empty();
        let none = json!({ "metadata": { "finalizers": Value::Null } });
        scope.patch(&name, none).await.unwrap();
        stripped
    })
    .await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let report = web
        .until("the reason", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(
        error.contains(&name) && error.contains("webhook"),
        "{error}"
    );
    assert!(policy.end().await);
    web.consistent(1).await;
    web.marks(&name, (true, true)).await;
}
