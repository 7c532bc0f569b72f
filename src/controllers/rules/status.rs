//! The status of a PodTransitionRule apart from its ledger: gauges for people and tools, and why Pods wait. Sorted, and
//! written only when it differs; bounded, so that it stays small at any number of Pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::webhooks::{self, Memories};
use crate::cluster::index::{Entry, State};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::budget::Gauges;
use crate::domain::rules::stage::{candidates, rejections};
use crate::domain::rules::{Availability, RuleKind};

/// Waiting Pods that are listed with their reasons; `waitingPods` counts all.
pub const MAX_DETAILS: usize = 100;

/// The fields as a merge patch, if they differ from what is stored, and whether Pods wait for them to be.
pub fn changed(
    state: &State,
    entry: &Entry,
    gauges: Gauges,
    memories: Option<&Memories>,
    now: Timestamp,
) -> Option<(Value, bool)> {
    let status = entry.object.status.as_ref();
    let stored_states = status.map_or(&[][..], |s| &s.rule_states);
    let states = webhooks::states(memories, stored_states);
    let urgent = webhooks::tell_more(&states, stored_states);
    let wanted = json!({
        "observedGeneration": entry.snapshot.rules.generation,
        "expectedPods": gauges.expected,
        "availablePods": gauges.available,
        "unavailablePods": gauges.unavailable,
        "unavailableLimit": gauges.limit,
        "disruptionsAllowed": gauges.allowed,
        "waitingPods": gauges.waiting,
        "details": details(state, entry, gauges, memories),
        "ruleStates": states,
    });
    let stored = serde_json::to_value(entry.object.status.clone().unwrap_or_default()).ok()?;
    let (status, reason, message) = enforced(entry);
    let condition = stored
        .get("conditions")
        .and_then(Value::as_array)
        .and_then(|all| all.iter().find(|c| c["type"] == "Enforced"));
    let generation = entry.snapshot.rules.generation;
    let same_condition = condition.is_some_and(|c| {
        c["status"] == status
            && c["reason"] == reason
            && c["message"] == message
            && c["observedGeneration"] == generation
    });
    let fields = wanted.as_object()?;
    let same = fields
        .iter()
        .all(|(k, v)| stored.get(k).cloned().unwrap_or_else(|| default(v)) == *v);
    if same && same_condition {
        return None;
    }
    let since = condition
        .filter(|c| c["status"] == status)
        .and_then(|c| c["lastTransitionTime"].as_str());
    let since = since.map_or_else(
        || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        str::to_owned,
    );
    let mut patch = wanted;
    patch["updateTime"] = json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    patch["conditions"] = json!([{
        "type": "Enforced", "status": status, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": since,
    }]);
    Some((patch, urgent))
}

/// What an absent field counts as.
fn default(like: &Value) -> Value {
    match like {
        Value::Array(_) => json!([]),
        Value::Number(_) => json!(0),
        _ => Value::Null,
    }
}

/// Status, reason and message of the condition `Enforced`.
fn enforced(entry: &Entry) -> (&'static str, &'static str, String) {
    let rules = &entry.snapshot.rules;
    let mut broken: Vec<String> = rules.selector.as_ref().err().cloned().into_iter().collect();
    broken.extend(rules.rules.iter().filter_map(|r| match &r.kind {
        RuleKind::Broken(why) => Some(why.clone()),
        _ => None,
    }));
    if !broken.is_empty() {
        return (
            "False",
            "Invalid",
            format!(
                "the Pods are held until this is mended: {}",
                broken.join("; ")
            ),
        );
    }
    (
        "True",
        "Enforced",
        "every disruption that passes the API server is held at admission".to_owned(),
    )
}

/// Why Pods wait, sorted by name.
fn details(state: &State, entry: &Entry, gauges: Gauges, memories: Option<&Memories>) -> Value {
    let rules = &entry.snapshot.rules;
    let pre = entry
        .tally
        .waiting()
        .take(MAX_DETAILS)
        .map(|uid| (uid, Stage::PreCheck));
    let post = entry
        .tally
        .post_waiting()
        .take(MAX_DETAILS)
        .map(|uid| (uid, Stage::PostCheck));
    let mut all: Vec<_> = pre
        .chain(post)
        .filter_map(|(uid, stage)| Some((state.pod(&rules.namespace, uid)?, stage)))
        .collect();
    all.sort_by(|a, b| (&a.0.metadata.name, a.1).cmp(&(&b.0.metadata.name, b.1)));
    all.truncate(MAX_DETAILS);
    all.into_iter()
        .map(|(pod, stage)| detail(entry, gauges, memories, pod, stage))
        .collect()
}

fn detail(
    entry: &Entry,
    gauges: Gauges,
    memories: Option<&Memories>,
    pod: &Pod,
    stage: Stage,
) -> Value {
    let rules = &entry.snapshot.rules;
    let rejections = rejections(rules, stage, pod, &entry.verdicts);
    let passed: Vec<&str> = rules
        .applying(stage, pod)
        .filter(|rule| !matches!(rule.kind, RuleKind::Availability(_)))
        .map(|rule| rule.id.as_str())
        .filter(|id| {
            rejections
                .iter()
                .all(|r| r.rule != *id && !r.rule.is_empty())
        })
        .collect();
    let waiting = candidates(stage, pod);
    let mut rejected: Vec<Value> = rejections
        .into_iter()
        .map(|r| {
            let said = waiting
                .iter()
                .find_map(|c| webhooks::reason(memories, &r.rule, c));
            json!({ "ruleName": r.rule, "reason": said.unwrap_or(r.reason) })
        })
        .collect();
    if stage == Stage::PreCheck
        && let Availability::Held(held) = rules.availability(pod)
    {
        rejected.extend(held.into_iter().map(|(name, limits)| {
            // The wording is Kuperator's (contract 5.3).
            let limit = gauges.expected.saturating_sub(limits.desired(gauges.size()));
            let reason = format!(
                "blocked by max unavailable policy: [max unavailable]={limit}/{}, [current unavailable]={}/{}",
                gauges.expected, gauges.unavailable, gauges.expected
            );
            json!({ "ruleName": name, "reason": reason })
        }));
    }
    let mut detail = json!({ "name": pod.metadata.name, "stage": stage.as_str(), "passed": rejected.is_empty() });
    if !passed.is_empty() {
        detail["passedRules"] = json!(passed);
    }
    if !rejected.is_empty() {
        detail["rejectInfo"] = json!(rejected);
    }
    detail
}
