//! Reads the Pod of an operation, and writes its labels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use crate::api_request;
use crate::cli::retries::Retries;
use crate::cli::why::api_reads;
use crate::cluster::request_path::{self, ResourcePath};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// How often a write is decided again after somebody else has changed the Pod.
const MAX_CONFLICTS: u32 = 10;
const READ_TIMEOUT: Duration = Duration::from_secs(20);
const WRITE_TIMEOUT: Duration = Duration::from_secs(35);
const FIELD_MANAGER: &str = "kubectl-operating";

/// The Pod of an operation.
pub struct OperatedPod {
    pub client: Client,
    pub namespace: String,
    pub name: String,
    /// Whether the API server has answered. Before that, a failure is probably an error of the configuration, and the
    /// request is not repeated.
    has_answered: AtomicBool,
}

/// A Pod after a change of its labels.
pub struct Changed {
    pub pod: Pod,
    /// Whether this process has changed the labels.
    pub by_us: bool,
}

impl OperatedPod {
    pub fn new(client: Client, namespace: String, name: &str) -> anyhow::Result<OperatedPod> {
        Ok(OperatedPod {
            name: request_path::checked_name(name)?.to_owned(),
            client,
            namespace,
            has_answered: AtomicBool::new(false),
        })
    }

    /// The stored Pod; `None` if there is none. Repeats the request until the deadline.
    pub async fn read(&self, deadline: Option<Instant>) -> anyhow::Result<Option<Pod>> {
        let path = ResourcePath::from_parts("/api/v1", &self.namespace, "pods")?;
        let mut retries = self.retries(deadline);
        loop {
            let request = path.get(&self.name)?;
            let read = self.client.request::<Pod>(request);
            let failure = match api_request::within(READ_TIMEOUT, read).await {
                Ok(pod) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Ok(Some(pod));
                }
                Err(failure) if failure.code() == Some(404) => return Ok(None),
                Err(failure) => failure,
            };
            if let Err(failure) = retries.pause_after(failure).await {
                let namespace = Some(self.namespace.as_str());
                return Err(api_reads::explain_failure(
                    "get", "pods", namespace, failure,
                ));
            }
        }
    }

    /// The stored Pod.
    ///
    /// # Errors
    /// Also if there is no such Pod.
    pub async fn read_existing(&self, deadline: Option<Instant>) -> anyhow::Result<Pod> {
        let pod = self.read(deadline).await?;
        pod.with_context(|| api_reads::no_such_object("Pod", "pods", &self.namespace, &self.name))
    }

    /// Decides on a change of labels and writes it, on condition that the Pod is as the decision saw it. Repeats failed
    /// requests until the deadline. The decision learns whether an earlier write had no certain answer, and may have been
    /// stored.
    pub async fn change_labels(
        &self,
        deadline: Option<Instant>,
        decide: impl Fn(&Pod, bool) -> anyhow::Result<LabelPatch>,
    ) -> anyhow::Result<Changed> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            request_path::namespaced_api(&self.client, &self.namespace)?;
        let (mut conflicts, mut was_sent) = (0, false);
        // The read before the first write shows that the API server answers.
        let mut retries = Retries::until(deadline);
        while conflicts < MAX_CONFLICTS {
            let mut pod = self.read_existing(deadline).await?;
            let labels = decide(&pod, was_sent)?;
            if labels.is_empty() {
                let by_us = was_sent;
                return Ok(Changed { pod, by_us });
            }
            let patch = Patch::Merge(json!({
                "metadata": {
                    "uid": pod.metadata.uid,
                    "resourceVersion": pod.metadata.resource_version.to_string(),
                    "labels": labels.to_merge_patch(),
                },
            }));
            let params = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let sent = api_request::within(WRITE_TIMEOUT, pods.patch(&self.name, &params, &patch));
            match sent.await {
                Ok(_) => {
                    labels.apply(&mut pod.metadata.labels);
                    return Ok(Changed { pod, by_us: true });
                }
                Err(failure) if failure.code() == Some(409) => conflicts += 1,
                Err(failure) => {
                    was_sent |= failure.is_passing();
                    if let Err(failure) = retries.pause_after(failure).await {
                        let namespace = Some(self.namespace.as_str());
                        return Err(api_reads::explain_failure(
                            "patch", "pods", namespace, failure,
                        ));
                    }
                }
            }
        }
        anyhow::bail!(
            "Pod {} was changed by others {MAX_CONFLICTS} times in between: run the command again",
            self.name
        )
    }

    fn retries(&self, deadline: Option<Instant>) -> Retries {
        match self.has_answered.load(Ordering::Relaxed) {
            true => Retries::until(deadline),
            false => Retries::none(),
        }
    }
}
