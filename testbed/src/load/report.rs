//! How the requests of a load ended.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Number of failures that a report describes. All failures are counted.
const DESCRIBED: usize = 10;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A status below 400, and the whole body.
    Ok,
    /// A status of 500 or more.
    ServerError,
    /// Another status.
    ClientError,
    /// No connection was made.
    ConnectError,
    /// The connection ended before the answer was complete.
    Cut,
    /// The answer was not complete in time.
    Timeout,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ServerError => "status 500 or more",
            Outcome::ClientError => "status 4xx",
            Outcome::ConnectError => "no connection",
            Outcome::Cut => "connection cut",
            Outcome::Timeout => "timeout",
        }
    }
}

/// A request that was not answered as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Time from the start of the load to the start of the request.
    pub sent: Duration,
    /// How the request ended.
    pub outcome: Outcome,
    /// The error, or the status and the beginning of the body.
    pub text: String,
}

/// The requests of a load that have ended. Its `Display` is one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Number of requests by outcome. An outcome that did not occur is absent.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// The first failures, at most 10.
    pub failures: Vec<Failure>,
    /// Number of successful requests by the body of the answer, which is the name of the Pod.
    pub pods: BTreeMap<String, u64>,
}

impl LoadReport {
    /// Number of requests.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Number of successful requests.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.count(Outcome::Ok)
    }

    /// Number of all other requests.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.sent() - self.succeeded()
    }

    /// Number of requests with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or_default()
    }

    /// Adds a request. `text` is the body if it succeeded, and the reason otherwise.
    pub(super) fn add(&mut self, sent: Duration, outcome: Outcome, text: &str) {
        *self.outcomes.entry(outcome).or_default() += 1;
        if outcome == Outcome::Ok {
            *self.pods.entry(text.to_owned()).or_default() += 1;
        } else if self.failures.len() < DESCRIBED {
            self.failures.push(Failure {
                sent,
                outcome,
                text: text.to_owned(),
            });
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, failed, pods) = (self.sent(), self.failed(), self.pods.len());
        write!(
            f,
            "{sent} requests, {failed} failed, answered by {pods} Pods"
        )?;
        for (outcome, count) in &self.outcomes {
            write!(f, "; {}: {count}", outcome.name())?;
        }
        if let Some(first) = self.failures.first() {
            let (after, what) = (first.sent.as_secs_f64(), first.outcome.name());
            let text = first.text.escape_debug();
            write!(f, "; first failure after {after:.3} s: {what}: {text}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_by_outcome_and_names_first_failure() {
        let mut report = LoadReport::default();
        let at = Duration::from_millis;
        report.add(at(5), Outcome::Ok, "web-a");
        report.add(at(10), Outcome::Ok, "web-b");
        report.add(at(15), Outcome::Ok, "web-a");
        for n in 0..20 {
            report.add(at(20 + n), Outcome::Cut, &format!("reason\n{n}"));
        }
        report.add(at(90), Outcome::ServerError, "502");
        assert_eq!(
            (report.sent(), report.succeeded(), report.failed()),
            (24, 3, 21)
        );
        assert_eq!(report.count(Outcome::Timeout), 0);
        assert_eq!(report.pods["web-a"], 2);
        assert_eq!(report.failures.len(), DESCRIBED);
        assert_eq!(
            report.to_string(),
            "24 requests, 21 failed, answered by 2 Pods; ok: 3; status 500 or more: 1; connection cut: 20; first \
             failure after 0.020 s: connection cut: reason\\n0"
        );
    }
}
