//! What the walks found, one case each.

use std::collections::BTreeSet;

use serde_json::json;

use super::cases::{one_claim, settled};
use super::world::{Kubelet, World, Write};
use crate::api::collaset::CollaSetCondition;
use crate::api::keys::{self, Family};

fn condition(world: &World, type_: &str) -> CollaSetCondition {
    let status = world.set.status.clone().unwrap();
    let mut conditions = status.conditions.into_iter();
    conditions.find(|c| c.type_ == type_).unwrap()
}

#[test]
fn conditions_are_not_true_while_pods_are_scaled_or_updated() {
    let mut world = settled(2, json!({}));
    let reason = |world: &World, type_: &str| {
        let condition = condition(world, type_);
        (condition.status, condition.reason)
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    world.edit(json!({ "replicas": 3 }));
    world.step();
    assert_eq!(reason(&world, "Scale"), is("False", "Scaling"));
    assert_eq!(reason(&world, "Update"), is("True", "Updated"));
    world.settle();
    world.image("app:2");
    world.step();
    assert_eq!(reason(&world, "Scale"), is("True", "Scaled"));
    assert_eq!(reason(&world, "Update"), is("False", "Updating"));
    world.settle();
    assert_eq!(reason(&world, "Update"), is("True", "Updated"));
}

fn name_of(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

fn label(world: &mut World, name: &str, key: &str, value: Option<&str>) {
    let labels = &mut world.pods.get_mut(name).unwrap().metadata.labels;
    match value {
        Some(value) => labels.insert(key.to_owned(), value.to_owned()),
        None => labels.remove(key),
    };
}

fn is_available(world: &World, name: &str) -> bool {
    world.pods[name].is_available()
}

#[test]
fn pod_that_loses_its_id_gets_it_back_and_no_double() {
    let mut world = settled(3, json!({}));
    let name = name_of(&world, 1);
    label(&mut world, &name, keys::INSTANCE_ID, None);
    world.rest();
    assert_eq!(world.pods.len(), 3);
    assert_eq!(name_of(&world, 1), name);
}

#[test]
fn pod_without_an_id_holds_it_while_its_label_is_refused() {
    let mut world = settled(3, json!({}));
    let name = name_of(&world, 1);
    label(&mut world, &name, keys::INSTANCE_ID, None);
    let uid = world.pods[&name].metadata.uid.clone();
    world.troubles.stubborn.insert(uid);
    world.settle();
    assert_eq!(world.pods.len(), 3);
    world.edit(json!({ "replicas": 4 }));
    world.settle();
    assert_eq!(world.pods.len(), 4);
    world.troubles.stubborn.clear();
    world.settle();
    assert_eq!(world.ids(), [0, 1, 2, 3]);
}

#[test]
fn new_half_of_a_pod_that_is_scaled_in_is_not_made_again() {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = World::on_plane(1, replace);
    world.settle();
    let uid = world.pods.values().next().unwrap().metadata.uid.clone();
    let slow = Kubelet {
        is_slow: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(uid, slow);
    world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
    for _ in 0..3 {
        world.step();
    }
    assert_eq!(world.pods.len(), 2);
    world.edit(json!({ "replicas": 0 }));
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        world.step();
        world.turn(u8::MAX);
        seen.extend(world.pods.keys().cloned());
    }
    assert_eq!(seen.len(), 2, "the new half goes and stays away");
}
