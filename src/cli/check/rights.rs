//! Asks the API server whether the service account of the server has the rights that its code needs: one
//! SubjectAccessReview for each right of the tables.

use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

use super::finding::Finding;
use super::reads::{Read, call};
use crate::cli::install::EnabledFeatures;
use crate::cli::install::rbac::table::AccessRule;
use crate::domain::messages;

const CHECK: &str = "rights";
/// Number of questions at the same time.
const PARALLEL: usize = 8;
/// Largest number of missing rights that are named.
const MAX_NAMED: usize = 5;

/// Asks for every right that a server with these features needs.
pub async fn check(
    client: &Client,
    namespace: &str,
    account: &str,
    features: EnabledFeatures,
) -> Finding {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let asked = needed_rights(namespace, features);
    let count = asked.len();
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answers = futures::stream::iter(asked.into_iter().map(|attributes| {
        let review = review(&user, namespace, &attributes);
        let api = api.clone();
        async move {
            let answer = call(api.create(&PostParams::default(), &review)).await;
            (describe(&attributes), answer)
        }
    }));
    let mut answers = answers.buffered(PARALLEL);
    let mut missing = Vec::new();
    while let Some((right, answer)) = answers.next().await {
        match answer {
            Read::Found(review) if review.status.as_ref().is_some_and(|s| s.allowed) => {}
            Read::Found(_) => missing.push(right),
            Read::Missing => return Finding::unknown(CHECK, "the API server reviews no access"),
            Read::Forbidden(text) => return Finding::forbidden(CHECK, text),
            Read::Failed(text) => return Finding::unknown(CHECK, text),
        }
    }
    judge(&user, count, &missing)
}

fn judge(user: &str, count: usize, missing: &[String]) -> Finding {
    if missing.is_empty() {
        return Finding::ok(
            CHECK,
            format!("{user} has all {count} rights that the server needs"),
        );
    }
    let missing: Vec<_> = missing.iter().map(String::as_str).collect();
    Finding::problem(
        CHECK,
        format!(
            "{user} may not {}",
            messages::list_names(&missing, MAX_NAMED)
        ),
        "Apply the roles (operating install, kubectl apply -k or helm upgrade); if a feature is off, say so with \
         --feature-gates, --mounted-certificates or --fixed-webhooks",
    )
}

/// Every right, one verb of one resource each.
fn needed_rights(namespace: &str, features: EnabledFeatures) -> Vec<ResourceAttributes> {
    let sets = features.permission_sets().into_iter();
    let sets = sets.filter(|(_, needed)| *needed).map(|(set, _)| set);
    sets.flat_map(|set| {
        let everywhere = set.cluster.iter().flat_map(|rule| expand(rule, None));
        let at_home = set
            .namespaced
            .iter()
            .flat_map(|rule| expand(rule, Some(namespace)));
        everywhere.chain(at_home).collect::<Vec<_>>()
    })
    .collect()
}

fn expand(rule: &AccessRule, namespace: Option<&str>) -> Vec<ResourceAttributes> {
    let names = match rule.names {
        [] => vec![None],
        names => names.iter().map(|name| Some((*name).to_owned())).collect(),
    };
    let mut all = Vec::new();
    for resource in rule.resources {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (*resource, None),
        };
        for verb in rule.verbs {
            for name in &names {
                all.push(ResourceAttributes {
                    group: Some(rule.group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: subresource.clone(),
                    verb: Some((*verb).to_owned()),
                    name: name.clone(),
                    namespace: namespace.map(str::to_owned),
                    ..ResourceAttributes::default()
                });
            }
        }
    }
    all
}

fn review(user: &str, namespace: &str, attributes: &ResourceAttributes) -> SubjectAccessReview {
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(groups.into()),
            resource_attributes: Some(attributes.clone()),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// The right in words, such as `patch pods/status`.
fn describe(attributes: &ResourceAttributes) -> String {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut text = format!("{} {}", of(&attributes.verb), of(&attributes.resource));
    if let Some(subresource) = &attributes.subresource {
        text += &format!("/{subresource}");
    }
    match attributes.group.as_deref() {
        Some("") | None => text,
        Some(group) => format!("{text} of {group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn rights_follow_the_features() {
        let all = needed_rights("home", EnabledFeatures::ALL_FEATURES);
        let few = needed_rights(
            "home",
            EnabledFeatures {
                collasets: false,
                ..EnabledFeatures::ALL_FEATURES
            },
        );
        let creates = |rights: &[ResourceAttributes]| {
            let mut names = rights.iter().map(describe);
            names.any(|right| right == "create pods")
        };
        assert!(creates(&all));
        assert!(!creates(&few));
        let lease = all
            .iter()
            .find(|a| describe(a) == "update leases of coordination.k8s.io");
        assert_eq!(lease.and_then(|a| a.namespace.as_deref()), Some("home"));
        assert!(lease.is_some_and(|a| a.name.is_some()));
        let scale = all
            .iter()
            .find(|a| a.subresource.as_deref() == Some("scale"));
        assert!(scale.is_some());
    }

    #[test]
    fn missing_rights_are_named_and_counted() {
        assert_eq!(judge("u", 7, &[]).state, State::Ok);
        let missing: Vec<_> = (0..MAX_NAMED + 2).map(|i| format!("get x{i}")).collect();
        let finding = judge("u", 9, &missing);
        assert_eq!(finding.state, State::Problem);
        assert!(
            finding.message.starts_with("u may not get x0, get x1"),
            "{finding:?}"
        );
        assert!(finding.message.ends_with("x4 and 2 more"), "{finding:?}");
    }
}
