//! Roles for users. The API server adds them to its own ClusterRoles `view`, `edit` and `admin`. Otherwise users would
//! need a wildcard over the API group, which would include the verbs `enforce` and `bypass` and the status of rules.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::keys;
use crate::cli::install::names;

/// Names of the roles, each with the ClusterRole of the API server to which it is added. `edit` includes `view`, and
/// `admin` includes both.
pub const ROLES: [(&str, &str); 3] = [
    ("operating-view", "view"),
    ("operating-edit", "edit"),
    ("operating-admin", "admin"),
];

const READ_VERBS: &[&str] = &["get", "list", "watch"];
const WRITE_VERBS: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];

/// The roles, in the order of [`ROLES`].
pub fn user_roles() -> Vec<ClusterRole> {
    let rules = [
        vec![policy_rule(
            &[
                "collasets",
                "collasets/scale",
                "collasets/status",
                "operationjobs",
                "operationjobs/status",
                "poddecorations",
                "poddecorations/status",
                "podtransitionrules",
                "podtransitionrules/status",
                "resourcecontexts",
            ],
            READ_VERBS,
        )],
        vec![
            policy_rule(
                &[
                    "collasets",
                    "operationjobs",
                    "poddecorations",
                    "podtransitionrules",
                ],
                WRITE_VERBS,
            ),
            policy_rule(&["collasets/scale"], &["patch", "update"]),
        ],
        // Controllers write ResourceContexts. A wrong write there can lose instance IDs.
        vec![policy_rule(&["resourcecontexts"], WRITE_VERBS)],
    ];
    let role = |((name, into), rules): ((&str, &str), _)| ClusterRole {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([
                (
                    "app.kubernetes.io/name".to_owned(),
                    names::APP_NAME.to_owned(),
                ),
                (
                    format!("rbac.authorization.k8s.io/aggregate-to-{into}"),
                    "true".to_owned(),
                ),
            ])),
            ..ObjectMeta::default()
        },
        rules: Some(rules),
        aggregation_rule: None,
    };
    ROLES.into_iter().zip(rules).map(role).collect()
}

fn policy_rule(resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(owned(&[keys::GROUP])),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;
    use crate::api::crd;

    fn resources(rules: &[PolicyRule]) -> BTreeSet<String> {
        let all = rules
            .iter()
            .flat_map(|rule| rule.resources.clone().unwrap());
        all.collect()
    }

    #[test]
    fn view_reads_every_kind_with_its_subresources() {
        let mut served = BTreeSet::new();
        for crd in crd::all_crds() {
            let plural = &crd.spec.names.plural;
            served.insert(plural.clone());
            let subresources = crd.spec.versions[0].subresources.clone();
            let subresources = subresources.unwrap_or_default();
            if subresources.status.is_some() {
                served.insert(format!("{plural}/status"));
            }
            if subresources.scale.is_some() {
                served.insert(format!("{plural}/scale"));
            }
        }
        let view = user_roles().remove(0).rules.unwrap();
        assert_eq!(resources(&view), served);
        assert!(view.iter().all(|rule| rule.verbs == READ_VERBS));
    }

    #[test]
    fn user_roles_exclude_status_wildcards_and_own_verbs() {
        for role in &user_roles()[1..] {
            for rule in role.rules.iter().flatten() {
                let known = rule
                    .verbs
                    .iter()
                    .all(|verb| WRITE_VERBS.contains(&verb.as_str()));
                assert!(known, "{rule:?}");
                let written = resources(std::slice::from_ref(rule));
                let is_sound = |r: &String| !r.contains('*') && !r.ends_with("/status");
                assert!(written.iter().all(is_sound), "{written:?}");
            }
        }
    }
}
