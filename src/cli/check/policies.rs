//! Checks that the ValidatingAdmissionPolicies and their bindings exist.

use kube::Client;

use super::finding::Finding;
use super::reads::{self, Read};
use crate::admission::policies::POLICY_NAMES;

const CHECK: &str = "policies";

/// Reads and judges all policies. If all are well, the result is one finding.
pub async fn check(client: &Client) -> Vec<Finding> {
    let mut reads = Vec::new();
    for plural in [
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        for name in POLICY_NAMES {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
            reads.push((format!("{plural} {name}"), reads::get(client, &path).await));
        }
    }
    judge(reads)
}

fn judge(reads: Vec<(String, Read)>) -> Vec<Finding> {
    let mut missing = Vec::new();
    let mut findings = Vec::new();
    for (name, read) in reads {
        match read.or_finding(CHECK) {
            Ok(Some(_)) => {}
            Ok(None) => missing.push(name),
            Err(finding) => findings.push(finding),
        }
    }
    // Whoever may not read one of them may read none.
    findings.dedup_by_key(|finding| finding.state);
    if !missing.is_empty() {
        let names = missing.join(", ");
        findings.push(Finding::problem(
            CHECK,
            format!("missing, so users may write what only the server should write: {names}"),
            "Apply the policies (operating install, kubectl apply -k or helm upgrade)",
        ));
    }
    if findings.is_empty() {
        let count = POLICY_NAMES.len();
        findings.push(Finding::ok(
            CHECK,
            format!("{count} policies and their bindings exist"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn every_missing_policy_is_named_and_hidden_ones_are_not_missing() {
        let found = || Read::Found(Value::Null);
        let hidden = || Read::Forbidden("no".to_owned());
        let judge = |reads: Vec<Read>| {
            let reads = reads.into_iter().enumerate();
            super::judge(reads.map(|(i, read)| (format!("p{i}"), read)).collect())
        };
        assert_eq!(judge(vec![found(), found()])[0].state, State::Ok);
        let missing = judge(vec![Read::Missing, found(), Read::Missing]);
        assert_eq!((missing.len(), missing[0].state), (1, State::Problem));
        assert!(missing[0].message.ends_with(": p0, p2"), "{missing:?}");
        let states: Vec<_> = judge(vec![hidden(), hidden()])
            .iter()
            .map(|found| found.state)
            .collect();
        assert_eq!(states, [State::Forbidden]);
    }
}
