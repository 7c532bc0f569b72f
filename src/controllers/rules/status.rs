//! The status of a PodTransitionRule apart from its ledger: gauges for people and tools, and why Pods wait. Sorted, and
//! written only when it differs; bounded, so that it stays small at any number of Pods.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::webhooks::{self, Memories};
use super::rollouts as held;
use crate::cluster::index::{Entry, Namespace, State};
use crate::cluster::selected;
use crate::domain::lifecycle::Stage;
use crate::domain::pod::{Owner, Pod};
use crate::domain::rules::budget::Gauges;
use crate::domain::rules::effect::{self, Finding, Matches, Place, Silent};
use crate::domain::rules::rollouts;
use crate::domain::rules::stage::{candidates, rejections};
use crate::domain::rules::{Availability, RuleKind};

/// Waiting Pods that are listed with their reasons; `waitingPods` counts all.
pub const MAX_DETAILS: usize = 100;

/// What is known of a rule object besides its counts.
pub struct Facts {
    /// Its namespace.
    pub place: Place,
    /// Which Pods its selector matches.
    pub matches: Matches,
    /// Owners of its Pods that the last look could not read, each as a clause.
    pub unreadable: Vec<String>,
}

/// The fields as a merge patch, if they differ from what is stored, and whether Pods wait for them to be.
pub fn changed(
    state: &State,
    entry: &Entry,
    gauges: Gauges,
    memories: Option<&Memories>,
    facts: &Facts,
    now: Timestamp,
) -> Option<(Value, bool)> {
    let status = entry.object.status.as_ref();
    let stored_states = status.map_or(&[][..], |s| &s.rule_states);
    let states = webhooks::states(memories, stored_states);
    let urgent = webhooks::tell_more(&states, stored_states);
    let rules = &entry.snapshot.rules;
    // A limit that nothing keeps, or a limit of no Pods, would read as a budget that is used up.
    let limited = rules.limits().next().is_some()
        && gauges.expected > 0
        && facts.place == Place::default()
        && facts.matches != Matches::FilteredOut;
    let named = |owner: &Arc<Owner>| format!("{} {}", owner.kind, owner.name);
    let silent = Silent {
        unreadable: facts.unreadable.clone(),
        unset: entry.tally.unset_owners().map(named).collect(),
        unknown: entry.tally.unknown_owners().map(named).collect(),
    };
    let allowed = match silent.denies_all() {
        true => 0,
        false => gauges.allowed,
    };
    let allowed = limited.then_some(allowed);
    let wanted = json!({
        "observedGeneration": rules.generation,
        "expectedPods": gauges.expected,
        "availablePods": gauges.available,
        "unavailablePods": gauges.unavailable,
        "unavailableLimit": limited.then_some(gauges.limit),
        "disruptionsAllowed": allowed,
        "waitingPods": gauges.waiting,
        "details": details(state, entry, gauges, memories),
        "ruleStates": states,
    });
    let stored = serde_json::to_value(entry.object.status.clone().unwrap_or_default()).ok()?;
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let home = state.namespace(&rules.namespace);
    let rollouts = home.filter(|_| limited);
    let rollouts = rollouts.map_or_else(Vec::new, |home| held::all(home, entry, gauges));
    let partly = home.filter(|_| limited && facts.matches == Matches::Managed);
    let partly = partly.and_then(|home| effect::partly_matched(partly_selected(home, entry)));
    let matched = partly.unwrap_or_else(|| effect::matched(rules, &facts.matches));
    let conditions = [
        Some(("Enforced", effect::enforced(rules, &facts.place))),
        Some(("Matched", matched)),
        effect::expected_known(rules, silent).map(|found| ("ExpectedKnown", found)),
        rollouts::condition(rules, &rollouts).map(|found| ("RolloutsHeld", found)),
    ];
    let conditions: Vec<_> = conditions
        .into_iter()
        .flatten()
        .map(|(type_, finding)| {
            condition(
                &stored["conditions"],
                type_,
                &finding,
                rules.generation,
                &now,
            )
        })
        .collect();
    let same_conditions = stored["conditions"] == json!(conditions);
    let fields = wanted.as_object()?;
    let same = fields
        .iter()
        .all(|(k, v)| stored.get(k).cloned().unwrap_or_else(|| default(v)) == *v);
    if same && same_conditions {
        return None;
    }
    let mut patch = wanted;
    patch["updateTime"] = json!(now);
    patch["conditions"] = json!(conditions);
    Some((patch, urgent))
}

/// Owners that ask for more Pods than are selected, and whose template makes Pods that are not; each as `Kind name`.
fn partly_selected(home: &Namespace, entry: &Entry) -> Vec<String> {
    let rules = &entry.snapshot.rules;
    let owners = entry.tally.owners();
    let owners = owners.filter_map(|uid| Some((uid, home.workload(uid)?)));
    let partly = owners.filter(|(uid, owner)| {
        // Something may label the Pods after the owner has made them.
        let selected = || home.owned_by(uid).filter(|pod| rules.selects(pod)).count();
        let asked = owner.replicas.and_then(|n| usize::try_from(n).ok());
        !selected::is_selected(rules, owner) && asked.is_some_and(|n| selected() < n)
    });
    partly
        .map(|(_, owner)| format!("{} {}", owner.kind.name(), owner.name))
        .collect()
}

/// A condition. It keeps the time of its last transition while its status stays.
fn condition(stored: &Value, type_: &str, finding: &Finding, generation: i64, now: &str) -> Value {
    let mut all = stored.as_array().into_iter().flatten();
    let since = all
        .find(|c| c["type"] == type_ && c["status"] == finding.status)
        .and_then(|c| c["lastTransitionTime"].as_str())
        .unwrap_or(now);
    json!({
        "type": type_, "status": finding.status, "reason": finding.reason, "message": finding.message,
        "observedGeneration": generation, "lastTransitionTime": since,
    })
}

/// What an absent field counts as. All numbers but those that may be absent are always there.
fn default(like: &Value) -> Value {
    match like {
        Value::Array(_) => json!([]),
        _ => Value::Null,
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cluster::index::Index;

    fn rule(status: Value) -> Value {
        json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule", "generation": 1 },
            "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            "status": status,
        })
    }

    /// What is written over `stored` if these owners can't be read.
    fn written(stored: Value, unreadable: &[&str]) -> Option<Value> {
        let index = Index::default();
        index.apply_rule(serde_json::from_value(rule(stored)).unwrap());
        let gauges = Gauges {
            expected: 3,
            base: 3,
            available: 3,
            limit: 1,
            allowed: 1,
            ..Gauges::default()
        };
        let facts = Facts {
            place: Place::default(),
            matches: Matches::Managed,
            unreadable: unreadable.iter().map(|&s| s.to_owned()).collect(),
        };
        let state = index.read();
        let entry = state.rule("n", "web").unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        changed(&state, entry, gauges, None, &facts, now).map(|(patch, _)| patch)
    }

    #[test]
    fn unreadable_owner_allows_nothing_and_is_written_once() {
        let first = written(
            json!({}),
            &["Rollout b can't be read: x", "Rollout a can't be read: y"],
        );
        let first = first.unwrap();
        assert_eq!(first["disruptionsAllowed"], 0);
        let conditions = first["conditions"].as_array().unwrap();
        let known = conditions.iter().find(|c| c["type"] == "ExpectedKnown");
        let known = known.unwrap();
        assert_eq!(
            (&known["status"], &known["reason"]),
            (&json!("False"), &json!("OwnerUnreadable"))
        );
        // The reads end in another order at each look.
        let again = written(
            first.clone(),
            &["Rollout a can't be read: y", "Rollout b can't be read: x"],
        );
        assert_eq!(again, None);
        let readable = written(first, &[]).unwrap();
        assert_eq!(readable["disruptionsAllowed"], 1);
    }
}
