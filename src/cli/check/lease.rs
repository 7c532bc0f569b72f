//! Checks that a leader holds the Lease and renews it.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::time::sleep;

use super::clock::TOLERANCE_SECONDS;
use super::finding::Finding;
use super::reads::{self, Read};
use crate::cli::install::names;

const CHECK: &str = "lease";
/// A leader renews every two seconds. A Lease may be taken after 15 seconds.
const WATCHED: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const START: &str = "Start the server, and see its log: it says why it does not lead";

/// Reads the Lease. If its time looks wrong, looks whether it changes, because the clock of the leader may be wrong.
pub async fn check(client: &Client, namespace: &str, now: Timestamp) -> Vec<Finding> {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{}",
        names::LEASE
    );
    let first = reads::get(client, &path).await;
    let Judged::TimeIsWrong(age) = judge(namespace, &first, now) else {
        return judge(namespace, &first, now).into_findings();
    };
    let mut waited = Duration::ZERO;
    while waited < WATCHED {
        sleep(POLL_INTERVAL).await;
        waited += POLL_INTERVAL;
        let later = reads::get(client, &path).await;
        if let (Read::Found(first), Read::Found(later)) = (&first, &later)
            && later["spec"]["renewTime"] != first["spec"]["renewTime"]
            && !holder(later).is_empty()
        {
            return vec![
                Finding::ok(CHECK, held(namespace, later)),
                wrong_clock(later, age),
            ];
        }
    }
    let holder = match &first {
        Read::Found(lease) => holder(lease),
        _ => "",
    };
    let message = format!(
        "{holder} has not renewed Lease {namespace}/{} for {age} s",
        names::LEASE
    );
    vec![Finding::problem(CHECK, message, START)]
}

enum Judged {
    Finding(Finding),
    /// Somebody holds it, and its time is this many seconds ago.
    TimeIsWrong(i64),
}

impl Judged {
    fn into_findings(self) -> Vec<Finding> {
        match self {
            Judged::Finding(finding) => vec![finding],
            Judged::TimeIsWrong(_) => Vec::new(),
        }
    }
}

fn judge(namespace: &str, read: &Read, now: Timestamp) -> Judged {
    let lease = match read.clone().or_finding(CHECK) {
        Ok(lease) => lease.unwrap_or_default(),
        Err(finding) => return Judged::Finding(finding),
    };
    if holder(&lease).is_empty() {
        let message = format!(
            "nobody holds Lease {namespace}/{}, so no controller works",
            names::LEASE
        );
        return Judged::Finding(Finding::problem(CHECK, message, START));
    }
    let renewed = lease["spec"]["renewTime"].as_str();
    let Some(renewed) = renewed.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return Judged::TimeIsWrong(0);
    };
    let age = now.duration_since(renewed).as_secs();
    let allowed = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(15);
    match (-TOLERANCE_SECONDS..=allowed).contains(&age) {
        true => Judged::Finding(Finding::ok(CHECK, held(namespace, &lease))),
        false => Judged::TimeIsWrong(age),
    }
}

fn held(namespace: &str, lease: &Value) -> String {
    format!(
        "{} holds Lease {namespace}/{} and renews it",
        holder(lease),
        names::LEASE
    )
}

fn wrong_clock(lease: &Value, age: i64) -> Finding {
    let side = if age > 0 { "behind" } else { "ahead of" };
    Finding::warning(
        "clock",
        format!(
            "the clock of {} is about {} s {side} the API server's",
            holder(lease),
            age.abs()
        ),
        "Synchronise the clocks of the nodes (NTP): certificates and logs depend on them",
    )
}

fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn lease_must_be_held_and_fresh() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str| {
            let spec = json!({ "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 });
            Read::Found(json!({ "spec": spec }))
        };
        let state = |read| match judge("home", &read, now) {
            Judged::Finding(finding) => Some(finding.state),
            Judged::TimeIsWrong(_) => None,
        };
        assert_eq!(
            state(lease("a", "2026-01-01T11:59:58.000000Z")),
            Some(State::Ok)
        );
        assert_eq!(state(lease("a", "2026-01-01T11:59:00.000000Z")), None);
        assert_eq!(state(lease("a", "2026-01-01T12:01:00.000000Z")), None);
        assert_eq!(
            state(lease("", "2026-01-01T11:59:58.000000Z")),
            Some(State::Problem)
        );
        assert_eq!(state(Read::Missing), Some(State::Problem));
        assert_eq!(
            state(Read::Forbidden("no".to_owned())),
            Some(State::Forbidden)
        );
    }

    #[test]
    fn leader_with_a_wrong_clock_is_named() {
        let lease = json!({ "spec": { "holderIdentity": "a" } });
        assert!(
            wrong_clock(&lease, 60)
                .message
                .contains("a is about 60 s behind")
        );
        assert!(wrong_clock(&lease, -60).message.contains("60 s ahead of"));
    }
}
