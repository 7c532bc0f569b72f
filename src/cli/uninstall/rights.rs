//! Checks before the first change whether the user has the rights for all of them. Otherwise the command would end when
//! the webhooks are gone and everything else is still there.

use anyhow::bail;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::api::keys;
use crate::cli::install::request::retry_request;

/// Verb, API group, resource and subresource.
type Right = (&'static str, &'static str, &'static str, &'static str);

/// The rights that every uninstallation needs, in the whole cluster.
const RIGHTS: [Right; 14] = [
    (
        "delete",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "",
    ),
    (
        "delete",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        "",
    ),
    (
        "delete",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "",
    ),
    (
        "delete",
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        "",
    ),
    ("patch", "apps", "deployments", "scale"),
    ("patch", "", "pods", ""),
    ("patch", "", "pods", "status"),
    ("patch", "", "services", ""),
    ("patch", "", "services", "status"),
    ("patch", "", "namespaces", ""),
    ("patch", keys::GROUP, "collasets", ""),
    ("delete", "rbac.authorization.k8s.io", "clusterroles", ""),
    (
        "delete",
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        "",
    ),
    ("delete", "", "secrets", ""),
];
/// The rights for the removal of the CRDs.
const CRD_RIGHTS: [Right; 2] = [
    (
        "delete",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "",
    ),
    ("delete", keys::GROUP, "collasets", ""),
];

/// # Errors
/// The rights that the user lacks.
pub async fn check_rights(client: &Client, keep_crds: bool) -> anyhow::Result<()> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let crd_rights = if keep_crds { &[] } else { &CRD_RIGHTS[..] };
    let mut missing = Vec::new();
    for (verb, group, resource, subresource) in RIGHTS.iter().chain(crd_rights) {
        let attributes = ResourceAttributes {
            verb: Some((*verb).to_owned()),
            group: Some((*group).to_owned()),
            resource: Some((*resource).to_owned()),
            subresource: Some((*subresource).to_owned()).filter(|s| !s.is_empty()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let params = PostParams::default();
        let answer =
            retry_request("ask for the own rights", || api.create(&params, &review)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let separator = if subresource.is_empty() { "" } else { "/" };
            missing.push(format!("{verb} {resource}{separator}{subresource}"));
        }
    }
    if !missing.is_empty() {
        bail!(
            "nothing was changed: you may not {}, in the whole cluster; ask an administrator for these rights, or to run \
             this command",
            missing.join(", ")
        );
    }
    Ok(())
}
