//! The minimum duration of an in-place update on this plane, without any decisions. As many Pods as allowed
//! are taken off traffic, changed and returned in parallel, each by its own task; the next starts as soon as
//! one has returned.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::plane::Plane;

use super::workload::PATIENCE;

const GATE: &str = "bench.test/gate";
const LOOK: Duration = Duration::from_millis(20);

/// The time for `size` Pods with `at_once` of them off traffic at a time.
pub async fn measure(plane: &Plane, size: usize, at_once: usize) -> Result<Duration> {
    let namespace = plane.namespace("floor").await?;
    let pods: Api<Pod> = Api::namespaced(plane.client()?, &namespace);
    let each = |n: usize| (pods.clone(), format!("pod-{n}"));
    stream::iter((0..size).map(each))
        .map(|(pods, name)| create(pods, name))
        .buffer_unordered(16)
        .try_collect::<()>()
        .await?;
    let start = Instant::now();
    stream::iter((0..size).map(each))
        .map(|(pods, name)| change(pods, name))
        .buffer_unordered(at_once.max(1))
        .try_collect::<()>()
        .await?;
    Ok(start.elapsed())
}

async fn create(pods: Api<Pod>, name: String) -> Result<()> {
    let pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "readinessGates": [{ "conditionType": GATE }],
            "containers": [{ "name": "main", "image": "web:1" }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    gate(&pods, &name, true).await?;
    poll_until(&pods, &name, is_ready).await
}

async fn change(pods: Api<Pod>, name: String) -> Result<()> {
    gate(&pods, &name, false).await?;
    poll_until(&pods, &name, |pod| !is_ready(pod)).await?;
    let patch = json!({ "spec": { "containers": [{ "name": "main", "image": "web:2" }] } });
    pods.patch(&name, &PatchParams::default(), &Patch::Strategic(&patch))
        .await?;
    poll_until(&pods, &name, |pod| runs(pod, "web:2")).await?;
    gate(&pods, &name, true).await?;
    poll_until(&pods, &name, is_ready).await
}

async fn gate(pods: &Api<Pod>, name: &str, open: bool) -> Result<()> {
    let status = if open { "True" } else { "False" };
    let patch = json!({ "status": { "conditions": [{ "type": GATE, "status": status }] } });
    pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch))
        .await?;
    Ok(())
}

/// Waits until the Pod passes the test. `testbed::wait` polls too seldom for this measurement.
async fn poll_until(pods: &Api<Pod>, name: &str, test: impl Fn(&Pod) -> bool) -> Result<()> {
    let looking = async {
        loop {
            if test(&pods.get(name).await?) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await?
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| &s.conditions).flatten();
    let mut ready = conditions.filter(|c| c.type_ == "Ready");
    ready.any(|c| c.status == "True")
}

fn runs(pod: &Pod, image: &str) -> bool {
    let statuses = pod.status.iter().flat_map(|s| &s.container_statuses);
    statuses.flatten().any(|c| c.image == image)
}
