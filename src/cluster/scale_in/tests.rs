#![allow(clippy::unwrap_used)]
use std::slice::from_ref;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::api::keys::{self, Family};
use crate::cluster::index::Index;
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::{self};

const SECOND: u64 = 1_000_000_000;
/// The present time in seconds since 1970.
const NOW: u64 = 1000;

/// A Pod whose ReplicaSet requested its deletion `asked` seconds ago.
fn chosen(name: &str, serves: bool, asked: u64) -> Pod {
    let at = ((NOW - asked) * SECOND).to_string();
    let mut labels = json!({ (keys::CONTROL): "true", (keys::TO_DELETE): at });
    if serves {
        labels[keys::SERVICE_AVAILABLE] = "1".into();
    }
    let pod = json!({
        "metadata": {
            "namespace": "n", "name": name, "uid": name, "resourceVersion": "1", "labels": labels,
            "annotations": { (keys::DELETE_TIMESTAMP): at, (keys::SCALED_IN_BY): format!("{at} set") },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "set", "controller": true,
            }],
        },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    serde_json::from_value(pod).unwrap()
}

/// A Pod that serves and whose deletion nobody has requested.
fn serving(name: &str) -> Pod {
    let mut pod = chosen(name, true, 0);
    pod.metadata.labels.remove(keys::TO_DELETE);
    pod.metadata.annotations.clear();
    pod
}

fn with_labels(mut pod: Pod, labels: &[(String, String)]) -> Pod {
    pod.metadata.labels.extend(labels.iter().cloned());
    pod
}

/// The Pod in its lifecycle, waiting for its rules for this number of seconds.
fn waiting(pod: Pod, seconds: u64) -> Pod {
    let since = ((NOW - seconds) * SECOND).to_string();
    let begun = [
        (
            Family::Operating.key(grace_delete::DELETION_ID),
            since.clone(),
        ),
        (
            Family::OperationType.key(grace_delete::DELETION_ID),
            grace_delete::DELETION_TYPE.to_owned(),
        ),
        (Family::PreCheck.key(grace_delete::DELETION_ID), since),
    ];
    with_labels(pod, &begun)
}

/// The Pod in its lifecycle, after its rules allowed the operation.
fn off_traffic(pod: Pod) -> Pod {
    let mut pod = waiting(pod, 0);
    pod.metadata
        .labels
        .remove(&Family::PreCheck.key(grace_delete::DELETION_ID));
    pod
}

/// The Pod, after its deletion was also requested by others.
fn asked_by_others(mut pod: Pod) -> Pod {
    pod.metadata.annotations.remove(keys::SCALED_IN_BY);
    pod
}

/// An index with these Pods and their ReplicaSet, which wants `wanted` Pods and reports `alive` Pods in its status.
fn index(wanted: usize, alive: usize, pods: &[Pod]) -> Index {
    let index = Index::default();
    for pod in pods {
        index.apply_pod(pod.clone());
    }
    let set: Value = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "set", "resourceVersion": "1" },
        "spec": { "replicas": wanted }, "status": { "replicas": alive },
    });
    let (_, uid, set) = owner_sizes::parse_workload(WatchedKind::ReplicaSet, set).unwrap();
    index.set_workload("n", uid, Some(set));
    index
}

/// Names of the Pods whose choice lapses if the ReplicaSet has `surplus` Pods too many.
fn lapsed(surplus: usize, pods: &[Pod]) -> Vec<String> {
    let index = index(pods.len() - surplus, 0, pods);
    let state = index.read_state();
    let home = state.namespace("n").unwrap();
    let lapsed = pods
        .iter()
        .filter(|pod| has_choice_lapsed(home, "set", pod, NOW * SECOND));
    lapsed.map(|pod| pod.metadata.name.clone()).collect()
}

fn may_choose(surplus: usize, pods: &[Pod], pod: &Pod) -> bool {
    let index = index(pods.len() - surplus, 0, pods);
    let state = index.read_state();
    excess_choices(state.namespace("n").unwrap(), "set", pod, NOW * SECOND).is_none()
}

fn begins(surplus: usize, pods: &[Pod], pod: &Pod) -> bool {
    let index = index(pods.len() - surplus, 0, pods);
    let state = index.read_state();
    let home = state.namespace("n").unwrap();
    BegunPods::default().try_begin(home, "set", pod, NOW * SECOND)
}

#[test]
fn replicaset_that_chose_too_many_loses_those_it_forgot() {
    let all = [
        chosen("off", false, 99),
        chosen("late", true, 5),
        chosen("first", true, 98),
        chosen("second", true, 97),
    ];
    assert_eq!(lapsed(4, &all), [""; 0]);
    assert_eq!(lapsed(3, &all), ["first"]);
    assert_eq!(lapsed(2, &all), ["first", "second"]);
    let late = "the late one was asked for just now";
    assert_eq!(lapsed(1, &all), ["first", "second"], "{late}");
    assert_eq!(lapsed(0, &all), ["off", "first", "second"], "{late}");
}

#[test]
fn time_far_ahead_keeps_no_mark() {
    let mut pod = chosen("a", true, 1);
    for (ahead, lapses) in [(20, false), (301, true)] {
        let ahead = ((NOW + ahead) * SECOND).to_string();
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(keys::DELETE_TIMESTAMP.to_owned(), ahead);
        assert_eq!(!lapsed(0, std::slice::from_ref(&pod)).is_empty(), lapses);
    }
}

#[test]
fn unmanaged_pods_count_among_those_too_many() {
    let pods = [chosen("a", true, 60), serving("b")];
    let lapsed = |alive| {
        let index = index(2, alive, &pods);
        let state = index.read_state();
        has_choice_lapsed(state.namespace("n").unwrap(), "set", &pods[0], NOW * SECOND)
    };
    assert!(lapsed(2));
    assert!(!lapsed(3));
}

#[test]
fn pod_beyond_those_that_are_too_many_is_not_chosen() {
    let pods = [chosen("a", true, 1), serving("b"), serving("c")];
    assert!(!may_choose(1, &pods, &pods[1]));
    assert!(may_choose(2, &pods, &pods[1]));
    let late = index(1, 9, &pods);
    let state = late.read_state();
    let home = state.namespace("n").unwrap();
    let others = excess_choices(home, "set", &pods[1], NOW * SECOND);
    assert_eq!(others, None, "two are too many");
    let pods = [pods[0].clone(), chosen("b", true, 1), pods[2].clone()];
    let late = index(1, 9, &pods);
    let state = late.read_state();
    let home = state.namespace("n").unwrap();
    let others = excess_choices(home, "set", &pods[2], NOW * SECOND);
    assert_eq!(others, Some(2), "a status that is late allows no third");
    let by_others = [asked_by_others(chosen("a", true, 1)), serving("b")];
    assert!(!may_choose(1, &by_others, &by_others[1]));
}

#[test]
fn down_pods_are_chosen_before_others_within_bounds() {
    let down = chosen("x", false, 1);
    let pods = [chosen("a", true, 1), serving("b"), serving("c")];
    assert!(may_choose(1, &pods, &down));
    for asked in [1, 11] {
        let pods = [chosen("a", false, asked), serving("b"), serving("c")];
        assert!(!may_choose(1, &pods, &down), "it has not begun");
        let pods = [waiting(chosen("a", false, asked), 20), serving("b")];
        assert!(!may_choose(1, &pods, &down), "it waits for its rules");
        let pods = [off_traffic(chosen("a", false, asked)), serving("b")];
        assert_eq!(may_choose(1, &pods, &down), asked > 10);
        let firm = asked_by_others(pods[0].clone());
        let pods = [firm, pods[1].clone()];
        assert!(
            !may_choose(1, &pods, &down),
            "it goes whatever the owner chooses"
        );
        let firm = asked_by_others(chosen("a", true, asked));
        let pods = [firm, pods[1].clone()];
        assert!(
            !may_choose(1, &pods, &down),
            "it serves, and goes all the same"
        );
    }
    assert_eq!(lapsed(1, &[chosen("serves", true, 60), down]), ["serves"]);
}

#[test]
fn long_held_pod_may_lapse_to_another_pod() {
    for (held, may_lapse) in [(299, false), (301, true)] {
        // The owner asks for this Pod all the time.
        let held = waiting(chosen("held", true, 1), held);
        let pods = [held.clone(), serving("b")];
        assert_eq!(may_choose(1, &pods, &pods[1]), may_lapse);
        let pods = [held, chosen("b", true, 1)];
        let expected: &[&str] = if may_lapse { &["held"] } else { &[] };
        assert_eq!(lapsed(1, &pods), expected);
    }
}

#[test]
fn no_more_pods_begin_than_surplus() {
    let new = chosen("new", true, 1);
    let pods = [
        waiting(chosen("held", true, 400), 400),
        new.clone(),
        serving("c"),
    ];
    assert!(
        !begins(1, &pods, &new),
        "the held one has not given way yet"
    );
    assert!(begins(2, &pods, &new));
    assert!(begins(1, &[new.clone(), chosen("marked", true, 1)], &new));
    let by_others = |held| {
        [
            asked_by_others(waiting(chosen("a", true, 400), held)),
            new.clone(),
        ]
    };
    assert!(!begins(1, &by_others(20), &new));
    assert!(
        begins(1, &by_others(400), &new),
        "somebody else's Pod is held for long"
    );
}

#[test]
fn marks_beyond_surplus_do_not_begin_lifecycles() {
    let extra = chosen("extra", true, 1);
    let begins = |alive, pods: &[Pod]| {
        let index = index(1, alive, pods);
        let state = index.read_state();
        let home = state.namespace("n").unwrap();
        BegunPods::default().try_begin(home, "set", &extra, NOW * SECOND)
    };
    assert!(!begins(1, from_ref(&extra)));
    assert!(begins(2, from_ref(&extra)), "another is not managed");
    let mut gone = serving("gone");
    gone.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    let late = [extra.clone(), gone];
    assert!(!begins(2, &late), "the status is from before the deletion");
    assert!(begins(3, &late), "so many can't all be terminating");
}

/// A Pod that is down and whose deletion nobody has requested.
fn down(name: &str) -> Pod {
    let mut pod = serving(name);
    pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    pod
}

/// The Pod, by which its owner was woken `ago` seconds ago.
fn woken(mut pod: Pod, ago: u64) -> Pod {
    let at = Timestamp::UNIX_EPOCH + Duration::from_secs(NOW - ago);
    let annotations = &mut pod.metadata.annotations;
    annotations.insert(keys::CONTROLLER_WOKEN.to_owned(), at.to_string());
    pod
}

/// A Pod in Preparing, for which the owner asked this number of seconds ago.
fn preparing(asked: u64) -> Pod {
    off_traffic(chosen("off", false, asked))
}

/// The Pod in Operate, so that it may be deleted.
fn in_operate(pod: Pod) -> Pod {
    with_labels(
        pod,
        &[(
            Family::Operate.key(grace_delete::DELETION_ID),
            "1".to_owned(),
        )],
    )
}

fn wakes(wanted: usize, chosen: &Pod, other: Pod) -> bool {
    let index = index(wanted, 0, &[chosen.clone(), other]);
    let state = index.read_state();
    should_wake_owner(state.namespace("n").unwrap(), "set", chosen, NOW * SECOND)
}

#[test]
fn owner_that_may_choose_another_pod_is_woken() {
    assert!(wakes(1, &preparing(11), down("other")));
    assert!(!wakes(1, &preparing(9), down("other")));
    assert!(!wakes(1, &preparing(11), serving("other")));
    assert!(!wakes(2, &preparing(11), down("other")), "none is too many");
    assert!(!wakes(1, &preparing(11), chosen("other", false, 1)));
    let held = |seconds| waiting(chosen("held", true, 1), seconds);
    assert!(!wakes(1, &held(299), down("other")));
    assert!(wakes(1, &held(301), down("other")));
    assert!(wakes(1, &in_operate(preparing(11)), serving("other")));
    let mut gone = preparing(11);
    gone.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert!(!wakes(0, &gone, down("other")));
}

#[test]
fn pauses_between_wakes_double_whatever_is_asked() {
    for (ago, due) in [(30, false), (31, true)] {
        let mut pod = woken(preparing(30 + ago), ago);
        assert_eq!(wakes(1, &pod, down("other")), due, "{ago}");
        // The owner asked for the same Pod again when it was woken.
        let asked = ((NOW - ago + 1) * SECOND).to_string();
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(keys::DELETE_TIMESTAMP.to_owned(), asked);
        assert_eq!(wakes(1, &pod, down("other")), due, "{ago}");
    }
}

#[test]
fn pod_that_a_woken_owner_does_not_ask_for_lapses() {
    let lapses = |pod: Pod, other: Pod| lapsed(1, &[pod, other]) == ["off"];
    assert!(lapses(woken(preparing(30), 11), down("other")));
    assert!(!lapses(woken(preparing(30), 9), down("other")));
    assert!(!lapses(woken(preparing(30), 11), serving("other")));
    let at_once = "the owner may have asked just before, and again when it was woken";
    assert!(
        !lapses(woken(preparing(16), 12), down("other")),
        "{at_once}"
    );
    assert!(!lapses(preparing(30), down("other")));
}

#[test]
fn pods_looked_at_together_do_not_all_begin() {
    let pods = ["a", "b", "c"].map(|name| chosen(name, true, 1));
    let beginnings = BegunPods::default();
    let begins = |wanted, pods: &[Pod], pod: &Pod| {
        let index = index(wanted, 0, pods);
        let state = index.read_state();
        let home = state.namespace("n").unwrap();
        beginnings.try_begin(home, "set", pod, NOW * SECOND)
    };
    assert!(begins(2, &pods, &pods[0]));
    assert!(!begins(2, &pods, &pods[1]));
    assert!(begins(2, &pods, &pods[0]), "again, if its write has failed");
    let [a, b, c] = pods.clone();
    let kept = serving("a");
    beginnings.sync_pod(&a);
    assert!(
        !begins(2, &pods, &pods[1]),
        "the cache has not seen a begin"
    );
    beginnings.sync_pod(&kept);
    assert!(
        begins(2, &[kept, b.clone(), c.clone()], &b),
        "a was kept after all"
    );
    let begun = off_traffic(b);
    assert!(!begins(2, &[a.clone(), begun.clone(), c.clone()], &c));
    let mut undone = begun;
    undone.metadata.labels.remove(keys::TO_DELETE);
    assert!(!begins(2, &[a, undone, c.clone()], &c), "b is not back yet");
}

#[test]
fn pod_of_another_owner_lapses() {
    let mut pod = chosen("a", true, 1);
    pod.metadata.owner_references.clear();
    assert_eq!(lapsed(1, &[pod]), ["a"]);
}
