//! The ValidatingAdmissionPolicies and their bindings. They work without a server, so they are applied before the
//! webhooks, and also without them.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client};

use super::apply_object;
use crate::admission::policies::{POLICY_NAMES, policies};

/// Applies every policy, then its binding, because a binding has no effect without its policy.
pub async fn apply_policies(client: &Client) -> anyhow::Result<()> {
    let all: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for (name, (policy, binding)) in POLICY_NAMES.iter().zip(policies()) {
        apply_object(&all, name, &policy).await?;
        apply_object(&bindings, name, &binding).await?;
    }
    Ok(())
}
