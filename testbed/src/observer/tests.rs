#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::judge::{Cause, Judgement, Limit, Rule, judge};
use super::{Change, Fact, Record};

const LENIENCY: Duration = Duration::from_secs(10);

/// A history that a test writes, with one second between changes.
struct History {
    start: Instant,
    changes: Vec<Change>,
}

impl History {
    /// A Deployment of three Pods `a`, `b`, `c`, all available.
    fn of_three() -> Self {
        let mut history = History {
            start: Instant::now(),
            changes: Vec::new(),
        };
        history.listed("Deployment", "web", web(3));
        history.listed(
            "ReplicaSet",
            "web-1",
            json!({
                "metadata": {"ownerReferences": [owner("web")]},
                "spec": {"replicas": 3, "template": {"metadata": {"labels": labels()}}},
            }),
        );
        for name in ["a", "b", "c"] {
            history.listed("Pod", name, pod());
        }
        history
    }

    fn listed(&mut self, kind: &str, name: &str, object: Value) {
        self.then(kind, name, object);
        self.changes.last_mut().unwrap().listed = true;
    }

    fn then(&mut self, kind: &str, name: &str, mut object: Value) {
        object["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.push(kind, name, Some(Fact::read(kind, &object).unwrap()));
    }

    fn gone(&mut self, kind: &str, name: &str) {
        self.push(kind, name, None);
    }

    fn push(&mut self, kind: &str, name: &str, fact: Option<Fact>) {
        let version = self.changes.len() as u64 + 1;
        self.changes.push(Change {
            version,
            at: self.start + Duration::from_secs(version),
            uid: name.to_owned(),
            name: format!("{kind}/{name}"),
            object: fact.map(Arc::new),
            listed: false,
        });
    }

    fn wait(&mut self, seconds: u64) {
        self.start += Duration::from_secs(seconds);
    }

    fn judged(&self) -> Judgement {
        let rule = Rule::over("web", "app", "web", Limit::Count(1));
        judge(&self.changes, &rule, LENIENCY)
    }
}

fn labels() -> Value {
    json!({"app": "web", "kusionstack.io/control": "true"})
}

fn owner(uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Any", "name": uid, "uid": uid, "controller": true})
}

fn web(replicas: i64) -> Value {
    json!({"metadata": {}, "spec": {"replicas": replicas, "template": {"metadata": {"labels": labels()}}}})
}

/// An available Pod of the ReplicaSet.
fn pod() -> Value {
    let mut labels = labels();
    labels["podopslifecycle.kusionstack.io/service-available"] = json!("1");
    json!({
        "metadata": {"labels": labels, "ownerReferences": [owner("web-1")]},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "main", "image": "web:1"}],
        },
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut pod = pod();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/");
    match value {
        Value::Null => drop(
            pod.pointer_mut(parent)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(&key),
        ),
        value => pod.pointer_mut(parent).unwrap()[key] = value,
    }
    pod
}

fn deleting() -> Value {
    with("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))
}

fn not_ready() -> Value {
    with("/status/conditions", json!([]))
}

#[test]
fn one_deletion_at_a_time_breaks_nothing() {
    let mut history = History::of_three();
    history.then("Pod", "a", deleting());
    history.gone("Pod", "a");
    history.then("Pod", "d", pod());
    history.then("Pod", "b", deleting());
    let judged = history.judged();
    assert!(judged.violations.is_empty(), "{:?}", judged.violations);
    assert_eq!((judged.worst, judged.limit), (1, 1));
}

#[test]
fn every_voluntary_second_loss_is_a_violation() {
    let available = "/metadata/labels/podopslifecycle.kusionstack.io~1service-available";
    let control = "/metadata/labels/kusionstack.io~1control";
    let cases = [
        (deleting(), Cause::Deleted),
        (with(available, Value::Null), Cause::LabelRemoved),
        (with(control, Value::Null), Cause::LeftManagement),
        (with("/metadata/labels/app", json!("else")), Cause::LeftRule),
        (
            with("/spec/containers/0/image", json!("web:2")),
            Cause::Changed,
        ),
        (
            with("/spec/activeDeadlineSeconds", json!(1)),
            Cause::Deadline,
        ),
        (
            with("/metadata/ownerReferences", json!([owner("nobody")])),
            Cause::Controller,
        ),
    ];
    for (change, cause) in cases {
        let mut history = History::of_three();
        history.then("Pod", "a", change.clone());
        assert!(history.judged().violations.is_empty(), "{cause:?}");
        history.then("Pod", "b", change);
        let judged = history.judged();
        let found: Vec<_> = judged.violations.iter().map(|v| v.loss.cause).collect();
        assert_eq!(found, [cause], "{:?}", judged.violations);
        let text = judged.violations[0].to_string();
        assert!(text.contains("Pod/a") && text.contains("Pod/b"), "{text}");
    }
}

#[test]
fn lost_pod_counts_as_missing_after_leniency() {
    let mut history = History::of_three();
    history.then("Pod", "a", not_ready());
    let mut at_once = History {
        start: history.start,
        changes: history.changes.clone(),
    };
    at_once.then("Pod", "b", deleting());
    assert!(at_once.judged().violations.is_empty());
    history.wait(10);
    history.then("Pod", "b", deleting());
    assert_eq!(history.judged().violations.len(), 1);
}

#[test]
fn scale_up_counts_after_leniency_scale_down_immediately() {
    let mut history = History::of_three();
    history.then("Deployment", "web", web(6));
    history.then("Pod", "a", deleting());
    assert!(history.judged().violations.is_empty());
    history.wait(10);
    history.then("Pod", "b", deleting());
    assert_eq!(history.judged().violations.len(), 1);

    let mut history = History::of_three();
    history.then("Deployment", "web", web(1));
    history.then("Pod", "a", deleting());
    history.then("Pod", "b", deleting());
    assert!(history.judged().violations.is_empty());
}

#[test]
fn replica_set_of_deployment_asks_for_nothing() {
    let mut history = History::of_three();
    let empty = json!({
        "metadata": {"ownerReferences": [owner("web")]},
        "spec": {"replicas": 0, "template": {"metadata": {"labels": labels()}}},
    });
    history.then("ReplicaSet", "web-1", empty);
    for name in ["a", "b", "c"] {
        history.then("Pod", name, deleting());
    }
    let judged = history.judged();
    assert_eq!((judged.worst, judged.violations.len()), (3, 2));
}

#[test]
fn garbage_collector_may_delete_pods_of_deleted_owner() {
    let mut history = History::of_three();
    history.gone("Deployment", "web");
    history.gone("ReplicaSet", "web-1");
    for name in ["a", "b", "c"] {
        history.gone("Pod", name);
    }
    let judged = history.judged();
    assert!(judged.violations.is_empty(), "{:?}", judged.violations);
    assert_eq!(judged.losses[&Cause::OwnerGone], 3);
}

#[test]
fn pods_without_owner_count_until_their_deletion() {
    let bare = with("/metadata/ownerReferences", Value::Null);
    let mut history = History {
        start: Instant::now(),
        changes: Vec::new(),
    };
    for name in ["a", "b", "c"] {
        history.listed("Pod", name, bare.clone());
    }
    let mut going = bare.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    history.then("Pod", "a", going.clone());
    let mut changed = bare.clone();
    changed["spec"]["containers"][0]["image"] = json!("web:2");
    history.then("Pod", "b", changed);
    assert!(history.judged().violations.is_empty());
    history.then("Pod", "c", going);
    assert_eq!(history.judged().violations.len(), 1);
}

/// A Pod off traffic, then with another image, then back on traffic before the kubelet has restarted the container.
fn early_return(operation: bool) -> Judgement {
    let operate = "operate.podopslifecycle.kusionstack.io/upgrade";
    let mut off = with(
        "/metadata/labels/podopslifecycle.kusionstack.io~1service-available",
        Value::Null,
    );
    if operation {
        off["metadata"]["labels"][operate] = json!("1");
    }
    let mut changed = off.clone();
    changed["spec"]["containers"][0]["image"] = json!("web:2");
    let mut history = History::of_three();
    history.then("Pod", "a", off);
    history.then("Pod", "a", changed);
    history.then("Pod", "a", with("/spec/containers/0/image", json!("web:2")));
    history.then("Pod", "b", deleting());
    history.judged()
}

#[test]
fn pending_restart_counts_as_missing_whoever_asked_for_it() {
    for operation in [false, true] {
        assert_eq!(early_return(operation).violations.len(), 1, "{operation}");
    }
}

#[test]
fn label_removed_after_lost_readiness_is_no_disruption() {
    let available = "/metadata/labels/podopslifecycle.kusionstack.io~1service-available";
    let mut history = History::of_three();
    // Ready is lost and regained, and the leader takes the label off late.
    history.then("Pod", "a", not_ready());
    history.then("Pod", "a", pod());
    history.then("Pod", "a", with(available, Value::Null));
    let judged = history.judged();
    assert!(judged.violations.is_empty());
    assert_eq!(judged.losses[&Cause::NotReady], 2);
}
