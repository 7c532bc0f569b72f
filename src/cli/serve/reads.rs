//! Metrics that are read off the index and the ledgers at each scrape.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::cluster::index::Index;
use crate::cluster::rulestore::RuleStore;
use crate::controllers::webhooks::Pool;
use crate::ledger::commit::Ledgers;
use crate::telemetry::metrics::Exposition;

/// Adds them.
pub fn register(
    exposition: &Exposition,
    index: &Arc<Index>,
    ledgers: &Arc<Ledgers<RuleStore>>,
    calls: &Arc<Pool>,
) {
    let reads = Reads {
        calls: Arc::clone(calls),
        index: Arc::clone(index),
        ledgers: Arc::clone(ledgers),
    };
    exposition.register(|registry| registry.register_collector(Box::new(reads)));
}

struct Reads {
    index: Arc<Index>,
    ledgers: Arc<Ledgers<RuleStore>>,
    calls: Arc<Pool>,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reads")
    }
}

impl Collector for Reads {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counters = &self.ledgers.counters;
        let unreadable = AtomicU64::new(self.index.unreadable());
        for (name, help, value) in [
            (
                "unreadable_objects",
                "Objects of a watch that could not be read; such a Pod counts as not available",
                &unreadable,
            ),
            ("ledger_claims_granted", "Claims given", &counters.granted),
            ("ledger_claims_refused", "Claims refused", &counters.refused),
            (
                "ledger_claims_released",
                "Claims released on evidence",
                &counters.released,
            ),
            ("ledger_writes", "Writes of a ledger", &counters.writes),
            (
                "ledger_conflicts",
                "Writes of a ledger that met another's",
                &counters.conflicts,
            ),
            (
                "ledger_claims_bypassed",
                "Disruptions admitted beyond a budget by who may bypass the rule",
                &counters.bypassed,
            ),
            (
                "rules_skipped",
                "Disruptions admitted although a rule would hold them that the Pod's annotation skips",
                &counters.skipped,
            ),
            (
                "ledger_panics",
                "Writes of a ledger that panicked, denying all that waited for them",
                &counters.panics,
            ),
            (
                "ledgers_mended",
                "Ledgers that named versions which no Pod has reached yet, and that were set right",
                &counters.mended,
            ),
            (
                "rule_calls",
                "Calls to the endpoints of webhook rules",
                &self.calls.made,
            ),
            (
                "rule_calls_failed",
                "Calls to the endpoints of webhook rules that failed, or were not made as the endpoint keeps failing",
                &self.calls.failed,
            ),
        ] {
            let counter = ConstCounter::new(value.load(Ordering::Relaxed));
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let (pods, rules) = {
            let state = self.index.read();
            let count = |f: fn(&crate::cluster::index::Namespace) -> usize| {
                i64::try_from(state.namespaces().map(|(_, n)| f(n)).sum::<usize>())
                    .unwrap_or(i64::MAX)
            };
            (count(|n| n.pods.len()), count(|n| n.rules.len()))
        };
        for (name, help, value) in [
            ("managed_pods", "Managed Pods in the cache", pods),
            ("rules", "PodTransitionRules in the cache", rules),
        ] {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
