//! `bench --scale PODS`: a replica in a cluster of many Pods, most of which are not managed.
//!
//! For each 100 managed Pods there are a namespace with ten ReplicaSets of ten and a rule for each, 300 Pods that are
//! not managed, and 200 old ReplicaSets of 20 Deployments.

mod lists;
mod objects;
mod ready;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::timeout;

use super::Bench;
use super::reviews::{Caller, Verdict, percentile, review};
use objects::Crowd;
use testbed::usage;

/// The size with which the others are compared.
const FEW: usize = 100;
/// Timeout of a run.
const BOUND: Duration = Duration::from_secs(45 * 60);
/// Limit of the memory of a replica, in MiB.
const MEMORY: f64 = 120.0;
/// Limit of the time until a replica is ready, relative to the time of the lists.
const READY: f64 = 3.0;
/// Limit of the latency of the slowest reviews with many Pods, relative to few Pods.
const SLOWER: f64 = 1.5;
/// Rounds of reviews. The fastest round of each kind counts, so that pauses of the machine have no effect.
const ROUNDS: usize = 9;
/// Pause between two rounds, in which the watches receive events again.
const REST: Duration = Duration::from_secs(2);

/// Measures with `pods` managed Pods.
pub async fn measure(bench: &mut Bench, pods: usize) -> Result<()> {
    let run = timeout(BOUND, figures(bench, pods));
    run.await.context("the run took too long")?
}

async fn figures(bench: &mut Bench, pods: usize) -> Result<()> {
    let mut crowd = Crowd::new(&bench.plane, pods).await?;
    crowd.managed(FEW.min(pods)).await?;
    let few = reviews(bench, &crowd, FEW.min(pods)).await?;
    let empty = resident(bench).await?;

    crowd.managed(pods).await?;
    let managed = resident(bench).await?;
    let figure =
        format!("resident memory with {pods} managed Pods alone, each with its part of the rules");
    let per_pod = (managed - empty) * 1024.0 / pods.saturating_sub(FEW).max(1) as f64;
    let value = format!("{managed:.1} MiB, {per_pod:.1} KiB for each further Pod");
    bench.report.add(figure, value);

    crowd.unmanaged(3 * pods).await?;
    crowd.old_sets(2 * pods).await?;
    let all = resident(bench).await?;
    let figure = format!(
        "the same beside {} unmanaged Pods and {} old ReplicaSets",
        3 * pods,
        2 * pods
    );
    bench.report.judge(
        figure,
        format!("{all:.1} MiB"),
        format!("≤ {MEMORY} MiB"),
        all <= MEMORY,
    );

    let many = reviews(bench, &crowd, pods).await?;
    let ratio = many / few;
    let figure = format!("slowest hundredth of these reviews, {pods} Pods by {FEW}");
    bench.report.judge(
        figure,
        format!("{ratio:.2}"),
        format!("≤ {SLOWER}"),
        ratio <= SLOWER,
    );

    let listing = lists::paged(&bench.client).await?;
    let whole = lists::whole(&bench.client).await?.took.as_secs_f64();
    let took = ready::cold(bench).await?.as_secs_f64();
    let figure =
        format!("ready after a cold start, {took:.2} s, by one list of all that is watched");
    let (listed, mib) = (
        listing.took.as_secs_f64(),
        listing.bytes as f64 / 1024.0 / 1024.0,
    );
    let times = took / listed.max(0.001);
    let by_whole = took / whole.max(0.001);
    let value = format!(
        "{times:.2} × {listed:.2} s ({mib:.0} MiB) in kubectl's pages, {by_whole:.2} × {whole:.2} s in one answer for each kind"
    );
    bench
        .report
        .judge(figure, value, format!("≤ {READY} ×"), times <= READY);
    let cold = resident(bench).await?;
    let peak = usage::peak_kib(bench.server.pid()?)? as f64 / 1024.0;
    let figure = "resident memory after the cold start";
    let value = format!("{cold:.1} MiB, {peak:.1} MiB at most");
    bench
        .report
        .judge(figure, value, format!("≤ {MEMORY} MiB"), cold <= MEMORY);
    Ok(())
}

/// Resident memory in MiB when the server is idle.
async fn resident(bench: &Bench) -> Result<f64> {
    let pid = bench.server.pid()?;
    let mut last = usage::cpu(pid)?;
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let cpu = usage::cpu(pid)?;
        if cpu.saturating_sub(last) < Duration::from_millis(60) {
            break;
        }
        last = cpu;
    }
    Ok(usage::resident_kib(pid)? as f64 / 1024.0)
}

/// Refused DELETE reviews of Pods of all rules: the 99th percentile in µs. They are decided without the API
/// server, because other verdicts need its writes. Reviews of Pods that are not managed alternate with them,
/// to show the influence of the machine on both.
async fn reviews(bench: &mut Bench, crowd: &Crowd, pods: usize) -> Result<f64> {
    resident(bench).await?; // what the new Pods left to do is not what a review costs
    let caller = Caller::new(&bench.client, &bench.server.endpoints).await?;
    let samples = crowd.samples(500).await?;
    let deletes: Vec<_> = samples
        .iter()
        .map(|pod| review("DELETE", None, pod, true))
        .collect();
    let unmanaged = samples.into_iter().map(|mut pod| {
        pod["metadata"]["labels"] = serde_json::json!({"app": "web"});
        review("DELETE", None, &pod, true)
    });
    let unmanaged: Vec<_> = unmanaged.collect();
    let (mut of_deletes, mut of_no_op) = (Vec::new(), Vec::new());
    let refused: fn(&Verdict) -> bool = |v| !v.allowed && v.code == 429;
    for round in 0..=ROUNDS {
        for (bodies, all, expected) in [
            (
                &unmanaged,
                &mut of_no_op,
                (|v| v.allowed) as fn(&Verdict) -> bool,
            ),
            (&deletes, &mut of_deletes, refused),
        ] {
            // The work of the control plane after so many writes is not a cost of a review, so the control
            // plane is frozen, for less time than a watch may be silent.
            bench.plane.pause_apiserver().await?;
            let times = caller
                .ask_often("/validate/pods", bodies, 1_000, expected)
                .await;
            bench.plane.resume_apiserver().await?;
            let times = times?;
            if round > 0 {
                all.push((percentile(&times, 99), percentile(&times, 50)));
            } // in the first round connections, caches and code paths get warm
            tokio::time::sleep(REST).await;
        }
    }
    let calmest = |mut all: Vec<(u128, u128)>| {
        all.sort_unstable();
        all[0]
    };
    let ((slow, common), (no_op_slow, no_op_common)) = (calmest(of_deletes), calmest(of_no_op));
    let times = slow as f64 / no_op_slow.max(1) as f64;
    let figure = format!("refused DELETE reviews at {pods} managed Pods");
    let value = format!(
        "p50 {common} µs, p99 {slow} µs ({times:.2} × no-op: p50 {no_op_common} µs, p99 {no_op_slow} µs)"
    );
    bench.report.add(figure, value);
    Ok(slow as f64)
}
