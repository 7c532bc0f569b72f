//! What the server may do, as one table: least privilege, one line for each thing that the code calls.

use anyhow::Context;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde::Serialize;

use super::names;
use crate::admission::{policies, routes};
use crate::api::keys;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resources, subresources behind a slash.
    pub resources: &'static [&'static str],
    /// Only objects of these names; empty for all.
    pub names: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}

const fn all(
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
) -> Access {
    Access {
        group,
        resources,
        names: &[],
        verbs,
    }
}

/// The number of Pods that any owner is asked to have, and nothing else of it. The only wildcards.
const SCALES: Access = all("*", &["*/scale"], &["get"]);

/// Cluster-wide, in the order of the lines of `ClusterRole operating`.
pub const CLUSTER: &[Access] = &[
    // The cache; labels, finalizers and readiness of the lifecycle; the deletion at the end of `pod-delete`; the Pods of
    // CollaSets.
    all(
        "",
        &["pods"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    all("", &["pods/status"], &["patch"]),
    // Resources that a CollaSet changes in place.
    all("", &["pods/resize"], &["patch"]),
    // Rules; a patch of the object itself takes off a finalizer that Kuperator left.
    all(
        keys::GROUP,
        &["podtransitionrules"],
        &["get", "list", "watch", "patch"],
    ),
    // The mark of namespaces with rules, which a policy guards. Not `bypass`: the server goes beyond no budget.
    all(keys::GROUP, &["podtransitionrules"], &[policies::ENFORCE]),
    // Their ledger, by compare-and-swap, and their gauges.
    all(keys::GROUP, &["podtransitionrules/status"], &["patch"]),
    // CollaSets: the finalizer, the status, and references to them that block their deletion.
    all(
        keys::GROUP,
        &["collasets"],
        &["get", "list", "watch", "patch"],
    ),
    all(keys::GROUP, &["collasets/status"], &["patch"]),
    all(keys::GROUP, &["collasets/finalizers"], &["update"]),
    // Their revisions, claims and instance IDs.
    all(
        "apps",
        &["controllerrevisions"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    all(
        "",
        &["persistentvolumeclaims"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    all(
        keys::GROUP,
        &["resourcecontexts"],
        &["list", "watch", "create", "patch", "delete"],
    ),
    // Whether a user may go beyond the budget of a rule.
    all(
        "authorization.k8s.io",
        &["subjectaccessreviews"],
        &["create"],
    ),
    // What users should know.
    all("", &["events"], &["create", "patch"]),
    // How many Pods their owners want: by watches, and by a live read where a watch seems to trail.
    all(
        "apps",
        &["daemonsets", "deployments", "replicasets", "statefulsets"],
        &["get", "list", "watch"],
    ),
    // An old ReplicaSet whose Pods a rule holds gets its number back, so that its Deployment goes on.
    all("apps", &["replicasets/scale"], &["patch"]),
    all("batch", &["jobs"], &["get", "list", "watch"]),
    all("", &["replicationcontrollers"], &["get", "list", "watch"]),
    // The same for owners of all other kinds.
    SCALES,
    // Whether the API server is going to refuse an eviction anyway.
    all("policy", &["poddisruptionbudgets"], &["list", "watch"]),
    // Which namespaces hold rules; the label that says so.
    all("", &["namespaces"], &["list", "watch", "patch"]),
    // Whether the Service of an expected finalizer still selects the Pod.
    all("", &["services"], &["get"]),
    // Our own two configurations: their caBundle, and whether they are there. A name limits a watch of one object too.
    Access {
        group: "admissionregistration.k8s.io",
        resources: &["mutatingwebhookconfigurations"],
        names: &[routes::MUTATING],
        verbs: &["get", "list", "watch", "patch"],
    },
    Access {
        group: "admissionregistration.k8s.io",
        resources: &["validatingwebhookconfigurations"],
        names: &[routes::VALIDATING],
        verbs: &["get", "list", "watch", "patch"],
    },
];

/// In the own namespace, in the order of the lines of `Role operating`. A name cannot limit `create`.
pub const OWN_NAMESPACE: &[Access] = &[
    all("", &["secrets"], &["create"]),
    Access {
        group: "",
        resources: &["secrets"],
        names: &[names::SECRET],
        verbs: &["get", "update"],
    },
    all("coordination.k8s.io", &["leases"], &["create"]),
    Access {
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[names::LEASE],
        verbs: &["get", "update"],
    },
];

/// Service account, roles and bindings for a server in `namespace`, in the order in which to apply them.
pub fn objects(namespace: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let name = names::SERVICE_ACCOUNT;
    let subject = Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        api_group: None,
    };
    let role = |kind: &str| RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    Ok(vec![
        dynamic(&ServiceAccount {
            metadata: metadata(Some(namespace)),
            ..ServiceAccount::default()
        })?,
        dynamic(&ClusterRole {
            metadata: metadata(None),
            rules: Some(rules(CLUSTER)),
            aggregation_rule: None,
        })?,
        dynamic(&ClusterRoleBinding {
            metadata: metadata(None),
            role_ref: role("ClusterRole"),
            subjects: Some(vec![subject.clone()]),
        })?,
        dynamic(&Role {
            metadata: metadata(Some(namespace)),
            rules: Some(rules(OWN_NAMESPACE)),
        })?,
        dynamic(&RoleBinding {
            metadata: metadata(Some(namespace)),
            role_ref: role("Role"),
            subjects: Some(vec![subject]),
        })?,
    ])
}

fn metadata(namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(names::SERVICE_ACCOUNT.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some([("app.kubernetes.io/name".to_owned(), names::APP.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

fn rules(table: &[Access]) -> Vec<PolicyRule> {
    let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let one = |access: &Access| PolicyRule {
        api_groups: Some(owned(&[access.group])),
        resources: Some(owned(access.resources)),
        resource_names: (!access.names.is_empty()).then(|| owned(access.names)),
        verbs: owned(access.verbs),
        non_resource_urls: None,
    };
    table.iter().map(one).collect()
}

fn dynamic(object: &impl Serialize) -> anyhow::Result<DynamicObject> {
    let value = serde_json::to_value(object).context("cannot write an RBAC object as JSON")?;
    serde_json::from_value(value).context("cannot read an RBAC object from JSON")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn only_reads_of_scales_are_granted_by_wildcard_and_secrets_are_ours_alone() {
        let all = CLUSTER.iter().chain(OWN_NAMESPACE);
        for access in all.filter(|access| **access != SCALES) {
            let words = access
                .resources
                .iter()
                .chain(access.verbs)
                .chain([&access.group]);
            assert!(words.copied().all(|w| !w.contains('*')), "{access:?}");
        }
        assert!(CLUSTER.iter().all(|a| !a.resources.contains(&"secrets")));
        for access in OWN_NAMESPACE.iter().filter(|a| a.verbs != ["create"]) {
            assert_eq!(access.names.len(), 1, "{access:?}");
        }
    }

    #[test]
    fn server_may_mark_namespaces_and_bypass_no_rule() {
        let verbs = |verb: &'static str| CLUSTER.iter().filter(move |a| a.verbs.contains(&verb));
        let enforce: Vec<_> = verbs("enforce").collect();
        assert_eq!(enforce.len(), 1);
        assert_eq!(enforce[0].resources, ["podtransitionrules"]);
        assert_eq!(verbs("bypass").count(), 0);
    }

    #[test]
    fn bindings_name_the_account_in_its_namespace() {
        let objects = objects("elsewhere").unwrap();
        let kinds: Vec<_> = objects
            .iter()
            .map(|o| o.types.clone().unwrap().kind)
            .collect();
        assert_eq!(
            kinds,
            [
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding"
            ]
        );
        for binding in [&objects[2], &objects[4]] {
            assert_eq!(binding.data["subjects"][0]["namespace"], "elsewhere");
        }
    }
}
