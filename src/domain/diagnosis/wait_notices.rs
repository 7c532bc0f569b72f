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
pub const MAX_OPERATIONS: usize = 10;

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
    let living = !pod.is_terminating() && pod.is_managed();
    let all = stored_phases(pod).into_iter().filter(move |_| living);
    all.filter_map(move |(operation, phase)| {
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

/// Whether an object keeps a Pod waiting, by the object's status and the verdicts of its endpoints. `budgets` is
/// whether the budgets of its rules apply to the Pod.
pub fn does_rule_hold(
    rule: &RuleObject,
    verdicts: &EndpointVerdicts,
    stage: Stage,
    pod: &Pod,
    budgets: bool,
) -> bool {
    let set = &rule.set;
    if has_immediate_rejection(set, stage, pod) {
        return true;
    }
    let asks = set.webhook_rules(stage).next().is_some();
    if asks && !rejections(set, stage, pod, verdicts).is_empty() {
        return true;
    }
    if stage != Stage::PreCheck || !pod.is_available() || !budgets {
        return false;
    }
    let AvailabilityRules::Held(held) = set.availability_rules(pod) else {
        return false;
    };
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let (expected, available) = rule.status().map_or((0, 0), |status| {
        (count(status.expected_pods), count(status.available_pods))
    });
    held.iter()
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
    let all = diagnose(observed);
    let found = all.operations.iter().find(|o| o.id == operation)?;
    Some(summary::describe_operation(observed, found))
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
        let mut told = self.namespaces.remove(namespace).unwrap_or_default();
        let notices = told.decide_in_namespace(waits, now);
        if !told.pods.is_empty() || !told.rules.is_empty() {
            self.namespaces.insert(namespace.to_owned(), told);
        }
        notices
    }

    /// Forgets namespaces that do not exist any more.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.namespaces.retain(|namespace, _| is_there(namespace));
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
        let is_recent = |told: Timestamp| now.duration_since(told) < REPEAT_AFTER;
        let waiting: HashSet<_> = waits.iter().map(operation_key).collect();
        self.pods
            .retain(|key, (told, _)| is_recent(*told) || waiting.contains(key));
        self.rules.retain(|_, told| is_recent(*told));
        let mut counts: HashMap<Option<Arc<str>>, usize> = HashMap::new();
        for (_, rule) in self.pods.values().filter(|(told, _)| is_recent(*told)) {
            *counts.entry(rule.clone()).or_default() += 1;
        }
        let mut notices = Vec::new();
        for wait in self.notice_order(&waits) {
            if notices.len() >= MAX_NOTICES_AT_ONCE {
                break;
            }
            let (key, rule) = (operation_key(wait), wait.rules.first().cloned());
            let count = counts.entry(rule.clone()).or_default();
            let was_told = self.pods.get(&key);
            if *count >= MAX_OPERATIONS || was_told.is_some_and(|(told, _)| is_recent(*told)) {
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
        let mut of_pod: HashMap<&str, usize> = HashMap::new();
        let mut turns = Vec::new();
        for wait in waits {
            let nth = of_pod.entry(&wait.pod).or_default();
            let told = self.pods.get(&operation_key(wait)).map(|(told, _)| *told);
            turns.push((told, *nth, wait));
            *nth += 1;
        }
        turns.sort_by_key(|(told, nth, _)| (*told, *nth));
        turns.into_iter().map(|(_, _, wait)| wait).collect()
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
        let told = notices.decide_notices("n", vec![long.clone()], at(60));
        let rule = |rule: &str| WaitNotice::Rule {
            rule: rule.into(),
            waiting: 1,
            longest: long.clone(),
        };
        assert_eq!(
            told,
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
        let all: Vec<_> = (0..500)
            .rev()
            .map(|n| wait(n, n as i64 / 100, &["web"]))
            .collect();
        let told = notices.decide_notices("n", all.clone(), at(100));
        assert_eq!(told.len(), MAX_OPERATIONS + 1);
        assert_eq!(told[0], WaitNotice::Pod(wait(0, 0, &["web"])));
        let sum = WaitNotice::Rule {
            rule: "web".into(),
            waiting: 500,
            longest: wait(0, 0, &["web"]),
        };
        assert_eq!(told[MAX_OPERATIONS], sum);
        // The operations with a notice have ended. Other operations do not get a notice in their place at once.
        assert_eq!(
            notices.decide_notices("n", all[..400].to_vec(), at(130)),
            []
        );
    }

    #[test]
    fn rules_beyond_those_that_are_told_at_once_come_next() {
        let mut notices = minute();
        let rules: Vec<String> = (0..25).map(|n| format!("rule-{n:02}")).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let told = (0..4).map(|_| {
            notices
                .decide_notices("n", vec![wait(1, 0, &rules)], at(60))
                .len()
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
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
    fn every_pod_that_waits_for_traffic_is_told_in_turn() {
        let mut notices = minute();
        let stuck: Vec<_> = (0..25).map(|n| wait(n, 0, &[])).collect();
        let told = [60, 360, 660].map(|now| notices.decide_notices("n", stuck.clone(), at(now)));
        assert_eq!(pods(&told[0])[..2], ["pod-000", "pod-001"]);
        assert_eq!(pods(&told[1])[..2], ["pod-010", "pod-011"]);
        assert_eq!(pods(&told[2])[..2], ["pod-020", "pod-021"]);
        assert_eq!(
            pods(&told[2])[5..],
            ["pod-000", "pod-001", "pod-002", "pod-003", "pod-004"]
        );
    }

    #[test]
    fn pods_of_one_namespace_take_no_notices_of_another() {
        let mut notices = minute();
        let stuck: Vec<_> = (0..25).map(|n| wait(n, 0, &[])).collect();
        for namespace in ["a", "b"] {
            let told = notices.decide_notices(namespace, stuck.clone(), at(60));
            assert_eq!(told.len(), MAX_OPERATIONS, "{namespace}");
        }
        notices.retain(|namespace| namespace == "a");
        assert_eq!(notices.namespaces.len(), 1);
    }

    #[test]
    fn many_operations_of_one_pod_leave_room_for_others() {
        let mut notices = minute();
        let mut waits: Vec<_> = (0..20)
            .map(|n| WaitingOperation {
                operation: format!("step-{n}"),
                ..wait(0, 0, &[])
            })
            .collect();
        waits.push(wait(1, 30, &[]));
        let told = notices.decide_notices("n", waits, at(100));
        assert_eq!(pods(&told)[..2], ["pod-000", "pod-001"]);
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
