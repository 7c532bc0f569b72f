//! Generates the reference of the metrics from the code that registers them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;

use super::serve::metrics::{self, MetricsCollector};
use crate::admission::denial_counts::DenialCounts;
use crate::cluster::caches::Caches;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::traffic::counters::TrafficCounters;
use crate::cluster::watch::CatchUpSignal;
use crate::cluster::watches;
use crate::controllers::ControllerStats;
use crate::controllers::rule_endpoints::EndpointCaller;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::RuleKey;
use crate::tasks::Supervisor;
use crate::telemetry::api_calls::ApiCallMetrics;
use crate::telemetry::metrics::{Exposition, ServerMetrics};
use crate::telemetry::process;
use crate::telemetry::watchdog::{self, WatchdogProbe};

/// `docs/metrics.md`: every metric with its type, labels and meaning.
///
/// # Errors
/// If no runtime can be created, or if a metric has no sample that shows its labels.
pub fn metrics_markdown() -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let text = runtime.block_on(async { example_exposition() })?;
    let mut out = String::from(
        "# Metrics\n\nThis page is generated from the code; `UPDATE=1 cargo test --test generated` rewrites it. The server \
         exposes the metrics in\nOpenMetrics format on `/metrics` of `--metrics-listen`. Labels contain no object names, so the \
         number of series does not\ngrow with the cluster. The exception is `operating_rule_passed_by_ignore_total`, which names at \
         most 1,000 rules.\nThe alarms on these metrics are in `manifests/monitoring/alarms.yaml`; [on-call.md](on-call.md) \
         describes the reactions.\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n",
    );
    for metric in parse_metrics(&text)? {
        let labels: Vec<_> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            metric.name,
            metric.kind,
            labels.join(", "),
            metric.help
        );
    }
    Ok(out)
}

/// A metric for the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricDoc {
    /// Name in queries. For a histogram, the suffixes of its parts are left out.
    pub name: String,
    /// Type of the metric.
    pub kind: String,
    /// Meaning of the metric.
    pub help: String,
    /// Names of the labels.
    pub labels: BTreeSet<String>,
}

/// Parses the metrics of an OpenMetrics text.
///
/// # Errors
/// If a metric has no sample, because then its labels are not known.
pub fn parse_metrics(text: &str) -> anyhow::Result<Vec<MetricDoc>> {
    let mut all: Vec<MetricDoc> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            all.push(MetricDoc {
                name: name.to_owned(),
                kind: String::new(),
                help: help.trim_end_matches('.').to_owned(),
                labels: BTreeSet::new(),
            });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = rest.rsplit(' ').next().unwrap_or_default();
            let metric = all.last_mut().context("a TYPE without a HELP")?;
            kind.clone_into(&mut metric.kind);
        }
    }
    for metric in &mut all {
        let suffixes: &[&str] = match metric.kind.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        let family = metric.name.clone();
        let samples = text.lines().filter_map(|line| {
            let end = line.find(['{', ' '])?;
            let (name, rest) = line.split_at(end);
            suffixes
                .contains(&name.strip_prefix(&family)?)
                .then_some(rest)
        });
        let mut found = false;
        for rest in samples {
            found = true;
            metric.labels.extend(label_names(rest));
        }
        anyhow::ensure!(
            found,
            "metric {family} has no sample: add one to cli::metrics::example"
        );
        if let [suffix] = suffixes {
            metric.name.push_str(suffix);
        }
        metric.labels.remove("le");
    }
    Ok(all)
}

/// Names of the labels of a sample, whose name was removed. Values contain no quotes, because none comes from an
/// object.
fn label_names(sample: &str) -> Vec<String> {
    let Some((labels, _)) = sample.strip_prefix('{').and_then(|s| s.split_once('}')) else {
        return Vec::new();
    };
    let pairs = labels.split("\",");
    let names = pairs.filter_map(|pair| pair.split_once('=').map(|(name, _)| name.to_owned()));
    names.collect()
}

/// The text of every metric, each with a sample. Must be called on a runtime.
fn example_exposition() -> anyhow::Result<String> {
    let exposition = Exposition::default();
    ServerMetrics::register(&exposition).init_all_labels();
    ApiCallMetrics::register(&exposition).count_success("get", 200);
    process::register_process_metrics(&exposition);
    let service = tower::service_fn(|_: Request<Body>| async {
        let mut nothing = Response::new(Body::empty());
        *nothing.status_mut() = StatusCode::NOT_FOUND;
        Ok::<_, Infallible>(nothing)
    });
    let client = Client::new(service, "default");
    let caches = Caches::default();
    let supervisor = Supervisor::new(CancellationToken::new());
    supervisor.stop().cancel();
    watches::start_watches(&client, &caches, true, &supervisor);
    let store = RuleStore::new(client, Arc::clone(&caches.index), CatchUpSignal::default());
    let probe = WatchdogProbe {
        name: "index-lock",
        restart_after: None,
        check: Box::new(|_| Ok(())),
    };
    let (_leading, is_leading) = tokio::sync::watch::channel(false);
    let rule = RuleKey {
        uid: "uid".into(),
        namespace: "shop".into(),
        name: "web".into(),
    };
    let endpoint_caller = Arc::<EndpointCaller>::default();
    endpoint_caller.ignored.count_ignored(&rule, "ask", 1);
    let collector = MetricsCollector {
        caches,
        traffic: Arc::default(),
        ledgers: Ledgers::new(store),
        endpoint_caller,
        denials: DenialCounts::default(),
        controller_stats: Arc::new(ControllerStats::default()),
        is_leading,
        watchdog: watchdog::start_watchdog(vec![probe], supervisor.stop().clone(), |_| {})?,
        now: Timestamp::now,
        clock: std::time::Instant::now,
    };
    metrics::register_metrics_collector(&exposition, collector);
    let counters = TrafficCounters::default();
    counters.count_call("endpoints", "observe", "ok");
    counters.observe_drained("endpoints", Duration::ZERO);
    exposition.register(|registry| counters.register(registry));
    Ok(exposition.encode()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_types_and_labels_are_read_off_the_text() {
        let text = "# HELP a_reviews Answers.\n# TYPE a_reviews counter\na_reviews_total{route=\"/p,q\",code=\"2xx\"} 1\n\
                    # HELP a_seconds Time.\n# TYPE a_seconds histogram\na_seconds_bucket{le=\"1\"} 0\n# EOF\n";
        let found = parse_metrics(text).unwrap();
        assert_eq!(found[0].name, "a_reviews_total");
        assert_eq!(
            found[0].labels,
            BTreeSet::from(["code".into(), "route".into()])
        );
        assert_eq!(
            (found[1].name.as_str(), found[1].labels.len()),
            ("a_seconds", 0)
        );
    }

    #[test]
    fn metric_without_a_sample_is_refused() {
        let text = "# HELP a_reviews Answers.\n# TYPE a_reviews counter\n# EOF\n";
        let error = parse_metrics(text).unwrap_err().to_string();
        assert!(
            error.starts_with("metric a_reviews has no sample"),
            "{error}"
        );
    }
}
