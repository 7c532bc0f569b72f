#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::{self, LiveReading, ReadingBasis};

fn pod(name: &str, owner: &str) -> Pod {
    let pod = json!({
        "metadata": {
            "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
            "labels": { "kusionstack.io/control": "true" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true,
            }],
        },
    });
    serde_json::from_value(pod).unwrap()
}

fn rule() -> PodTransitionRule {
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    serde_json::from_value(rule).unwrap()
}

fn replica_set(uid: &str, replicas: u32, version: u64) -> Workload {
    let object = json!({
        "metadata": { "namespace": "n", "name": uid, "uid": uid, "resourceVersion": version.to_string() },
        "spec": { "replicas": replicas },
    });
    owner_sizes::parse_workload(WatchedKind::ReplicaSet, object)
        .unwrap()
        .2
}

fn namespace(uid: &str, terminating: bool) -> NamespaceFacts {
    NamespaceFacts {
        name: "n".to_owned(),
        uid: uid.to_owned(),
        version: 0,
        labels: BTreeMap::new(),
        terminating_since: NamespaceFacts::parse_deletion_time(
            terminating.then_some("2026-01-01T00:00:10Z"),
        ),
    }
}

fn expected(index: &Index) -> u32 {
    index
        .read_state()
        .rule("n", "web")
        .unwrap()
        .tally
        .expected()
}

#[test]
fn late_deletion_of_earlier_namespace_leaves_the_new_one_alone() {
    let index = Index::default();
    index.apply_namespace(namespace("first", true));
    // The watches of Pods and rules are ahead of the watch of namespaces.
    index.apply_rule(rule());
    index.apply_pod(pod("web-1", "set"));
    index.delete_namespace("n", "first");
    assert!(index.read_state().pod("n", "web-1").is_some());
    let since = index.read_state().namespace("n").unwrap().terminating_since;
    assert_eq!(since, None);
    assert_eq!(expected(&index), 1);

    index.apply_namespace(namespace("second", false));
    index.delete_namespace("n", "first");
    let state = index.read_state();
    let home = state.namespace("n").unwrap();
    assert!(home.labels.is_some() && home.rules.len() == 1);
}

#[test]
fn namespace_of_which_nothing_is_left_is_forgotten() {
    let index = Index::default();
    index.replace_namespaces(vec![namespace("first", false)]);
    index.apply_rule(rule());
    index.apply_pod(pod("web-1", "set"));
    index.set_workload("n", Uid::from("set"), Some(replica_set("set", 1, 1)));
    index.replace_namespaces(Vec::new());
    index.set_workload("n", Uid::from("set"), None);
    index.delete_rule(&rule());
    index.delete_pod(&pod("web-1", "set"));
    assert!(index.read_state().namespace("n").is_none());
}

#[test]
fn late_watch_event_does_not_undo_a_live_reading() {
    let index = Index::default();
    index.apply_rule(rule());
    index.apply_pod(pod("web-1", "set"));
    index.set_workload("n", Uid::from("set"), Some(replica_set("set", 10, 5)));
    assert_eq!(expected(&index), 10);
    index.set_workload("n", Uid::from("set"), Some(replica_set("set", 100, 9)));
    for late in [6, 8] {
        index.set_workload("n", Uid::from("set"), Some(replica_set("set", 20, late)));
        assert_eq!(expected(&index), 100);
    }
    let gone = vec![("n".to_owned(), Uid::from("set"))];
    index.replace_workloads(WatchedKind::ReplicaSet, Vec::new(), gone.clone(), 7);
    assert_eq!(expected(&index), 100);
    index.replace_workloads(WatchedKind::ReplicaSet, Vec::new(), gone, 12);
    assert_eq!(expected(&index), 1);
}

#[test]
fn surplus_counts_replica_set_pods_beyond_replicas() {
    let index = Index::default();
    for name in ["a", "b", "c"] {
        index.apply_pod(pod(name, "set"));
    }
    let surplus = |index: &Index| {
        index
            .read_state()
            .namespace("n")
            .unwrap()
            .surplus_pods("set")
    };
    assert_eq!(surplus(&index), 0);
    index.set_workload("n", Uid::from("set"), Some(replica_set("set", 1, 1)));
    assert_eq!(surplus(&index), 2);
    index.set_live_reading(
        "n",
        Uid::from("set"),
        LiveReading::Gone,
        ReadingBasis::Object(None),
    );
    assert_eq!(surplus(&index), 0);
}

#[test]
fn pods_of_unseen_replica_set_belong_to_deployment() {
    let index = Index::default();
    index.apply_rule(rule());
    let deployment = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "web", "resourceVersion": "1" },
        "spec": { "replicas": 3, "selector": { "matchLabels": { "kusionstack.io/control": "true" } } },
    });
    let (_, uid, deployment) =
        owner_sizes::parse_workload(WatchedKind::Deployment, deployment).unwrap();
    index.set_workload("n", uid, Some(deployment));
    let with_hash = |name: &str, hash: &str| {
        let mut pod = pod(name, "web-7f9");
        let hash = ("pod-template-hash".to_owned(), hash.to_owned());
        pod.metadata.labels.extend([hash]);
        pod
    };
    for name in ["a", "b", "c", "d"] {
        index.apply_pod(with_hash(name, "7f9"));
    }
    // The owner has not been read yet, so the living Pods count.
    assert_eq!(expected(&index), 4);
    let references = index
        .read_state()
        .namespace("n")
        .unwrap()
        .owner_references("web-7f9");
    let basis = ReadingBasis::References(references);
    assert!(index.set_live_reading("n", Uid::from("web-7f9"), LiveReading::Gone, basis));
    assert_eq!(expected(&index), 3);
    let is_cared_for = |pod: &Pod| {
        let state = index.read_state();
        let owner = pod.controller().unwrap();
        state.namespace("n").unwrap().has_living_owner(owner, pod)
    };
    assert!(is_cared_for(&with_hash("a", "7f9")));
    // The Deployment is deleted, too. Its Pods count for themselves, and may go.
    index.set_workload("n", Uid::from("web"), None);
    assert_eq!(expected(&index), 4);
    assert!(!is_cared_for(&with_hash("a", "7f9")));
}

#[test]
fn reading_that_missed_a_reference_is_not_believed() {
    let index = Index::default();
    index.apply_pod(pod("a", "set"));
    let references = index
        .read_state()
        .namespace("n")
        .unwrap()
        .owner_references("set");
    let mut other = pod("b", "set");
    other.metadata.owner_references[0].name = "other".to_owned();
    index.apply_pod(other);
    let basis = ReadingBasis::References(references);
    assert!(!index.set_live_reading("n", Uid::from("set"), LiveReading::Gone, basis));
    assert!(
        !index
            .read_state()
            .namespace("n")
            .unwrap()
            .is_owner_known("set")
    );
}

#[test]
fn namespace_takes_along_only_pods_older_than_its_deletion() {
    let index = Index::default();
    index.apply_namespace(namespace("first", true));
    let takes_along = |created: Option<&str>| {
        let mut pod = pod("web-1", "set");
        pod.metadata.creation_timestamp = created.map(str::to_owned);
        let state = index.read_state();
        state
            .namespace("n")
            .unwrap()
            .is_deleted_with_namespace(&pod)
    };
    assert!(takes_along(Some("2026-01-01T00:00:09Z")));
    for created in ["2026-01-01T00:00:10Z", "2026-01-01T00:00:11Z", "?"] {
        assert!(!takes_along(Some(created)), "{created}");
    }
    assert!(!takes_along(None));
    index.apply_namespace(namespace("first", false));
    assert!(!takes_along(Some("2026-01-01T00:00:09Z")));
}

#[test]
fn kinds_that_are_not_listed_yet_are_named() {
    let index = Index::default();
    assert_eq!(
        index.listed_kinds().missing_kinds().len(),
        WatchedKind::decision_kinds().count()
    );
    for kind in WatchedKind::decision_kinds() {
        if ![
            WatchedKind::PodTransitionRule,
            WatchedKind::ReplicationController,
        ]
        .contains(&kind)
        {
            index.mark_listed(kind);
        }
    }
    assert_eq!(
        index.listed_kinds().missing_kinds(),
        ["PodTransitionRule", "ReplicationController"]
    );
}

#[test]
fn index_that_a_writer_holds_is_not_free() {
    let index = Index::default();
    let wait = std::time::Duration::from_millis(1);
    assert!(index.is_unlocked_within(wait));
    let writer = index.state.write();
    assert!(!index.is_unlocked_within(wait));
    drop(writer);
    assert!(index.is_unlocked_within(wait));
}
