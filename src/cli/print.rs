//! Commands that print YAML.

use anyhow::Context;
use serde::Serialize;

use super::args::{EndpointArgs, WebhookConfigArgs};
use super::install::{client_config, read_ca};
use crate::admission;
use crate::admission::routes::{ConfigurationSettings, webhook_configurations};
use crate::api::crd;

/// All CustomResourceDefinitions, one document each.
pub fn print_crds() -> anyhow::Result<String> {
    to_yaml_documents(&crd::all_crds())
}

/// Both webhook configurations, one document each.
pub fn print_webhook_config(args: &WebhookConfigArgs) -> anyhow::Result<String> {
    let WebhookConfigArgs {
        endpoint: EndpointArgs { webhook_url },
        features,
        namespace,
        ca_file,
        cert_manager,
    } = args;
    webhook_documents(&ConfigurationSettings {
        client: client_config(webhook_url.as_deref(), namespace),
        namespace: namespace.clone(),
        ca_bundle: read_ca(ca_file.as_deref())?,
        grace_delete: features.grace_delete(),
        collasets: features.collasets(),
        cert_manager: cert_manager.clone(),
        segment: None,
    })
}

/// Both webhook configurations, one document each.
pub fn webhook_documents(settings: &ConfigurationSettings) -> anyhow::Result<String> {
    let (mutating, validating) = webhook_configurations(settings);
    Ok(to_yaml_document(&mutating)? + &to_yaml_document(&validating)?)
}

/// Every ValidatingAdmissionPolicy with its binding, one document each.
pub fn print_policies() -> anyhow::Result<String> {
    let both =
        |(policy, binding): &_| Ok(to_yaml_document(&policy)? + &to_yaml_document(&binding)?);
    admission::policies::policies().iter().map(both).collect()
}

/// YAML documents, each with `---` before it.
pub fn to_yaml_documents<T: Serialize>(objects: &[T]) -> anyhow::Result<String> {
    objects.iter().map(to_yaml_document).collect()
}

/// One YAML document with `---` before it.
pub fn to_yaml_document(object: &impl Serialize) -> anyhow::Result<String> {
    Ok(format!(
        "---\n{}",
        serde_norway::to_string(object).context("cannot write YAML")?
    ))
}
