//! Patches of the webhook configurations for the components of `manifests`.

use serde::Serialize;
use serde_json::{Value, json};

use crate::admission::routes::{
    ConfigurationSettings, GRACEFUL_DELETION_WEBHOOKS, MUTATING_CONFIGURATION,
    VALIDATING_CONFIGURATION, WEBHOOKS, WebhookKind, webhook_configurations,
};
use crate::cli::print;

/// The JSON patch that adds the entries of the feature gate `GraceDeleteWebhook` to the configuration of this kind.
pub fn feature_patch(
    settings: &ConfigurationSettings,
    kind: WebhookKind,
) -> anyhow::Result<String> {
    let (mutating, validating) = webhook_configurations(&ConfigurationSettings {
        grace_delete: true,
        ..settings.clone()
    });
    let all = match kind {
        WebhookKind::Mutating => webhook_entries(&mutating.webhooks)?,
        WebhookKind::Validating => webhook_entries(&validating.webhooks)?,
    };
    let gated = |entry: &Value| {
        GRACEFUL_DELETION_WEBHOOKS
            .iter()
            .any(|webhook| entry["name"] == webhook.name)
    };
    let gated = all.into_iter().filter(gated);
    let add = |entry| json!({"op": "add", "path": "/webhooks/-", "value": entry});
    print::to_yaml_document(&gated.map(add).collect::<Vec<_>>())
}

/// Strategic merge patches that remove the entries for CollaSets from both configurations.
pub fn collaset_removal_patch() -> anyhow::Result<String> {
    let patch = |object: &str, name: &str, kind: WebhookKind| {
        let all = WEBHOOKS.iter();
        let removed = all.filter(|w| w.route.kind() == kind && w.route.is_for_collasets());
        let remove = |name: &str| json!({"$patch": "delete", "name": name});
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": object,
            "metadata": {"name": name},
            "webhooks": removed.map(|w| remove(w.name)).collect::<Vec<_>>(),
        })
    };
    print::to_yaml_documents(&[
        patch(
            "MutatingWebhookConfiguration",
            MUTATING_CONFIGURATION,
            WebhookKind::Mutating,
        ),
        patch(
            "ValidatingWebhookConfiguration",
            VALIDATING_CONFIGURATION,
            WebhookKind::Validating,
        ),
    ])
}

fn webhook_entries(webhooks: &impl Serialize) -> anyhow::Result<Vec<Value>> {
    Ok(serde_json::from_value(serde_json::to_value(webhooks)?)?)
}
