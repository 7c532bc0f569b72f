//! The ValidatingAdmissionPolicies and their bindings. They need no server, so they come before the webhooks and are
//! applied without them too.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client};

use super::apply_object;
use crate::admission::policies::{POLICY_NAMES, policies};

/// Applies every policy, then its binding: a binding without its policy would do nothing.
pub async fn apply_policies(client: &Client) -> anyhow::Result<()> {
    let all: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for (name, (policy, binding)) in POLICY_NAMES.iter().zip(policies()) {
        apply_object(&all, name, &policy).await?;
        apply_object(&bindings, name, &binding).await?;
    }
    Ok(())
}
