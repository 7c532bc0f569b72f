//! Synchronises the Secret, the webhook configurations and the served certificate. Any number of replicas may do this
//! at the same time.

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

/// Maximum number of rounds of one [`SelfManaged::ensure_certificates`]. Each round ends with a write of this or
/// another replica, and only a few writes are needed in total.
const MAX_ROUNDS: u32 = 10;
/// Longest pause after a conflict, and half of the pause after the first failure.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(30);
const FIELD_MANAGER: &str = "operating-certificates";

/// The objects that have the certificates and the authorities.
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

/// Keeps a [`CertificateResolver`] at a certificate that the API server trusts.
#[derive(Clone)]
pub struct SelfManaged {
    secrets: Api<Secret>,
    configurations: [Api<DynamicObject>; 2],
    target: SyncTarget,
    names: CertificateNames,
    policy: RenewalPolicy,
    resolver: Arc<CertificateResolver>,
    /// Receives the segments of the webhook paths; `None` if plain paths are published.
    path_guard: Option<Arc<PathGuard>>,
    wake: Arc<Notify>,
}

/// A webhook configuration that was read, and the API to write it.
type WritableConfiguration<'a> = (&'a Api<DynamicObject>, DynamicObject);

/// The paths of the webhook configurations.
struct StoredPaths {
    /// The segments in the paths.
    segments: Vec<String>,
    /// Whether an entry has a path without a segment, or a configuration does not exist.
    has_plain: bool,
}

/// The result of one round.
enum SyncRound {
    /// Everything is up to date.
    Done(Material),
    /// This replica has written an object. Start another round.
    Written,
    /// Another client has written in between. Wait a moment, then start another round.
    Lost,
}

impl SelfManaged {
    /// Certificates for `names` at `target`. This function sends no request yet.
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
            path_guard: None,
            wake: Arc::default(),
        }
    }

    /// Publishes paths with a random segment, and passes the accepted segments to `path_guard`.
    pub fn with_segments(mut self, path_guard: Arc<PathGuard>) -> SelfManaged {
        self.path_guard = Some(path_guard);
        self
    }

    /// Wakes [`SelfManaged::run`], so that it starts at once.
    pub fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Creates or renews the Secret if needed, publishes its authorities in every entry of both webhook configurations,
    /// and then serves its leaf. A configuration that does not exist is skipped. Returns the `caBundle` (PEM).
    ///
    /// # Errors
    /// [`SyncError`]. The former certificate stays in service then.
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

    /// Calls [`SelfManaged::ensure_certificates`] every `period` until `stop` is cancelled, and sooner after a failure.
    /// `now` is the clock.
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
            // A random pause, so that replicas that were started together do not always send their requests together.
            let pause = pause.mul_f64(rand::random_range(0.75..1.0));
            let wait = async {
                tokio::select! { () = sleep(pause) => {}, () = self.wake.notified() => {} }
            };
            if stop.run_until_cancelled(wait).await.is_none() {
                return;
            }
        }
    }

    /// Does one round. The order matters: this function reads the configurations before the Secret, and writes a
    /// configuration only at the version that it has read. If another replica publishes newer authorities in between,
    /// it has written the Secret before. So either this function reads the newer Secret, or its write conflicts. An old
    /// Secret never overwrites the authorities that a newer Secret has published.
    async fn sync_once(&self, now: Timestamp) -> Result<SyncRound, SyncError> {
        let configurations = self.read_configurations().await?;
        let secret = self.read_secret().await?;
        let material = secret
            .as_ref()
            .map(|secret| Material::from_data(&secret.data.clone().unwrap_or_default()));
        let step = next_step(material.as_ref(), now, &self.names, &self.policy);
        let material = match (step, material) {
            (RenewalStep::Keep, Some(material)) => material,
            (step, material) => {
                let renewed = self.renew_material(&step, material, now)?;
                return self.write_secret(secret, &renewed).await;
            }
        };
        let mut segment = None;
        if let Some(path_guard) = &self.path_guard {
            let segments = PathSegments::from_bytes(&material.paths);
            let stored = self.stored_paths(&configurations);
            if stored.has_plain {
                path_guard.allow_plain_paths();
            }
            // An API server may use every segment that the configurations have.
            let accepted = segments.accepted_segments().into_iter();
            path_guard.require_segments(accepted.chain(stored.segments.clone()).collect());
            if let Some(due) = segments.next_segments(now, &self.policy, &stored.segments) {
                let paths = due.to_bytes();
                let material = Material { paths, ..material };
                return self.write_secret(secret, &material).await;
            }
            segment = self.segment_to_publish(&segments, stored.segments, now);
        }
        for (api, configuration) in configurations {
            if !publish_bundle(api, &configuration, &material.ca_crt, segment.as_deref()).await? {
                return Ok(SyncRound::Lost);
            }
        }
        Ok(SyncRound::Done(material))
    }

    /// Reads the webhook configurations that exist.
    async fn read_configurations(&self) -> Result<Vec<WritableConfiguration<'_>>, SyncError> {
        let mut configurations = Vec::new();
        for (api, name) in self
            .configurations
            .iter()
            .zip([&self.target.mutating, &self.target.validating])
        {
            let description = format!("getting webhook configuration {name}");
            if let Some(found) = send_request(description, api.get_opt(name)).await? {
                configurations.push((api, found));
            }
        }
        Ok(configurations)
    }

    async fn read_secret(&self) -> Result<Option<Secret>, SyncError> {
        let SyncTarget {
            namespace, secret, ..
        } = &self.target;
        let description = format!("getting Secret {namespace}/{secret}");
        Ok(send_request(description, self.secrets.get_opt(secret)).await?)
    }

    /// Issues the certificates of a renewal step. `material` is the content of the Secret, if there is a Secret.
    fn renew_material(
        &self,
        step: &RenewalStep,
        material: Option<Material>,
        now: Timestamp,
    ) -> Result<Material, SyncError> {
        tracing::info!("{step}");
        // Without a Secret, keep the authorities that this replica serves by: other replicas may still serve by them,
        // too.
        let former = material.or_else(|| {
            let served = self.resolver.served()?;
            Some(Material {
                ca_crt: pem_bundle(&served.roots).into_bytes(),
                ..Material::default()
            })
        });
        let renewed = apply_step(step, former.as_ref(), now, &self.names, &self.policy)?;
        Ok(Material {
            paths: former.map(|former| former.paths).unwrap_or_default(),
            ..renewed
        })
    }

    fn stored_paths(&self, configurations: &[WritableConfiguration<'_>]) -> StoredPaths {
        let entries = configurations
            .iter()
            .flat_map(|(_, configuration)| client_config::webhook_entries(configuration));
        let segments: Vec<_> = entries
            .map(|entry| client_config::path_segment(&entry["clientConfig"]))
            .collect();
        StoredPaths {
            has_plain: configurations.len() < self.configurations.len()
                || segments.iter().any(Option::is_none),
            segments: segments.into_iter().flatten().map(str::to_owned).collect(),
        }
    }

    /// The segment for every webhook path: the segment of the Secret that is published now, or else an accepted segment
    /// that the configurations have already.
    fn segment_to_publish(
        &self,
        segments: &PathSegments,
        stored: Vec<String>,
        now: Timestamp,
    ) -> Option<String> {
        let published = segments.published_segment(now, &self.policy);
        published.map(str::to_owned).or_else(|| {
            let accepted = segments.accepted_segments();
            let mut stored = stored.into_iter();
            stored.find(|segment| accepted.contains(segment))
        })
    }

    /// Creates the Secret, or replaces it at the version that was read.
    async fn write_secret(
        &self,
        secret: Option<Secret>,
        material: &Material,
    ) -> Result<SyncRound, SyncError> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let name = &self.target.secret;
        let description = format!("writing Secret {}/{name}", self.target.namespace);
        let is_written = match secret {
            Some(mut secret) => {
                material.write_to(secret.data.get_or_insert_default());
                let write = self.secrets.replace(name, &params, &secret);
                is_write_applied(send_request(description, write).await, &[404, 409])?
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
                let write = self.secrets.create(&params, &secret);
                is_write_applied(send_request(description, write).await, &[409])?
            }
        };
        Ok(match is_written {
            true => SyncRound::Written,
            false => SyncRound::Lost,
        })
    }
}

/// Sets `caBundle` and the path in every entry that has other values. `false` if the configuration has changed since it
/// was read.
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
    // Entries are merged by name, so that their other fields stay unchanged.
    let patch = json!({"metadata": {"resourceVersion": configuration.resource_version()}, "webhooks": stale});
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let description = format!("patching webhook configuration {name}");
    is_write_applied(
        send_request(
            description,
            api.patch(&name, &params, &Patch::Strategic(patch)),
        )
        .await,
        &[404, 409],
    )
}
