//! Checks the labels of namespaces with rules. The API server sends the webhooks for deletions and evictions only of
//! namespaces with the label.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::Value;

use super::finding::Finding;
use super::reads::{self, Read};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::rules::RuleSet;
use crate::domain::rules::enforcement::NamespaceEnforcement;

const CHECK: &str = "namespaces";

/// Reads all namespaces, and judges the labels of those with rules.
pub async fn check(client: &Client, rules: Read<Vec<Value>>) -> Vec<Finding> {
    match read_and_judge(client, rules).await {
        Ok(findings) => findings,
        Err(finding) => vec![finding],
    }
}

async fn read_and_judge(client: &Client, rules: Read<Vec<Value>>) -> Result<Vec<Finding>, Finding> {
    let rules = rules.or_finding(CHECK)?;
    let namespaces = reads::list(client, "/api/v1/namespaces", None).await;
    let namespaces = namespaces.or_finding(CHECK)?;
    Ok(judge(
        rules.unwrap_or_default(),
        &namespaces.unwrap_or_default(),
    ))
}

fn judge(rules: Vec<Value>, namespaces: &[Value]) -> Vec<Finding> {
    let rules = rules.into_iter();
    let rules = rules.filter_map(|rule| serde_json::from_value::<PodTransitionRule>(rule).ok());
    let mut needed: BTreeMap<String, NamespaceEnforcement> = BTreeMap::new();
    for rule in rules.map(|rule| RuleSet::compile(&rule)) {
        let level = NamespaceEnforcement::for_rules([&rule]);
        let entry = needed.entry(rule.namespace.to_string()).or_default();
        *entry = level.max(*entry);
    }
    let count = needed.len();
    let mut findings: Vec<Finding> = needed
        .into_iter()
        .filter_map(|(namespace, needed)| judge_one(&namespace, needed, namespaces))
        .collect();
    if findings.is_empty() {
        let message = format!("namespaces with rules, all labelled: {count}");
        findings.push(Finding::ok(CHECK, message));
    }
    findings
}

fn judge_one(
    namespace: &str,
    needed: NamespaceEnforcement,
    namespaces: &[Value],
) -> Option<Finding> {
    if keys::EXCLUDED_NAMESPACES.contains(&namespace) {
        return Some(Finding::problem(
            CHECK,
            format!("namespace {namespace} has rules, which hold nothing there"),
            "Move the Pods and their rules to another namespace; this one is excluded from the webhooks",
        ));
    }
    let found = namespaces
        .iter()
        .find(|one| one["metadata"]["name"] == namespace)?;
    let labels: BTreeMap<String, String> =
        serde_json::from_value(found["metadata"]["labels"].clone()).unwrap_or_default();
    if labels.contains_key(keys::NAMESPACE_EXCLUDED) {
        let label = keys::NAMESPACE_EXCLUDED;
        return Some(Finding::problem(
            CHECK,
            format!(
                "namespace {namespace} has rules and the label {label}, so its rules hold nothing"
            ),
            format!(
                "Remove the label if the emergency is over: kubectl label namespace {namespace} {label}-"
            ),
        ));
    }
    let value = needed.label_value()?;
    (NamespaceEnforcement::from_labels(&labels) < needed).then(|| {
        let label = keys::NAMESPACE_ENFORCEMENT;
        Finding::problem(
            CHECK,
            format!("namespace {namespace} has rules and lacks the label {label}={value}, so its rules hold nothing"),
            "The leader writes the label: see the lines about the lease and the rights",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn namespace_with_rules_needs_its_label() {
        let rule = |namespace: &str| {
            json!({
                "metadata": { "name": "r", "namespace": namespace },
                "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            })
        };
        let namespace =
            |labels: Value| vec![json!({ "metadata": { "name": "shop", "labels": labels } })];
        let labelled = namespace(json!({ (keys::NAMESPACE_ENFORCEMENT): "true" }));
        let state = |rules, namespaces: &[Value]| {
            let found = judge(rules, namespaces);
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].state
        };
        assert_eq!(state(vec![rule("shop")], &labelled), State::Ok);
        assert_eq!(state(vec![], &namespace(json!(null))), State::Ok);
        let bare = namespace(json!(null));
        assert_eq!(
            state(vec![rule("shop"), rule("shop")], &bare),
            State::Problem
        );
        assert_eq!(state(vec![rule("kube-system")], &labelled), State::Problem);
        let excluded =
            json!({ (keys::NAMESPACE_ENFORCEMENT): "true", (keys::NAMESPACE_EXCLUDED): "" });
        let excluded = namespace(excluded);
        assert_eq!(state(vec![rule("shop")], &excluded), State::Problem);
    }
}
