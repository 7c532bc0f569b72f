//! The ServiceAccount, roles and bindings: the rights of the server, separated by feature, and the rights of users.

pub mod table;
pub(crate) mod users;

use anyhow::Context;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde::Serialize;

use super::names;
use table::{
    AccessRule, CERTIFICATES, COLLASETS, GRACE_DELETE, PermissionSet, SERVER, TRAFFIC, WEBHOOKS,
};

/// The features for which the server needs rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledFeatures {
    /// The feature gate `CollaSets`.
    pub collasets: bool,
    /// The feature gate `ResourceConsist`.
    pub traffic: bool,
    /// The feature gate `GraceDeleteWebhook`.
    pub grace_delete: bool,
    /// Whether the servers keep their certificates themselves.
    pub certificates: bool,
    /// Whether the leader corrects the webhook configurations.
    pub webhooks: bool,
}

impl EnabledFeatures {
    /// All features.
    pub const ALL_FEATURES: EnabledFeatures = EnabledFeatures {
        collasets: true,
        traffic: true,
        grace_delete: true,
        certificates: true,
        webhooks: true,
    };

    /// Every permission set, and whether the server needs it.
    pub fn permission_sets(self) -> [(PermissionSet, bool); 6] {
        [
            (SERVER, true),
            (COLLASETS, self.collasets),
            (TRAFFIC, self.traffic),
            (GRACE_DELETE, self.grace_delete),
            (CERTIFICATES, self.certificates),
            (WEBHOOKS, self.webhooks),
        ]
    }
}

/// All objects for a server in `namespace`, in the order in which to apply them: its account, the permission sets that
/// it needs, and the roles of users.
pub fn rbac_objects(namespace: &str, parts: EnabledFeatures) -> anyhow::Result<Vec<DynamicObject>> {
    let mut all = vec![to_dynamic_object(&service_account(namespace))?];
    for (grant, _) in parts
        .permission_sets()
        .into_iter()
        .filter(|(_, needed)| *needed)
    {
        all.extend(permission_objects(&grant, namespace)?);
    }
    for role in users::user_roles() {
        all.push(to_dynamic_object(&role)?);
    }
    Ok(all)
}

/// The server's account.
pub fn service_account(namespace: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(names::SERVICE_ACCOUNT, Some(namespace)),
        ..ServiceAccount::default()
    }
}

/// Roles and bindings of a permission set.
pub fn permission_objects(
    grant: &PermissionSet,
    namespace: &str,
) -> anyhow::Result<Vec<DynamicObject>> {
    let name = grant.name;
    let subject = Subject {
        kind: "ServiceAccount".to_owned(),
        name: names::SERVICE_ACCOUNT.to_owned(),
        namespace: Some(namespace.to_owned()),
        api_group: None,
    };
    let role = |kind: &str| RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let mut all = Vec::new();
    if !grant.cluster.is_empty() {
        all.push(to_dynamic_object(&ClusterRole {
            metadata: metadata(name, None),
            rules: Some(policy_rules(grant.cluster)),
            aggregation_rule: None,
        })?);
        all.push(to_dynamic_object(&ClusterRoleBinding {
            metadata: metadata(name, None),
            role_ref: role("ClusterRole"),
            subjects: Some(vec![subject.clone()]),
        })?);
    }
    if !grant.namespaced.is_empty() {
        all.push(to_dynamic_object(&Role {
            metadata: metadata(name, Some(namespace)),
            rules: Some(policy_rules(grant.namespaced)),
        })?);
        all.push(to_dynamic_object(&RoleBinding {
            metadata: metadata(name, Some(namespace)),
            role_ref: role("Role"),
            subjects: Some(vec![subject]),
        })?);
    }
    Ok(all)
}

fn metadata(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(
            [(
                "app.kubernetes.io/name".to_owned(),
                names::APP_NAME.to_owned(),
            )]
            .into(),
        ),
        ..ObjectMeta::default()
    }
}

fn policy_rules(table: &[AccessRule]) -> Vec<PolicyRule> {
    let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let to_policy_rule = |access: &AccessRule| PolicyRule {
        api_groups: Some(owned(&[access.group])),
        resources: Some(owned(access.resources)),
        resource_names: (!access.names.is_empty()).then(|| owned(access.names)),
        verbs: owned(access.verbs),
        non_resource_urls: None,
    };
    table.iter().map(to_policy_rule).collect()
}

fn to_dynamic_object(object: &impl Serialize) -> anyhow::Result<DynamicObject> {
    let value = serde_json::to_value(object).context("cannot write an RBAC object as JSON")?;
    serde_json::from_value(value).context("cannot read an RBAC object from JSON")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::table::{PERMISSION_SETS, READ_SCALES};
    use super::*;

    #[test]
    fn wildcards_are_scale_reads_and_secrets_are_named() {
        for grant in PERMISSION_SETS {
            let all = grant.cluster.iter().chain(grant.namespaced);
            for access in all.filter(|access| **access != READ_SCALES) {
                let names = access
                    .resources
                    .iter()
                    .chain(access.verbs)
                    .chain([&access.group]);
                assert!(names.copied().all(|w| !w.contains('*')), "{access:?}");
            }
            let cluster = grant.cluster.iter();
            assert_eq!(
                cluster.filter(|a| a.resources.contains(&"secrets")).count(),
                0
            );
            for access in grant.namespaced.iter().filter(|a| a.verbs != ["create"]) {
                assert_eq!(access.names.len(), 1, "{access:?}");
            }
        }
    }

    /// Whether a server with these features has the right.
    fn may(parts: EnabledFeatures, verb: &str, resource: &str) -> bool {
        let needed = parts
            .permission_sets()
            .into_iter()
            .filter(|(_, needed)| *needed);
        needed
            .flat_map(|(grant, _)| grant.cluster.iter().chain(grant.namespaced))
            .any(|a| a.verbs.contains(&verb) && a.resources.contains(&resource))
    }

    #[test]
    fn parts_that_are_off_leave_their_rights_out() {
        let none = EnabledFeatures {
            collasets: false,
            traffic: false,
            grace_delete: false,
            certificates: false,
            webhooks: false,
        };
        for (verb, resource) in [
            ("create", "pods"),
            ("delete", "pods"),
            ("patch", "pods/resize"),
            ("patch", "collasets"),
            ("list", "controllerrevisions"),
            ("list", "persistentvolumeclaims"),
            ("list", "resourcecontexts"),
            ("list", "poddecorations"),
            ("patch", "poddecorations"),
            ("list", "operationjobs"),
            ("delete", "operationjobs"),
            ("create", "containerrecreaterequests"),
            ("create", "secrets"),
            ("get", "secrets"),
            ("patch", "mutatingwebhookconfigurations"),
        ] {
            assert!(!may(none, verb, resource), "{verb} {resource}");
            assert!(
                may(EnabledFeatures::ALL_FEATURES, verb, resource),
                "{verb} {resource}"
            );
        }
        let only = |grace_delete, collasets| EnabledFeatures {
            grace_delete,
            collasets,
            ..none
        };
        assert!(may(only(true, false), "delete", "pods"));
        assert!(!may(only(true, false), "create", "pods"));
        assert!(may(only(false, true), "delete", "pods"));
    }

    #[test]
    fn server_may_label_namespaces_and_bypass_no_rule() {
        let all = || {
            PERMISSION_SETS
                .iter()
                .flat_map(|g| g.cluster.iter().chain(g.namespaced))
        };
        let verbs = |verb: &'static str| all().filter(move |a| a.verbs.contains(&verb));
        let enforce: Vec<_> = verbs("enforce").collect();
        assert_eq!(enforce.len(), 1);
        assert_eq!(enforce[0].resources, ["podtransitionrules"]);
        assert_eq!(verbs("bypass").count(), 0);
    }

    #[test]
    fn bindings_name_the_account_in_its_namespace() {
        let objects = rbac_objects("elsewhere", EnabledFeatures::ALL_FEATURES).unwrap();
        let of_kind = |kind: &str| {
            let kind = kind.to_owned();
            let objects = objects.iter();
            objects.filter(move |o| o.types.as_ref().unwrap().kind == kind)
        };
        for (kind, count) in [
            ("ServiceAccount", 1),
            ("ClusterRole", 9),
            ("ClusterRoleBinding", 6),
            ("Role", 2),
            ("RoleBinding", 2),
        ] {
            assert_eq!(of_kind(kind).count(), count, "{kind}");
        }
        for binding in of_kind("ClusterRoleBinding").chain(of_kind("RoleBinding")) {
            let subject = &binding.data["subjects"][0];
            assert_eq!(subject["namespace"], "elsewhere");
            assert_eq!(subject["name"], names::SERVICE_ACCOUNT);
            assert_eq!(
                binding.data["roleRef"]["name"],
                binding.metadata.name.clone().unwrap()
            );
        }
    }
}
