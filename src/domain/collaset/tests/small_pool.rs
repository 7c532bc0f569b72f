//! A pool with space for few instance IDs: nothing gets stuck, and the status says why the other Pods wait.

use serde_json::{Value, json};

use super::reconcile::settled;
use super::world::World;
use crate::api::keys;
use crate::domain::collaset::headroom;

/// Limits the pool of the set to this many IDs.
fn bound(world: &mut World, entries: usize) {
    world.pool_bytes = headroom::MAX_POOL_BYTES / headroom::max_replicas("web") * entries;
}

fn ready_condition(world: &World, type_: &str) -> (String, String) {
    let status = world.set.status.clone().unwrap();
    let mut conditions = status.conditions.into_iter();
    let condition = conditions.find(|c| c.type_ == type_).unwrap();
    (condition.status, condition.message)
}

fn replace() -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } })
}

#[test]
fn replace_proceeds_in_waves_that_fit_the_pool() {
    let mut world = settled(12, replace());
    bound(&mut world, 15);
    world.image("app:2");
    let (mut most, mut waited) = (0, false);
    for _ in 0..100 {
        world.run_plan();
        most = most.max(world.members().len());
        let (_, message) = ready_condition(&world, "Ready");
        waited |= message.contains("ResourceContext web has no room for more instance IDs");
        world.step_surroundings();
    }
    assert!((13..=15).contains(&most), "{most}");
    assert!(waited, "the status says why the others wait");
    world.settle();
    assert_eq!(world.images(), ["app:2"; 12]);
    assert_eq!(ready_condition(&world, "Ready").0, "True");
}

#[test]
fn pods_that_users_want_replaced_wait_for_room_too() {
    let mut world = settled(6, json!({}));
    bound(&mut world, 8);
    let before: Vec<String> = world.pods.keys().cloned().collect();
    for pod in world.pods.values_mut() {
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::TO_REPLACE.into(), "1".into());
    }
    let mut most = 0;
    for _ in 0..100 {
        world.run_plan();
        most = most.max(world.members().len());
        world.step_surroundings();
    }
    assert!(most <= 8, "{most}");
    world.settle();
    assert!(before.iter().all(|name| !world.pods.contains_key(name)));
    assert_eq!(world.members().len(), 6);
}

#[test]
fn set_grows_to_pool_limit_and_reports_it() {
    let mut world = settled(3, json!({}));
    bound(&mut world, 5);
    world.edit(json!({ "replicas": 9 }));
    world.settle();
    assert_eq!(world.members().len(), 5);
    for type_ in ["Scale", "Ready"] {
        let (status, message) = ready_condition(&world, type_);
        assert_eq!(status, "False");
        let full = "ResourceContext web is full with 5 instance IDs";
        assert!(message.contains(full), "{message}");
    }
    // A lost Pod is created again, because its ID is in the pool.
    let name = world.pods.keys().next().unwrap().clone();
    world.delete(&name);
    world.settle();
    assert_eq!(world.members().len(), 5);
    world.edit(json!({ "replicas": 4 }));
    world.settle();
    assert_eq!(ready_condition(&world, "Ready").0, "True");
}

#[test]
fn partition_keeps_its_count_while_pool_is_full() {
    let rolling = json!({ "byPartition": { "partition": 4 } });
    let mut world = settled(5, json!({ "updateStrategy": { "rollingUpdate": rolling } }));
    bound(&mut world, 5);
    world.edit(json!({ "replicas": 6 }));
    world.image("app:2");
    world.settle();
    assert_eq!(world.members().len(), 5);
    let old = world.images().into_iter().filter(|i| *i == "app:1");
    assert_eq!(old.count(), 4);
}

#[test]
fn step_waits_for_no_pod_beyond_pool_limit() {
    let steps = json!([{ "partition": 2 }, { "pause": { "duration": "1m" } }]);
    let rolling = json!({ "steps": steps });
    let mut world = settled(4, json!({ "updateStrategy": { "rollingUpdate": rolling } }));
    bound(&mut world, 4);
    world.edit(json!({ "replicas": 6 }));
    world.settle();
    assert_eq!(world.members().len(), 4);
    world.image("app:2");
    for _ in 0..10 {
        world.settle();
        world.wait(120);
    }
    assert_eq!(world.images(), ["app:2"; 4]);
}

#[test]
fn entries_of_others_count_in_a_pool_that_is_shared() {
    let mut world = settled(3, json!({}));
    bound(&mut world, 8);
    let pool = world.pool.as_mut().unwrap();
    let mut others = pool.contexts.clone();
    for other in &mut others {
        other.id += 100;
        other.data.insert("Owner".into(), "other".into());
    }
    pool.contexts.extend(others);
    world.edit(json!({ "replicas": 9 }));
    world.settle();
    let count = world.members().len();
    assert!((4..=6).contains(&count), "{count}");
    assert!(ready_condition(&world, "Scale").1.contains("is full"));
}

#[test]
fn set_beyond_the_bound_shrinks_and_is_updated() {
    let mut world = settled(12, json!({}));
    bound(&mut world, 8);
    world.image("app:2");
    world.settle();
    assert_eq!(world.images(), ["app:2"; 12]);
    assert_eq!(ready_condition(&world, "Ready").0, "True");
    world.edit(json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } }));
    world.image("app:3");
    world.settle();
    assert_eq!(world.images(), ["app:3"; 12]);
    world.edit(replace());
    world.image("app:4");
    world.settle();
    let message = ready_condition(&world, "Ready").1;
    assert!(message.contains("no Pod can be replaced"), "{message}");
    world.edit(json!({ "replicas": 5 }));
    world.settle();
    assert_eq!(world.images(), ["app:4"; 5]);
    assert_eq!(ready_condition(&world, "Ready").0, "True");
}
