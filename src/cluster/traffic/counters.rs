//! What the calls to load balancers came to, for metrics.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Labels of the calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    adapter: String,
    /// `observe` or `apply`.
    call: &'static str,
    /// `ok`, `throttled` or `failed`.
    outcome: &'static str,
}

/// Labels of the waiting times.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    adapter: String,
    /// `off` or `on`.
    traffic: &'static str,
}

/// Counters by adapter. Clones share them.
#[derive(Clone)]
pub struct TrafficCounters {
    calls: Family<CallLabels, Counter>,
    waits: Family<WaitLabels, Histogram, fn() -> Histogram>,
}

impl Default for TrafficCounters {
    fn default() -> TrafficCounters {
        TrafficCounters {
            calls: Family::default(),
            waits: Family::new_with_constructor(wait_histogram),
        }
    }
}

fn wait_histogram() -> Histogram {
    Histogram::new([0.5, 1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0])
}

impl TrafficCounters {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Calls of adapters to their load balancers, by adapter, call (observe, apply) and outcome (ok, throttled, failed)";
        registry.register("traffic_calls", help, self.calls.clone());
        let help = "Time from the moment a Pod should be off or on traffic until its load balancer agrees, by adapter";
        registry.register("traffic_wait_seconds", help, self.waits.clone());
    }

    /// Shows the counters of an adapter from the start, so that a rate does not miss the first calls.
    pub fn show(&self, adapter: &str) {
        for call in ["observe", "apply"] {
            for outcome in ["ok", "throttled", "failed"] {
                let labels = CallLabels {
                    adapter: adapter.to_owned(),
                    call,
                    outcome,
                };
                drop(self.calls.get_or_create(&labels));
            }
        }
    }

    /// Counts a call.
    pub fn count_call(&self, adapter: &str, call: &'static str, outcome: &'static str) {
        let labels = CallLabels {
            adapter: adapter.to_owned(),
            call,
            outcome,
        };
        self.calls.get_or_create(&labels).inc();
    }

    /// Notes that a Pod went off traffic.
    pub fn observe_drained(&self, adapter: &str, took: Duration) {
        self.observe(adapter, "off", took);
    }

    /// Notes that a Pod went on traffic.
    pub fn observe_served(&self, adapter: &str, took: Duration) {
        self.observe(adapter, "on", took);
    }

    fn observe(&self, adapter: &str, traffic: &'static str, took: Duration) {
        let labels = WaitLabels {
            adapter: adapter.to_owned(),
            traffic,
        };
        let waits = self.waits.get_or_create(&labels);
        waits.observe(took.as_secs_f64());
    }
}
