//! Memory, and cost of a decision, by number of Pods.

use std::time::Duration;

use anyhow::Result;
use testbed::usage;
use testbed::wait;

use super::Bench;
use super::herd::Herd;
use super::reviews::{Caller, percentile, review};

/// The limit for 10,000 Pods.
const BAR: &str = "≤ 120 MiB";

/// Measures at the current size.
pub async fn measure(bench: &mut Bench, herd: &Herd) -> Result<()> {
    let size = herd.size();
    let endpoints = bench.server.endpoints.clone();
    wait::within(
        "the cache to hold the Pods",
        Duration::from_secs(120),
        || async { Ok(endpoints.metrics().await?.sum("operating_managed_pods") >= size as f64) },
    )
    .await?;
    // The work that follows the creation of the Pods is not a cost of a decision.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let pid = bench.server.pid()?;
    let memory = usage::resident_kib(pid)? as f64 / 1024.0;
    let bar = if size == 10_000 { BAR } else { "" };
    let figure = format!("resident memory at {size} managed Pods");
    bench
        .report
        .add_with_bar(figure, format!("{memory:.1} MiB"), bar);

    let caller = Caller::new(&bench.client, &bench.server.endpoints).await?;
    let bodies = [review("DELETE", None, &herd.sample().await?, false)];
    let refused = |v: &super::reviews::Verdict| !v.allowed && v.code == 429;
    let path = "/validate/pods";
    caller.ask_often(path, &bodies, 200, refused).await?;
    let count = if bench.quick { 1_000 } else { 4_000 };
    let cpu = usage::cpu(pid)?;
    let times = caller.ask_often(path, &bodies, count, refused).await?;
    let cpu = usage::cpu(pid)?.saturating_sub(cpu);
    let value = format!(
        "p50 {} µs, {:.0} µs of the server's processor each",
        percentile(&times, 50),
        cpu.as_micros() as f64 / count as f64
    );
    let figure = format!("cost of a refused delete at {size} managed Pods");
    bench.report.add_with_bar(figure, value, "flat");
    Ok(())
}
