//! Webhook calls while only kubelets write the status of their Pods.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::herd::{AT_ONCE, Herd};
use super::{Bench, requests};

const REVIEWS: &str = "operating_reviews_total";

/// An idle minute.
pub async fn measure(bench: &mut Bench, herd: &Herd) -> Result<()> {
    herd.serve().await?;
    // Waits until the last requests have ended.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let span = Duration::from_secs(if bench.quick { 15 } else { 60 });
    let before = bench.server.endpoints.metrics().await?;
    let position = requests::audit_position(&bench.plane).await?;
    let (begin, mut written, mut round) = (Instant::now(), 0, 1);
    while begin.elapsed() < span {
        // About 50 writes a second, as of 1,000 Pods with a write every 20 s.
        let first = written % herd.size();
        let last = (first + AT_ONCE).min(herd.size());
        herd.write_status(round, first..last).await?;
        written += last - first;
        if last == herd.size() {
            round += 1;
        }
        tokio::time::sleep(Duration::from_millis(320)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = bench.server.endpoints.metrics().await?;
    let requests = requests::of_server_since(&bench.plane, position).await?;
    let calls = after.sum(REVIEWS) - before.sum(REVIEWS);
    let figure = format!(
        "webhook calls of {} s with {} managed Pods and {written} status writes",
        span.as_secs(),
        herd.size()
    );
    bench.report.add_with_bar(figure, format!("{calls}"), "0");
    let figure = "API requests of the server in that time, without its lease";
    bench
        .report
        .add_with_bar(figure, requests.beside_lease().to_string(), "0");
    let figure = "all API requests of the server in that time, by verb";
    bench.report.add(figure, requests.by_verb());
    Ok(())
}
