//! A Pod whose image was changed in an operation is put back on traffic only after the restart.

use operating::api::keys;
use operating::domain::pod::{Container, ContainerStatus, Pod};

use crate::world::World;

/// A Pod that serves, with one container of the image `a:1`.
fn running(mut world: World) -> World {
    *world.pod.spec.containers = vec![Container {
        name: "app".to_owned(),
        image: "a:1".to_owned(),
        ..Container::default()
    }];
    world.pod.status.container_statuses = vec![status("a:1")];
    world
}

fn status(image: &str) -> ContainerStatus {
    ContainerStatus {
        name: "app".to_owned(),
        container_id: format!("run of {image}"),
        image: image.to_owned(),
        image_id: format!("sha of {image}"),
        ready: true,
        ..ContainerStatus::default()
    }
}

fn set_image(world: &mut World, image: &str) {
    let set = |pod: &mut Pod| image.clone_into(&mut pod.spec.containers[0].image);
    world.write(set).unwrap();
}

fn restart(world: &mut World, image: &str) {
    let set = |pod: &mut Pod| pod.status.container_statuses = vec![status(image)];
    world.write(set).unwrap();
}

/// A Pod in Operate with a new image that the kubelet has not applied yet.
fn changed(world: World) -> World {
    let mut world = running(world);
    world.begin("a", "update");
    world.quiesce();
    set_image(&mut world, "a:2");
    world
}

/// Asserts that the Pod stays off traffic, and that it comes back and its operation ends once the container has
/// restarted.
fn comes_back_after_the_restart(mut world: World) {
    assert!(!world.available(), "{:?}", world.labels());
    restart(&mut world, "a:2");
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
}

#[test]
fn finished_operation_waits_for_the_restart() {
    for world in [World::serving(), World::serving().with_traffic()] {
        let mut world = changed(world);
        world.finish("a");
        world.quiesce();
        assert!(!world.available(), "{:?}", world.labels());
        assert_eq!(world.condition(), Some(false));
        restart(&mut world, "a:2");
        world.quiesce();
        assert!(world.is_idle(), "{:?}", world.labels());
        assert_eq!(world.pod.annotation(keys::AWAITS_RESTART), None);
    }
}

#[test]
fn pod_without_readiness_gate_waits_for_the_restart_too() {
    let mut world = changed(World::bare());
    world.finish("a");
    world.quiesce();
    comes_back_after_the_restart(world);
}

#[test]
fn undone_operation_waits_for_the_restart() {
    let mut world = changed(World::serving());
    world.undo("a");
    world.quiesce();
    comes_back_after_the_restart(world);
}

#[test]
fn pod_that_was_kept_offline_waits_for_the_restart() {
    let mut world = changed(World::serving());
    let stay = |pod: &mut Pod, on: bool| {
        let key = keys::STAY_OFFLINE.to_owned();
        match on {
            true => _ = pod.metadata.labels.insert(key, String::new()),
            false => _ = pod.metadata.labels.remove(&key),
        }
    };
    world.write(|pod| stay(pod, true)).unwrap();
    world.finish("a");
    world.quiesce();
    world.write(|pod| stay(pod, false)).unwrap();
    world.quiesce();
    comes_back_after_the_restart(world);
}

#[test]
fn operation_ends_after_its_restart() {
    let mut world = changed(World::serving());
    restart(&mut world, "a:2");
    world.finish("a");
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
}

#[test]
fn removed_record_and_forged_label_bring_no_pod_back() {
    let mut world = changed(World::serving());
    world.finish("a");
    world.quiesce();
    let removed = world.write(|pod| {
        pod.metadata.annotations.clear();
    });
    assert_eq!(removed, Ok(()));
    world.quiesce();
    assert!(!world.available() && world.condition() == Some(false));
    let forged = world.write(|pod| {
        pod.metadata.annotations.clear();
        let label = keys::SERVICE_AVAILABLE.to_owned();
        pod.metadata.labels.insert(label, "1".to_owned());
    });
    assert!(forged.is_err());
}
