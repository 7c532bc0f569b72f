//! Decides which waits cause an Event: only long waits, at long intervals, and few for each rule object and namespace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{ObservedPod, RuleObject, diagnose, parse_stamp, summary};
use crate::api::keys::Family;
use crate::domain::lifecycle::{Phase, Stage, stored_phases};
use crate::domain::pod::Pod;
use crate::domain::rules::AvailabilityRules;
use crate::domain::rules::stage::{has_immediate_rejection, rejections};
use crate::domain::rules::webhook::EndpointVerdicts;

/// Time until an Event about the same wait is repeated.
pub const REPEAT_AFTER: SignedDuration = SignedDuration::from_mins(5);
/// Largest number of operations with an Event within [`REPEAT_AFTER`], for each rule object. Operations that wait for
/// no rule are counted for each namespace. The Event of the rule object itself gives the total.
pub const MAX_NOTIFIED_OPERATIONS: usize = 10;

/// Largest number of notices of one kind for a namespace at once. Each notice needs a diagnosis.
pub const MAX_NOTICES_AT_ONCE: usize = 10;

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingOperation {
    /// UID of the Pod.
    pub pod: String,
    /// Lifecycle ID.
    pub operation: String,
    /// The phase of the operation.
    pub phase: Phase,
    /// Since when it waits.
    pub since: Timestamp,
    /// UIDs of the rule objects that hold the operation.
    pub rules: Vec<Arc<str>>,
}

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitNotice {
    /// The Event is about a Pod.
    Pod(WaitingOperation),
    /// The Event is about a rule object.
    Rule {
        /// UID of the object.
        rule: Arc<str>,
        /// How many operations have waited for the object longer than the threshold.
        waiting: usize,
        /// The operation that has waited longest.
        longest: WaitingOperation,
    },
}

/// Operations on a Pod that do not wait for their operator, and the stage of the rules that may hold each of them. The
/// field [`WaitingOperation::rules`] is empty.
pub fn waiting_operations(pod: &Pod) -> impl Iterator<Item = (WaitingOperation, Option<Stage>)> {
    let is_alive = !pod.is_terminating() && pod.is_managed();
    let phases = stored_phases(pod).into_iter().filter(move |_| is_alive);
    phases.filter_map(move |(operation, phase)| {
        let (family, stage) = match phase {
            Phase::PreCheck => (Family::PreCheck, Some(Stage::PreCheck)),
            Phase::Preparing => (Family::Preparing, None),
            Phase::PostCheck => (Family::PostCheck, Some(Stage::PostCheck)),
            Phase::Completing => (Family::Completing, None),
            Phase::Idle | Phase::Operate => return None,
        };
        let waiting = WaitingOperation {
            pod: pod.metadata.uid.clone(),
            since: parse_stamp(pod.label(&family.key(&operation)))?,
            rules: Vec::new(),
            operation,
            phase,
        };
        Some((waiting, stage))
    })
}

/// Whether an object keeps a Pod waiting, by the object's status and the verdicts of its endpoints. `do_budgets_apply`
/// is whether the budgets of its rules apply to the Pod.
pub fn does_rule_hold(
    rule: &RuleObject,
    verdicts: &EndpointVerdicts,
    stage: Stage,
    pod: &Pod,
    do_budgets_apply: bool,
) -> bool {
    let set = &rule.set;
    if has_immediate_rejection(set, stage, pod) {
        return true;
    }
    let has_webhook_rules = set.webhook_rules(stage).next().is_some();
    if has_webhook_rules && !rejections(set, stage, pod, verdicts).is_empty() {
        return true;
    }
    if stage != Stage::PreCheck || !pod.is_available() || !do_budgets_apply {
        return false;
    }
    let AvailabilityRules::Held(limits_by_rule) = set.availability_rules(pod) else {
        return false;
    };
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let (expected, available) = rule.status().map_or((0, 0), |status| {
        (count(status.expected_pods), count(status.available_pods))
    });
    limits_by_rule
        .iter()
        .any(|(_, limits)| available <= limits.desired(expected))
}

/// Reason of an Event about a Pod that waits in a phase, and whether the Event is a warning.
pub const fn event_reason(phase: Phase) -> (&'static str, bool) {
    match phase {
        Phase::PreCheck | Phase::PostCheck => ("WaitingForRule", false),
        Phase::Idle | Phase::Preparing | Phase::Operate | Phase::Completing => {
            ("WaitingForTraffic", true)
        }
    }
}

/// Reason of an Event about a rule object.
pub const RULE_REASON: &str = "PodsWaiting";

/// The diagnosis of one operation in one line. `None` if the operation is not in flight any more.
pub fn operation_line(observed: &ObservedPod, operation: &str) -> Option<String> {
    let diagnosis = diagnose(observed);
    let facts = diagnosis.operations.iter().find(|o| o.id == operation)?;
    Some(summary::describe_operation(observed, facts))
}

/// Remembers which notices were given, so that they are not repeated too soon. If this state is lost, notices are
/// repeated once.
#[derive(Debug)]
pub struct WaitNotices {
    threshold: SignedDuration,
    namespaces: HashMap<String, NoticeHistory>,
}

impl WaitNotices {
    /// Gives notices about waits longer than `threshold`.
    pub fn new(threshold: SignedDuration) -> WaitNotices {
        WaitNotices {
            threshold,
            namespaces: HashMap::new(),
        }
    }

    /// Whether an operation that waits since this time has reached the threshold.
    pub fn is_beyond_threshold(&self, since: Timestamp, now: Timestamp) -> bool {
        now.duration_since(since) >= self.threshold
    }

    /// The notices to give for a namespace now: at most [`MAX_NOTICES_AT_ONCE`] about Pods, and as many about rule
    /// objects. Others are given at the next call. `waits` are all operations that wait in the namespace.
    pub fn decide_notices(
        &mut self,
        namespace: &str,
        mut waits: Vec<WaitingOperation>,
        now: Timestamp,
    ) -> Vec<WaitNotice> {
        waits.retain(|wait| self.is_beyond_threshold(wait.since, now));
        let mut history = self.namespaces.remove(namespace).unwrap_or_default();
        let notices = history.decide_in_namespace(waits, now);
        if !history.pods.is_empty() || !history.rules.is_empty() {
            self.namespaces.insert(namespace.to_owned(), history);
        }
        notices
    }

    /// Forgets namespaces that do not exist any more.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.namespaces.retain(|namespace, _| exists(namespace));
    }
}

/// UID of a Pod, and the ID of one of its operations.
type OperationKey = (String, String);
/// The time of the last notice, and the rule object that it was counted for.
type LastNotice = (Timestamp, Option<Arc<str>>);

/// The notices that were given for one namespace.
#[derive(Debug, Default)]
struct NoticeHistory {
    /// An entry is kept while its operation waits, so that operations without a notice come first.
    pods: HashMap<OperationKey, LastNotice>,
    rules: HashMap<Arc<str>, Timestamp>,
}

impl NoticeHistory {
    fn decide_in_namespace(
        &mut self,
        mut waits: Vec<WaitingOperation>,
        now: Timestamp,
    ) -> Vec<WaitNotice> {
        waits.sort_by(|a, b| (a.since, &a.pod, &a.operation).cmp(&(b.since, &b.pod, &b.operation)));
        let is_recent = |notified_at: Timestamp| now.duration_since(notified_at) < REPEAT_AFTER;
        let waiting: HashSet<_> = waits.iter().map(operation_key).collect();
        self.pods
            .retain(|key, (notified_at, _)| is_recent(*notified_at) || waiting.contains(key));
        self.rules.retain(|_, notified_at| is_recent(*notified_at));
        let mut counts: HashMap<Option<Arc<str>>, usize> = HashMap::new();
        for (_, rule) in self
            .pods
            .values()
            .filter(|(notified_at, _)| is_recent(*notified_at))
        {
            *counts.entry(rule.clone()).or_default() += 1;
        }
        let mut notices = Vec::new();
        for wait in self.notice_order(&waits) {
            if notices.len() >= MAX_NOTICES_AT_ONCE {
                break;
            }
            let (key, rule) = (operation_key(wait), wait.rules.first().cloned());
            let count = counts.entry(rule.clone()).or_default();
            let last_notice = self.pods.get(&key);
            if *count >= MAX_NOTIFIED_OPERATIONS
                || last_notice.is_some_and(|(notified_at, _)| is_recent(*notified_at))
            {
                continue;
            }
            *count += 1;
            self.pods.insert(key, (now, rule));
            notices.push(WaitNotice::Pod(wait.clone()));
        }
        notices.extend(self.rule_notices(&waits, now));
        notices
    }

    /// Waits in the order of their notices: first those without any notice, then those with the oldest notice. The
    /// second operation of a Pod comes after the first operations of all other Pods. `waits` are sorted, the longest
    /// first.
    fn notice_order<'a>(&self, waits: &'a [WaitingOperation]) -> Vec<&'a WaitingOperation> {
        let mut waits_by_pod: HashMap<&str, usize> = HashMap::new();
        let mut order = Vec::new();
        for wait in waits {
            let index_in_pod = waits_by_pod.entry(&wait.pod).or_default();
            let notified_at = self
                .pods
                .get(&operation_key(wait))
                .map(|(notified_at, _)| *notified_at);
            order.push((notified_at, *index_in_pod, wait));
            *index_in_pod += 1;
        }
        order.sort_by_key(|(notified_at, index_in_pod, _)| (*notified_at, *index_in_pod));
        order.into_iter().map(|(_, _, wait)| wait).collect()
    }

    /// One notice for each rule object. `waits` are sorted, the longest first.
    fn rule_notices(&mut self, waits: &[WaitingOperation], now: Timestamp) -> Vec<WaitNotice> {
        let mut sums: BTreeMap<&Arc<str>, (usize, &WaitingOperation)> = BTreeMap::new();
        for wait in waits {
            for rule in &wait.rules {
                sums.entry(rule).or_insert((0, wait)).0 += 1;
            }
        }
        sums.retain(|rule, _| !self.rules.contains_key(*rule));
        let sums = sums
            .into_iter()
            .take(MAX_NOTICES_AT_ONCE)
            .map(|(rule, (waiting, longest))| {
                self.rules.insert(Arc::clone(rule), now);
                WaitNotice::Rule {
                    rule: Arc::clone(rule),
                    waiting,
                    longest: longest.clone(),
                }
            });
        sums.collect()
    }
}

fn operation_key(wait: &WaitingOperation) -> OperationKey {
    (wait.pod.clone(), wait.operation.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::keys;

    const BEGIN: i64 = 1_800_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(BEGIN + seconds).unwrap()
    }

    fn wait(pod: usize, since: i64, rules: &[&str]) -> WaitingOperation {
        WaitingOperation {
            pod: format!("pod-{pod:03}"),
            operation: "upgrade".to_owned(),
            phase: Phase::PreCheck,
            since: at(since),
            rules: rules.iter().map(|r| Arc::from(*r)).collect(),
        }
    }

    fn minute() -> WaitNotices {
        WaitNotices::new(SignedDuration::from_mins(1))
    }

    #[test]
    fn short_waits_are_not_reported() {
        let mut notices = minute();
        assert_eq!(notices.decide_notices("n", Vec::new(), at(0)), []);
        assert_eq!(
            notices.decide_notices("n", vec![wait(1, 0, &["web"])], at(59)),
            []
        );
    }

    #[test]
    fn long_wait_is_reported_once_for_pod_and_rules() {
        let mut notices = minute();
        let long = wait(1, 0, &["web", "other"]);
        let decided = notices.decide_notices("n", vec![long.clone()], at(60));
        let rule = |rule: &str| WaitNotice::Rule {
            rule: rule.into(),
            waiting: 1,
            longest: long.clone(),
        };
        assert_eq!(
            decided,
            [WaitNotice::Pod(long.clone()), rule("other"), rule("web")]
        );
        for seconds in [61, 120, 359] {
            assert_eq!(
                notices.decide_notices("n", vec![long.clone()], at(seconds)),
                []
            );
        }
        assert_eq!(notices.decide_notices("n", vec![long], at(360)).len(), 3);
    }

    #[test]
    fn rule_notice_sums_up_and_longest_waits_come_first() {
        let mut notices = minute();
        let waits: Vec<_> = (0..500)
            .rev()
            .map(|n| wait(n, n as i64 / 100, &["web"]))
            .collect();
        let decided = notices.decide_notices("n", waits.clone(), at(100));
        assert_eq!(decided.len(), MAX_NOTIFIED_OPERATIONS + 1);
        assert_eq!(decided[0], WaitNotice::Pod(wait(0, 0, &["web"])));
        let sum = WaitNotice::Rule {
            rule: "web".into(),
            waiting: 500,
            longest: wait(0, 0, &["web"]),
        };
        assert_eq!(decided[MAX_NOTIFIED_OPERATIONS], sum);
        // The operations with a notice have ended. Other operations do not get a notice in their place at once.
        assert_eq!(
            notices.decide_notices("n", waits[..400].to_vec(), at(130)),
            []
        );
    }

    #[test]
    fn rules_beyond_the_limit_get_notices_at_the_next_call() {
        let mut notices = minute();
        let rules: Vec<String> = (0..25).map(|n| format!("rule-{n:02}")).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let decided = (0..4).map(|_| {
            notices
                .decide_notices("n", vec![wait(1, 0, &rules)], at(60))
                .len()
        });
        assert_eq!(
            decided.collect::<Vec<_>>(),
            [1 + MAX_NOTICES_AT_ONCE, MAX_NOTICES_AT_ONCE, 5, 0]
        );
    }

    /// The Pods of these notices.
    fn pods(notices: &[WaitNotice]) -> Vec<&str> {
        let pods = notices.iter().filter_map(|notice| match notice {
            WaitNotice::Pod(wait) => Some(wait.pod.as_str()),
            WaitNotice::Rule { .. } => None,
        });
        pods.collect()
    }

    #[test]
    fn pods_that_wait_for_traffic_get_notices_in_rotation() {
        let mut notices = minute();
        let waiting: Vec<_> = (0..25).map(|n| wait(n, 0, &[])).collect();
        let decided =
            [60, 360, 660].map(|now| notices.decide_notices("n", waiting.clone(), at(now)));
        assert_eq!(pods(&decided[0])[..2], ["pod-000", "pod-001"]);
        assert_eq!(pods(&decided[1])[..2], ["pod-010", "pod-011"]);
        assert_eq!(pods(&decided[2])[..2], ["pod-020", "pod-021"]);
        assert_eq!(
            pods(&decided[2])[5..],
            ["pod-000", "pod-001", "pod-002", "pod-003", "pod-004"]
        );
    }

    #[test]
    fn pods_of_one_namespace_take_no_notices_of_another() {
        let mut notices = minute();
        let waiting: Vec<_> = (0..25).map(|n| wait(n, 0, &[])).collect();
        for namespace in ["a", "b"] {
            let decided = notices.decide_notices(namespace, waiting.clone(), at(60));
            assert_eq!(decided.len(), MAX_NOTIFIED_OPERATIONS, "{namespace}");
        }
        notices.retain(|namespace| namespace == "a");
        assert_eq!(notices.namespaces.len(), 1);
    }

    #[test]
    fn many_operations_of_one_pod_do_not_displace_other_pods() {
        let mut notices = minute();
        let mut waits: Vec<_> = (0..20)
            .map(|n| WaitingOperation {
                operation: format!("step-{n}"),
                ..wait(0, 0, &[])
            })
            .collect();
        waits.push(wait(1, 30, &[]));
        let decided = notices.decide_notices("n", waits, at(100));
        assert_eq!(pods(&decided)[..2], ["pod-000", "pod-001"]);
    }

    #[test]
    fn notice_history_expires() {
        let mut notices = minute();
        notices.decide_notices("n", vec![wait(1, 0, &["web"])], at(60));
        notices.decide_notices("n", Vec::new(), at(1_000));
        assert!(notices.namespaces.is_empty());
    }

    #[test]
    fn wait_for_operator_is_not_reported() {
        let pod = |family: Family| -> Pod {
            let nanos = format!("{BEGIN}000000000");
            serde_json::from_value(json!({ "metadata": { "uid": "p", "labels": {
                (keys::CONTROL): keys::CONTROL_VALUE,
                (Family::Operating.key("x")): nanos,
                (family.key("x")): nanos,
            } } }))
            .unwrap()
        };
        let of = |pod: &Pod| {
            waiting_operations(pod)
                .map(|(w, _)| (w.phase, w.since))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&pod(Family::Operate)), []);
        assert_eq!(of(&pod(Family::Preparing)), [(Phase::Preparing, at(0))]);
        assert_eq!(of(&pod(Family::PreCheck)), [(Phase::PreCheck, at(0))]);
    }
}
