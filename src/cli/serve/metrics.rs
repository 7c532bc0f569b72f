//! Metrics that are computed from the index, the ledgers and the controllers at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use super::traffic_figures::{count_employers, longest_waits};
use crate::admission::denial_counts::DenialCounts;
use crate::api::collaset::CollaSet;
use crate::cluster::caches::Caches;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::traffic::Traffic;
use crate::controllers::ControllerStats;
use crate::controllers::rule_endpoints::{EndpointCaller, RuleLabels};
use crate::ledger::commit::Ledgers;
use crate::ledger::protocol::ClaimOperation;
use crate::telemetry::logs;
use crate::telemetry::metrics::Exposition;
use crate::telemetry::watchdog::WatchdogStatus;

/// Registers the collector.
pub fn register_metrics_collector(exposition: &Exposition, collector: MetricsCollector) {
    exposition.register(|registry| registry.register_collector(Box::new(collector)));
}

/// The sources of the metrics.
pub struct MetricsCollector {
    /// The caches.
    pub caches: Caches,
    /// What this replica knows of traffic.
    pub traffic: Arc<Traffic>,
    /// The ledgers.
    pub ledgers: Arc<Ledgers<RuleStore>>,
    /// Calls to the endpoints of webhook rules.
    pub endpoint_caller: Arc<EndpointCaller>,
    /// The counts of denials.
    pub denials: DenialCounts,
    /// The controllers.
    pub controller_stats: Arc<ControllerStats>,
    /// Whether this replica leads.
    pub is_leading: watch::Receiver<bool>,
    /// The state of the watchdog.
    pub watchdog: WatchdogStatus,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// The monotonic clock.
    pub clock: fn() -> Instant,
}

impl fmt::Debug for MetricsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsCollector")
    }
}

impl Collector for MetricsCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricsEncoder(encoder);
        self.encode_counters(&mut out)?;
        self.encode_caches(&mut out)?;
        self.encode_claims(&mut out)?;
        self.encode_controllers(&mut out)?;
        out.encode_label_family(
            "denials",
            "Reviews denied, by reason",
            MetricType::Counter,
            "reason",
            self.denials.counts(),
        )?;
        let stalled = self.watchdog.stalled_probes().into_iter();
        out.encode_label_family(
            "stalled",
            "1 while the watchdog finds that this part makes no progress",
            MetricType::Gauge,
            "probe",
            stalled.map(|(probe, stalled)| (probe, u64::from(stalled))),
        )
    }
}

impl MetricsCollector {
    fn encode_counters(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let counters = &self.ledgers.counters;
        for (name, help, counter) in [
            ("ledger_claims_granted", "Claims granted", &counters.granted),
            ("ledger_claims_refused", "Claims refused", &counters.refused),
            (
                "ledger_claims_released",
                "Claims released, after their effect was observed or because they had no effect",
                &counters.released,
            ),
            (
                "ledger_claims_lapsed",
                "Claims released because they had no effect",
                &counters.lapsed,
            ),
            ("ledger_writes", "Writes of a ledger", &counters.writes),
            (
                "ledger_conflicts",
                "Ledger writes that failed with a resourceVersion conflict",
                &counters.conflicts,
            ),
            (
                "ledger_claims_bypassed",
                "Admissions by the verb bypass: once for each way in which the request went beyond a rule (budget, other rule, lifecycle)",
                &counters.bypassed,
            ),
            (
                "rules_skipped",
                "Disruptions admitted because an annotation of the Pod skips a rule that would hold them",
                &counters.skipped,
            ),
            (
                "ledger_panics",
                "Ledger writes that panicked; all requests that waited for the write were denied",
                &counters.panics,
            ),
            (
                "ledgers_mended",
                "Ledgers that were corrected because they named resource versions that no Pod has reached",
                &counters.mended,
            ),
            (
                "rule_calls",
                "Calls to the endpoints of webhook rules",
                &self.endpoint_caller.made,
            ),
            (
                "rule_calls_failed",
                "Calls to the endpoints of webhook rules that failed",
                &self.endpoint_caller.failed,
            ),
            (
                "rule_calls_postponed",
                "Calls to the endpoints of webhook rules that were postponed because the limit of parallel calls was reached for 60 s",
                &self.endpoint_caller.postponed,
            ),
        ] {
            out.encode_counter(name, help, counter.load(Ordering::Relaxed))?;
        }
        out.encode_ignored_passes(&self.endpoint_caller.ignored.ignored_by_rule())?;
        out.encode_counter(
            "panics",
            "Panics of all tasks and threads, including those that were caught",
            logs::panic_count(),
        )
    }

    fn encode_caches(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let (pods, rules, lag) = {
            let state = self.caches.index.read_state();
            let (mut pods, mut rules, mut watermark) = (0, 0, 0);
            for (_, namespace) in state.namespaces() {
                pods += namespace.pods.len();
                rules += namespace.rules.len();
                let marks = namespace.rules.values();
                let highest = marks.map(|entry| entry.snapshot.claims.watermark).max();
                watermark = watermark.max(highest.unwrap_or(0));
            }
            (pods, rules, watermark.saturating_sub(state.position))
        };
        out.encode_gauge("managed_pods", "Managed Pods in the cache", pods as f64)?;
        out.encode_gauge("rules", "PodTransitionRules in the cache", rules as f64)?;
        out.encode_gauge(
            "unreadable_objects",
            "Watched objects that cannot be read, and Pods that are too large for the cache; such a Pod counts as not available, and such a rule holds its Pods",
            self.caches.unreadable.count() as f64,
        )?;
        out.encode_gauge(
            "watermark_lag",
            "Distance between the Pod cache and the highest watermark of a rule, in resourceVersions; normally 0",
            lag as f64,
        )?;
        out.encode_gauge(
            "webhooks_registered",
            "0 while the stored webhook configurations lack requests about Pods that rules need; entries about other objects, and entries with failurePolicy Ignore, do not count",
            f64::from(u8::from(self.caches.registration.is_complete())),
        )?;
        out.encode_gauge(
            "ledgers_not_stored",
            "Rules whose status.ledger the API server did not store as this replica last wrote it; their Pods are held",
            self.ledgers.store().count_unkept_ledgers() as f64,
        )?;
        let mut oldest = BTreeMap::<&str, f64>::new();
        for age in self.caches.watch_registry.watch_ages((self.clock)()) {
            let known = oldest.entry(age.resource).or_default();
            *known = known.max(age.heard.as_secs_f64());
        }
        out.encode_label_family(
            "watch_age_seconds",
            "Time since the API server last sent an event on this watch; it sends a bookmark every minute",
            MetricType::Gauge,
            "resource",
            oldest,
        )
    }

    fn encode_claims(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let now = (self.now)();
        let mut flight = ClaimOperation::ALL.map(|operation| (operation.as_str(), 0u64));
        let mut oldest = ClaimOperation::ALL.map(|operation| (operation.as_str(), 0.0f64));
        {
            let state = self.caches.index.read_state();
            let rules = state
                .namespaces()
                .flat_map(|(_, namespace)| namespace.rules.values());
            for ((_, operation), claim) in rules.flat_map(|rule| &rule.snapshot.claims.claims) {
                let is_of = |name: &str| name == operation.as_str();
                let age = now.duration_since(claim.detail.since).as_secs_f64();
                for (_, count) in flight.iter_mut().filter(|(name, _)| is_of(name)) {
                    *count += 1;
                }
                for (_, oldest_age) in oldest.iter_mut().filter(|(name, _)| is_of(name)) {
                    *oldest_age = oldest_age.max(age);
                }
            }
        }
        out.encode_label_family(
            "claims_in_flight",
            "Claims that are not released yet, by operation",
            MetricType::Gauge,
            "operation",
            flight,
        )?;
        out.encode_label_family(
            "claims_oldest_seconds",
            "Age of the oldest claim that is not released yet, by operation",
            MetricType::Gauge,
            "operation",
            oldest,
        )
    }

    /// Counts CollaSets by their status, which the leader writes.
    fn encode_collasets(&self, out: &mut MetricsEncoder<'_>, leads: bool) -> fmt::Result {
        let (mut ready, mut unready, mut stalled) = (0u64, 0u64, 0u64);
        let count = |set: &CollaSet| {
            let conditions = || set.status.iter().flat_map(|status| &status.conditions);
            let is_true = |type_| conditions().any(|c| c.type_ == type_ && c.status == "True");
            match is_true("Ready") {
                true => ready += 1,
                false => unready += 1,
            }
            stalled += u64::from(is_true("Stalled"));
        };
        if leads {
            self.caches.objects.sets.for_each_object(count);
        }
        out.encode_label_family(
            "collasets",
            "CollaSets by their condition Ready, as the leader sees them; 0 at replicas that do not lead",
            MetricType::Gauge,
            "ready",
            [("true", ready), ("false", unready)],
        )?;
        out.encode_gauge(
            "collasets_stalled",
            "CollaSets whose condition Stalled is True, as the leader sees them; 0 at replicas that do not lead",
            stalled as f64,
        )
    }

    fn encode_traffic(&self, out: &mut MetricsEncoder<'_>, leads: bool) -> fmt::Result {
        // Only the leader writes reports and marks; other replicas show what was before its writes reach them.
        let traffic = leads.then_some(&*self.traffic);
        let index = leads.then_some(&*self.caches.index);
        let employers = count_employers(traffic);
        let waits = longest_waits(index, (self.now)());
        out.encode_label_family(
            "traffic_employers",
            "Services and other employers whose traffic is managed, by the reason of their condition Consistent, as the leader sees them; 0 at replicas that do not lead",
            MetricType::Gauge,
            "reason",
            employers,
        )?;
        out.encode_label_family(
            "traffic_longest_wait_seconds",
            "How long a managed Pod waits now for a finalizer of its traffic to be removed (off) or added (on): the longest wait, as the leader sees it; 0 at replicas that do not lead",
            MetricType::Gauge,
            "traffic",
            waits,
        )
    }

    fn encode_controllers(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let leads = *self.is_leading.borrow();
        self.encode_collasets(out, leads)?;
        self.encode_traffic(out, leads)?;
        let help = "1 while this replica runs the controllers";
        out.encode_gauge("leader", help, f64::from(u8::from(leads)))?;
        let figures = self.controller_stats.controller_figures();
        out.encode_label_family(
            "queue_depth",
            "Keys that wait for a worker, by controller",
            MetricType::Gauge,
            "controller",
            figures.iter().map(|f| (f.controller, f.depth as u64)),
        )?;
        let help = "Reconciles by outcome: done, later (scheduled again), retry (a write failed, was held or conflicted with a \
                    newer object) and panic";
        let mut metric = out
            .0
            .encode_descriptor("reconciles", help, None, MetricType::Counter)?;
        for figures in &figures {
            for (outcome, count) in figures.runs {
                let labels = [("controller", figures.controller), ("outcome", outcome)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Encodes metrics.
struct MetricsEncoder<'a>(DescriptorEncoder<'a>);

impl MetricsEncoder<'_> {
    fn encode_counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn encode_gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    /// The only metric whose labels name objects, because the user needs to know which rule let the Pods pass.
    fn encode_ignored_passes(&mut self, counts: &BTreeMap<RuleLabels, u64>) -> fmt::Result {
        let help = "Operations that passed a webhook rule by failurePolicy Ignore, by rule; the first 1,000 rules have labels, further \
                    rules share a series with empty labels; each replica counts while it leads";
        let name = "rule_passed_by_ignore";
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((namespace, object, rule), count) in counts {
            let labels = [
                ("namespace", namespace.as_str()),
                ("object", object.as_str()),
                ("rule", rule.as_str()),
            ];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes a metric with one label.
    fn encode_label_family<N: MetricValue>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        label: &str,
        rows: impl IntoIterator<Item = (&'static str, N)>,
    ) -> fmt::Result {
        let is_counter = matches!(kind, MetricType::Counter);
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (value, number) in rows {
            let labels = [(label, value)];
            let row = metric.encode_family(&labels)?;
            match is_counter {
                true => ConstCounter::new(number.to_f64()).encode(row)?,
                false => ConstGauge::new(number.to_f64()).encode(row)?,
            }
        }
        Ok(())
    }
}

/// A number that a metric can have.
trait MetricValue {
    fn to_f64(self) -> f64;
}

impl MetricValue for u64 {
    fn to_f64(self) -> f64 {
        self as f64
    }
}

impl MetricValue for f64 {
    fn to_f64(self) -> f64 {
        self
    }
}
