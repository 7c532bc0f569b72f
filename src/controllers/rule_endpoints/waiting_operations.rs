//! Finds the operations that wait for a webhook rule, and those about which its endpoint may be asked now (ADR 10).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::yield_now;

use crate::cluster::index::{IndexState, RuleEntry};
use crate::controllers::yielder::STEPS_PER_YIELD;
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{has_immediate_rejection, stage_candidates};
use crate::domain::rules::webhook::{CallState, Candidate};
use crate::domain::rules::{CompiledRule, RuleSet};
use crate::ledger::store::Uid;

/// The operations that wait for one rule.
#[derive(Debug, Default)]
pub struct WaitingOperations {
    /// All operations that are subject to the rule.
    pub subject_operations: BTreeSet<Candidate>,
    /// The operations that may be asked about, the longest waiting first.
    pub askable: Vec<Candidate>,
}

/// The Pods that wait for one rule, and the rules of the namespace, at one moment. Their comparison takes time in
/// proportion to Pods × rules, and holds no lock.
pub struct WaitingSnapshot {
    stage: Stage,
    /// All operations that are subject to the rule.
    subject_operations: BTreeSet<Candidate>,
    waiting_pods: Vec<WaitingPod>,
    /// The rule objects of the namespace.
    rule_sets: Vec<Arc<RuleSet>>,
}

struct WaitingPod {
    pod: Arc<Pod>,
    /// Its operations that have passed the earlier webhook rules of the object.
    candidates: Vec<Candidate>,
    /// Whether the operation of the Pod would use up the budgets.
    uses_budget: bool,
    /// Whether the Pod reduces the headroom for the Pods behind it.
    reduces_headroom: bool,
}

impl WaitingSnapshot {
    /// The Pods that wait for `rule`, one of the webhook rules of `entry`.
    pub fn from_entry(
        state: &IndexState,
        entry: &RuleEntry,
        rule: &CompiledRule,
        call_states: &BTreeMap<String, CallState>,
    ) -> WaitingSnapshot {
        let (rules, stage) = (&entry.snapshot.rules, rule.stage);
        let namespace = state.namespace(&rules.namespace);
        let entries = namespace.into_iter().flat_map(|n| n.rules.values());
        let mut snapshot = WaitingSnapshot {
            stage,
            subject_operations: BTreeSet::new(),
            waiting_pods: Vec::new(),
            rule_sets: entries.map(|e| Arc::clone(&e.snapshot.rules)).collect(),
        };
        let call_state = call_states.get(&rule.id);
        for pod in pods_in_stage(state, entry, stage) {
            if !is_subject_to(rules, rule, pod) {
                continue;
            }
            let candidates = stage_candidates(stage, pod);
            snapshot
                .subject_operations
                .extend(candidates.iter().cloned());
            let passes_earlier = |candidate: &Candidate| {
                rules
                    .webhook_rules(stage)
                    .take_while(|(earlier, _)| earlier.id != rule.id)
                    .filter(|(earlier, _)| is_subject_to(rules, earlier, pod))
                    .all(|(earlier, _)| {
                        call_states
                            .get(&earlier.id)
                            .is_some_and(|m| m.has_passed(candidate))
                    })
            };
            let candidates: Vec<_> = candidates.into_iter().filter(passes_earlier).collect();
            let is_refused = |c: &Candidate| call_state.is_some_and(|m| m.is_refused(c));
            // In PostCheck, or if it is unavailable, a Pod uses up no budget.
            let uses_budget = stage == Stage::PreCheck && pod.is_available();
            // A refused Pod is asked about again, and does not reduce the headroom for the Pods behind it.
            let reduces_headroom =
                uses_budget && !candidates.is_empty() && !candidates.iter().all(is_refused);
            snapshot.waiting_pods.push(WaitingPod {
                pod: Arc::clone(pod),
                candidates,
                uses_budget,
                reduces_headroom,
            });
        }
        snapshot
    }

    /// The operations that wait. An operation is askable if only the verdict of the endpoint is missing: no rule that
    /// can be decided at once rejects the operation, the operation has passed the earlier webhook rules of the object,
    /// and the budgets have headroom for it in addition to the askable operations before it. `allowed` is called once
    /// for each rule object.
    pub async fn find_askable(self, allowed: impl Fn(&str) -> Option<u32>) -> WaitingOperations {
        let mut waiting = WaitingOperations {
            subject_operations: self.subject_operations,
            askable: Vec::new(),
        };
        let (mut headroom, mut matched) = (RemainingHeadroom::default(), 0);
        for waiting_pod in self.waiting_pods {
            matched += self.rule_sets.len();
            if matched >= STEPS_PER_YIELD {
                matched = 0;
                yield_now().await;
            }
            let covering = self
                .rule_sets
                .iter()
                .filter(|rules| rules.selects(&waiting_pod.pod));
            let covering: Vec<_> = covering.collect();
            let mut rejects = covering
                .iter()
                .map(|rules| has_immediate_rejection(rules, self.stage, &waiting_pod.pod));
            if rejects.any(|rejects| rejects) {
                continue;
            }
            if waiting_pod.uses_budget
                && !headroom.check_headroom(&allowed, &covering, waiting_pod.reduces_headroom)
            {
                continue;
            }
            waiting.askable.extend(waiting_pod.candidates);
        }
        waiting
    }
}

fn is_subject_to(rules: &RuleSet, rule: &CompiledRule, pod: &Pod) -> bool {
    rules.selector.is_ok()
        && rules
            .applicable_rules(rule.stage, pod)
            .any(|r| r.id == rule.id)
}

fn pods_in_stage<'a>(
    state: &'a IndexState,
    entry: &'a RuleEntry,
    stage: Stage,
) -> Vec<&'a Arc<Pod>> {
    let namespace = &entry.snapshot.rules.namespace;
    let pod = |uid: &Uid| state.pod(namespace, uid);
    match stage {
        Stage::PreCheck => entry.tally.pre_check_waiting().filter_map(pod).collect(),
        Stage::PostCheck => entry.tally.post_check_waiting().filter_map(pod).collect(),
    }
}

/// The remaining headroom, by rule object.
#[derive(Default)]
struct RemainingHeadroom(BTreeMap<String, Option<u32>>);

impl RemainingHeadroom {
    /// Whether all of these rule objects have headroom for one more Pod. If `take` is true, the headroom is reduced.
    fn check_headroom(
        &mut self,
        allowed: impl Fn(&str) -> Option<u32>,
        covering: &[&Arc<RuleSet>],
        take: bool,
    ) -> bool {
        for rules in covering {
            let remaining = self.0.entry(rules.name.clone());
            let remaining = remaining.or_insert_with(|| allowed(&rules.name));
            if *remaining == Some(0) {
                return false;
            }
        }
        for rules in covering.iter().filter(|_| take) {
            if let Some(Some(remaining)) = self.0.get_mut(&rules.name) {
                *remaining -= 1;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;
    use crate::cluster::index::Index;

    const PODS: usize = 100;
    const RULES: usize = 200;

    /// Pods that all wait for the webhook rule `ask` of object `rule-0`, under many rule objects.
    fn index() -> Index {
        let index = Index::default();
        let ask = json!([{ "name": "ask", "webhook": { "clientConfig": { "url": "https://a" } } }]);
        let limit = json!([{ "name": "limit", "availablePolicy": { "maxUnavailableValue": 50 } }]);
        for number in 0..RULES {
            let name = format!("rule-{number}");
            let rules: &Value = if number == 0 { &ask } else { &limit };
            let rule = json!({
                "metadata": { "namespace": "n", "name": name, "uid": name, "generation": 1 },
                "spec": { "selector": {}, "rules": rules },
            });
            index.apply_rule(serde_json::from_value(rule).unwrap());
        }
        for number in 0..PODS {
            let name = format!("pod-{number}");
            let pod = json!({
                "metadata": {
                    "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
                    "labels": {
                        (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1",
                        "operating.podopslifecycle.kusionstack.io/id": "1",
                        "pre-check.podopslifecycle.kusionstack.io/id": (1_000 + number).to_string(),
                        "operation-type.podopslifecycle.kusionstack.io/id": "update",
                    },
                },
                "spec": { "containers": [{ "name": "app" }] },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
            });
            index.apply_pod(serde_json::from_value(pod).unwrap());
        }
        index
    }

    #[tokio::test]
    async fn many_pods_are_compared_with_many_rules_in_small_parts() {
        let (index, measured) = (index(), Cell::new(0));
        let snapshot = {
            let state = index.read_state();
            let entry = state.rule("n", "rule-0").unwrap();
            let rule = &entry.snapshot.rules.rules[0];
            WaitingSnapshot::from_entry(&state, entry, rule, &BTreeMap::new())
        };
        let allowed = |name: &str| {
            measured.set(measured.get() + 1);
            (name != "rule-0").then_some(3)
        };
        let pauses = Cell::new(0);
        let waiting = snapshot.find_askable(allowed);
        tokio::pin!(waiting);
        let operations = std::future::poll_fn(|context| {
            pauses.set(pauses.get() + 1);
            waiting.as_mut().poll(context)
        });
        let operations = operations.await;
        assert_eq!(
            (
                operations.subject_operations.len(),
                operations.askable.len()
            ),
            (PODS, 3)
        );
        let next: Vec<_> = operations.askable.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(next, ["pod-0", "pod-1", "pod-2"]);
        assert_eq!(measured.get(), RULES, "each budget is measured once");
        let parts = PODS * RULES / STEPS_PER_YIELD;
        assert!(pauses.get() >= parts, "{}", pauses.get());
    }
}
