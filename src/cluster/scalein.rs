//! Scale-in of a ReplicaSet, or ReplicationController, under GraceDelete: which of its Pods go through their lifecycle to be
//! deleted. These are at most as many as the owner has too many: any more would go off traffic for nothing.
//!
//! The owner chooses by its own ranking, and asks again, for other Pods perhaps, whenever one of its Pods changes. So its choice is
//! noted on the Pod, is refused beyond the surplus, and lapses where the owner has chosen others since.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::index::Namespace;
use crate::api::keys::{self, Family};
use crate::domain::grace;
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

/// Once the rules have held a Pod for so long, the owner may choose another Pod in its place.
const HELD: Duration = Duration::from_secs(300);

/// An owner that still wants a Pod to go asks for it again whenever one of its Pods changes. One that has not for so long has
/// chosen another, if it has chosen so many.
const LAPSE: Duration = Duration::from_secs(10);

/// The clocks of two servers differ by less.
const AHEAD: Duration = Duration::from_secs(300);

/// How many others are to go already, if this owner may not choose a Pod beside them at `now_nanos`; `None` if it may.
///
/// It prefers a Pod that is down to all that serve, so these leave room for it. Nor do those that went off traffic keep it away which
/// the owner has forgotten for it: they are left to the owner, which would ask for this Pod alone for ever.
pub fn others_chosen(home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> Option<usize> {
    let serves = pod.is_available();
    let going = home.living(owner).filter(|other| {
        grace::is_begun(other)
            && !is_held(other, now_nanos)
            && (serves || is_firm(other) || !(other.is_available() || is_left(other, now_nanos)))
    });
    let going = going.count();
    (going >= room(home, owner)).then_some(going)
}

/// UIDs of Pods that the leader has had begin their lifecycle, and that its cache may not show so yet.
#[derive(Debug, Default)]
pub struct Beginnings(Mutex<HashSet<Uid>>);

impl Beginnings {
    /// Whether a Pod that its owner has chosen may begin its lifecycle: not before another gives way to it, if that has begun. If
    /// so it counts as begun from now on.
    pub fn admit(&self, home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> bool {
        let mut begun = self.0.lock();
        let others = home
            .living(owner)
            .filter(|other| other.metadata.uid != pod.metadata.uid);
        // Those that are kept after all count until they are back on traffic.
        let others = others.filter(|other| {
            let is_off = grace::is_in_flight(other) && !is_held_for_others(other, now_nanos);
            let begins = is_yet_to_begin(other) && begun.contains(&*other.metadata.uid);
            is_off || begins || is_asked_by_others(other, now_nanos)
        });
        let may = others.count() < room_to_begin(home, owner);
        if may {
            begun.insert(Uid::from(&*pod.metadata.uid));
        }
        may
    }

    /// Forgets a Pod unless it is yet to begin, as the cache has it.
    pub fn see(&self, pod: &Pod) {
        if !is_yet_to_begin(pod) {
            self.forget(&pod.metadata.uid);
        }
    }

    /// Forgets a Pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

fn is_yet_to_begin(pod: &Pod) -> bool {
    grace::is_begun(pod) && !grace::is_in_flight(pod)
}

/// Whether the owner that alone has asked for the deletion of a Pod has chosen others instead, wants as many Pods as there are
/// again, or has let the Pod go.
pub fn has_lapsed(home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> bool {
    if pod
        .controller()
        .is_none_or(|controller| controller.uid != owner)
    {
        return true;
    }
    if is_given_up(home, owner, pod, now_nanos) {
        return true;
    }
    // Before all Pods of the owner are looked at.
    if !may_lapse(pod, now_nanos) {
        return false;
    }
    let by_others = home
        .living(owner)
        .filter(|other| is_asked_by_others(other, now_nanos));
    let wanted = (home.most_surplus(owner) as usize).saturating_sub(by_others.count());
    let chosen = home
        .living(owner)
        .filter(|other| grace::scaled_in_by(other) == Some(owner));
    let lapsing = lapsing(chosen.map(|other| &**other).collect(), wanted, now_nanos);
    lapsing
        .iter()
        .any(|other| other.metadata.uid == pod.metadata.uid)
}

/// Whether an owner is to be woken for a Pod that it chose: it has forgotten the Pod, or the rules have held the Pod for long, and it may
/// choose another now, or delete this one. It backs off for long after a refusal, until one of its Pods changes.
pub fn wakes_owner(home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> bool {
    // What the Pod itself tells comes first: the rest looks at all Pods of the owner.
    let is_alive = !pod.is_terminating() && !pod.is_finished();
    is_alive
        && is_wake_due(pod, now_nanos)
        && match is_left(pod, now_nanos) {
            true => grace::permits(pod) || has_rival(home, owner),
            false => is_held(pod, now_nanos) && has_rival(home, owner),
        }
        && home.most_surplus(owner) > 0
}

/// Whether the owner was not woken since it has chosen a Pod, or as long ago as it took until then: the pauses double.
fn is_wake_due(pod: &Pod, now_nanos: u64) -> bool {
    let chosen = pod.label(keys::TO_DELETE).and_then(|at| at.parse().ok());
    let chosen: u64 = chosen.unwrap_or(0);
    let pause = woken(pod).and_then(|woken| Some((woken, woken.checked_sub(chosen)?)));
    pause.is_none_or(|(woken, pause)| now_nanos.saturating_sub(woken) > pause)
}

/// Whether an owner that was woken after it had forgotten a Pod has not asked for it all the same, and has another that is down.
fn is_given_up(home: &Namespace, owner: &str, pod: &Pod, now_nanos: u64) -> bool {
    let asked = grace::asked_at(pod).unwrap_or(0);
    let heard = woken(pod).filter(|woken| woken.saturating_sub(asked) > grace::REFRESH_NANOS);
    is_left(pod, now_nanos)
        && heard.is_some_and(|woken| is_past(woken, LAPSE, now_nanos))
        && has_rival(home, owner)
}

/// Whether a Pod of an owner is down that nobody has asked to go. The owner prefers it to all that serve.
fn has_rival(home: &Namespace, owner: &str) -> bool {
    home.living(owner).any(|other| {
        !(grace::is_begun(other) || grace::is_in_flight(other) || other.is_available())
    })
}

/// When the leader last woke the owner by this Pod, in nanoseconds since 1970.
fn woken(pod: &Pod) -> Option<u64> {
    let at: Timestamp = pod.annotation(keys::CONTROLLER_WOKEN)?.parse().ok()?;
    u64::try_from(at.as_nanosecond()).ok()
}

/// The chosen Pods that are to stay, if `wanted` are to go. Pods that serve come before Pods that are down, then Pods whose rules have held
/// them for long before others, then Pods that the owner has not asked about for the longest time.
fn lapsing(mut chosen: Vec<&Pod>, wanted: usize, now_nanos: u64) -> Vec<&Pod> {
    let too_many = chosen.len().saturating_sub(wanted);
    if too_many == 0 {
        return Vec::new();
    }
    chosen.sort_by_cached_key(|pod| {
        (
            !pod.is_available(),
            !is_held(pod, now_nanos),
            grace::asked_at(pod),
        )
    });
    chosen.truncate(too_many);
    chosen.retain(|pod| may_lapse(pod, now_nanos));
    chosen
}

/// Whether somebody else has asked for the deletion of a Pod, so that the owner needs to choose one less.
fn is_asked_by_others(pod: &Pod, now_nanos: u64) -> bool {
    is_firm(pod) && !is_held(pod, now_nanos)
}

/// Whether somebody else has asked for the deletion of a Pod, which its rules hold for so long that the owner goes on without it.
fn is_held_for_others(pod: &Pod, now_nanos: u64) -> bool {
    is_firm(pod) && is_held(pod, now_nanos)
}

/// Whether a Pod is to go whatever its owner chooses.
fn is_firm(pod: &Pod) -> bool {
    grace::is_begun(pod) && grace::scaled_in_by(pod).is_none()
}

/// Whether a Pod that its owner has chosen may lapse: nobody has asked for it lately, or its rules hold it whoever asks.
fn may_lapse(pod: &Pod, now_nanos: u64) -> bool {
    is_forgotten(pod, now_nanos) || is_held(pod, now_nanos)
}

/// Whether nobody has asked for the deletion of a Pod for [`LAPSE`].
fn is_forgotten(pod: &Pod, now_nanos: u64) -> bool {
    let asked = grace::asked_at(pod).unwrap_or(0);
    is_past(asked, LAPSE, now_nanos)
}

/// Whether the deletion of a Pod waits for its rules for longer than [`HELD`].
fn is_held(pod: &Pod, now_nanos: u64) -> bool {
    let since = waits_since(pod).and_then(|at| at.parse().ok());
    since.is_some_and(|since| is_past(since, HELD, now_nanos))
}

/// Whether a Pod that its owner alone has chosen goes off traffic, or is, and the owner has forgotten it.
fn is_left(pod: &Pod, now_nanos: u64) -> bool {
    grace::scaled_in_by(pod).is_some() && !waits(pod) && is_forgotten(pod, now_nanos)
}

/// Whether the deletion of a Pod has not begun, or waits for its rules.
fn waits(pod: &Pod) -> bool {
    !grace::is_in_flight(pod) || waits_since(pod).is_some()
}

fn waits_since(pod: &Pod) -> Option<&str> {
    pod.label(&Family::PreCheck.key(grace::ID))
}

/// A time further ahead than [`AHEAD`] is none that a server has written, and counts as past.
fn is_past(since: u64, span: Duration, now_nanos: u64) -> bool {
    let span = if since > now_nanos { AHEAD } else { span };
    u128::from(now_nanos.abs_diff(since)) > span.as_nanos()
}

/// How many Pods an owner may choose. Where the cache sees no surplus, it may choose a single Pod: the cache may be behind, and does
/// not hold the Pods of the owner that are not managed.
fn room(home: &Namespace, owner: &str) -> usize {
    home.surplus(owner).max(1) as usize
}

/// How many of the chosen Pods may begin. Where Pods of the owner that are not managed make it too many, they go one by one: how many
/// there are is known by its status alone, which may count Pods that are terminating by now.
fn room_to_begin(home: &Namespace, owner: &str) -> usize {
    let terminating = home.owned_by(owner).filter(|pod| pod.is_terminating());
    match home.surplus(owner) {
        0 if home.most_surplus(owner) as usize > terminating.count() => 1,
        surplus => surplus as usize,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::slice::from_ref;

    use serde_json::{Value, json};

    use super::*;
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

    /// The Pod in its lifecycle, let go by its rules.
    fn off_traffic(pod: Pod) -> Pod {
        let mut pod = waiting(pod, 0);
        pod.metadata.labels.remove(&Family::PreCheck.key(grace::ID));
        pod
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
            .filter(|pod| has_lapsed(home, "set", pod, NOW * SECOND));
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
        let home = state.namespace("n").unwrap();
        Beginnings::default().admit(home, "set", pod, NOW * SECOND)
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
    fn pods_that_are_not_managed_count_among_those_that_are_too_many() {
        let pods = [chosen("a", true, 60), serving("b")];
        let lapsed = |alive| {
            let index = index(2, alive, &pods);
            let state = index.read();
            has_lapsed(state.namespace("n").unwrap(), "set", &pods[0], NOW * SECOND)
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
        let state = late.read();
        let home = state.namespace("n").unwrap();
        let others = others_chosen(home, "set", &pods[1], NOW * SECOND);
        assert_eq!(others, None, "two are too many");
        let pods = [pods[0].clone(), chosen("b", true, 1), pods[2].clone()];
        let late = index(1, 9, &pods);
        let state = late.read();
        let home = state.namespace("n").unwrap();
        let others = others_chosen(home, "set", &pods[2], NOW * SECOND);
        assert_eq!(others, Some(2), "a status that is late allows no third");
        let by_others = [asked_by_others(chosen("a", true, 1)), serving("b")];
        assert!(!may_choose(1, &by_others, &by_others[1]));
    }

    #[test]
    fn pods_that_are_down_are_chosen_before_others_and_within_bounds() {
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
    fn pod_that_its_rules_hold_for_long_may_lapse_to_another() {
        for (held, may_lapse) in [(299, false), (301, true)] {
            // Asked about all the time.
            let held = waiting(chosen("held", true, 1), held);
            let pods = [held.clone(), serving("b")];
            assert_eq!(may_choose(1, &pods, &pods[1]), may_lapse);
            let pods = [held, chosen("b", true, 1)];
            let expected: &[&str] = if may_lapse { &["held"] } else { &[] };
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
    fn marks_beyond_the_surplus_begin_nothing_when_the_others_are_gone() {
        let extra = chosen("extra", true, 1);
        let begins = |alive, pods: &[Pod]| {
            let index = index(1, alive, pods);
            let state = index.read();
            let home = state.namespace("n").unwrap();
            Beginnings::default().admit(home, "set", &extra, NOW * SECOND)
        };
        assert!(!begins(1, from_ref(&extra)));
        assert!(begins(2, from_ref(&extra)), "another is not managed");
        let mut gone = serving("gone");
        gone.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        let late = [extra.clone(), gone];
        assert!(!begins(2, &late), "the status is from before the deletion");
        assert!(begins(3, &late), "so many can't all be terminating");
    }

    /// A Pod that is down, and that nobody has asked to go.
    fn down(name: &str) -> Pod {
        let mut pod = serving(name);
        pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
        pod
    }

    /// The Pod, by which its owner was woken so many seconds ago.
    fn woken(mut pod: Pod, ago: u64) -> Pod {
        let at = Timestamp::UNIX_EPOCH + Duration::from_secs(NOW - ago);
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(keys::CONTROLLER_WOKEN.to_owned(), at.to_string());
        pod
    }

    /// A Pod in Preparing, asked about so many seconds ago.
    fn preparing(asked: u64) -> Pod {
        off_traffic(chosen("off", false, asked))
    }

    /// The Pod, which may be deleted.
    fn in_operate(pod: Pod) -> Pod {
        with_labels(pod, &[(Family::Operate.key(grace::ID), "1".to_owned())])
    }

    fn wakes(wanted: usize, chosen: &Pod, other: Pod) -> bool {
        let index = index(wanted, 0, &[chosen.clone(), other]);
        let state = index.read();
        wakes_owner(state.namespace("n").unwrap(), "set", chosen, NOW * SECOND)
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
            // The owner has asked for the same Pod when it was woken.
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
        let beginnings = Beginnings::default();
        let begins = |wanted, pods: &[Pod], pod: &Pod| {
            let index = index(wanted, 0, pods);
            let state = index.read();
            let home = state.namespace("n").unwrap();
            beginnings.admit(home, "set", pod, NOW * SECOND)
        };
        assert!(begins(2, &pods, &pods[0]));
        assert!(!begins(2, &pods, &pods[1]));
        assert!(begins(2, &pods, &pods[0]), "again, if its write has failed");
        let [a, b, c] = pods.clone();
        let kept = serving("a");
        beginnings.see(&a);
        assert!(
            !begins(2, &pods, &pods[1]),
            "the cache has not seen a begin"
        );
        beginnings.see(&kept);
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
}
