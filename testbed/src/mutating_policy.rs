//! Mutating policies in a namespace, as other programs install them.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by a panic

use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::Scope;

/// A `MutatingAdmissionPolicy` for the namespace of a scope.
pub struct MutatingPolicy<'a> {
    /// The scope.
    pub scope: &'a Scope,
    /// Tells policies of one namespace apart.
    pub suffix: &'static str,
    /// The spec of the policy.
    pub spec: Value,
}

impl MutatingPolicy<'_> {
    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let of = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        Api::all_with(self.scope.client.clone(), &ApiResource::from_gvk(&of))
    }

    fn name(&self) -> String {
        format!("{}.{}.test", self.scope.namespace, self.suffix)
    }

    /// Installs the policy. Returns false if it is already installed, or if Kubernetes does not know such policies
    /// (before 1.36).
    pub async fn begin(&self) -> bool {
        let of = json!({ "matchLabels": { "kubernetes.io/metadata.name": self.scope.namespace } });
        let binding =
            json!({ "policyName": self.name(), "matchResources": { "namespaceSelector": of } });
        for (kind, spec) in [
            ("MutatingAdmissionPolicy", self.spec.clone()),
            ("MutatingAdmissionPolicyBinding", binding),
        ] {
            let object = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": self.name() }, "spec": spec,
            });
            let object = serde_json::from_value(object).unwrap();
            match self.api(kind).create(&PostParams::default(), &object).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => return false,
                Err(e) => panic!("{kind}: {e}"),
            }
        }
        true
    }

    /// Removes the policy. Returns false if it was not installed.
    pub async fn end(&self) -> bool {
        let mut any = false;
        for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
            let deleted = self
                .api(kind)
                .delete(&self.name(), &DeleteParams::default())
                .await;
            any |= deleted.is_ok();
        }
        any
    }
}
