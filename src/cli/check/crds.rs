//! Checks the CustomResourceDefinitions: they exist, have the revision of this program, and are served.

use std::collections::BTreeMap;

use kube::{Client, ResourceExt};
use serde_json::Value;

use super::finding::Finding;
use super::reads::{self, Read};
use crate::api::crd::{CRD_REVISION, all_crds, crd_revision};

const CHECK: &str = "crds";
const APPLY: &str = "Apply the CRDs of this version: operating install, or operating crds | kubectl apply --server-side --force-conflicts -f -";

/// Reads and judges all definitions. If all are well, the result is one finding.
pub async fn check(client: &Client) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names: Vec<String> = all_crds().iter().map(|crd| crd.name_any()).collect();
    for name in &names {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        findings.extend(judge(name, reads::get(client, &path).await));
    }
    if findings.is_empty() {
        let count = names.len();
        findings.push(Finding::ok(
            CHECK,
            format!("{count} CRDs are served, with revision {CRD_REVISION}"),
        ));
    }
    findings
}

/// What is wrong with a definition.
fn judge(name: &str, read: Read) -> Option<Finding> {
    let crd = match read.or_finding(CHECK) {
        Ok(Some(crd)) => crd,
        Ok(None) => {
            return Some(Finding::problem(
                CHECK,
                format!("{name} does not exist"),
                APPLY,
            ));
        }
        Err(finding) => return Some(finding),
    };
    if !crd["metadata"]["deletionTimestamp"].is_null() {
        return Some(Finding::problem(
            CHECK,
            format!("{name} is being deleted, with all objects of its kind"),
            "Nothing can stop the deletion; apply the CRD and the objects again when it is gone",
        ));
    }
    if !is_established(&crd) {
        return Some(Finding::problem(
            CHECK,
            format!("{name} is not served (condition Established)"),
            format!("See kubectl describe crd {name}"),
        ));
    }
    let annotations: Option<BTreeMap<String, String>> =
        serde_json::from_value(crd["metadata"]["annotations"].clone()).ok();
    let revision = crd_revision(annotations.as_ref());
    match revision.cmp(&CRD_REVISION) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Less => {
            let message = match revision {
                0 => format!("{name} has no revision: it is Kuperator's, or somebody else's"),
                _ => format!("{name} has revision {revision}, this version needs {CRD_REVISION}"),
            };
            Some(Finding::problem(CHECK, message, APPLY))
        }
        std::cmp::Ordering::Greater => Some(Finding::warning(
            CHECK,
            format!("{name} has revision {revision}, this program only knows {CRD_REVISION}"),
            "Check with the newer version, and run it on all replicas",
        )),
    }
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == "Established" && c["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::keys;
    use crate::cli::check::finding::State;

    fn crd(revision: Option<u32>, established: &str) -> Value {
        let annotations = revision.map(|r| json!({ (keys::CRD_REVISION): r.to_string() }));
        json!({
            "metadata": { "annotations": annotations },
            "status": { "conditions": [{ "type": "Established", "status": established }] },
        })
    }

    #[test]
    fn older_newer_foreign_and_missing_definitions_differ() {
        let mut ending = crd(Some(CRD_REVISION), "True");
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let state = |read| judge("x", read).map(|finding| finding.state);
        let found = |revision, established| state(Read::Found(crd(revision, established)));
        assert_eq!(found(Some(CRD_REVISION), "True"), None);
        assert_eq!(found(Some(CRD_REVISION), "False"), Some(State::Problem));
        assert_eq!(found(Some(CRD_REVISION - 1), "True"), Some(State::Problem));
        assert_eq!(found(None, "True"), Some(State::Problem));
        assert_eq!(found(Some(CRD_REVISION + 1), "True"), Some(State::Warning));
        assert_eq!(state(Read::Found(ending)), Some(State::Problem));
        assert_eq!(state(Read::Missing), Some(State::Problem));
        assert_eq!(
            state(Read::Forbidden("no".to_owned())),
            Some(State::Forbidden)
        );
        assert_eq!(state(Read::Failed("no".to_owned())), Some(State::Unknown));
    }
}
