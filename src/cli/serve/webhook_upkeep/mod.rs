//! Keeps the webhook configurations as this version needs them, whatever installed them: `kubectl apply -k`, Helm or
//! `operating install`. Only the leader writes, and only if something differs.
//!
//! A configuration that does not exist stays so: an administrator may have deleted it to get out of an emergency, and
//! the server has no right to create it. A configuration of a newer version stays as it is, so that two versions that
//! run side by side do not undo each other's work.

pub(in crate::cli) mod correction;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::correction::correct;
use crate::admission::routes::{
    ConfigurationSettings, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, WEBHOOK_REVISION,
    webhook_configurations, webhook_revision,
};
use crate::api::keys;
use crate::api_request::{self, ApiFailure};

/// Field manager of the corrections.
const FIELD_MANAGER: &str = "operating-webhooks";
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a correction. Another program that writes the configurations too gets an answer only this often.
const AFTER_CORRECTION: Duration = Duration::from_secs(10);
/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// What the leader needs to correct the configurations.
pub(super) struct WebhookUpkeep {
    client: Client,
    needed: (MutatingWebhookConfiguration, ValidatingWebhookConfiguration),
    /// Notified after each change of a stored configuration.
    changed: Arc<Notify>,
}

/// Why a configuration was not corrected.
enum Failure {
    /// The server has no right to read or to write it.
    Forbidden(String),
    /// Anything else; another attempt may succeed.
    Passing(String),
}

impl WebhookUpkeep {
    /// `settings` are those of an installation with the flags of this server.
    pub fn new(client: Client, settings: &ConfigurationSettings, changed: Arc<Notify>) -> Self {
        WebhookUpkeep {
            client,
            needed: webhook_configurations(settings),
            changed,
        }
    }

    /// Corrects the configurations while this replica leads: at once, and after each of their changes. Does nothing
    /// more after it was refused the right to do so.
    pub async fn run(self, mut leading: watch::Receiver<bool>, stop: CancellationToken) {
        let work = async {
            loop {
                if leading.wait_for(|leads| *leads).await.is_err() {
                    return;
                }
                let changed = self.changed.notified();
                match self.correct_both().await {
                    Ok(true) => sleep(AFTER_CORRECTION).await,
                    Ok(false) => {
                        tokio::select! {
                            () = changed => {}
                            lost = leading.wait_for(|leads| !*leads) => if lost.is_err() { return },
                        }
                    }
                    Err(Failure::Forbidden(error)) => {
                        info!(
                            error,
                            "this server does not correct the webhook configurations (docs/rights.md)"
                        );
                        // A task that ends would end the process.
                        std::future::pending().await
                    }
                    Err(Failure::Passing(error)) => {
                        warn!(
                            error,
                            "cannot compare the webhook configurations with those of this version"
                        );
                        sleep(AFTER_FAILURE).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Whether anything was written.
    async fn correct_both(&self) -> Result<bool, Failure> {
        let (mutating, validating) = &self.needed;
        let first = self.correct_one(MUTATING_CONFIGURATION, mutating).await?;
        let second = self
            .correct_one(VALIDATING_CONFIGURATION, validating)
            .await?;
        Ok(first || second)
    }

    async fn correct_one<K>(&self, name: &str, needed: &K) -> Result<bool, Failure>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let Some(found) = call(api.get_opt(name)).await? else {
            return Ok(false);
        };
        let revision = webhook_revision(found.annotations());
        if revision > WEBHOOK_REVISION {
            debug!(
                name,
                revision,
                own = WEBHOOK_REVISION,
                "a newer version keeps the webhooks"
            );
            return Ok(false);
        }
        let [stored, wanted] = [to_json(&found)?, to_json(needed)?];
        let Some(correction) = correct(&stored, &wanted) else {
            return Ok(false);
        };
        let body = json!({
            "metadata": {
                "resourceVersion": found.resource_version(),
                "annotations": { keys::WEBHOOK_REVISION: WEBHOOK_REVISION.to_string() },
            },
            "webhooks": correction.webhooks,
        });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = call(api.patch(name, &params, &Patch::Merge(&body))).await?;
        info!(
            name,
            differences = correction.differences.join("; "),
            "corrected a webhook configuration"
        );
        self.disown(&api, &written).await?;
        Ok(true)
    }

    /// Takes this server out of the list of field managers. Otherwise a later server-side apply by the tool that owns
    /// the configuration, such as Helm, would report a conflict.
    async fn disown<K>(&self, api: &Api<K>, written: &K) -> Result<(), Failure>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let managers = written.managed_fields().iter();
        let is_other = |manager: &Option<String>| manager.as_deref() != Some(FIELD_MANAGER);
        let others: Vec<_> = managers.filter(|entry| is_other(&entry.manager)).collect();
        // An empty list would not be taken as one.
        if others.is_empty() {
            return Ok(());
        }
        let body = json!({ "metadata": {
            "resourceVersion": written.resource_version(), "managedFields": others,
        } });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let name = written.name_any();
        call(api.patch(&name, &params, &Patch::Merge(&body)))
            .await
            .map(drop)
    }
}

fn to_json(object: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(object).map_err(|error| Failure::Passing(error.to_string()))
}

async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let answer = api_request::within(CALL_TIMEOUT, request).await;
    answer.map_err(|failure| match &failure {
        ApiFailure::Answered(status) if status.code == 403 => Failure::Forbidden(failure.text()),
        _ => Failure::Passing(failure.text()),
    })
}
