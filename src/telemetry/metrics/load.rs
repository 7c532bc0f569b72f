//! Metrics of connections and memory when a listener is under load.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::Exposition;

/// Labels of [`LoadMetrics::standing`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StandingLabels {
    /// `webhook` or `metrics`.
    pub listener: &'static str,
    /// `proven` or `unproven`.
    pub standing: &'static str,
}

/// Labels of [`LoadMetrics::shed`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ShedLabels {
    /// `webhook` or `metrics`.
    pub listener: &'static str,
    /// Why a connection was closed. `crowded`: a newer connection took the slot; `address`: a newer connection from the
    /// same address took it; `silent`: no request arrived in time; `full`: no slot for another proven connection was
    /// free.
    pub reason: &'static str,
}

/// Label of [`LoadMetrics::bodies`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BodyLabel {
    /// Standing of the connection: `proven` or `unproven`.
    pub standing: &'static str,
}

/// Metrics of connections and memory under load. Clones share the metrics.
#[derive(Clone, Debug, Default)]
pub struct LoadMetrics {
    open: Family<StandingLabels, Gauge>,
    shed: Family<ShedLabels, Counter>,
    bodies: Family<BodyLabel, Counter>,
    /// Log lines that were left out because there were too many of their kind.
    pub unlogged: Counter,
}

impl LoadMetrics {
    /// Creates the metrics and adds them to `exposition`.
    pub fn register(exposition: &Exposition) -> LoadMetrics {
        LoadMetrics {
            open: exposition.add_default(
                "connections_by_standing",
                "Open connections, proven by an accepted call or not",
            ),
            shed: exposition.add_default(
                "connections_shed",
                "Connections closed because a limit was reached or the client sent nothing",
            ),
            bodies: exposition.add_default(
                "bodies_shed",
                "Request bodies discarded while they arrived, because the memory limit was reached",
            ),
            unlogged: exposition.add_default(
                "log_lines_suppressed",
                "Log lines about calls that were suppressed because there were too many",
            ),
        }
    }

    /// Open connections of a listener that are `proven` or `unproven`.
    pub fn standing(&self, listener: &'static str, standing: &'static str) -> Gauge {
        let labels = StandingLabels { listener, standing };
        self.open.get_or_create_owned(&labels)
    }

    /// Connections of a listener that the server closed. The reasons are those of `ShedLabels`.
    pub fn shed(&self, listener: &'static str, reason: &'static str) -> Counter {
        self.shed
            .get_or_create_owned(&ShedLabels { listener, reason })
    }

    /// Bodies that were given up while they arrived.
    pub fn bodies(&self, standing: &'static str) -> Counter {
        self.bodies.get_or_create_owned(&BodyLabel { standing })
    }
}
