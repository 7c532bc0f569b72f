//! Pods that are to leave and can't for now: the other Pods continue without them, and the status says why.

use serde_json::json;

use super::instances::{fail, stranger};
use super::reconcile::{condition, one_pvc_template};
use super::world::{Kubelet, Resizing, World, WriteKind};
use crate::api::keys;
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::planner::plan_set;
use crate::domain::pod::Pod;

fn member(world: &World, id: i64) -> Pod {
    world.members()[&id].clone()
}

fn exclude(world: &mut World, pod: &Pod) {
    let name = &pod.metadata.name;
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
}

#[test]
fn user_deletion_during_update_blocks_no_other_pod() {
    let strategy = json!({ "podUpgradePolicy": "Recreate", "operationDelaySeconds": 60 });
    let mut world = World::on_plane(3, json!({ "updateStrategy": strategy }));
    world.settle();
    world.image("app:2");
    world.run_rounds(6);
    let members = world.members();
    let mut updating = members
        .values()
        .filter(|pod| SetOperation::Update.is_in_progress(pod) && !pod.is_available());
    let pod = (*updating.next().unwrap()).clone();
    assert_eq!(updating.count(), 0, "the revision is yet to be proven");
    world.faults.undeletable.insert(pod.metadata.uid.clone());
    world.relabel(&pod.metadata.name, keys::TO_DELETE, "true");
    for _ in 0..10 {
        world.run_rounds(20);
        world.advance_time(60);
    }
    let updated = world.images().iter().filter(|i| **i == "app:2").count();
    assert_eq!(updated, 2);
    let message = condition(&world, "Ready").2;
    let expected = format!(
        "Pod {} will be deleted, and off traffic; its deletion is refused: policy",
        pod.metadata.name
    );
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn pod_that_cannot_leave_uses_no_partition_slot() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    world.faults.refused.insert(WriteKind::PvcWrite);
    let leaves = member(&world, 2);
    exclude(&mut world, &leaves);
    world.run_rounds(10);
    world.edit(json!({ "updateStrategy": {
        "rollingUpdate": { "byPartition": { "partition": 2 } },
    } }));
    world.image("app:2");
    world.run_rounds(60);
    assert_eq!(world.images(), ["app:1", "app:2", "app:1"]);
}

#[test]
fn pod_that_cannot_leave_is_not_recreated_for_impossible_resize() {
    let resources = |cpu: &str| {
        json!({ "template": { "spec": { "containers": [{
            "name": "app", "image": "app:1", "resources": { "requests": { "cpu": cpu } },
        }] } } })
    };
    let mut spec = one_pvc_template();
    json_patch::merge(&mut spec, &resources("1"));
    let mut world = World::on_plane(2, spec);
    world.settle();
    let leaves = member(&world, 0);
    let never = Kubelet {
        resizing: Resizing::Infeasible,
        ..Kubelet::default()
    };
    world.kubelets.insert(leaves.metadata.uid.clone(), never);
    world.edit(resources("2"));
    let is_resized = |world: &World| {
        let pod = &world.pods[&leaves.metadata.name];
        pod.annotation(keys::LAST_POD_STATUS).is_some()
    };
    for _ in 0..20 {
        if is_resized(&world) {
            break;
        }
        world.run_rounds(1);
    }
    assert!(is_resized(&world), "the test is about one that was resized");
    world.faults.refused.insert(WriteKind::PvcWrite);
    exclude(&mut world, &leaves);
    world.run_rounds(60);
    assert_eq!(member(&world, 0).metadata.uid, leaves.metadata.uid);
    assert!(member(&world, 0).is_available());
    world.faults.refused.clear();
    world.settle();
    let released = &world.pods[&leaves.metadata.name];
    assert!(released.controller().is_none() && released.is_available());
}

/// Two of three instances are wanted. The first is to leave and can't for now. The last Pod ends while the pool is
/// lost, and must come back with its PVC.
fn ends_beside_one_that_goes(list: &str, hold: impl FnOnce(&mut World, &Pod)) {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let (first, last) = (member(&world, 0), member(&world, 2));
    hold(&mut world, &first);
    let name = &first.metadata.name;
    world.edit(json!({ "replicas": 2, "scaleStrategy": { list: [name] } }));
    world.run_rounds(20);
    assert_eq!(world.ids(), [0, 1, 2]);
    world.delete(&last.metadata.name);
    world.pool = None;
    world.run_rounds(20);
    world.faults = Default::default();
    world.settle();
    assert_eq!(world.ids(), [1, 2]);
    assert_eq!(member(&world, 2).spec.pvcs, last.spec.pvcs);
}

#[test]
fn lost_pool_recovers_ended_instance_while_another_cannot_leave() {
    ends_beside_one_that_goes("podToExclude", |world, first| {
        world.faults.stubborn.extend(first.spec.pvcs.clone());
    });
}

#[test]
fn lost_pool_recovers_ended_instance_while_scale_in_is_held() {
    ends_beside_one_that_goes("podToDelete", |world, first| {
        world.faults.held.insert(first.metadata.uid.clone());
    });
}

/// The Pod of instance 0, which a user deletes while the deletion is refused. It then fails, and a user asks to exclude
/// it.
fn failed_to_go_and_to_leave() -> (World, Pod) {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let pod = member(&world, 0);
    world.faults.undeletable.insert(pod.metadata.uid.clone());
    world.relabel(&pod.metadata.name, keys::TO_DELETE, "true");
    world.run_rounds(5);
    fail(&mut world, &pod.metadata.name, 0);
    exclude(&mut world, &pod);
    world.run_rounds(20);
    (world, pod)
}

#[test]
fn failed_pod_to_delete_and_exclude_is_reported_with_reason() {
    let (mut world, pod) = failed_to_go_and_to_leave();
    let message = condition(&world, "Ready").2;
    let expected = format!(
        "Pod {} will be deleted, and off traffic; its deletion is refused: policy",
        pod.metadata.name
    );
    assert!(message.contains(&expected), "{message}");
    world.faults.undeletable.clear();
    world.settle();
    assert!(!world.pods.contains_key(&pod.metadata.name));
    assert_eq!(member(&world, 0).spec.pvcs, pod.spec.pvcs);
}

#[test]
fn failed_deleted_pod_leaves_with_its_pvc_when_excluded() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let pod = member(&world, 0);
    world.faults.held.insert(pod.metadata.uid.clone());
    let name = &pod.metadata.name;
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
    world.run_rounds(5);
    let sent = |world: &World| world.pods[name].label(keys::TO_DELETE).is_some();
    assert!(sent(&world));
    fail(&mut world, name, 0);
    world.edit(json!({ "scaleStrategy": { "podToDelete": [], "podToExclude": [name] } }));
    world.settle();
    assert!(world.pods[name].controller().is_none());
    assert_eq!(world.pvcs[&pod.spec.pvcs[0]].controller, None);
}

#[test]
fn pod_to_include_takes_the_instance_id_of_no_orphan() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let before: Vec<String> = world.pods.keys().cloned().collect();
    stranger(&mut world, "guest", None);
    world.orphan_set();
    world.recreate_set();
    let lists = json!({ "podToInclude": ["guest"] });
    world.edit(json!({ "replicas": 3, "scaleStrategy": lists }));
    world.settle();
    let mut now: Vec<&str> = world.pods.keys().map(String::as_str).collect();
    now.retain(|name| *name != "guest");
    assert_eq!(now, before);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn named_pod_is_scaled_in_once_despite_unwritable_pool() {
    let spec = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = World::on_plane(3, spec);
    world.settle();
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToDelete": ["web-0"] } }));
    world.faults.refused.insert(WriteKind::Pool);
    world.settle();
    assert_eq!(world.ids(), [1, 2]);
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.ids(), [1, 2]);
}

fn updated(world: &World) -> usize {
    let images = world.images();
    images.iter().filter(|image| **image == "app:2").count()
}

fn by_partition(partition: u32) -> serde_json::Value {
    json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": partition } } } })
}

/// A set of this many Pods, and the one that is its canary.
fn canary(replicas: i32) -> (World, Pod) {
    let mut world = World::on_plane(replicas, one_pvc_template());
    world.settle();
    world.edit(by_partition(replicas.unsigned_abs() - 1));
    world.image("app:2");
    world.settle();
    assert_eq!(updated(&world), 1);
    let members = world.members();
    let mut canary = members.values();
    let canary = canary.find(|pod| pod.spec.containers[0].image == "app:2");
    let canary = (*canary.unwrap()).clone();
    (world, canary)
}

#[test]
fn canary_that_cannot_leave_keeps_its_place() {
    for replicas in [2, 3] {
        let (mut world, pod) = canary(replicas);
        world.faults.stubborn.extend(pod.spec.pvcs.clone());
        exclude(&mut world, &pod);
        world.run_rounds(30);
        assert_eq!(updated(&world), 1);
        world.edit(json!({ "scaleStrategy": { "podToExclude": [] } }));
        world.run_rounds(30);
        assert_eq!(updated(&world), 1);
        // Once the canary has left, its successor is the canary, and no other Pod is restarted.
        let before = super::reconcile::uids(&world);
        world.faults.stubborn.clear();
        exclude(&mut world, &pod);
        world.settle();
        assert_eq!(updated(&world), 1);
        assert!(before.is_subset(&super::reconcile::uids(&world)));
    }
}

#[test]
fn undeletable_pod_uses_no_partition_slot() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    let pod = member(&world, 0);
    world.faults.undeletable.insert(pod.metadata.uid.clone());
    world.relabel(&pod.metadata.name, keys::TO_DELETE, "true");
    world.run_rounds(10);
    world.edit(by_partition(2));
    world.image("app:2");
    world.run_rounds(60);
    assert_eq!(updated(&world), 1);
    assert!(member(&world, 0).spec.containers[0].image == "app:1");
    world.faults.undeletable.clear();
    world.settle();
    assert_eq!(updated(&world), 1);
}

#[test]
fn lost_pool_recovers_ended_instance_while_failed_pod_cannot_leave() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let (first, last) = (member(&world, 0), member(&world, 1));
    world.faults.refused.insert(WriteKind::PvcWrite);
    let name = &first.metadata.name;
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(10);
    fail(&mut world, name, 1000);
    world.run_rounds(2);
    world.delete(&last.metadata.name);
    world.pool = None;
    world.run_rounds(20);
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.ids(), [1]);
    assert_eq!(member(&world, 1).spec.pvcs, last.spec.pvcs);
}

/// Three Pods of the instances 1, 2 and 3. The second is gone and can't be created again.
fn without_the_second() -> (World, Pod) {
    let mut world = World::on_plane(4, one_pvc_template());
    world.settle();
    let first = member(&world, 0).metadata.name;
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [first] } }));
    world.settle();
    assert_eq!(world.ids(), [1, 2, 3]);
    let second = member(&world, 2);
    world.faults.refused.insert(WriteKind::PodCreation);
    world.delete(&second.metadata.name);
    world.run_rounds(10);
    assert_eq!(world.ids(), [1, 3]);
    (world, second)
}

#[test]
fn lost_pool_recovers_instance_of_gone_pod_by_pvc() {
    for is_emptied in [false, true] {
        let (mut world, second) = without_the_second();
        match is_emptied {
            true => world.pool.as_mut().unwrap().contexts.clear(),
            false => world.pool = None,
        }
        world.run_rounds(10);
        world.faults.refused.clear();
        world.advance_time(100);
        world.settle();
        assert_eq!(world.ids(), [1, 2, 3]);
        assert_eq!(member(&world, 2).spec.pvcs, second.spec.pvcs);
    }
}

#[test]
fn lost_pool_prefers_oldest_pvcs_for_missing_instance() {
    let (mut world, second) = without_the_second();
    world.advance_time(100);
    world.edit(json!({ "replicas": 4 }));
    world.run_rounds(5);
    assert_eq!(world.pvcs.len(), 4, "that of a scale-out, under ID 0");
    world.edit(json!({ "replicas": 3 }));
    world.pool = None;
    world.run_rounds(10);
    world.faults.refused.clear();
    world.advance_time(100);
    world.settle();
    assert_eq!(world.ids(), [1, 2, 3]);
    assert_eq!(member(&world, 2).spec.pvcs, second.spec.pvcs);
}

#[test]
fn emptied_pool_recovers_instance_of_terminating_pod() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let first = member(&world, 0).metadata.name;
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToDelete": [first] } }));
    world.settle();
    let last = member(&world, 2);
    let slow = Kubelet {
        ends_slowly: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(last.metadata.uid.clone(), slow);
    world.delete(&last.metadata.name);
    world.run_rounds(2);
    world.pool.as_mut().unwrap().contexts.clear();
    world.run_rounds(5);
    world.kubelets.clear();
    world.settle();
    assert_eq!(world.ids(), [1, 2]);
    assert_eq!(member(&world, 2).spec.pvcs, last.spec.pvcs);
}

/// A Pod that left with its PVC. Its inclusion is refused after the PVC has entered. Also returns the name of the PVC.
fn half_included() -> (World, String, String) {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let pod = member(&world, 1);
    let (name, pvc_name) = (pod.metadata.name.clone(), pod.spec.pvcs[0].clone());
    exclude(&mut world, &pod);
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    assert_eq!(world.pvcs[&pvc_name].controller, None);
    world.faults.stubborn.insert(pod.metadata.uid);
    let lists = json!({ "podToExclude": [], "podToInclude": [name] });
    world.edit(json!({ "replicas": 2, "scaleStrategy": lists }));
    world.run_rounds(10);
    let uid = Some(world.uid().to_owned());
    assert_eq!(world.pvcs[&pvc_name].controller, uid);
    (world, name, pvc_name)
}

#[test]
fn pvc_is_returned_when_inclusion_is_withdrawn() {
    for replicas in [1, 2] {
        let (mut world, name, pvc_name) = half_included();
        let lists = json!({ "podToInclude": [] });
        world.edit(json!({ "replicas": replicas, "scaleStrategy": lists }));
        world.faults.stubborn.clear();
        world.settle();
        assert_eq!(world.pvcs[&pvc_name].controller, None);
        assert_eq!(world.members().len(), replicas);
        world.delete(&name);
        world.settle();
        assert!(world.pvcs.contains_key(&pvc_name));
        assert_eq!(world.members().len(), replicas);
    }
}

#[test]
fn refused_exclusion_uses_no_place_of_max_unavailable_up() {
    for policy in ["InPlaceIfPossible", "Recreate"] {
        let mut spec = one_pvc_template();
        spec["updateStrategy"] = json!({ "podUpgradePolicy": policy, "maxUnavailable": 1 });
        let mut world = World::on_plane(3, spec);
        world.settle();
        world.faults.refused.insert(WriteKind::PvcWrite);
        let leaves = member(&world, 0);
        exclude(&mut world, &leaves);
        world.run_rounds(10);
        world.image("app:2");
        let mut fewest = 3;
        for _ in 0..60 {
            world.run_rounds(1);
            let members = world.members();
            let serving = members.values().filter(|pod| pod.is_available());
            fewest = fewest.min(serving.count());
        }
        assert_eq!((updated(&world), fewest), (2, 2), "{policy}");
    }
}

#[test]
fn pvc_of_pod_failing_during_leave_serves_next_pod() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let pod = member(&world, 0);
    let name = &pod.metadata.name;
    world.faults.stubborn.insert(pod.metadata.uid.clone());
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(10);
    assert_eq!(world.pvcs[&pod.spec.pvcs[0]].controller, None);
    fail(&mut world, name, 0);
    world.run_rounds(3);
    world.faults.stubborn.clear();
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [] } }));
    world.settle();
    assert_eq!(world.ids(), [0, 1, 2]);
    assert_eq!(member(&world, 0).spec.pvcs, pod.spec.pvcs);
}

#[test]
fn failed_pod_is_recreated_by_recreated_set() {
    let sequence = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    for naming in [json!({}), sequence] {
        let mut spec = one_pvc_template();
        spec["namingStrategy"] = naming;
        let mut world = World::on_plane(2, spec);
        world.settle();
        let failed = member(&world, 1);
        fail(&mut world, &failed.metadata.name, 10_000);
        world.orphan_set();
        world.recreate_set();
        world.ended_until.clear();
        world.settle();
        assert_eq!(world.pods.len(), 2);
        assert_ne!(member(&world, 1).metadata.uid, failed.metadata.uid);
        assert_eq!(member(&world, 1).spec.pvcs, failed.spec.pvcs);
    }
}

#[test]
fn pod_that_cannot_leave_is_not_reported_as_leaving() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    world.faults.refused.insert(WriteKind::PvcWrite);
    let name = member(&world, 0).metadata.name;
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(10);
    // This plan does not know the refusal yet.
    let conditions = plan_set(&world.observe()).status.unwrap().conditions;
    let scale = conditions.into_iter().find(|c| c.type_ == "Scale");
    let message = scale.unwrap().message;
    let counts = "0 Pods to create, 0 to delete; 1 Pod leaves the set";
    assert!(message.contains(counts), "{message}");
}

#[test]
fn cancelled_pair_is_dissolved_in_order_after_pool_loss() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Replace" });
    let mut world = World::on_plane(1, spec);
    world.settle();
    let origin = member(&world, 0);
    let name = &origin.metadata.name;
    world.relabel(&origin.metadata.name, keys::TO_REPLACE, "true");
    world.run_rounds(2);
    assert_eq!(world.ids(), [0, 1]);
    world.pool = None;
    assert!(world.write_pod(name, |pod| {
        pod.metadata.labels.remove(keys::TO_REPLACE);
    }));
    world.run_plan();
    let half = &world.pods.values().find(|pod| pod.metadata.name != *name);
    let half = half.unwrap();
    assert!(half.label(keys::TO_DELETE).is_some());
    assert!(!SetOperation::ScaleIn.is_in_progress(half));
    world.settle();
    assert_eq!(world.ids(), [0]);
    assert_eq!(member(&world, 0).metadata.uid, origin.metadata.uid);
}

#[test]
fn pod_to_replace_serves_during_update_despite_unwritable_pool() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    world.faults.refused.insert(WriteKind::Pool);
    world.edit(json!({ "template": { "metadata": { "labels": { "tier": "0" } } } }));
    world.run_plan();
    let pod = member(&world, 0);
    assert!(SetOperation::Update.is_in_progress(&pod));
    world.relabel(&pod.metadata.name, keys::TO_REPLACE, "true");
    world.run_rounds(20);
    assert!(member(&world, 0).is_available());
}

/// The entering Pod fails, or is deleted, while `podToInclude` names it.
fn ends_half_included(is_deleted: bool) {
    let (mut world, name, pvc_name) = half_included();
    match is_deleted {
        true => world.delete(&name),
        false => fail(&mut world, &name, 0),
    }
    world.run_rounds(20);
    world.faults.stubborn.clear();
    let lists = json!({ "podToInclude": [] });
    world.edit(json!({ "scaleStrategy": lists }));
    world.settle();
    let own = |world: &World| {
        let mut pods = world.members().into_values();
        let mounting = pods.find(|pod| pod.spec.pvcs.contains(&pvc_name));
        mounting.map(|pod| pod.metadata.name.clone())
    };
    let pod = own(&world).unwrap();
    world.faults.refused.insert(WriteKind::PodCreation);
    world.delete(&pod);
    world.run_rounds(10);
    world.faults.refused.clear();
    world.advance_time(100);
    world.settle();
    assert!(own(&world).is_some());
}

#[test]
fn pvc_of_half_included_ending_pod_stays_with_instance() {
    for is_deleted in [false, true] {
        ends_half_included(is_deleted);
    }
}

#[test]
fn released_pvc_does_not_return_for_scale_in() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let guest = member(&world, 2);
    exclude(&mut world, &guest);
    world.settle();
    let pod = member(&world, 0);
    let (name, guest) = (&pod.metadata.name, &guest.metadata.name);
    world.faults.stubborn.insert(pod.metadata.uid.clone());
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(10);
    fail(&mut world, name, 0);
    world.run_rounds(3);
    world.faults.stubborn.clear();
    let lists = json!({ "podToExclude": [], "podToInclude": [guest] });
    world.edit(json!({ "replicas": 3, "scaleStrategy": lists }));
    world.settle();
    assert_eq!(world.members().len(), 3);
    assert_eq!(world.pvcs[&pod.spec.pvcs[0]].controller, None);
}

#[test]
fn failed_orphan_is_removed_beside_its_replacement() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let failed = member(&world, 1);
    world.faults.undeletable.insert(failed.metadata.uid.clone());
    // Another Pod takes its place while it can't be deleted.
    let mut running = failed.clone();
    running.metadata.name = "web-other".into();
    running.metadata.uid = "other".into();
    world.pods.insert("web-other".into(), running);
    fail(&mut world, &failed.metadata.name, 0);
    world.orphan_set();
    world.faults.undeletable.clear();
    world.recreate_set();
    world.settle();
    assert!(!world.pods.contains_key(&failed.metadata.name));
    assert_eq!(world.pods["web-other"].metadata.uid, "other");
    assert_eq!(world.pods.len(), 2);
}

#[test]
fn lost_pool_does_not_take_new_half_for_instance() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Replace" });
    let mut world = World::on_plane(3, spec);
    world.settle();
    world.image("app:2");
    world.settle();
    assert_eq!(world.ids(), [3, 4, 5]);
    let deleted = member(&world, 4);
    world.faults.refused.insert(WriteKind::PodCreation);
    world.image("app:3");
    world.run_rounds(10);
    world.delete(&deleted.metadata.name);
    world.run_rounds(10);
    world.pool = None;
    world.run_rounds(10);
    world.faults.refused.clear();
    world.image("app:2");
    world.advance_time(100);
    world.settle();
    let mut mounted = world.members().into_values().map(|pod| &pod.spec.pvcs);
    assert!(mounted.any(|mounted| *mounted == deleted.spec.pvcs));
}

#[test]
fn failed_canary_that_leaves_triggers_no_other_update() {
    let (mut world, pod) = canary(2);
    let is_other = |other: &&Pod| other.metadata.uid != pod.metadata.uid;
    let other = world.pods.values().find(is_other).unwrap().clone();
    // The plan continues beside a write that is refused.
    world.faults.stubborn.insert(pod.metadata.uid.clone());
    fail(&mut world, &pod.metadata.name, 0);
    exclude(&mut world, &pod);
    world.run_rounds(20);
    world.faults.stubborn.clear();
    world.settle();
    assert_eq!(updated(&world), 1);
    let unchanged = &world.pods[&other.metadata.name];
    assert_eq!(unchanged.spec.containers[0].image, "app:1");
    assert_eq!(unchanged.metadata.uid, other.metadata.uid);
}

#[test]
fn named_pod_finishes_update_while_deletion_cannot_be_noted() {
    let spec = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = World::on_plane(1, spec);
    world.settle();
    world.faults.refused.insert(WriteKind::Pool);
    world.edit(json!({ "template": { "metadata": { "labels": { "tier": "0" } } } }));
    world.run_plan();
    let before = member(&world, 0);
    assert!(SetOperation::Update.is_in_progress(&before));
    world.edit(json!({ "scaleStrategy": { "podToDelete": ["web-0"] } }));
    world.run_rounds(20);
    let pod = member(&world, 0);
    assert!(pod.is_available());
    assert_eq!(pod.metadata.uid, before.metadata.uid);
    world.faults.refused.clear();
    world.settle();
    assert_ne!(member(&world, 0).metadata.uid, before.metadata.uid);
}

/// A failed Pod that can't be deleted, beside its successor.
fn beside_a_failed_one() -> (World, Pod) {
    let mut world = World::on_plane(1, one_pvc_template());
    world.settle();
    let failed = member(&world, 0);
    let uid = failed.metadata.uid.clone();
    world.faults.undeletable.insert(uid);
    fail(&mut world, &failed.metadata.name, 0);
    world.run_rounds(30);
    (world, failed)
}

#[test]
fn leaving_pvcs_stay_with_pod_beside_failed_pod_of_id() {
    for (is_excluded, fails_too) in [(true, false), (false, false), (false, true)] {
        let (mut world, failed) = beside_a_failed_one();
        let mut pods = world.pods.values();
        let leaver = pods.find(|pod| !pod.is_finished()).unwrap().clone();
        assert_eq!(leaver.spec.pvcs, failed.spec.pvcs);
        if fails_too {
            fail(&mut world, &leaver.metadata.name, 0);
        }
        match is_excluded {
            true => exclude(&mut world, &leaver),
            false => world.relabel(&leaver.metadata.name, "app", "debug"),
        }
        world.run_rounds(30);
        let pvc = &world.pvcs[&leaver.spec.pvcs[0]];
        assert_eq!(pvc.controller, None, "{is_excluded} {fails_too}");
        world.faults.undeletable.clear();
        world.advance_time(1_000);
        world.settle();
        let next = member(&world, 0);
        assert_ne!(next.spec.pvcs, leaver.spec.pvcs);
        assert!(!world.pods.contains_key(&failed.metadata.name));
    }
}

#[test]
fn pvcs_of_new_pod_do_not_leave_with_failed_pod() {
    let (mut world, failed) = beside_a_failed_one();
    world.relabel(&failed.metadata.name, "app", "debug");
    world.settle();
    let next = world.members()[&0].clone();
    assert_ne!(next.metadata.uid, failed.metadata.uid);
    assert_eq!(next.spec.pvcs, failed.spec.pvcs);
    assert!(world.pvcs[&next.spec.pvcs[0]].controller.is_some());
}

#[test]
fn undeletable_pod_to_replace_stays_chosen_for_scale_in() {
    let mut world = World::on_plane(4, json!({}));
    world.settle();
    let names = [0, 1, 2].map(|id| member(&world, id).metadata.name);
    for name in &names {
        let uid = world.pods[name].metadata.uid.clone();
        world.faults.undeletable.insert(uid);
    }
    world.relabel(&names[0], keys::TO_REPLACE, "1");
    world.edit(json!({ "replicas": 2 }));
    world.run_rounds(60);
    world.relabel(&names[1], keys::TO_REPLACE, "1");
    world.run_rounds(100);
    let pods: Vec<String> = world.pods.keys().cloned().collect();
    world.run_rounds(100);
    assert!(
        world.pods.keys().eq(&pods),
        "made and deleted again and again"
    );
}
