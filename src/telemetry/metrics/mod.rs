//! Prometheus metrics: one registry to which every part of the program adds its metrics.
//!
//! This module has the metrics of the server. `cli/serve/metrics.rs` computes the metrics of rules, claims, denials,
//! caches and controllers at each scrape. `telemetry/api_calls.rs` counts calls to the API server, and
//! `telemetry/process.rs` measures the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

pub use self::load::LoadMetrics;

mod load;

/// `Content-Type` of [`Exposition::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of this process. They have the prefix `operating_`, except those of [`super::process`]. Clones share the
/// registry.
#[derive(Clone, Debug)]
pub struct Exposition(Arc<RwLock<Registries>>);

#[derive(Debug)]
struct Registries {
    own: Registry,
    /// Metrics whose names are the same in every program.
    common: Registry,
}

impl Default for Exposition {
    fn default() -> Self {
        Exposition(Arc::new(RwLock::new(Registries {
            own: Registry::with_prefix("operating"),
            common: Registry::default(),
        })))
    }
}

impl Exposition {
    /// Adds metrics. A name that is registered twice appears twice, so each part must register once per process.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.write().own)
    }

    /// Adds a metric, and returns it.
    fn add<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.register(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// The same as [`Exposition::add`], for a metric without parameters.
    fn add_default<M: Metric + Clone + Default>(&self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }

    /// The same as [`Exposition::register`], without the prefix.
    pub(super) fn register_common<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.write().common)
    }

    /// The OpenMetrics text of all metrics.
    ///
    /// # Errors
    /// If the encoder of a metric fails.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        let registries = self.0.read();
        text::encode_registry(&mut out, &registries.own)?;
        text::encode_registry(&mut out, &registries.common)?;
        text::encode_eof(&mut out)?;
        Ok(out)
    }
}

/// Labels of [`ServerMetrics::reviews`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReviewLabels {
    /// Webhook path.
    pub route: &'static str,
    /// `allowed` or `denied`, or the reason why the call has no valid review: `malformed`, `oversized`, `slow`, `busy`,
    /// `unauthenticated`.
    pub verdict: &'static str,
    /// Class of the code in the verdict, or of the HTTP status if there is no verdict: `2xx`, `4xx`, `5xx`.
    pub code: &'static str,
}

/// Label of the metrics per webhook path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabel {
    /// Webhook path.
    pub route: &'static str,
}

/// Label of the metrics per listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ListenerLabel {
    /// `webhook` or `metrics`.
    pub listener: &'static str,
}

/// A gauge in seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;

/// Metrics of the server and its certificate. Clones share the metrics.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    /// Answers by route, verdict and code class.
    pub reviews: Family<ReviewLabels, Counter>,
    /// Seconds from the request head to the verdict, by route.
    pub duration: Family<RouteLabel, Histogram, fn() -> Histogram>,
    /// Reviews that are being decided now.
    pub in_flight: Gauge,
    /// Reviews that the fallback decided because too many were in flight.
    pub shed: Family<RouteLabel, Counter>,
    /// Reviews that the fallback decided because the deadline passed.
    pub late: Family<RouteLabel, Counter>,
    /// Reviews that panicked.
    pub panics: Family<RouteLabel, Counter>,
    /// Open connections by listener.
    pub connections: Family<ListenerLabel, Gauge>,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Counter,
    /// Calls that were refused because of their caller or path, before their bodies were read.
    pub refused: Family<RefusedLabel, Counter>,
    /// When the served certificate expires, in seconds since 1970; 0 if there is none.
    pub certificate_expiry: SecondsGauge,
    /// Certificates that were taken into service.
    pub certificate_loads: Counter,
    /// Failed attempts to renew or reload the certificate. The former certificate stays in service.
    pub certificate_failures: Counter,
    /// Connections and memory under load.
    pub load: LoadMetrics,
}

/// Buckets from 0.25 ms, for a review without I/O, to 16 s, which is longer than the default timeout of a webhook.
fn review_histogram() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.000_25, 2.0, 17,
    ))
}

/// Values of [`RefusedLabel::reason`].
const REFUSALS: [&str; 2] = ["certificate", "path"];

/// Label of [`ServerMetrics::refused`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabel {
    /// `certificate`: no client certificate of an allowed caller; `path`: no valid segment before the path.
    pub reason: &'static str,
}

impl ServerMetrics {
    /// Creates the counters of a webhook path at 0, because `increase()` misses the event that creates a time series.
    pub fn init_route(&self, route: &'static str) {
        for family in [&self.shed, &self.late, &self.panics] {
            drop(family.get_or_create(&RouteLabel { route }));
        }
        drop(self.duration.get_or_create(&RouteLabel { route }));
    }

    /// Gives every metric with labels one sample, so that the reference of the metrics lists all metrics.
    pub fn init_all_labels(&self) {
        let (route, listener) = ("", "");
        let labels = ReviewLabels {
            route,
            verdict: "",
            code: "",
        };
        drop(self.reviews.get_or_create(&labels));
        self.init_route(route);
        drop(self.connections.get_or_create(&ListenerLabel { listener }));
        self.load.standing(listener, "");
        self.load.shed(listener, "");
        self.load.bodies("");
    }

    /// Creates the metrics and adds them to `exposition`.
    pub fn register(exposition: &Exposition) -> ServerMetrics {
        let load = LoadMetrics::register(exposition);
        let metrics = ServerMetrics {
            reviews: exposition.add_default("reviews", "Answers to webhook calls"),
            duration: exposition.add(
                "review_duration_seconds",
                "Time from request head to verdict",
                Family::new_with_constructor(review_histogram),
            ),
            in_flight: exposition.add_default("reviews_in_flight", "Reviews being decided"),
            shed: exposition.add_default(
                "reviews_shed",
                "Reviews answered by the fallback for overload",
            ),
            late: exposition.add_default(
                "reviews_late",
                "Reviews answered by the fallback at the deadline",
            ),
            panics: exposition.add_default("review_panics", "Reviews that panicked"),
            connections: exposition.add_default("connections", "Open connections"),
            handshakes_failed: exposition
                .add_default("tls_handshakes_failed", "TLS handshakes that failed"),
            refused: exposition.add_default(
                "calls_refused",
                "Calls that were refused before their bodies were read: without the certificate or the path that is asked for",
            ),
            certificate_expiry: exposition.add_default(
                "certificate_expiry_timestamp_seconds",
                "Expiry of the served certificate, seconds since 1970; 0 without one",
            ),
            certificate_loads: exposition
                .add_default("certificate_loads", "Certificates taken into service"),
            certificate_failures: exposition.add_default(
                "certificate_failures",
                "Failed attempts to renew or reload the certificate",
            ),
            load,
        };
        for reason in REFUSALS {
            drop(metrics.refused.get_or_create(&RefusedLabel { reason }));
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn text_shows_what_was_counted() {
        let exposition = Exposition::default();
        let metrics = ServerMetrics::register(&exposition);
        let labels = ReviewLabels {
            route: "/pods",
            verdict: "denied",
            code: "4xx",
        };
        metrics.reviews.get_or_create(&labels).inc();
        metrics.certificate_expiry.set(1.5e9);
        let text = exposition.encode().unwrap();
        let line = r#"operating_reviews_total{route="/pods",verdict="denied",code="4xx"} 1"#;
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains("operating_certificate_expiry_timestamp_seconds 1500000000"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }
}
