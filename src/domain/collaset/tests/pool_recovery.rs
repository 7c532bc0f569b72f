//! Instance IDs and their records in the pool: retained volumes, deletions by name, and a lost pool.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::reconcile::{condition, one_pvc_template, settled};
use super::world::{Kubelet, World, WriteKind};
use crate::api::keys;
use crate::domain::collaset::planner::plan_set;

fn sequence() -> Value {
    json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } })
}

fn replace() -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } })
}

fn uid(world: &World, name: &str) -> String {
    world.pods[name].metadata.uid.clone()
}

/// Names a Pod in `podToDelete`.
fn delete_by_name(world: &mut World, name: &str) {
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
}

fn label(world: &mut World, name: &str, key: &str, value: &str) {
    let labels = &mut world.pods.get_mut(name).unwrap().metadata.labels;
    labels.insert(key.into(), value.into());
}

/// A set that was scaled in and retained the volumes. Returns the names of the retained PVCs, and a Pod of the set.
fn with_retained_volumes(spec: Value) -> (World, BTreeSet<String>, String) {
    let mut all = one_pvc_template();
    all["scaleStrategy"] =
        json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Retain" } });
    json_patch::merge(&mut all, &spec);
    let mut world = settled(5, all);
    world.edit(json!({ "replicas": 3 }));
    world.settle();
    let of = |id: &String| ["3", "4"].contains(&id.as_str());
    let pvcs = world.pvcs.values();
    let retained = pvcs.filter(|pvc| of(&pvc.labels[keys::INSTANCE_ID]));
    let retained: BTreeSet<String> = retained.map(|pvc| pvc.name.clone()).collect();
    assert_eq!(retained.len(), 2);
    let name = world.members()[&0].metadata.name.clone();
    (world, retained, name)
}

fn are_untouched(world: &World, retained: &BTreeSet<String>) -> bool {
    let mut mounted = world.pods.values().flat_map(|pod| &pod.spec.pvcs);
    !mounted.any(|pvc_name| retained.contains(pvc_name))
        && retained
            .iter()
            .all(|pvc_name| world.pvcs.contains_key(pvc_name))
}

#[test]
fn replacement_leaves_volumes_of_scaled_in_instances_alone() {
    for taken_back in [true, false] {
        let (mut world, retained, name) = with_retained_volumes(json!({}));
        label(&mut world, &name, keys::TO_REPLACE, "true");
        for _ in 0..3 {
            world.run_plan();
        }
        assert_eq!(world.members().len(), 4);
        assert!(are_untouched(&world, &retained));
        if taken_back {
            let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
            labels.remove(keys::TO_REPLACE);
        }
        world.settle();
        assert_eq!(world.pods.contains_key(&name), taken_back);
        assert!(are_untouched(&world, &retained));
        assert_eq!(world.pvcs.len(), 5);
        // The next instances mount the retained volumes again.
        world.edit(json!({ "replicas": 6 }));
        world.settle();
        let mounted = world.pods.values().flat_map(|pod| pod.spec.pvcs.clone());
        assert!(retained.is_subset(&mounted.collect()));
    }
}

#[test]
fn aborted_rollout_by_replace_keeps_retained_volumes() {
    let (mut world, retained, _) = with_retained_volumes(replace());
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    world.run_plan();
    world.run_plan();
    world.command("abort");
    world.settle();
    assert!(are_untouched(&world, &retained));
    assert_eq!(world.images(), ["app:1"; 3]);
}

#[test]
fn replacement_leaves_volumes_alone_that_a_former_set_retained() {
    let (mut world, retained, name) = with_retained_volumes(json!({}));
    for pvc_name in &retained {
        world.pvcs.get_mut(pvc_name).unwrap().controller = None;
    }
    label(&mut world, &name, keys::TO_REPLACE, "true");
    world.settle();
    assert!(!world.pods.contains_key(&name));
    assert!(are_untouched(&world, &retained));
}

#[test]
fn pod_that_is_included_gets_no_id_with_retained_volumes() {
    let (mut world, _, name) = with_retained_volumes(json!({}));
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [] } }));
    world.settle(); // another Pod gets its ID
    let own = world.pods[&name].spec.pvcs.clone();
    world.edit(json!({ "replicas": 4, "scaleStrategy": { "podToInclude": [name] } }));
    world.settle();
    let id = world.pods[&name]
        .label(keys::INSTANCE_ID)
        .unwrap()
        .to_owned();
    assert!(!["3", "4"].contains(&&*id), "{id}");
    world.delete(&name);
    world.settle();
    let again = &world.members()[&id.parse().unwrap()].spec.pvcs;
    assert_eq!(again, &own);
}

#[test]
fn deletion_by_name_outlasts_a_death_after_the_pool() {
    let mut world = World::on_plane(3, sequence());
    world.settle();
    let before = uid(&world, "web-1");
    delete_by_name(&mut world, "web-1");
    let plan = plan_set(&world.observe());
    assert!(plan.pool.is_some());
    world.apply_plan(plan, 1);
    world.settle();
    let after = uid(&world, "web-1");
    assert_ne!(after, before);
    world.edit(json!({ "minReadySeconds": 1 }));
    world.settle();
    assert_eq!(uid(&world, "web-1"), after, "once is enough");
}

#[test]
fn deletion_by_name_outlasts_a_refusal() {
    let mut world = World::on_plane(3, sequence());
    world.settle();
    let before = uid(&world, "web-1");
    world.faults.refused.insert(WriteKind::PodPatch);
    delete_by_name(&mut world, "web-1");
    for _ in 0..10 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    world.faults.refused.clear();
    world.wait(100);
    world.settle();
    assert_ne!(uid(&world, "web-1"), before);
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn deletion_by_name_outlasts_a_pause() {
    for naming in [json!({}), sequence()] {
        let mut world = World::on_plane(3, naming);
        world.settle();
        let name = world.members()[&1].metadata.name.clone();
        let before = uid(&world, &name);
        world.faults.holds = true;
        delete_by_name(&mut world, &name);
        world.settle();
        world.edit(json!({ "paused": true }));
        world.settle();
        assert!(world.pods[&name].label(keys::TO_DELETE).is_none());
        world.faults.holds = false;
        world.settle();
        assert_eq!(uid(&world, &name), before);
        world.edit(json!({ "paused": false }));
        world.settle();
        let all = world.pods.values().map(|pod| &pod.metadata.uid);
        assert!(!all.collect::<Vec<_>>().contains(&&before));
    }
}

/// Older versions recorded the name of the Pod.
#[test]
fn deletion_that_is_noted_by_name_is_done() {
    let mut world = World::on_plane(2, sequence());
    world.settle();
    let before = uid(&world, "web-1");
    let entries = &mut world.pool.as_mut().unwrap().contexts;
    let data = &mut entries.iter_mut().find(|c| c.id == 1).unwrap().data;
    data.insert("PodToDelete".into(), "web-1".into());
    delete_by_name(&mut world, "web-1");
    world.settle();
    assert_eq!(uid(&world, "web-1"), before);
}

#[test]
fn pod_that_was_scaled_in_by_name_comes_back_once() {
    let mut world = World::on_plane(3, sequence());
    world.settle();
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToDelete": ["web-0"] } }));
    world.settle();
    assert_eq!(world.ids(), [1, 2]);
    world.edit(json!({ "replicas": 3 }));
    let mut uids = BTreeSet::new();
    for _ in 0..60 {
        world.run_plan();
        world.run_pods(u8::MAX);
        uids.extend(world.pods.get("web-0").map(|pod| pod.metadata.uid.clone()));
    }
    assert_eq!(uids.len(), 1);
    assert_eq!(condition(&world, "Ready").0, "True");
    // If the list names the Pod again, the Pod is deleted.
    delete_by_name(&mut world, "");
    world.settle();
    delete_by_name(&mut world, "web-0");
    world.settle();
    assert!(!uids.contains(&uid(&world, "web-0")));
}

#[test]
fn lost_pool_recovers_instance_of_ended_pod() {
    let mut world = settled(3, one_pvc_template());
    let pod = world.members()[&0].clone();
    let name = &pod.metadata.name;
    world.pods.get_mut(name).unwrap().status.phase = "Failed".into();
    let until = world.now() + 600_000_000_000;
    world.ended_until.insert(pod.metadata.uid.clone(), until);
    world.settle();
    world.pool = None;
    world.settle();
    world.wait(700);
    world.settle();
    assert_eq!(world.ids(), [0, 1, 2]);
    assert!(world.pvcs.contains_key(&pod.spec.pvcs[0]));
}

#[test]
fn lost_pool_recovers_instance_of_terminating_pod() {
    for naming in [json!({}), sequence()] {
        let mut spec = one_pvc_template();
        json_patch::merge(&mut spec, &naming);
        let mut world = settled(3, spec);
        let pod = world.members()[&1].clone();
        world.delete(&pod.metadata.name);
        world.pool = None;
        for _ in 0..6 {
            world.run_plan(); // the Pod takes its time to end
        }
        world.settle();
        assert_eq!(world.ids(), [0, 1, 2]);
        assert_eq!(world.members()[&1].spec.pvcs, pod.spec.pvcs);
    }
}

#[test]
fn lost_pool_brings_no_pod_back_that_was_scaled_in() {
    let mut spec = one_pvc_template();
    json_patch::merge(&mut spec, &sequence());
    let mut world = settled(3, spec);
    world.edit(json!({ "replicas": 2 }));
    world.run_plan();
    while !world.pods["web-2"].is_terminating() {
        world.step_surroundings();
        world.run_plan();
    }
    world.pool = None;
    for _ in 0..3 {
        world.run_plan();
    }
    let entries = &world.pool.as_ref().unwrap().contexts;
    assert_eq!(entries.len(), 2);
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
    assert_eq!(world.pvcs.len(), 2);
}

#[test]
fn held_origins_are_not_replaced_by_a_revision_nobody_wants() {
    let mut world = World::on_plane(2, replace());
    world.settle();
    let origins: Vec<String> = world.pods.keys().cloned().collect();
    world.faults.holds = true;
    world.image("app:2");
    world.settle();
    world.image("app:3");
    world.settle();
    world.faults.holds = false;
    let serves = |world: &World, name: &String| {
        let pod = world.pods.get(name);
        pod.is_some_and(|pod| pod.is_available())
    };
    for _ in 0..100 {
        let busy = world.run_plan();
        if world.images().contains(&"app:2") {
            assert!(origins.iter().all(|name| serves(&world, name)));
        }
        if !world.run_pods(u8::MAX) && !busy {
            break;
        }
    }
    assert_eq!(world.images(), ["app:3"; 2]);
}

#[test]
fn pod_whose_deletion_is_held_ends_its_update() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    let uid = uid(&world, &name);
    world.image("app:2");
    while world.pods[&name].spec.containers[0].image != "app:2" {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    let slow = Kubelet {
        is_slow: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(uid.clone(), slow);
    world.faults.holds = true;
    delete_by_name(&mut world, &name);
    for _ in 0..10 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    world.kubelets.clear();
    world.settle();
    let pod = &world.pods[&name];
    assert_eq!(pod.metadata.uid, uid);
    assert!(pod.label(keys::TO_DELETE).is_some());
    assert!(pod.is_available(), "{:?}", pod.metadata.labels);
    world.faults.holds = false;
    world.settle();
    assert!(world.pods.values().all(|pod| pod.metadata.uid != uid));
}

#[test]
fn new_half_that_is_named_is_deleted_and_made_again() {
    for naming in [json!({}), sequence()] {
        let mut spec = replace();
        json_patch::merge(&mut spec, &naming);
        let mut world = World::on_plane(1, spec);
        world.settle();
        let origin = world.pods.keys().next().unwrap().clone();
        world.faults.unpullable.insert("app:2".into());
        world.image("app:2");
        world.settle();
        let half = world.pods.keys().find(|name| **name != origin).unwrap();
        let (half, before) = (half.clone(), uid(&world, half));
        delete_by_name(&mut world, &half);
        world.settle();
        let all: BTreeSet<String> = world
            .pods
            .values()
            .map(|p| p.metadata.uid.clone())
            .collect();
        assert!(!all.contains(&before));
        assert_eq!(world.pods.len(), 2);
        world.faults.unpullable.clear();
        world.settle();
        assert_eq!(world.pods.len(), 1);
        let last = world.pods.values().next().unwrap();
        assert!(all.contains(&last.metadata.uid), "healthy and deleted");
        assert_eq!(condition(&world, "Ready").0, "True");
    }
}
