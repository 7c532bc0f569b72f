//! Prometheus metrics: one registry that every part adds its own to.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use self::load::LoadMetrics;

mod load;

/// `Content-Type` of [`Exposition::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of this process, under the prefix `operating_` but for those of [`super::process`]. Cloning shares them.
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
    /// Adds metrics. Registering a name twice shows it twice, so each part registers once per process.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.write().own)
    }

    /// As [`Exposition::register`], without the prefix.
    pub(super) fn register_common<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.write().common)
    }

    /// The OpenMetrics text of all metrics.
    ///
    /// # Errors
    /// When a metric cannot be written, which is an error of that metric's encoder.
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
    /// `allowed`, `denied`, or what kept the request from being a review: `malformed`, `oversized`, `slow`, `busy`,
    /// `unauthenticated`.
    pub verdict: &'static str,
    /// Class of the code in the verdict, or of the HTTP status without one: `2xx`, `4xx`, `5xx`.
    pub code: &'static str,
}

/// Label of the metrics that are kept per webhook path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabel {
    /// Webhook path.
    pub route: &'static str,
}

/// Label of the metrics that are kept per listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ListenerLabel {
    /// `webhook` or `metrics`.
    pub listener: &'static str,
}

/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;

/// Metrics of the server and its certificate. Cloning shares them.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    /// Answers by route, verdict and code class.
    pub reviews: Family<ReviewLabels, Counter>,
    /// Seconds from the request head to the verdict, by route.
    pub duration: Family<RouteLabel, Histogram, fn() -> Histogram>,
    /// Reviews being decided now.
    pub in_flight: Gauge,
    /// Reviews answered by the fallback because too many were in flight.
    pub shed: Family<RouteLabel, Counter>,
    /// Reviews answered by the fallback because the deadline passed.
    pub late: Family<RouteLabel, Counter>,
    /// Reviews that panicked.
    pub panics: Family<RouteLabel, Counter>,
    /// Open connections by listener.
    pub connections: Family<ListenerLabel, Gauge>,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Counter,
    /// Calls that were refused because of who called, before their bodies were read.
    pub refused: Family<RefusedLabel, Counter>,
    /// When the served certificate expires, seconds since 1970; 0 without one.
    pub certificate_expiry: SecondsGauge,
    /// Certificates taken into service.
    pub certificate_loads: Counter,
    /// Attempts to renew or reload the certificate that failed; the former one stays in service.
    pub certificate_failures: Counter,
    /// Connections and memory under load.
    pub load: LoadMetrics,
}

/// From 0.25 ms, a review without I/O, to 16 s, beyond the default timeout of a webhook.
fn review_histogram() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.000_25, 2.0, 17,
    ))
}

/// Values of [`RefusedLabel::reason`].
const REFUSALS: [&str; 2] = ["certificate", "path"];

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabel {
    /// `certificate`: none that may call; `path`: without the segment.
    pub reason: &'static str,
}

impl ServerMetrics {
    /// Creates the counters of a webhook path at 0: `increase()` sees nothing of the event that makes a series.
    pub fn init_route(&self, route: &'static str) {
        for family in [&self.shed, &self.late, &self.panics] {
            drop(family.get_or_create(&RouteLabel { route }));
        }
        drop(self.duration.get_or_create(&RouteLabel { route }));
    }

    /// Gives every metric with labels a sample, for the reference of the metrics.
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
        let m = ServerMetrics {
            reviews: Family::default(),
            duration: Family::new_with_constructor(review_histogram),
            in_flight: Gauge::default(),
            shed: Family::default(),
            late: Family::default(),
            panics: Family::default(),
            connections: Family::default(),
            handshakes_failed: Counter::default(),
            refused: Family::default(),
            certificate_expiry: Gauge::default(),
            certificate_loads: Counter::default(),
            certificate_failures: Counter::default(),
            load: LoadMetrics::register(exposition),
        };
        exposition.register(|r| {
            r.register("reviews", "Answers to webhook calls", m.reviews.clone());
            r.register(
                "review_duration_seconds",
                "Time from request head to verdict",
                m.duration.clone(),
            );
            r.register(
                "reviews_in_flight",
                "Reviews being decided",
                m.in_flight.clone(),
            );
            r.register(
                "reviews_shed",
                "Reviews answered by the fallback for overload",
                m.shed.clone(),
            );
            r.register(
                "reviews_late",
                "Reviews answered by the fallback at the deadline",
                m.late.clone(),
            );
            r.register("review_panics", "Reviews that panicked", m.panics.clone());
            r.register("connections", "Open connections", m.connections.clone());
            r.register(
                "tls_handshakes_failed",
                "TLS handshakes that failed",
                m.handshakes_failed.clone(),
            );
            r.register(
                "calls_refused",
                "Calls that were refused before their bodies were read: without the certificate or the path that is asked for",
                m.refused.clone(),
            );
            r.register(
                "certificate_expiry_timestamp_seconds",
                "Expiry of the served certificate, seconds since 1970; 0 without one",
                m.certificate_expiry.clone(),
            );
            r.register(
                "certificate_loads",
                "Certificates taken into service",
                m.certificate_loads.clone(),
            );
            r.register(
                "certificate_failures",
                "Failed attempts to renew or reload the certificate",
                m.certificate_failures.clone(),
            );
        });
        for reason in REFUSALS {
            drop(m.refused.get_or_create(&RefusedLabel { reason }));
        }
        m
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_text_shows_what_was_counted() {
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
