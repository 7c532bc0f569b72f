//! Scale-in of a ReplicaSet, or ReplicationController, under GraceDelete: which of its Pods go through their lifecycle to be
//! deleted. Never more than it has too many: the others would go off traffic for nothing.
//!
//! The owner chooses by its own ranking, and asks again, for other Pods perhaps, whenever one of its Pods changes. So its choice is
//! noted on the Pod, is refused beyond the surplus, and lapses where the owner has chosen others since.

use std::sync::Arc;
use std::time::Duration;

use super::index::Namespace;
use crate::api::keys::Family;
use crate::domain::grace;
use crate::domain::pod::Pod;

/// A Pod whose rules hold it for so long keeps its owner from no other Pod, and gives way to one.
const HELD: Duration = Duration::from_secs(300);

/// An owner that still wants a Pod to go asks for it again whenever one of its Pods changes. One that has not for so long has
/// chosen another, if it has chosen so many.
const LAPSE: Duration = Duration::from_secs(10);

/// How many others are to go already, if this owner may not choose a Pod beside them at `now_nanos`; `None` if it may.
///
/// It prefers a Pod that is down to all that serve. So those that serve still leave room for one that is down, and give way to it.
pub fn others_chosen(home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> Option<usize> {
    let serves = pod.is_available();
    let going = living(home, owner).filter(|other| {
        grace::is_begun(other) && !is_held(other, now_nanos) && (serves || !other.is_available())
    });
    let going = going.count();
    (going >= room(home, owner)).then_some(going)
}

/// Whether a Pod that its owner has chosen may begin its lifecycle: not before another gives way to it, if that has begun.
pub fn may_begin(home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> bool {
    let others = living(home, owner).filter(|other| other.metadata.uid != pod.metadata.uid);
    let begun = others.filter(|other| {
        let is_chosen = grace::scaled_in_by(other).is_some() && grace::is_in_flight(other);
        is_chosen || is_asked_by_others(other, now_nanos)
    });
    begun.count() < room(home, owner)
}

/// Whether the owner that alone has asked for the deletion of a Pod has chosen others instead, wants as many Pods as there are
/// again, or has let the Pod go.
pub fn has_lapsed(home: &Namespace, pod: &Pod, now_nanos: u64) -> bool {
    let Some(owner) = grace::scaled_in_by(pod) else {
        return false;
    };
    if pod
        .controller()
        .is_none_or(|controller| controller.uid != owner)
    {
        return true;
    }
    // Before all Pods of the owner are looked at.
    if !gives_way(pod, now_nanos) {
        return false;
    }
    let by_others = living(home, owner).filter(|other| is_asked_by_others(other, now_nanos));
    let wanted = (home.surplus(owner) as usize).saturating_sub(by_others.count());
    let chosen = living(home, owner).filter(|other| grace::scaled_in_by(other) == Some(owner));
    let lapsing = lapsing(chosen.map(|other| &**other).collect(), wanted, now_nanos);
    lapsing
        .iter()
        .any(|other| other.metadata.uid == pod.metadata.uid)
}

/// Of the Pods that an owner has chosen those that are to stay, if `wanted` are to go: those that still serve before others, of
/// these the ones that their rules hold for long, and then those that it has not asked about for the longest time.
fn lapsing(mut chosen: Vec<&Pod>, wanted: usize, now_nanos: u64) -> Vec<&Pod> {
    let too_many = chosen.len().saturating_sub(wanted);
    chosen.sort_by_key(|pod| {
        (
            !pod.is_available(),
            !is_held(pod, now_nanos),
            grace::asked_at(pod),
        )
    });
    chosen.truncate(too_many);
    chosen.retain(|pod| gives_way(pod, now_nanos));
    chosen
}

/// Whether somebody else has asked for the deletion of a Pod, so that the owner needs to choose one less.
fn is_asked_by_others(pod: &Pod, now_nanos: u64) -> bool {
    grace::is_begun(pod) && grace::scaled_in_by(pod).is_none() && !is_held(pod, now_nanos)
}

/// Whether nobody has asked for the deletion of a Pod for [`LAPSE`], or its rules hold it whoever asks.
fn gives_way(pod: &Pod, now_nanos: u64) -> bool {
    let asked = grace::asked_at(pod).unwrap_or(0);
    is_past(asked, LAPSE, now_nanos) || is_held(pod, now_nanos)
}

/// Whether the deletion of a Pod waits for its rules for longer than [`HELD`].
fn is_held(pod: &Pod, now_nanos: u64) -> bool {
    let since = pod.label(&Family::PreCheck.key(grace::ID));
    let since = since.and_then(|at| at.parse().ok());
    since.is_some_and(|since| is_past(since, HELD, now_nanos))
}

/// A time that far ahead is none that a server has written, and counts as past.
fn is_past(since: u64, span: Duration, now_nanos: u64) -> bool {
    u128::from(now_nanos.abs_diff(since)) > span.as_nanos()
}

/// How many Pods an owner may choose. Where the cache sees no surplus yet, it goes on with a single Pod.
fn room(home: &Namespace, owner: &str) -> usize {
    home.surplus(owner).max(1) as usize
}

fn living<'a>(home: &'a Namespace, owner: &str) -> impl Iterator<Item = &'a Arc<Pod>> {
    let owned = home.owned_by(owner);
    owned.filter(|pod| !pod.is_terminating() && !pod.is_finished())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;
    use crate::cluster::index::Index;
    use crate::cluster::sizes::{self, Kind};

    const SECOND: u64 = 1_000_000_000;
    /// Now, in seconds.
    const NOW: u64 = 1000;

    /// A Pod of the ReplicaSet, asked about `asked` seconds ago by its ReplicaSet.
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

    /// A Pod that serves, and that nobody has asked to go.
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

    /// The Pod in its lifecycle, waiting for its rules for so many seconds.
    fn waiting(pod: Pod, seconds: u64) -> Pod {
        let since = ((NOW - seconds) * SECOND).to_string();
        let begun = [
            (Family::Operating.key(grace::ID), since.clone()),
            (Family::OperationType.key(grace::ID), grace::TYPE.to_owned()),
            (Family::PreCheck.key(grace::ID), since),
        ];
        with_labels(pod, &begun)
    }

    /// The Pod, whose deletion somebody else has asked for, too.
    fn asked_by_others(mut pod: Pod) -> Pod {
        pod.metadata.annotations.remove(keys::SCALED_IN_BY);
        pod
    }

    /// A ReplicaSet that wants `wanted` Pods, has these, and says that there are `alive`.
    fn index(wanted: usize, alive: usize, pods: &[Pod]) -> Index {
        let index = Index::default();
        for pod in pods {
            index.apply_pod(pod.clone());
        }
        let set: Value = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "set", "resourceVersion": "1" },
            "spec": { "replicas": wanted }, "status": { "replicas": alive },
        });
        let (_, uid, set) = sizes::workload(Kind::ReplicaSet, set).unwrap();
        index.set_workload("n", uid, Some(set));
        index
    }

    /// Names of the Pods that lapse if the ReplicaSet has `surplus` Pods too many.
    fn lapsed(surplus: usize, pods: &[Pod]) -> Vec<String> {
        let index = index(pods.len() - surplus, 0, pods);
        let state = index.read();
        let home = state.namespace("n").unwrap();
        let lapsed = pods
            .iter()
            .filter(|pod| has_lapsed(home, pod, NOW * SECOND));
        lapsed.map(|pod| pod.metadata.name.clone()).collect()
    }

    fn may_choose(surplus: usize, pods: &[Pod], pod: &Pod) -> bool {
        let index = index(pods.len() - surplus, 0, pods);
        let state = index.read();
        others_chosen(state.namespace("n").unwrap(), "set", pod, NOW * SECOND).is_none()
    }

    fn begins(surplus: usize, pods: &[Pod], pod: &Pod) -> bool {
        let index = index(pods.len() - surplus, 0, pods);
        let state = index.read();
        may_begin(state.namespace("n").unwrap(), "set", pod, NOW * SECOND)
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
        let ahead = ((NOW + 11) * SECOND).to_string();
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(keys::DELETE_TIMESTAMP.to_owned(), ahead);
        assert_eq!(lapsed(0, &[pod]), ["a"]);
    }

    #[test]
    fn pods_that_are_not_managed_count_among_those_that_are_too_many() {
        let pods = [chosen("a", true, 60), serving("b")];
        let lapsed = |alive| {
            let index = index(2, alive, &pods);
            let state = index.read();
            has_lapsed(state.namespace("n").unwrap(), &pods[0], NOW * SECOND)
        };
        assert!(lapsed(2));
        assert!(!lapsed(3));
    }

    #[test]
    fn pod_beyond_those_that_are_too_many_is_not_chosen() {
        let pods = [chosen("a", true, 1), serving("b"), serving("c")];
        assert!(!may_choose(1, &pods, &pods[1]));
        assert!(may_choose(2, &pods, &pods[1]));
        let by_others = [asked_by_others(chosen("a", true, 1)), serving("b")];
        assert!(!may_choose(1, &by_others, &by_others[1]));
    }

    #[test]
    fn pods_that_are_down_are_chosen_before_others_and_within_bounds() {
        let down = chosen("x", false, 1);
        let pods = [chosen("a", true, 1), serving("b"), serving("c")];
        assert!(may_choose(1, &pods, &down));
        let pods = [chosen("a", false, 1), serving("b"), serving("c")];
        assert!(!may_choose(1, &pods, &down));
        assert_eq!(lapsed(1, &[chosen("serves", true, 60), down]), ["serves"]);
    }

    #[test]
    fn pod_that_its_rules_hold_for_long_gives_way_to_another() {
        for (held, gives_way) in [(299, false), (301, true)] {
            // Asked about all the time.
            let held = waiting(chosen("held", true, 1), held);
            let pods = [held.clone(), serving("b")];
            assert_eq!(may_choose(1, &pods, &pods[1]), gives_way);
            let pods = [held, chosen("b", true, 1)];
            let expected: &[&str] = if gives_way { &["held"] } else { &[] };
            assert_eq!(lapsed(1, &pods), expected);
        }
    }

    #[test]
    fn no_more_pods_begin_than_are_too_many() {
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
    fn pod_of_another_owner_lapses() {
        let mut pod = chosen("a", true, 1);
        pod.metadata.owner_references.clear();
        assert_eq!(lapsed(1, &[pod]), ["a"]);
    }
}
