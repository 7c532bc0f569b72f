//! Prints a diagnosis as a tree for people.

use jiff::Timestamp;

use super::job_tree;
use super::service_tree;
use super::tree_node::TreeNode;
use crate::domain::diagnosis::deletion_path;
use crate::domain::diagnosis::facts::{
    BudgetFacts, DecorationFacts, DecorationVerdict, Diagnosis, DisruptionBudgetFacts,
    DryRunDeletion, OperationFacts, OwnerFacts, PodJobFacts, RuleFacts, RuleVerdict, WaitKind,
};
use crate::domain::messages;
use crate::domain::rules::Stage;

/// The diagnosis as text. Ages are relative to `now`.
pub fn render_diagnosis(all: &Diagnosis, now: Timestamp) -> String {
    let mut tree = vec![pod_node(all, now)];
    tree.extend(all.owner.as_ref().map(owner_node));
    tree.extend(all.owner.iter().flat_map(owner_problem_nodes));
    tree.extend(all.decorations.iter().map(decoration_node));
    tree.extend(all.jobs.iter().map(|job| job_node(job, now)));
    tree.extend(all.operations.iter().map(|o| operation_node(o, now)));
    tree.extend(
        all.traffic
            .iter()
            .map(|traffic| service_tree::pod_traffic_node(traffic, now)),
    );
    tree.extend(
        all.rules
            .iter()
            .map(|r| rule_node(r, all.operations.is_empty(), now)),
    );
    tree.extend(all.disruption_budgets.iter().map(disruption_budget_node));
    tree.extend(all.deletion.as_ref().map(deletion_node));
    tree.extend(all.claims.iter().map(|claim| {
        let age = messages::format_ago(claim.since, now);
        let object = &claim.object;
        TreeNode::leaf(format!(
            "claim: {} was admitted by PodTransitionRule {object} {age} ago",
            claim.operation
        ))
    }));
    if !all.next.is_empty() {
        tree.push(TreeNode::new("next", all.next.iter().map(TreeNode::leaf)));
    }
    tree.extend(
        all.notes
            .iter()
            .map(|note| TreeNode::leaf(format!("not known: {note}"))),
    );
    TreeNode::new(&all.summary, tree).render()
}

fn pod_node(all: &Diagnosis, now: Timestamp) -> TreeNode {
    let pod = &all.pod;
    let mut states = vec![if pod.managed {
        "managed"
    } else {
        "not managed"
    }];
    if pod.available {
        states.push("available");
    } else if pod.managed {
        states.push("not available");
    }
    if pod.terminating {
        states.push("terminating");
    }
    if pod.to_delete {
        states.push("to be deleted");
    }
    let mut below: Vec<TreeNode> = pod.unavailable_because.iter().map(TreeNode::leaf).collect();
    if let Some(since) = pod
        .readiness_since
        .filter(|_| pod.managed && !pod.available)
    {
        let ready = if pod.ready { "Ready" } else { "not Ready" };
        below.push(TreeNode::leaf(format!(
            "{ready} for {}",
            messages::format_ago(since, now)
        )));
    }
    TreeNode::new(
        format!("Pod {}/{}: {}", pod.namespace, pod.name, states.join(", ")),
        below,
    )
}

/// A PodDisruptionBudget, and whether it holds evictions.
pub(super) fn disruption_budget_node(budget: &DisruptionBudgetFacts) -> TreeNode {
    let effect = if budget.holds {
        "holds evictions"
    } else {
        "lets evictions pass"
    };
    TreeNode::new(
        format!("PodDisruptionBudget {} {effect}", budget.name),
        [TreeNode::leaf(&budget.reason)],
    )
}

/// The API server's answer to the dry run.
fn deletion_node(dry_run: &DryRunDeletion) -> TreeNode {
    let (outcome, reason) = match dry_run {
        DryRunDeletion::Allowed => ("is allowed".to_owned(), None),
        DryRunDeletion::Denied { .. } if deletion_path::is_lifecycle_refusal(dry_run) => {
            let outcome = "is refused with 429 until operation pod-delete, which it begins, has taken the Pod off traffic";
            (outcome.to_owned(), None)
        }
        DryRunDeletion::Denied { code, message } => {
            (format!("is refused with {code}"), Some(message))
        }
        DryRunDeletion::Unanswered { message } => (
            "is refused: the admission server does not answer".to_owned(),
            Some(message),
        ),
        DryRunDeletion::NotChecked { reason } => ("is not checked".to_owned(), Some(reason)),
    };
    let reason = reason.map(TreeNode::leaf);
    TreeNode::new(format!("a deletion now (dry-run) {outcome}"), reason)
}

fn owner_problem_nodes(owner: &OwnerFacts) -> impl Iterator<Item = TreeNode> {
    let OwnerFacts { kind, name, .. } = owner;
    let problems = owner.troubles.iter();
    problems.map(move |problem| TreeNode::leaf(format!("{kind} {name}: {problem}")))
}

fn owner_node(owner: &OwnerFacts) -> TreeNode {
    let OwnerFacts { kind, name, .. } = owner;
    let mut text = format!("{kind} {name}");
    if let Some(replicas) = owner.replicas {
        let noun = if replicas == 1 { "replica" } else { "replicas" };
        text += &format!(", {replicas} {noun}");
    }
    let mut below = Vec::new();
    if let Some(rollout) = &owner.rollout {
        let mut parts = Vec::new();
        if !rollout.revision.is_empty() {
            parts.push(format!("revision {}", rollout.revision));
        }
        if !rollout.updated_revision.is_empty() && rollout.updated_revision != rollout.revision {
            parts.push(format!("to be {}", rollout.updated_revision));
        }
        parts.push(rollout.policy.clone());
        match rollout.partition {
            Some(0) => {}
            Some(partition) => parts.push(format!("partition {partition}")),
            None => parts.push("by label".to_owned()),
        }
        if rollout.delay_seconds > 0 {
            parts.push(format!("delay {}s", rollout.delay_seconds));
        }
        if rollout.paused {
            parts.push("paused".to_owned());
        }
        below.push(TreeNode::leaf(parts.join(", ")));
    }
    below.extend(owner.remark.iter().map(TreeNode::leaf));
    TreeNode::new(text, below)
}

fn decoration_node(decoration: &DecorationFacts) -> TreeNode {
    let has = match &decoration.revision {
        Some(revision) => format!("revision {revision}"),
        None => "not on the Pod".to_owned(),
    };
    let next = match (decoration.verdict, &decoration.wanted_revision) {
        (DecorationVerdict::UpToDate | DecorationVerdict::Unknown, _) => String::new(),
        (DecorationVerdict::Stays, _) => ", stays as it is".to_owned(),
        (DecorationVerdict::MayStay, _) => ", may stay as it is".to_owned(),
        (DecorationVerdict::Waits, Some(wanted)) => format!(", to be {wanted}"),
        (DecorationVerdict::Waits, None) => ", to be removed".to_owned(),
    };
    let reason = decoration.reason.as_ref().map(TreeNode::leaf);
    TreeNode::new(
        format!("PodDecoration {}: {has}{next}", decoration.name),
        reason,
    )
}

fn job_node(job: &PodJobFacts, now: Timestamp) -> TreeNode {
    let mut text = match job.action.as_str() {
        "" => format!("OperationJob {}: ", job.name),
        action => format!("OperationJob {} ({action}): ", job.name),
    };
    text += &job_tree::describe_progress(&job.progress, job.since, job.deadline, now);
    if job.deleting {
        text += ", the job is being deleted";
    }
    let remark = job.remark.as_ref();
    let remark = remark.map(|remark| TreeNode::leaf(format!("it {remark}")));
    let wait = job.waits_for.as_ref();
    let wait = wait.map(|wait| TreeNode::leaf(format!("it waits for {wait}")));
    TreeNode::new(text, remark.into_iter().chain(wait))
}

fn operation_node(operation: &OperationFacts, now: Timestamp) -> TreeNode {
    let OperationFacts {
        id, type_, phase, ..
    } = operation;
    let mut text = match type_.as_str() {
        "" => format!("operation {id}"),
        type_ => format!("operation {id} ({type_})"),
    };
    if let Some(job) = &operation.job {
        text += &format!(" of OperationJob {job}");
    }
    text += &format!(": {phase}");
    if let Some(since) = operation.since {
        text += &format!(" for {}", messages::format_ago(since, now));
    }
    if let Some(begun_at) = operation.begun.filter(|b| Some(*b) != operation.since) {
        text += &format!(", begun {} ago", messages::format_ago(begun_at, now));
    }
    let waits = operation.waits_for.iter();
    let waits = waits.map(|wait| match (wait.on, wait.name.split_once('/')) {
        // The line of the rule explains why it holds the Pod.
        (WaitKind::Rule, Some((object, rule))) => TreeNode::leaf(format!(
            "waits for {}",
            messages::qualified_rule_name(object, rule)
        )),
        _ => TreeNode::leaf(format!("waits for {}", wait.text)),
    });
    TreeNode::new(text, waits)
}

/// The line of a rule. `idle` is whether no operation is in flight on the Pod.
fn rule_node(rule: &RuleFacts, idle: bool, now: Timestamp) -> TreeNode {
    let effect = match rule.verdict {
        RuleVerdict::Holds if idle && rule.stage == Stage::PostCheck.as_str() => {
            "would hold the end of an operation"
        }
        RuleVerdict::Passes => "lets it go",
        RuleVerdict::Holds => "holds it",
        RuleVerdict::NotApplying => "is not asked",
        RuleVerdict::Unknown => "is not known",
    };
    let kind = match rule.kind {
        "" => String::new(),
        kind => format!(" ({kind}, {})", rule.stage),
    };
    let name = messages::qualified_rule_name(&rule.object, &rule.rule);
    let budget = rule.budget.as_ref();
    let below = match budget.filter(|_| rule.verdict != RuleVerdict::NotApplying) {
        None => vec![TreeNode::leaf(&rule.reason)],
        Some(budget) => self::budget_nodes(budget, &rule.reason, now),
    };
    TreeNode::new(format!("{name}{kind} {effect}"), below)
}

/// The reason, the numbers if the reason does not contain them, the Pods that use the budget, and those that wait for
/// it.
pub(super) fn budget_nodes(budget: &BudgetFacts, reason: &str, now: Timestamp) -> Vec<TreeNode> {
    let figures =
        messages::budget_figures(budget.used, budget.expected, budget.limit, budget.minimum);
    let mut below = Vec::new();
    let mut head = match reason.starts_with(&figures) {
        true => reason.to_owned(),
        false => {
            below.push(TreeNode::leaf(reason));
            figures
        }
    };
    if budget.allowed > 0 {
        head += &format!(": {} more may go", budget.allowed);
    }
    let mut holders: Vec<TreeNode> = budget
        .holders
        .iter()
        .map(|h| {
            TreeNode::leaf(format!(
                "{}: {}",
                messages::describe_holder(&h.pod, h.since, now),
                h.because
            ))
        })
        .collect();
    if budget.unlisted > 0 {
        holders.push(TreeNode::leaf(format!(
            "{} more: missing, ending, not selected, or not listed here",
            budget.unlisted
        )));
    }
    below.push(TreeNode::new(head, holders));
    if budget.waiting > 0 {
        let waiting = match budget.waiting {
            1 => "1 Pod waits".to_owned(),
            n => format!("{n} Pods wait"),
        };
        let before = match budget.before {
            None => String::new(),
            Some(0) => "; no Pod waits longer than this Pod".to_owned(),
            Some(1) => "; 1 waits longer than this Pod".to_owned(),
            Some(n) => format!("; {n} wait longer than this Pod"),
        };
        below.push(TreeNode::leaf(format!(
            "{waiting} for it in PreCheck{before}"
        )));
    }
    below
}
