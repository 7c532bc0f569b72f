//! Pods that an update has taken off traffic, or is about to, serve while the update can't continue.

use serde_json::{Value, json};

use super::reconcile::{condition, one_pvc_template};
use super::world::{Kubelet, World, WriteKind};
use crate::api::keys;

fn recreate() -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } })
}

fn resources(cpu: &str) -> Value {
    json!({ "template": { "spec": { "containers": [{
        "name": "app", "image": "app:1", "resources": { "requests": { "cpu": cpu } },
    }] } } })
}

fn serving(world: &World) -> usize {
    world.pods.values().filter(|pod| pod.is_available()).count()
}

/// A set whose Pods run its second image. Pods of the first image were also created before.
fn second_image(replicas: i32, spec: Value) -> World {
    let mut world = World::on_plane(replicas, spec);
    world.settle();
    world.image("app:2");
    world.settle();
    world
}

/// Repeats plans until an update has taken Pods off traffic.
fn until_some_are_off(world: &mut World) {
    let all = world.pods.len();
    for _ in 0..50 {
        world.run_plan();
        if serving(world) < all {
            return;
        }
        world.run_pods(1);
    }
    panic!("no Pod goes off traffic");
}

#[test]
fn unwritable_pool_takes_no_pod_off_traffic_for_deletion() {
    for image in ["app:1", "app:3"] {
        for is_late in [false, true] {
            let mut world = second_image(3, recreate());
            if is_late {
                world.image("app:4");
                until_some_are_off(&mut world);
            }
            world.faults.refused.insert(WriteKind::Pool);
            world.image(image);
            world.run_rounds(60);
            assert_eq!(serving(&world), world.pods.len(), "{image} {is_late}");
            assert_eq!(condition(&world, "Ready").0, "False");
            world.faults.refused.clear();
            world.settle();
            assert_eq!(world.images(), [image; 3]);
            assert_eq!(condition(&world, "Ready").0, "True");
        }
    }
}

#[test]
fn pods_whose_deletion_is_refused_serve() {
    for image in ["app:1", "app:3"] {
        let mut world = second_image(3, recreate());
        world.image(image);
        world.faults.refused.insert(WriteKind::PodDeletion);
        world.run_rounds(60);
        assert_eq!(serving(&world), 3, "{image}");
        let (ready, _, message) = condition(&world, "Ready");
        assert_eq!(ready, "False");
        assert!(message.contains("policy"), "{message}");
        world.faults.refused.clear();
        world.settle();
        assert_eq!(world.images(), [image; 3]);
    }
}

#[test]
fn pods_return_when_replacements_cannot_be_created() {
    let mut world = second_image(5, recreate());
    world.image("app:1");
    until_some_are_off(&mut world);
    while world.pods.len() == 5 {
        world.run_plan();
        world.run_pods(1);
    }
    world.faults.refused.insert(WriteKind::PodCreation);
    world.run_rounds(100);
    assert_eq!(serving(&world), world.pods.len());
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.images(), ["app:1"; 5]);
}

#[test]
fn pods_return_when_late_invalid_resize_meets_refused_creation() {
    let mut world = World::on_plane(3, resources("1"));
    world.settle();
    world.edit(resources("2"));
    world.run_plan();
    world.run_plan();
    let refused = [WriteKind::LateResize, WriteKind::PodCreation];
    world.faults.refused.extend(refused);
    world.run_rounds(100);
    assert!(serving(&world) >= 2, "{}", serving(&world));
}

#[test]
fn pods_come_back_whose_change_fails_again_and_again() {
    let bound = json!({ "updateStrategy": { "maxUnavailable": 1 } });
    for (spec, first) in [(json!({}), 0), (bound, 1)] {
        let mut world = World::on_plane(5, spec);
        world.settle();
        world.image("app:2");
        until_some_are_off(&mut world);
        let changed = |world: &World| {
            let images = world.images();
            images.iter().filter(|image| **image == "app:2").count()
        };
        while changed(&world) < first {
            world.run_plan();
            world.run_pods(u8::MAX);
        }
        world.faults.refused.insert(WriteKind::FailingChange);
        world.run_rounds(60);
        assert_eq!(serving(&world), 5);
        assert_eq!(condition(&world, "Ready").0, "False");
        world.faults.refused.clear();
        world.settle();
        assert_eq!(world.images(), ["app:2"; 5]);
    }
}

#[test]
fn paused_set_keeps_both_halves_of_update_pairs() {
    for steps in 1..8 {
        let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
        let mut world = World::on_plane(3, replace);
        world.settle();
        let origins: Vec<String> = world.pods.keys().cloned().collect();
        world.image("app:2");
        for _ in 0..steps {
            world.run_plan();
        }
        world.edit(json!({ "paused": true }));
        world.settle();
        assert!(origins.iter().all(|name| world.pods.contains_key(name)));
        let ready = condition(&world, "Ready");
        assert_eq!(ready.0, "False");
        world.edit(json!({ "paused": false }));
        world.settle();
        assert_eq!(world.images(), ["app:2"; 3]);
        assert_eq!(condition(&world, "Ready").0, "True");
    }
}

#[test]
fn pod_that_leaves_does_not_count_as_one_that_stays() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "maxUnavailable": 1 });
    let mut world = World::on_plane(3, spec);
    world.settle();
    let name = world.members()[&0].metadata.name.clone();
    let pvc_name = world.pods[&name].spec.pvcs[0].clone();
    world.faults.stubborn.insert(pvc_name);
    let template = json!({ "spec": { "containers": [{ "name": "app", "image": "app:2" }] } });
    world.edit(json!({
        "replicas": 2, "scaleStrategy": { "podToExclude": [name] }, "template": template,
    }));
    for _ in 0..60 {
        world.run_plan();
        let others = world.pods.values();
        let mut others = others.filter(|pod| pod.metadata.name != name);
        assert!(others.any(|pod| pod.is_available()));
        world.run_pods(u8::MAX);
    }
}

#[test]
fn new_halves_that_serve_stay_while_their_origins_are_down() {
    for act in ["third", "abort", "back"] {
        let bounded = json!({ "podUpgradePolicy": "Replace", "maxUnavailable": 1 });
        let mut world = World::on_plane(3, json!({ "updateStrategy": bounded }));
        world.settle();
        let origins: Vec<String> = world.pods.keys().cloned().collect();
        world.faults.holds = true; // another rule lets no origin go
        world.image("app:2");
        world.settle();
        let uids: Vec<_> = origins
            .iter()
            .map(|name| world.pods[name].metadata.uid.clone())
            .collect();
        for uid in &uids {
            let lost = Kubelet {
                is_lost: true,
                ..Kubelet::default()
            };
            world.kubelets.insert(uid.clone(), lost);
        }
        world.settle();
        match act {
            "third" => world.image("app:3"),
            "back" => world.image("app:1"),
            _ => world.command("abort"),
        }
        for round in 0..60 {
            world.faults.holds = round < 6;
            world.run_plan();
            world.run_pods(u8::MAX);
            assert!(serving(&world) >= 2, "{act}: {}", serving(&world));
        }
        for uid in &uids {
            world.kubelets.remove(uid);
        }
        world.settle();
        let image = if act == "third" { "app:3" } else { "app:1" };
        assert_eq!(world.images(), [image; 3], "{act}");
    }
}

#[test]
fn cancelled_pair_with_failing_origin_blocks_no_rollout() {
    for act in ["back", "abort"] {
        let surge = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
        let mut world = World::on_plane(3, json!({ "updateStrategy": surge }));
        world.settle();
        world.faults.holds = true;
        world.image("app:2");
        world.settle();
        let mut pods = world.pods.values();
        let origin = pods.find(|pod| pod.label(keys::REPLACE_PAIR_NEW_ID).is_some());
        let lost = Kubelet {
            is_lost: true,
            ..Kubelet::default()
        };
        let uid = origin.unwrap().metadata.uid.clone();
        world.kubelets.insert(uid, lost);
        world.run_rounds(30);
        match act {
            "back" => world.image("app:1"),
            _ => world.command("abort"),
        }
        world.run_rounds(10);
        world.faults.holds = false;
        world.run_rounds(60);
        world.image("app:3");
        for _ in 0..200 {
            world.run_plan();
            world.run_pods(u8::MAX);
            assert!(world.members().len() <= 4, "maxSurge is 1");
        }
        assert_eq!(world.images(), ["app:3"; 3], "{act}");
    }
}

#[test]
fn pod_whose_deletion_is_refused_holds_up_no_other() {
    for proven in [true, false] {
        for id in 0..4 {
            let bounded = json!({ "podUpgradePolicy": "Recreate", "maxUnavailable": 1 });
            let mut world = World::on_plane(4, json!({ "updateStrategy": bounded }));
            world.settle();
            world.image("app:2");
            world.settle();
            let uid = world.members()[&id].metadata.uid.clone();
            world.faults.undeletable.insert(uid);
            world.image(if proven { "app:1" } else { "app:3" });
            world.run_rounds(100);
            let old = world.images().into_iter().filter(|i| *i == "app:2");
            assert_eq!(old.count(), 1, "{proven} {id}");
            assert_eq!(serving(&world), 4);
        }
    }
}
