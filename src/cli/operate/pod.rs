//! Reads the Pod of an operation, and writes its labels.

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::api_request;
use crate::cli::why::api_reads;
use crate::cluster::request_path::{self, ResourcePath};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// How often a write is decided again after somebody else has changed the Pod.
const MAX_CONFLICTS: u32 = 10;
const WRITE_TIMEOUT: Duration = Duration::from_secs(35);
const FIELD_MANAGER: &str = "kubectl-operating";

/// The Pod of an operation.
pub struct OperatedPod {
    pub client: Client,
    pub namespace: String,
    pub name: String,
}

impl OperatedPod {
    pub fn new(client: Client, namespace: String, name: &str) -> anyhow::Result<OperatedPod> {
        Ok(OperatedPod {
            name: request_path::checked_name(name)?.to_owned(),
            client,
            namespace,
        })
    }

    /// The stored Pod; `None` if there is none.
    pub async fn read(&self) -> anyhow::Result<Option<Pod>> {
        let path = ResourcePath::from_parts("/api/v1", &self.namespace, "pods")?;
        let request = path.get(&self.name)?;
        let read = async {
            match self.client.request::<Pod>(request).await {
                Ok(pod) => Ok(Some(pod)),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                Err(error) => Err(error),
            }
        };
        api_reads::call_with_timeout("get", "pods", Some(&self.namespace), read).await
    }

    /// The stored Pod.
    ///
    /// # Errors
    /// Also if there is no such Pod.
    pub async fn read_existing(&self) -> anyhow::Result<Pod> {
        let pod = self.read().await?;
        pod.with_context(|| api_reads::no_such_object("Pod", "pods", &self.namespace, &self.name))
    }

    /// Decides on a change of labels and writes it, on condition that the Pod is as the decision saw it. Returns `false`
    /// if there was nothing to change.
    pub async fn change_labels(
        &self,
        decide: impl Fn(&Pod) -> anyhow::Result<LabelPatch>,
    ) -> anyhow::Result<bool> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            request_path::namespaced_api(&self.client, &self.namespace)?;
        for _ in 0..MAX_CONFLICTS {
            let pod = self.read_existing().await?;
            let labels = decide(&pod)?;
            if labels.is_empty() {
                return Ok(false);
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
                Ok(_) => return Ok(true),
                Err(failure) if failure.code() == Some(409) => {}
                Err(failure) => {
                    let namespace = Some(self.namespace.as_str());
                    return Err(api_reads::explain_failure(
                        "patch", "pods", namespace, failure,
                    ));
                }
            }
        }
        anyhow::bail!(
            "Pod {} was changed by others {MAX_CONFLICTS} times in between: run the command again",
            self.name
        )
    }
}
