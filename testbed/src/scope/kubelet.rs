//! Controls the simulated kubelet of a Pod.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::Scope;

/// Annotation that disables every kwok stage of `testbed/plane/kwok`.
pub const PAUSED: &str = "plane.test/paused";

impl Scope {
    /// Stops the kubelet of a Pod until [`Scope::resume_kubelet`], as if the kubelet were slow or the Pod
    /// took long to end.
    pub async fn pause_kubelet(&self, pod: &str) {
        self.annotate(pod, json!({PAUSED: "true"})).await;
    }

    /// Resumes the kubelet of a Pod.
    pub async fn resume_kubelet(&self, pod: &str) {
        self.annotate(pod, json!({PAUSED: null})).await;
    }

    /// Makes a Pod not Ready, as by its own failure, until [`Scope::resume_kubelet`].
    pub async fn lose_readiness(&self, pod: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        self.freeze(pod, status).await;
    }

    /// Makes a Pod Ready again after [`Scope::lose_readiness`].
    pub async fn become_ready(&self, pod: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.freeze(pod, status).await;
    }

    /// Makes the container of a Pod crash repeatedly, until [`Scope::resume_kubelet`].
    pub async fn crash(&self, pod: &str) {
        let status = json!({
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{
                "name": "main", "image": "web:1", "imageID": "", "ready": false, "restartCount": 7,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            }],
        });
        self.freeze(pod, status).await;
    }

    async fn freeze(&self, pod: &str, status: Value) {
        self.pause_kubelet(pod).await;
        let patch = Patch::Strategic(json!({"status": status}));
        self.pods()
            .patch_status(pod, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn annotate(&self, pod: &str, annotations: Value) {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.patch(pod, patch).await.unwrap();
    }
}
