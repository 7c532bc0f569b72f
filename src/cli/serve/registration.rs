//! The webhook configurations that the rules need.

use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;
use tokio::sync::Notify;

use super::certificates::has_segments;
use crate::admission::routes::{self, ClientConfig, ConfigurationSettings};
use crate::cli::args::ServeArgs;
use crate::cluster::watches::registration::ConfigurationObserver;
use crate::domain::rules::registration::RequiredConfiguration;
use crate::tls::path_guard::PathGuard;
use crate::tls::selfmanaged::client_config::path_segment;

/// Both configurations of a server in `namespace`, with the webhooks that hold Pods.
pub fn required_configurations(namespace: &str) -> anyhow::Result<Vec<RequiredConfiguration>> {
    let (mutating, validating) = routes::webhook_configurations(&ConfigurationSettings {
        client: ClientConfig::Url(String::new()), // the address of the webhooks does not matter here
        namespace: namespace.to_owned(),
        ca_bundle: None,
        grace_delete: false,
        collasets: false,
        cert_manager: None,
        segment: None,
    });
    Ok(vec![
        required_configuration(
            "MutatingWebhookConfiguration",
            routes::MUTATING_CONFIGURATION,
            &mutating,
        )?,
        required_configuration(
            "ValidatingWebhookConfiguration",
            routes::VALIDATING_CONFIGURATION,
            &validating,
        )?,
    ])
}

/// Tells `changed` of every stored configuration. Reacts to configurations whose paths lost their segment: their calls
/// are accepted, and the segment is added again at once.
pub fn configuration_observer(
    args: &ServeArgs,
    path_guard: &Arc<PathGuard>,
    wake: Option<Arc<Notify>>,
    changed: Arc<Notify>,
) -> ConfigurationObserver {
    let (path_guard, wake) = (Arc::clone(path_guard), wake.filter(|_| has_segments(args)));
    Arc::new(move |configuration| {
        changed.notify_one();
        let Some(wake) = &wake else { return };
        if configuration
            .client_configs()
            .any(|c| path_segment(c).is_none())
        {
            path_guard.allow_plain_paths();
            wake.notify_one();
        }
    })
}

fn required_configuration(
    kind: &'static str,
    name: &'static str,
    object: &impl Serialize,
) -> anyhow::Result<RequiredConfiguration> {
    let needed = serde_json::to_value(object)
        .and_then(|value| RequiredConfiguration::from_installed(kind, name, value));
    needed.with_context(|| format!("the own {kind} can't be read"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::keys;

    #[test]
    fn configurations_that_are_installed_send_all_that_is_needed() {
        let (mutating, validating) = routes::webhook_configurations(&ConfigurationSettings {
            client: ClientConfig::Url("https://localhost:9443".to_owned()),
            namespace: "home".to_owned(),
            ca_bundle: Some(b"ca".to_vec()),
            grace_delete: true,
            collasets: true,
            cert_manager: Some("home/webhook-serving".to_owned()),
            segment: None,
        });
        let needed = required_configurations("home").unwrap();
        let stored = [
            serde_json::to_value(mutating).unwrap(),
            serde_json::to_value(validating).unwrap(),
        ];
        for value in ["true", keys::NAMESPACE_ENFORCEMENT_STRICT] {
            let labels = BTreeMap::from([
                ("kubernetes.io/metadata.name".to_owned(), "shop".to_owned()),
                (keys::NAMESPACE_ENFORCEMENT.to_owned(), value.to_owned()),
            ]);
            for (needed, stored) in needed.iter().zip(&stored) {
                let stored = serde_json::from_value(stored.clone()).unwrap();
                assert_eq!(needed.configuration_gap(Some(&stored), &labels), None);
                assert!(
                    needed.configuration_gap(None, &labels).is_some(),
                    "{needed:?}"
                );
            }
        }
    }
}
