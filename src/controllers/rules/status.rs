//! Computes the status of a PodTransitionRule, except the ledger: the counts for users and tools, and the reasons why
//! Pods wait. Lists are sorted, and the status is written only if it differs. Its size is bounded for any number of
//! Pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::rule_endpoints::{self, CallStates};
use super::rollouts as held;
use super::wait_reasons::WaitReasonCounts;
use crate::api::size_limits::{self, MAX_DETAILS_BYTES, MAX_TARGETS_BYTES};
use crate::cluster::index::{IndexState, NamespaceIndex, RuleEntry};
use crate::cluster::selection;
use crate::domain::lifecycle::{Stage, ids_without_type};
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::rules::budget::BudgetGauges;
use crate::domain::rules::conditions::{
    self, ConditionFinding, LedgerStorage, NamespaceState, SelectorMatches, UnknownReplicasOwners,
};
use crate::domain::rules::endpoints;
use crate::domain::rules::rollouts;
use crate::domain::rules::stage::{Rejection, rejections, stage_candidates};
use crate::domain::rules::webhook::Candidate;
use crate::domain::rules::{AvailabilityLimits, AvailabilityRules, RuleKind, RuleSet};
use crate::ledger::store::Uid;

/// Maximum number of waiting Pods in `details`; `waitingPods` counts all.
pub const MAX_DETAILS: usize = 100;

/// Maximum number of selected Pods in `targets`; `selectedPods` counts all.
const MAX_TARGETS: usize = 100;

/// Maximum size in bytes of `passedRules`, and also of `rejectInfo`, in the detail of one Pod. Entries that do not fit
/// are left out.
const MAX_DETAIL_BYTES: usize = 4 * 1024;
/// Maximum length of a reason in a detail and of the message of a condition, in characters.
const LONGEST_REASON: usize = 1024;
const LONGEST_MESSAGE: usize = 2048;

/// Facts about a rule object that are not counts of its Pods.
pub struct StatusInputs {
    /// The state of its namespace.
    pub namespace_state: NamespaceState,
    /// Whether deletions and evictions go through the lifecycle first (feature gate `GraceDeleteWebhook`).
    pub grace_delete: bool,
    /// Which Pods the selector of the rule object matches.
    pub matches: SelectorMatches,
    /// The owners of its Pods that the last run could not read, each as a clause of a sentence.
    pub unreadable: Vec<String>,
    /// How its ledger was repaired, as a clause of a sentence; `None` if there was no repair.
    pub ledger_repair_message: Option<String>,
    /// Whether the API server stores the ledger as it is written.
    pub ledger_storage: LedgerStorage,
}

/// How soon a status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusUrgency {
    /// Pods wait for a verdict of an endpoint that is not stored yet.
    Verdicts,
    /// A condition differs, and a user may have to act.
    Conditions,
    /// Only counts, names and reasons differ, which are information for users.
    Counts,
}

/// The status fields as a merge patch, with the urgency of the write; `None` if they are equal to what is stored.
pub fn rule_status_patch(
    state: &IndexState,
    entry: &RuleEntry,
    gauges: BudgetGauges,
    memories: Option<&CallStates>,
    facts: &StatusInputs,
    queue: &QueueFacts,
    now: Timestamp,
) -> Option<(Value, StatusUrgency)> {
    let status = entry.object.status.as_ref();
    let stored_states = status.map_or(&[][..], |s| &s.rule_states);
    let states = rule_endpoints::call_rule_states(memories, stored_states);
    let tells_more = rule_endpoints::has_unstored_states(&states, stored_states);
    let rules = &entry.snapshot.rules;
    // The limit is left out if it is not enforced or if no Pod is expected. Otherwise the limit would look like a
    // budget that is used up.
    let limited = rules.availability_limits().next().is_some()
        && gauges.expected > 0
        && facts.namespace_state == NamespaceState::default()
        && facts.matches != SelectorMatches::FilteredOut;
    let silent = unknown_replicas(entry, facts);
    let look = StatusView {
        state,
        entry,
        gauges,
        memories,
        denies_all: silent.denies_all(),
        queue,
    };
    let (details, reasons) = wait_details(&look);
    let fault = entry.snapshot.fault.as_deref();
    let is_dropped = facts.ledger_storage == LedgerStorage::Dropped;
    let allowed = match look.denies_all || fault.is_some() || is_dropped {
        true => 0,
        false => gauges.allowed,
    };
    let allowed = limited.then_some(allowed);
    let wanted = json!({
        "observedGeneration": rules.generation,
        "expectedPods": gauges.expected,
        "availablePods": gauges.available,
        "unavailablePods": gauges.unavailable,
        "unavailableLimit": limited.then_some(gauges.limit),
        "disruptionsAllowed": allowed,
        "waitingPods": gauges.waiting,
        "selectedPods": entry.tally.selected_count(),
        "targets": size_limits::take_fitting(entry.tally.pod_names().take(MAX_TARGETS), MAX_TARGETS_BYTES),
        "details": details,
        "waitReasons": reasons,
        "ruleStates": states,
    });
    let stored = serde_json::to_value(entry.object.status.clone().unwrap_or_default()).ok()?;
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let home = state.namespace(&rules.namespace);
    let rollouts = home.filter(|_| limited);
    let rollouts = rollouts.map_or_else(Vec::new, |home| held::held_rollouts(home, entry, gauges));
    let partly = home.filter(|_| limited && facts.matches == SelectorMatches::Managed);
    let partly = partly
        .and_then(|home| conditions::partly_matched_condition(partly_selected_owners(home, entry)));
    let matched = partly.unwrap_or_else(|| conditions::matched_condition(rules, &facts.matches));
    let conditions = [
        Some((
            "Enforced",
            conditions::enforced_condition(rules, &facts.namespace_state, facts.grace_delete),
        )),
        Some(("Matched", matched)),
        conditions::expected_known_condition(rules, silent).map(|found| ("ExpectedKnown", found)),
        rollouts::rollouts_held_condition(rules, &rollouts).map(|found| ("RolloutsHeld", found)),
        endpoints::endpoints_answer_condition(rules, &states)
            .map(|found| (endpoints::ENDPOINTS_ANSWER, found)),
        conditions::ledger_usable_condition(
            fault,
            facts.ledger_storage,
            facts.ledger_repair_message.as_deref(),
        )
        .map(|found| ("LedgerUsable", found)),
    ];
    let conditions: Vec<_> = conditions
        .into_iter()
        .flatten()
        .map(|(type_, finding)| {
            condition_value(
                &stored["conditions"],
                type_,
                &finding,
                rules.generation,
                &now,
            )
        })
        .collect();
    let same_conditions = stored["conditions"] == json!(conditions);
    let fields = wanted.as_object()?;
    let same = fields
        .iter()
        .all(|(k, v)| stored.get(k).cloned().unwrap_or_else(|| default_value(v)) == *v);
    if same && same_conditions {
        return None;
    }
    let mut patch = wanted;
    patch["updateTime"] = json!(now);
    patch["conditions"] = json!(conditions);
    let haste = match (tells_more, same_conditions) {
        (true, _) => StatusUrgency::Verdicts,
        (false, false) => StatusUrgency::Conditions,
        (false, true) => StatusUrgency::Counts,
    };
    Some((patch, haste))
}

/// Owners that want more Pods than the rule object selects, and whose template makes Pods that it does not select. Each
/// is written as `Kind name`.
fn partly_selected_owners(home: &NamespaceIndex, entry: &RuleEntry) -> Vec<String> {
    let rules = &entry.snapshot.rules;
    let owners = entry.tally.owners();
    let owners = owners.filter_map(|uid| Some((uid, home.workload(uid)?)));
    let partly = owners.filter(|(uid, owner)| {
        // Something may add the labels to the Pods after the owner has created them.
        let selected = || {
            home.pods_owned_by(uid)
                .filter(|pod| rules.selects(pod))
                .count()
        };
        let asked = owner.replicas.and_then(|n| usize::try_from(n).ok());
        !selection::is_selected(rules, owner) && asked.is_some_and(|n| selected() < n)
    });
    partly
        .map(|(_, owner)| format!("{} {}", owner.kind.name(), owner.name))
        .collect()
}

/// A condition in its stored form. `lastTransitionTime` stays the same while the status of the condition does.
fn condition_value(
    stored: &Value,
    type_: &str,
    finding: &ConditionFinding,
    generation: i64,
    now: &str,
) -> Value {
    let mut all = stored.as_array().into_iter().flatten();
    let since = all
        .find(|c| c["type"] == type_ && c["status"] == finding.status)
        .and_then(|c| c["lastTransitionTime"].as_str())
        .unwrap_or(now);
    json!({
        "type": type_, "status": finding.status, "reason": finding.reason,
        "message": size_limits::truncate_text(&finding.message, LONGEST_MESSAGE),
        "observedGeneration": generation, "lastTransitionTime": since,
    })
}

/// The value that stands for an absent field. Optional fields count as null, and lists as empty.
fn default_value(like: &Value) -> Value {
    match like {
        Value::Array(_) => json!([]),
        _ => Value::Null,
    }
}

/// Facts about the Pods that wait for a rule object, besides its gauges.
#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    /// The Pod that is first in the wait queue.
    pub head: Option<Uid>,
    /// Pods that hold a claim. A full budget does not refuse these Pods.
    pub claimed: BTreeSet<Uid>,
    /// The counted reasons, if more Pods wait than `details` lists.
    pub counted: Option<Arc<WaitReasonCounts>>,
}

/// Owners whose number of replicas is not known.
fn unknown_replicas(entry: &RuleEntry, facts: &StatusInputs) -> UnknownReplicasOwners {
    UnknownReplicasOwners {
        unreadable: facts.unreadable.clone(),
        ..entry.tally.unknown_replicas_owners()
    }
}

/// A Pod that waits in a stage, as the tally counts it.
#[derive(Clone, Debug)]
pub struct StageWait {
    uid: Uid,
    stage: Stage,
    /// Whether the Pod that is first in the wait queue waits longer than this Pod.
    is_behind: bool,
}

/// Pods in PreCheck, the longest waiting first.
fn pre_check_waiters(entry: &RuleEntry, head: Option<&Uid>) -> impl Iterator<Item = StageWait> {
    let mut is_behind = false;
    entry.tally.pre_check_waiting().map(move |uid| {
        let waiter = StageWait {
            uid: uid.clone(),
            stage: Stage::PreCheck,
            is_behind,
        };
        is_behind |= head == Some(uid);
        waiter
    })
}

/// Pods in PostCheck.
fn post_check_waiters(entry: &RuleEntry) -> impl Iterator<Item = StageWait> {
    entry.tally.post_check_waiting().map(|uid| StageWait {
        uid: uid.clone(),
        stage: Stage::PostCheck,
        is_behind: false,
    })
}

/// Whether more Pods wait than `details` lists.
pub fn exceeds_details(entry: &RuleEntry) -> bool {
    entry.tally.pre_check_waiting().len() + entry.tally.post_check_waiting().len() > MAX_DETAILS
}

/// All Pods that wait in PreCheck or PostCheck.
pub fn all_waiters(entry: &RuleEntry, head: Option<&Uid>) -> Vec<StageWait> {
    pre_check_waiters(entry, head)
        .chain(post_check_waiters(entry))
        .collect()
}

/// Adds the reasons why these Pods wait to `reasons`.
pub fn count_reasons(
    (state, entry): (&IndexState, &RuleEntry),
    gauges: BudgetGauges,
    memories: Option<&CallStates>,
    facts: &StatusInputs,
    queue: &QueueFacts,
    waiters: &[StageWait],
    reasons: &mut WaitReasonCounts,
) {
    let look = StatusView {
        state,
        entry,
        gauges,
        memories,
        denies_all: unknown_replicas(entry, facts).denies_all(),
        queue,
    };
    for wait in waiters.iter().filter_map(|waiter| look.pod_wait(waiter)) {
        reasons.count_pod(wait.pod, wait.stage, &pod_refusals(&look, &wait).1);
    }
}

/// A Pod that waits in a stage, with the facts that explain its wait.
struct PodWait<'a> {
    pod: &'a Pod,
    stage: Stage,
    /// The name of the Pod that is first in the wait queue, if it comes before this Pod.
    behind: Option<&'a str>,
    /// Whether the Pod is down for a moment and may become available again by itself.
    down_for_a_moment: bool,
    /// Whether no budget holds the Pod, because the Pod is deleted with its CollaSet.
    is_deleted_with_collaset: bool,
}

/// What is the same for all Pods of one rule object.
struct StatusView<'a> {
    state: &'a IndexState,
    entry: &'a RuleEntry,
    gauges: BudgetGauges,
    memories: Option<&'a CallStates>,
    /// Whether admission denies every disruption, because the number of replicas of an owner is not known.
    denies_all: bool,
    queue: &'a QueueFacts,
}

impl<'a> StatusView<'a> {
    fn find_pod(&self, uid: &Uid) -> Option<&'a Pod> {
        let namespace = &self.entry.snapshot.rules.namespace;
        self.state.pod(namespace, uid).map(|pod| &**pod)
    }

    fn pod_wait(&self, waiter: &StageWait) -> Option<PodWait<'a>> {
        let pod = self.find_pod(&waiter.uid)?;
        let head = self.queue.head.as_ref().filter(|_| waiter.is_behind);
        let head = head.and_then(|uid| self.find_pod(uid));
        Some(PodWait {
            pod,
            stage: waiter.stage,
            behind: head.map(|pod| pod.metadata.name.as_str()),
            down_for_a_moment: self.state.is_briefly_down(pod),
            is_deleted_with_collaset: self.state.is_deleted_with_collaset(pod),
        })
    }
}

/// The details of waiting Pods, sorted by name. If `details` can't list all Pods, also the counted reasons.
fn wait_details(look: &StatusView<'_>) -> (Vec<Value>, Vec<Value>) {
    let (entry, queue) = (look.entry, look.queue);
    let before = pre_check_waiters(entry, queue.head.as_ref()).take(MAX_DETAILS);
    let waiters = before.chain(post_check_waiters(entry).take(MAX_DETAILS));
    let mut all: Vec<_> = waiters
        .filter_map(|waiter| look.pod_wait(&waiter))
        .collect();
    all.sort_by_key(|wait| (&wait.pod.metadata.name, wait.stage));
    all.truncate(MAX_DETAILS);
    let listed = all.iter().map(|wait| pod_detail(look, wait));
    let listed = size_limits::take_fitting(listed, MAX_DETAILS_BYTES);
    let reasons = match &queue.counted {
        Some(counted) => counted.to_status_values(),
        // The next run counts them, or all Pods are listed.
        None if exceeds_details(entry) || listed.len() == all.len() => Vec::new(),
        None => {
            let mut reasons = WaitReasonCounts::default();
            for wait in &all {
                reasons.count_pod(wait.pod, wait.stage, &pod_refusals(look, wait).1);
            }
            reasons.to_status_values()
        }
    };
    (listed, reasons)
}

fn pod_detail(look: &StatusView<'_>, wait: &PodWait<'_>) -> Value {
    let PodWait { pod, stage, .. } = *wait;
    let (passed, refusals) = pod_refusals(look, wait);
    let mut detail = json!({ "name": pod.metadata.name, "stage": stage.as_str(), "passed": refusals.is_empty() });
    if !passed.is_empty() {
        detail["passedRules"] = json!(size_limits::take_fitting(passed, MAX_DETAIL_BYTES));
    }
    if !refusals.is_empty() {
        let refusals = refusals.iter().map(WaitRefusal::to_status_value);
        detail["rejectInfo"] = json!(size_limits::take_fitting(refusals, MAX_DETAIL_BYTES));
    }
    detail
}

/// The rules that let a Pod pass, and the reasons why the Pod waits now.
fn pod_refusals<'a>(look: &StatusView<'a>, wait: &PodWait<'a>) -> (Vec<&'a str>, Vec<WaitRefusal>) {
    let PodWait { pod, stage, .. } = *wait;
    let waiting = stage_candidates(stage, pod);
    let (passed, refusals) = match stage {
        Stage::PreCheck if waiting.is_empty() => (Vec::new(), missing_type_refusals(pod)),
        _ => rule_refusals(look, wait, &waiting),
    };
    let refusals = match &refusals[..] {
        [] if stage == Stage::PreCheck => turn_refusals(&look.entry.snapshot.rules, wait),
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
            reason: size_limits::truncate_text(reason, LONGEST_REASON),
        }
    }

    /// The stored form, without empty fields.
    fn to_status_value(&self) -> Value {
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
    look: &StatusView<'a>,
    wait: &PodWait<'a>,
    waiting: &[Candidate],
) -> (Vec<&'a str>, Vec<WaitRefusal>) {
    let PodWait { pod, stage, .. } = *wait;
    let rules = &look.entry.snapshot.rules;
    let rejections = rejections(rules, stage, pod, &look.entry.verdicts);
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
        .flat_map(|rejection| refusals_by_operation(look, &rejection, waiting))
        .collect();
    if stage == Stage::PreCheck
        && !wait.is_deleted_with_collaset
        && let AvailabilityRules::Held(held) = rules.availability_rules(pod)
    {
        let refusing = held.into_iter().filter_map(|(name, limits)| {
            Some(WaitRefusal::new(name, &budget_refusal(look, wait, limits)?))
        });
        all.extend(refusing);
    }
    (passed, all)
}

/// The refusals of one rule. An endpoint answers for each operation of a Pod separately.
fn refusals_by_operation(
    look: &StatusView<'_>,
    rejection: &Rejection,
    waiting: &[Candidate],
) -> Vec<WaitRefusal> {
    let rule = &rejection.rule;
    let said = waiting.iter().filter_map(|candidate| {
        let reason = rule_endpoints::endpoint_wait_reason(look.memories, rule, candidate)?;
        let operation = match waiting {
            [_] => String::new(),
            _ => candidate.operation.clone(),
        };
        Some(WaitRefusal {
            operation,
            ..WaitRefusal::new(rule, &reason)
        })
    });
    let said: Vec<_> = said.collect();
    match said.is_empty() {
        true => vec![WaitRefusal::new(rule, &rejection.reason)],
        false => said,
    }
}

/// Why the budget of an availability rule has no headroom for the Pod; `None` if it has headroom.
fn budget_refusal(
    look: &StatusView<'_>,
    wait: &PodWait<'_>,
    limits: &AvailabilityLimits,
) -> Option<String> {
    let gauges = &look.gauges;
    let desired = limits.desired(gauges.expected_pods());
    let holds_a_claim = || look.queue.claimed.contains(&*wait.pod.metadata.uid);
    let refuses = match wait.pod.is_available() {
        true if look.denies_all => {
            return Some(messages::EXPECTED_UNKNOWN_MESSAGE.to_owned());
        }
        true if holds_a_claim() => gauges.available < desired,
        true => gauges.available <= desired,
        // The unavailable Pod itself uses up the budget. If an operation began now, the outage would last longer.
        false => wait.down_for_a_moment && gauges.available < desired,
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
fn turn_refusals(rules: &RuleSet, wait: &PodWait<'_>) -> Vec<WaitRefusal> {
    let held = match rules.availability_rules(wait.pod) {
        AvailabilityRules::Held(held) => held,
        _ => Vec::new(),
    };
    let takes_a_turn = wait.pod.is_available() && !wait.is_deleted_with_collaset;
    let turn = wait.behind.filter(|_| takes_a_turn);
    let turn = held.first().zip(turn);
    turn.map(|((rule, _), head)| WaitRefusal::new(rule, &messages::queue_position(head)))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::keys::{self, Family};
    use crate::cluster::index::Index;
    use crate::domain::rules::webhook::CallState;

    fn rule(status: Value) -> Value {
        json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule", "generation": 1 },
            "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            "status": status,
        })
    }

    /// The patch for a rule object with the status `stored`, if these owners are unreadable and the ledger is stored in
    /// this way.
    fn look(
        stored: Value,
        gauges: BudgetGauges,
        unreadable: &[&str],
        storing: LedgerStorage,
    ) -> Option<(Value, StatusUrgency)> {
        let index = Index::default();
        index.apply_rule(serde_json::from_value(rule(stored)).unwrap());
        let facts = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: unreadable.iter().map(|&s| s.to_owned()).collect(),
            ledger_repair_message: None,
            ledger_storage: storing,
        };
        let state = index.read_state();
        let entry = state.rule("n", "web").unwrap();
        let (now, turns) = (Timestamp::UNIX_EPOCH, QueueFacts::default());
        rule_status_patch(&state, entry, gauges, None, &facts, &turns, now)
    }

    /// The patch alone, if one of three Pods may go.
    fn patch(stored: Value, unreadable: &[&str], storing: LedgerStorage) -> Option<Value> {
        let gauges = BudgetGauges {
            expected: 3,
            base: 3,
            available: 3,
            limit: 1,
            allowed: 1,
            ..BudgetGauges::default()
        };
        look(stored, gauges, unreadable, storing).map(|(patch, _)| patch)
    }

    fn written(stored: Value, unreadable: &[&str]) -> Option<Value> {
        patch(stored, unreadable, LedgerStorage::default())
    }

    #[test]
    fn unreadable_owner_allows_nothing_and_is_written_once() {
        let first = written(
            json!({}),
            &["Rollout b can't be read: x", "Rollout a can't be read: y"],
        );
        let first = first.unwrap();
        assert_eq!(first["disruptionsAllowed"], 0);
        let conditions = first["conditions"].as_array().unwrap();
        let known = conditions.iter().find(|c| c["type"] == "ExpectedKnown");
        let known = known.unwrap();
        assert_eq!(
            (&known["status"], &known["reason"]),
            (&json!("False"), &json!("OwnerUnreadable"))
        );
        // In each run the reads may end in another order.
        let again = written(
            first.clone(),
            &["Rollout a can't be read: y", "Rollout b can't be read: x"],
        );
        assert_eq!(again, None);
        let readable = written(first, &[]).unwrap();
        assert_eq!(readable["disruptionsAllowed"], 1);
    }

    #[test]
    fn condition_that_differs_is_written_sooner_than_counts() {
        let haste = |stored: Value, expected: u32, unreadable: &[&str]| {
            let gauges = BudgetGauges {
                expected,
                ..BudgetGauges::default()
            };
            look(stored, gauges, unreadable, LedgerStorage::default()).unwrap()
        };
        let (first, soon) = haste(json!({}), 3, &[]);
        assert_eq!(soon, StatusUrgency::Conditions); // nothing is stored yet
        let (_, counts) = haste(first.clone(), 4, &[]);
        assert_eq!(counts, StatusUrgency::Counts);
        let (_, again) = haste(first, 4, &["Rollout a can't be read: x"]);
        assert_eq!(again, StatusUrgency::Conditions);
    }

    #[test]
    fn unusable_ledger_allows_nothing_and_explains_why() {
        let ledger = json!({ "ledger": { "formatVersion": 9, "watermark": "1" } });
        let patch = written(ledger, &[]).unwrap();
        assert_eq!(patch["disruptionsAllowed"], 0);
        let conditions = patch["conditions"].as_array().unwrap();
        let usable = conditions.iter().find(|c| c["type"] == "LedgerUsable");
        let usable = usable.unwrap();
        assert_eq!(
            (&usable["status"], &usable["reason"]),
            (&json!("False"), &json!("LedgerUnusable"))
        );
        let message = usable["message"].as_str().unwrap();
        assert!(message.contains("formatVersion is 9"), "{message}");
    }

    /// The condition `LedgerUsable` and `disruptionsAllowed`, as they are written when `stored` is the status.
    fn usable(stored: Value, storing: LedgerStorage) -> Option<(Value, Value)> {
        let patch = patch(stored, &[], storing)?;
        let all = patch["conditions"].as_array().unwrap();
        let found = all.iter().find(|c| c["type"] == "LedgerUsable");
        let found = found.cloned().unwrap_or_default();
        Some((found, patch["disruptionsAllowed"].clone()))
    }

    #[test]
    fn dropped_ledger_allows_nothing_until_stored_again() {
        let (dropped, allowed) = usable(json!({}), LedgerStorage::Dropped).unwrap();
        assert_eq!(allowed, 0);
        let told = |found: &Value| [found["status"].clone(), found["reason"].clone()];
        assert_eq!(told(&dropped), ["False", "LedgerNotStored"]);
        let message = dropped["message"].as_str().unwrap();
        assert!(message.contains("operating crds"), "{message}");
        let stored = json!({ "conditions": [dropped] });
        let conditions: Vec<_> = serde_json::from_value(stored["conditions"].clone()).unwrap();
        // A new leader knows it from the condition until its first write.
        assert_eq!(
            LedgerStorage::from_last_write(None, &conditions),
            LedgerStorage::Dropped
        );
        assert_eq!(
            LedgerStorage::from_last_write(Some(false), &conditions),
            LedgerStorage::Dropped
        );
        let again = LedgerStorage::from_last_write(Some(true), &conditions);
        let (again, allowed) = usable(stored, again).unwrap();
        assert_eq!(allowed, 1);
        assert_eq!(told(&again), ["True", "LedgerStored"]);
        let conditions = [serde_json::from_value(again).unwrap()];
        assert_eq!(
            LedgerStorage::from_last_write(None, &conditions),
            LedgerStorage::Restored
        );
        assert_eq!(
            LedgerStorage::from_last_write(Some(false), &conditions),
            LedgerStorage::Dropped
        );
        assert_eq!(
            LedgerStorage::from_last_write(Some(true), &[]),
            LedgerStorage::Unproven
        );
        let (none, _) = usable(json!({}), LedgerStorage::Unproven).unwrap();
        assert_eq!(none, Value::Null);
    }

    /// A managed Pod that waits in PreCheck. The Pod is available unless its operation has no type.
    fn waiting(name: &str, since: &str, typed: bool) -> Pod {
        let mut labels = json!({
            (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1",
            Family::Operating.key("x"): "1", Family::PreCheck.key("x"): since,
        });
        if typed {
            labels[Family::OperationType.key("x")] = json!("update");
        }
        serde_json::from_value(json!({
            "metadata": { "namespace": "n", "name": name, "uid": name, "resourceVersion": "1", "labels": labels },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .unwrap()
    }

    /// Reasons by Pod, if `available` of ten Pods are available and two may be unavailable.
    fn reasons(available: u32, head: Option<&str>) -> Vec<(String, String)> {
        reasons_beside(&[], available, head)
    }

    /// As [`reasons`], if these Pods hold claims.
    fn reasons_beside(
        claimed: &[&str],
        available: u32,
        head: Option<&str>,
    ) -> Vec<(String, String)> {
        let index = Index::default();
        let mut object = rule(json!({}));
        object["spec"]["rules"] = json!([
            { "name": "two", "availablePolicy": { "maxUnavailableValue": 2 } },
            { "name": "five", "availablePolicy": { "maxUnavailableValue": 5 } },
        ]);
        index.apply_rule(serde_json::from_value(object).unwrap());
        index.apply_pod(waiting("web-0", "1", false));
        index.apply_pod(waiting("web-1", "2", true));
        index.apply_pod(waiting("web-2", "3", true));
        let gauges = BudgetGauges {
            expected: 10,
            base: 10,
            available,
            unavailable: 10 - available,
            limit: 2,
            ..BudgetGauges::default()
        };
        let facts = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        let turns = QueueFacts {
            head: head.map(Uid::from),
            claimed: claimed.iter().map(|&uid| Uid::from(uid)).collect(),
            counted: None,
        };
        let state = index.read_state();
        let entry = state.rule("n", "web").unwrap();
        let (patch, _) = rule_status_patch(
            &state,
            entry,
            gauges,
            None,
            &facts,
            &turns,
            Timestamp::UNIX_EPOCH,
        )
        .unwrap();
        let details = patch["details"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        details
            .flat_map(|detail| {
                let rejected = detail["rejectInfo"].as_array().into_iter().flatten();
                rejected.map(|r| {
                    let said = format!("{}: {}", text(&r["ruleName"]), text(&r["reason"]));
                    (text(&detail["name"]), said)
                })
            })
            .collect()
    }

    #[test]
    fn details_stay_within_their_bytes_and_waiting_pods_counts_all() {
        let index = Index::default();
        let mut object = rule(json!({}));
        let requires = json!({ "requires": { "matchLabels": { "never": "there" } } });
        let many = (0..64).map(|i| json!({ "name": format!("{i:<>253}"), "labelCheck": requires }));
        object["spec"]["rules"] = many.collect();
        index.apply_rule(serde_json::from_value(object).unwrap());
        for i in 0..200 {
            index.apply_pod(waiting(&format!("{i:0>253}"), "1", true));
        }
        let facts = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: vec!["x".repeat(1_000_000)],
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        let gauges = BudgetGauges {
            expected: 200,
            waiting: 200,
            ..BudgetGauges::default()
        };
        let state = index.read_state();
        let entry = state.rule("n", "web").unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let (patch, _) = rule_status_patch(
            &state,
            entry,
            gauges,
            None,
            &facts,
            &QueueFacts::default(),
            now,
        )
        .unwrap();
        assert_eq!(patch["waitingPods"], 200);
        let details = patch["details"].as_array().unwrap();
        assert!(details.len() > 3, "{}", details.len());
        let refusing = details[0]["rejectInfo"].as_array().unwrap();
        assert!(!refusing.is_empty());
        let bytes = size_limits::json_bytes(&patch["details"]);
        assert!(bytes <= MAX_DETAILS_BYTES, "{bytes}");
        let all = size_limits::json_bytes(&patch);
        assert!(all <= MAX_DETAILS_BYTES + 64 * 1024, "{all}");
    }

    #[test]
    fn endpoint_refuses_one_operation_and_not_the_other() {
        let index = Index::default();
        let passed =
            json!([{ "name": "web-0", "podUID": "web-0", "operation": "x", "since": "1" }]);
        let states =
            json!([{ "name": "ask", "webhookStatus": { "generation": 1, "passed": passed } }]);
        let mut object = rule(json!({ "ruleStates": states }));
        object["spec"]["rules"] = json!([{ "name": "ask", "webhook": { "clientConfig": { "url": "https://example.com" } } }]);
        index.apply_rule(serde_json::from_value(object).unwrap());
        let mut pod = waiting("web-0", "1", true);
        let labels = [(Family::PreCheck, "1"), (Family::OperationType, "update")];
        let labels = labels.map(|(family, value)| (family.key("y"), value.to_owned()));
        pod.metadata.labels.extend(labels);
        index.apply_pod(pod);
        let facts = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        let state = index.read_state();
        let entry = state.rule("n", "web").unwrap();
        let (now, queue) = (Timestamp::UNIX_EPOCH, QueueFacts::default());
        let known = entry.object.status.clone().unwrap().rule_states;
        let memories = known.into_iter().map(|state| {
            let rules = &entry.snapshot.rules.rules;
            let rule = rules.iter().find(|rule| rule.id == state.name);
            let RuleKind::Webhook(webhook) = &rule.unwrap().kind else {
                unreachable!()
            };
            let memory = CallState::from_status(state.webhook_status.as_ref(), webhook, 1, now);
            (state.name, memory)
        });
        let memories = Some(memories.collect());
        let gauges = BudgetGauges::default();
        let (patch, _) = rule_status_patch(
            &state,
            entry,
            gauges,
            memories.as_ref(),
            &facts,
            &queue,
            now,
        )
        .unwrap();
        assert_eq!(
            patch["details"][0]["rejectInfo"],
            json!([{ "ruleName": "ask", "operation": "y", "reason": "its endpoint has not let the Pod pass yet" }])
        );
    }

    #[test]
    fn pods_that_details_leaves_out_are_counted_by_reason() {
        let index = Index::default();
        let requires = json!({ "matchLabels": { "fit": "yes" } });
        let mut object = rule(json!({}));
        object["spec"]["rules"] =
            json!([{ "name": "labels", "labelCheck": { "requires": requires } }]);
        index.apply_rule(serde_json::from_value(object).unwrap());
        for i in 0..MAX_DETAILS + 50 {
            index.apply_pod(waiting(&format!("web-{i:03}"), "1", i > 0));
        }
        let facts = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        let state = index.read_state();
        let entry = state.rule("n", "web").unwrap();
        let mut queue = QueueFacts::default();
        let mut reasons = WaitReasonCounts::default();
        let at = (&*state, entry);
        assert!(exceeds_details(entry));
        let all = all_waiters(entry, None);
        for part in all.chunks(7) {
            count_reasons(
                at,
                BudgetGauges::default(),
                None,
                &facts,
                &queue,
                part,
                &mut reasons,
            );
        }
        queue.counted = Some(Arc::new(reasons));
        let now = Timestamp::UNIX_EPOCH;
        let (patch, _) = rule_status_patch(
            &state,
            entry,
            BudgetGauges::default(),
            None,
            &facts,
            &queue,
            now,
        )
        .unwrap();
        assert_eq!(patch["details"].as_array().unwrap().len(), MAX_DETAILS);
        let counted = patch["waitReasons"].as_array().unwrap();
        assert_eq!(counted[0]["pods"], MAX_DETAILS + 49);
        assert_eq!(counted[0]["ruleName"], "labels");
        assert_eq!(counted[1]["pods"], 1);
    }

    /// `selectedPods` and `targets` as they are written when `stored` is the status and these Pods exist.
    fn targets(stored: Value, pods: impl Iterator<Item = String>) -> Option<(Value, Value)> {
        let index = Index::default();
        index.apply_rule(serde_json::from_value(rule(stored)).unwrap());
        for name in pods {
            index.apply_pod(waiting(&name, "1", true));
        }
        let facts = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        let (gauges, turns) = (BudgetGauges::default(), QueueFacts::default());
        let state = index.read_state();
        let entry = state.rule("n", "web").unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let (patch, _) = rule_status_patch(&state, entry, gauges, None, &facts, &turns, now)?;
        Some((patch["selectedPods"].clone(), patch["targets"].clone()))
    }

    #[test]
    fn first_hundred_names_are_written_and_all_pods_counted() {
        let names = |n: usize| (0..n).map(|i| format!("web-{i:03}"));
        let (count, few) = targets(json!({}), names(3).rev()).unwrap();
        assert_eq!(
            (count, few),
            (json!(3), json!(["web-000", "web-001", "web-002"]))
        );
        let (count, many) = targets(json!({}), names(140).rev()).unwrap();
        let first: Vec<_> = names(100).collect();
        assert_eq!((count, many), (json!(140), json!(first)));
        let (_, none) = targets(json!({ "targets": ["web-000"] }), names(0)).unwrap();
        assert_eq!(none, json!([]));
    }

    #[test]
    fn longest_names_fit_into_the_bytes_of_targets() {
        let (_, all) = targets(json!({}), (0..140).map(|i| format!("{i:0>253}"))).unwrap();
        assert_eq!(all.as_array().unwrap().len(), 100);
        let bytes = size_limits::json_bytes(&all);
        assert!(bytes <= MAX_TARGETS_BYTES, "{bytes}");
    }

    #[test]
    fn only_rule_without_room_is_blamed_for_a_wait() {
        let said = reasons(8, None);
        let of = |pod: &str| -> Vec<&str> {
            let mine = said.iter().filter(|(name, _)| name == pod);
            mine.map(|(_, said)| said.as_str()).collect()
        };
        assert_eq!(
            of("web-1"),
            [
                "two: blocked by max unavailable policy: [max unavailable]=2/10, [current unavailable]=2/10"
            ]
        );
        let untyped = of("web-0");
        assert_eq!(untyped.len(), 1, "{untyped:?}");
        assert!(
            untyped[0]
                .contains("the label operation-type.podopslifecycle.kusionstack.io/x is missing"),
            "{untyped:?}"
        );
    }

    #[test]
    fn pod_with_a_claim_is_not_held_by_that_budget() {
        let said = reasons_beside(&["web-1"], 8, None);
        assert!(!said.iter().any(|(pod, _)| pod == "web-1"), "{said:?}");
        assert!(said.iter().any(|(pod, _)| pod == "web-2"), "{said:?}");
    }

    #[test]
    fn pod_that_waits_its_turn_names_the_pod_before_it() {
        let said = reasons(10, Some("web-1"));
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(
            said[1],
            (
                "web-2".to_owned(),
                "two: waits in the queue behind web-1".to_owned()
            )
        );
    }
}
