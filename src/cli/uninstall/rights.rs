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

/// Verb, API group, resource with its subresource, and whether the right is needed only in the namespace of the server.
type Right = (&'static str, &'static str, &'static str, bool);

const ADMISSION: &str = "admissionregistration.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The rights that every uninstallation needs.
const RIGHTS: [Right; 24] = [
    ("delete", ADMISSION, "validatingadmissionpolicies", false),
    (
        "delete",
        ADMISSION,
        "validatingadmissionpolicybindings",
        false,
    ),
    ("delete", ADMISSION, "mutatingwebhookconfigurations", false),
    (
        "delete",
        ADMISSION,
        "validatingwebhookconfigurations",
        false,
    ),
    ("patch", "apps", "deployments/scale", true),
    ("list", "", "pods", false),
    ("patch", "", "pods", false),
    ("patch", "", "pods/status", false),
    ("list", "", "services", false),
    ("patch", "", "services", false),
    ("patch", "", "services/status", false),
    ("list", "", "namespaces", false),
    ("patch", "", "namespaces", false),
    ("patch", keys::GROUP, "collasets", false),
    ("patch", keys::GROUP, "podtransitionrules", false),
    ("patch", keys::GROUP, "poddecorations", false),
    ("patch", keys::GROUP, "operationjobs", false),
    ("delete", RBAC, "clusterroles", false),
    ("delete", RBAC, "clusterrolebindings", false),
    ("delete", RBAC, "roles", true),
    ("delete", RBAC, "rolebindings", true),
    ("delete", "", "serviceaccounts", true),
    ("delete", "", "secrets", true),
    ("delete", "coordination.k8s.io", "leases", true),
];
/// The rights for the removal of the CRDs.
const CRD_RIGHTS: [Right; 3] = [
    (
        "delete",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        false,
    ),
    (
        "patch",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        false,
    ),
    ("delete", keys::GROUP, "collasets", false),
];

/// # Errors
/// The rights that the user lacks.
pub async fn check_rights(client: &Client, namespace: &str, keep_crds: bool) -> anyhow::Result<()> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let crd_rights = if keep_crds { &[] } else { &CRD_RIGHTS[..] };
    let mut missing = Vec::new();
    for (verb, group, both, is_namespaced) in RIGHTS.iter().chain(crd_rights) {
        let (resource, subresource) = both.split_once('/').unwrap_or((both, ""));
        let attributes = ResourceAttributes {
            verb: Some((*verb).to_owned()),
            group: Some((*group).to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()).filter(|s| !s.is_empty()),
            namespace: is_namespaced.then(|| namespace.to_owned()),
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
            let place = if *is_namespaced {
                namespace
            } else {
                "all namespaces"
            };
            missing.push(format!("{verb} {both} in {place}"));
        }
    }
    if !missing.is_empty() {
        bail!(
            "nothing was changed: you may not {}; ask an administrator for these rights, or to run \
             this command",
            missing.join(", ")
        );
    }
    Ok(())
}
