//! The preview of a node.

use jiff::Timestamp;

use super::answers::EvictionAnswer;
use super::assumptions::assumptions;
use super::facts::{
    AnswerFacts, DrainOutcome, DrainPreview, EvictionPath, HeldPod, PodName, RefusedPod,
    SkippedPod, TerminatingPod, UncheckedPod, WaveFacts, WavePod,
};
use super::kubectl_filters::{KubectlChoice, RefusalReason};
use super::observed::{DrainNamespace, DrainedPod, ObservedNode};
use super::rule_budgets::unenforced;
use super::skip_annotations::without_ignored_skips;
use super::verdicts::{BudgetTable, Verdict};
use super::waves::{Candidate, Departure, plan_waves};
use crate::domain::diagnosis::RuleObject;
use crate::domain::pod::Pod;

/// Makes the preview of a node.
pub fn preview(node: &ObservedNode) -> DrainPreview {
    let node = &*without_ignored_skips(node);
    let table = BudgetTable::new(node);
    let mut facts = facts_without_budgets(node);
    let (mut candidates, mut pods, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for DrainedPod { pod, answer, .. } in node.evicted_pods() {
        let Some(answer) = answer else {
            continue;
        };
        let name = pod_name(pod);
        match table.judge(pod, answer) {
            Verdict::Candidate(candidate) => {
                candidates.push(candidate);
                pods.push((pod, answer));
            }
            Verdict::Held { by, reason, remedy } => facts.held.push(HeldPod {
                pod: name,
                by,
                reason,
                remedy,
                answer: answer_facts(answer),
            }),
            Verdict::NotChecked(reason) => {
                facts.not_checked.push(UncheckedPod { pod: name, reason });
                unknown.push(&**pod);
            }
            Verdict::Terminating => facts.terminating.push(TerminatingPod {
                pod: name,
                finalizers: pod.metadata.finalizers.clone(),
            }),
            Verdict::Gone => {}
        }
    }
    let planned = loop {
        let budgets = table.budgets_with_unknown(unknown.iter().copied());
        let planned = plan_waves(budgets, &candidates);
        let unreached = planned.unreached.iter();
        let doubted = unreached.filter_map(|(index, holding)| {
            let reason = table.doubt_of_unreached(&candidates[*index], holding, &unknown)?;
            Some((*index, reason))
        });
        let doubted: Vec<_> = doubted.collect();
        if doubted.is_empty() {
            break planned;
        }
        for (index, reason) in doubted.into_iter().rev() {
            candidates.remove(index);
            let (pod, _) = pods.remove(index);
            let pod_name = pod_name(pod);
            let unchecked = UncheckedPod {
                pod: pod_name,
                reason,
            };
            facts.not_checked.push(unchecked);
            unknown.push(&**pod);
        }
    };
    facts.not_checked.sort_by(|a, b| a.pod.cmp(&b.pod));
    let waves = planned.waves.iter().map(|departures| {
        let pods = departures.iter().map(|departure| {
            let (pod, answer) = &pods[departure.candidate];
            wave_pod(&table, pod, answer, *departure, &candidates)
        });
        let mut pods: Vec<_> = pods.collect();
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        WaveFacts { pods }
    });
    facts.waves = waves.collect();
    for (index, holding) in planned.unreached {
        let (pod, answer) = pods[index];
        facts.held.push(held_by_budgets(
            &table,
            pod,
            answer,
            &candidates[index],
            &holding,
        ));
    }
    facts.held.sort_by(|a, b| a.pod.cmp(&b.pod));
    facts.assumptions = assumptions(node, &facts, &candidates, &planned.waves);
    facts.outcome = outcome(node, &facts);
    facts
}

/// The facts that need neither an answer nor a budget.
fn facts_without_budgets(node: &ObservedNode) -> DrainPreview {
    let (mut refused, mut skipped) = (Vec::new(), Vec::new());
    for DrainedPod { pod, choice, .. } in &node.pods {
        let pod = pod_name(pod);
        match choice {
            KubectlChoice::Evicts => {}
            KubectlChoice::Skips(reason) => skipped.push(SkippedPod {
                pod,
                reason: *reason,
            }),
            KubectlChoice::Refuses(reason) => refused.push(RefusedPod {
                pod,
                reason: reason.text(),
                remedy: reason.remedy().to_owned(),
            }),
        }
    }
    let mut notes = node.notes.clone();
    notes.extend(
        node.namespaces
            .iter()
            .flat_map(|(name, namespace)| unenforced_notes(node, name, namespace)),
    );
    DrainPreview {
        node: node.name.clone(),
        outcome: DrainOutcome::Ok,
        begins: refused.is_empty(),
        waves: Vec::new(),
        held: Vec::new(),
        refused,
        terminating: Vec::new(),
        skipped,
        not_checked: Vec::new(),
        assumptions: Vec::new(),
        notes,
    }
}

/// The rules that cover Pods of the node and hold none of them, because they are not enforced.
fn unenforced_notes(node: &ObservedNode, name: &str, namespace: &DrainNamespace) -> Vec<String> {
    let covers = |rule: &&RuleObject| {
        let mut pods = node.evicted_pods();
        pods.any(|pod| pod.pod.metadata.namespace == name && rule.set.selects(&pod.pod))
    };
    let rules = namespace.rules.iter().flatten().filter(covers);
    let unenforced = rules.filter_map(|rule| {
        let why = namespace.excluded.as_deref().or(unenforced(rule))?;
        Some(format!(
            "PodTransitionRule {} in namespace {name} holds no Pod: {why}",
            rule.set.name
        ))
    });
    unenforced.collect()
}

fn pod_name(pod: &Pod) -> PodName {
    PodName {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
    }
}

fn answer_facts(answer: &EvictionAnswer) -> AnswerFacts {
    let (code, message) = match answer {
        EvictionAnswer::Allowed | EvictionAnswer::Gone => (201, ""),
        EvictionAnswer::Lifecycle { message } => (429, message.as_str()),
        EvictionAnswer::Refused { code, message } => (*code, message.as_str()),
        EvictionAnswer::Unanswered { message } => (500, message.as_str()),
        EvictionAnswer::NotChecked { reason } => (0, reason.as_str()),
    };
    AnswerFacts {
        code,
        message: message.to_owned(),
    }
}

fn wave_pod(
    table: &BudgetTable<'_>,
    pod: &Pod,
    answer: &EvictionAnswer,
    departure: Departure,
    candidates: &[Candidate],
) -> WavePod {
    let candidate = &candidates[departure.candidate];
    let shares = candidate.shares.iter();
    let taken = shares.filter(|share| share.takes || share.floor.is_some());
    WavePod {
        pod: pod_name(pod),
        how: match answer {
            EvictionAnswer::Lifecycle { .. } => EvictionPath::BeginsLifecycle,
            _ => EvictionPath::Deletes,
        },
        certain: departure.is_certain,
        replaced: candidate.is_replaced,
        budgets: taken
            .map(|share| table.names[share.budget].clone())
            .collect(),
        answer: answer_facts(answer),
    }
}

/// A Pod for which its budgets never have room.
fn held_by_budgets(
    table: &BudgetTable<'_>,
    pod: &Pod,
    answer: &EvictionAnswer,
    candidate: &Candidate,
    holding: &[usize],
) -> HeldPod {
    let by: Vec<_> = holding
        .iter()
        .map(|index| table.names[*index].clone())
        .collect();
    let names: Vec<_> = by.iter().map(ToString::to_string).collect();
    let shares = candidate.shares.iter();
    let remedies = shares
        .filter(|share| holding.contains(&share.budget))
        .map(|share| table.remedy(share));
    let remedies: Vec<_> = remedies.collect();
    HeldPod {
        pod: pod_name(pod),
        by,
        reason: match answer {
            EvictionAnswer::Refused { message, .. } | EvictionAnswer::Lifecycle { message } => {
                message.clone()
            }
            _ => format!(
                "The Pods that go before it use up {}, and no new Pods take their place",
                names.join(" and ")
            ),
        },
        remedy: remedies.join(". "),
        answer: answer_facts(answer),
    }
}

fn outcome(node: &ObservedNode, facts: &DrainPreview) -> DrainOutcome {
    let (unread, refused): (Vec<_>, Vec<_>) = node
        .pods
        .iter()
        .filter_map(|pod| match &pod.choice {
            KubectlChoice::Refuses(reason) => Some(reason),
            _ => None,
        })
        .partition(|reason| matches!(reason, RefusalReason::DaemonSetUnreadable(_)));
    let mut evicted = node.evicted_pods();
    // Nothing tells when the deletion of such a Pod ends, and kubectl waits for it.
    let is_stuck = evicted.any(|DrainedPod { pod, answer, .. }| {
        matches!(answer, Some(EvictionAnswer::Allowed)) && may_stay_terminating(pod, node.now)
    });
    let is_all_known =
        facts.not_checked.is_empty() && unread.is_empty() && node.notes.is_empty() && !is_stuck;
    match facts.held.is_empty() && refused.is_empty() {
        false => DrainOutcome::Held,
        true if is_all_known => DrainOutcome::Ok,
        true => DrainOutcome::Unknown,
    }
}

/// Whether the Pod waits for finalizers, or for longer than its containers have time to end.
fn may_stay_terminating(pod: &Pod, now: Timestamp) -> bool {
    let Some(ends) = &pod.metadata.deletion_timestamp else {
        return false;
    };
    let is_over = ends.parse::<Timestamp>().is_ok_and(|ends| ends < now);
    is_over || !pod.metadata.finalizers.is_empty()
}
