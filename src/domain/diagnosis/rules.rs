//! The decision of each rule about taking the Pod away now, and the Pods that use its budget.

use std::collections::HashSet;

use jiff::Timestamp;

use super::facts::{BudgetFacts, HolderFacts, RuleFacts, RuleVerdict};
use super::{
    ObservedPod, PodController, RuleObject, out_of_service_reason, parse_stamp, parse_time,
    readiness_since,
};
use crate::api::keys::{self, Family};
use crate::api::podtransitionrule::{Kind, PodTransitionRuleStatus, Rule as Written};
use crate::domain::collaset::deletes_its_pods;
use crate::domain::inplace;
use crate::domain::lifecycle::{Phase, is_held_offline, stored_phases};
use crate::domain::messages;
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
    excluded: Option<&str>,
    operation: Option<&str>,
) -> Vec<RuleFacts> {
    let mut all = facts_of_objects(observed, operation);
    if let Some(why) = excluded {
        mark_unenforced(&mut all, why);
    }
    all
}

/// Sets the decision of all rules: they do not apply, because they are not enforced. `why` is the reason.
pub fn mark_unenforced(all: &mut [RuleFacts], why: &str) {
    for rule in all {
        (rule.verdict, rule.reason) = (RuleVerdict::NotApplying, why.to_owned());
        rule.budget = None;
    }
}

fn facts_of_objects(observed: &ObservedPod, operation: Option<&str>) -> Vec<RuleFacts> {
    let pod = &observed.pod;
    let covering = observed.rules.iter().filter(|rule| rule.set.selects(pod));
    let mut all = Vec::new();
    for object in covering {
        if let Err(why) = &object.set.selector {
            all.push(RuleFacts {
                object: object.set.name.clone(),
                rule: String::new(),
                kind: "",
                stage: Stage::PreCheck.as_str(),
                verdict: RuleVerdict::Holds,
                reason: unreadable_rule_message(why, object.set.may_limit),
                budget: None,
            });
            continue;
        }
        let written = &object.object.spec.rules;
        // The compiled rules are the enabled ones, in the same order. Rules are not matched by name, because two rules
        // may have the same name.
        let mut enabled = object.set.rules.iter();
        all.extend(written.iter().map(|rule| {
            let compiled = (!rule.disabled).then(|| enabled.next()).flatten();
            rule_fact(observed, object, rule, compiled, operation)
        }));
    }
    all
}

/// The message about a rule that can't be read. The rule holds operations on its Pods. If it may be a limit, it also
/// holds deletions and evictions.
fn unreadable_rule_message(why: &str, may_limit: bool) -> String {
    match may_limit {
        true => format!("{UNREADABLE_LIMIT}{why}"),
        false => format!("{UNREADABLE_RULE}, and holds operations alone: {why}"),
    }
}

/// Prefix of the message about a rule that can't be read.
pub const UNREADABLE_RULE: &str = "it can't be evaluated";

/// Prefix of this message if the rule also holds deletions and evictions.
pub const UNREADABLE_LIMIT: &str = "it can't be evaluated: ";

/// The facts of a rule. `written` is the rule in the spec, `compiled` is `None` if it is disabled.
fn rule_fact(
    observed: &ObservedPod,
    object: &RuleObject,
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
        && let Some(status) = current_status(object)
    {
        facts.budget = Some(budget_facts(observed, object, status, limits));
    }
    (facts.verdict, facts.reason) = if !rule_applies(object, rule, pod) {
        let matches = rule
            .filter
            .as_ref()
            .is_none_or(|f| f.matches(&pod.metadata.labels));
        let why = match matches {
            true => format!(
                "the Pod skips it by its annotation {}",
                keys::SKIP_RULE_CONDITIONS
            ),
            false => "its filter does not match the Pod".to_owned(),
        };
        (RuleVerdict::NotApplying, why)
    } else if let RuleKind::Availability(limits) = &rule.kind {
        judge_availability(observed, object, stage, limits, facts.budget.as_ref())
    } else {
        judge_other_rule(object, rule, pod, operation)
    };
    if facts.verdict == RuleVerdict::Passes
        && let Some(failing) = unanswered_pass_reason(object, rule)
    {
        facts.reason = format!(
            "{}; its endpoint does not answer, and failurePolicy Ignore has let Pods pass: {failing}",
            facts.reason
        );
    }
    if facts.budget.is_some()
        && let Some(partly) = object.partly_matched_message()
    {
        facts.reason = format!("{}; {partly}", facts.reason);
    }
    if let RuleKind::Broken { why, may_limit } = &rule.kind
        && facts.verdict == RuleVerdict::Holds
    {
        facts.reason = unreadable_rule_message(why, *may_limit);
    }
    facts
}

/// The kind of a rule. If several are set, the first in this order is used (contract 1.3).
fn rule_kind(rule: &Written) -> &'static str {
    rule.kinds().next().map_or("", Kind::field)
}

fn rule_applies(object: &RuleObject, rule: &CompiledRule, pod: &Pod) -> bool {
    let mut applying = object.set.applicable_rules(rule.stage, pod);
    applying.any(|other| std::ptr::eq(other, rule))
}

/// The status of the object, if it describes the present spec.
fn current_status(object: &RuleObject) -> Option<&PodTransitionRuleStatus> {
    let status = object.status()?;
    let current = status.observed_generation == object.set.generation;
    (current && status.observed_generation > 0).then_some(status)
}

fn judge_availability(
    observed: &ObservedPod,
    object: &RuleObject,
    stage: Stage,
    limits: &AvailabilityLimits,
    budget: Option<&BudgetFacts>,
) -> (RuleVerdict, String) {
    let pod = &observed.pod;
    if stage == Stage::PostCheck {
        let why = "availability passes in PostCheck: the Pod is off traffic already";
        return (RuleVerdict::Passes, why.to_owned());
    }
    if let Some(PodController::CollaSet(set)) = &observed.controller
        && deletes_its_pods(&set.metadata)
    {
        let why = "its CollaSet is being deleted: no budget holds its Pods";
        return (RuleVerdict::Passes, why.to_owned());
    }
    let own = object
        .status()
        .and_then(|s| s.ledger.as_ref())
        .and_then(|ledger| {
            let mut claims = ledger.claims.iter();
            claims.find(|claim| claim.pod_uid == pod.metadata.uid)
        });
    if let Some(claim) = own {
        let age = messages::format_ago(claim.since.0, observed.now);
        let why = format!("the Pod holds a claim ({}, for {age})", claim.operation);
        return (RuleVerdict::Passes, why);
    }
    let denied = object
        .denies_all_condition()
        .filter(|_| pod.is_available() || limits.if_healthy);
    if let Some(condition) = denied {
        return (RuleVerdict::Holds, condition.message.clone());
    }
    if !pod.is_available() {
        return match budget {
            Some(b) if limits.if_healthy && b.used > b.limit => {
                let figures = budget_figures(b);
                let why = "the Pod is not available, and unhealthyPodPolicy IfHealthyBudget lets it be deleted or evicted only \
                           while the others keep to the limit";
                (RuleVerdict::Holds, format!("{why}: {figures}"))
            }
            _ if !limits.if_healthy
                && let Some(until) = briefly_down_until(pod, observed.now) =>
            {
                let until = until.strftime("%H:%M:%SZ");
                let why = format!(
                    "the Pod stopped being Ready a moment ago and may come back by itself: until about {until} it begins an \
                     operation, is changed in place and is evicted only within the budget, while a deletion is not held; \
                     after that it may go"
                );
                match budget.filter(|b| b.used > b.limit) {
                    Some(b) => {
                        let figures = budget_figures(b);
                        (RuleVerdict::Holds, format!("{why}: {figures}"))
                    }
                    None => (RuleVerdict::Passes, why),
                }
            }
            _ => {
                let why = "the Pod is not available: nothing is lost by it";
                (RuleVerdict::Passes, why.to_owned())
            }
        };
    }
    match budget {
        None => {
            let why = "the server has not counted its Pods yet; if this stays so, see whether the server runs";
            (RuleVerdict::Unknown, why.to_owned())
        }
        Some(b) if b.allowed > 0 => (RuleVerdict::Passes, budget_figures(b)),
        Some(b) => {
            let names = b.holders.iter().take(MAX_NAMES);
            let names: Vec<_> = names
                .map(|h| messages::describe_holder(&h.pod, h.since, observed.now))
                .collect();
            let used_by = messages::figures_with_holders(budget_figures(b), &names);
            let standstill = object.held_rollout_message(pod);
            let remedy = standstill.unwrap_or_else(|| messages::budget_remedy(b.limit, b.minimum));
            (RuleVerdict::Holds, format!("{used_by}; {remedy}"))
        }
    }
}

fn budget_figures(budget: &BudgetFacts) -> String {
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
    let asks = matches!(rule.kind, RuleKind::Webhook(_));
    if asks && waiting.is_empty() {
        let why = "its endpoint is asked once an operation waits for it";
        return (RuleVerdict::NotApplying, why.to_owned());
    }
    let verdicts = EndpointVerdicts::from_status(&object.object, &object.set);
    let mut said = operation_rejections(&object.set, rule.stage, pod, &waiting, &verdicts);
    let Some(said) = said.find(|r| r.rule == rule.id) else {
        return (RuleVerdict::Passes, "nothing speaks against it".to_owned());
    };
    if !asks {
        return (RuleVerdict::Holds, said.reason);
    }
    let refused = waiting.iter().filter(|c| !verdicts.has_passed(&rule.id, c));
    let reasons = refused.map(|candidate| {
        // The controller has stored what an endpoint has answered.
        let written = stored_rejection(
            &object.object,
            rule.stage,
            pod,
            &rule.id,
            &candidate.operation,
        );
        let reason = written.map_or_else(
            || describe_unlisted_pod(object, rule, pod, &said.reason),
            ToOwned::to_owned,
        );
        (candidate.operation.as_str(), reason)
    });
    let reasons: Vec<_> = reasons.collect();
    let reason = match &reasons[..] {
        [] => said.reason,
        [(_, first), rest @ ..] if rest.iter().all(|(_, reason)| reason == first) => first.clone(),
        all => {
            let all = all.iter();
            let all: Vec<_> = all
                .map(|(id, reason)| format!("operation {id}: {reason}"))
                .collect();
            all.join("; ")
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
    let counted = status.iter().flat_map(|status| &status.wait_reasons);
    let counted = counted
        .filter(|r| !is_listed && r.rule_name == rule.id && r.stage == rule.stage.as_str())
        .map(|r| format!("{} wait for: {}", r.pods, r.reason));
    let counted: Vec<_> = counted.take(MAX_NAMES).collect();
    match counted.is_empty() {
        true => reason.to_owned(),
        false => format!(
            "{reason}; status.details leaves this Pod out: of all Pods that wait for the rule, {}",
            counted.join("; ")
        ),
    }
}

fn budget_facts(
    observed: &ObservedPod,
    object: &RuleObject,
    status: &PodTransitionRuleStatus,
    limits: &AvailabilityLimits,
) -> BudgetFacts {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let expected = count(status.expected_pods);
    let counted = count_available_unclaimed(observed, object, status);
    let (available, used) = match counted {
        Some(available) => (available, expected.saturating_sub(available)),
        None => (count(status.available_pods), count(status.unavailable_pods)),
    };
    let desired = limits.desired(expected);
    let mut holders = budget_holders(observed, object, status);
    let unlisted = used.saturating_sub(u32::try_from(holders.len()).unwrap_or(u32::MAX));
    let cut = holders.len().saturating_sub(MAX_HOLDERS);
    holders.truncate(MAX_HOLDERS);
    let queue = budget_queue(observed, object);
    let longer = precheck_since(&observed.pod).map(|own| {
        let longer = queue.iter().filter(|(since, _)| *since < own);
        let mut longer: Vec<_> = longer.collect();
        longer.sort();
        longer
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
        unlisted: unlisted + u32::try_from(cut).unwrap_or(u32::MAX),
        waiting: match counted {
            Some(_) => u32::try_from(queue.len()).unwrap_or(u32::MAX),
            None => count(status.waiting_pods),
        },
        before: longer
            .as_ref()
            .map(|all| u32::try_from(all.len()).unwrap_or(u32::MAX)),
        behind: longer.and_then(|all| all.first().map(|(_, name)| (*name).to_owned())),
    }
}

/// Number of selected Pods that are available and have no claim. `None` if the Pods could not be read. The status may
/// be older than the Pods.
fn count_available_unclaimed(
    observed: &ObservedPod,
    object: &RuleObject,
    status: &PodTransitionRuleStatus,
) -> Option<u32> {
    let uid = &observed.pod.metadata.uid;
    observed.pods.iter().find(|pod| pod.metadata.uid == *uid)?;
    let claims = status.ledger.iter().flat_map(|ledger| &ledger.claims);
    let claimed: HashSet<&str> = claims.map(|claim| claim.pod_uid.as_str()).collect();
    let pods = observed.pods.iter().filter(|pod| {
        object.set.selects(pod) && counts_as_available(pod) && !claimed.contains(&*pod.metadata.uid)
    });
    u32::try_from(pods.count()).ok()
}

/// Available Pods that wait in PreCheck only for the budget of this object: since when they wait, their UID and their
/// name.
fn budget_queue<'a>(
    observed: &'a ObservedPod,
    object: &RuleObject,
) -> Vec<((Option<Timestamp>, &'a str), &'a str)> {
    let verdicts = EndpointVerdicts::from_status(&object.object, &object.set);
    let is_refused = |pod: &Pod| {
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
        .filter(|(pod, _)| !is_refused(pod))
        .map(|(pod, since)| (since, pod.metadata.name.as_str()))
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
                _ => format!("claim: {operation} is admitted"),
            },
        },
    });
    let unavailable = observed
        .pods
        .iter()
        .filter(|pod| object.set.selects(pod) && !pod.is_terminating() && !pod.is_finished())
        .filter_map(|pod| {
            let (since, because) = unavailable_since(pod)?;
            Some(HolderFacts {
                pod: pod.metadata.name.clone(),
                since,
                because,
            })
        });
    let mut all: Vec<HolderFacts> = claimed.chain(unavailable).collect();
    all.sort_by(|a, b| {
        (a.since.is_none(), a.since, &a.pod).cmp(&(b.since.is_none(), b.since, &b.pod))
    });
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|holder| seen.insert(holder.pod.clone()));
    all
}

/// Since when a Pod is unavailable, and why: the operation on it, if there is one. `None` if it is available.
fn unavailable_since(pod: &Pod) -> Option<(Option<Timestamp>, String)> {
    let obstacle = out_of_service_reason(pod, None)?;
    let in_flight = stored_phases(pod)
        .into_iter()
        .find(|(_, phase)| *phase != Phase::PreCheck);
    let because = match &in_flight {
        Some((id, phase)) => format!("operation {id} is in {phase:?}"),
        None => obstacle,
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
