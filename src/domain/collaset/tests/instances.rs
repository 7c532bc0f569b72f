//! Whose volumes go: those of the instances that a scale-in has chosen, and of no other that is missing for now.

use serde_json::{Value, json};

use super::cases::one_claim;
use super::world::{World, Write};
use crate::api::keys;

fn name(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

/// Instance IDs of the claims that are there.
fn claims(world: &World) -> Vec<&str> {
    let claims = world.claims.values().filter(|claim| !claim.terminating);
    let mut ids: Vec<&str> = claims.map(|c| &*c.labels[keys::INSTANCE_ID]).collect();
    ids.sort_unstable();
    ids
}

fn rounds(world: &mut World, rounds: usize) {
    for _ in 0..rounds {
        world.step();
        world.turn(u8::MAX);
    }
}

fn recreated() -> Value {
    let mut spec = one_claim();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate", "maxUnavailable": 1 });
    spec
}

fn sequence(mut spec: Value) -> Value {
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    spec
}

/// Three replicas of a new image, with this strategy of the scale-in.
fn fewer_and_updated(world: &mut World, strategy: &Value) {
    let containers = json!([{ "name": "app", "image": "app:2" }]);
    world.edit(json!({
        "replicas": 3, "scaleStrategy": strategy, "template": { "spec": { "containers": containers } },
    }));
}

#[test]
fn pod_that_is_lost_while_an_exclusion_is_refused_is_made_again_with_its_claim() {
    let mut world = World::new(4, one_claim());
    world.settle();
    let (excluded, lost) = (name(&world, 0), name(&world, 1));
    world.troubles.refused.insert(Write::ClaimChange);
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [excluded] } }));
    world.rest();
    world.delete(&lost);
    world.settle();
    assert_eq!(claims(&world), ["0", "1", "2", "3"]);
    assert_eq!(world.ids(), [0, 1, 2, 3]);
}

#[test]
fn pod_that_is_lost_while_another_is_in_both_lists_is_made_again_with_its_claim() {
    let mut world = World::new(4, one_claim());
    world.settle();
    let (named, lost) = (name(&world, 0), name(&world, 1));
    let lists = json!({ "podToExclude": [named], "podToInclude": [named] });
    world.edit(json!({ "replicas": 3, "scaleStrategy": lists }));
    world.rest();
    world.delete(&lost);
    world.settle();
    assert_eq!(claims(&world), ["0", "1", "2", "3"]);
}

#[test]
fn named_pod_is_scaled_in_and_no_other_though_its_deletion_is_refused_for_a_time() {
    let mut world = World::on_plane(4, recreated());
    world.settle();
    let last = &world.members()[&3].metadata;
    let (named, uid) = (last.name.clone(), last.uid.clone());
    world.troubles.undeletable.insert(uid);
    fewer_and_updated(&mut world, &json!({ "podToDelete": [named] }));
    rounds(&mut world, 60);
    world.troubles.undeletable.clear();
    rounds(&mut world, 100);
    assert_eq!(claims(&world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn named_pod_is_scaled_in_and_no_other_though_it_takes_its_time() {
    let mut world = World::on_plane(4, recreated());
    world.settle();
    let named = name(&world, 3);
    let strategy = json!({ "podToDelete": [named], "operationDelaySeconds": 60 });
    fewer_and_updated(&mut world, &strategy);
    for _ in 0..10 {
        rounds(&mut world, 20);
        world.pass(20);
    }
    rounds(&mut world, 100);
    assert_eq!(claims(&world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn sequence_has_no_hole_after_a_scale_in_with_a_rollout() {
    let mut world = World::on_plane(4, sequence(recreated()));
    world.settle();
    fewer_and_updated(&mut world, &json!({ "operationDelaySeconds": 60 }));
    for _ in 0..10 {
        rounds(&mut world, 20);
        world.pass(20);
    }
    rounds(&mut world, 100);
    assert_eq!(claims(&world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn sequence_has_no_hole_after_a_pod_is_lost_during_a_scale_in() {
    let mut world = World::on_plane(4, sequence(one_claim()));
    world.settle();
    world.troubles.holds = true;
    world.edit(json!({ "replicas": 3 }));
    rounds(&mut world, 10);
    let lost = name(&world, 1);
    world.delete(&lost);
    rounds(&mut world, 10);
    world.troubles.holds = false;
    rounds(&mut world, 100);
    assert_eq!(claims(&world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn pod_that_is_lost_while_another_is_scaled_in_is_made_again() {
    let mut world = World::on_plane(4, one_claim());
    world.settle();
    world.troubles.holds = true;
    world.edit(json!({ "replicas": 3 }));
    rounds(&mut world, 10);
    let lost = name(&world, 1);
    world.delete(&lost);
    rounds(&mut world, 10);
    assert_eq!(claims(&world), ["0", "1", "2", "3"]);
    world.troubles.holds = false;
    rounds(&mut world, 100);
    assert_eq!(claims(&world), ["0", "1", "2"]);
}
