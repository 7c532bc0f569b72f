#![allow(clippy::unwrap_used)]
use std::cell::Cell;

use serde_json::{Value, json};

use super::*;
use crate::api::keys;

/// Number of Pods of [`crowded_index`].
pub const PODS: usize = 60;
/// Number of rule objects of [`crowded_index`]. Each of them covers all Pods.
pub const RULES: usize = 150;

/// A Pod that has waited since `since`.
fn pod(name: &str, app: &str, since: usize) -> Value {
    json!({
        "metadata": {
            "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
            "labels": {
                (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1", "app": app,
                "operating.podopslifecycle.kusionstack.io/id": since.to_string(),
                "pre-check.podopslifecycle.kusionstack.io/id": since.to_string(),
                "operation-type.podopslifecycle.kusionstack.io/id": "update",
            },
        },
        "spec": { "containers": [{ "name": "app" }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn rule(name: &str, apps: &[&str]) -> Value {
    let select = json!([{ "key": "app", "operator": "In", "values": apps }]);
    json!({
        "metadata": { "namespace": "n", "name": name, "uid": name, "generation": 1, "resourceVersion": "1" },
        "spec": {
            "selector": { "matchExpressions": select },
            "rules": [{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 50 } }],
        },
    })
}

fn index(rules: Vec<Value>, pods: Vec<Value>) -> Index {
    let index = Index::default();
    for rule in rules {
        index.apply_rule(serde_json::from_value(rule).unwrap());
    }
    for pod in pods {
        index.apply_pod(serde_json::from_value(pod).unwrap());
    }
    index
}

/// Waiting Pods under many rule objects that cover all of them.
pub fn crowded_index() -> Index {
    let rules = (0..RULES).map(|i| rule(&format!("rule-{i}"), &["q"]));
    let pods = (0..PODS).map(|i| pod(&format!("pod-{i}"), "q", i + 1));
    index(rules.collect(), pods.collect())
}

fn budget_with_headroom(headroom: Option<u32>) -> RoundBudget {
    RoundBudget::new(headroom, false, BTreeSet::new())
}

/// The Pods that are next, sorted.
fn next(round: &Round) -> Vec<&str> {
    let mut all: Vec<_> = round.next_pods.iter().map(|uid| &**uid).collect();
    all.sort_unstable();
    all
}

#[tokio::test]
async fn round_reads_each_budget_and_pair_once() {
    let (index, measured) = (crowded_index(), Cell::new(0));
    for headroom in [None, Some(0), Some(1), Some(50), Some(1_000)] {
        measured.set(0);
        let round = Round::judge_namespace(&index, "n", |_, _| {
            measured.set(measured.get() + 1);
            budget_with_headroom(headroom)
        });
        let round = round.await;
        assert_eq!(measured.get(), RULES);
        assert!(round.steps <= 4 * PODS * RULES, "{}", round.steps);
        let expected = headroom.map_or(PODS, |headroom| PODS.min(headroom as usize));
        assert_eq!(next(&round).len(), expected, "{headroom:?}");
    }
}

#[tokio::test]
async fn longest_waiting_pods_come_first() {
    let pods = vec![pod("a", "q", 30), pod("b", "q", 9), pod("c", "q", 20)];
    let index = index(vec![rule("web", &["q"])], pods);
    let round = Round::judge_namespace(&index, "n", |_, _| budget_with_headroom(Some(2))).await;
    assert_eq!(next(&round), ["b", "c"]);
    assert_eq!(round.first_in_line("web").map(|uid| &**uid), Some("b"));
}

#[tokio::test]
async fn pod_deleted_with_its_set_takes_no_headroom() {
    let mut deleted = pod("a", "q", 1);
    deleted["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "set", "controller": true,
    }]);
    let labels = &mut deleted["metadata"]["labels"];
    labels["operating.podopslifecycle.kusionstack.io/pod-delete"] = json!("1");
    labels["operation-type.podopslifecycle.kusionstack.io/pod-delete"] = json!("delete");
    labels["pre-check.podopslifecycle.kusionstack.io/pod-delete"] = json!("1");
    let index = index(vec![rule("web", &["q"])], vec![deleted, pod("b", "q", 2)]);
    for (headroom, expected) in [(0, vec!["a"]), (1, vec!["a", "b"])] {
        let round =
            Round::judge_namespace(&index, "n", |_, _| budget_with_headroom(Some(headroom))).await;
        assert_eq!(next(&round), expected);
        let head = (headroom > 0).then_some("b");
        assert_eq!(round.first_in_line("web").map(|uid| &**uid), head);
    }
}

#[tokio::test]
async fn pod_blocked_by_other_rule_blocks_nobody() {
    let rules = || vec![rule("wide", &["q", "r"]), rule("closed", &["q"])];
    let pods = || vec![pod("a", "q", 1), pod("b", "r", 2), pod("c", "r", 3)];
    let measure = |_: &IndexState, entry: &RuleEntry| match &*entry.snapshot.rules.name {
        "wide" => budget_with_headroom(Some(1)),
        _ => budget_with_headroom(Some(0)),
    };
    let full = index(rules(), pods());
    let round = Round::judge_namespace(&full, "n", measure).await;
    assert_eq!(next(&round), ["b"]);
    assert_eq!(round.first_in_line("wide").map(|uid| &**uid), Some("b"));
    assert_eq!(round.first_in_line("closed"), None);

    let mut checked = rules();
    checked[1]["spec"]["rules"] = json!([{ "name": "go", "labelCheck": { "requires": { "matchLabels": { "go": "true" } } } }]);
    let checked = index(checked, pods());
    let measure = |_: &IndexState, entry: &RuleEntry| match &*entry.snapshot.rules.name {
        "wide" => budget_with_headroom(Some(1)),
        _ => budget_with_headroom(None),
    };
    let round = Round::judge_namespace(&checked, "n", measure).await;
    assert_eq!(next(&round), ["b"]);
}

#[tokio::test]
async fn pod_with_lost_claim_needs_no_headroom() {
    let pods = vec![pod("a", "q", 1), pod("b", "q", 2)];
    let index = index(vec![rule("web", &["q"])], pods);
    let pods_with_lost_claim = || BTreeSet::from([Uid::from("a")]);
    let round = Round::judge_namespace(&index, "n", |_, _| {
        RoundBudget::new(Some(0), false, pods_with_lost_claim())
    })
    .await;
    assert_eq!(next(&round), ["a"]);
}

#[tokio::test]
async fn briefly_down_pod_passes_unless_budget_is_overdrawn() {
    let up = pod("a", "q", 1);
    let mut down = up.clone();
    down["status"]["conditions"][0]["status"] = json!("False");
    let index = index(vec![rule("web", &["q"])], vec![up, down]);
    for (is_overdrawn, expected) in [(false, vec!["a"]), (true, vec![])] {
        let measure = |_: &IndexState, _: &RuleEntry| {
            RoundBudget::new(Some(0), is_overdrawn, BTreeSet::new())
        };
        let round = Round::judge_namespace(&index, "n", measure).await;
        assert_eq!(next(&round), expected);
        assert_eq!(round.first_in_line("web"), None);
    }
}

#[tokio::test]
async fn broken_pod_takes_no_headroom_but_needs_some() {
    let mut broken = pod("b", "q", 2);
    broken["status"]["conditions"][0]["status"] = json!("False");
    broken["status"]["phase"] = json!("Pending");
    let index = index(vec![rule("web", &["q"])], vec![pod("a", "q", 1), broken]);
    let round = Round::judge_namespace(&index, "n", |_, _| budget_with_headroom(Some(1))).await;
    assert_eq!(next(&round), ["a", "b"]);
    let round = Round::judge_namespace(&index, "n", |_, _| budget_with_headroom(Some(0))).await;
    assert_eq!(next(&round), [""; 0]);
}

#[tokio::test]
async fn pod_with_many_operations_is_judged_in_small_parts() {
    let mut waiting = pod("a", "q", 1);
    let labels = waiting["metadata"]["labels"].as_object_mut().unwrap();
    for i in 0..100 {
        for family in ["operating", "pre-check", "operation-type"] {
            let key = format!("{family}.podopslifecycle.kusionstack.io/id-{i}");
            labels.insert(key, json!("1"));
        }
    }
    let webhook_rule = |i: usize| {
        let mut rule = rule(&format!("rule-{i}"), &["q"]);
        let config = json!({ "clientConfig": { "url": "https://a" } });
        // The last operation has passed: all rules of all objects are evaluated for it, and some for other operations.
        let rules =
            (0..10).map(|n| json!({ "name": format!("ask-{n}"), "webhook": config.clone() }));
        rule["spec"]["rules"] = rules.collect();
        let passed = json!([{ "name": "a", "podUID": "a", "operation": "id-99", "since": "1" }]);
        let states = (0..10).map(|n| {
            let passed = passed.clone();
            json!({ "name": format!("ask-{n}"), "webhookStatus": { "generation": 1, "passed": passed } })
        });
        rule["status"] = json!({ "ruleStates": states.collect::<Vec<_>>() });
        rule
    };
    let index = index((0..100).map(webhook_rule).collect(), vec![waiting]);
    let round = Round::judge_namespace(&index, "n", |_, _| budget_with_headroom(None)).await;
    assert_eq!(next(&round), ["a"]);
    assert!(round.steps > 2 * STEPS_PER_YIELD, "{}", round.steps);
    assert!(round.max_burst < 2 * STEPS_PER_YIELD, "{}", round.max_burst);
}

#[tokio::test]
async fn thousands_of_waiting_pods_are_collected_in_small_parts() {
    let pods = (0..3_000).map(|i| pod(&format!("pod-{i}"), "q", 3_000 - i));
    let index = index(vec![rule("web", &["q"])], pods.collect());
    let round = Round::judge_namespace(&index, "n", |_, _| budget_with_headroom(Some(2))).await;
    assert_eq!(next(&round), ["pod-2998", "pod-2999"]);
    assert_eq!(
        round.first_in_line("web").map(|uid| &**uid),
        Some("pod-2999")
    );
    assert!(
        round.max_burst < 2 * STEPS_PER_YIELD + 10,
        "{}",
        round.max_burst
    );
}
