//! Serves `/livez`, `/readyz` and `/metrics` on the plain-HTTP listener.

use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use http::{StatusCode, header};
use parking_lot::RwLock;
use tokio::time::timeout;

use super::Shutdown;
use crate::telemetry::metrics::{CONTENT_TYPE, Exposition};

/// Time limit of one readiness check.
const CHECK_DEADLINE: Duration = Duration::from_secs(2);

/// A detail to show, or the reason why the process is not ready.
pub type CheckResult = Result<String, String>;

type ReadinessCheck = Arc<dyn Fn() -> BoxFuture<'static, CheckResult> + Send + Sync>;

/// Returns the reason why the process must be restarted, or `None`.
type LivenessCheck = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The checks behind `/livez` and `/readyz`. Clones share the checks.
#[derive(Clone)]
pub struct Health {
    liveness_checks: Arc<RwLock<Vec<LivenessCheck>>>,
    checks: Arc<RwLock<Vec<(&'static str, ReadinessCheck)>>>,
    shutdown: Shutdown,
    metrics: Exposition,
}

/// The result of all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadinessReport {
    /// Whether all checks passed and the process is not shutting down.
    pub ready: bool,
    /// The text of the answer, with one line for each check.
    pub text: String,
}

impl Health {
    /// A set without checks. It is ready until `shutdown` begins to drain.
    pub fn new(shutdown: Shutdown, metrics: Exposition) -> Health {
        Health {
            liveness_checks: Arc::default(),
            checks: Arc::default(),
            shutdown,
            metrics,
        }
    }

    /// Adds a readiness check, such as `caches synced`. It runs at every probe, for at most two seconds.
    pub fn add_readiness_check<F, R>(&self, name: &'static str, check: F)
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = CheckResult> + Send + 'static,
    {
        self.checks
            .write()
            .push((name, Arc::new(move || check().boxed())));
    }

    /// Adds a check of `/livez`. It must not block, and returns the reason why the process must be restarted, or
    /// `None`.
    pub fn add_liveness_check(&self, why: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.liveness_checks.write().push(Arc::new(why));
    }

    /// The reasons why the process must be restarted; empty if the process is healthy.
    pub fn liveness_failures(&self) -> Vec<String> {
        let lives = self.liveness_checks.read().clone();
        lives.iter().filter_map(|why| why()).collect()
    }

    /// Runs all checks concurrently. A process that must be restarted is not ready.
    pub async fn run_checks(&self) -> ReadinessReport {
        let checks = self.checks.read().clone();
        let outcomes = join_all(
            checks
                .iter()
                .map(|(_, check)| timeout(CHECK_DEADLINE, check())),
        )
        .await;
        let ills = self.liveness_failures();
        let mut report = ReadinessReport {
            ready: !self.shutdown.is_draining() && ills.is_empty(),
            text: ills
                .iter()
                .map(|why| format!("[-] life: {why}\n"))
                .collect(),
        };
        if self.shutdown.is_draining() {
            report.text.push_str("[-] shutdown: draining\n");
        }
        for ((name, _), outcome) in checks.iter().zip(outcomes) {
            let outcome = outcome.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            report.ready &= outcome.is_ok();
            let (sign, detail) = match &outcome {
                Ok(detail) => ('+', detail),
                Err(why) => ('-', why),
            };
            // Writing to a String does not fail.
            let _ = writeln!(report.text, "[{sign}] {name}: {detail}");
        }
        report.text.push_str(if report.ready {
            "ready\n"
        } else {
            "not ready\n"
        });
        report
    }

    /// A router for the three paths.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self.clone())
    }
}

async fn livez(State(health): State<Health>) -> Response {
    let ills = health.liveness_failures();
    if ills.is_empty() {
        return plain_text_response(StatusCode::OK, "alive\n".to_owned());
    }
    let lines = ills.iter().map(|why| format!("[-] {why}\n"));
    plain_text_response(
        StatusCode::INTERNAL_SERVER_ERROR,
        lines.chain(["not alive\n".to_owned()]).collect(),
    )
}

async fn readyz(State(health): State<Health>) -> Response {
    let report = health.run_checks().await;
    plain_text_response(
        if report.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        report.text,
    )
}

async fn metrics(State(health): State<Health>) -> Response {
    match health.metrics.encode() {
        Ok(body) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response(),
        Err(_) => plain_text_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics could not be written\n".to_owned(),
        ),
    }
}

fn plain_text_response(code: StatusCode, body: String) -> Response {
    (
        code,
        [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        body,
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn health() -> (Health, Shutdown) {
        let shutdown = Shutdown::default();
        (
            Health::new(shutdown.clone(), Exposition::default()),
            shutdown,
        )
    }

    #[tokio::test]
    async fn every_check_must_pass() {
        let (health, shutdown) = health();
        health.add_readiness_check("caches synced", async || Ok("5 kinds".to_owned()));
        assert_eq!(
            health.run_checks().await,
            ReadinessReport {
                ready: true,
                text: "[+] caches synced: 5 kinds\nready\n".to_owned()
            }
        );
        health.add_readiness_check("webhook listener", async || {
            Err("connection refused".to_owned())
        });
        let report = health.run_checks().await;
        assert!(!report.ready);
        assert_eq!(
            report.text,
            "[+] caches synced: 5 kinds\n[-] webhook listener: connection refused\nnot ready\n"
        );
        shutdown.drain();
        assert!(
            health
                .run_checks()
                .await
                .text
                .starts_with("[-] shutdown: draining\n")
        );
    }

    #[tokio::test]
    async fn every_liveness_failure_is_reported_and_ends_readiness() {
        let (health, _) = health();
        health.add_liveness_check(|| None);
        assert_eq!(health.liveness_failures(), Vec::<String>::new());
        assert!(health.run_checks().await.ready);
        health.add_liveness_check(|| Some("a watch panicked".to_owned()));
        health.add_liveness_check(|| Some("the index is locked".to_owned()));
        assert_eq!(
            health.liveness_failures(),
            ["a watch panicked", "the index is locked"]
        );
        let report = health.run_checks().await;
        let text = "[-] life: a watch panicked\n[-] life: the index is locked\nnot ready\n";
        assert_eq!((report.ready, report.text.as_str()), (false, text));
    }

    #[tokio::test(start_paused = true)]
    async fn check_that_hangs_has_failed() {
        let (health, _) = health();
        health.add_readiness_check("caches synced", std::future::pending);
        assert_eq!(
            health.run_checks().await.text,
            "[-] caches synced: no answer in time\nnot ready\n"
        );
    }
}
