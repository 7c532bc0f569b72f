//! Keeps the webhook configurations as this version needs them, whatever installed them: `kubectl apply -k`, Helm or
//! `operating install`. Only the leader writes, and only if something differs.
//!
//! A configuration that does not exist stays so: an administrator may have deleted it to get out of an emergency, and
//! the server has no right to create it. A configuration of another version, or of other feature gates, stays as it is:
//! while an update or a return to an older version goes on, the leader can't know which of the two will be left.

pub(in crate::cli) mod correction;
mod pace;

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::correction::{Comparison, compare};
use self::pace::Pace;
use crate::admission::routes::{
    ConfigurationSettings, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, WEBHOOK_REVISION,
    webhook_configurations, webhook_revision,
};
use crate::api_request::{self, ApiFailure};

/// Field manager of the corrections.
const FIELD_MANAGER: &str = "operating-webhooks";
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The pause after the API server has refused the right: RBAC may be written anew, or granted later.
const AFTER_REFUSAL: Duration = Duration::from_secs(600);

/// What the leader needs to correct the configurations.
pub(super) struct WebhookUpkeep {
    configurations: [Configuration; 2],
    /// Notified after each change of a stored configuration.
    changed: Arc<Notify>,
}

/// One of the two configurations.
struct Configuration {
    name: &'static str,
    api: Api<DynamicObject>,
    /// The webhooks that this version needs, in JSON.
    needed: Value,
    pace: Pace,
    /// No look before this time.
    not_before: Option<Instant>,
    /// The last reason why it is not kept, so that a state is logged once.
    note: String,
}

/// What became of a configuration.
enum Outcome {
    /// It is right, or does not exist.
    Right,
    /// It was corrected; the differences in words.
    Corrected(String),
    /// It is not compared, for this reason.
    LeftAlone(String),
}

impl WebhookUpkeep {
    /// `settings` are those of an installation with the flags of this server.
    ///
    /// # Errors
    /// If the own configurations can't be written as JSON.
    pub fn new(
        client: &Client,
        settings: &ConfigurationSettings,
        changed: Arc<Notify>,
    ) -> serde_json::Result<Self> {
        let (mutating, validating) = webhook_configurations(settings);
        let of = |kind: &str, name, needed| {
            let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            Configuration {
                name,
                api: Api::all_with(client.clone(), &ApiResource::from_gvk(&kind)),
                needed,
                pace: Pace::default(),
                not_before: None,
                note: String::new(),
            }
        };
        let [mutating, validating] = [
            serde_json::to_value(mutating)?,
            serde_json::to_value(validating)?,
        ];
        Ok(WebhookUpkeep {
            configurations: [
                of(
                    "MutatingWebhookConfiguration",
                    MUTATING_CONFIGURATION,
                    mutating,
                ),
                of(
                    "ValidatingWebhookConfiguration",
                    VALIDATING_CONFIGURATION,
                    validating,
                ),
            ],
            changed,
        })
    }

    /// Corrects the configurations while this replica leads: at once, and after each of their changes.
    pub async fn run(mut self, mut leading: watch::Receiver<bool>, stop: CancellationToken) {
        let work = async {
            while leading.wait_for(|leads| *leads).await.is_ok() {
                for configuration in &mut self.configurations {
                    configuration.look().await;
                }
                let due = self
                    .configurations
                    .iter()
                    .filter_map(|c| c.not_before)
                    .min();
                let pause = async {
                    match due {
                        Some(due) => sleep_until(due).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = pause => {}
                    () = self.changed.notified() => {}
                    lost = leading.wait_for(|leads| !*leads) => if lost.is_err() { return },
                }
            }
        };
        stop.run_until_cancelled(work).await;
        // The work also ends if the task that leads has ended. That task is the fault to report, and not this one.
        stop.cancelled().await;
    }
}

impl Configuration {
    /// Compares and corrects the configuration, unless its pause is not over.
    async fn look(&mut self) {
        let now = Instant::now();
        if self.not_before.is_some_and(|due| now < due) {
            return;
        }
        let (name, outcome) = (self.name, self.correct().await);
        let (note, pause) = match outcome {
            Ok(Outcome::Right) => (String::new(), None),
            Ok(Outcome::LeftAlone(reason)) => (reason, None),
            Ok(Outcome::Corrected(differences)) => {
                let (next, is_fight) = self.pace.after_correction(now);
                match is_fight {
                    false => info!(name, differences, "corrected a webhook configuration"),
                    true => warn!(
                        name,
                        differences,
                        next_in = format!("{next:?}"),
                        "corrected a webhook configuration again; another program changes it: have it leave the \
                         configuration alone, or run the servers with --fixed-webhooks"
                    ),
                }
                (String::new(), Some(next))
            }
            Err(ApiFailure::Answered(status)) if status.code == 403 => (
                format!("the server has no right to correct it: {}", status.message),
                Some(AFTER_REFUSAL),
            ),
            Err(failure) => {
                let error = failure.text();
                warn!(
                    name,
                    error, "cannot compare a webhook configuration with that of this version"
                );
                (String::new(), Some(AFTER_FAILURE))
            }
        };
        self.not_before = pause.map(|pause| now + pause);
        if self.note != note && !note.is_empty() {
            warn!(name, reason = note, "a webhook configuration is not kept");
        }
        self.note = note;
    }

    async fn correct(&self) -> Result<Outcome, ApiFailure> {
        let Some(found) = call(self.api.get_opt(self.name)).await? else {
            return Ok(Outcome::Right);
        };
        let revision = webhook_revision(found.annotations());
        if revision != WEBHOOK_REVISION {
            return Ok(Outcome::LeftAlone(format!(
                "its webhooks have revision {revision}, those of this version {WEBHOOK_REVISION}; apply the configurations of \
                 this version"
            )));
        }
        let correction = match compare(&found.data, &self.needed) {
            Comparison::Right => {
                // A former attempt may have ended between both writes.
                self.disown(&found).await?;
                return Ok(Outcome::Right);
            }
            Comparison::Other(reason) => return Ok(Outcome::LeftAlone(reason.to_owned())),
            Comparison::Differs(correction) => correction,
        };
        let body = json!({
            "metadata": { "resourceVersion": found.resource_version() },
            "webhooks": correction.webhooks,
        });
        let written = self.patch(&body).await?;
        // If this fails, the next look does it.
        if let Err(failure) = self.disown(&written).await {
            debug!(
                name = self.name,
                failure = failure.text(),
                "a field manager stays for now"
            );
        }
        Ok(Outcome::Corrected(correction.differences.join("; ")))
    }

    /// Takes this server out of the list of field managers. Otherwise a later server-side apply by the tool that owns
    /// the configuration, such as Helm, would report a conflict.
    async fn disown(&self, written: &DynamicObject) -> Result<(), ApiFailure> {
        let managers = written.managed_fields();
        let is_other = |manager: &Option<String>| manager.as_deref() != Some(FIELD_MANAGER);
        let others: Vec<_> = managers
            .iter()
            .filter(|entry| is_other(&entry.manager))
            .collect();
        // The API server does not take an empty list as one.
        if others.is_empty() || others.len() == managers.len() {
            return Ok(());
        }
        let body = json!({ "metadata": {
            "resourceVersion": written.resource_version(), "managedFields": others,
        } });
        self.patch(&body).await.map(drop)
    }

    async fn patch(&self, body: &Value) -> Result<DynamicObject, ApiFailure> {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        call(self.api.patch(self.name, &params, &Patch::Merge(body))).await
    }
}

async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiFailure> {
    api_request::within(CALL_TIMEOUT, request).await
}
