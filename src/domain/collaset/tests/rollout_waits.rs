//! The order and the pace of a rollout: which Pod is updated next, when a step is over, and which Pods count for
//! `maxSurge`.

use serde_json::{Value, json};

use super::reconcile::condition;
use super::rollout::read_rollout_step;
use super::world::{Kubelet, World};
use crate::api::keys;
use crate::domain::collaset::set_operations::SetOperation;
use crate::domain::pod::Pod;

fn image(pod: &Pod) -> &str {
    &pod.spec.containers[0].image
}

/// Names of the Pods with an image.
fn with_image(world: &World, wanted: &str) -> Vec<String> {
    let pods = world.pods.values().filter(|pod| image(pod) == wanted);
    pods.map(|pod| pod.metadata.name.clone()).collect()
}

/// Makes the node of a Pod unreachable.
fn lose(world: &mut World, name: &str) {
    let uid = world.pods[name].metadata.uid.clone();
    let lost = Kubelet {
        is_lost: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(uid, lost);
}

fn label(world: &mut World, name: &str, key: &str, value: &str) {
    let (key, value) = (key.to_owned(), value.to_owned());
    assert!(world.write_pod(name, |pod| {
        pod.metadata.labels.insert(key, value);
    }));
}

/// Four Pods whose rollout by `Recreate` updates some and pauses for ten minutes. Also returns the names of the updated
/// Pods.
fn at_pause(partition: Value) -> (World, Vec<String>) {
    let steps =
        json!([{ "partition": partition }, { "pause": { "duration": "10m" } }, { "partition": 0 }]);
    let strategy = json!({ "podUpgradePolicy": "Recreate", "rollingUpdate": { "steps": steps } });
    let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
    world.settle();
    world.image("app:2");
    world.run_rounds(40);
    assert_eq!(read_rollout_step(&world), Some(2));
    let canaries = with_image(&world, "app:2");
    (world, canaries)
}

/// Lets the pause pass.
fn pass_the_pause(world: &mut World) {
    world.wait(700);
    world.run_rounds(10);
}

fn waits_for(world: &World, name: &str) {
    assert_eq!(read_rollout_step(world), Some(2));
    let expected = format!("step 2 of 3 waits for Pod {name} to be available");
    assert_eq!(condition(world, "Update").2, expected);
}

/// Loses a canary, and checks that the rollout goes on only after the canary is available again.
fn assert_pause_waits_for(world: &mut World, canary: &str) {
    lose(world, canary);
    world.run_rounds(5);
    pass_the_pause(world);
    waits_for(world, canary);
    world.kubelets.clear();
    world.run_rounds(10);
    assert_eq!(read_rollout_step(world), Some(3));
}

#[test]
fn pause_waits_for_canary_beside_replaced_canary() {
    let (mut world, canaries) = at_pause(json!(2));
    world.faults.holds = true;
    label(&mut world, &canaries[0], keys::TO_REPLACE, "true");
    world.run_rounds(20);
    assert_eq!(world.pods.len(), 5);
    assert_pause_waits_for(&mut world, &canaries[1]);
}

#[test]
fn pause_waits_for_canary_beside_scaled_in_canary() {
    let (mut world, canaries) = at_pause(json!(2));
    world.faults.holds = true;
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [canaries[0]] } }));
    world.run_rounds(10);
    assert_pause_waits_for(&mut world, &canaries[1]);
}

#[test]
fn pause_waits_for_a_canary_though_others_are_enough() {
    let (mut world, canaries) = at_pause(json!(2));
    let old = with_image(&world, "app:1");
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [old[0]] } }));
    world.run_rounds(20);
    assert_eq!(with_image(&world, "app:2").len(), 2, "one is to be updated");
    lose(&mut world, &canaries[1]);
    world.run_rounds(5);
    pass_the_pause(&mut world);
    waits_for(&world, &canaries[1]);
}

/// The only canary is scaled in and its rules hold it. Another Pod is updated instead, and the rollout continues.
#[test]
fn step_ignores_scaled_in_pods() {
    let (mut world, canaries) = at_pause(json!("75%"));
    assert_eq!(canaries.len(), 1);
    let others = with_image(&world, "app:1");
    let uid = world.pods[&canaries[0]].metadata.uid.clone();
    world.faults.held.insert(uid);
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [canaries[0]] } }));
    world.run_rounds(40);
    assert!(world.pods.contains_key(&canaries[0]));
    let outdated = with_image(&world, "app:1");
    assert_eq!(
        outdated.len(),
        others.len() - 1,
        "one is updated in its stead"
    );
    pass_the_pause(&mut world);
    world.run_rounds(60);
    assert_eq!(read_rollout_step(&world), None);
    assert!(world.pods.contains_key(&canaries[0]));
    assert_eq!(with_image(&world, "app:1"), [""; 0]);
}

/// The values of the label `order` of the Pods, in the order of their updates.
fn updated_in_order(rolling: Value) -> Vec<String> {
    let strategy = json!({ "maxUnavailable": 1, "rollingUpdate": rolling });
    let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
    world.settle();
    let names: Vec<String> = world.pods.keys().cloned().collect();
    for (name, order) in names.iter().zip(["5", "7", "", "6"]) {
        label(&mut world, name, "order", order);
    }
    world.image("app:2");
    let mut order = Vec::new();
    for _ in 0..80 {
        world.run_rounds(1);
        for pod in world.pods.values().filter(|pod| image(pod) == "app:2") {
            let label = pod.label("order").unwrap_or_default().to_owned();
            if !order.contains(&label) {
                order.push(label);
            }
        }
    }
    order
}

#[test]
fn priority_label_orders_the_updates_of_single_pods() {
    let mut rolling = json!({ "priorityLabel": "order" });
    assert_eq!(updated_in_order(rolling.clone()), ["7", "6", "5", ""]);
    rolling["byPartition"] = json!({ "partition": 1 });
    assert_eq!(updated_in_order(rolling), ["7", "6", "5"]);
}

#[test]
fn pod_that_is_down_is_made_again_first() {
    let strategy = json!({ "podUpgradePolicy": "Recreate" });
    let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
    world.settle();
    let down = world.members()[&2].metadata.name.clone();
    lose(&mut world, &down);
    world.run_rounds(3);
    world.image("app:2");
    world.run_plan();
    let operating = keys::Family::Operating.key("collaset");
    let mut pods = world.pods.values();
    let updating = pods.find(|pod| pod.label(&operating).is_some());
    assert_eq!(updating.unwrap().metadata.name, down);
}

/// Largest number of Pods that an update replaces at the same time.
fn most_pairs(world: &mut World) -> usize {
    let labels = [keys::TO_REPLACE, keys::REPLACED_BY_REPLACE_UPDATE];
    let mut most = 0;
    for _ in 0..80 {
        world.run_plan();
        let pods = world.pods.values().filter(|pod| !pod.is_terminating());
        let open = pods.filter(|pod| labels.iter().all(|key| pod.label(key).is_some()));
        most = most.max(open.count());
        world.run_pods(u8::MAX);
    }
    most
}

/// A replacement by a user whose origin went down before the replacement was cancelled. The new Pod stays, because it
/// serves and its origin does not.
fn called_off(strategy: Value) -> (World, String) {
    let mut world = World::on_plane(3, json!({ "updateStrategy": strategy }));
    world.settle();
    let origin = world.pods.keys().next().unwrap().clone();
    label(&mut world, &origin, keys::TO_REPLACE, "true");
    world.faults.holds = true;
    world.run_rounds(20);
    lose(&mut world, &origin);
    world.run_rounds(2);
    assert!(world.write_pod(&origin, |pod| {
        pod.metadata.labels.remove(keys::TO_REPLACE);
    }));
    world.run_rounds(20);
    assert_eq!(world.pods.len(), 4);
    world.faults.holds = false;
    (world, origin)
}

#[test]
fn reopened_user_pair_uses_max_surge_slot() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    let (mut world, _) = called_off(strategy);
    world.image("app:2");
    assert_eq!(most_pairs(&mut world), 1);
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn reopened_user_pair_needs_no_pool_headroom() {
    use crate::domain::collaset::headroom;
    let (mut world, origin) = called_off(json!({ "podUpgradePolicy": "Replace" }));
    world.pool_bytes = headroom::MAX_POOL_BYTES / headroom::max_replicas("web") * 4;
    world.image("app:2");
    world.run_rounds(80);
    assert!(world.pods[&origin].is_terminating(), "its node is lost");
}

#[test]
fn pod_waiting_for_max_surge_serves_after_begun_update() {
    let mut world = World::on_plane(4, json!({}));
    world.settle();
    world.image("app:2");
    world.run_rounds(1);
    assert!(world.pods.values().all(|pod| !pod.is_available()));
    world.faults.most_pods = Some(4);
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    world.edit(json!({ "updateStrategy": strategy }));
    world.run_rounds(40);
    assert!(world.pods.values().all(Pod::is_available));
    world.faults.most_pods = None;
    world.settle();
    assert_eq!(world.images(), ["app:2"; 4]);
}

#[test]
fn lower_bound_calls_the_last_of_the_order_back() {
    let bound = |most: i32| json!({ "updateStrategy": { "maxUnavailable": most, "rollingUpdate": { "priorityLabel": "order" } } });
    let updating_orders = |world: &World| {
        let pods = world
            .pods
            .values()
            .filter(|pod| SetOperation::Update.is_in_progress(pod));
        let mut orders: Vec<String> = pods
            .map(|pod| pod.metadata.labels["order"].clone())
            .collect();
        orders.sort();
        orders
    };
    let mut world = World::on_plane(3, bound(2));
    world.settle();
    let members = world.members();
    let names: Vec<String> = members
        .values()
        .map(|pod| pod.metadata.name.clone())
        .collect();
    for (name, order) in names.iter().zip(["5", "7", "6"]) {
        let labels = &mut world.pods.get_mut(name).unwrap().metadata.labels;
        labels.insert("order".into(), order.into());
    }
    world.faults.holds = true;
    world.image("app:2");
    for (most, wanted) in [(2, &["6", "7"][..]), (1, &["7"])] {
        world.edit(bound(most));
        for _ in 0..10 {
            world.run_plan();
            world.run_pods(u8::MAX);
        }
        assert_eq!(updating_orders(&world), wanted);
    }
}
