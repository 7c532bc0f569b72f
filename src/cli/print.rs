//! Commands that print YAML.

use anyhow::Context;
use serde::Serialize;

use super::args::{EndpointArgs, WebhookConfigArgs};
use super::install::{client_config, read_ca};
use crate::admission;
use crate::admission::routes::{ConfigurationSettings, webhook_configurations};
use crate::api::crd;

/// All CustomResourceDefinitions, one document each.
pub fn crds() -> anyhow::Result<String> {
    documents(&crd::all())
}

/// Both webhook configurations, one document each.
pub fn webhook_config(args: &WebhookConfigArgs) -> anyhow::Result<String> {
    let WebhookConfigArgs {
        endpoint: EndpointArgs { webhook_url },
        features,
        namespace,
        ca_file,
        cert_manager,
    } = args;
    webhooks(&ConfigurationSettings {
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
pub fn webhooks(settings: &ConfigurationSettings) -> anyhow::Result<String> {
    let (mutating, validating) = webhook_configurations(settings);
    Ok(document(&mutating)? + &document(&validating)?)
}

/// Every ValidatingAdmissionPolicy with its binding, one document each.
pub fn policies() -> anyhow::Result<String> {
    let both = |(policy, binding): &_| Ok(document(&policy)? + &document(&binding)?);
    admission::policies::policies().iter().map(both).collect()
}

/// YAML documents, each with its `---`.
pub fn documents<T: Serialize>(objects: &[T]) -> anyhow::Result<String> {
    objects.iter().map(document).collect()
}

/// One YAML document with its `---`.
pub fn document(object: &impl Serialize) -> anyhow::Result<String> {
    Ok(format!(
        "---\n{}",
        serde_norway::to_string(object).context("cannot write YAML")?
    ))
}
