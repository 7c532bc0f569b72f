//! Which waits are worth an Event: those beyond a threshold, seldom, and few for each rule object.

use std::collections::{BTreeMap, HashMap};
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
/// Pods that are told of for each rule object within [`AGAIN`], the longest waiting first; the rule's own Event sums up.
pub const MOST: usize = 10;

/// Notices of one kind that are told at once: each costs an explanation.
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

/// When something was told, and the rule object that it was told for.
type Told = (Timestamp, Option<Arc<str>>);

/// What was told, so that it is not told again too soon. It may be lost: then it is told once more.
#[derive(Debug)]
pub struct Notices {
    threshold: SignedDuration,
    /// By Pod and operation: when, and the rule object that it was told for.
    pods: HashMap<(String, String), Told>,
    rules: HashMap<Arc<str>, Timestamp>,
}

impl Notices {
    /// Tells of waits beyond `threshold`.
    pub fn new(threshold: SignedDuration) -> Notices {
        Notices {
            threshold,
            pods: HashMap::new(),
            rules: HashMap::new(),
        }
    }

    /// Whether an operation that waits since then is worth a word.
    pub fn is_long(&self, since: Timestamp, now: Timestamp) -> bool {
        now.duration_since(since) >= self.threshold
    }

    /// What to tell now: at most [`MOST_AT_ONCE`] Notices about Pods, and as many about rules. What is left over is told the
    /// next time.
    pub fn decide(&mut self, mut waits: Vec<Waiting>, now: Timestamp) -> Vec<Notice> {
        let recent = |told: &Timestamp| now.duration_since(*told) < AGAIN;
        self.pods.retain(|_, (told, _)| recent(told));
        self.rules.retain(|_, told| recent(told));
        waits.retain(|wait| self.is_long(wait.since, now));
        waits.sort_by(|a, b| (a.since, &a.pod, &a.operation).cmp(&(b.since, &b.pod, &b.operation)));
        let mut told: HashMap<Option<Arc<str>>, usize> = HashMap::new();
        for (_, rule) in self.pods.values() {
            *told.entry(rule.clone()).or_default() += 1;
        }
        let mut notices = Vec::new();
        for wait in &waits {
            let key = (wait.pod.clone(), wait.operation.clone());
            let rule = wait.rules.first().cloned();
            let count = told.entry(rule.clone()).or_default();
            if notices.len() >= MOST_AT_ONCE {
                break;
            }
            if *count >= MOST || self.pods.contains_key(&key) {
                continue;
            }
            *count += 1;
            self.pods.insert(key, (now, rule));
            notices.push(Notice::Pod(wait.clone()));
        }
        notices.extend(self.sums(&waits, now));
        notices
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
        assert_eq!(notices.decide(Vec::new(), at(0)), []);
        assert_eq!(notices.decide(vec![wait(1, 0, &["web"])], at(59)), []);
    }

    #[test]
    fn a_long_wait_is_told_of_the_pod_and_of_its_rules_and_not_again_too_soon() {
        let mut notices = minute();
        let long = wait(1, 0, &["web", "other"]);
        let told = notices.decide(vec![long.clone()], at(60));
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
            assert_eq!(notices.decide(vec![long.clone()], at(seconds)), []);
        }
        assert_eq!(notices.decide(vec![long], at(360)).len(), 3);
    }

    #[test]
    fn a_rule_sums_up_and_few_pods_are_told_of_the_longest_waiting_first() {
        let mut notices = minute();
        let all: Vec<_> = (0..500)
            .rev()
            .map(|n| wait(n, n as i64 / 100, &["web"]))
            .collect();
        let told = notices.decide(all.clone(), at(100));
        assert_eq!(told.len(), MOST + 1);
        assert_eq!(told[0], Notice::Pod(wait(0, 0, &["web"])));
        let sum = Notice::Rule {
            rule: "web".into(),
            waiting: 500,
            longest: wait(0, 0, &["web"]),
        };
        assert_eq!(told[MOST], sum);
        // Those told of are granted and gone: others behind them do not make up for it at once.
        assert_eq!(notices.decide(all[..400].to_vec(), at(130)), []);
    }

    #[test]
    fn rules_beyond_those_that_are_told_at_once_come_next() {
        let mut notices = minute();
        let rules: Vec<String> = (0..25).map(|n| format!("rule-{n:02}")).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let told = (0..4).map(|_| notices.decide(vec![wait(1, 0, &rules)], at(60)).len());
        assert_eq!(
            told.collect::<Vec<_>>(),
            [1 + MOST_AT_ONCE, MOST_AT_ONCE, 5, 0]
        );
    }

    #[test]
    fn nothing_is_remembered_for_ever() {
        let mut notices = minute();
        notices.decide(vec![wait(1, 0, &["web"])], at(60));
        notices.decide(Vec::new(), at(1_000));
        assert!(notices.pods.is_empty() && notices.rules.is_empty());
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
