//! The rules and PodDisruptionBudgets that select Pods of a workload.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::CoveringRule;
use super::waits::WaitContext;
use crate::domain::diagnosis::facts::{DisruptionBudgetFacts, RuleFacts, RuleVerdict};
use crate::domain::diagnosis::{ObservedPod, PodContext, pod_context, rules};
use crate::domain::pod::Pod;

/// Most Pods of a workload for which the decisions of a rule object are looked at.
const MAX_JUDGED: usize = 50;

/// The rules of each object that selects Pods, with the decisions about the first of these Pods that the object holds. If
/// it holds none, the decisions are about the first available Pod, because budgets decide about available Pods.
pub fn covering_rules(
    context: &WaitContext,
    view: &mut ObservedPod,
    pods: &[Arc<Pod>],
) -> Vec<CoveringRule> {
    let mut covering = Vec::new();
    for object in view.rules.clone() {
        let selected: Vec<_> = pods.iter().filter(|pod| object.set.selects(pod)).collect();
        let mut judge = |pod: &Arc<Pod>| {
            view.pod = Arc::clone(pod);
            let facts = rules::rule_facts(view, context.budgets, context.excluded, None);
            let of_object = facts.into_iter();
            let of_object = of_object.filter(|rule| rule.object == object.set.name);
            of_object.collect::<Vec<RuleFacts>>()
        };
        let available = selected.iter().find(|pod| pod.is_available());
        let Some(mut pod) = available.or(selected.first()) else {
            continue;
        };
        let mut of_object = judge(pod);
        let holds = |rules: &[RuleFacts]| {
            let mut rules = rules.iter();
            rules.any(|rule| rule.verdict == RuleVerdict::Holds)
        };
        if !holds(&of_object) {
            let judged = selected.iter().take(MAX_JUDGED);
            let mut held = judged.map(|pod| (pod, judge(pod)));
            if let Some(found) = held.find(|(_, rules)| holds(rules)) {
                (pod, of_object) = found;
            }
        }
        let name = &pod.metadata.name;
        covering.extend(of_object.into_iter().map(|mut rule| {
            if let Some(budget) = &mut rule.budget {
                // The place in the queue is that of a single Pod.
                (budget.before, budget.behind) = (None, None);
            }
            CoveringRule {
                pods: selected.len(),
                pod: name.clone(),
                rule,
            }
        }));
    }
    covering
}

/// Sets the decision of all rules: they are not enforced.
pub fn mark_unenforced(rules: &mut [CoveringRule], reason: &str) {
    for rule in rules {
        rule.rule.verdict = RuleVerdict::NotApplying;
        rule.rule.reason = reason.to_owned();
        rule.rule.budget = None;
    }
}

/// The PodDisruptionBudgets that select Pods, each once. The decision that holds evictions comes first.
pub fn disruption_budgets(context: &PodContext, pods: &[Arc<Pod>]) -> Vec<DisruptionBudgetFacts> {
    let mut budgets: BTreeMap<String, DisruptionBudgetFacts> = BTreeMap::new();
    if context.disruption_budgets.is_empty() {
        return Vec::new();
    }
    for pod in pods {
        for facts in pod_context::disruption_budget_facts(&context.disruption_budgets, pod) {
            let known = budgets.entry(facts.name.clone()).or_insert(facts.clone());
            if facts.holds && !known.holds {
                *known = facts;
            }
        }
    }
    budgets.into_values().collect()
}
