//! The simulated kubelet changes the status of a Pod as a real one does, as far as a lifecycle depends on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::plane::shared;
use testbed::pods::is_ready;
use testbed::wait;

const NAME: &str = "pod";

async fn create(prefix: &str, spec: Value) -> Api<Pod> {
    let plane = shared().await.unwrap();
    let namespace = plane.namespace(prefix).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(plane.client().unwrap(), &namespace);
    let pod = json!({"metadata": {"name": NAME}, "spec": spec});
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    pods
}

async fn until(pods: &Api<Pod>, description: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
    wait::value(description, || async {
        Some(pods.get(NAME).await.unwrap()).filter(&holds)
    })
    .await
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    let status = pod.status.as_ref()?;
    status.container_statuses.as_ref()?.first()
}

/// Whether the kubelet has observed the current spec.
fn is_observed(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|s| s.observed_generation == pod.metadata.generation)
}

#[tokio::test]
async fn new_image_restarts_container_in_place() {
    let spec = json!({"containers": [{"name": "main", "image": "web:1"}]});
    let pods = create("image", spec).await;
    let before = until(&pods, "the Pod to be Ready", is_ready).await;
    let set_image = async |image: &str| {
        let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        pods.patch(NAME, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
            .unwrap();
    };
    set_image("web:2").await;
    let after = until(&pods, "the new image", is_observed).await;
    let (before, after) = (container(&before).unwrap(), container(&after).unwrap());
    assert_eq!(after.image, "web:2");
    assert_ne!(after.image_id, before.image_id);
    assert_eq!(after.restart_count, before.restart_count + 1);

    set_image("web:non-exist").await;
    let broken = until(&pods, "the image that cannot be pulled", is_observed).await;
    assert!(!is_ready(&broken));
    set_image("web:2").await;
    let recovered = until(&pods, "the Pod to recover", is_ready).await;
    let recovered = container(&recovered).unwrap();
    assert_eq!(recovered.restart_count, after.restart_count + 1);
    assert_ne!(recovered.container_id, after.container_id);
}

#[tokio::test]
async fn image_id_is_repository_and_digest() {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let pods = create(
        "digest",
        json!({"containers": [
            {"name": "short", "image": "web:1"},
            {"name": "port", "image": "localhost:5000/a/b"},
            {"name": "pinned", "image": format!("a/b:1@{digest}")},
            {"name": "loaded", "image": "example.com/no-digest:1"},
        ]}),
    )
    .await;
    let pod = until(&pods, "the Pod to be Ready", is_ready).await;
    let statuses = pod.status.unwrap().container_statuses.unwrap();
    let id = |name: &str| &*statuses.iter().find(|s| s.name == name).unwrap().image_id;
    let hex = "sha256:".len() + 64;
    for (name, repository) in [
        ("short", "docker.io/library/web@"),
        ("port", "localhost:5000/a/b@"),
    ] {
        let digest = id(name).strip_prefix(repository);
        let digest = digest.unwrap_or_else(|| panic!("{}", id(name)));
        assert!(
            digest.starts_with("sha256:") && digest.len() == hex,
            "{digest}"
        );
    }
    assert_eq!(id("pinned"), format!("docker.io/a/b@{digest}"));
    assert!(id("loaded").starts_with("sha256:"), "{}", id("loaded"));
}

#[tokio::test]
async fn same_image_by_its_digest_restarts_containers_and_sidecars() {
    let spec = |main: &str, side: &str| {
        json!({
            "containers": [{"name": "main", "image": main}],
            "initContainers": [{"name": "side", "image": side, "restartPolicy": "Always"}],
        })
    };
    let pods = create("by-digest", spec("tag-only:1", "side:1")).await;
    let set_images = async |main: &str, side: &str| {
        let patch = json!({"spec": spec(main, side)});
        pods.patch(NAME, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
            .unwrap();
    };
    let side = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap();
        status.init_container_statuses.as_ref().unwrap()[0].clone()
    };
    let before = until(&pods, "the Pod to be Ready", is_ready).await;
    let digest = |status: &ContainerStatus| status.image_id.split_once('@').unwrap().1.to_owned();
    let (main_digest, side_digest) = (digest(container(&before).unwrap()), digest(&side(&before)));
    let pinned = format!("side:1@{side_digest}");
    set_images("tag-only:1", &pinned).await;
    let after = until(&pods, "the restart of the sidecar", is_observed).await;
    assert_eq!(side(&after).image_id, side(&before).image_id);
    assert_ne!(side(&after).container_id, side(&before).container_id);
    assert_eq!(side(&after).restart_count, 1);
    assert_eq!(container(&after), container(&before));

    set_images(&format!("tag-only:1@{main_digest}"), &pinned).await;
    let broken = until(&pods, "the image that has no digest", is_observed).await;
    assert!(!is_ready(&broken));
    let state = container(&broken).unwrap().state.clone().unwrap();
    assert_eq!(
        state.waiting.unwrap().reason.as_deref(),
        Some("ImagePullBackOff")
    );
    set_images("tag-only:1", "missing/side:1").await;
    let broken = until(&pods, "the missing image of the sidecar", |pod| {
        is_observed(pod) && !is_ready(pod)
    })
    .await;
    assert!(side(&broken).state.unwrap().waiting.is_some());
    set_images("tag-only:1", &pinned).await;
    until(&pods, "the Pod to recover", is_ready).await;
}

#[tokio::test]
async fn readiness_follows_a_gate_both_ways() {
    let gate = "example.com/open";
    let pods = create(
        "gate",
        json!({
            "readinessGates": [{"conditionType": gate}],
            "containers": [{"name": "main", "image": "web:1"}],
        }),
    )
    .await;
    let started = until(&pods, "the container to run", |p| container(p).is_some()).await;
    assert!(!is_ready(&started));
    for (status, ready) in [("True", true), ("False", false)] {
        let patch = json!({"status": {"conditions": [{"type": gate, "status": status}]}});
        pods.patch_status(NAME, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
            .unwrap();
        until(&pods, "readiness to follow", |p| is_ready(p) == ready).await;
    }
}

#[tokio::test]
async fn resize_restarts_only_where_its_policy_says_so() {
    let pods = create(
        "resize",
        json!({"containers": [{
            "name": "main",
            "image": "web:1",
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "resizePolicy": [
                {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": "RestartContainer"},
            ],
        }]}),
    )
    .await;
    until(&pods, "the Pod to be Ready", is_ready).await;
    for (resource, amount, restarts) in [("cpu", "200m", 0), ("memory", "128Mi", 1)] {
        let resources = json!({"requests": {resource: amount}});
        let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
        pods.patch_subresource(
            "resize",
            NAME,
            &PatchParams::default(),
            &Patch::Strategic(&patch),
        )
        .await
        .unwrap();
        let pod = until(&pods, "the resize", is_observed).await;
        let status = container(&pod).unwrap();
        let in_force = status
            .resources
            .as_ref()
            .unwrap()
            .requests
            .as_ref()
            .unwrap();
        assert_eq!(in_force[resource].0, amount);
        assert_eq!(status.restart_count, restarts);
    }
}

#[tokio::test]
async fn deleted_pod_waits_for_its_finalizers() {
    let spec = json!({"containers": [{"name": "main", "image": "web:1"}]});
    let pods = create("delete", spec).await;
    until(&pods, "the Pod to be Ready", is_ready).await;
    let finalizers = async |list: Value| {
        let patch = json!({"metadata": {"finalizers": list}});
        pods.patch(NAME, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    };
    finalizers(json!(["example.com/hold"])).await;
    pods.delete(NAME, &DeleteParams::default()).await.unwrap();
    // The kubelet's own last delete sets the grace period to 0.
    until(&pods, "the kubelet's delete", |pod| {
        pod.metadata.deletion_grace_period_seconds == Some(0)
    })
    .await;
    finalizers(json!(null)).await;
    wait::value("the Pod to be deleted", || async {
        pods.get_opt(NAME).await.unwrap().is_none().then_some(())
    })
    .await;
}
