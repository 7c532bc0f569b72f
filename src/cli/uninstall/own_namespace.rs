//! The namespace of the server: which one it is, and whether the uninstallation may delete it with all that is in it.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, Client, ResourceExt};

use crate::cli::install::names;
use crate::cli::install::request::retry_optional_request;
use crate::domain::messages;

/// Kinds that Kubernetes makes by itself. Their objects belong to others.
const DERIVED: [&str; 4] = [
    "events",
    "endpoints",
    "endpointslices",
    "controllerrevisions",
];
/// Objects of every namespace, and those that belong to the installation without a label: the ConfigMap and the
/// ServiceAccount that Kubernetes creates, the certificates.
const EXPECTED: [&str; 5] = [
    "kube-root-ca.crt",
    "default",
    names::SECRET,
    names::LEASE,
    "webhook-ca",
];
/// Largest number of objects that a text names.
const MAX_NAMED: usize = 5;

/// What becomes of the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceFate {
    /// It does not exist.
    #[default]
    Absent,
    /// An installation has created it, and nothing else is in it: it is deleted.
    Goes {
        /// Its UID.
        uid: String,
    },
    /// It stays, for this reason.
    Stays(String),
}

/// # Errors
/// If the rights of the server are those of an account in another namespace: then its server, its Secret and its Lease
/// would stay while everything else goes.
pub async fn check_namespace(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let api: Api<ClusterRoleBinding> = Api::all(client.clone());
    let name = names::SERVICE_ACCOUNT;
    let description = format!("get ClusterRoleBinding {name}");
    let found = retry_optional_request(&description, || api.get(name)).await?;
    let subjects = found
        .and_then(|binding| binding.subjects)
        .unwrap_or_default();
    let elsewhere = subjects.into_iter().find_map(|subject| {
        let other = subject.namespace.filter(|other| other != namespace)?;
        (subject.kind == "ServiceAccount" && subject.name == names::SERVICE_ACCOUNT)
            .then_some(other)
    });
    if let Some(other) = elsewhere {
        bail!(
            "nothing was changed: the server is installed in namespace {other}, says ClusterRoleBinding {name}, and not in \
             {namespace}: pass --namespace {other}"
        );
    }
    Ok(())
}

/// Reads what is in the namespace.
pub async fn find_fate(client: &Client, name: &str) -> anyhow::Result<NamespaceFate> {
    let api: Api<Namespace> = Api::all(client.clone());
    let description = format!("get namespace {name}");
    let Some(found) = retry_optional_request(&description, || api.get(name)).await? else {
        return Ok(NamespaceFate::Absent);
    };
    if found.labels().get(names::MANAGED_BY).map(String::as_str) != Some(names::APP_NAME) {
        return Ok(NamespaceFate::Stays(
            "it was not created by installing".to_owned(),
        ));
    }
    let discovery = Discovery::new(client.clone()).run().await;
    let discovery = discovery.context("cannot list the kinds of the cluster")?;
    let kinds = discovery
        .groups()
        .flat_map(|group| group.recommended_resources());
    let mut foreign = Vec::new();
    for (resource, capabilities) in kinds {
        let is_listed =
            capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
        let is_derived = DERIVED.contains(&&*resource.plural);
        if !is_listed || is_derived || resource.group == "metrics.k8s.io" {
            continue;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), name, &resource);
        let all = ListParams::default();
        let description = format!("list the {} of namespace {name}", resource.plural);
        let listed = retry_optional_request(&description, || api.list_metadata(&all)).await?;
        let listed = listed.map(|listed| listed.items).unwrap_or_default();
        let others = listed.into_iter().filter(|object| !is_ours(object));
        foreign.extend(others.map(|object| format!("{} {}", resource.kind, object.name_any())));
    }
    if foreign.is_empty() {
        let uid = found.uid().unwrap_or_default();
        return Ok(NamespaceFate::Goes { uid });
    }
    let named: Vec<_> = foreign.iter().map(String::as_str).collect();
    let named = messages::list_names(&named, MAX_NAMED);
    Ok(NamespaceFate::Stays(format!(
        "other objects are in it: {named}"
    )))
}

fn is_ours(object: &PartialObjectMeta<DynamicObject>) -> bool {
    let labels = object.labels();
    let is_labelled =
        labels.get("app.kubernetes.io/name").map(String::as_str) == Some(names::APP_NAME);
    // What an object owns goes and stays with it.
    let is_owned = !object.owner_references().is_empty();
    is_labelled || is_owned || EXPECTED.contains(&&*object.name_any())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn labelled_and_expected_objects_are_ours() {
        for (name, labels, expected) in [
            (
                "operating-1",
                json!({"app.kubernetes.io/name": "operating"}),
                true,
            ),
            ("webhook-certs", json!({}), true),
            ("kube-root-ca.crt", json!({}), true),
            (
                "prometheus",
                json!({"app.kubernetes.io/name": "prometheus"}),
                false,
            ),
            ("operating-traffic", json!({}), false),
        ] {
            let object = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "labels": labels },
            });
            let object = serde_json::from_value(object).unwrap();
            assert_eq!(is_ours(&object), expected, "{name}");
        }
    }
}
