//! A policy that rewrites the images of a namespace's Pods, as registry mirrors and digest pinning do. It changes an
//! image only in the request that sets the image.

use serde_json::{Value, json};
use testbed::Scope;
use testbed::mutating_policy::MutatingPolicy;

const IMAGE: &str = "spec.containers[0].image";

fn spec() -> Value {
    let expression = format!(
        "[JSONPatch{{op: 'replace', path: '/spec/containers/0/image', value: 'mirror/' + object.{IMAGE}}}]"
    );
    json!({
        "matchConstraints": { "resourceRules": [{
            "apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"],
        }] },
        "matchConditions": [{
            "name": "set-by-this-request",
            "expression": format!(
                "!object.{IMAGE}.startsWith('mirror/') && (oldObject == null || oldObject.{IMAGE} != object.{IMAGE})"
            ),
        }],
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }],
    })
}

fn policy(scope: &Scope) -> MutatingPolicy<'_> {
    MutatingPolicy {
        scope,
        suffix: "rewriting",
        spec: spec(),
    }
}

/// Installs the policy. Returns false if it is already installed, or if Kubernetes does not know such policies (before
/// 1.36).
pub async fn begin(scope: &Scope) -> bool {
    policy(scope).begin().await
}

/// Removes the policy. Returns false if it was not installed.
pub async fn end(scope: &Scope) -> bool {
    policy(scope).end().await
}
