//! Prints the diagnosis of a workload as a tree for people.

use jiff::Timestamp;

use super::tree;
use super::tree_node::TreeNode;
use crate::domain::diagnosis::facts::RuleVerdict;
use crate::domain::diagnosis::workload::facts::{
    CoveringRule, WaitGroup, WorkloadDiagnosis, WorkloadFacts,
};
use crate::domain::diagnosis::workload::{describe_counts, describe_group};
use crate::domain::messages;

/// The diagnosis of a workload as text. Ages are relative to `now`.
pub fn render_workload(all: &WorkloadDiagnosis, now: Timestamp) -> String {
    let mut tree = vec![workload_node(&all.workload, now)];
    let problems = all.problems.iter();
    tree.extend(problems.map(|problem| TreeNode::leaf(format!("problem: {problem}"))));
    tree.extend(all.waits.iter().map(group_node));
    tree.extend(all.rules.iter().map(|rule| rule_node(rule, now)));
    let budgets = all.disruption_budgets.iter();
    tree.extend(budgets.map(tree::disruption_budget_node));
    if !all.next.is_empty() {
        tree.push(TreeNode::new("next", all.next.iter().map(TreeNode::leaf)));
    }
    let notes = all.notes.iter();
    tree.extend(notes.map(|note| TreeNode::leaf(format!("not known: {note}"))));
    TreeNode::new(&all.summary, tree).render()
}

fn workload_node(facts: &WorkloadFacts, now: Timestamp) -> TreeNode {
    let WorkloadFacts {
        kind,
        namespace,
        name,
        ..
    } = facts;
    let mut parts = vec![describe_counts(facts)];
    parts.extend(facts.strategy.clone());
    let partition = facts.partition;
    parts.extend(partition.map(|partition| format!("partition {partition}")));
    parts.extend(facts.paused.then(|| "paused".to_owned()));
    let deleting = facts.deleting_since;
    parts.extend(
        deleting.map(|since| format!("being deleted for {}", messages::format_ago(since, now))),
    );
    TreeNode::new(
        format!("{kind} {namespace}/{name}: {}", parts.join(", ")),
        facts.remarks.iter().map(TreeNode::leaf),
    )
}

fn group_node(group: &WaitGroup) -> TreeNode {
    TreeNode::leaf(describe_group(group))
}

fn rule_node(covering: &CoveringRule, now: Timestamp) -> TreeNode {
    let rule = &covering.rule;
    let name = messages::qualified_rule_name(&rule.object, &rule.rule);
    let kind = match rule.kind {
        "" => String::new(),
        kind => format!(" ({kind}, {})", rule.stage),
    };
    let pods = messages::count_pods(covering.pods);
    let budget = rule.budget.as_ref();
    let below = match budget.filter(|_| rule.verdict != RuleVerdict::NotApplying) {
        Some(budget) => tree::budget_nodes(budget, &rule.reason, now),
        None => vec![TreeNode::leaf(&rule.reason)],
    };
    let verdict = match rule.verdict {
        RuleVerdict::Passes => format!(", lets {} pass", covering.pod),
        RuleVerdict::Holds => format!(", holds {}", covering.pod),
        RuleVerdict::NotApplying | RuleVerdict::Unknown => String::new(),
    };
    TreeNode::new(format!("{name}{kind} selects {pods}{verdict}"), below)
}
