//! The double of OpenKruise carries out requests as OpenKruise does, as far as the requester sees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};
use testbed::plane::shared;
use testbed::pods::is_ready;
use testbed::recreate_double::{Mode, NO_DAEMON, RecreateDouble, install, requests};
use testbed::wait;

const VERSION: &str = "v1alpha1";

fn status(pod: &Pod, container: &str) -> ContainerStatus {
    let statuses = pod.status.as_ref().unwrap().container_statuses.iter();
    let mut statuses = statuses.flatten();
    statuses.find(|s| s.name == container).unwrap().clone()
}

#[tokio::test]
async fn request_ends_as_the_mode_says() {
    let plane = shared().await.unwrap();
    let client = plane.client().unwrap();
    install(&client, &[VERSION, "v1beta1"]).await;
    let namespace = plane.namespace("recreate").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let containers = json!([{"name": "app", "image": "web:1"}, {"name": "log", "image": "log:1"}]);
    let pod = json!({"metadata": {"name": "pod"}, "spec": {"containers": containers}});
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let ready = async || {
        wait::value("the Pod to be Ready", || async {
            Some(pods.get("pod").await.unwrap()).filter(is_ready)
        })
        .await
    };
    let before = ready().await;
    let requests: Api<DynamicObject> = requests(&client, &namespace, VERSION);
    let end = async |name: &str, pod: &str, mode: Mode| -> Value {
        let _double = RecreateDouble::start(client.clone(), &namespace, VERSION, mode);
        let request: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": name},
            "spec": {"podName": pod, "containers": [{"name": "app"}]},
        }))
        .unwrap();
        requests
            .create(&PostParams::default(), &request)
            .await
            .unwrap();
        wait::value("the request to end", || async {
            let status = requests.get(name).await.unwrap().data["status"].clone();
            Some(status).filter(|status| status["phase"] == "Completed")
        })
        .await
    };

    assert_eq!(
        end("none", "pod", Mode::NoDaemon).await["message"],
        NO_DAEMON
    );
    let failed = end("fails", "pod", Mode::Fails("kill container error".into())).await;
    let state = json!([{"name": "app", "phase": "Failed", "message": "kill container error"}]);
    assert_eq!(failed["containerRecreateStates"], state);
    assert_eq!(
        end("gone", "absent", Mode::Works).await["message"],
        "pod has gone"
    );
    assert_eq!(status(&ready().await, "app"), status(&before, "app"));

    let done = end("works", "pod", Mode::Works).await;
    assert_eq!(done["containerRecreateStates"][0]["phase"], "Succeeded");
    let after = ready().await;
    let (old, new) = (status(&before, "app"), status(&after, "app"));
    assert_ne!(new.container_id, old.container_id);
    assert_eq!(new.restart_count, old.restart_count + 1);
    assert_eq!(status(&after, "log"), status(&before, "log"));
}
