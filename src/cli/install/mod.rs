//! Installs everything into a cluster by server-side apply with one field manager. An installation can be repeated, and
//! several replicas can install at once.
//!
//! [`install_crds`] comes first. [`apply_configurations`] comes last, when a server can answer, because the API server
//! calls the webhooks from then on.

pub mod names;
pub(crate) mod policies;
pub mod rbac;
pub(crate) mod request;
pub(crate) mod webhooks;

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::request::{retry_optional_request, retry_request};
use super::args::InstallArgs;
use super::{connect, output};
use crate::admission::routes::{ClientConfig, ConfigurationSettings};
use crate::api::crd;

pub use policies::apply_policies;
pub use rbac::EnabledFeatures;
pub use webhooks::{apply_configurations, set_ca_bundle};

/// Longest wait until a new kind is served, or an object is gone. It is much longer than 30 s, because the Kubernetes
/// garbage collector looks for new kinds only every 30 s, and must know the kinds of the objects.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// `operating install`.
pub async fn command(args: InstallArgs) -> anyhow::Result<()> {
    let namespace = &args.cluster.namespace;
    let settings = ConfigurationSettings {
        client: client_config(args.endpoint.webhook_url.as_deref(), namespace),
        namespace: namespace.clone(),
        ca_bundle: read_ca(args.ca_file.as_deref())?,
        grace_delete: args.features.grace_delete(),
        collasets: args.features.collasets(),
        cert_manager: None,
        segment: None,
    };
    let parts = EnabledFeatures {
        collasets: args.features.collasets(),
        traffic: args.features.resource_consist(),
        grace_delete: args.features.grace_delete(),
        certificates: !args.mounted_certificates,
        webhooks: !args.fixed_webhooks,
    };
    let client = connect::connect_client(&args.cluster).await?;
    install_crds(&client, namespace).await?;
    install_rbac(&client, namespace, parts).await?;
    if args.no_webhooks {
        // Nor the policies: they would deny the writes of a Kuperator that still runs.
        return output::write_stdout(&format!(
            "installed in namespace {namespace}, without policies and webhook configurations\n"
        ));
    }
    // After the roles, because a running server needs the verb that the policy checks.
    apply_policies(&client).await?;
    // If the server keeps its certificates itself, it also keeps a segment in the webhook paths.
    apply_configurations(&client, &settings, args.ca_file.is_none()).await?;
    output::write_stdout(&format!("installed in namespace {namespace}\n"))
}

/// How the API server reaches the webhooks: by `url`, or else by the Service in `namespace`.
pub fn client_config(url: Option<&str>, namespace: &str) -> ClientConfig {
    match url {
        Some(url) => ClientConfig::Url(url.to_owned()),
        None => ClientConfig::Service {
            name: names::SERVICE.to_owned(),
            namespace: namespace.to_owned(),
            port: names::SERVICE_PORT,
        },
    }
}

/// Reads the PEM file of `--ca-file`.
pub fn read_ca(file: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(file) = file else { return Ok(None) };
    let pem = std::fs::read(file)
        .with_context(|| format!("--ca-file: cannot read {}", file.display()))?;
    let certificates = x509_parser::pem::Pem::iter_from_buffer(&pem)
        .filter(|block| {
            block
                .as_ref()
                .is_ok_and(|b| b.label == "CERTIFICATE" && b.parse_x509().is_ok())
        })
        .count();
    anyhow::ensure!(
        certificates > 0,
        "--ca-file: {} holds no certificate in PEM form",
        file.display()
    );
    Ok(Some(pem))
}

/// Installs the namespace and the CRDs, and returns when the API server serves the kinds. CRDs of a newer version stay
/// unchanged.
pub async fn install_crds(client: &Client, namespace: &str) -> anyhow::Result<()> {
    ensure_namespace(client, namespace).await?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crds = crd::all_crds();
    for crd in &crds {
        apply_crd(&api, crd).await?;
    }
    for crd in &crds {
        let name = crd.name_any();
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(WAIT_TIMEOUT, established)
            .await
            .with_context(|| {
                format!(
                    "CRD {name} was not established within {} s",
                    WAIT_TIMEOUT.as_secs()
                )
            })?
            .with_context(|| format!("cannot watch CRD {name}"))?;
    }
    Ok(())
}

/// Applies a CRD, unless a newer version has installed it. An older CRD would remove fields from the objects that newer
/// replicas write.
async fn apply_crd(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
) -> anyhow::Result<()> {
    let name = crd.name_any();
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    retry_request(
        &format!("apply customresourcedefinitions {name}"),
        async || {
            let found = api
                .get_metadata_opt(&name)
                .await?
                .map(|found| found.metadata);
            let stored = crd::crd_revision(found.as_ref().and_then(|m| m.annotations.as_ref()));
            if stored > crd::CRD_REVISION {
                tracing::warn!(
                    name,
                    stored,
                    own = crd::CRD_REVISION,
                    "the CRD of a newer version of the server is kept; run the newer version on all replicas"
                );
                return Ok(());
            }
            // If a newer version has applied the CRD meanwhile, this write is a conflict, and the next attempt reads
            // the CRD again.
            let mut desired = crd.clone();
            desired.metadata.resource_version = found.and_then(|m| m.resource_version);
            let patch = Patch::Apply(&desired);
            api.patch(&name, &params, &patch).await.map(drop)
        },
    )
    .await
}

/// Installs the service account, the roles and bindings of the server, and the roles of users; see [`rbac`]. Removes
/// the rights of features that are off.
pub async fn install_rbac(
    client: &Client,
    namespace: &str,
    parts: EnabledFeatures,
) -> anyhow::Result<()> {
    for object in rbac::rbac_objects(namespace, parts)? {
        apply_object(&dynamic_api(client, &object)?, &object.name_any(), &object).await?;
    }
    for (grant, _) in parts
        .permission_sets()
        .into_iter()
        .filter(|(_, needed)| !needed)
    {
        for object in rbac::permission_objects(&grant, namespace)? {
            delete_object(&dynamic_api(client, &object)?, &object.name_any()).await?;
        }
    }
    Ok(())
}

/// Deletes an object. A missing object is no error.
pub(super) async fn delete_object<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let description = format!(
        "delete {} {name}",
        api.resource_url().rsplit('/').next().unwrap_or_default()
    );
    let params = DeleteParams::background();
    retry_optional_request(&description, || api.delete(name, &params)).await?;
    Ok(())
}

/// The namespace of the server. Its Pods must meet the Pod Security standard `restricted`, as those of
/// `manifests/deployment.yaml` do.
pub fn server_namespace(name: &str) -> Namespace {
    let labels = [
        (names::MANAGED_BY, names::APP_NAME),
        ("app.kubernetes.io/name", names::APP_NAME),
        ("pod-security.kubernetes.io/enforce", "restricted"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// Creates the [`server_namespace`]. An existing namespace stays unchanged. If the namespace
/// is being deleted, this function waits for the end of the deletion.
async fn ensure_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    match retry_optional_request(&format!("get namespace {name}"), || api.get(name)).await? {
        Some(found) if found.metadata.deletion_timestamp.is_none() => return Ok(()),
        Some(found) => {
            let uid = found.uid().unwrap_or_default();
            let deletion = await_condition(api.clone(), name, conditions::is_deleted(&uid));
            tokio::time::timeout(WAIT_TIMEOUT, deletion)
                .await
                .with_context(|| {
                    format!("namespace {name} is being deleted; try again when it is gone")
                })?
                .with_context(|| format!("cannot watch namespace {name}"))?;
        }
        None => {}
    }
    apply_object(&api, name, &server_namespace(name)).await
}

/// Applies an object by server-side apply, and takes over fields from other field managers.
async fn apply_object<K, O>(api: &Api<K>, name: &str, object: &O) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
    O: Serialize + Debug,
{
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let patch = Patch::Apply(object);
    let description = format!(
        "apply {} {name}",
        api.resource_url().rsplit('/').next().unwrap_or_default()
    );
    retry_request(&description, || api.patch(name, &params, &patch)).await?;
    Ok(())
}

/// The API for the kind and namespace of `object`.
fn dynamic_api(client: &Client, object: &DynamicObject) -> anyhow::Result<Api<DynamicObject>> {
    let types = object.types.as_ref().context("an object without kind")?;
    let gvk = types
        .try_into()
        .with_context(|| format!("{} is not a group and version", types.api_version))?;
    let resource = ApiResource::from_gvk(&gvk);
    Ok(match object.metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn ca_file_must_hold_certificate() {
        assert_eq!(read_ca(None).unwrap(), None);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let missing = read_ca(Some(&file)).unwrap_err().to_string();
        assert_eq!(
            missing,
            format!("--ca-file: cannot read {}", file.display())
        );

        let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        for bad in ["", "text", &signed.signing_key.serialize_pem()] {
            std::fs::write(&file, bad).unwrap();
            let error = read_ca(Some(&file)).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "--ca-file: {} holds no certificate in PEM form",
                    file.display()
                )
            );
        }
        std::fs::write(&file, signed.cert.pem()).unwrap();
        assert_eq!(
            read_ca(Some(&file)).unwrap(),
            Some(signed.cert.pem().into_bytes())
        );
    }
}
