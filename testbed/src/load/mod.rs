//! A bounded load of HTTP requests from within a test, which counts how each request ended.
//!
//! The load is a closed loop: each worker waits for the end of its request before it sends the next one. Half of the
//! workers keep their connection open between requests, and half open a connection for each request. A worker repeats no
//! request, with one exception that all clients make: if the server closed a kept connection before the worker wrote to
//! it, the worker sends the request on a new connection.

mod client;
mod report;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Uri;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};
use tokio_util::sync::CancellationToken;

use client::Worker;
pub use report::{Failure, LoadReport, Outcome};

/// How much load there is, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of workers, which is the largest number of requests at the same time. Even numbers halve exactly.
    pub workers: u32,
    /// The largest number of requests per second, of all workers together.
    pub per_second: u32,
    /// Timeout of a request.
    pub timeout: Duration,
    /// The load ends by itself after this time.
    pub longest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            workers: 8,
            per_second: 100,
            timeout: Duration::from_secs(5),
            longest: Duration::from_secs(600),
        }
    }
}

/// A running load. Dropping it cuts the requests in progress; [`Load::stop`] waits for them.
#[derive(Debug)]
pub struct Load {
    report: Arc<Mutex<LoadReport>>,
    stopping: CancellationToken,
    workers: JoinSet<()>,
}

impl Load {
    /// Begins to send GET requests to a URL such as `http://127.0.0.1:8080/?delay=5`.
    ///
    /// # Errors
    /// If the URL is not plain HTTP to a loopback address with a port, or a limit is 0.
    pub fn start(url: &str, limits: Limits) -> Result<Self> {
        let (address, uri) = target(url)?;
        ensure!(
            limits.workers > 0 && limits.per_second > 0,
            "limits.workers is {} and limits.per_second is {}: both must be at least 1",
            limits.workers,
            limits.per_second
        );
        let start = Instant::now();
        let report = Arc::new(Mutex::new(LoadReport::default()));
        let stopping = CancellationToken::new();
        let mut workers = JoinSet::new();
        for index in 0..limits.workers {
            let keeps_connection = index % 2 == 0;
            let worker = Worker::new(address, uri.clone(), keeps_connection);
            // The workers take turns, so that requests are spread over each second.
            let first = start + Duration::from_secs(index.into()) / limits.per_second;
            let pace = Pace {
                start,
                first,
                limits,
            };
            workers.spawn(pace.run(worker, report.clone(), stopping.clone()));
        }
        Ok(Self {
            report,
            stopping,
            workers,
        })
    }

    /// The requests that have ended so far.
    #[must_use]
    pub fn report(&self) -> LoadReport {
        let report = self.report.lock();
        report.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether all workers have ended.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        while self.workers.try_join_next().is_some() {}
        self.workers.is_empty()
    }

    /// Sends no further requests, waits for those in progress, and returns how all of them ended.
    pub async fn stop(mut self) -> LoadReport {
        self.stopping.cancel();
        while self.workers.join_next().await.is_some() {}
        self.report()
    }
}

/// The times at which a worker sends its requests.
struct Pace {
    start: Instant,
    first: Instant,
    limits: Limits,
}

impl Pace {
    async fn run(
        self,
        mut worker: Worker,
        report: Arc<Mutex<LoadReport>>,
        stop: CancellationToken,
    ) {
        let period = Duration::from_secs(self.limits.workers.into()) / self.limits.per_second;
        let mut turns = interval_at(self.first, period);
        // A worker that was delayed does not catch up, because that would exceed the rate.
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = self.start + self.limits.longest;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                turn = timeout_at(end, turns.tick()) => if turn.is_err() { return },
            }
            let sent = self.start.elapsed();
            let (outcome, text) = worker.request(self.limits.timeout).await;
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.add(sent, outcome, &text);
        }
    }
}

fn target(url: &str) -> Result<(SocketAddr, Uri)> {
    let expected = || format!("the URL {url:?} must be such as http://127.0.0.1:8080/path");
    let uri: Uri = url.parse().with_context(expected)?;
    let authority = uri.authority().with_context(expected)?;
    let address: SocketAddr = authority.as_str().parse().with_context(expected)?;
    ensure!(
        uri.scheme_str() == Some("http") && address.ip().is_loopback(),
        expected()
    );
    Ok((address, uri))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn url_must_be_plain_http_to_loopback_address() {
        let (address, _) = target("http://127.128.0.1:80/a?b=c").unwrap();
        assert_eq!(address, "127.128.0.1:80".parse().unwrap());
        for other in [
            "https://127.0.0.1:80/",
            "http://localhost:80/",
            "http://192.0.2.1:80/",
            "http://127.0.0.1/",
            "/path",
        ] {
            let error = target(other).unwrap_err().to_string();
            assert!(error.contains(other), "{error}");
        }
    }

    #[test]
    fn load_without_workers_or_rate_is_refused() {
        for limits in [
            Limits {
                workers: 0,
                ..Limits::default()
            },
            Limits {
                per_second: 0,
                ..Limits::default()
            },
        ] {
            let error = Load::start("http://127.0.0.1:9/", limits).unwrap_err();
            assert!(error.to_string().contains("at least 1"), "{error}");
        }
    }
}
