//! What is wanted in one edit, in one plan: bounds hold across its steps, and the conditions speak of what the plan does.

use serde_json::{Value, json};

use super::world::World;
use crate::api::keys::{self, Family};

fn name_of(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

/// Available Pods that nothing takes away, the fewest on the way to rest.
fn fewest_staying(world: &mut World) -> usize {
    let operating = Family::Operating.key("collaset");
    let mut fewest = usize::MAX;
    for _ in 0..80 {
        world.step();
        let pods = world.pods.values().filter(|pod| pod.is_available());
        let goes = [operating.as_str(), keys::TO_DELETE];
        let staying = pods.filter(|pod| goes.iter().all(|key| pod.label(key).is_none()));
        fewest = fewest.min(staying.count());
        world.turn(u8::MAX);
    }
    fewest
}

fn one_down(policy: &str) -> World {
    let strategy = json!({ "podUpgradePolicy": policy, "maxUnavailable": 1 });
    let mut world = World::on_plane(3, json!({ "updateStrategy": strategy }));
    world.settle();
    world
}

fn image(image: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "app", "image": image }] } })
}

#[test]
fn scale_in_and_update_of_one_edit_keep_to_max_unavailable() {
    for policy in ["InPlaceIfPossible", "Recreate"] {
        let mut world = one_down(policy);
        let oldest = name_of(&world, 0);
        let strategy = json!({ "podToDelete": [oldest] });
        world.edit(json!({ "replicas": 2, "scaleStrategy": strategy, "template": image("app:2") }));
        assert_eq!(fewest_staying(&mut world), 1, "{policy}");
        assert_eq!(world.images(), ["app:2"; 2]);
        assert!(!world.pods.contains_key(&oldest));
    }
}

#[test]
fn scale_in_by_cost_and_update_of_one_edit_keep_to_max_unavailable() {
    let mut world = one_down("InPlaceIfPossible");
    let cheapest = name_of(&world, 0);
    world.write_pod(&cheapest, |pod| {
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(keys::DELETION_COST.into(), "-5".into());
    });
    world.edit(json!({ "replicas": 2, "template": image("app:2") }));
    assert_eq!(fewest_staying(&mut world), 1);
    assert!(!world.pods.contains_key(&cheapest));
}

#[test]
fn deletion_by_name_and_update_of_one_edit_keep_to_max_unavailable() {
    for id in 0..3 {
        let mut world = one_down("InPlaceIfPossible");
        let named = name_of(&world, id);
        world.edit(json!({ "scaleStrategy": { "podToDelete": [named] } }));
        world.image("app:2");
        assert_eq!(fewest_staying(&mut world), 2, "{id}");
        assert_eq!(world.images(), ["app:2"; 3]);
        assert!(!world.pods.contains_key(&named));
    }
}

#[test]
fn rollback_at_any_moment_of_a_pair_keeps_to_max_surge() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    for moment in 0..40 {
        let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
        world.settle();
        world.image("app:2");
        for round in 0..160 {
            if round == moment {
                world.image("app:1");
            }
            world.step();
            let pods = world.pods.values().filter(|pod| !pod.is_terminating());
            let there = pods.count();
            assert!(there <= 5, "{there} Pods in round {round} of {moment}");
            world.turn(u8::MAX);
        }
        assert_eq!(world.images(), ["app:1"; 4], "{moment}");
    }
}
