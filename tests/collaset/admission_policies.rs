//! ValidatingAdmissionPolicies of a namespace, with which tests make the API server refuse writes.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::{Scope, wait};

/// A policy that is in force.
pub struct Policy<'a> {
    scope: &'a Scope,
    name: String,
}

impl<'a> Policy<'a> {
    /// Makes the API server refuse `operation` of `resource` (`group/resource`, without the group for the core) with
    /// this reason unless the CEL expression holds.
    pub async fn new(
        scope: &'a Scope,
        (operation, resource): (&str, &str),
        passes: &str,
        reason: &str,
    ) -> Policy<'a> {
        let name = format!("{}.collaset.test", scope.namespace);
        let (group, resource) = match resource.split_once(':') {
            Some((group, resource)) => (group, resource),
            None => ("", resource),
        };
        let rule = |group: &str, resource: &str, operation: &str| json!({ "apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": [operation] });
        // The test writes a ConfigMap to find out whether the policy is in force.
        let rules = [
            rule(group, resource, operation),
            rule("", "configmaps", "CREATE"),
        ];
        let validation = json!({
            "expression": format!("request.resource.resource != 'configmaps' && ({passes})"),
            "message": "not as long as the test says so", "reason": reason,
        });
        let policy = json!({
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail", "matchConstraints": { "resourceRules": rules }, "validations": [validation],
            },
        });
        let of = json!({ "matchLabels": { "kubernetes.io/metadata.name": scope.namespace } });
        let binding = json!({
            "metadata": { "name": name },
            "spec": {
                "policyName": name, "validationActions": ["Deny"], "matchResources": { "namespaceSelector": of },
            },
        });
        let create = PostParams::default();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(scope.client.clone());
        let policy = serde_json::from_value(policy).unwrap();
        policies.create(&create, &policy).await.unwrap();
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(scope.client.clone());
        let binding = serde_json::from_value(binding).unwrap();
        bindings.create(&create, &binding).await.unwrap();
        let policy = Policy { scope, name };
        wait::until("the policy to be in force", async || {
            policy.is_in_force().await
        })
        .await;
        policy
    }

    async fn is_in_force(&self) -> bool {
        let maps: Api<ConfigMap> =
            Api::namespaced(self.scope.client.clone(), &self.scope.namespace);
        let map: Value = json!({ "metadata": { "generateName": "probe-" } });
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        maps.create(&dry, &serde_json::from_value(map).unwrap())
            .await
            .is_err()
    }

    /// Removes the policy.
    pub async fn lift(self) {
        let delete = DeleteParams::default();
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.scope.client.clone());
        bindings.delete(&self.name, &delete).await.unwrap();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.scope.client.clone());
        policies.delete(&self.name, &delete).await.unwrap();
        wait::until("the policy to be gone", async || !self.is_in_force().await).await;
    }
}
