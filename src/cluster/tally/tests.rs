#![allow(clippy::unwrap_used)]
use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::{LiveReading, ReadingBasis, Workload};

fn rules() -> RuleSet {
    let object: PodTransitionRule = serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "web", "namespace": "n", "uid": "rule" },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
        },
    }))
    .unwrap();
    RuleSet::compile(&object)
}

/// A Pod whose state is encoded in the bits of `state`.
fn pod(n: u8, owner: Option<u8>, state: u8) -> Arc<Pod> {
    let flag = |bit: u8| state & (1 << bit) != 0;
    let mut labels = json!({ "app": if flag(0) { "web" } else { "other" } });
    if flag(1) {
        labels["kusionstack.io/control"] = json!("true");
    }
    if flag(2) {
        labels["podopslifecycle.kusionstack.io/service-available"] = json!("1");
    }
    if flag(3) {
        labels["pre-check.podopslifecycle.kusionstack.io/x"] = json!(n.to_string());
    }
    let owners = owner.map(|o| {
        let name = if flag(7) {
            "forged".to_owned()
        } else {
            format!("owner-{o}")
        };
        json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
            "uid": format!("owner-{o}"), "controller": true,
        }])
    });
    let pod = json!({
        "metadata": {
            "namespace": "n", "name": format!("pod-{n}"), "uid": format!("pod-{n}"), "labels": labels,
            "ownerReferences": owners,
            "deletionTimestamp": flag(4).then_some("2026-01-01T00:00:00Z"),
        },
        "status": {
            "phase": if flag(5) { "Failed" } else { "Running" },
            "conditions": [{ "type": "Ready", "status": if flag(6) { "True" } else { "False" } }],
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A ReplicaSet of Pods with the label `app=web`. [`put`] sets its name.
fn workload(replicas: u8, managed: bool, controller: Option<&Owner>) -> Workload {
    let labels = [
        ("app".to_owned(), "web".to_owned()),
        ("kusionstack.io/control".to_owned(), "true".to_owned()),
    ];
    Workload {
        controller: controller.cloned().map(Arc::new),
        template_labels: managed.then(|| labels.into_iter().collect()),
        ..Workload::replica_set("", 0, replicas.into())
    }
}

fn owner(api_version: &str, kind: &str, uid: &str) -> Owner {
    Owner {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
        controller: true,
    }
}

fn deployment() -> Owner {
    owner("apps/v1", "Deployment", "root")
}

fn rollout() -> Owner {
    owner("argoproj.io/v1alpha1", "Rollout", "root")
}

/// `n` serving Pods with numbers from `first`.
fn serving(first: u8, n: u8, owner: Option<u8>) -> Vec<Arc<Pod>> {
    (first..first + n).map(|i| pod(i, owner, SERVING)).collect()
}

/// Workloads with these owners, by UID.
fn known(all: impl IntoIterator<Item = (&'static str, Workload)>) -> Workloads {
    let mut workloads = Workloads::default();
    for (uid, workload) in all {
        put(&mut workloads, uid, workload);
    }
    workloads
}

/// Stores an owner whose name is its UID, as in the references of [`pod`].
fn put(workloads: &mut Workloads, uid: &str, workload: Workload) {
    let name = uid.to_owned();
    workloads.put_workload(&Uid::from(uid), Workload { name, ..workload });
}

/// Stores a reading of an owner by this reference. For an owner without `scale` or without replicas, or that is gone,
/// this is the only reference.
fn read(workloads: &mut Workloads, owner: &Owner, reading: LiveReading) {
    let by = Arc::new(owner.clone());
    let basis = match reading {
        LiveReading::Count(_) => ReadingBasis::Object(Some(by)),
        LiveReading::Unset | LiveReading::NoScale | LiveReading::Gone => {
            ReadingBasis::References(vec![by])
        }
    };
    let uid = Uid::from(owner.uid.as_str());
    workloads.put_live_reading(&uid, reading, basis, |_| true);
}

fn replica_set(uid: &str) -> Owner {
    owner("apps/v1", "ReplicaSet", uid)
}

fn count(pods: &[Arc<Pod>], workloads: &Workloads) -> Tally {
    Tally::count_all(&rules(), pods.iter(), workloads)
}

fn doubts(tally: &Tally) -> Vec<&str> {
    tally.doubtful_owners().map(|uid| &**uid).collect()
}

const SERVING: u8 = 0b100_0111;
/// A serving Pod whose reference has the UID of its owner, but another name.
const FORGED: u8 = SERVING | 1 << 7;

#[test]
fn owner_counts_with_its_replicas_and_bare_pod_for_itself() {
    let workloads = known([("owner-0", workload(10, true, None))]);
    let tally = count(
        &[pod(0, Some(0), SERVING), pod(1, None, SERVING)],
        &workloads,
    );
    assert_eq!((tally.expected(), tally.available()), (11, 2));
}

#[test]
fn owner_without_pods_counts_by_its_template() {
    let workloads = known([
        ("owner-0", workload(3, true, None)),
        ("owner-1", workload(5, false, None)),
    ]);
    assert_eq!(count(&[], &workloads).expected(), 3);
}

#[test]
fn deployment_that_is_paused_counts_by_its_replica_sets_alone() {
    let paused = |kind, replicas, controller| Workload {
        kind,
        paused: kind == WatchedKind::Deployment,
        revision: 0,
        ..workload(replicas, true, controller)
    };
    let mut workloads = known([("root", paused(WatchedKind::Deployment, 50, None))]);
    assert_eq!(count(&[], &workloads).expected(), 0);
    let made = paused(WatchedKind::ReplicaSet, 3, Some(&deployment()));
    put(&mut workloads, "r", made);
    assert_eq!(count(&[], &workloads).expected(), 50);
}

#[test]
fn terminating_completed_and_unmanaged_pods_are_not_tallied() {
    let workloads = known([("owner-0", workload(1, true, None))]);
    let pods = [
        pod(0, Some(0), SERVING),
        pod(1, Some(0), SERVING | 1 << 4), // terminating
        pod(2, Some(0), SERVING | 1 << 5), // failed
        pod(3, None, SERVING | 1 << 5),
        pod(4, None, SERVING & !0b10), // not managed
        pod(5, None, SERVING | 1 << 4),
    ];
    let tally = count(&pods, &workloads);
    let unavailable = tally.unavailable_pods().count();
    assert_eq!(
        (tally.expected(), tally.available(), unavailable),
        (1, 1, 0)
    );
}

#[test]
fn pod_with_pending_deadline_does_not_count_as_available() {
    let mut ending = pod(1, None, SERVING);
    let pod_of = Arc::make_mut(&mut ending);
    pod_of.spec.active_deadline_seconds = Some(600);
    pod_of.metadata.generation = 2;
    let tally = count(&[pod(0, None, SERVING), ending], &known([]));
    let unavailable: Vec<_> = tally.unavailable_pods().map(|(since, _)| *since).collect();
    assert_eq!(
        (tally.expected(), tally.available(), unavailable),
        (2, 1, vec![None])
    );
}

#[test]
fn deployment_counts_once_while_its_replica_sets_move() {
    let root = deployment();
    let mut workloads = known([("root", workload(10, true, None))]);
    for (old, new) in [(10, 0), (8, 3), (3, 3), (0, 0), (0, 10)] {
        put(&mut workloads, "owner-0", workload(old, true, Some(&root)));
        put(&mut workloads, "owner-1", workload(new, true, Some(&root)));
        let pods = [serving(0, 6, Some(0)), serving(6, 2, Some(1))].concat();
        let tally = count(&pods, &workloads);
        assert_eq!((tally.expected(), doubts(&tally).len()), (10, 0));
    }
}

#[test]
fn replica_sets_count_for_themselves_without_their_deployment() {
    let root = deployment();
    let mut workloads = known([
        ("owner-0", workload(3, true, Some(&root))),
        ("owner-1", workload(4, true, Some(&root))),
    ]);
    let pods = serving(0, 1, Some(0));
    // The Deployment has not been seen yet, so it must be read.
    let tally = count(&pods, &workloads);
    assert_eq!((tally.expected(), doubts(&tally)), (7, vec!["root"]));
    read(&mut workloads, &root, LiveReading::Gone);
    let tally = count(&pods, &workloads);
    assert_eq!((tally.expected(), doubts(&tally)), (7, vec![]));
}

#[test]
fn controller_of_another_kind_counts_by_its_scale() {
    let root = rollout();
    let mut workloads = known([
        ("owner-0", workload(3, true, Some(&root))),
        ("owner-1", workload(4, true, Some(&root))),
    ]);
    read(&mut workloads, &root, LiveReading::Count(10));
    let pods = serving(0, 1, Some(0));
    let tally = count(&pods, &workloads);
    // No watch delivers changes of the Rollout.
    assert_eq!((tally.expected(), doubts(&tally)), (10, vec!["root"]));
    assert_eq!(tally.unknown_owners().count(), 0);
    read(&mut workloads, &root, LiveReading::NoScale);
    let tally = count(&pods, &workloads);
    assert_eq!(tally.expected(), 7);
    let unknown: Vec<_> = tally.unknown_owners().map(|o| o.kind.as_str()).collect();
    assert_eq!(unknown, ["Rollout"]);
}

#[test]
fn owner_without_replicas_does_not_raise_percentage_base() {
    let config = owner("v1", "ConfigMap", "owner-1");
    let mut workloads = known([("owner-0", workload(10, true, None))]);
    read(&mut workloads, &config, LiveReading::NoScale);
    let pods = [serving(0, 10, Some(0)), serving(10, 40, Some(1))].concat();
    let tally = count(&pods, &workloads);
    assert_eq!((tally.percentage_base(), tally.expected()), (10, 50));
    // If there is no other owner, percentages apply to these Pods.
    let mut workloads = Workloads::default();
    read(&mut workloads, &config, LiveReading::NoScale);
    let tally = count(&serving(0, 40, Some(1)), &workloads);
    assert_eq!((tally.percentage_base(), tally.expected()), (40, 40));
}

#[test]
fn owner_with_more_pods_than_expected_is_in_doubt() {
    let workloads = known([("owner-0", workload(3, true, None))]);
    assert_eq!(doubts(&count(&serving(0, 3, Some(0)), &workloads)), [""; 0]);
    let four = serving(0, 4, Some(0));
    assert_eq!(doubts(&count(&four, &workloads)), ["owner-0"]);
}

#[test]
fn owner_of_unwatched_kind_is_expected_by_its_last_reading() {
    let mut workloads = Workloads::default();
    let pods = serving(0, 2, Some(0));
    assert_eq!(count(&pods, &workloads).expected(), 2);
    read(
        &mut workloads,
        &replica_set("owner-0"),
        LiveReading::Count(6),
    );
    assert_eq!(count(&pods, &workloads).expected(), 6);
}

#[test]
fn pods_without_owner_do_not_enlarge_the_base() {
    let workloads = known([("owner-0", workload(10, true, None))]);
    let bare = serving(0, 30, None);
    let both = [bare.clone(), serving(30, 10, Some(0))].concat();
    let tally = count(&both, &workloads);
    assert_eq!((tally.expected(), tally.percentage_base()), (40, 10));
    let tally = count(&bare, &Workloads::default());
    assert_eq!((tally.expected(), tally.percentage_base()), (30, 30));
}

#[test]
fn pods_of_deleted_owner_do_not_enlarge_the_base() {
    let mut workloads = known([("owner-0", workload(10, true, None))]);
    read(&mut workloads, &replica_set("owner-1"), LiveReading::Gone);
    let both = [serving(0, 30, Some(1)), serving(30, 10, Some(0))].concat();
    let tally = count(&both, &workloads);
    assert_eq!((tally.expected(), tally.percentage_base()), (40, 10));
}

#[test]
fn pod_with_a_forged_owner_name_counts_for_itself() {
    let mut workloads = known([("owner-0", workload(3, true, None))]);
    let forged = [pod(8, Some(0), FORGED), pod(9, Some(0), FORGED)];
    let pods = [serving(0, 3, Some(0)), forged.to_vec()].concat();
    let tally = count(&pods, &workloads);
    assert_eq!((tally.expected(), tally.percentage_base()), (5, 3));
    assert_eq!(doubts(&tally), [""; 0]);
    // The same holds for an owner that is read live.
    workloads = Workloads::default();
    read(
        &mut workloads,
        &replica_set("owner-0"),
        LiveReading::Count(3),
    );
    let tally = count(&pods, &workloads);
    assert_eq!((tally.expected(), tally.percentage_base()), (5, 3));
}

#[test]
fn decoy_pods_of_a_stateful_set_make_no_room() {
    let of_set = |n: u8, name: &str| {
        let mut pod = Pod::clone(&pod(n, Some(0), SERVING));
        pod.metadata.name = name.to_owned();
        let owner = &mut pod.metadata.owner_references[0];
        (owner.kind, owner.name) = ("StatefulSet".to_owned(), "web".to_owned());
        Arc::new(pod)
    };
    let own: Vec<_> = (0..3).map(|n| of_set(n, &format!("web-{n}"))).collect();
    let decoys: Vec<_> = ["decoy", "web-07", "web-x", "web"]
        .map(|name| of_set(3, name))
        .to_vec();
    let set = Workload {
        kind: WatchedKind::StatefulSet,
        name: "web".to_owned(),
        ..workload(3, true, None)
    };
    let mut workloads = Workloads::default();
    workloads.put_workload(&Uid::from("owner-0"), set);
    let tally = count(&[own, decoys].concat(), &workloads);
    assert_eq!(
        (tally.expected(), tally.available(), tally.percentage_base()),
        (7, 7, 3)
    );
}

#[test]
fn unowned_available_pods_do_not_extend_owned_budget() {
    let workloads = known([("owner-0", workload(10, true, None))]);
    let owned = serving(0, 10, Some(0));
    let missing = |pods: &[Arc<Pod>]| {
        let tally = count(pods, &workloads);
        tally.expected() - tally.available()
    };
    for bare in [0, 1, 30] {
        let all = [owned[1..].to_vec(), serving(10, bare, None)].concat();
        assert_eq!(missing(&all), 1, "{bare} Pods without owner");
    }
}

#[test]
fn selected_pods_are_named_in_order_whatever_their_phase() {
    let pods = [
        pod(2, None, SERVING),
        pod(0, None, SERVING | 1 << 4), // terminating
        pod(1, None, SERVING | 1 << 5), // failed
        pod(3, None, SERVING & !0b1),   // of another application
        pod(4, None, SERVING & !0b10),  // not managed
    ];
    let tally = count(&pods, &known([]));
    let names: Vec<_> = tally.pod_names().collect();
    assert_eq!(
        (tally.selected_count(), names),
        (3, vec!["pod-0", "pod-1", "pod-2"])
    );
}

fn figures(tally: &Tally) -> impl PartialEq + std::fmt::Debug {
    let mut unknown: Vec<_> = tally.unknown_owners().cloned().collect();
    unknown.sort_by(|a, b| a.uid.cmp(&b.uid));
    let mut doubts: Vec<_> = tally.doubtful_owners().cloned().collect();
    doubts.sort();
    (
        (tally.expected(), tally.percentage_base(), tally.available()),
        tally.pre_check_waiting().cloned().collect::<Vec<_>>(),
        (
            tally.unavailable_pods().count(),
            tally.selected_count(),
            tally.pod_names().map(str::to_owned).collect::<Vec<_>>(),
        ),
        (doubts, unknown, tally.unset_owners().count()),
    )
}

proptest! {
    /// After any changes in any order, the running counts equal a count from scratch. Owners 0 and 1 may be ReplicaSets
    /// of one controller, which is also added, changed, read and removed.
    #[test]
    fn running_counts_agree_with_a_count_from_scratch(
        steps in prop::collection::vec((0u8..6, 0u8..3, any::<u8>(), any::<bool>()), 0..60)
    ) {
        let rules = rules();
        let mut pods = HashMap::<u8, Arc<Pod>>::new();
        let mut workloads = Workloads::default();
        let mut tally = Tally::default();
        let roots = [None, Some(deployment()), Some(rollout())];
        for (n, owner, state, there) in steps {
            if n >= 3 {
                let uid = if n == 5 { Uid::from("root") } else { Uid::from(format!("owner-{owner}")) };
                let controller = roots[usize::from(state) % 3].as_ref().filter(|_| n == 3);
                let of_set = replica_set(&uid);
                let by = if n == 5 { roots[1 + usize::from(state) % 2].as_ref().unwrap() } else { &of_set };
                match (there, n) {
                    (true, _) => put(&mut workloads, &uid, workload(state % 5, state & 8 != 0, controller)),
                    (false, 3) => read(&mut workloads, by, LiveReading::NoScale),
                    (false, 4) if state >= 192 => read(&mut workloads, by, LiveReading::Unset),
                    (false, 4) if state < 32 => read(&mut workloads, by, LiveReading::Gone),
                    (false, _) => read(&mut workloads, by, LiveReading::Count(u32::from(state % 7))),
                }
                tally.update_owner(&rules, &uid, &workloads);
            } else {
                let new = there.then(|| pod(n, (owner < 2).then_some(owner), state));
                if let Some(old) = pods.remove(&n) {
                    tally.remove_pod(&rules, &old, &workloads);
                }
                if let Some(new) = new {
                    tally.add_pod(&rules, &new, &workloads);
                    pods.insert(n, new);
                }
            }
            let fresh = Tally::count_all(&rules, pods.values(), &workloads);
            prop_assert_eq!(figures(&tally), figures(&fresh));
        }
    }
}
