//! Which waits are worth an Event: those beyond a threshold, seldom, and few for each rule object and namespace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Observed, RuleObject, explain, stamp, summary};
use crate::api::keys::Family;
use crate::domain::lifecycle::{Phase, Stage, phases};
use crate::domain::pod::Pod;
use crate::domain::rules::Availability;
use crate::domain::rules::stage::{rejections, rejects_at_once};
use crate::domain::rules::webhook::Verdicts;

/// The same wait is told of again after this long.
pub const AGAIN: SignedDuration = SignedDuration::from_mins(5);
/// Operations that are told of within [`AGAIN`] for each rule object, and in each namespace of those that wait for no rule.
/// A rule's own Event sums up.
pub const MOST: usize = 10;

/// Notices of one kind that are told of a namespace at once: each costs an explanation.
pub const MOST_AT_ONCE: usize = 10;

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// UID of the Pod.
    pub pod: String,
    /// Lifecycle ID.
    pub operation: String,
    /// What it is in.
    pub phase: Phase,
    /// Since when.
    pub since: Timestamp,
    /// UIDs of the rule objects that hold it.
    pub rules: Vec<Arc<str>>,
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// About a Pod.
    Pod(Waiting),
    /// About a rule object.
    Rule {
        /// UID of the object.
        rule: Arc<str>,
        /// How many operations wait for it beyond the threshold.
        waiting: usize,
        /// The longest waiting of them.
        longest: Waiting,
    },
}

/// Operations on a Pod that wait for somebody else than their operator, and the stage of the rules that may hold each. Which
/// rule objects do is left open.
pub fn waiting(pod: &Pod) -> impl Iterator<Item = (Waiting, Option<Stage>)> {
    let living = !pod.is_terminating() && pod.is_managed();
    let all = phases(pod).into_iter().filter(move |_| living);
    all.filter_map(move |(operation, phase)| {
        let (family, stage) = match phase {
            Phase::PreCheck => (Family::PreCheck, Some(Stage::PreCheck)),
            Phase::Preparing => (Family::Preparing, None),
            Phase::PostCheck => (Family::PostCheck, Some(Stage::PostCheck)),
            Phase::Completing => (Family::Completing, None),
            Phase::Idle | Phase::Operate => return None,
        };
        let waiting = Waiting {
            pod: pod.metadata.uid.clone(),
            since: stamp(pod.label(&family.key(&operation)))?,
            rules: Vec::new(),
            operation,
            phase,
        };
        Some((waiting, stage))
    })
}

/// Whether an object keeps a Pod waiting, by its status and these verdicts of its endpoints. `budgets`: whether those of its
/// rules hold the Pod.
pub fn holds(
    rule: &RuleObject,
    verdicts: &Verdicts,
    stage: Stage,
    pod: &Pod,
    budgets: bool,
) -> bool {
    let set = &rule.set;
    if rejects_at_once(set, stage, pod) {
        return true;
    }
    let asks = set.webhooks(stage).next().is_some();
    if asks && !rejections(set, stage, pod, verdicts).is_empty() {
        return true;
    }
    if stage != Stage::PreCheck || !pod.is_available() || !budgets {
        return false;
    }
    let Availability::Held(held) = set.availability(pod) else {
        return false;
    };
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let (expected, available) = rule.status().map_or((0, 0), |status| {
        (count(status.expected_pods), count(status.available_pods))
    });
    held.iter()
        .any(|(_, limits)| available <= limits.desired(expected))
}

/// Reason of an Event about a Pod that waits in a phase, and whether something may be wrong.
pub const fn reason(phase: Phase) -> (&'static str, bool) {
    match phase {
        Phase::PreCheck | Phase::PostCheck => ("WaitingForRule", false),
        Phase::Idle | Phase::Preparing | Phase::Operate | Phase::Completing => {
            ("WaitingForTraffic", true)
        }
    }
}

/// Reason of an Event about a rule object.
pub const RULE_REASON: &str = "PodsWaiting";

/// The explanation of one operation in one line; `None` if it is not in flight any more.
pub fn line(observed: &Observed, operation: &str) -> Option<String> {
    let all = explain(observed);
    let found = all.operations.iter().find(|o| o.id == operation)?;
    Some(summary::operation(observed, found))
}

/// What was told, so that it is not told again too soon. It may be lost: then it is told once more.
#[derive(Debug)]
pub struct Notices {
    threshold: SignedDuration,
    namespaces: HashMap<String, Told>,
}

impl Notices {
    /// Tells of waits beyond `threshold`.
    pub fn new(threshold: SignedDuration) -> Notices {
        Notices {
            threshold,
            namespaces: HashMap::new(),
        }
    }

    /// Whether an operation that waits since then is worth a word.
    pub fn is_long(&self, since: Timestamp, now: Timestamp) -> bool {
        now.duration_since(since) >= self.threshold
    }

    /// What to tell of a namespace now, whose `waits` are all that wait in it: at most [`MOST_AT_ONCE`] Notices about Pods, and
    /// as many about rules. What is left over is told the next time.
    pub fn decide(
        &mut self,
        namespace: &str,
        mut waits: Vec<Waiting>,
        now: Timestamp,
    ) -> Vec<Notice> {
        waits.retain(|wait| self.is_long(wait.since, now));
        let mut told = self.namespaces.remove(namespace).unwrap_or_default();
        let notices = told.decide(waits, now);
        if !told.pods.is_empty() || !told.rules.is_empty() {
            self.namespaces.insert(namespace.to_owned(), told);
        }
        notices
    }

    /// Forgets namespaces that are gone.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.namespaces.retain(|namespace, _| is_there(namespace));
    }
}

/// A Pod and one of its operations.
type Operation = (String, String);
/// When something was told, and the rule object that it was told for.
type Last = (Timestamp, Option<Arc<str>>);

/// What was told in one namespace.
#[derive(Debug, Default)]
struct Told {
    /// Kept while the operation waits, so that others come before it.
    pods: HashMap<Operation, Last>,
    rules: HashMap<Arc<str>, Timestamp>,
}

impl Told {
    fn decide(&mut self, mut waits: Vec<Waiting>, now: Timestamp) -> Vec<Notice> {
        waits.sort_by(|a, b| (a.since, &a.pod, &a.operation).cmp(&(b.since, &b.pod, &b.operation)));
        let is_recent = |told: Timestamp| now.duration_since(told) < AGAIN;
        let waiting: HashSet<_> = waits.iter().map(key).collect();
        self.pods
            .retain(|key, (told, _)| is_recent(*told) || waiting.contains(key));
        self.rules.retain(|_, told| is_recent(*told));
        let mut counts: HashMap<Option<Arc<str>>, usize> = HashMap::new();
        for (_, rule) in self.pods.values().filter(|(told, _)| is_recent(*told)) {
            *counts.entry(rule.clone()).or_default() += 1;
        }
        let mut notices = Vec::new();
        for wait in self.in_turn(&waits) {
            if notices.len() >= MOST_AT_ONCE {
                break;
            }
            let (key, rule) = (key(wait), wait.rules.first().cloned());
            let count = counts.entry(rule.clone()).or_default();
            let was_told = self.pods.get(&key);
            if *count >= MOST || was_told.is_some_and(|(told, _)| is_recent(*told)) {
                continue;
            }
            *count += 1;
            self.pods.insert(key, (now, rule));
            notices.push(Notice::Pod(wait.clone()));
        }
        notices.extend(self.sums(&waits, now));
        notices
    }

    /// Waits in the order in which they are told: those that were never told come first, then those that were told the
    /// longest ago. Second operations of a Pod come after the first ones of all others. `waits` are sorted, the longest first.
    fn in_turn<'a>(&self, waits: &'a [Waiting]) -> Vec<&'a Waiting> {
        let mut of_pod: HashMap<&str, usize> = HashMap::new();
        let mut turns = Vec::new();
        for wait in waits {
            let nth = of_pod.entry(&wait.pod).or_default();
            let told = self.pods.get(&key(wait)).map(|(told, _)| *told);
            turns.push((told, *nth, wait));
            *nth += 1;
        }
        turns.sort_by_key(|(told, nth, _)| (*told, *nth));
        turns.into_iter().map(|(_, _, wait)| wait).collect()
    }

    /// One Notice for each rule object; `waits` are sorted, the longest first.
    fn sums(&mut self, waits: &[Waiting], now: Timestamp) -> Vec<Notice> {
        let mut sums: BTreeMap<&Arc<str>, (usize, &Waiting)> = BTreeMap::new();
        for wait in waits {
            for rule in &wait.rules {
                sums.entry(rule).or_insert((0, wait)).0 += 1;
            }
        }
        sums.retain(|rule, _| !self.rules.contains_key(*rule));
        let sums = sums
            .into_iter()
            .take(MOST_AT_ONCE)
            .map(|(rule, (waiting, longest))| {
                self.rules.insert(Arc::clone(rule), now);
                Notice::Rule {
                    rule: Arc::clone(rule),
                    waiting,
                    longest: longest.clone(),
                }
            });
        sums.collect()
    }
}

fn key(wait: &Waiting) -> Operation {
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

    fn wait(pod: usize, since: i64, rules: &[&str]) -> Waiting {
        Waiting {
            pod: format!("pod-{pod:03}"),
            operation: "upgrade".to_owned(),
            phase: Phase::PreCheck,
            since: at(since),
            rules: rules.iter().map(|r| Arc::from(*r)).collect(),
        }
    }

    fn minute() -> Notices {
        Notices::new(SignedDuration::from_mins(1))
    }

    #[test]
    fn short_waits_and_none_are_not_told() {
        let mut notices = minute();
        assert_eq!(notices.decide("n", Vec::new(), at(0)), []);
        assert_eq!(notices.decide("n", vec![wait(1, 0, &["web"])], at(59)), []);
    }

    #[test]
    fn a_long_wait_is_told_of_the_pod_and_of_its_rules_and_not_again_too_soon() {
        let mut notices = minute();
        let long = wait(1, 0, &["web", "other"]);
        let told = notices.decide("n", vec![long.clone()], at(60));
        let rule = |rule: &str| Notice::Rule {
            rule: rule.into(),
            waiting: 1,
            longest: long.clone(),
        };
        assert_eq!(
            told,
            [Notice::Pod(long.clone()), rule("other"), rule("web")]
        );
        for seconds in [61, 120, 359] {
            assert_eq!(notices.decide("n", vec![long.clone()], at(seconds)), []);
        }
        assert_eq!(notices.decide("n", vec![long], at(360)).len(), 3);
    }

    #[test]
    fn a_rule_sums_up_and_few_pods_are_told_of_the_longest_waiting_first() {
        let mut notices = minute();
        let all: Vec<_> = (0..500)
            .rev()
            .map(|n| wait(n, n as i64 / 100, &["web"]))
            .collect();
        let told = notices.decide("n", all.clone(), at(100));
        assert_eq!(told.len(), MOST + 1);
        assert_eq!(told[0], Notice::Pod(wait(0, 0, &["web"])));
        let sum = Notice::Rule {
            rule: "web".into(),
            waiting: 500,
            longest: wait(0, 0, &["web"]),
        };
        assert_eq!(told[MOST], sum);
        // Those told of are granted and gone: others behind them do not make up for it at once.
        assert_eq!(notices.decide("n", all[..400].to_vec(), at(130)), []);
    }

    #[test]
    fn rules_beyond_those_that_are_told_at_once_come_next() {
        let mut notices = minute();
        let rules: Vec<String> = (0..25).map(|n| format!("rule-{n:02}")).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let told = (0..4).map(|_| notices.decide("n", vec![wait(1, 0, &rules)], at(60)).len());
        assert_eq!(
            told.collect::<Vec<_>>(),
            [1 + MOST_AT_ONCE, MOST_AT_ONCE, 5, 0]
        );
    }

    /// The Pods that these Notices are about.
    fn pods(notices: &[Notice]) -> Vec<&str> {
        let pods = notices.iter().filter_map(|notice| match notice {
            Notice::Pod(wait) => Some(wait.pod.as_str()),
            Notice::Rule { .. } => None,
        });
        pods.collect()
    }

    #[test]
    fn every_pod_that_waits_for_traffic_is_told_in_turn() {
        let mut notices = minute();
        let stuck: Vec<_> = (0..25).map(|n| wait(n, 0, &[])).collect();
        let told = [60, 360, 660].map(|now| notices.decide("n", stuck.clone(), at(now)));
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
            let told = notices.decide(namespace, stuck.clone(), at(60));
            assert_eq!(told.len(), MOST, "{namespace}");
        }
        notices.retain(|namespace| namespace == "a");
        assert_eq!(notices.namespaces.len(), 1);
    }

    #[test]
    fn many_operations_of_one_pod_leave_room_for_others() {
        let mut notices = minute();
        let mut waits: Vec<_> = (0..20)
            .map(|n| Waiting {
                operation: format!("step-{n}"),
                ..wait(0, 0, &[])
            })
            .collect();
        waits.push(wait(1, 30, &[]));
        let told = notices.decide("n", waits, at(100));
        assert_eq!(pods(&told)[..2], ["pod-000", "pod-001"]);
    }

    #[test]
    fn nothing_is_remembered_for_ever() {
        let mut notices = minute();
        notices.decide("n", vec![wait(1, 0, &["web"])], at(60));
        notices.decide("n", Vec::new(), at(1_000));
        assert!(notices.namespaces.is_empty());
    }

    #[test]
    fn what_waits_for_its_operator_is_no_news() {
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
            waiting(pod)
                .map(|(w, _)| (w.phase, w.since))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&pod(Family::Operate)), []);
        assert_eq!(of(&pod(Family::Preparing)), [(Phase::Preparing, at(0))]);
        assert_eq!(of(&pod(Family::PreCheck)), [(Phase::PreCheck, at(0))]);
    }
}
