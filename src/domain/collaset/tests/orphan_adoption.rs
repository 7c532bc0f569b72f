//! Rollouts that are rolled back, and Pods and PVCs that live outside the set.

use serde_json::{Value, json};

use super::instances::fail;
use super::reconcile::{condition, grown, one_pvc_template, uids};
use super::rollout::running;
use super::wait_messages::take_down;
use super::world::{Kubelet, World, WriteKind};
use crate::api::keys;
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::planner::plan_set;
use crate::domain::pod::Pod;

fn name_of(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

fn under_a_partition(mut spec: Value, policy: &str) -> World {
    let by = json!({ "byPartition": { "partition": 2 } });
    spec["updateStrategy"] = json!({ "podUpgradePolicy": policy, "rollingUpdate": by });
    let mut world = World::on_plane(3, spec);
    world.settle();
    world
}

#[test]
fn abort_when_last_pod_is_ready_rolls_back() {
    let mut spec = json!({});
    spec["updateStrategy"] = json!({ "rollingUpdate": { "steps": [{ "partition": 2 }] } });
    let mut world = World::on_plane(3, spec);
    world.settle();
    let before = world.set.status.as_ref().unwrap().current_revision.clone();
    world.image("app:2");
    while running(&world, "app:2") < 3 || world.pods.values().any(|pod| !pod.is_ready()) {
        world.run_rounds(1);
        let status = world.set.status.as_ref().unwrap();
        assert_eq!(status.current_revision, before, "it is not complete yet");
    }
    world.command("abort");
    world.settle();
    assert_eq!(running(&world, "app:1"), 3);
    assert_eq!(condition(&world, "Ready").1, "RolloutAborted");
}

#[test]
fn canary_that_a_partition_kept_goes_back_with_the_template() {
    for policy in ["InPlaceIfPossible", "Recreate", "Replace"] {
        let mut world = under_a_partition(json!({}), policy);
        let before = uids(&world);
        world.faults.unpullable.insert("app:2".into());
        world.image("app:2");
        world.run_rounds(40);
        assert!(running(&world, "app:2") > 0, "{policy}");
        world.image("app:1");
        world.settle();
        assert_eq!(world.images(), ["app:1"; 3], "{policy}");
        assert_eq!(condition(&world, "Ready").1, "AsWanted");
        let stay = before.intersection(&uids(&world)).count();
        assert!(stay >= 2, "{policy}: {stay}");
    }
}

/// A set whose canary has another PVC template than the other Pods, and the names of the PVCs before the update.
fn canary_with_other_pvc_template() -> (World, Vec<String>) {
    let mut world = under_a_partition(one_pvc_template(), "Recreate");
    let pvc_names = world.pvcs.keys().cloned().collect();
    let mut other = one_pvc_template();
    other["volumeClaimTemplates"][0]["metadata"]["name"] = json!("store");
    world.edit(other);
    world.image("app:2");
    world.settle();
    assert_eq!(running(&world, "app:2"), 1);
    (world, pvc_names)
}

#[test]
fn canary_with_other_pvc_template_finds_data_on_rollback() {
    for is_paused in [false, true] {
        let (mut world, pvc_names) = canary_with_other_pvc_template();
        world.edit(one_pvc_template());
        world.edit(json!({ "paused": is_paused }));
        world.image("app:1");
        world.settle();
        world.edit(json!({ "paused": false }));
        world.settle();
        assert_eq!(world.images(), ["app:1"; 3]);
        let remaining: Vec<_> = world.pvcs.keys().cloned().collect();
        assert_eq!(remaining, pvc_names);
    }
}

#[test]
fn canary_that_cannot_be_created_rolls_back_with_template() {
    for partition in [2, 3] {
        let mut world = under_a_partition(one_pvc_template(), "Recreate");
        let pvc_names: Vec<_> = world.pvcs.keys().cloned().collect();
        world.forbidden.insert("app:2".into());
        world.image("app:2");
        world.run_rounds(40);
        assert_eq!(world.images(), ["app:1"; 2]);
        let by = json!({ "byPartition": { "partition": partition } });
        world.edit(json!({ "updateStrategy": { "rollingUpdate": by } }));
        world.image("app:1");
        world.advance_time(100);
        world.settle();
        assert_eq!(world.images(), ["app:1"; 3]);
        assert_eq!(condition(&world, "Ready").1, "AsWanted");
        let remaining: Vec<_> = world.pvcs.keys().cloned().collect();
        assert_eq!(remaining, pvc_names);
    }
}

#[test]
fn canary_rolls_back_when_set_is_recreated_with_former_template() {
    for policy in ["InPlaceIfPossible", "Recreate", "Replace"] {
        let mut world = under_a_partition(one_pvc_template(), policy);
        world.faults.unpullable.insert("app:2".into());
        world.image("app:2");
        world.run_rounds(40);
        assert!(running(&world, "app:2") > 0, "{policy}");
        world.orphan_set();
        world.recreate_set();
        world.image("app:1");
        world.settle();
        assert_eq!(world.images(), ["app:1"; 3], "{policy}");
        assert_eq!(condition(&world, "Ready").1, "AsWanted", "{policy}");
    }
}

/// A set that was deleted without its Pods and created again with its former template. This happened during a canary
/// with larger volumes, or during the rollback of it. Also returns the PVCs of the former size.
fn made_again_of_the_former(goes_back: bool) -> (World, Vec<String>) {
    let mut world = under_a_partition(one_pvc_template(), "Recreate");
    let pvc_names = world.pvcs.keys().cloned().collect();
    world.edit(grown());
    world.image("app:2");
    world.settle();
    world.faults.holds = true;
    if goes_back {
        world.edit(one_pvc_template());
        world.image("app:1");
        world.run_rounds(4);
    }
    world.orphan_set();
    world.faults.holds = false;
    world.recreate_set();
    world.edit(one_pvc_template());
    world.image("app:1");
    (world, pvc_names)
}

#[test]
fn canary_rolls_back_after_orphaning_during_rollback() {
    let (mut world, pvc_names) = made_again_of_the_former(true);
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    assert!(
        pvc_names
            .iter()
            .all(|pvc_name| world.pvcs.contains_key(pvc_name))
    );
}

#[test]
fn canary_rolls_back_though_first_plan_stops_half_way() {
    for writes in 0..12 {
        let (mut world, pvc_names) = made_again_of_the_former(false);
        world.apply_plan(plan_set(&world.observe()), writes);
        world.settle();
        assert_eq!(world.images(), ["app:1"; 3], "{writes}");
        assert!(
            pvc_names
                .iter()
                .all(|pvc_name| world.pvcs.contains_key(pvc_name))
        );
    }
}

#[test]
fn finished_rollout_stays_finished_beside_included_older_pod() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let guest = name_of(&world, 2);
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [guest] } }));
    world.settle();
    world.image("app:2");
    world.settle();
    let by = json!({ "byPartition": { "partition": 3 } });
    let lists = json!({ "podToExclude": [], "podToInclude": [guest] });
    world.edit(
        json!({ "replicas": 3, "scaleStrategy": lists, "updateStrategy": { "rollingUpdate": by } }),
    );
    world.settle();
    assert_eq!(running(&world, "app:2"), 2);
    let stable = world.set.status.as_ref().unwrap().current_revision.clone();
    let pvc_names: Vec<_> = world.pvcs.keys().cloned().collect();
    world.orphan_set();
    world.recreate_set();
    world.settle();
    world.command("abort");
    world.settle();
    assert_eq!(world.set.status.as_ref().unwrap().current_revision, stable);
    assert_eq!(running(&world, "app:2"), 2);
    let remaining: Vec<_> = world.pvcs.keys().cloned().collect();
    assert_eq!(remaining, pvc_names);
}

#[test]
fn canary_rolls_back_though_kept_pod_is_terminating() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let by = json!({ "byPartition": { "partition": 1 } });
    world
        .edit(json!({ "updateStrategy": { "podUpgradePolicy": "Recreate", "rollingUpdate": by } }));
    world.image("app:2");
    world.settle();
    let mut pods = world.pods.values();
    let outdated = pods
        .find(|pod| pod.spec.containers[0].image == "app:1")
        .unwrap();
    let (outdated, pvc_name) = (outdated.metadata.clone(), outdated.spec.pvcs[0].clone());
    let slow = Kubelet {
        ends_slowly: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(outdated.uid, slow);
    world.delete(&outdated.name);
    world.orphan_set();
    world.recreate_set();
    world.image("app:1");
    world.run_rounds(20);
    world.kubelets.clear();
    world.settle();
    assert_eq!(world.images(), ["app:1"; 2]);
    assert!(world.pvcs.contains_key(&pvc_name));
}

#[test]
fn labelled_canary_that_cannot_be_created_rolls_back() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] =
        json!({ "podUpgradePolicy": "Recreate", "rollingUpdate": { "byLabel": {} } });
    let mut world = World::on_plane(3, spec);
    world.settle();
    world.relabel(&name_of(&world, 1), keys::UPDATE_INCLUDED, "true");
    world.forbidden.insert("app:2".into());
    world.image("app:2");
    world.run_rounds(40);
    assert_eq!(world.images(), ["app:1"; 2]);
    world.image("app:1");
    world.advance_time(100);
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
}

#[test]
fn older_pod_is_kept_beside_canaries_that_roll_back() {
    let mut world = World::on_plane(4, json!({}));
    world.settle();
    let by = json!({ "byPartition": { "partition": 1 } });
    world.edit(json!({ "updateStrategy": { "rollingUpdate": by } }));
    world.image("app:2");
    world.settle();
    let mut pods = world.pods.values();
    let older = pods.find(|pod| pod.spec.containers[0].image == "app:1");
    let older = older.unwrap().metadata.name.clone();
    world.relabel(&older, keys::REVISION, "web-unknown");
    take_down(&mut world, &older);
    world.image("app:1");
    for _ in 0..60 {
        world.run_rounds(1);
        assert!(!SetOperation::Update.is_in_progress(&world.pods[&older]));
    }
    assert_eq!(world.images(), ["app:1"; 4]);
}

#[test]
fn set_recreated_with_third_template_is_aborted_to_first() {
    let (mut world, pvc_names) = canary_with_other_pvc_template();
    world.orphan_set();
    world.recreate_set();
    world.image("app:3");
    world.settle();
    world.edit(one_pvc_template());
    world.image("app:1");
    world.settle();
    world.command("abort");
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    let is_kept = |pvc_name: &&String| world.pvcs.contains_key(*pvc_name);
    assert!(pvc_names.iter().filter(is_kept).count() >= 2);
}

#[test]
fn set_recreated_with_unused_template_keeps_partition() {
    let mut world = under_a_partition(one_pvc_template(), "Recreate");
    world.image("app:2");
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 0 } } } }),
    );
    world.settle();
    assert_eq!(running(&world, "app:2"), 3);
    world.orphan_set();
    world.recreate_set();
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 2 } } } }),
    );
    world.image("app:1");
    world.settle();
    assert_eq!(running(&world, "app:2"), 2);
}

#[test]
fn scale_out_works_while_failed_pod_cannot_leave() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let leaver = world.members()[&0].clone();
    let name = &leaver.metadata.name;
    world.faults.stubborn.insert(leaver.metadata.uid.clone());
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(10);
    fail(&mut world, name, 0);
    world.run_rounds(5);
    world.edit(json!({ "replicas": 4 }));
    world.run_rounds(20);
    let running = world.pods.values().filter(|pod| pod.is_available());
    assert_eq!(running.count(), 4);
    world.faults.stubborn.clear();
    world.settle();
    assert!(!world.owns(&world.pods[name]));
    assert_eq!(world.pvcs[&leaver.spec.pvcs[0]].controller, None);
}

/// A Pod and a PVC of a set with another name, and a set whose inclusion of the Pod is refused after the PVC has
/// entered.
fn half_of_another_set() -> World {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let name = name_of(&world, 1);
    let mut pod = world.pods.remove(&name).unwrap();
    let mut pvc = world.pvcs.remove(&pod.spec.pvcs[0]).unwrap();
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    (pvc.name, pvc.uid) = ("old-data-x".into(), "old-data-x".into());
    pvc.controller = None;
    (pod.metadata.name, pod.metadata.uid) = ("old-x".into(), "old-x".into());
    pod.metadata.owner_references.clear();
    pod.spec.pvcs = vec![pvc.name.clone()];
    world.pvcs.insert(pvc.name.clone(), pvc);
    world.pods.insert("old-x".into(), pod);
    world.faults.stubborn.insert("old-x".into());
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": ["old-x"] } }));
    world.run_rounds(10);
    assert!(world.pvcs["old-data-x"].controller.is_some());
    world
}

#[test]
fn pvc_returns_to_other_set_when_inclusion_is_withdrawn() {
    for replicas in [1, 2] {
        let mut world = half_of_another_set();
        let lists = json!({ "podToInclude": [] });
        world.edit(json!({ "replicas": replicas, "scaleStrategy": lists }));
        world.faults.stubborn.clear();
        world.settle();
        assert_eq!(world.pvcs["old-data-x"].controller, None);
        assert_eq!(world.members().len(), replicas);
        world.delete("old-x");
        world.settle();
        assert!(world.pvcs.contains_key("old-data-x"));
    }
}

#[test]
fn pvc_of_half_included_pod_is_unused_by_recreated_set() {
    for orphans in [false, true] {
        let mut world = World::on_plane(2, one_pvc_template());
        world.settle();
        let pod = world.members()[&1].clone();
        let (name, pvc_name) = (&pod.metadata.name, &pod.spec.pvcs[0]);
        let exclude = json!({ "podToExclude": [name] });
        world.edit(json!({ "replicas": 1, "scaleStrategy": exclude }));
        world.settle();
        world.faults.stubborn.insert(pod.metadata.uid.clone());
        let include = json!({ "podToExclude": [], "podToInclude": [name] });
        world.edit(json!({ "replicas": 2, "scaleStrategy": include }));
        world.run_rounds(10);
        assert!(world.pvcs[pvc_name].controller.is_some());
        world.edit(json!({ "scaleStrategy": { "podToInclude": [] } }));
        world.delete_set(orphans);
        while !world.is_deleted {
            world.run_rounds(1);
        }
        world.faults.stubborn.clear();
        world.recreate_set();
        world.settle();
        assert_eq!(world.members().len(), 2, "{orphans}");
        assert_eq!(world.pvcs[pvc_name].controller, None, "{orphans}");
    }
}

#[test]
fn instance_name_held_outside_blocks_no_rollout() {
    let mut spec = one_pvc_template();
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate" });
    let mut world = World::on_plane(3, spec);
    world.settle();
    world.relabel("web-0", "app", "debug");
    world.image("app:2");
    world.run_rounds(60);
    let of = |name: &str| &world.pods[name].spec.containers[0].image;
    assert_eq!(["web-1", "web-2"].map(of), ["app:2"; 2]);
}

#[test]
fn pod_with_persistent_name_returns_with_data_and_labels() {
    let mut spec = one_pvc_template();
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = World::on_plane(2, spec);
    world.settle();
    let (before, pvc_count) = (uids(&world), world.pvcs.len());
    world.relabel("web-1", "app", "debug");
    world.run_rounds(20);
    assert!(!world.owns(&world.pods["web-1"]));
    let message = condition(&world, "Ready").2;
    let expected = "Pod web-1 has the name of instance ID 1 and does not belong to this CollaSet: change its labels so \
        that spec.selector matches it again";
    assert!(message.contains(expected), "{message}");
    world.relabel("web-1", "app", "web");
    world.settle();
    assert_eq!((uids(&world), world.pvcs.len()), (before, pvc_count));
    let pvc = &world.pvcs[&world.pods["web-1"].spec.pvcs[0]];
    assert!(pvc.controller.is_some());
    assert!(!pvc.labels.contains_key(keys::ORPHANED));
}

#[test]
fn set_recreated_during_canary_keeps_its_partition() {
    for policy in ["InPlaceIfPossible", "Recreate", "Replace"] {
        let mut world = under_a_partition(one_pvc_template(), policy);
        world.image("app:2");
        world.settle();
        assert_eq!(running(&world, "app:2"), 1);
        let before = uids(&world);
        world.orphan_set();
        world.recreate_set();
        world.settle();
        assert_eq!((uids(&world), running(&world, "app:1")), (before, 2));
    }
}

#[test]
fn included_older_pod_is_kept_by_idle_partition() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let pod = world.members()[&2].clone();
    let name = &pod.metadata.name;
    let exclude = json!({ "podToExclude": [name] });
    world.edit(json!({ "replicas": 2, "scaleStrategy": exclude }));
    world.settle();
    world.image("app:2");
    world.advance_time(10);
    world.settle();
    let by = json!({ "byPartition": { "partition": 3 } });
    let include = json!({ "podToExclude": [], "podToInclude": [name] });
    world.edit(json!({
        "replicas": 3,
        "updateStrategy": { "rollingUpdate": by },
        "scaleStrategy": include,
    }));
    world.settle();
    assert!(world.owns(&world.pods[name]));
    assert_eq!(world.pods[name].spec.containers[0].image, "app:1");
}

#[test]
fn foreign_pvc_is_not_adopted_beside_existing_one() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let own = world.members()[&1].spec.pvcs.clone();
    let mut other = world.pvcs[&own[0]].clone();
    (other.name, other.uid) = ("web-data-0".into(), "other".into());
    other.controller = None;
    world.pvcs.insert(other.name.clone(), other);
    world.settle();
    assert_eq!(world.pvcs["web-data-0"].controller, None);
    world.delete(&name_of(&world, 1));
    world.settle();
    assert_eq!(world.members()[&1].spec.pvcs, own);
}

#[test]
fn relabelled_pod_stays_outside_with_data_after_scale_in() {
    for suffix in ["Random", "PersistentSequence"] {
        let mut spec = one_pvc_template();
        spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": suffix });
        let mut world = World::on_plane(2, spec);
        world.settle();
        let pod = world.members()[&1].clone();
        let (name, pvc_name) = (&pod.metadata.name, &pod.spec.pvcs[0]);
        for app in ["debug", "web"] {
            world.relabel(name, "app", app);
            world.run_rounds(20);
            world.edit(json!({ "replicas": 1 }));
            world.settle();
        }
        assert!(world.pods.contains_key(name), "{suffix}");
        assert!(world.pvcs.contains_key(pvc_name), "{suffix}");
        // When the instance is wanted again, it comes back to the Pod and its PVC.
        world.edit(json!({ "replicas": 2 }));
        world.settle();
        assert!(world.owns(&world.pods[name]), "{suffix}");
    }
}

#[test]
fn no_pvcs_are_created_for_name_of_failed_outside_pod() {
    let mut spec = one_pvc_template();
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = World::on_plane(2, spec);
    world.settle();
    let pvc_names: Vec<_> = world.pvcs.keys().cloned().collect();
    for (app, fails) in [("debug", true), ("web", false)] {
        world.relabel("web-1", "app", app);
        world.run_rounds(10);
        if fails {
            fail(&mut world, "web-1", 0);
            world.run_rounds(10);
        }
    }
    world.advance_time(1_000);
    world.settle();
    assert_eq!(world.pvcs.keys().cloned().collect::<Vec<_>>(), pvc_names);
    assert!(world.pods["web-1"].is_available());
}

#[test]
fn partitioned_instance_is_recreated_with_its_own_revision() {
    let mut world = under_a_partition(one_pvc_template(), "Recreate");
    world.image("app:2");
    world.settle();
    assert_eq!(running(&world, "app:1"), 2);
    // Another implementation may have left such a status: it advances the current revision while a partition keeps
    // Pods.
    let status = world.set.status.as_mut().unwrap();
    status.current_revision = status.updated_revision.clone();
    let pvc_names: Vec<_> = world.pvcs.keys().cloned().collect();
    let mut pods = world.pods.values();
    let lost = pods.find(|pod| pod.spec.containers[0].image == "app:1");
    let lost = lost.unwrap().metadata.name.clone();
    world.delete(&lost);
    world.settle();
    assert_eq!(running(&world, "app:1"), 2);
    assert_eq!(world.pvcs.keys().cloned().collect::<Vec<_>>(), pvc_names);
}

#[test]
fn pod_serves_while_its_pvc_cannot_leave() {
    let strategy = json!({ "podUpgradePolicy": "Recreate" });
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = strategy;
    let mut world = World::on_plane(2, spec);
    world.settle();
    let is_off = |pod: &Pod| SetOperation::Update.is_in_progress(pod) && !pod.is_available();
    world.image("app:2");
    while !world.pods.values().any(is_off) {
        world.run_plan();
    }
    let pod = world.pods.values().find(|pod| is_off(pod)).unwrap();
    let name = pod.metadata.name.clone();
    world.faults.refused.insert(WriteKind::PvcWrite);
    world.relabel(&name, "app", "debug");
    world.run_rounds(20);
    assert!(world.owns(&world.pods[&name]));
    assert!(world.pods[&name].is_available());
}

#[test]
fn former_pvc_of_canary_survives_recreation_of_set() {
    for replicas in [3, 0] {
        let mut world = under_a_partition(one_pvc_template(), "Recreate");
        world.edit(grown());
        world.settle();
        assert_eq!(world.pvcs.len(), 4);
        world.orphan_set();
        world.recreate_set();
        world.settle();
        assert_eq!(world.pvcs.len(), 4, "the former PVCs are kept");
        let all = json!({ "byPartition": { "partition": 0 } });
        world.edit(json!({ "replicas": replicas, "updateStrategy": { "rollingUpdate": all } }));
        world.settle();
        let own = world.pvcs.values().filter(|pvc| pvc.controller.is_some());
        assert_eq!(own.count(), replicas);
        assert!(
            world.pvcs.len() > replicas,
            "nobody was warned of a deletion"
        );
    }
}

#[test]
fn reselected_pod_without_missing_instance_is_reported() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let name = name_of(&world, 1);
    for app in ["debug", "web"] {
        world.relabel(&name, "app", app);
        world.settle();
    }
    assert!(!world.owns(&world.pods[&name]));
    let pvc_names = world.pods[&name].spec.pvcs.join(", ");
    let expected = format!(
        "Pod {name} matches spec.selector and is not adopted, because its instance ID is not free: name it in \
         podToInclude and add a replica, or delete it if nobody needs the data in its PVCs ({pvc_names})"
    );
    let mut events = world.events.iter();
    assert!(events.any(|(_, message)| *message == expected));
}
