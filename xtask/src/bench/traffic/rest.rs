//! Calls and requests while nothing changes.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use testbed::http_double::HttpDouble;
use testbed::{keys, wait};

use super::{CALLS, ENDPOINTS, HTTP, RESYNC_SECONDS};
use crate::bench::herd::AT_ONCE;
use crate::bench::workload::AVAILABLE;
use crate::bench::{Bench, requests};

/// Pods of a Service.
const PODS: usize = 10;
/// For how long calls and requests are counted.
const REST: Duration = Duration::from_secs(RESYNC_SECONDS);
/// Timeout of a step with all Pods.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
/// Label with the number of the Service that selects a Pod.
const GROUP: &str = "group";

/// Measures the same Pods with Services of `endpoints`, and of the HTTP adapter.
pub async fn measure(bench: &mut Bench, provider: &HttpDouble) -> Result<()> {
    let count = if bench.quick { 100 } else { 1_000 };
    eprintln!("{count} Services of {PODS} Pods");
    let namespace = bench.plane.namespace("services").await?;
    let services = Services::create(&bench.client, &namespace, count).await?;
    let subject = |adapter| {
        format!(
            "{count} Services of {PODS} Pods, adapter {adapter}, {} s of rest",
            REST.as_secs()
        )
    };

    services.manage(ENDPOINTS).await?;
    requests::until_rest(&bench.plane, &namespace).await?;
    let of_endpoints = format!("adapter=\"{ENDPOINTS}\"");
    let calls = async |bench: &Bench| {
        let metrics = bench.server.endpoints.metrics().await?;
        anyhow::Ok(metrics.sum_where(CALLS, &of_endpoints))
    };
    let before = calls(bench).await?;
    let about = rest(bench, &namespace).await?;
    let calls = calls(bench).await? - before;
    let figure = format!("{}: calls", subject(ENDPOINTS));
    let report = &mut bench.report;
    report.judge(figure, calls.to_string(), "0".to_owned(), calls == 0.0);
    judge_requests(bench, subject(ENDPOINTS), about);
    services.release().await?;

    services.manage(HTTP).await?;
    requests::until_rest(&bench.plane, &namespace).await?;
    let before = provider.calls_by_name();
    let about = rest(bench, &namespace).await?;
    let calls = provider.calls_by_name().since(before);
    let figure = format!(
        "{}: calls, each Service is read once, and once more soon after it came",
        subject(HTTP)
    );
    let value = format!(
        "{} (apply {}, observe {})",
        calls.all(),
        calls.apply,
        calls.observe
    );
    let holds = calls.observe <= 2 * count && calls.apply == 0;
    let report = &mut bench.report;
    report.judge(figure, value, format!("≤ {}, no apply", 2 * count), holds);
    judge_requests(bench, subject(HTTP), about);
    Ok(())
}

fn judge_requests(bench: &mut Bench, subject: String, requests: usize) {
    let figure = format!("{subject}: API requests of the server about their namespace");
    let holds = requests == 0;
    let report = &mut bench.report;
    report.judge(figure, requests.to_string(), "0".to_owned(), holds);
}

/// The requests of the server about a namespace in a time of rest.
async fn rest(bench: &Bench, namespace: &str) -> Result<usize> {
    let position = requests::audit_position(&bench.plane).await?;
    tokio::time::sleep(REST).await;
    let requests = requests::since(&bench.plane, position, namespace).await?;
    Ok(requests.of_server())
}

/// Many managed Pods on simulated nodes, and Services that select ten of them each.
struct Services {
    count: usize,
    pods: Api<Pod>,
    services: Api<Service>,
}

impl Services {
    /// Creates the Pods, and waits until they are available.
    async fn create(client: &Client, namespace: &str, count: usize) -> Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes.list_metadata(&ListParams::default()).await?;
        let nodes: Vec<_> = nodes.iter().map(ResourceExt::name_any).collect();
        let this = Self {
            count,
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
        };
        let create = (0..count * PODS).map(|index| {
            let (pods, nodes) = (this.pods.clone(), &nodes);
            async move {
                let node = nodes.get(index % nodes.len().max(1));
                let node = node.context("the plane has no node")?;
                let pod = pod(index, index % count, node)?;
                pods.create(&PostParams::default(), &pod).await?;
                anyhow::Ok(())
            }
        });
        stream::iter(create)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        let available = ListParams::default().labels(AVAILABLE);
        wait::within("the Pods to be available", PATIENCE, || async {
            Ok(this.pods.list_metadata(&available).await?.items.len() == count * PODS)
        })
        .await?;
        Ok(this)
    }

    /// Creates the Services, and waits until all Pods are protected.
    async fn manage(&self, adapter: &str) -> Result<()> {
        let create = (0..self.count).map(|index| async move {
            let (name, group) = (format!("service-{index}"), index.to_string());
            super::create_service(&self.services, adapter, &name, (GROUP, &group)).await
        });
        stream::iter(create)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.protected(self.count * PODS).await
    }

    /// Deletes the Services, and waits until no Pod is protected.
    async fn release(&self) -> Result<()> {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        self.services.delete_collection(&delete, &all).await?;
        wait::within("the Services to be gone", PATIENCE, || async {
            Ok(self.services.list_metadata(&all).await?.items.is_empty())
        })
        .await?;
        self.protected(0).await
    }

    async fn protected(&self, wanted: usize) -> Result<()> {
        let has_protection = |finalizers: &[String]| {
            let mut finalizers = finalizers.iter();
            finalizers.any(|finalizer| finalizer.starts_with(keys::PROTECTION))
        };
        wait::within("the protection of the Pods", PATIENCE, || async {
            let pods = self.pods.list_metadata(&ListParams::default()).await?;
            let protected = pods.iter().filter(|pod| has_protection(pod.finalizers()));
            Ok(protected.count() == wanted)
        })
        .await
    }
}

/// A managed Pod on a node.
fn pod(index: usize, group: usize, node: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": format!("pod-{index}"),
            "labels": { "kusionstack.io/control": "true", GROUP: group.to_string() },
        },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "web:1" }] },
    }))?)
}
