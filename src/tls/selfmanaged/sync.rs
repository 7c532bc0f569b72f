//! Brings Secret, webhook configurations and the served certificate into line, from any number of replicas at once.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ObjectMeta, Patch, PatchParams, PostParams,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::issue::pem_bundle;
use super::request::{SyncError, is_write_applied, send_request};
use super::segments::PathSegments;
use super::{
    CertificateNames, Material, RenewalPolicy, RenewalStep, apply_step, client_config, next_step,
};
use crate::tls::path_guard::PathGuard;
use crate::tls::{CertificatePair, CertificateResolver};

/// Rounds of one [`SelfManaged::ensure`]. Each ends with a write of ours or of another replica, and no more than a
/// few writes are needed in all.
const MAX_ROUNDS: u32 = 10;
/// Longest pause after a conflict, and shortest after a failure.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(30);
const FIELD_MANAGER: &str = "operating-certificates";

/// Where the certificates live and who must know them.
#[derive(Clone, Debug)]
pub struct SyncTarget {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret; `webhook-certs` in a Kuperator cluster (contract 4.5).
    pub secret: String,
    /// Name of the MutatingWebhookConfiguration.
    pub mutating: String,
    /// Name of the ValidatingWebhookConfiguration.
    pub validating: String,
}

/// Keeps a [`Resolver`] at a certificate that the API server trusts.
#[derive(Clone)]
pub struct SelfManaged {
    secrets: Api<Secret>,
    configurations: [Api<DynamicObject>; 2],
    target: SyncTarget,
    names: CertificateNames,
    policy: RenewalPolicy,
    resolver: Arc<CertificateResolver>,
    /// Whom to tell the segments of the webhook paths; without, plain paths are published.
    doors: Option<Arc<PathGuard>>,
    wake: Arc<Notify>,
}

/// One attempt.
enum SyncRound {
    /// Everything is in line.
    Done(Material),
    /// Something was written: look again.
    Written,
    /// Somebody else wrote in between: wait a moment, then look again.
    Lost,
}

impl SelfManaged {
    /// Certificates for `names` at `target`. Asks nothing yet.
    pub fn new(
        client: Client,
        target: SyncTarget,
        names: CertificateNames,
        policy: RenewalPolicy,
        resolver: Arc<CertificateResolver>,
    ) -> SelfManaged {
        let configuration = |kind: &str| {
            let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
        };
        SelfManaged {
            configurations: [
                configuration("MutatingWebhookConfiguration"),
                configuration("ValidatingWebhookConfiguration"),
            ],
            secrets: Api::namespaced(client, &target.namespace),
            target,
            names,
            policy,
            resolver,
            doors: None,
            wake: Arc::default(),
        }
    }

    /// Publishes paths with a segment that nobody can guess, and tells `doors` which.
    pub fn with_segments(mut self, doors: Arc<PathGuard>) -> SelfManaged {
        self.doors = Some(doors);
        self
    }

    /// Makes [`SelfManaged::run`] look at once.
    pub fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Creates or renews the Secret if need be, publishes its authorities in every entry of both webhook
    /// configurations (a missing configuration is passed over), then serves its leaf. Returns the `caBundle` (PEM).
    ///
    /// # Errors
    /// [`SyncError`]; what was served before is still served then.
    pub async fn ensure_certificates(&self, now: Timestamp) -> Result<Vec<u8>, SyncError> {
        for _ in 0..MAX_ROUNDS {
            match self.sync_once(now).await? {
                SyncRound::Done(material) => {
                    let pair = CertificatePair::from_pem(&material.tls_crt, &material.tls_key)?;
                    self.resolver.serve_pair(pair, material.roots(now));
                    return Ok(material.ca_crt);
                }
                SyncRound::Written => {}
                SyncRound::Lost => sleep(MIN_PAUSE.mul_f64(rand::random())).await,
            }
        }
        Err(SyncError::Contended(MAX_ROUNDS))
    }

    /// Does so every `period` at the time that `now` tells, and sooner after a failure, until `stop`.
    pub async fn run(self, period: Duration, now: fn() -> Timestamp, stop: CancellationToken) {
        let mut failures = 0;
        loop {
            let pause = match stop
                .run_until_cancelled(self.ensure_certificates(now()))
                .await
            {
                None => return,
                Some(Ok(_)) => {
                    failures = 0;
                    period
                }
                Some(Err(error)) => {
                    self.resolver.report_problem(error.to_string());
                    failures += 1;
                    period.min(MAX_PAUSE.min(MIN_PAUSE * 2_u32.saturating_pow(failures)))
                }
            };
            // Spread, so that replicas started together do not ask together for ever.
            let pause = pause.mul_f64(rand::random_range(0.75..1.0));
            let wait = async {
                tokio::select! { () = sleep(pause) => {}, () = self.wake.notified() => {} }
            };
            if stop.run_until_cancelled(wait).await.is_none() {
                return;
            }
        }
    }

    /// The order matters. The configurations are read before the Secret and written only at the version read: whoever
    /// published newer authorities in between wrote the Secret earlier still, so either their Secret is seen here or
    /// our write conflicts. An old Secret never overwrites what a newer one has published.
    async fn sync_once(&self, now: Timestamp) -> Result<SyncRound, SyncError> {
        let mut configurations = Vec::new();
        for (api, name) in self
            .configurations
            .iter()
            .zip([&self.target.mutating, &self.target.validating])
        {
            let what = format!("getting webhook configuration {name}");
            if let Some(found) = send_request(what, api.get_opt(name)).await? {
                configurations.push((api, found));
            }
        }
        let what = format!(
            "getting Secret {}/{}",
            self.target.namespace, self.target.secret
        );
        let secret = send_request(what, self.secrets.get_opt(&self.target.secret)).await?;
        let material = secret
            .as_ref()
            .map(|secret| Material::from_data(&secret.data.clone().unwrap_or_default()));

        let step = next_step(material.as_ref(), now, &self.names, &self.policy);
        let material = match (step, material) {
            (RenewalStep::Keep, Some(material)) => material,
            (step, material) => {
                tracing::info!(?step, "renewing the webhook certificate");
                // Without a Secret, what this replica serves tells what the others may be serving still.
                let former = material.or_else(|| {
                    let served = self.resolver.served()?;
                    Some(Material {
                        ca_crt: pem_bundle(&served.roots).into_bytes(),
                        ..Material::default()
                    })
                });
                let mut material =
                    apply_step(&step, former.as_ref(), now, &self.names, &self.policy)?;
                material.paths = former.map(|former| former.paths).unwrap_or_default();
                let written = self.write_secret(secret, &material).await?;
                return Ok(if written {
                    SyncRound::Written
                } else {
                    SyncRound::Lost
                });
            }
        };
        let segments = PathSegments::from_bytes(&material.paths);
        let mut segment = None;
        if let Some(doors) = &self.doors {
            let entries = configurations
                .iter()
                .flat_map(|(_, c)| client_config::webhook_entries(c));
            let found: Vec<_> = entries
                .map(|e| client_config::path_segment(&e["clientConfig"]))
                .collect();
            let is_plain = configurations.len() < self.configurations.len()
                || found.iter().any(Option::is_none);
            let found: Vec<String> = found.into_iter().flatten().map(str::to_owned).collect();
            if is_plain {
                doors.allow_plain_paths();
            }
            // Whatever the configurations have, an API server may call by.
            doors.require_segments(
                segments
                    .accepted_segments()
                    .into_iter()
                    .chain(found.clone())
                    .collect(),
            );
            if let Some(due) = segments.next_segments(now, &self.policy, &found) {
                let mut material = material;
                material.paths = due.to_bytes();
                let written = self.write_secret(secret, &material).await?;
                return Ok(if written {
                    SyncRound::Written
                } else {
                    SyncRound::Lost
                });
            }
            let settled = segments
                .published_segment(now, &self.policy)
                .map(str::to_owned);
            let known = segments.accepted_segments();
            segment = settled.or_else(|| found.into_iter().find(|s| known.contains(s)));
        }
        for (api, configuration) in configurations {
            if !publish_bundle(api, &configuration, &material.ca_crt, segment.as_deref()).await? {
                return Ok(SyncRound::Lost);
            }
        }
        Ok(SyncRound::Done(material))
    }

    /// Creates the Secret, or replaces it at the version it was read. `false` when another replica was faster.
    async fn write_secret(
        &self,
        secret: Option<Secret>,
        material: &Material,
    ) -> Result<bool, SyncError> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let name = &self.target.secret;
        let what = format!("writing Secret {}/{name}", self.target.namespace);
        match secret {
            Some(mut secret) => {
                material.write_to(secret.data.get_or_insert_default());
                is_write_applied(
                    send_request(what, self.secrets.replace(name, &params, &secret)).await,
                    &[404, 409],
                )
            }
            None => {
                let mut secret = Secret {
                    metadata: ObjectMeta {
                        name: Some(name.clone()),
                        ..ObjectMeta::default()
                    },
                    type_: Some("kubernetes.io/tls".to_owned()),
                    ..Secret::default()
                };
                material.write_to(secret.data.get_or_insert_default());
                is_write_applied(
                    send_request(what, self.secrets.create(&params, &secret)).await,
                    &[409],
                )
            }
        }
    }
}

/// Sets `caBundle` and the paths in every entry that has others. `false` when the configuration changed since it was read.
async fn publish_bundle(
    api: &Api<DynamicObject>,
    configuration: &DynamicObject,
    bundle: &[u8],
    segment: Option<&str>,
) -> Result<bool, SyncError> {
    let bundle = serde_json::to_value(ByteString(bundle.to_vec())).unwrap_or_default();
    let stale: Vec<Value> = client_config::webhook_entries(configuration)
        .filter_map(|entry| {
            let change =
                client_config::client_config_patch(&entry["clientConfig"], &bundle, segment)?;
            Some(json!({"name": entry["name"], "clientConfig": change}))
        })
        .collect();
    if stale.is_empty() {
        return Ok(true);
    }
    let name = configuration.name_any();
    tracing::info!(
        configuration = name,
        entries = stale.len(),
        "publishing the certificate authority and the paths"
    );
    // Merged by entry name, so that whatever else an entry holds stays.
    let patch = json!({"metadata": {"resourceVersion": configuration.resource_version()}, "webhooks": stale});
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let what = format!("patching webhook configuration {name}");
    is_write_applied(
        send_request(what, api.patch(&name, &params, &Patch::Strategic(patch))).await,
        &[404, 409],
    )
}
