//! One judgement of all turns in a namespace.

use std::collections::{BTreeSet, HashMap, HashSet};

use tokio::task::yield_now;

use crate::api::keys::Family;
use crate::cluster::index::{Entry, Index, State};
use crate::cluster::tally::waiting_since;
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::candidates;
use crate::ledger::store::Uid;

/// The index is not read for longer than so many steps take, about a millisecond.
const STEPS_AT_ONCE: usize = 1_000;

/// What one judgement has found.
#[derive(Debug, Default)]
pub struct Round {
    turns: HashSet<Uid>,
    heads: HashMap<Uid, Uid>,
    /// What it took: about so many looks at a Pod, a rule or a claim.
    pub steps: usize,
}

/// The budget of one rule object.
#[derive(Debug, Default)]
pub struct Budget {
    /// How many more Pods it lets go; `None` if it limits none.
    room: Option<u32>,
    /// Whether fewer Pods are available without a claim than the object wants.
    is_overdrawn: bool,
    /// Pods that have had a claim for a while, and may wait although they have it.
    lost: BTreeSet<Uid>,
    /// How many Pods have got a place of `room` in this round.
    given: u32,
}

impl Budget {
    /// A budget of which no place is given yet.
    pub fn new(room: Option<u32>, is_overdrawn: bool, lost: BTreeSet<Uid>) -> Budget {
        Budget {
            room,
            is_overdrawn,
            lost,
            given: 0,
        }
    }

    /// Gives a place to a Pod, if there is one left.
    fn give(&mut self) -> bool {
        let has_room = self.room.is_none_or(|room| self.given < room);
        self.given += u32::from(has_room);
        has_room
    }
}

impl Round {
    /// Whether it is the turn of this waiting Pod by every rule that covers it.
    pub fn is_next(&self, pod: &str) -> bool {
        self.turns.contains(pod)
    }

    /// The longest waiting Pod that could go by the rule object of this UID. A Pod that is down for a moment takes no turn.
    pub fn head(&self, rule: &str) -> Option<&Uid> {
        self.heads.get(rule)
    }

    /// Judges the Pods that wait in a namespace. `measure` is called once for each rule object that a waiting Pod has, and
    /// each Pod is looked at once, so that the work grows with Pods × rules and no faster. The index is read in small
    /// parts: a change in between makes the round stale, and the next one sees it.
    pub async fn judge(
        index: &Index,
        namespace: &str,
        measure: impl Fn(&State, &Entry) -> Budget,
    ) -> Round {
        let mut round = Round::default();
        let (mut budgets, mut waiting) = (HashMap::new(), BTreeSet::new());
        let mut rules = {
            let state = index.read();
            let home = state.namespace(namespace);
            let names = home.into_iter().flat_map(|home| home.rules.keys().cloned());
            names.collect::<Vec<_>>().into_iter()
        };
        while rules.len() > 0 {
            {
                let state = index.read();
                let end = round.steps + STEPS_AT_ONCE;
                while round.steps < end
                    && let Some(rule) = rules.next()
                {
                    let Some(entry) = state.rule(namespace, &rule) else {
                        continue;
                    };
                    round.steps += 1 + entry.tally.waiting().len();
                    if entry.tally.waiting().len() == 0 {
                        continue;
                    }
                    round.steps += entry.snapshot.claims.claims.len();
                    waiting.extend(entry.tally.waiting().cloned());
                    let budget = measure(&state, entry);
                    budgets.insert(entry.snapshot.rules.uid.clone(), budget);
                }
            }
            yield_now().await;
        }
        let mut waiting = longest_first(index, namespace, waiting).into_iter();
        while waiting.len() > 0 {
            {
                let state = index.read();
                let end = round.steps + STEPS_AT_ONCE;
                while round.steps < end
                    && let Some(uid) = waiting.next()
                {
                    if let Some(pod) = state.pod(namespace, &uid) {
                        round.place(&state, uid, pod, &mut budgets);
                    }
                }
            }
            yield_now().await;
        }
        round
    }

    /// Judges one Pod behind all that wait longer.
    ///
    /// A Pod that could not go anyway, because a rule keeps it waiting or has no room at all, does not hold up those behind
    /// it. A Pod that already has a claim needs no room: it would keep the place from all others until the claim lapses.
    /// Nor does a Pod that is down for a moment: its place in the budget is taken by the loss itself. But the budget must
    /// not be overdrawn already: the operation would make the loss last.
    fn place(&mut self, state: &State, uid: Uid, pod: &Pod, budgets: &mut HashMap<Uid, Budget>) {
        let covering: Vec<&Entry> = state.covering(pod).collect();
        let rules = covering.iter().map(|e| e.snapshot.rules.rules.len());
        let operations = candidates(Stage::PreCheck, pod).len().max(1);
        let all = state.namespace(&pod.metadata.namespace);
        let all = all.map_or(0, |home| home.rules.len());
        self.steps += (all + rules.sum::<usize>()) * operations;

        let passes = state.any_passes(Stage::PreCheck, pod);
        let keys: Vec<&Uid> = covering.iter().map(|e| &e.snapshot.rules.uid).collect();
        // A rule object that came during the round has no budget in it: the next round judges its Pods.
        let every = |budgets: &HashMap<Uid, Budget>, is: fn(&Budget) -> bool| {
            keys.iter().all(|key| budgets.get(*key).is_some_and(is))
        };
        if state.is_down_for_a_moment(pod) {
            if passes && every(budgets, |budget| !budget.is_overdrawn) {
                self.turns.insert(uid);
            }
            return;
        }
        let could_go = passes && every(budgets, |budget| budget.room != Some(0));
        let mut is_next = true;
        for key in keys {
            let Some(budget) = budgets.get_mut(key) else {
                is_next = false;
                continue;
            };
            if could_go && !self.heads.contains_key(key) {
                self.heads.insert(key.clone(), uid.clone());
            }
            let has_place = could_go && budget.give();
            is_next &= has_place || budget.lost.contains(&uid);
        }
        // A Pod that is down takes nothing from a budget.
        if is_next || (could_go && !pod.is_available()) {
            self.turns.insert(uid);
        }
    }
}

/// These Pods in the order of [`Tally::waiting`](crate::cluster::tally::Tally::waiting).
fn longest_first(index: &Index, namespace: &str, pods: BTreeSet<Uid>) -> Vec<Uid> {
    let state = index.read();
    let since = |uid: &Uid| {
        let pod = state.pod(namespace, uid)?;
        waiting_since(pod, Family::PreCheck)
    };
    let pods = pods.into_iter();
    let mut all: Vec<_> = pods.filter_map(|uid| Some((since(&uid)?, uid))).collect();
    drop(state);
    all.sort_unstable();
    all.into_iter().map(|(_, uid)| uid).collect()
}

#[cfg(test)]
pub(super) mod tests;
