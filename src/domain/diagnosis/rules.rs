//! The decision of each rule about taking the Pod away now, and the Pods that use its budget.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use jiff::Timestamp;

use super::facts::{BudgetFacts, HolderFacts, RuleFacts, RuleVerdict};
use super::{
    ObservedPod, PodController, RuleObject, operation_off_traffic, out_of_service_reason,
    parse_stamp, parse_time, readiness_since,
};
use crate::api::keys::{self, Family};
use crate::api::podtransitionrule::{Kind, PodTransitionRuleStatus, Rule as Written};
use crate::domain::budget_holders::order_holders;
use crate::domain::collaset::deletes_its_pods;
use crate::domain::inplace;
use crate::domain::lifecycle::is_held_offline;
use crate::domain::messages;
use crate::domain::not_ready::NotReadyCause;
use crate::domain::pending_disruption::counts_as_available;
use crate::domain::pod::{BRIEFLY_DOWN, Pod};
use crate::domain::rules::budget::BindingMinimum;
use crate::domain::rules::stage::{operation_rejections, stage_candidates, stored_rejection};
use crate::domain::rules::webhook::EndpointVerdicts;
use crate::domain::rules::{AvailabilityLimits, CompiledRule, RuleKind, Stage};

/// Largest number of Pods that are listed as users of a budget.
const MAX_HOLDERS: usize = 10;
/// Largest number of these Pods that a sentence names, as in a denial.
const MAX_NAMES: usize = 3;

/// The rules of every object that selects the Pod. `excluded` says why none of them is enforced. With an `operation`,
/// the decisions are about this operation only.
pub fn rule_facts(
    observed: &ObservedPod,
    budgets: &BudgetTable,
    excluded: Option<&str>,
    operation: Option<&str>,
) -> Vec<RuleFacts> {
    let mut facts = facts_of_objects(observed, budgets, operation);
    if let Some(reason) = excluded {
        mark_unenforced(&mut facts, reason);
    }
    facts
}

/// Sets the decision of all rules: they do not apply, because they are not enforced.
pub fn mark_unenforced(facts: &mut [RuleFacts], reason: &str) {
    for rule in facts {
        (rule.verdict, rule.reason) = (RuleVerdict::NotApplying, reason.to_owned());
        rule.budget = None;
    }
}

fn facts_of_objects(
    observed: &ObservedPod,
    budgets: &BudgetTable,
    operation: Option<&str>,
) -> Vec<RuleFacts> {
    let pod = &observed.pod;
    let covering = observed.rules.iter().filter(|rule| rule.set.selects(pod));
    let mut facts = Vec::new();
    for object in covering {
        if let Err(reason) = &object.set.selector {
            facts.push(RuleFacts {
                object: object.set.name.clone(),
                rule: String::new(),
                kind: "",
                stage: Stage::PreCheck.as_str(),
                verdict: RuleVerdict::Holds,
                reason: unreadable_rule_message(reason, object.set.may_limit),
                budget: None,
            });
            continue;
        }
        let written = &object.object.spec.rules;
        // The compiled rules are the enabled ones, in the same order. Rules are not matched by name, because two rules
        // may have the same name.
        let mut enabled = object.set.rules.iter();
        facts.extend(written.iter().map(|rule| {
            let compiled = (!rule.disabled).then(|| enabled.next()).flatten();
            rule_fact(observed, (object, budgets), rule, compiled, operation)
        }));
    }
    facts
}

/// The message about a rule that can't be read. The rule holds operations on its Pods. If it may be a limit, it also
/// holds deletions and evictions.
fn unreadable_rule_message(cause: &str, may_limit: bool) -> String {
    match may_limit {
        true => format!("{UNREADABLE_LIMIT}{cause}"),
        false => format!("{UNREADABLE_RULE}, and holds only operations: {cause}"),
    }
}

/// Prefix of every message about an unreadable rule.
pub const UNREADABLE_RULE: &str = "it can't be evaluated";

/// Prefix of the message about an unreadable rule that also holds deletions and evictions.
pub const UNREADABLE_LIMIT: &str = "it can't be evaluated: ";

/// The facts of a rule. `written` is the rule in the spec, `compiled` is `None` if it is disabled.
fn rule_fact(
    observed: &ObservedPod,
    (object, budgets): (&RuleObject, &BudgetTable),
    written: &Written,
    compiled: Option<&CompiledRule>,
    operation: Option<&str>,
) -> RuleFacts {
    let stage = compiled.map_or(Stage::PreCheck, |r| r.stage);
    let mut facts = RuleFacts {
        object: object.set.name.clone(),
        rule: written.name.clone(),
        kind: rule_kind(written),
        stage: stage.as_str(),
        verdict: RuleVerdict::Passes,
        reason: String::new(),
        budget: None,
    };
    let pod = &*observed.pod;
    let Some(rule) = compiled else {
        (facts.verdict, facts.reason) = (RuleVerdict::NotApplying, "it is disabled".to_owned());
        return facts;
    };
    if let RuleKind::Availability(limits) = &rule.kind
        && let Some(status) = object.current_status()
    {
        let shared = budgets.of_object(observed, object, status);
        facts.budget = Some(budget_facts(observed, object, status, limits, &shared));
    }
    (facts.verdict, facts.reason) = if !rule_applies(object, rule, pod) {
        let matches = rule
            .filter
            .as_ref()
            .is_none_or(|f| f.matches(&pod.metadata.labels));
        let reason = match matches {
            true => format!(
                "the Pod skips it by its annotation {}",
                keys::SKIP_RULE_CONDITIONS
            ),
            false => "its filter does not match the Pod".to_owned(),
        };
        (RuleVerdict::NotApplying, reason)
    } else if let RuleKind::Availability(limits) = &rule.kind {
        judge_availability(observed, object, stage, limits, facts.budget.as_ref())
    } else {
        judge_other_rule(object, rule, pod, operation)
    };
    if facts.verdict == RuleVerdict::Passes
        && let Some(failure) = unanswered_pass_reason(object, rule)
    {
        facts.reason = format!(
            "{}; its endpoint does not answer, and failurePolicy Ignore has let Pods pass: {failure}",
            facts.reason
        );
    }
    if facts.budget.is_some()
        && let Some(partly_matched) = object.partly_matched_message()
    {
        facts.reason = format!("{}; {partly_matched}", facts.reason);
    }
    if let RuleKind::Broken { reason, may_limit } = &rule.kind
        && facts.verdict == RuleVerdict::Holds
    {
        facts.reason = unreadable_rule_message(reason, *may_limit);
    }
    facts
}

/// The kind of a rule. If several are set, the first in this order is used (contract 1.3).
fn rule_kind(rule: &Written) -> &'static str {
    rule.kinds().next().map_or("", Kind::field)
}

fn rule_applies(object: &RuleObject, rule: &CompiledRule, pod: &Pod) -> bool {
    let mut applying = object.set.applicable_rules(rule.stage, pod);
    applying.any(|applied| std::ptr::eq(applied, rule))
}

/// The decision of an availability rule that applies to the Pod.
fn judge_availability(
    observed: &ObservedPod,
    object: &RuleObject,
    stage: Stage,
    limits: &AvailabilityLimits,
    budget: Option<&BudgetFacts>,
) -> (RuleVerdict, String) {
    if let Some(reason) = budget_exemption(observed, object, stage) {
        return (RuleVerdict::Passes, reason);
    }
    let is_available = observed.pod.is_available();
    let denying_condition = object
        .denies_all_condition()
        .filter(|_| is_available || limits.if_healthy);
    if let Some(condition) = denying_condition {
        return (RuleVerdict::Holds, condition.message.clone());
    }
    match is_available {
        true => judge_available_pod(observed, object, budget),
        false => judge_unavailable_pod(observed, limits, budget),
    }
}

/// Why an availability rule lets the Pod pass whatever its budget is. `None` if the budget decides.
fn budget_exemption(observed: &ObservedPod, object: &RuleObject, stage: Stage) -> Option<String> {
    if stage == Stage::PostCheck {
        return Some("availability passes in PostCheck: the Pod is off traffic already".to_owned());
    }
    if let Some(PodController::CollaSet(set)) = &observed.controller
        && deletes_its_pods(&set.metadata)
    {
        return Some("its CollaSet is being deleted: no budget holds its Pods".to_owned());
    }
    let ledger = object.status()?.ledger.as_ref()?;
    let mut claims = ledger.claims.iter();
    let claim = claims.find(|claim| claim.pod_uid == observed.pod.metadata.uid)?;
    let age = messages::format_ago(claim.since.0, observed.now);
    Some(format!(
        "the Pod holds a claim ({}, for {age})",
        claim.operation
    ))
}

fn judge_unavailable_pod(
    observed: &ObservedPod,
    limits: &AvailabilityLimits,
    budget: Option<&BudgetFacts>,
) -> (RuleVerdict, String) {
    let exceeded = budget.filter(|budget| budget.used > budget.limit);
    if limits.if_healthy
        && let Some(budget) = exceeded
    {
        let figures = describe_figures(budget);
        return (
            RuleVerdict::Holds,
            format!(
                "the Pod is not available, and unhealthyPodPolicy IfHealthyBudget lets it be deleted or evicted only \
                 while the others keep to the limit: {figures}"
            ),
        );
    }
    if !limits.if_healthy
        && let Some(until) = briefly_down_until(&observed.pod, observed.now)
    {
        let until = until.strftime("%H:%M:%SZ");
        let reason = format!(
            "the Pod stopped being Ready a moment ago and may come back by itself: until about {until} its budget \
             holds operations, in-place changes and evictions of it, but not its deletion; after that it may go"
        );
        return match exceeded {
            Some(budget) => (
                RuleVerdict::Holds,
                format!("{reason}: {}", describe_figures(budget)),
            ),
            None => (RuleVerdict::Passes, reason),
        };
    }
    let reason = "the Pod is not available, so no availability is lost";
    (RuleVerdict::Passes, reason.to_owned())
}

fn judge_available_pod(
    observed: &ObservedPod,
    object: &RuleObject,
    budget: Option<&BudgetFacts>,
) -> (RuleVerdict, String) {
    let Some(budget) = budget else {
        let reason = "the server has not counted its Pods yet; if this does not change, check whether the server runs";
        return (RuleVerdict::Unknown, reason.to_owned());
    };
    if budget.allowed > 0 {
        return (RuleVerdict::Passes, describe_figures(budget));
    }
    let holders = budget.holders.iter().take(MAX_NAMES);
    let holders: Vec<_> = holders
        .map(|holder| messages::describe_holder(&holder.pod, holder.since, observed.now))
        .collect();
    let figures = messages::figures_with_holders(describe_figures(budget), &holders);
    let held_rollout = object.held_rollout_message(&observed.pod);
    let remedy =
        held_rollout.unwrap_or_else(|| messages::budget_remedy(budget.limit, budget.minimum));
    (RuleVerdict::Holds, format!("{figures}; {remedy}"))
}

fn describe_figures(budget: &BudgetFacts) -> String {
    messages::budget_figures(budget.used, budget.expected, budget.limit, budget.minimum)
}

/// The time until which the server counts an unavailable Pod as down for a moment. `None` if it does not count so.
///
/// The server uses its own clock and what it has observed. This function can only use the last transition of the Pod's
/// condition Ready.
fn briefly_down_until(pod: &Pod, now: Timestamp) -> Option<Timestamp> {
    let ends = pod.is_terminating() || pod.is_finished();
    if pod.is_available() || ends || pod.is_broken() || is_held_offline(pod) {
        return None;
    }
    let mut conditions = pod.status.conditions.iter();
    let ready = conditions.find(|c| c.type_ == "Ready")?;
    let since = parse_time(ready.last_transition_time.as_deref()?)?;
    let until = since.checked_add(BRIEFLY_DOWN).ok()?;
    (until > now).then_some(until)
}

/// The decision of a rule without a budget: from the rule itself, and from what the controller has stored about the
/// Pod. An endpoint answers for each operation separately.
fn judge_other_rule(
    object: &RuleObject,
    rule: &CompiledRule,
    pod: &Pod,
    operation: Option<&str>,
) -> (RuleVerdict, String) {
    let mut waiting = stage_candidates(rule.stage, pod);
    waiting.retain(|candidate| operation.is_none_or(|id| candidate.operation == id));
    let is_webhook = matches!(rule.kind, RuleKind::Webhook(_));
    if is_webhook && waiting.is_empty() {
        let reason = "its endpoint is asked once an operation waits for it";
        return (RuleVerdict::NotApplying, reason.to_owned());
    }
    let verdicts = EndpointVerdicts::from_status(&object.object, &object.set);
    let mut rejections = operation_rejections(&object.set, rule.stage, pod, &waiting, &verdicts);
    let Some(rejection) = rejections.find(|r| r.rule == rule.id) else {
        return (RuleVerdict::Passes, "the Pod passes the rule".to_owned());
    };
    if !is_webhook {
        return (RuleVerdict::Holds, rejection.reason);
    }
    let refused_candidates = waiting.iter().filter(|c| !verdicts.has_passed(&rule.id, c));
    let reasons = refused_candidates.map(|candidate| {
        // The controller has stored what an endpoint has answered.
        let stored = stored_rejection(
            &object.object,
            rule.stage,
            pod,
            &rule.id,
            &candidate.operation,
        );
        let reason = stored.map_or_else(
            || describe_unlisted_pod(object, rule, pod, &rejection.reason),
            ToOwned::to_owned,
        );
        (candidate.operation.as_str(), reason)
    });
    let reasons: Vec<_> = reasons.collect();
    let reason = match &reasons[..] {
        [] => rejection.reason,
        [(_, first), others @ ..] if others.iter().all(|(_, reason)| reason == first) => {
            first.clone()
        }
        several => {
            let several = several.iter();
            let several: Vec<_> = several
                .map(|(id, reason)| format!("operation {id}: {reason}"))
                .collect();
            several.join("; ")
        }
    };
    (RuleVerdict::Holds, reason)
}

/// Why the last call of a webhook rule failed, if Pods have passed since without an answer.
fn unanswered_pass_reason<'a>(object: &'a RuleObject, rule: &CompiledRule) -> Option<&'a str> {
    let mut states = object.status()?.rule_states.iter();
    let state = states.find(|state| state.name == rule.id)?;
    let webhook = state.webhook_status.as_ref()?;
    let passed = webhook.passed_unanswered && !webhook.failing.is_empty();
    passed.then_some(webhook.failing.as_str())
}

/// The reason for a Pod that the status does not list. It says how many Pods wait for which reason.
fn describe_unlisted_pod(
    object: &RuleObject,
    rule: &CompiledRule,
    pod: &Pod,
    reason: &str,
) -> String {
    let status = object.status();
    let is_listed = status.is_some_and(|status| {
        let mut details = status.details.iter();
        details.any(|d| d.name == pod.metadata.name && d.stage == rule.stage.as_str())
    });
    let counts = status.iter().flat_map(|status| &status.wait_reasons);
    let counts = counts
        .filter(|r| !is_listed && r.rule_name == rule.id && r.stage == rule.stage.as_str())
        .map(|r| format!("{} wait for: {}", r.pods, r.reason));
    let counts: Vec<_> = counts.take(MAX_NAMES).collect();
    match counts.is_empty() {
        true => reason.to_owned(),
        false => format!(
            "{reason}; status.details leaves this Pod out: of all Pods that wait for the rule, {}",
            counts.join("; ")
        ),
    }
}

fn budget_facts(
    observed: &ObservedPod,
    object: &RuleObject,
    status: &PodTransitionRuleStatus,
    limits: &AvailabilityLimits,
    shared: &SharedBudget,
) -> BudgetFacts {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let expected = count(status.expected_pods);
    let uid = &observed.pod.metadata.uid;
    let is_listed = observed.pods.iter().any(|pod| pod.metadata.uid == *uid);
    // Without the Pod itself, the Pods could not be read. The status may be older than the Pods.
    let counted_available = is_listed.then_some(shared.available);
    let (available, used) = match counted_available {
        Some(available) => (available, expected.saturating_sub(available)),
        None => (count(status.available_pods), count(status.unavailable_pods)),
    };
    let desired = object.counted_limit().map_or_else(
        || limits.desired(expected),
        |limit| expected.saturating_sub(limit),
    );
    let mut holders = shared.holders.clone();
    let unlisted = used.saturating_sub(u32::try_from(holders.len()).unwrap_or(u32::MAX));
    let omitted = holders.len().saturating_sub(MAX_HOLDERS);
    holders.truncate(MAX_HOLDERS);
    let queue = &shared.queue;
    let earlier_pods = precheck_since(&observed.pod).map(|(since, uid)| {
        let earlier_pods = queue.iter().filter(|((other_since, other_uid), _)| {
            (*other_since, other_uid.as_str()) < (since, uid)
        });
        let mut earlier_pods: Vec<_> = earlier_pods.collect();
        earlier_pods.sort();
        earlier_pods
    });
    BudgetFacts {
        used,
        limit: expected.saturating_sub(desired),
        expected,
        minimum: limits
            .binding_minimum(expected)
            .map(|value| BindingMinimum {
                value,
                desired,
                available,
            }),
        allowed: match object.denies_all_condition() {
            Some(_) => 0,
            None => available.saturating_sub(desired),
        },
        holders,
        unlisted: unlisted + u32::try_from(omitted).unwrap_or(u32::MAX),
        waiting: match counted_available {
            Some(_) => u32::try_from(queue.len()).unwrap_or(u32::MAX),
            None => count(status.waiting_pods),
        },
        before: earlier_pods
            .as_ref()
            .map(|earlier| u32::try_from(earlier.len()).unwrap_or(u32::MAX)),
        behind: earlier_pods.and_then(|earlier| earlier.first().map(|(_, name)| name.clone())),
    }
}

/// What the budget of a rule object is to all Pods that it selects.
struct SharedBudget {
    /// Number of selected Pods that are available and have no claim.
    available: u32,
    holders: Vec<HolderFacts>,
    queue: Vec<QueuedPod>,
}

/// Since when a Pod waits and its UID, which are the order of the queue, and its name.
type QueuedPod = ((Option<Timestamp>, String), String);

/// The budgets of rule objects by their names. Each is computed once for all Pods of a namespace.
#[derive(Default)]
pub struct BudgetTable(RefCell<HashMap<String, Rc<SharedBudget>>>);

impl BudgetTable {
    fn of_object(
        &self,
        observed: &ObservedPod,
        object: &RuleObject,
        status: &PodTransitionRuleStatus,
    ) -> Rc<SharedBudget> {
        let mut budgets = self.0.borrow_mut();
        let budget = budgets.entry(object.set.name.clone()).or_insert_with(|| {
            Rc::new(SharedBudget {
                available: count_available_unclaimed(observed, object, status),
                holders: budget_holders(observed, object, status),
                queue: budget_queue(observed, object),
            })
        });
        Rc::clone(budget)
    }
}

fn count_available_unclaimed(
    observed: &ObservedPod,
    object: &RuleObject,
    status: &PodTransitionRuleStatus,
) -> u32 {
    let claims = status.ledger.iter().flat_map(|ledger| &ledger.claims);
    let claimed: HashSet<&str> = claims.map(|claim| claim.pod_uid.as_str()).collect();
    let pods = observed.pods.iter().filter(|pod| {
        object.set.selects(pod) && counts_as_available(pod) && !claimed.contains(&*pod.metadata.uid)
    });
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

/// Available Pods that wait in PreCheck only for the budget of this object.
fn budget_queue(observed: &ObservedPod, object: &RuleObject) -> Vec<QueuedPod> {
    let verdicts = EndpointVerdicts::from_status(&object.object, &object.set);
    let is_rejected = |pod: &Pod| {
        let waiting = stage_candidates(Stage::PreCheck, pod);
        let mut rejections =
            operation_rejections(&object.set, Stage::PreCheck, pod, &waiting, &verdicts);
        rejections.next().is_some()
    };
    let pods = observed
        .pods
        .iter()
        .filter(|pod| pod.is_available() && object.set.selects(pod));
    let waiting = pods.filter_map(|pod| Some((pod, precheck_since(pod)?)));
    waiting
        .filter(|(pod, _)| !is_rejected(pod))
        .map(|(pod, (since, uid))| ((since, uid.to_owned()), pod.metadata.name.clone()))
        .collect()
}

/// The Pod with this UID, if it is available.
fn find_available_pod<'a>(observed: &'a ObservedPod, uid: &str) -> Option<&'a Pod> {
    let mut pods = observed.pods.iter().map(|pod| &**pod);
    pods.find(|pod| pod.metadata.uid == uid && pod.is_available())
}

/// Pods with claims and unavailable Pods, each Pod once. The Pod that has been unavailable longest comes first.
fn budget_holders(
    observed: &ObservedPod,
    object: &RuleObject,
    status: &PodTransitionRuleStatus,
) -> Vec<HolderFacts> {
    let claims = status.ledger.iter().flat_map(|ledger| &ledger.claims);
    let claimed = claims.map(|claim| HolderFacts {
        pod: claim.pod_name.clone(),
        since: Some(claim.since.0),
        because: match claim.operation.as_str() {
            "Deadline" => messages::deadline_frees_budget(&claim.pod_name),
            operation => match find_available_pod(observed, &claim.pod_uid) {
                Some(pod) if operation == "InPlace" => messages::restart_frees_budget(
                    &claim.pod_name,
                    inplace::is_resize_deferred(pod),
                ),
                _ => format!("{operation} was admitted and has not taken effect"),
            },
        },
    });
    let unavailable = observed
        .pods
        .iter()
        .filter(|pod| object.set.selects(pod) && !pod.is_terminating() && !pod.is_finished())
        .filter_map(|pod| {
            let (since, because) = unavailability(pod)?;
            Some(HolderFacts {
                pod: pod.metadata.name.clone(),
                since,
                because,
            })
        });
    let mut holders: Vec<HolderFacts> = claimed.chain(unavailable).collect();
    order_holders(&mut holders, |holder| (holder.since, &holder.pod));
    holders
}

/// Since when a Pod is unavailable, and the cause: the operation on it, if there is one. `None` if it is available.
fn unavailability(pod: &Pod) -> Option<(Option<Timestamp>, String)> {
    let obstacle = out_of_service_reason(pod, None)?;
    let in_flight = operation_off_traffic(pod);
    let is_stuck = NotReadyCause::of_pod(pod).is_some_and(|cause| cause.is_stuck());
    let because = match &in_flight {
        Some((id, phase)) if !is_stuck => format!("operation {id} is in {phase:?}"),
        _ => obstacle,
    };
    // Until the kubelet has followed, its condition Ready is older than the operation.
    let granted =
        in_flight.and_then(|(id, _)| parse_stamp(pod.label(&Family::PreChecked.key(&id))));
    let since = granted.filter(|_| pod.is_ready());
    Some((since.or(readiness_since(pod)), because))
}

/// Since when a Pod waits in PreCheck, and its UID, which are the order of the wait queue. `None` if it does not wait,
/// or waits only for the type of its operation.
fn precheck_since(pod: &Pod) -> Option<(Option<Timestamp>, &str)> {
    if pod.is_terminating() {
        return None;
    }
    let waiting = stage_candidates(Stage::PreCheck, pod).into_iter();
    let since = waiting
        .map(|waiting| parse_stamp(Some(&waiting.since)))
        .min()?;
    Some((since, &pod.metadata.uid))
}
