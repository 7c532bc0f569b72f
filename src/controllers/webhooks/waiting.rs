//! Which operations wait for a webhook rule, and about which of them its endpoint may be asked now (ADR 10).

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Context, room};
use crate::cluster::index::{Entry, State};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{candidates, rejects_at_once};
use crate::domain::rules::webhook::{Candidate, Memory};
use crate::domain::rules::{Rule, RuleSet};
use crate::ledger::store::Uid;

/// The operations that wait for one rule.
#[derive(Debug, Default)]
pub struct Waiting {
    /// All that are subject to it.
    pub staying: BTreeSet<Candidate>,
    /// Those that may be asked about, the longest waiting first.
    pub askable: Vec<Candidate>,
}

/// The operations that wait for `rule`, one of the webhook rules of `entry`. Asked about is who would pass if the
/// endpoint lets it: no rule that can be decided at once keeps it waiting, the earlier webhook rules of the object have
/// let it pass, and the budgets have room for it beside those that are asked about before it.
pub fn of(
    context: &Context,
    state: &State,
    entry: &Entry,
    rule: &Rule,
    memories: &BTreeMap<String, Memory>,
) -> Waiting {
    let (rules, stage) = (&entry.snapshot.rules, rule.stage);
    let mut waiting = Waiting::default();
    let mut rooms = Rooms::default();
    for pod in pods(state, entry, stage) {
        if !is_subject(rules, rule, pod) {
            continue;
        }
        let own = candidates(stage, pod);
        waiting.staying.extend(own.iter().cloned());
        let covering: Vec<_> = state.covering(pod).collect();
        if covering
            .iter()
            .any(|e| rejects_at_once(&e.snapshot.rules, stage, pod))
        {
            continue;
        }
        let passes_earlier = |candidate: &Candidate| {
            rules
                .webhooks(stage)
                .take_while(|(earlier, _)| earlier.id != rule.id)
                .filter(|(earlier, _)| is_subject(rules, earlier, pod))
                .all(|(earlier, _)| {
                    memories
                        .get(&earlier.id)
                        .is_some_and(|m| m.has_passed(candidate))
                })
        };
        let own: Vec<_> = own.into_iter().filter(passes_earlier).collect();
        let memory = memories.get(&rule.id);
        let refused = |c: &Candidate| memory.is_some_and(|m| m.is_refused(c));
        // In PostCheck, and where it is down, a Pod takes nothing from a budget.
        let takes = stage == Stage::PreCheck && pod.is_available();
        // Who was refused is asked again, and keeps nobody behind it waiting.
        let counts = takes && !own.is_empty() && !own.iter().all(refused);
        if takes && !rooms.has(context, state, &covering, counts) {
            continue;
        }
        waiting.askable.extend(own);
    }
    waiting
}

fn is_subject(rules: &RuleSet, rule: &Rule, pod: &Pod) -> bool {
    rules.selector.is_ok() && rules.applying(rule.stage, pod).any(|r| r.id == rule.id)
}

fn pods<'a>(state: &'a State, entry: &'a Entry, stage: Stage) -> Vec<&'a Pod> {
    let namespace = &entry.snapshot.rules.namespace;
    let pod = |uid: &Uid| state.pod(namespace, uid).map(|pod| &**pod);
    match stage {
        Stage::PreCheck => entry.tally.waiting().filter_map(pod).collect(),
        Stage::PostCheck => entry.tally.post_waiting().filter_map(pod).collect(),
    }
}

/// What is left of the budgets, by rule object.
#[derive(Default)]
struct Rooms(BTreeMap<String, Option<u32>>);

impl Rooms {
    /// Whether all of these objects have room for one Pod more; it is taken if `take`.
    fn has(&mut self, context: &Context, state: &State, covering: &[&Entry], take: bool) -> bool {
        for entry in covering {
            let name = &entry.snapshot.rules.name;
            let left = self.0.entry(name.clone());
            let left = left.or_insert_with(|| room::allowed(&context.ledgers, state, entry));
            if *left == Some(0) {
                return false;
            }
        }
        for entry in covering.iter().filter(|_| take) {
            if let Some(Some(left)) = self.0.get_mut(&entry.snapshot.rules.name) {
                *left -= 1;
            }
        }
        true
    }
}
