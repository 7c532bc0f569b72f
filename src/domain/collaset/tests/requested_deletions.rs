//! Pods whose deletion is requested while a rule holds them: the set withdraws the request when its reason is gone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::reconcile::{condition, one_pvc_template};
use super::world::{Kubelet, World};
use crate::api::keys;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

fn is_available(world: &World, name: &str) -> bool {
    world.pods.get(name).is_some_and(|pod| pod.is_available())
}

/// A set whose first Pod will be deleted and waits for a rule.
fn held_from_deletion() -> (World, String) {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    world.faults.holds = true;
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
    world.settle();
    assert!(world.pods[&name].label(keys::TO_DELETE).is_some());
    (world, name)
}

#[test]
fn pending_deletion_makes_set_not_ready_with_reason() {
    let (mut world, name) = held_from_deletion();
    let uid = world.pods[&name].metadata.uid.clone();
    let rules = ["PodTransitionRule a", "rule b of PodTransitionRule c: no"];
    world.held.insert(uid, rules.map(String::from).to_vec());
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "Deleting"));
    let expected = format!(
        "Pod {name} will be deleted and waits for PodTransitionRule a, and for rule b of PodTransitionRule c: no"
    );
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn deletion_by_name_is_taken_back_with_the_name() {
    let (mut world, name) = held_from_deletion();
    world.edit(json!({ "scaleStrategy": { "podToDelete": [] }, "paused": true }));
    world.settle();
    world.faults.holds = false;
    world.settle();
    assert!(world.pods.contains_key(&name));
    world.edit(json!({ "paused": false }));
    world.settle();
    assert!(world.pods.contains_key(&name));
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn user_deletion_is_not_withdrawn_by_set() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    world.faults.holds = true;
    world.write_pod(&name, |pod| {
        let time = "1700000000000000000".to_owned();
        pod.metadata.labels.insert(keys::TO_DELETE.into(), time);
    });
    world.settle();
    assert!(world.pods[&name].label(keys::TO_DELETE).is_some());
    assert_eq!(condition(&world, "Ready").1, "Deleting");
    world.faults.holds = false;
    world.settle();
    assert!(!world.pods.contains_key(&name));
}

#[test]
fn excluded_pod_no_longer_to_delete_leaves() {
    let (mut world, name) = held_from_deletion();
    world.edit(json!({ "scaleStrategy": { "podToDelete": [], "podToExclude": [name] } }));
    world.settle();
    assert!(!world.owns(&world.pods[&name]));
}

/// A set whose origins wait for a rule while their new Pods serve.
fn held_replacement() -> (World, Vec<String>) {
    held_replacement_of(json!({}))
}

fn held_replacement_of(mut spec: Value) -> (World, Vec<String>) {
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Replace" });
    let mut world = World::on_plane(2, spec);
    world.settle();
    let origins: Vec<String> = world.pods.keys().cloned().collect();
    world.faults.holds = true;
    world.image("app:2");
    world.settle();
    let is_requested = |name: &String| world.pods[name].label(keys::TO_DELETE).is_some();
    assert!(origins.iter().all(is_requested));
    (world, origins)
}

#[test]
fn aborted_replacement_goes_back_although_a_rule_holds_the_origins() {
    for abort in [true, false] {
        let (mut world, origins) = held_replacement();
        match abort {
            true => world.command("abort"),
            false => world.image("app:1"),
        }
        world.settle();
        world.faults.holds = false;
        world.settle();
        assert!(origins.iter().all(|name| is_available(&world, name)));
        assert_eq!(world.images(), ["app:1"; 2]);
    }
}

#[test]
fn origin_stays_while_its_replacement_is_down() {
    let (mut world, origins) = held_replacement();
    let halves = world
        .pods
        .values_mut()
        .filter(|pod| !origins.contains(&pod.metadata.name));
    let mut uids = Vec::new();
    for half in halves {
        half.status.conditions.retain(|c| c.type_ != "Ready");
        half.metadata.labels.remove(keys::SERVICE_AVAILABLE);
        uids.push(half.metadata.uid.clone());
    }
    for uid in uids {
        let slow = Kubelet {
            is_slow: true,
            ..Kubelet::default()
        };
        world.kubelets.insert(uid, slow);
    }
    world.settle();
    world.faults.holds = false;
    world.settle();
    assert!(origins.iter().all(|name| is_available(&world, name)));
    world.kubelets.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 2]);
    assert_eq!(condition(&world, "Ready").0, "True");
}

/// Takes a Pod out of the set, as `kubectl label --overwrite` does.
fn quarantine(world: &mut World, name: &str) {
    let app = |pod: &mut Pod| pod.metadata.labels.insert("app".into(), "debug".into());
    assert!(world.write_pod(name, |pod| {
        app(pod);
    }));
    world.settle();
    assert!(!world.owns(&world.pods[name]));
}

#[test]
fn pod_removed_by_labels_is_no_longer_deleted() {
    let (mut world, name) = held_from_deletion();
    quarantine(&mut world, &name);
    assert_eq!(world.pods[&name].annotation(keys::SENT_AWAY), None);
    let (mut other, origins) = held_replacement();
    quarantine(&mut other, &origins[0]);
    for (mut world, name) in [(world, &name), (other, &origins[0])] {
        world.faults.holds = false;
        world.settle();
        assert!(is_available(&world, name));
    }
}

#[test]
fn orphans_of_deleted_set_lose_deletion_request() {
    let (mut world, name) = held_from_deletion();
    world.delete_set(true);
    for _ in 0..20 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    assert!(world.is_deleted);
    world.faults.holds = false;
    for _ in 0..20 {
        world.run_pods(u8::MAX);
    }
    assert!(is_available(&world, &name));
    assert_eq!(world.pods.len(), 3);
}

/// Deletes a Pod as a user does under GraceDelete.
fn kubectl_delete(world: &mut World, name: &str) {
    let request = grace_delete::deletion_request_metadata(
        &world.pods[name],
        &Default::default(),
        world.now(),
    )
    .unwrap();
    world.write_pod(name, |pod| {
        let metadata = &mut pod.metadata;
        let merge = |into: &mut BTreeMap<String, String>, field: &str| {
            for (key, value) in request[field].as_object().into_iter().flatten() {
                into.insert(key.clone(), value.as_str().unwrap().to_owned());
            }
        };
        merge(&mut metadata.labels, "labels");
        merge(&mut metadata.annotations, "annotations");
    });
}

#[test]
fn user_deletion_survives_withdrawal_by_set() {
    let (mut world, name) = held_from_deletion();
    kubectl_delete(&mut world, &name);
    world.edit(json!({ "scaleStrategy": { "podToDelete": [] } }));
    world.settle();
    assert!(world.pods[&name].label(keys::TO_DELETE).is_some());
    world.faults.holds = false;
    world.settle();
    assert!(!world.pods.contains_key(&name));
}

#[test]
fn earlier_withdrawn_user_deletion_does_not_bind_set() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    world.faults.holds = true;
    kubectl_delete(&mut world, &name);
    world.settle();
    world.write_pod(&name, |pod| {
        pod.metadata.labels.remove(keys::TO_DELETE);
    });
    world.settle();
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
    world.settle();
    assert!(world.pods[&name].label(keys::TO_DELETE).is_some());
    world.edit(json!({ "scaleStrategy": { "podToDelete": [] } }));
    world.settle();
    assert_eq!(world.pods[&name].label(keys::TO_DELETE), None);
}

/// Excludes a Pod by its label or by its name.
fn exclude(world: &mut World, name: &str, by_label: bool) {
    if by_label {
        world.write_pod(name, |pod| {
            let labels = &mut pod.metadata.labels;
            labels.insert(keys::TO_EXCLUDE.into(), "true".into());
        });
    } else {
        world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    }
    world.settle();
}

/// Checks that the Pod is out of the set and serves, and that the rollout has ended without it.
fn has_left_alive(world: &World, name: &str) {
    assert!(is_available(world, name));
    let pod = &world.pods[name];
    assert!(!world.owns(pod));
    let removed_keys = [keys::TO_DELETE, keys::TO_REPLACE, keys::REPLACE_PAIR_NEW_ID];
    assert!(
        removed_keys.iter().all(|key| pod.label(key).is_none()),
        "{pod:?}"
    );
    assert_eq!(world.images(), ["app:2"; 2]);
    assert_eq!(world.pods.len(), 3);
    assert_eq!(condition(world, "Ready").0, "True");
}

#[test]
fn excluded_origin_stays_alive_and_new_half_replaces_it() {
    for spec in [json!({}), one_pvc_template()] {
        for by_label in [false, true] {
            let (mut world, origins) = held_replacement_of(spec.clone());
            exclude(&mut world, &origins[0], by_label);
            assert!(!world.owns(&world.pods[&origins[0]]), "a rule holds it");
            world.faults.holds = false;
            world.settle();
            has_left_alive(&world, &origins[0]);
        }
    }
}

/// A set that replaces its Pods by Pods whose image cannot be pulled, and the name of one of its origins.
fn stuck_replacement(replicas: i32) -> (World, String) {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = World::on_plane(replicas, replace);
    world.settle();
    let origin = world.pods.keys().next().unwrap().clone();
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    world.settle();
    (world, origin)
}

#[test]
fn previously_excluded_origin_leaves_once_new_half_serves() {
    let (mut world, name) = stuck_replacement(2);
    exclude(&mut world, &name, false);
    assert!(world.owns(&world.pods[&name]), "its pair is open");
    world.faults.unpullable.clear();
    world.settle();
    has_left_alive(&world, &name);
}

#[test]
fn exclusion_of_new_half_waits_for_pair_and_is_reported() {
    let (mut world, origins) = held_replacement();
    let mut pods = world.pods.values();
    let half = pods.find(|pod| pod.label(keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&origins[0]));
    let half = half.unwrap().metadata.name.clone();
    world.events.clear();
    exclude(&mut world, &half, false);
    assert!(world.owns(&world.pods[&half]), "its pair is open");
    let expected = format!(
        "Pod {half} is excluded once it has taken the place of Pod {}",
        origins[0]
    );
    let message = condition(&world, "Ready").2;
    assert!(message.contains(&expected), "{message}");
    assert!(world.events.contains(&("ExcludeLater", expected)));
    world.faults.holds = false;
    world.settle();
    has_left_alive(&world, &half);
}

#[test]
fn refused_exclusion_of_origin_keeps_its_pair() {
    let (mut world, origins) = held_replacement();
    let uid = world.pods[&origins[0]].metadata.uid.clone();
    world.faults.stubborn.insert(uid);
    exclude(&mut world, &origins[0], false);
    assert!(world.owns(&world.pods[&origins[0]]));
    let is_half = |pod: &&Pod| pod.label(keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&origins[0]);
    assert_eq!(world.pods.values().filter(is_half).count(), 1);
    world.faults.stubborn.clear();
    world.wait(100);
    world.settle();
    world.faults.holds = false;
    world.settle();
    has_left_alive(&world, &origins[0]);
}

#[test]
fn new_half_to_exclude_is_named_while_stuck() {
    let (mut world, origin) = stuck_replacement(1);
    let half = world.pods.keys().find(|name| **name != origin);
    let half = half.unwrap().clone();
    exclude(&mut world, &half, false);
    let later = format!("Pod {half} is excluded once it has taken the place of Pod {origin}");
    let (_, reason, message) = condition(&world, "Ready");
    assert_eq!(reason, "UpdateFailed");
    assert!(message.contains(&later), "{message}");
    assert!(world.events.contains(&("ExcludeLater", later)));
    world.events.clear();
    world.image("app:3");
    world.settle();
    assert!(!world.pods.contains_key(&half));
    let messages = world
        .events
        .iter()
        .filter(|(reason, _)| *reason == "ExcludeNotAllowed");
    let messages: Vec<_> = messages
        .filter(|(_, message)| message.contains(&half))
        .collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
}
