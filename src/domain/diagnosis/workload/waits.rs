//! What a Pod of a workload waits for, in words that are the same for all Pods with the reason.

use std::cell::OnceCell;
use std::sync::Arc;

use super::facts::WaitGroupKind;
use super::stored::StoredWorkload;
use crate::api::keys;
use crate::domain::diagnosis::facts::{OperationFacts, RuleFacts, RuleVerdict, WaitKind};
use crate::domain::diagnosis::rules::{self, BudgetTable};
use crate::domain::diagnosis::{
    ObservedPod, PodController, operations, out_of_service_reason, owner,
};
use crate::domain::lifecycle::{Stage, stored_phases};
use crate::domain::messages;
use crate::domain::not_ready::NotReadyCause;
use crate::domain::pod::Pod;

/// What all Pods of a workload have in common.
pub struct WaitContext<'a> {
    pub stored: &'a StoredWorkload,
    pub budgets: &'a BudgetTable,
    /// The Pods of the workload.
    pub pods: &'a [Arc<Pod>],
    /// Why the limits of the CollaSet itself hold the update of available Pods. It is the same for all these Pods.
    pub own_limit: OnceCell<Option<String>>,
    /// Why no rule of the namespace is enforced.
    pub excluded: Option<&'a str>,
}

impl WaitContext<'_> {
    /// Why `maxUnavailable` or `maxSurge` of the CollaSet holds the update of the Pod.
    fn own_limit(&self, observed: &ObservedPod) -> Option<String> {
        let PodController::CollaSet(set) = &self.stored.controller else {
            return None;
        };
        let limit = || owner::describe_own_limit(observed, set);
        let is_available = observed.pod.is_available();
        is_available.then(|| self.own_limit.get_or_init(limit).clone())?
    }
}

/// Why a Pod waits.
pub struct PodWait {
    pub kind: WaitGroupKind,
    /// Pods with the same kind and key are in one group.
    pub key: String,
    /// The reason in words.
    pub reason: String,
    /// What a rule says about the Pod.
    pub detail: Option<String>,
    /// Whether the Pod is of an older revision, no operation on it has begun, and the partition may keep it.
    pub may_be_kept: bool,
    /// The node that has stopped to report.
    pub node: Option<String>,
}

impl PodWait {
    fn new(kind: WaitGroupKind, reason: impl Into<String>) -> PodWait {
        let reason = reason.into();
        PodWait {
            kind,
            key: reason.clone(),
            reason,
            detail: None,
            may_be_kept: false,
            node: None,
        }
    }

    /// A wait for rules, with what each says about the Pod.
    fn for_rules(rules: &[&RuleFacts], extra: Vec<String>) -> PodWait {
        let names = rules.iter();
        let names = names.map(|rule| messages::qualified_rule_name(&rule.object, &rule.rule));
        let names: Vec<String> = names.chain(extra).collect();
        let detail = match rules {
            [rule] => Some(rule.reason.clone()),
            _ => None,
        };
        PodWait {
            detail,
            ..PodWait::new(WaitGroupKind::Rule, names.join(" and for "))
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
    if let Some(lost @ NotReadyCause::NodeLost { node }) = cause {
        let wait = PodWait::new(WaitGroupKind::NodeLost, lost.describe_shared(pod));
        return Some(PodWait {
            node: Some(node.to_owned()),
            ..wait
        });
    }
    if let Some(stuck) = cause.filter(NotReadyCause::is_stuck) {
        return Some(PodWait::new(
            WaitGroupKind::Stuck,
            stuck.describe_shared(pod),
        ));
    }
    let has_operation = !stored_phases(pod).is_empty();
    let is_older = context.stored.is_older(pod);
    let kept = context.stored.keep_reason(pod).filter(|_| is_older);
    let is_to_go = is_older && kept.is_none();
    let rules = match has_operation || is_to_go {
        true => rules::rule_facts(observed, context.budgets, context.excluded, None),
        false => Vec::new(),
    };
    if has_operation && pod.is_managed() {
        let operations =
            operations::operation_facts(observed, &rules, context.budgets, context.excluded);
        let operation = operations.first();
        return operation.map(|operation| operation_wait(operation, &rules));
    }
    if let Some(reason) = unavailability(pod, cause) {
        return Some(PodWait::new(WaitGroupKind::Unavailable, reason));
    }
    match kept {
        Some(reason) => Some(PodWait::new(WaitGroupKind::Older, reason)),
        None => is_to_go.then(|| PodWait {
            may_be_kept: context.stored.kept_count() > 0,
            ..update_wait(context, observed, &rules)
        }),
    }
}

fn termination_reason(pod: &Pod) -> String {
    let finalizers = &pod.metadata.finalizers;
    match finalizers.len() {
        0 => "the kubelet ends their containers".to_owned(),
        1 => format!("finalizer {} is to be removed", finalizers[0]),
        _ => format!("finalizers {} are to be removed", finalizers.join(", ")),
    }
}

fn operation_wait(operation: &OperationFacts, rules: &[RuleFacts]) -> PodWait {
    let waits = &operation.waits_for;
    let names = |kind| {
        let of_kind = waits.iter().filter(move |wait| wait.on == kind);
        of_kind.map(|wait| wait.name.as_str())
    };
    let is_awaited = |rule: &&RuleFacts| {
        names(WaitKind::Rule).any(|name| name == format!("{}/{}", rule.object, rule.rule))
    };
    let awaited: Vec<&RuleFacts> = rules.iter().filter(is_awaited).collect();
    let turns = names(WaitKind::Turn).filter_map(|name| name.split_once('/'));
    let turns = turns.map(|(object, rule)| {
        let rule = messages::qualified_rule_name(object, rule);
        format!("their turn at {rule}")
    });
    let turns: Vec<String> = turns.collect();
    if !awaited.is_empty() || !turns.is_empty() {
        return PodWait::for_rules(&awaited, turns);
    }
    let texts: Vec<&str> = waits.iter().map(|wait| wait.text.as_str()).collect();
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
        reason: format!(
            "operation {id} is in {phase}, and waits for {}",
            texts.join("; and for ")
        ),
        detail: None,
        may_be_kept: false,
        node: None,
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
fn update_wait(context: &WaitContext, observed: &ObservedPod, rules: &[RuleFacts]) -> PodWait {
    if let Some(rule) = rules.iter().find(|rule| holds_deletion(rule)) {
        return PodWait::for_rules(&[rule], Vec::new());
    }
    if let Some(limit) = context.own_limit(observed) {
        return PodWait::new(WaitGroupKind::Older, limit);
    }
    if let Some(awaited) = context.stored.awaited_before(&observed.pod, context.pods) {
        let name = &awaited.metadata.name;
        return PodWait::new(
            WaitGroupKind::Older,
            format!("it waits for {name}, which has a greater ordinal, to be Ready"),
        );
    }
    let unknown = rules.iter().find(|rule| {
        rule.verdict == RuleVerdict::Unknown && rule.stage == Stage::PreCheck.as_str()
    });
    PodWait::new(
        WaitGroupKind::Older,
        match unknown {
            Some(rule) => {
                let name = messages::qualified_rule_name(&rule.object, &rule.rule);
                format!(
                    "no update of it has begun, and what {name} decides is not known: {}",
                    rule.reason
                )
            }
            None => "no update of it has begun".to_owned(),
        },
    )
}

/// Whether a rule holds a deletion of the Pod.
pub fn holds_deletion(rule: &RuleFacts) -> bool {
    rule.verdict == RuleVerdict::Holds
        && rule.stage == Stage::PreCheck.as_str()
        && (rule.kind == "availablePolicy" || rule.reason.starts_with(rules::UNREADABLE_LIMIT))
}
