//! Checks that the ValidatingAdmissionPolicies and their bindings exist.

use kube::Client;

use super::finding::Finding;
use super::reads::{self, Read};
use crate::admission::policies::POLICY_NAMES;

const CHECK: &str = "policies";

/// Reads and judges all policies. If all are well, the result is one finding.
pub async fn check(client: &Client) -> Vec<Finding> {
    let mut findings = Vec::new();
    for plural in [
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        for name in POLICY_NAMES {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
            findings.extend(judge(plural, name, reads::get(client, &path).await));
        }
    }
    // Whoever may not read one of them may read none.
    findings.dedup_by_key(|finding| (finding.state, finding.remedy.clone()));
    if findings.is_empty() {
        let count = POLICY_NAMES.len();
        findings.push(Finding::ok(
            CHECK,
            format!("{count} policies and their bindings exist"),
        ));
    }
    findings
}

fn judge(plural: &str, name: &str, read: Read) -> Option<Finding> {
    match read.or_finding(CHECK) {
        Ok(Some(_)) => None,
        Ok(None) => Some(Finding::problem(
            CHECK,
            format!(
                "{plural} {name} does not exist, so users may write what only the server should write"
            ),
            "Apply the policies (operating install, kubectl apply -k or helm upgrade)",
        )),
        Err(finding) => Some(finding),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn missing_policy_is_a_problem_and_hidden_one_is_not() {
        let state = |read| judge("p", "n", read).map(|finding| finding.state);
        assert_eq!(state(Read::Found(Value::Null)), None);
        assert_eq!(state(Read::Missing), Some(State::Problem));
        assert_eq!(
            state(Read::Forbidden("no".to_owned())),
            Some(State::Forbidden)
        );
    }
}
