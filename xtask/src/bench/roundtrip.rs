//! Requests per Pod of a lifecycle round trip.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::wait;

use super::workload::{PATIENCE, Workload};
use super::{Bench, requests};

const ID: &str = "bench";
const PODS: usize = 20;

/// Twenty Pods begin an operation, get permission, finish it and are available again.
pub async fn measure(bench: &mut Bench, work: &Workload) -> Result<()> {
    let pods = work.whole().await?;
    let names: Vec<_> = pods.iter().take(PODS).map(ResourceExt::name_any).collect();
    let position = requests::audit_position(&bench.plane).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let begin = json!({key("operating"): now.to_string(), key("operation-type"): "upgrade"});
    try_join_all(names.iter().map(|name| label(work, name, begin.clone()))).await?;
    let all = |has: fn(&Pod) -> bool, count: usize| async move {
        let list = work.pods.list(&ListParams::default()).await?;
        Ok(list.items.iter().filter(|p| has(p)).count() == count)
    };
    let working = |p: &Pod| p.labels().contains_key(&key("operate"));
    wait::within("the Pods to be worked on", PATIENCE, || all(working, PODS)).await?;
    let finish = json!({key("operating"): null});
    try_join_all(names.iter().map(|name| label(work, name, finish.clone()))).await?;
    wait::within("the lifecycles to end", PATIENCE, || {
        all(
            |p| p.labels().keys().any(|k| k.ends_with(&format!("/{ID}"))),
            0,
        )
    })
    .await?;
    work.whole().await?;
    let requests = requests::since(&bench.plane, position, &work.namespace).await?;
    let per_pod = |n: usize| format!("{:.2}", n as f64 / PODS as f64);
    let value = format!(
        "{} about Pods, {} about rules",
        per_pod(requests.of_server_about("pods")),
        per_pod(requests.of_server_about("podtransitionrules"))
    );
    let figure = "lifecycle round trip, 20 Pods: API requests of the server per Pod";
    bench.report.add_with_bar(figure, value, "8 in all");
    let agents = requests.by_agent().into_iter();
    let agents: Vec<_> = agents
        .map(|(name, n)| format!("{name} {}", per_pod(n)))
        .collect();
    let figure = "lifecycle round trip: requests per Pod by user agent (bench reads too)";
    bench.report.add(figure, agents.join(", "));
    Ok(())
}

fn key(family: &str) -> String {
    format!("{family}.podopslifecycle.kusionstack.io/{ID}")
}

async fn label(workload: &Workload, pod: &str, labels: Value) -> Result<()> {
    let patch = json!({"metadata": {"labels": labels}});
    let params = PatchParams::default();
    workload
        .pods
        .patch(pod, &params, &Patch::Merge(&patch))
        .await?;
    Ok(())
}
