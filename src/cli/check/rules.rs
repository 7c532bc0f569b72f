//! Checks what the leader says of the PodTransitionRules in their conditions.

use serde_json::Value;

use super::finding::{Finding, State};
use super::reads::Read;

const CHECK: &str = "rules";
/// With more rules than this in one state, the finding has only their number after these.
const NAMED: usize = 5;

/// The reason of the condition `Enforced` when the object asks for nothing.
const NO_RULES: &str = "NoRules";

/// A status of a condition that somebody should look at.
struct BadStatus {
    condition: &'static str,
    status: &'static str,
    /// Whether this reason is meant.
    is_meant: fn(&str) -> bool,
    severity: State,
}

impl BadStatus {
    const fn new(condition: &'static str, status: &'static str, severity: State) -> BadStatus {
        BadStatus {
            condition,
            status,
            is_meant: |_| true,
            severity,
        }
    }
}

const BAD_STATUSES: [BadStatus; 9] = [
    BadStatus {
        is_meant: |reason| reason != NO_RULES,
        ..BadStatus::new("Enforced", "False", State::Problem)
    },
    BadStatus {
        is_meant: |reason| reason == NO_RULES,
        ..BadStatus::new("Enforced", "False", State::Warning)
    },
    BadStatus::new("LedgerUsable", "False", State::Problem),
    BadStatus::new("ExpectedKnown", "False", State::Warning),
    BadStatus::new("EndpointsAnswer", "False", State::Warning),
    BadStatus::new("RolloutsHeld", "True", State::Warning),
    BadStatus {
        is_meant: |reason| reason == "RecreateUnderRule",
        ..BadStatus::new("RolloutsHeld", "False", State::Warning)
    },
    BadStatus::new("Matched", "False", State::Warning),
    BadStatus {
        is_meant: |reason| reason == "TemplateNotMatched",
        ..BadStatus::new("Matched", "True", State::Warning)
    },
];

/// Judges the conditions of all rules. If all are well, the result is one finding.
pub fn judge(rules: Read<Vec<Value>>) -> Vec<Finding> {
    let rules = match rules.or_finding(CHECK) {
        Ok(rules) => rules.unwrap_or_default(),
        Err(finding) => return vec![finding],
    };
    let mut findings: Vec<Finding> = BAD_STATUSES
        .iter()
        .filter_map(|bad| judge_condition(&rules, bad))
        .chain(judge_generations(&rules))
        .collect();
    if findings.is_empty() {
        let message = format!("rules whose conditions are well, all: {}", rules.len());
        findings.push(Finding::ok(CHECK, message));
    }
    findings
}

fn judge_condition(rules: &[Value], bad: &BadStatus) -> Option<Finding> {
    let found = rules.iter().filter_map(|rule| {
        let conditions = rule["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|found| {
            found["type"] == bad.condition
                && found["status"] == bad.status
                && found["reason"].as_str().is_some_and(bad.is_meant)
        })?;
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        Some(format!(
            "{}: {} ({})",
            name(rule),
            text("message"),
            text("reason")
        ))
    });
    let listed = listed(found.collect())?;
    let message = format!("{} is {} for {listed}", bad.condition, bad.status);
    let remedy =
        "See kubectl describe ptr NAME -n NAMESPACE, and docs/rule-status.md for each reason";
    Some(match bad.severity {
        State::Problem => Finding::problem(CHECK, message, remedy),
        _ => Finding::warning(CHECK, message, remedy),
    })
}

/// A rule that the leader has not read yet holds already; only its status is old.
fn judge_generations(rules: &[Value]) -> Option<Finding> {
    let old = rules.iter().filter(|rule| {
        let observed = rule["status"]["observedGeneration"].as_i64().unwrap_or(0);
        rule["metadata"]["generation"].as_i64() > Some(observed)
    });
    let message = format!(
        "the status is older than the spec of {}",
        listed(old.map(name).collect())?
    );
    let remedy = "The leader writes the status: see the lines about the lease and the rights";
    Some(Finding::warning(CHECK, message, remedy))
}

/// The first texts, and how many others there are. None for no text.
fn listed(mut texts: Vec<String>) -> Option<String> {
    let count = texts.len();
    texts.truncate(NAMED);
    let first = texts.join("; ");
    match count {
        0 => None,
        _ if count > NAMED => Some(format!("{first}; and {} others", count - NAMED)),
        _ => Some(first),
    }
}

fn name(rule: &Value) -> String {
    let part = |field: &str| rule["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(name: &str, observed: i64, condition: [&str; 2]) -> Value {
        rule_because(name, observed, condition, "Why")
    }

    fn rule_because(name: &str, observed: i64, condition: [&str; 2], reason: &str) -> Value {
        let [kind, status] = condition;
        json!({
            "metadata": { "name": name, "namespace": "shop", "generation": 2 },
            "status": { "observedGeneration": observed, "conditions": [
                { "type": "Matched", "status": "True", "reason": "PodsMatched" },
                { "type": kind, "status": status, "reason": reason, "message": "so it is" },
            ] },
        })
    }

    fn judged(rules: Vec<Value>) -> Vec<(State, String)> {
        let findings = judge(Read::Found(rules));
        findings
            .into_iter()
            .map(|found| (found.state, found.message))
            .collect()
    }

    #[test]
    fn bad_conditions_are_named_and_good_ones_are_counted() {
        let fine = rule("a", 2, ["Enforced", "True"]);
        let all_well = "rules whose conditions are well, all: 1".to_owned();
        assert_eq!(judged(vec![fine.clone()]), [(State::Ok, all_well)]);
        let found = judged(vec![fine, rule("b", 2, ["Enforced", "False"])]);
        let problem = "Enforced is False for shop/b: so it is (Why)".to_owned();
        assert_eq!(found, [(State::Problem, problem)]);
        let held = rule("b", 2, ["RolloutsHeld", "True"]);
        let without_rules = rule_because("b", 2, ["Enforced", "False"], NO_RULES);
        let next_rollout = rule_because("b", 2, ["RolloutsHeld", "False"], "RecreateUnderRule");
        for warned in [held, without_rules, next_rollout] {
            assert_eq!(judged(vec![warned])[0].0, State::Warning);
        }
    }

    #[test]
    fn rule_that_matches_no_pod_is_a_warning() {
        let mut misspelt = rule("b", 2, ["Enforced", "True"]);
        misspelt["status"]["conditions"][0] = json!({ "type": "Matched", "status": "False", "reason": "NoPodsMatched", "message": "none" });
        let message = "Matched is False for shop/b: none (NoPodsMatched)".to_owned();
        assert_eq!(judged(vec![misspelt]), [(State::Warning, message)]);
    }

    #[test]
    fn old_status_is_a_warning() {
        let never = json!({ "metadata": { "name": "new", "namespace": "shop", "generation": 1 } });
        let old = rule("old", 1, ["Enforced", "True"]);
        let message = "the status is older than the spec of shop/new; shop/old".to_owned();
        assert_eq!(judged(vec![never, old]), [(State::Warning, message)]);
    }

    #[test]
    fn many_rules_are_counted_and_hidden_ones_are_not_well() {
        let many = (0..8).map(|i| rule(&format!("r{i}"), 1, ["Enforced", "True"]));
        let found = judged(many.collect());
        assert!(found[0].1.ends_with("shop/r4; and 3 others"), "{found:?}");
        let hidden = judge(Read::Forbidden("no".to_owned()));
        assert_eq!(hidden[0].state, State::Forbidden);
    }
}
