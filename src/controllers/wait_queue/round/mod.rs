//! One evaluation of the Pods that wait in a namespace.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::yielder::{STEPS_PER_YIELD, Yielder};
use crate::cluster::index::{Index, IndexState, RuleEntry};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::domain::rules::stage::{
    has_immediate_rejection, operation_rejections, stage_candidates,
};
use crate::domain::rules::webhook::EndpointVerdicts;
use crate::ledger::store::Uid;

/// The result of one evaluation.
#[derive(Debug, Default)]
pub struct Round {
    next_pods: HashSet<Uid>,
    first_pods: HashMap<Uid, Uid>,
    /// The number of steps that the round took. A step is about one visit of a Pod, a rule or a claim.
    pub steps: usize,
    /// The largest number of steps between two pauses.
    pub max_burst: usize,
    /// How long the round took, without its pauses.
    pub elapsed: Duration,
}

/// The budget of one rule object.
#[derive(Debug, Default)]
pub struct RoundBudget {
    /// How many more Pods the rule object lets go; `None` if it limits none.
    headroom: Option<u32>,
    /// Whether fewer Pods are available without a claim than the rule object demands.
    is_overdrawn: bool,
    /// Pods that have had a claim for a while, and may still wait because the answer was lost.
    pods_with_lost_claim: BTreeSet<Uid>,
    /// How much of `headroom` the Pods of this round have used.
    used: u32,
}

impl RoundBudget {
    /// A budget whose headroom is unused.
    pub fn new(
        headroom: Option<u32>,
        is_overdrawn: bool,
        pods_with_lost_claim: BTreeSet<Uid>,
    ) -> RoundBudget {
        RoundBudget {
            headroom,
            is_overdrawn,
            pods_with_lost_claim,
            used: 0,
        }
    }

    /// Takes headroom for one Pod, if any is left.
    fn take_headroom(&mut self) -> bool {
        let is_free = self.headroom.is_none_or(|headroom| self.used < headroom);
        self.used += u32::from(is_free);
        is_free
    }
}

impl Round {
    /// Whether this waiting Pod is next by every rule that covers it.
    pub fn is_next(&self, pod: &str) -> bool {
        self.next_pods.contains(pod)
    }

    /// The longest waiting Pod that the rule object with this UID could let go. Pods that are down for a moment are
    /// left out.
    pub fn first_in_line(&self, rule: &str) -> Option<&Uid> {
        self.first_pods.get(rule)
    }

    /// A round without a result.
    #[cfg(test)]
    pub fn with_elapsed(elapsed: Duration) -> Round {
        Round {
            elapsed,
            ..Round::default()
        }
    }

    /// Evaluates the Pods that wait in a namespace. `measure` is called once for each rule object for which a Pod
    /// waits, and each Pod is visited once, so the work is proportional to Pods × rules. The index is locked for short
    /// times only: a change in between makes the round stale, and the next round sees it.
    pub async fn judge_namespace(
        index: &Index,
        namespace: &str,
        measure: impl Fn(&IndexState, &RuleEntry) -> RoundBudget,
    ) -> Round {
        let mut round = Round::default();
        let mut yielder = Yielder::new();
        let mut budgets = HashMap::new();
        let waiting =
            collect_waiting_pods(index, namespace, measure, &mut budgets, &mut yielder).await;
        for uid in waiting {
            let Some(snapshot) =
                WaitingPodSnapshot::from_index(index, namespace, &uid, &mut yielder)
            else {
                continue;
            };
            let passes = snapshot.passes_rules(&mut yielder).await;
            round.judge_pod(index, uid, &snapshot, passes, &mut budgets);
            yielder.yield_if_due().await;
        }
        (round.steps, round.max_burst, round.elapsed) = yielder.into_totals();
        round
    }

    /// Evaluates one Pod behind all Pods that wait longer.
    ///
    /// If a Pod can't go, because a rule rejects it or a budget has no headroom at all, the Pods behind it do not wait
    /// for it. A Pod that already holds a claim does not need headroom; otherwise its part of the budget would stay
    /// unused until the claim lapses. A Pod that is down for a moment needs no headroom either, because the outage
    /// itself uses up the budget. But then the budget must not be overdrawn: an operation would make the outage last
    /// longer. A Pod that is deleted with its CollaSet needs no budget.
    fn judge_pod(
        &mut self,
        index: &Index,
        uid: Uid,
        snapshot: &WaitingPodSnapshot,
        passes: bool,
        budgets: &mut HashMap<Uid, RoundBudget>,
    ) {
        let keys: Vec<&Uid> = snapshot
            .covering
            .iter()
            .map(|(rules, _)| &rules.uid)
            .collect();
        // A rule object that was created during the round has no budget in it. The next round evaluates its Pods.
        let do_all = |budgets: &HashMap<Uid, RoundBudget>, pass: fn(&RoundBudget) -> bool| {
            keys.iter().all(|key| budgets.get(*key).is_some_and(pass))
        };
        if index.read_state().is_deleted_with_collaset(&snapshot.pod) {
            if passes {
                self.next_pods.insert(uid);
            }
            return;
        }
        if index.read_state().is_briefly_down(&snapshot.pod) {
            if passes && do_all(budgets, |budget| !budget.is_overdrawn) {
                self.next_pods.insert(uid);
            }
            return;
        }
        let could_go = passes && do_all(budgets, |budget| budget.headroom != Some(0));
        let mut is_next = true;
        for key in keys {
            let Some(budget) = budgets.get_mut(key) else {
                is_next = false;
                continue;
            };
            if could_go && !self.first_pods.contains_key(key) {
                self.first_pods.insert(key.clone(), uid.clone());
            }
            let has_headroom = could_go && budget.take_headroom();
            is_next &= has_headroom || budget.pods_with_lost_claim.contains(&uid);
        }
        // A Pod that is down uses up no budget.
        if is_next || (could_go && !snapshot.pod.is_available()) {
            self.next_pods.insert(uid);
        }
    }
}

/// The Pods that wait, in the order of [`pre_check_waiting`](crate::cluster::tally::Tally::pre_check_waiting), and the
/// budgets of the rule objects that they wait for.
async fn collect_waiting_pods(
    index: &Index,
    namespace: &str,
    measure: impl Fn(&IndexState, &RuleEntry) -> RoundBudget,
    budgets: &mut HashMap<Uid, RoundBudget>,
    yielder: &mut Yielder,
) -> Vec<Uid> {
    let rules: Vec<String> = {
        let state = index.read_state();
        let namespace = state.namespace(namespace);
        let names = namespace.into_iter().flat_map(|n| n.rules.keys());
        names.cloned().collect()
    };
    // A Pod that begins to wait again during the round is evaluated once, at its last position.
    let mut waiting: HashMap<Uid, u64> = HashMap::new();
    for rule in rules {
        let mut last = None;
        loop {
            let part: Vec<(u64, Uid)> = {
                let state = index.read_state();
                let Some(entry) = state.rule(namespace, &rule) else {
                    break;
                };
                yielder.steps += 1;
                if last.is_none() && entry.tally.pre_check_waiting().len() > 0 {
                    yielder.steps += entry.snapshot.claims.claims.len();
                    let budget = measure(&state, entry);
                    budgets.insert(entry.snapshot.rules.uid.clone(), budget);
                }
                let part = entry.tally.pre_check_waiting_after(last.as_ref());
                part.take(STEPS_PER_YIELD).cloned().collect()
            };
            yielder.steps += part.len();
            yielder.yield_if_due().await;
            let is_last = part.len() < STEPS_PER_YIELD;
            last = part.last().cloned();
            waiting.extend(part.into_iter().map(|(since, uid)| (uid, since)));
            if is_last {
                break;
            }
        }
    }
    let mut waiting: Vec<_> = waiting
        .into_iter()
        .map(|(uid, since)| (since, uid))
        .collect();
    waiting.sort_unstable();
    waiting.into_iter().map(|(_, uid)| uid).collect()
}

/// A waiting Pod and the rule objects that cover it, at one moment. Their evaluation may take as long as objects ×
/// rules × operations, and needs no lock of the index.
struct WaitingPodSnapshot {
    pod: Arc<Pod>,
    covering: Vec<(Arc<RuleSet>, Arc<EndpointVerdicts>)>,
}

impl WaitingPodSnapshot {
    fn from_index(
        index: &Index,
        namespace: &str,
        uid: &str,
        yielder: &mut Yielder,
    ) -> Option<WaitingPodSnapshot> {
        let state = index.read_state();
        let namespace_index = state.namespace(namespace)?;
        let pod = namespace_index.pods.get(uid)?;
        yielder.steps += namespace_index.rules.len();
        let covering = state.rules_covering(pod).map(|entry| {
            (
                Arc::clone(&entry.snapshot.rules),
                Arc::clone(&entry.verdicts),
            )
        });
        Some(WaitingPodSnapshot {
            covering: covering.collect(),
            pod: Arc::clone(pod),
        })
    }

    /// Whether an operation on the Pod is rejected by no rule, as in [`IndexState::has_passing_operation`].
    async fn passes_rules(&self, yielder: &mut Yielder) -> bool {
        let mut candidates = stage_candidates(Stage::PreCheck, &self.pod);
        yielder.steps += candidates.len();
        for (rules, verdicts) in &self.covering {
            yielder.steps += rules.rules.len();
            yielder.yield_if_due().await;
            if has_immediate_rejection(rules, Stage::PreCheck, &self.pod) {
                return false;
            }
            if rules.webhook_rules(Stage::PreCheck).next().is_none() {
                continue;
            }
            let mut passed = Vec::new();
            for candidate in candidates {
                let single = std::slice::from_ref(&candidate);
                if operation_rejections(rules, Stage::PreCheck, &self.pod, single, verdicts)
                    .next()
                    .is_none()
                {
                    passed.push(candidate);
                }
                yielder.steps += rules.rules.len();
                yielder.yield_if_due().await;
            }
            candidates = passed;
        }
        !candidates.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests;
