//! Updates that change resources: what is refused, by whom, and what comes of it.

use serde_json::{Value, json};

use super::cases::{settled, uids};
use super::world::{Kubelet, Resizing, World, Write};
use crate::api::keys;
use crate::domain::collaset::lifecycle::Operation;
use crate::domain::pod::Pod;

/// A spec whose container has this image, and asks for so much cpu.
fn resources(image: &str, cpu: &str) -> Value {
    json!({ "template": { "spec": { "containers": [{
        "name": "app", "image": image, "resources": { "requests": { "cpu": cpu } },
    }] } } })
}

fn is_ready(world: &World) -> bool {
    let status = world.set.status.clone().unwrap();
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

#[test]
fn a_pod_that_can_not_be_resized_is_made_again() {
    let resources = |cpu: &str| resources("app:1", cpu);
    let mut world = settled(2, resources("1"));
    let before = uids(&world);
    world.edit(resources("2"));
    world.rest();
    let updated = world.set.status.clone().unwrap().updated_revision;
    let one = world.pods.values().next().unwrap().metadata.uid.clone();
    let why = (updated, "no resize on this node".to_owned());
    world.refused.resizes.insert(one.clone(), why);
    world.settle();
    let after = uids(&world);
    let kept: Vec<_> = before.intersection(&after).collect();
    assert!(kept.len() == 1 && *kept[0] != one, "{kept:?}");
    assert_eq!(world.ids(), [0, 1]);
}

#[test]
fn pods_serve_as_they_are_while_a_quota_denies_their_resize() {
    // From the beginning, or once they are off traffic.
    for late in [false, true] {
        let mut world = World::on_plane(3, resources("app:1", "1"));
        world.settle();
        let before = uids(&world);
        if late {
            world.edit(resources("app:1", "2"));
            world.step();
        }
        world.troubles.refused.insert(Write::AnyResize);
        world.edit(resources("app:1", "2"));
        for _ in 0..40 {
            world.step();
            world.turn(u8::MAX);
            assert_eq!(uids(&world), before, "made again, {late}");
        }
        assert!(world.pods.values().all(Pod::is_available), "{late}");
        assert!(!is_ready(&world));
        world.troubles.refused.clear();
        world.settle();
        assert_eq!(uids(&world), before);
        for pod in world.pods.values() {
            assert_eq!(pod.spec.containers[0].resources["requests"]["cpu"], "2");
        }
    }
}

#[test]
fn no_pod_goes_off_traffic_to_be_resized_on_a_node_that_can_not() {
    let mut world = World::on_plane(3, resources("app:1", "1"));
    world.settle();
    world.troubles.refused.insert(Write::Resize);
    world.edit(resources("app:1", "2"));
    world.step();
    let deletes = |pod: &Pod| pod.label(keys::PREPARING_TO_DELETE).is_some();
    let begun = |pod: &Pod| Operation::Update.is_on(pod);
    world.step();
    let first = world.pods.values().find(|pod| begun(pod)).unwrap();
    assert!(
        deletes(first),
        "whoever cooperates knows that it will not come back"
    );
    world.settle();
    for pod in world.pods.values() {
        assert_eq!(pod.spec.containers[0].resources["requests"]["cpu"], "2");
    }
}

#[test]
fn resize_whose_image_was_refused_is_taken_back_with_its_template() {
    let mut world = World::on_plane(2, resources("app:1", "1"));
    world.settle();
    let before = uids(&world);
    world.edit(resources("app:2", "2"));
    world.step();
    world.troubles.refused.insert(Write::PodChange);
    world.settle();
    assert_eq!(world.images(), ["app:1"; 2]);
    assert!(world.pods.values().all(Pod::is_available));
    assert!(!is_ready(&world));
    world.troubles.refused.clear();
    world.edit(resources("app:1", "1"));
    world.settle();
    for pod in world.pods.values() {
        assert_eq!(pod.spec.containers[0].resources["requests"]["cpu"], "1");
        assert_eq!(pod.annotation(keys::RESIZING), None);
    }
    assert!(is_ready(&world));
    assert_eq!(uids(&world), before);
    // To a third revision likewise.
    world.edit(resources("app:2", "2"));
    world.step();
    world.troubles.refused.insert(Write::PodChange);
    world.settle();
    world.troubles.refused.clear();
    world.edit(resources("app:3", "1"));
    world.settle();
    for pod in world.pods.values() {
        assert_eq!(pod.spec.containers[0].resources["requests"]["cpu"], "1");
    }
    assert_eq!(world.images(), ["app:3"; 2]);
}

#[test]
fn pod_that_is_held_on_its_way_out_serves_although_its_resize_never_comes() {
    let mut world = World::on_plane(2, resources("app:1", "1"));
    world.settle();
    let names: Vec<String> = world.pods.keys().cloned().collect();
    for pod in world.pods.values() {
        let kubelet = Kubelet {
            resizing: Resizing::Infeasible,
            ..Kubelet::default()
        };
        world.kubelets.insert(pod.metadata.uid.clone(), kubelet);
    }
    world.edit(resources("app:1", "2"));
    let resized = |world: &World| {
        let mut pods = world.pods.values();
        pods.all(|pod| pod.metadata.generation == 2)
    };
    for _ in 0..20 {
        world.step();
        if resized(&world) {
            break;
        }
        world.turn(u8::MAX);
    }
    assert!(resized(&world));
    world.troubles.holds = true;
    for name in &names {
        let told = (keys::TO_DELETE.to_owned(), "true".to_owned());
        assert!(world.write_pod(name, |pod| pod.metadata.labels.extend([told])));
    }
    for _ in 0..20 {
        world.step();
        world.turn(u8::MAX);
    }
    let serve = |world: &World| names.iter().all(|n| world.pods[n].is_available());
    assert!(serve(&world));
    // And is made again after all, should it stay.
    for name in &names {
        let take_back = |pod: &mut Pod| pod.metadata.labels.retain(|key, _| key != keys::TO_DELETE);
        assert!(world.write_pod(name, take_back));
    }
    world.troubles.holds = false;
    world.settle();
    assert!(world.pods.keys().all(|name| !names.contains(name)));
    assert!(is_ready(&world));
}
