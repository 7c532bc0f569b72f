//! Pods whose deletion is refused after they went off traffic for it.

use serde_json::{Value, json};

use super::world::{World, WriteKind};
use crate::api::keys::{self, Family};
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::{planner, set_operations};
use crate::domain::pod::Pod;

fn first(world: &World) -> Pod {
    world.members()[&0].clone()
}

fn serving(world: &World) -> usize {
    let members = world.members();
    members.values().filter(|pod| pod.is_available()).count()
}

fn message(world: &World, type_: &str) -> String {
    let status = world.set.status.as_ref().unwrap();
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|c| c.type_ == type_).unwrap();
    assert_eq!(found.status, "False", "{type_}: {}", found.message);
    found.message.clone()
}

fn undeletable(spec: Value) -> (World, Pod) {
    let mut world = World::on_plane(3, spec);
    world.settle();
    let pod = first(&world);
    world.faults.undeletable.insert(pod.metadata.uid.clone());
    (world, pod)
}

#[test]
fn pod_to_delete_is_reported_and_serves_after_withdrawal() {
    let bound = json!({ "updateStrategy": { "maxUnavailable": 1 } });
    let (mut world, pod) = undeletable(bound);
    let name = &pod.metadata.name;
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
    world.run_rounds(20);
    assert_eq!(serving(&world), 2);
    let expected =
        format!("Pod {name} will be deleted, and off traffic; its deletion is refused: policy");
    assert!(message(&world, "Ready").contains(&expected));
    world.image("app:2");
    world.run_rounds(20);
    let message = message(&world, "Update");
    assert!(
        message.contains("updateStrategy.maxUnavailable (1) is used up"),
        "{message}"
    );
    world.edit(json!({ "scaleStrategy": { "podToDelete": [] } }));
    world.settle();
    assert_eq!(serving(&world), 3);
    assert_eq!(first(&world).metadata.uid, pod.metadata.uid);
}

#[test]
fn origin_serves_again_once_its_rollout_is_taken_back() {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "maxSurge": 1 } });
    let (mut world, pod) = undeletable(replace);
    world.image("app:2");
    world.run_rounds(60);
    let is_away = |world: &World| !world.pods[&pod.metadata.name].is_available();
    assert!(is_away(&world), "the test is about one that went");
    world.image("app:1");
    world.settle();
    assert!(!is_away(&world));
    assert_eq!(world.pods.len(), 3);
    let is_paired = |pod: &Pod| pod.label(keys::TO_REPLACE).is_some();
    assert!(!world.pods.values().any(is_paired));
}

/// A set whose Pod 0 can't be deleted and has not been Ready for this many seconds. It may have come back from an
/// update, or its node may be lost.
fn down(spec: Value, seconds: u64) -> World {
    let mut world = World::on_plane(4, spec);
    world.settle();
    world.advance_time(1000);
    let since = world.now() - seconds * 1_000_000_000;
    let pod = first(&world);
    let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
    world.kubelets.entry(uid.clone()).or_default().is_slow = true;
    let conditions = &mut world.pods.get_mut(name).unwrap().status.conditions;
    let ready = conditions.iter_mut().find(|c| c.type_ == "Ready").unwrap();
    ready.status = "False".into();
    let since = jiff::Timestamp::from_nanosecond(since.into()).unwrap();
    ready.last_transition_time = Some(since.to_string());
    world.faults.undeletable.insert(uid.clone());
    world.refused.deletions.insert(uid.clone());
    world.refused.late_deletions = true;
    world.image("app:2");
    world
}

fn updated(world: &World) -> usize {
    let images = world.images();
    images.iter().filter(|image| **image == "app:2").count()
}

#[test]
fn next_pod_waits_until_refused_pod_serves_again() {
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let mut world = down(recreate, 0);
    world.run_rounds(10);
    assert_eq!(serving(&world), 3);
    world.kubelets.clear();
    world.faults.undeletable.clear();
    world.settle();
    assert_eq!(updated(&world), 4);
}

#[test]
fn long_unavailable_refused_pod_blocks_no_other() {
    for bound in [None, Some(3)] {
        let recreate = json!({ "podUpgradePolicy": "Recreate", "maxUnavailable": bound });
        let mut world = down(json!({ "updateStrategy": recreate }), 100);
        world.run_rounds(200);
        assert_eq!(updated(&world), 3, "{bound:?}");
    }
}

#[test]
fn scale_in_whose_deletion_is_refused_holds_up_no_rollout() {
    for (policy, bound) in [
        ("InPlaceIfPossible", None),
        ("Recreate", None),
        ("Recreate", Some(1)),
        ("Replace", None),
    ] {
        let strategy = json!({ "podUpgradePolicy": policy, "maxUnavailable": bound });
        let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
        world.settle();
        let last = &world.members()[&3].metadata;
        let (name, uid) = (last.name.clone(), last.uid.clone());
        world.faults.undeletable.insert(uid);
        world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [name] } }));
        world.run_rounds(20);
        world.image("app:2");
        world.run_rounds(200);
        assert_eq!(updated(&world), 3, "{policy} {bound:?}");
    }
}

fn recreate(bound: Option<u32>) -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Recreate", "maxUnavailable": bound } })
}

/// Each of these Pods gets a dry run in turn, and takes no place from the others.
#[test]
fn several_undeletable_pods_block_no_other() {
    for (bound, undeletable) in [(None, 2), (Some(2), 2), (Some(2), 3)] {
        for ids in [[4, 2, 1], [0, 1, 2], [4, 3, 2]] {
            let mut world = World::on_plane(6, recreate(bound));
            world.settle();
            let members = world.members();
            let ids = ids.iter().take(undeletable);
            let uids: Vec<_> = ids.map(|id| members[id].metadata.uid.clone()).collect();
            world.faults.undeletable.extend(uids);
            world.image("app:2");
            for _ in 0..20 {
                world.run_rounds(20);
                world.advance_time(100);
            }
            assert_eq!(updated(&world), 6 - undeletable);
            // One of them can be deleted now.
            let last = world.faults.undeletable.pop_last();
            assert!(last.is_some());
            for _ in 0..20 {
                world.run_rounds(20);
                world.advance_time(100);
            }
            assert_eq!(updated(&world), 7 - undeletable);
        }
    }
}

/// The Pod is Ready, but not available before `minReadySeconds` are over.
#[test]
fn next_pod_waits_for_min_ready_of_refused_pod() {
    let mut spec = recreate(None);
    spec["minReadySeconds"] = json!(60);
    let mut world = World::on_plane(3, spec);
    world.settle();
    world.advance_time(100);
    world.settle();
    assert_eq!(serving(&world), 3);
    let mut pod = first(&world);
    let now = i64::try_from(world.now() / 1_000_000_000).unwrap();
    let mut conditions = pod.status.conditions.iter_mut();
    let ready = conditions.find(|c| c.type_ == "Ready").unwrap();
    let since = jiff::Timestamp::from_second(now - 10).unwrap();
    ready.last_transition_time = Some(since.to_string());
    pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    let (name, uid) = (pod.metadata.name.clone(), pod.metadata.uid.clone());
    world.pods.insert(name, pod);
    world.refused.deletions.insert(uid.clone());
    world.refused.late_deletions = true;
    world.faults.undeletable.insert(uid);
    world.image("app:2");
    world.run_plan();
    assert_eq!(serving(&world), 2, "both serve on");
    assert!(
        world
            .pods
            .values()
            .all(|pod| !SetOperation::Update.is_in_progress(pod))
    );
}

/// A Pod whose deletion is refused takes a place again when its update becomes a change in place.
#[test]
fn update_in_place_keeps_max_unavailable_after_refused_deletions() {
    let fewest = |world: &mut World| {
        let mut fewest = usize::MAX;
        for _ in 0..60 {
            world.run_rounds(1);
            fewest = fewest.min(serving(world));
        }
        fewest
    };
    for lifted in [false, true] {
        let mut world = World::on_plane(6, recreate(Some(1)));
        world.settle();
        world.faults.refused.insert(WriteKind::PodDeletion);
        world.image("app:2");
        world.run_rounds(60);
        world.advance_time(100);
        world.run_rounds(60);
        if lifted {
            world.faults.refused.clear();
        }
        world.edit(json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" } }));
        assert!(fewest(&mut world) >= 5);
        assert_eq!(updated(&world), 6);
    }
    let mut world = World::on_plane(6, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    world.settle();
    world.faults.refused.insert(WriteKind::PodDeletion);
    world.edit(json!({ "replicas": 3 }));
    world.run_rounds(20);
    world.faults.refused.clear();
    world.edit(json!({ "replicas": 6 }));
    world.settle();
    world.image("app:2");
    assert!(fewest(&mut world) >= 5);
    assert_eq!(updated(&world), 6);
}

/// The dry run of the Pod is refused, so no other Pod goes off traffic in vain.
#[test]
fn other_pods_use_max_unavailable_beside_refused_dry_run() {
    let mut spec = recreate(Some(4));
    spec["updateStrategy"]["operationDelaySeconds"] = json!(5);
    let mut world = World::on_plane(8, spec);
    world.settle();
    let uid = world.members()[&7].metadata.uid.clone();
    world.faults.undeletable.insert(uid);
    world.image("app:2");
    let mut most = 0;
    for _ in 0..100 {
        world.run_rounds(1);
        let updating = world
            .pods
            .values()
            .filter(|pod| SetOperation::Update.is_in_progress(pod));
        most = most.max(updating.count());
    }
    assert_eq!((updated(&world), most), (7, 4));
}

#[test]
fn unwritable_pod_uses_no_slot_of_dry_run_pod() {
    let mut world = World::on_plane(6, recreate(Some(1)));
    world.settle();
    let uid = |world: &World, id: i64| world.members()[&id].metadata.uid.clone();
    let (stubborn, refused) = (uid(&world, 5), uid(&world, 0));
    world.faults.stubborn.insert(stubborn);
    world.refused.deletions.insert(refused);
    world.image("app:2");
    world.run_rounds(100);
    assert_eq!(updated(&world), 5);
}

#[test]
fn min_ready_wait_is_reported_for_refused_updates() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    world.faults.refused.insert(WriteKind::PodChange);
    world.image("app:2");
    world.run_rounds(20);
    world.edit(json!({ "minReadySeconds": 5 }));
    world.run_rounds(20);
    let is_annotated = |pod: &Pod| pod.annotation(keys::MIN_READY_SECONDS) == Some("5");
    assert!(world.pods.values().all(is_annotated));
    assert_eq!(world.images(), ["app:1"; 3]);
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn pod_of_deleted_set_is_rechecked_until_gone() {
    let (mut world, pod) = undeletable(json!({}));
    world.delete_set(false);
    world.run_rounds(60);
    assert!(world.pods.contains_key(&pod.metadata.name));
    let again = planner::plan_set(&world.observe()).requeue_after_nanos;
    assert!(again.is_some(), "nothing tells why its deletion is refused");
}

#[test]
fn irremovable_finalizer_of_set_is_reported() {
    let mut world = World::on_plane(0, json!({}));
    world.settle();
    world.delete_set(false);
    world.refused.finalizer = Some("CollaSet web: policy".into());
    let planned = planner::plan_set(&world.observe());
    assert!(planned.remove_finalizer, "it is tried again");
    let conditions = planned.status.unwrap().conditions;
    let terminating = conditions
        .iter()
        .find(|c| c.type_ == "Terminating")
        .unwrap();
    assert_eq!(terminating.status, "False");
    let expected = "; its finalizer can't be removed: CollaSet web: policy";
    assert!(
        terminating.message.contains(expected),
        "{}",
        terminating.message
    );
}

#[test]
fn deleted_set_does_not_recreate_lost_pool() {
    let (mut world, _) = undeletable(json!({}));
    world.delete_set(false);
    world.pool = None;
    assert_eq!(planner::plan_set(&world.observe()).pool, None);
    world.faults.undeletable.clear();
    world.run_rounds(60);
    assert!(world.pods.is_empty());
}

#[test]
fn deletion_doubts_are_rechecked_while_pod_is_offline() {
    let (mut world, pod) = undeletable(recreate(None));
    world.refused.late_deletions = true;
    let labels = &mut world
        .pods
        .get_mut(&pod.metadata.name)
        .unwrap()
        .metadata
        .labels;
    labels.insert(
        Family::Operating.key(set_operations::LIFECYCLE_ID),
        "1".into(),
    );
    labels.insert(
        Family::Preparing.key(set_operations::LIFECYCLE_ID),
        "1".into(),
    );
    labels.remove(keys::SERVICE_AVAILABLE);
    world.image("app:2");
    let again = planner::plan_set(&world.observe()).requeue_after_nanos;
    assert!(again.is_some(), "nothing tells that they are over");
}
