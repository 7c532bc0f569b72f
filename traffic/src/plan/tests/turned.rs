//! Pods that turn twice between two looks, so that no look sees them in between.

use std::time::Duration;

use super::cases::world_of_one;
use super::world::World;
use crate::Control;
use crate::plan::*;

/// A Pod that serves behind a load balancer that somebody else changes, and is protected.
fn serving() -> (World, String) {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(60);
    world.look();
    assert!(world.protected.contains(&uid));
    (world, uid)
}

/// The operation is undone, and the Pod is on traffic until the next one begins.
fn begin_another_operation(world: &mut World, uid: &str) {
    world.pods.get_mut(uid).unwrap().pod.on = true;
    world.pass();
    assert_eq!(world.balancer.entries.len(), 1);
    world.now += Duration::from_secs(9);
    world.begin_operation(uid);
}

#[test]
fn pod_that_was_on_between_two_looks_and_protected_in_both_is_drained_again() {
    let (mut world, uid) = serving();
    world.begin_operation(&uid);
    world.pass();
    for _ in 0..4 {
        world.now += Duration::from_secs(2);
        world.look();
    }
    assert!(world.protected.contains(&uid));
    begin_another_operation(&mut world, &uid);
    world.pass();
    world.now += Duration::from_secs(1);
    world.look();
    assert!(world.protected.contains(&uid), "requests may be open");
}

/// Whoever changes members has not taken the Pod off again. A read from before does not tell.
#[test]
fn pod_that_serves_again_is_not_released_by_an_old_read() {
    let (mut world, uid) = serving();
    world.begin_operation(&uid);
    world.pass();
    for _ in 0..2 {
        world.now += Duration::from_secs(2);
        world.look();
    }
    begin_another_operation(&mut world, &uid);
    world.look();
    assert!(
        world.protected.contains(&uid),
        "{:?}",
        world.balancer.entries
    );
}

/// Whoever changes members has taken the Pod off in the meantime.
#[test]
fn pod_that_was_off_between_two_looks_is_read_before_it_is_protected() {
    let (mut world, uid) = serving();
    world.begin_operation(&uid);
    world.pass();
    assert!(world.balancer.entries.is_empty());
    // The write that undoes the operation removes the protection.
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    world.protected.remove(&uid);
    world.now += Duration::from_secs(2);
    world.look();
    assert!(!world.protected.contains(&uid), "it is on no load balancer");
}

/// A former adapter has told that a Pod is off. Another operation keeps it off now, so it may have been on since.
#[test]
fn absence_at_a_former_adapter_is_that_of_one_operation() {
    let (mut world, uid) = serving();
    world.begin_operation(&uid);
    world.pass();
    for _ in 0..4 {
        world.now += Duration::from_secs(11);
        let mut view = world.view();
        world.call(&mut view);
    }
    let view = world.view();
    let place = places(&view, &world.memory, world.now)[&uid].clone();
    assert_eq!(place.as_of(&view, &uid), Place::Off);
    world.begin_operation(&uid);
    assert_eq!(place.as_of(&world.view(), &uid), Place::Unclear);
}
