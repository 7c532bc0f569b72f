//! A policy that rewrites the images of a namespace's Pods, as registry mirrors and digest pinning do. It changes an
//! image only in the request that sets the image.

use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use testbed::Scope;

const IMAGE: &str = "spec.containers[0].image";

fn api(scope: &Scope, kind: &str) -> Api<DynamicObject> {
    let of = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    Api::all_with(scope.client.clone(), &ApiResource::from_gvk(&of))
}

fn name(scope: &Scope) -> String {
    format!("{}.rewriting.test", scope.namespace)
}

fn policy() -> Value {
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

/// Installs the policy. Returns false if it is already installed, or if Kubernetes does not know such policies (before
/// 1.36).
pub async fn begin(scope: &Scope) -> bool {
    let of = json!({ "matchLabels": { "kubernetes.io/metadata.name": scope.namespace } });
    let binding =
        json!({ "policyName": name(scope), "matchResources": { "namespaceSelector": of } });
    for (kind, spec) in [
        ("MutatingAdmissionPolicy", policy()),
        ("MutatingAdmissionPolicyBinding", binding),
    ] {
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": { "name": name(scope) }, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        match api(scope, kind)
            .create(&PostParams::default(), &object)
            .await
        {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => return false,
            Err(e) => panic!("{kind}: {e}"),
        }
    }
    true
}

/// Removes the policy. Returns false if it was not installed.
pub async fn end(scope: &Scope) -> bool {
    let mut any = false;
    for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
        let api = api(scope, kind);
        let deleted = api.delete(&name(scope), &DeleteParams::default()).await;
        any |= deleted.is_ok();
    }
    any
}
