//! What a Pod of a workload waits for, in words that are the same for all Pods with the reason.

use super::facts::WaitGroupKind;
use super::stored::StoredWorkload;
use crate::api::keys;
use crate::domain::diagnosis::facts::{OperationFacts, RuleFacts, RuleVerdict, WaitKind};
use crate::domain::diagnosis::rules::{self, BudgetTable};
use crate::domain::diagnosis::{ObservedPod, operations, out_of_service_reason};
use crate::domain::lifecycle::{Stage, stored_phases};
use crate::domain::messages;
use crate::domain::not_ready::NotReadyCause;
use crate::domain::pod::Pod;

/// What all Pods of a workload have in common.
pub struct WaitContext<'a> {
    pub stored: &'a StoredWorkload,
    pub budgets: &'a BudgetTable,
    /// Why no rule of the namespace is enforced.
    pub excluded: Option<&'a str>,
}

/// Why a Pod waits.
pub struct PodWait {
    pub kind: WaitGroupKind,
    /// Pods with the same kind and key are in one group.
    pub key: String,
    /// The reason in words.
    pub reason: String,
}

impl PodWait {
    fn new(kind: WaitGroupKind, reason: impl Into<String>) -> PodWait {
        let reason = reason.into();
        PodWait {
            kind,
            key: reason.clone(),
            reason,
        }
    }
}

/// What the Pod waits for. `None` if it serves, and nothing is to be done to it.
pub fn pod_wait(context: &WaitContext, observed: &ObservedPod) -> Option<PodWait> {
    let pod = &*observed.pod;
    if pod.is_terminating() {
        return Some(PodWait::new(
            WaitGroupKind::Terminating,
            termination_reason(pod),
        ));
    }
    if pod.is_finished() {
        let phase = &pod.status.phase;
        return Some(PodWait::new(
            WaitGroupKind::Finished,
            format!("phase {phase}"),
        ));
    }
    let cause = NotReadyCause::of_pod(pod);
    if let Some(stuck) = cause.filter(NotReadyCause::is_stuck) {
        return Some(PodWait::new(
            WaitGroupKind::Stuck,
            stuck.describe_shared(pod),
        ));
    }
    let has_operation = !stored_phases(pod).is_empty();
    let is_to_go = context.stored.is_to_be_updated(pod);
    let rules = match has_operation || is_to_go {
        true => rules::rule_facts(observed, context.budgets, context.excluded, None),
        false => Vec::new(),
    };
    if has_operation && pod.is_managed() {
        let operations =
            operations::operation_facts(observed, &rules, context.budgets, context.excluded);
        return operations.first().map(operation_wait);
    }
    if let Some(reason) = unavailability(pod, cause) {
        return Some(PodWait::new(WaitGroupKind::Unavailable, reason));
    }
    is_to_go.then(|| update_wait(context.stored, &rules))
}

fn termination_reason(pod: &Pod) -> String {
    let finalizers = &pod.metadata.finalizers;
    match finalizers.len() {
        0 => "the kubelet ends their containers".to_owned(),
        1 => format!("finalizer {} is to be removed", finalizers[0]),
        _ => format!("finalizers {} are to be removed", finalizers.join(", ")),
    }
}

fn operation_wait(operation: &OperationFacts) -> PodWait {
    let waits = &operation.waits_for;
    let is_of_rule = |kind| matches!(kind, WaitKind::Rule | WaitKind::Turn);
    let of_rules: Vec<_> = waits.iter().filter(|wait| is_of_rule(wait.on)).collect();
    let join = |texts: Vec<&str>| texts.join("; and for ");
    if !of_rules.is_empty() {
        let names: Vec<&str> = of_rules.iter().map(|wait| wait.name.as_str()).collect();
        return PodWait {
            kind: WaitGroupKind::Rule,
            key: names.join(" "),
            reason: join(of_rules.iter().map(|wait| wait.text.as_str()).collect()),
        };
    }
    let text = join(waits.iter().map(|wait| wait.text.as_str()).collect());
    let OperationFacts { id, phase, .. } = operation;
    // The text about a delay contains the time that is left.
    let key = waits.iter().map(|wait| match wait.on {
        WaitKind::Delay => wait.name.as_str(),
        _ => wait.text.as_str(),
    });
    let key: Vec<&str> = key.collect();
    PodWait {
        kind: WaitGroupKind::Operation,
        key: format!("{id} {phase} {}", key.join(" ")),
        reason: format!("operation {id} is in {phase}, and waits for {text}"),
    }
}

/// Why the Pod does not serve. `None` if it serves.
fn unavailability(pod: &Pod, cause: Option<NotReadyCause>) -> Option<String> {
    if let Some(cause) = cause {
        return Some(cause.describe_shared(pod));
    }
    if !pod.is_managed() {
        return (!pod.is_ready()).then(|| "the kubelet does not report them Ready".to_owned());
    }
    let reason = out_of_service_reason(pod, None)?;
    let is_serving_soon = pod.is_ready()
        && pod.label(keys::STAY_OFFLINE).is_none()
        && reason.contains("minReadySeconds");
    // The text about a single Pod contains the time at which it became Ready.
    Some(match is_serving_soon {
        true => "they are Ready, and not for minReadySeconds yet".to_owned(),
        false => reason,
    })
}

/// The wait of a Pod that is of an older revision, and on which no operation has begun. Without a lifecycle, its
/// controller deletes the Pod.
fn update_wait(stored: &StoredWorkload, rules: &[RuleFacts]) -> PodWait {
    if let Some(reason) = &stored.keeps_older {
        return PodWait::new(WaitGroupKind::Older, reason.clone());
    }
    let mut rules = rules.iter();
    let holding = rules.find(|rule| {
        rule.verdict == RuleVerdict::Holds
            && rule.stage == Stage::PreCheck.as_str()
            && rule.kind == "availablePolicy"
    });
    match holding {
        Some(rule) => PodWait {
            kind: WaitGroupKind::Rule,
            key: format!("{}/{}", rule.object, rule.rule),
            reason: format!(
                "{}: {}",
                messages::qualified_rule_name(&rule.object, &rule.rule),
                rule.reason
            ),
        },
        None => PodWait::new(WaitGroupKind::Older, "their update has not begun"),
    }
}
