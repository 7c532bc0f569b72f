//! The webhook configurations. They replace Kuperator's configurations in the same two objects.
//!
//! `caBundle` belongs to the owner of the certificates: the server, cert-manager, or the user who passed a file. The
//! apply never contains this field, so a repeated installation without a CA keeps it.

use std::fmt::Debug;

use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::request::retry_optional_request;
use super::{apply_object, names};
use crate::admission::routes::{
    ConfigurationSettings, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, webhook_configurations,
};

/// Applies both webhook configurations, removes entries of other versions, and sets `caBundle` if `settings` have one.
/// From then on the API server calls the server that `settings` name. With `keep_segment`, the paths keep the segment
/// that the servers have added.
pub async fn apply_configurations(
    client: &Client,
    settings: &ConfigurationSettings,
    keep_segment: bool,
) -> anyhow::Result<()> {
    let segment = match keep_segment {
        true => stored_segment(client).await?,
        false => None,
    };
    let (mutating, validating) = webhook_configurations(&ConfigurationSettings {
        ca_bundle: None,
        segment,
        ..settings.clone()
    });
    replace_configuration(client, MUTATING_CONFIGURATION, &mutating).await?;
    replace_configuration(client, VALIDATING_CONFIGURATION, &validating).await?;
    match &settings.ca_bundle {
        Some(pem) => set_ca_bundle(client, pem).await,
        None => Ok(()),
    }
}

/// The segment in the paths of the stored configuration.
async fn stored_segment(client: &Client) -> anyhow::Result<Option<String>> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let found = retry_optional_request(&format!("get {VALIDATING_CONFIGURATION}"), || {
        api.get(VALIDATING_CONFIGURATION)
    })
    .await?;
    let found = serde_json::to_value(found).context("cannot write a webhook configuration")?;
    let clients = webhook_entries(&found).map(|entry| &entry["clientConfig"]);
    let mut segments = clients.filter_map(crate::tls::selfmanaged::client_config::path_segment);
    Ok(segments.next().map(str::to_owned))
}

/// Sets `caBundle` (PEM) in every entry that has another one. Skips configurations that do not exist. Writes nothing if
/// nothing differs, so it may be called often. Needs the verbs `get` and `patch`.
pub async fn set_ca_bundle(client: &Client, pem: &[u8]) -> anyhow::Result<()> {
    let ca_bundle =
        serde_json::to_value(ByteString(pem.to_vec())).context("cannot write a CA as JSON")?;
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    patch_configuration(&api, MUTATING_CONFIGURATION, |found| {
        ca_bundle_patches(found, &ca_bundle)
    })
    .await?;
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    patch_configuration(&api, VALIDATING_CONFIGURATION, |found| {
        ca_bundle_patches(found, &ca_bundle)
    })
    .await
}

async fn replace_configuration<K>(client: &Client, name: &str, desired: &K) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let desired_value =
        serde_json::to_value(desired).context("cannot write a webhook configuration as JSON")?;
    patch_configuration(&api, name, |found| {
        client_config_patches(found, &desired_value)
    })
    .await?;
    apply_object(&api, name, desired).await?;
    // Old entries are removed last, so that there is no moment without webhooks.
    patch_configuration(&api, name, |found| {
        foreign_entry_patches(found, &desired_value)
    })
    .await
}

/// Applies the `operations` for the stored configuration, if it exists. On a conflict it reads the configuration again.
async fn patch_configuration<K>(
    api: &Api<K>,
    name: &str,
    operations: impl Fn(&Value) -> Vec<Value>,
) -> anyhow::Result<()>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let step = || async {
        let found = serde_json::to_value(api.get(name).await?).map_err(kube::Error::SerdeError)?;
        let operations = operations(&found);
        if operations.is_empty() {
            return Ok(());
        }
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]});
        let all: Vec<_> = std::iter::once(test).chain(operations).collect();
        let patch: json_patch::Patch =
            serde_json::from_value(all.into()).map_err(kube::Error::SerdeError)?;
        let params = PatchParams {
            field_manager: Some(names::PATCH_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api.patch(name, &params, &Patch::Json::<K>(patch)).await {
            // The API server answers 422 if the test of the version fails. This is a conflict.
            Err(kube::Error::Api(mut status)) if status.code == 422 => {
                status.code = 409;
                Err(kube::Error::Api(status))
            }
            other => other.map(drop),
        }
    };
    retry_optional_request(&format!("correct {name}"), step).await?;
    Ok(())
}

/// Removes the Service from an entry that will get a URL, and the other way round. An apply would leave both fields,
/// which the API server refuses.
fn client_config_patches(found: &Value, desired: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    for (index, entry) in webhook_entries(found).enumerate() {
        let Some(target) = webhook_entries(desired)
            .find(|w| w["name"] == entry["name"])
            .map(|w| &w["clientConfig"])
        else {
            continue;
        };
        let (add, remove) = if target["url"].is_string() {
            ("url", "service")
        } else {
            ("service", "url")
        };
        if !entry["clientConfig"][remove].is_null() {
            let at = format!("/webhooks/{index}/clientConfig");
            operations.push(json!({"op": "remove", "path": format!("{at}/{remove}")}));
            operations
                .push(json!({"op": "add", "path": format!("{at}/{add}"), "value": target[add]}));
        }
    }
    operations
}

/// Sets the CA of entries that have another one or none.
fn ca_bundle_patches(found: &Value, ca_bundle: &Value) -> Vec<Value> {
    let differs = |entry: &Value| entry["clientConfig"]["caBundle"] != *ca_bundle;
    let positions = webhook_entries(found)
        .enumerate()
        .filter(|(_, e)| differs(e));
    let set = |i| json!({"op": "add", "path": format!("/webhooks/{i}/clientConfig/caBundle"), "value": ca_bundle});
    positions.map(|(i, _)| set(i)).collect()
}

/// Removes entries with other names, which come from Kuperator or from another version.
fn foreign_entry_patches(found: &Value, desired: &Value) -> Vec<Value> {
    let is_foreign = |entry: &Value| webhook_entries(desired).all(|w| w["name"] != entry["name"]);
    let positions: Vec<_> = webhook_entries(found)
        .enumerate()
        .filter(|(_, e)| is_foreign(e))
        .map(|(i, _)| i)
        .collect();
    // In reverse order, so that the other positions stay valid.
    positions
        .iter()
        .rev()
        .map(|i| json!({"op": "remove", "path": format!("/webhooks/{i}")}))
        .collect()
}

fn webhook_entries(configuration: &Value) -> impl Iterator<Item = &Value> {
    configuration["webhooks"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn patched(mut found: Value, operations: Vec<Value>) -> Value {
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut found, &patch).unwrap();
        found
    }

    fn entry(name: &str, client: Value) -> Value {
        json!({"name": name, "clientConfig": client})
    }

    #[test]
    fn foreign_entries_are_removed_and_own_entries_stay() {
        let desired = json!({"webhooks": [entry("a", json!({})), entry("b", json!({}))]});
        let found = json!({"webhooks": [
            entry("mutating-pod.apps.kusionstack.io", json!({})), entry("a", json!({"caBundle": "x"})),
            entry("mutating-generic.apps.kusionstack.io", json!({})), entry("b", json!({})),
        ]});
        let remaining = patched(found.clone(), foreign_entry_patches(&found, &desired));
        assert_eq!(
            remaining,
            json!({"webhooks": [entry("a", json!({"caBundle": "x"})), entry("b", json!({}))]})
        );
        assert_eq!(
            foreign_entry_patches(&remaining, &desired),
            Vec::<Value>::new()
        );
        assert_eq!(
            foreign_entry_patches(&json!({}), &desired),
            Vec::<Value>::new()
        );
    }

    #[test]
    fn switching_service_and_url_keeps_ca_bundle() {
        let service = json!({"webhooks": [entry("f", json!({"url": "u"})), entry("a", json!({"service": {"name": "s"}, "caBundle": "x"}))]});
        let url = json!({"webhooks": [entry("f", json!({"url": "u"})), entry("a", json!({"url": "https://h/p", "caBundle": "x"}))]});
        let to_url = json!({"webhooks": [entry("a", json!({"url": "https://h/p"}))]});
        let to_service = json!({"webhooks": [entry("a", json!({"service": {"name": "s"}}))]});
        assert_eq!(
            patched(service.clone(), client_config_patches(&service, &to_url)),
            url
        );
        assert_eq!(
            patched(url.clone(), client_config_patches(&url, &to_service)),
            service
        );
        assert_eq!(
            client_config_patches(&service, &to_service),
            Vec::<Value>::new()
        );
    }

    #[test]
    fn only_entries_with_another_ca_are_touched() {
        let found = json!({"webhooks": [entry("a", json!({"caBundle": "old"})), entry("b", json!({"caBundle": "new"})), entry("c", json!({}))]});
        let all = json!({"webhooks": [entry("a", json!({"caBundle": "new"})), entry("b", json!({"caBundle": "new"})), entry("c", json!({"caBundle": "new"}))]});
        let operations = ca_bundle_patches(&found, &json!("new"));
        assert_eq!(operations.len(), 2);
        assert_eq!(patched(found, operations), all);
        assert_eq!(ca_bundle_patches(&all, &json!("new")), Vec::<Value>::new());
    }
}
