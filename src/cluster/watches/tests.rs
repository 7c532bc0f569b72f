//! Tests what each sink does with the events of a watch.
#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::*;
use crate::api::keys;
use crate::cluster::index::Index;
use crate::domain::pod_size::MAX_POD_BYTES;

fn deliver(caches: &Caches, kind: &str, object: &Value) -> Option<u64> {
    let source = Source::from_path("/api/v1/pods");
    let line = json!({ "type": kind, "object": object }).to_string();
    let known = caches.index.read_state().position;
    let delivered = watch::deliver_event(&source, &PodSink::new(caches), &line, known);
    delivered.map(|delivered| delivered.version)
}

/// The position of the cache, and the expected and the available Pods of the rule.
fn figures(index: &Index) -> (u64, u32, u32) {
    let state = index.read_state();
    let entry = state.rule("n", "web").unwrap();
    state.with_view(&entry.snapshot.rules, |view| {
        (view.position(), view.expected(), view.available())
    })
}

#[test]
fn unreadable_pod_is_expected_and_not_available() {
    let caches = Caches::default();
    let index = &caches.index;
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    index.apply_rule(serde_json::from_value(rule).unwrap());
    let mut pod = json!({
        "metadata": {
            "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "7",
            "labels": { (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1" },
        },
        "spec": { "containers": [{ "name": "app" }] },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    assert_eq!(deliver(&caches, "ADDED", &pod), Some(7));
    assert_eq!(figures(index), (7, 1, 1));

    pod["metadata"]["resourceVersion"] = json!("8");
    pod["status"]["conditions"] = json!("none");
    assert_eq!(deliver(&caches, "MODIFIED", &pod), Some(8));
    assert_eq!(figures(index), (8, 1, 0));
    assert!(!index.read_state().pod("n", "web-1").unwrap().is_readable());
    assert_eq!(caches.unreadable.count(), 1);

    pod["metadata"]["resourceVersion"] = json!("9");
    assert_eq!(deliver(&caches, "DELETED", &pod), Some(9));
    assert_eq!(figures(index), (9, 0, 0));
    assert_eq!(caches.unreadable.count(), 0);
}

#[test]
fn pod_above_the_bound_counts_once_whatever_its_events() {
    let caches = Caches::default();
    let index = &caches.index;
    let pod = |version: u64, image: &str| {
        json!({
            "metadata": {
                "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": version.to_string(),
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
            },
            "spec": { "containers": [{ "name": "app", "image": image }] },
        })
    };
    let long = "x".repeat(MAX_POD_BYTES);
    for version in 7..10 {
        deliver(&caches, "MODIFIED", &pod(version, &long));
        assert!(!index.read_state().pod("n", "web-1").unwrap().is_readable());
        assert_eq!(caches.unreadable.count(), 1);
    }
    deliver(&caches, "MODIFIED", &pod(10, "app:1"));
    assert!(index.read_state().pod("n", "web-1").unwrap().is_readable());
    assert_eq!(caches.unreadable.count(), 0);
}

/// Passes an event to the sink of rules. Returns whether it was delivered.
fn deliver_rule(caches: &Caches, kind: &str, object: &str) -> bool {
    let source = Source::from_path("/apis/apps.kusionstack.io/v1alpha1/podtransitionrules");
    let line = format!(r#"{{ "type": "{kind}", "object": {object} }}"#);
    watch::deliver_event(&source, &RuleSink(caches.clone()), &line, 0).is_some()
}

/// Why the spec and the ledger of the rule `web` in the namespace `n` cannot be read. `None` if there is no such rule.
fn faults(index: &Index) -> Option<(Option<String>, Option<String>)> {
    let state = index.read_state();
    let snapshot = &state.rule("n", "web")?.snapshot;
    let ledger = snapshot.fault.as_deref().map(str::to_owned);
    Some((snapshot.rules.selector.clone().err(), ledger))
}

#[test]
fn unreadable_rule_still_holds_its_pods() {
    let caches = Caches::default();
    let index = &caches.index;
    let rule = |version: u64, rule: Value, status: Value| {
        json!({
            "metadata": {
                "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": version.to_string(), "generation": version,
            },
            "spec": { "selector": {}, "rules": [rule] },
            "status": status,
        })
        .to_string()
    };
    let budget = |most: Value| json!({ "name": "a", "availablePolicy": most });
    let good = budget(json!({ "maxUnavailableValue": 1 }));
    assert!(deliver_rule(
        &caches,
        "ADDED",
        &rule(1, good.clone(), json!(null))
    ));
    assert_eq!(faults(index), Some((None, None)));

    assert!(deliver_rule(
        &caches,
        "MODIFIED",
        &rule(2, budget(json!("1")), json!(null))
    ));
    let (spec, ledger) = faults(index).unwrap();
    assert!(spec.unwrap().starts_with("spec.rules[0].availablePolicy: "));
    assert_eq!((ledger, caches.unreadable.count()), (None, 1));

    assert!(deliver_rule(
        &caches,
        "MODIFIED",
        &rule(3, good.clone(), json!("lost"))
    ));
    let (spec, ledger) = faults(index).unwrap();
    assert_eq!((spec, caches.unreadable.count()), (None, 1));
    assert!(ledger.unwrap().starts_with("status.ledger can't be read"));

    let odd = json!({ "conditions": [7], "ledger": { "watermark": "5" } });
    assert!(deliver_rule(&caches, "MODIFIED", &rule(4, good, odd)));
    assert_eq!(
        (faults(index), caches.unreadable.count()),
        (Some((None, None)), 0)
    );

    // The last state of a deleted object may be unreadable.
    assert!(deliver_rule(
        &caches,
        "DELETED",
        &rule(5, json!(1), json!([]))
    ));
    assert_eq!(faults(index), None);
}

#[test]
fn oversized_pod_is_expected_and_not_available() {
    let caches = Caches::default();
    let index = &caches.index;
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
        "spec": {
            "selector": { "matchLabels": { "zone": "a" } },
            "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
        },
    });
    index.apply_rule(serde_json::from_value(rule).unwrap());
    let pod = |version: u64, labels: usize| {
        let mut all: serde_json::Map<_, _> = (0..labels)
            .map(|n| (format!("example.com/{n:05}"), json!("x".repeat(63))))
            .collect();
        all.insert(keys::CONTROL.to_owned(), json!(keys::CONTROL_VALUE));
        all.insert(keys::SERVICE_AVAILABLE.to_owned(), json!("1"));
        all.insert("zone".to_owned(), json!("a"));
        json!({
            "metadata": {
                "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": version.to_string(),
                "labels": all,
            },
            "spec": { "containers": [{ "name": "app" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        })
    };
    assert_eq!(deliver(&caches, "ADDED", &pod(7, 10)), Some(7));
    assert_eq!(figures(index), (7, 1, 1));
    assert_eq!(deliver(&caches, "MODIFIED", &pod(8, 10_000)), Some(8));
    assert_eq!(figures(index), (8, 1, 0), "the label zone is not kept");
    assert_eq!(caches.unreadable.count(), 1);
    assert_eq!(deliver(&caches, "MODIFIED", &pod(9, 10)), Some(9));
    assert_eq!(figures(index), (9, 1, 1));
    assert_eq!(deliver(&caches, "MODIFIED", &pod(10, 10_000)), Some(10));
    assert_eq!(deliver(&caches, "DELETED", &pod(11, 10_000)), Some(11));
    assert_eq!(figures(index), (11, 0, 0));
}

#[test]
fn event_before_position_is_ignored_and_triggers_relist() {
    let caches = Caches::default();
    let index = &caches.index;
    let pod = |version: &str| json!({ "metadata": { "namespace": "n", "name": "a", "uid": version, "resourceVersion": version } });
    assert_eq!(deliver(&caches, "ADDED", &pod("7")), Some(7));
    assert_eq!(deliver(&caches, "ADDED", &pod("5")), None);
    assert_eq!(deliver(&caches, "BOOKMARK", &pod("6")), None);
    assert!(index.read_state().pod("n", "5").is_none());
    assert_eq!(deliver(&caches, "BOOKMARK", &pod("7")), Some(7));
}
