//! What the kubelet of a Pod does, or does not do.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::Scope;

/// Annotation at which every kwok stage of `testbed/plane/kwok` stops.
pub const PAUSED: &str = "plane.test/paused";

impl Scope {
    /// Keeps the kubelet from doing anything about a Pod until [`Scope::resume_kubelet`]: it is slow, or the Pod takes
    /// its time to end.
    pub async fn pause_kubelet(&self, pod: &str) {
        self.annotate(pod, json!({PAUSED: "true"})).await;
    }

    /// Lets the kubelet act on a Pod again.
    pub async fn resume_kubelet(&self, pod: &str) {
        self.annotate(pod, json!({PAUSED: null})).await;
    }

    /// A Pod stops being Ready by itself, until [`Scope::resume_kubelet`].
    pub async fn lose_readiness(&self, pod: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        self.freeze(pod, status).await;
    }

    /// A Pod that [`Scope::lose_readiness`] struck is Ready again.
    pub async fn become_ready(&self, pod: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.freeze(pod, status).await;
    }

    /// The container of a Pod crashes again and again, until [`Scope::resume_kubelet`].
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
