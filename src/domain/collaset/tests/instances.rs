//! Whose volumes go: those of the instances that a scale-in has chosen, and of no other that is missing for now.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cases::one_claim;
use super::world::{Kubelet, World, Write};
use crate::api::keys;
use crate::domain::collaset::room;

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

/// A Pod fails, and is made again in so many seconds.
fn fail(world: &mut World, name: &str, seconds: u64) {
    let until = world.now() + seconds * 1_000_000_000;
    let pod = world.pods.get_mut(name).unwrap();
    pod.status.phase = "Failed".into();
    pod.status.conditions.retain(|c| c.type_ != "Ready");
    world.ended_until.insert(pod.metadata.uid.clone(), until);
}

/// How many Pods of instance ID 3 there are in a while in which each fails at once, and is to be made again an hour later.
fn made_again(world: &mut World) -> usize {
    let mut seen = BTreeSet::new();
    for _ in 0..12 {
        if let Some(pod) = world.members().get(&3) {
            let (name, fails) = (pod.metadata.name.clone(), !pod.is_finished());
            seen.insert(pod.metadata.uid.clone());
            if fails {
                fail(world, &name, 3600);
            }
        }
        rounds(world, 4);
    }
    seen.len()
}

#[test]
fn failed_pod_waits_though_a_scale_in_or_an_exclusion_takes_its_time() {
    let delete =
        |name: &str, delay: u64| json!({ "podToDelete": [name], "operationDelaySeconds": delay });
    let mut settled = World::on_plane(4, one_claim());
    settled.settle();
    let (named, uid) = {
        let metadata = &settled.members()[&0].metadata;
        (metadata.name.clone(), metadata.uid.clone())
    };
    let mut held = settled.clone();
    held.troubles.held.insert(uid);
    held.edit(json!({ "replicas": 3, "scaleStrategy": delete(&named, 0) }));
    let mut delayed = settled.clone();
    delayed.edit(json!({ "replicas": 3, "scaleStrategy": delete(&named, 100_000) }));
    let mut excluded = settled;
    excluded.troubles.refused.insert(Write::ClaimChange);
    excluded.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [named] } }));
    for (why, mut world) in [("held", held), ("delayed", delayed), ("excluded", excluded)] {
        rounds(&mut world, 6);
        assert_eq!(made_again(&mut world), 1, "{why}");
    }
}

#[test]
fn failed_pod_that_is_named_is_the_one_that_goes() {
    for lost in [false, true] {
        let mut world = World::on_plane(4, one_claim());
        world.settle();
        let (named, other) = (name(&world, 1), name(&world, 3));
        fail(&mut world, &named, 600);
        rounds(&mut world, 3);
        if lost {
            let ends_slowly = Kubelet {
                ends_slowly: true,
                ..Kubelet::default()
            };
            let uid = world.pods[&other].metadata.uid.clone();
            world.kubelets.insert(uid, ends_slowly);
            world.delete(&other);
        } else {
            fail(&mut world, &other, 600);
        }
        world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [named] } }));
        rounds(&mut world, 20);
        world.pass(1000);
        world.kubelets.clear();
        rounds(&mut world, 20);
        assert_eq!(claims(&world), ["0", "2", "3"], "lost: {lost}");
    }
}

/// `WALK_SEED=3100000511`: the pairs of others took the ID that the label names, and lost it again in each plan.
#[test]
fn label_of_a_pair_that_can_not_be_taken_off_parts_no_other_pair() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    world.edit(json!({ "replicas": 4 }));
    world.edit(one_claim());
    world.pool_bytes = room::MOST / room::most_replicas("web") * 8;
    let labelled = name(&world, 0);
    let pod = world.pods.get_mut(&labelled).unwrap();
    let uid = pod.metadata.uid.clone();
    pod.metadata
        .labels
        .insert(keys::TO_EXCLUDE.into(), "1".into());
    world.troubles.stubborn.insert(uid);
    world.step();
    world.step();
    let labels = &mut world.pods.get_mut(&labelled).unwrap().metadata.labels;
    labels.insert(keys::REPLACE_PAIR_NEW_ID.into(), "5".into());
    world.edit(json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }));
    world.settle();
}
