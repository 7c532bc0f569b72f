//! Explains why one Pod waits: the rules and budgets that refuse it, or its position in the wait queue.

use serde_json::{Value, json};

use super::super::super::rule_endpoints;
use super::wait_view::{PodWait, WaitView};
use crate::api::size_limits;
use crate::domain::lifecycle::{Stage, ids_without_type};
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{Rejection, rejections, stage_candidates};
use crate::domain::rules::webhook::Candidate;
use crate::domain::rules::{AvailabilityLimits, AvailabilityRules, RuleKind, RuleSet};

/// Maximum length of a reason in a detail, in characters.
const MAX_REASON_CHARS: usize = 1024;

/// The rules that let a Pod pass, and the reasons why the Pod waits now.
pub fn pod_refusals<'a>(
    view: &WaitView<'a>,
    wait: &PodWait<'a>,
) -> (Vec<&'a str>, Vec<WaitRefusal>) {
    let PodWait { pod, stage, .. } = *wait;
    let waiting = stage_candidates(stage, pod);
    let (passed, refusals) = match stage {
        Stage::PreCheck if waiting.is_empty() => (Vec::new(), missing_type_refusals(pod)),
        _ => rule_refusals(view, wait, &waiting),
    };
    let refusals = match &refusals[..] {
        [] if stage == Stage::PreCheck => queue_refusals(&view.status.entry.snapshot.rules, wait),
        _ => refusals,
    };
    (passed, refusals)
}

/// A reason why a Pod waits: an entry of `rejectInfo`.
#[derive(Clone, Debug, Default)]
pub struct WaitRefusal {
    /// Name of the rule; empty if the reason does not come from one rule.
    pub rule: String,
    /// The operation that the reason concerns; empty if the reason concerns the whole Pod.
    pub operation: String,
    /// The reason, as a sentence.
    pub reason: String,
}

impl WaitRefusal {
    /// A reason that a rule gives for a Pod.
    pub fn new(rule: &str, reason: &str) -> WaitRefusal {
        WaitRefusal {
            rule: rule.to_owned(),
            operation: String::new(),
            reason: size_limits::truncate_text(reason, MAX_REASON_CHARS),
        }
    }

    /// The stored form, without empty fields.
    pub fn to_status_value(&self) -> Value {
        let mut written = json!({ "reason": self.reason });
        let fields = [("ruleName", &self.rule), ("operation", &self.operation)];
        for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            written[field] = json!(value);
        }
        written
    }
}

/// The refusals of operations that lack the label with their type.
fn missing_type_refusals(pod: &Pod) -> Vec<WaitRefusal> {
    let ids = ids_without_type(pod).into_iter();
    ids.map(|id| WaitRefusal::new("", &messages::missing_operation_type(&id)))
        .collect()
}

/// The rules that let the Pod pass, and the refusals of the others.
fn rule_refusals<'a>(
    view: &WaitView<'a>,
    wait: &PodWait<'a>,
    waiting: &[Candidate],
) -> (Vec<&'a str>, Vec<WaitRefusal>) {
    let PodWait { pod, stage, .. } = *wait;
    let rules = &view.status.entry.snapshot.rules;
    let rejections = rejections(rules, stage, pod, &view.status.entry.verdicts);
    let passed: Vec<&str> = rules
        .applicable_rules(stage, pod)
        .filter(|rule| !matches!(rule.kind, RuleKind::Availability(_)))
        .map(|rule| rule.id.as_str())
        .filter(|id| {
            rejections
                .iter()
                .all(|r| r.rule != *id && !r.rule.is_empty())
        })
        .collect();
    let mut all: Vec<WaitRefusal> = rejections
        .into_iter()
        .flat_map(|rejection| refusals_by_operation(view, &rejection, waiting))
        .collect();
    if stage == Stage::PreCheck
        && !wait.is_deleted_with_collaset
        && let AvailabilityRules::Held(held) = rules.availability_rules(pod)
    {
        let budget_refusals = held.into_iter().filter_map(|(name, limits)| {
            Some(WaitRefusal::new(name, &budget_refusal(view, wait, limits)?))
        });
        all.extend(budget_refusals);
    }
    (passed, all)
}

/// The refusals of one rule. An endpoint answers for each operation of a Pod separately.
fn refusals_by_operation(
    view: &WaitView<'_>,
    rejection: &Rejection,
    waiting: &[Candidate],
) -> Vec<WaitRefusal> {
    let rule = &rejection.rule;
    let refusals = waiting.iter().filter_map(|candidate| {
        let reason =
            rule_endpoints::endpoint_wait_reason(view.status.call_states, rule, candidate)?;
        let operation = match waiting {
            [_] => String::new(),
            _ => candidate.operation.clone(),
        };
        Some(WaitRefusal {
            operation,
            ..WaitRefusal::new(rule, &reason)
        })
    });
    let refusals: Vec<_> = refusals.collect();
    match refusals.is_empty() {
        true => vec![WaitRefusal::new(rule, &rejection.reason)],
        false => refusals,
    }
}

/// Why the budget of an availability rule has no headroom for the Pod; `None` if it has headroom.
fn budget_refusal(
    view: &WaitView<'_>,
    wait: &PodWait<'_>,
    limits: &AvailabilityLimits,
) -> Option<String> {
    let gauges = &view.status.gauges;
    let desired = limits.desired(gauges.expected_pods());
    let holds_claim = || view.status.queue.claimed.contains(&*wait.pod.metadata.uid);
    let refuses = match wait.pod.is_available() {
        true if view.denies_all => {
            return Some(messages::EXPECTED_UNKNOWN_MESSAGE.to_owned());
        }
        true if holds_claim() => gauges.available < desired,
        true => gauges.available <= desired,
        // The unavailable Pod itself uses up the budget. If an operation began now, the outage would last longer.
        false => wait.is_briefly_down && gauges.available < desired,
    };
    // Kuperator uses the same text (contract 5.3).
    refuses.then(|| {
        format!(
            "blocked by max unavailable policy: [max unavailable]={}/{}, [current unavailable]={}/{}",
            gauges.expected.saturating_sub(desired),
            gauges.expected,
            gauges.unavailable,
            gauges.expected
        )
    })
}

/// The refusal of a Pod that no rule refuses, but that is not first in the wait queue.
fn queue_refusals(rules: &RuleSet, wait: &PodWait<'_>) -> Vec<WaitRefusal> {
    let held = match rules.availability_rules(wait.pod) {
        AvailabilityRules::Held(held) => held,
        _ => Vec::new(),
    };
    let needs_turn = wait.pod.is_available() && !wait.is_deleted_with_collaset;
    let head = wait.behind.filter(|_| needs_turn);
    let refusal = held.first().zip(head);
    refusal
        .map(|((rule, _), head)| WaitRefusal::new(rule, &messages::queue_position(head)))
        .into_iter()
        .collect()
}
