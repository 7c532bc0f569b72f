//! API requests and ledger writes per admitted claim.

use anyhow::{Result, bail};
use futures::future::join_all;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams};

use super::workload::Workload;
use super::{Bench, requests};

/// Deletes, then evicts 1, 10 and 100 Pods at once.
pub async fn measure(bench: &mut Bench, work: &Workload) -> Result<()> {
    for evict in [false, true] {
        for count in [1, 10, 100] {
            burst(bench, work, evict, count).await?;
        }
    }
    Ok(())
}

async fn burst(bench: &mut Bench, work: &Workload, evict: bool, count: usize) -> Result<()> {
    let pods = work.whole().await?;
    let names: Vec<_> = pods.iter().take(count).map(ResourceExt::name_any).collect();
    let before = bench.server.endpoints.metrics().await?;
    let position = requests::audit_position(&bench.plane).await?;
    let answers = join_all(names.iter().map(|name| async {
        if evict {
            work.pods
                .evict(name, &EvictParams::default())
                .await
                .map(drop)
        } else {
            work.pods
                .delete(name, &DeleteParams::default())
                .await
                .map(drop)
        }
    }));
    let answers = answers.await;
    let admitted = answers.iter().filter(|a| a.is_ok()).count();
    let at_once = bench.server.endpoints.metrics().await?;
    work.whole().await?;
    let after = bench.server.endpoints.metrics().await?;
    let requests = requests::since(&bench.plane, position, &work.namespace).await?;
    if admitted == 0 {
        bail!("no claim was admitted: {answers:?}");
    }
    let verb = if evict { "evictions" } else { "deletes" };
    let ratio = |n: f64| format!("{:.2}", n / admitted as f64);
    let between = |name, from: &testbed::server::Metrics, to: &testbed::server::Metrics| {
        to.sum(name) - from.sum(name)
    };
    let writes = "operating_ledger_writes_total";
    let value = format!(
        "{admitted} of {count}; {} ledger writes per claim until answered, {} in all; {} conflicts",
        ratio(between(writes, &before, &at_once)),
        ratio(between(writes, &before, &after)),
        between("operating_ledger_conflicts_total", &before, &after),
    );
    bench
        .report
        .add(format!("{verb}, {count} at once: admitted"), value);
    let value = format!(
        "{} about rules, {} in all, the replacement's included",
        ratio(requests.of_server_about("podtransitionrules") as f64),
        ratio(requests.of_server() as f64),
    );
    let figure = format!("{verb}, {count} at once: API requests of the server per claim");
    bench.report.add(figure, value);
    Ok(())
}
