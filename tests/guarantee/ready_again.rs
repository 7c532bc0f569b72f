//! Pods that became Ready again and that the leader has not labelled yet.

use std::collections::HashMap;

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys;
use serde_json::json;
use testbed::pods::at_once;
use testbed::{Bed, wait};

use crate::node_restriction::kubelet;

/// The writes of kubelets pass no admission in this test, so the write that sets Ready labels no Pod.
#[tokio::test]
async fn pods_that_come_back_together_go_one_by_one() {
    const PODS: usize = 40;
    let bed = Bed::shared().await;
    let scope = bed.scope("ready-again").await;
    let pods = scope.web_under_rule(PODS, json!(1)).await;
    let mut kubelets = HashMap::new();
    for pod in scope.list("app=web").await {
        let node = pod.spec.as_ref().unwrap().node_name.clone().unwrap();
        kubelets.insert(pod.name_any(), kubelet(bed, &scope, &node).await);
    }
    for pod in &pods {
        scope.pause_kubelet(pod).await;
    }
    let write = async |name: String, ready: &str| {
        let status = json!({ "conditions": [{ "type": "Ready", "status": ready }] });
        let patch = Patch::Strategic(json!({ "status": status }));
        let params = PatchParams::default();
        let written = kubelets[&name].patch_status(&name, &params, &patch).await;
        written.unwrap();
    };
    at_once(&pods, |name| write(name, "False")).await;
    wait::until("the labels to be removed", async || {
        let pods = scope.list("app=web").await;
        let labelled = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.labels().contains_key(keys::SERVICE_AVAILABLE)
        };
        !pods.iter().any(labelled)
    })
    .await;
    at_once(&pods, |name| write(name, "True")).await;
    let deleted = at_once(&pods, async |pod| scope.delete(&pod).await).await;
    let passed = deleted.iter().filter(|done| done.is_ok()).count();
    assert!(passed <= 1, "{passed} of {PODS} Ready Pods went");
}
