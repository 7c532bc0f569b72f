//! Reviews deletions of PVCs that are Pending. A Pod that mounts such a PVC would wait for the PVC forever. (The
//! protection of the API server keeps a PVC only after a Pod that mounts the PVC is on a node.)

mod garbage_collection;

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use tokio::time::Instant;

use super::context::AdmissionContext;
use super::responses;
use super::review::{Handler, Request, Verdict};
use crate::api::keys;
use crate::api_request;
use crate::cluster::request_path;
pub use garbage_collection::PvcCollectionValidator;

/// Maximum number of Pods with the instance ID that are read. Each of them belongs to another CollaSet of the
/// namespace.
const MAX_PODS_LISTED: u32 = 500;

pub struct PvcDeletionValidator(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for PvcDeletionValidator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let old = request.old_object.as_deref();
        let pvc =
            match responses::parse_object::<PersistentVolumeClaim>(old, "PersistentVolumeClaim") {
                Ok(pvc) => pvc,
                Err(denial) => return denial,
            };
        let status = pvc.status.as_ref();
        let pending = status.and_then(|s| s.phase.as_deref()) == Some("Pending");
        let terminating = pvc.metadata.deletion_timestamp.is_some()
            || is_namespace_terminating(&self.0, &request.namespace);
        let Some(id) = pvc.labels().get(keys::INSTANCE_ID) else {
            return Verdict::allow();
        };
        if !pending || terminating {
            return Verdict::allow();
        }
        match api_request::by(deadline, self.find_mounting_pod(request, &pvc, id)).await {
            Ok(None) => Verdict::allow(),
            Ok(Some(pod)) => {
                let message = format!(
                    "PersistentVolumeClaim {} is Pending and Pod {pod} mounts it (delete pending mounted pvc is not \
                     allowed); delete the Pod first, or wait until the PVC is bound",
                    request.name
                );
                Verdict::deny(403, "Forbidden", message)
            }
            Err(failure) => self.fallback(request, &failure.text()),
        }
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        Verdict::allow().with_audit("unchecked", why) // the same result as if the server did not answer
    }
}

impl PvcDeletionValidator {
    /// The name of a live Pod with the same instance ID that mounts the PVC.
    async fn find_mounting_pod(
        &self,
        request: &Request,
        pvc: &PersistentVolumeClaim,
        id: &str,
    ) -> kube::Result<Option<String>> {
        let pods: Api<Pod> = request_path::namespaced_api(&self.0.client, &request.namespace)?;
        let params = ListParams::default()
            .labels(&format!("{}={id}", keys::INSTANCE_ID))
            .limit(MAX_PODS_LISTED);
        let name = pvc.name_any();
        let found = pods.list(&params).await?;
        let holder = found
            .items
            .into_iter()
            .find(|p| is_live(p) && mounts_pvc(p, &name));
        Ok(holder.map(|pod| pod.name_any()))
    }
}

/// Whether the cache shows that a namespace, with everything in it, is being deleted.
fn is_namespace_terminating(context: &AdmissionContext, namespace: &str) -> bool {
    let index = context.index.read_state();
    let namespace_index = index.namespace(namespace);
    namespace_index.is_some_and(|namespace_index| namespace_index.terminating_since.is_some())
}

fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn mounts_pvc(pod: &Pod, pvc: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes
        .filter_map(|v| v.persistent_volume_claim.as_ref())
        .any(|source| source.claim_name == pvc)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn deletion_of_pvc_mounted_by_live_pod_is_denied() {
        let pod = |part: serde_json::Value| -> Pod {
            let volumes = json!([
                { "name": "tmp", "emptyDir": {} },
                { "name": "data", "persistentVolumeClaim": { "claimName": "data-1" } },
            ]);
            let mut pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [], "volumes": volumes } });
            json_patch::merge(&mut pod, &part);
            serde_json::from_value(pod).unwrap()
        };
        let waiting = pod(json!({ "status": { "phase": "Pending" } }));
        assert!(
            is_live(&waiting) && mounts_pvc(&waiting, "data-1") && !mounts_pvc(&waiting, "data-2")
        );
        assert!(!mounts_pvc(
            &pod(json!({ "spec": { "volumes": null } })),
            "data-1"
        ));
        assert!(!is_live(&pod(json!({ "status": { "phase": "Failed" } }))));
        let terminating = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert!(!is_live(&pod(terminating)));
    }
}
