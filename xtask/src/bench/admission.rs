//! Latency of an admission with and without a ledger write, compared with a no-op of the same server; and
//! reviews per second.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::usage;

use super::Bench;
use super::reviews::{Caller, percentile, review};
use super::workload::{NAME, Workload};

const VALIDATE: &str = "/validate/pods";
const MUTATE: &str = "/mutate/pods";
/// Size of the review of one Pod UPDATE.
const BYTES: usize = 12 * 1024;
const CONNECTIONS: usize = 8;

/// Sends them.
pub async fn measure(bench: &mut Bench, work: &Workload) -> Result<()> {
    let count = if bench.quick { 200 } else { 1_000 };
    let caller = Caller::new(&bench.client, &bench.server.endpoints).await?;
    let pods = values(work.whole().await?)?;
    let deletes = |change: fn(&mut Value)| -> Vec<Vec<u8>> {
        let changed = pods.iter().cloned().map(|mut pod| {
            change(&mut pod);
            review("DELETE", None, &pod, false)
        });
        changed.collect()
    };
    let unmanaged = deletes(|pod| pod["metadata"]["labels"] = json!({"app": "web"}));
    let unavailable = deletes(|pod| pod["status"]["conditions"] = json!([]));
    let claiming = deletes(|_| ());
    let dry: Vec<_> = pods
        .iter()
        .map(|p| review("DELETE", None, p, true))
        .collect();

    // Warms up connections, caches and code paths.
    caller
        .ask_often(VALIDATE, &unmanaged, 200, |v| v.allowed)
        .await?;
    let mut base = None;
    for (what, bodies, count) in [
        ("a no-op (Pod not managed)", &unmanaged, count),
        (
            "free (Pod unavailable), no ledger write",
            &unavailable,
            count,
        ),
        ("judged in a dry run, no ledger write", &dry, count),
        ("claimed, with ledger write", &claiming, count.min(500)),
    ] {
        let writes = "operating_ledger_writes_total";
        let before = bench.server.endpoints.metrics().await?.sum(writes);
        let times = caller
            .ask_often(VALIDATE, bodies, count, |v| v.allowed)
            .await?;
        let writes = bench.server.endpoints.metrics().await?.sum(writes) - before;
        let (p50, p99) = (percentile(&times, 50), percentile(&times, 99));
        let base = *base.get_or_insert((p50.max(1), p99.max(1)));
        let ratio = |n: u128, base: u128| n as f64 / base as f64;
        let value = format!(
            "p50 {p50} µs ({:.2} × no-op), p99 {p99} µs ({:.2} ×), {:.2} ledger writes each",
            ratio(p50, base.0),
            ratio(p99, base.1),
            writes / count as f64
        );
        bench
            .report
            .add(format!("admission of a delete: {what}"), value);
    }
    plain_writes(bench, work).await?;
    throughput(bench, &pods).await
}

/// Duration of a write of the rule alone: the minimum for an admission that writes.
async fn plain_writes(bench: &mut Bench, work: &Workload) -> Result<()> {
    let mut times = Vec::new();
    for round in 0..200 {
        let note = json!({"metadata": {"annotations": {"note": round.to_string()}}});
        let sent = Instant::now();
        let params = PatchParams::default();
        work.rules
            .patch(NAME, &params, &Patch::Merge(&note))
            .await?;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    let (p50, p99) = (percentile(&times, 50), percentile(&times, 99));
    let value = format!("p50 {p50} µs, p99 {p99} µs");
    bench.report.add(
        "for comparison: one write of the rule at the API server",
        value,
    );
    Ok(())
}

/// Reviews per second of an UPDATE that changes an annotation, over eight connections.
async fn throughput(bench: &mut Bench, pods: &[Value]) -> Result<()> {
    let old = pods.first().context("a Pod")?;
    let mut padded = old.clone();
    let spare = BYTES.saturating_sub(review("UPDATE", Some(old), old, false).len());
    padded["metadata"]["annotations"] = json!({"padding": "x".repeat(spare / 2)});
    let mut new = padded.clone();
    new["metadata"]["labels"]["color"] = json!("blue");
    let body = review("UPDATE", Some(&new), &padded, false);
    let span = Duration::from_secs(if bench.quick { 3 } else { 10 });
    let pid = bench.server.pid()?;
    for (what, path) in [("mutating", MUTATE), ("validating", VALIDATE)] {
        let connections =
            (0..CONNECTIONS).map(|_| Caller::new(&bench.client, &bench.server.endpoints));
        let callers = try_join_all(connections).await?;
        let (cpu, begin) = (usage::cpu(pid)?, Instant::now());
        let body = &body;
        let times = try_join_all(callers.iter().map(|caller| async move {
            let mut times = Vec::new();
            while begin.elapsed() < span {
                let verdict = caller.ask(path, body).await?;
                times.push(verdict.took);
            }
            Ok::<_, anyhow::Error>(times)
        }))
        .await?;
        let took = begin.elapsed().as_secs_f64();
        let cpu = usage::cpu(pid)?.saturating_sub(cpu);
        let mut times = times.concat();
        times.sort_unstable();
        let reviews = times.len();
        let value = format!(
            "{:.0} a second, p99 {} µs, {:.0} µs of the server's processor each",
            reviews as f64 / took,
            percentile(&times, 99),
            cpu.as_micros() as f64 / reviews.max(1) as f64
        );
        let figure =
            format!("{what} reviews of a Pod UPDATE, {BYTES} bytes, {CONNECTIONS} connections");
        bench.report.add(figure, value);
    }
    Ok(())
}

/// The Pods in the form of reviews.
fn values(pods: Vec<Pod>) -> Result<Vec<Value>> {
    let with_kind = |pod: Pod| {
        let mut value = serde_json::to_value(pod)?;
        value["apiVersion"] = json!("v1");
        value["kind"] = json!("Pod");
        Ok(value)
    };
    pods.into_iter().map(with_kind).collect()
}
