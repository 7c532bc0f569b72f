//! Kubelets under NodeRestriction: the API server refuses a node's write of a status if admission changes a label, so
//! the webhook must not change labels there.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::pods::{is_available, service_ready};
use testbed::scope::PAUSED;
use testbed::{Bed, Scope};

/// A client for the Pods of a scope with the user of the kubelet of a node.
pub async fn kubelet(bed: &Bed, scope: &Scope, node: &str) -> Api<Pod> {
    let kubeconfig = Kubeconfig::read_from(bed.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    config.default_retry = false;
    config.auth_info.impersonate = Some(format!("system:node:{node}"));
    let groups = ["system:nodes", "system:authenticated"];
    config.auth_info.impersonate_groups = Some(groups.map(str::to_owned).into());
    Api::namespaced(Client::try_from(config).unwrap(), &scope.namespace)
}

async fn write(kubelet: &Api<Pod>, ready: &str) {
    let status = json!({
        "phase": "Running",
        "conditions": [{ "type": "Ready", "status": ready }, { "type": "ContainersReady", "status": "True" }],
        "containerStatuses": [{
            "name": "main", "image": "web:1", "imageID": "x", "containerID": "c://1", "ready": true, "started": true,
            "restartCount": 0, "state": { "running": {} },
        }],
    });
    let patch = Patch::Strategic(json!({ "status": status }));
    let written = kubelet
        .patch_status("solo", &PatchParams::default(), &patch)
        .await;
    written.unwrap_or_else(|refused| panic!("Ready {ready}: {refused}"));
}

#[tokio::test]
async fn kubelet_is_never_refused_and_the_lifecycle_goes_on() {
    let bed = Bed::shared().await;
    for limit in [None, Some(1)] {
        let scope = bed.scope("kubelet").await;
        if let Some(limit) = limit {
            scope
                .rule("web", json!({ "app": "solo" }), json!(limit))
                .await;
        }
        let paused: Value = json!({ "metadata": { "annotations": { PAUSED: "true" } } });
        scope.pod("solo", paused).await;
        let is_bound = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.is_some();
        let pod = scope.until_pod("solo", "a node", is_bound).await;
        let node = pod.spec.unwrap().node_name.unwrap();
        let kubelet = kubelet(bed, &scope, &node).await;

        write(&kubelet, "False").await;
        let opened = |pod: &Pod| service_ready(pod) == Some(true);
        scope.until_pod("solo", "its condition", opened).await;
        write(&kubelet, "True").await;
        scope.until_pod("solo", "availability", is_available).await;

        scope.begin("solo", "x1").await.unwrap();
        let closed = |pod: &Pod| service_ready(pod) == Some(false);
        scope.until_pod("solo", "to be off traffic", closed).await;
        write(&kubelet, "False").await;
        let operated = |pod: &Pod| {
            pod.metadata
                .labels
                .as_ref()
                .unwrap()
                .contains_key(&Family::Operate.key("x1"))
        };
        scope.until_pod("solo", "its turn", operated).await;

        scope.finish("solo", "x1").await.unwrap();
        scope.until_pod("solo", "its condition", opened).await;
        write(&kubelet, "True").await;
        let pod = scope.until_pod("solo", "availability", is_available).await;
        let labels = pod.metadata.labels.unwrap();
        assert!(labels.contains_key(keys::SERVICE_AVAILABLE));
        assert!(!labels.contains_key(&Family::Operate.key("x1")));
    }
}
