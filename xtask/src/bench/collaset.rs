//! The cost of a CollaSet: requests per Pod of its creation and of an in-place update of its image.

use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use testbed::usage;
use testbed::wait;

use super::requests::{self, Requests, SERVER};
use super::workload::{self, NAME, PATIENCE};
use super::{Bench, floor};
use crate::collasets;
use crate::demo::worst::Worst;

/// Share of the Pods that may be unavailable.
pub const LIMIT: &str = "10%";

/// Creates a CollaSet of `size` Pods, and updates their image under a rule of 10%.
pub async fn measure(bench: &mut Bench, size: usize) -> Result<()> {
    eprintln!("a CollaSet of {size} Pods");
    let namespace = bench.plane.namespace("rollout").await?;
    let pods: Api<Pod> = Api::namespaced(bench.client.clone(), &namespace);
    let sets = collasets::api(&bench.client, &namespace);
    let pid = bench.server.pid()?;

    let position = requests::audit_position(&bench.plane).await?;
    sets.create(&PostParams::default(), &set(size)?).await?;
    collasets::reached(&sets, NAME, PATIENCE).await?;
    let requests = requests::since(&bench.plane, position, &namespace).await?;
    let figure = format!("CollaSet, creation of {size} Pods: API requests of the server per Pod");
    let bar = "≤ 4";
    bench
        .report
        .add_with_bar(figure, per_pod(&requests, size), bar);

    let rules = workload::rules(bench.client.clone(), &namespace);
    workload::create_rule(&rules, json!(LIMIT)).await?;
    let observer = Worst::start(&bench.client, &namespace, size).await?;
    let (position, cpu, start) = (
        requests::audit_position(&bench.plane).await?,
        usage::cpu(pid)?,
        Instant::now(),
    );
    let patch =
        json!({ "spec": { "template": { "spec": { "containers": containers("web:2") } } } });
    sets.patch(NAME, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    collasets::reached(&sets, NAME, PATIENCE).await?;
    let took = start.elapsed();
    let cpu = usage::cpu(pid)?.saturating_sub(cpu);
    let requests = requests::since(&bench.plane, position, &namespace).await?;
    let most = observer.most_unavailable().await?;
    let subject = format!("CollaSet, new image for {size} Pods under {LIMIT}");
    let add = &mut bench.report;
    let figure = format!("{subject}: API requests of the server per Pod");
    add.add_with_bar(figure, per_pod(&requests, size), "≤ 6");
    let figure = format!("{subject}: API requests of others per Pod");
    add.add(figure, of_others(&requests, size));
    let limit = size / 10;
    let figure = format!("{subject}: most unavailable");
    add.add_with_bar(figure, most.to_string(), format!("≤ {limit}"));
    let figure = format!("{subject}: processor of the server");
    let bar = if size == 100 { "≤ 3 s" } else { "" };
    add.add_with_bar(figure, format!("{:.1} s", cpu.as_secs_f64()), bar);
    rules.delete(NAME, &DeleteParams::default()).await?;
    end(&sets, &pods).await?;

    if size <= 100 {
        let floor = floor::measure(&bench.plane, size, limit).await?;
        let ratio = took.as_secs_f64() / floor.as_secs_f64();
        let value = format!(
            "{ratio:.2} × the plane's floor ({:.1} s and {:.1} s)",
            took.as_secs_f64(),
            floor.as_secs_f64()
        );
        let figure = format!("{subject}: time");
        bench.report.add_with_bar(figure, value, "≤ 1.5 ×");
    }
    Ok(())
}

/// Deletes the set, and waits until its Pods are gone. No rule may limit their deletion.
pub async fn end(sets: &Api<DynamicObject>, pods: &Api<Pod>) -> Result<()> {
    sets.delete(NAME, &DeleteParams::background()).await?;
    wait::within("the Pods to go", PATIENCE, || async {
        let remaining = pods.list_metadata(&ListParams::default()).await?;
        Ok(remaining.items.is_empty())
    })
    .await
}

/// A set with one container.
pub fn set(size: usize) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "CollaSet",
        "metadata": { "name": NAME },
        "spec": {
            "replicas": size,
            "selector": { "matchLabels": { "app": NAME } },
            "template": {
                "metadata": { "labels": { "app": NAME } },
                "spec": { "containers": containers("web:1") },
            },
        },
    }))?)
}

/// The containers of the template of a set.
pub fn containers(image: &str) -> Value {
    json!([{ "name": "main", "image": image }])
}

/// Requests of the server per Pod, by verb and resource. Figures below 0.01 are left out.
pub fn per_pod(requests: &Requests, size: usize) -> String {
    let per = |n: usize| n as f64 / size as f64;
    let split = requests.split();
    let of_server = split
        .iter()
        .filter(|(agent, _)| agent.starts_with(SERVER))
        .flat_map(|(_, counts)| counts);
    let shown = of_server.filter(|(_, count)| per(*count) >= 0.01);
    let parts: Vec<_> = shown
        .map(|(kind, count)| format!("{kind} {:.2}", per(*count)))
        .collect();
    format!("{:.2} ({})", per(requests.of_server()), parts.join(", "))
}

/// Requests of all other clients per Pod.
fn of_others(requests: &Requests, size: usize) -> String {
    let per = |n: usize| n as f64 / size as f64;
    let counts = requests.by_agent().into_iter();
    let others = counts.filter(|(agent, n)| !agent.starts_with(SERVER) && per(*n) >= 0.01);
    let parts: Vec<_> = others
        .map(|(agent, n)| format!("{agent} {:.2}", per(n)))
        .collect();
    parts.join(", ")
}
