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

/// An operation takes the Pod off. So many looks see it, two seconds apart.
fn operate(world: &mut World, uid: &str, looks: u32) {
    world.begin_operation(uid);
    world.pass();
    for _ in 0..looks {
        world.now += Duration::from_secs(2);
        world.look();
    }
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
    operate(&mut world, &uid, 4);
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
    operate(&mut world, &uid, 2);
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
    assert_eq!(place.as_of(&view, &world.memory, &uid), Place::Off);
    world.begin_operation(&uid);
    assert_eq!(
        place.as_of(&world.view(), &world.memory, &uid),
        Place::Unclear
    );
}

/// The Pod is Ready from now on, or not.
fn ready(world: &mut World, uid: &str, on: bool) {
    let input = world.pods.get_mut(uid).unwrap();
    input.pod.on = on;
    input.ready_since = Some(world.now.to_string());
    world.pass();
}

/// A Pod that is not Ready is known to be off. Then the annotation of the employer is wrong, or its record can't be
/// written: no look sees that the Pod serves again, and goes off by an operation a moment before the next look.
#[test]
fn drain_of_a_time_before_nobody_looked_proves_nothing() {
    let (mut world, uid) = serving();
    ready(&mut world, &uid, false);
    world.look();
    world.now += Duration::from_secs(5);
    world.look();
    assert!(world.protected.contains(&uid));
    // Nobody looks.
    world.now += Duration::from_secs(10);
    ready(&mut world, &uid, true);
    world.now += Duration::from_secs(100);
    world.begin_operation(&uid);
    world.pass();
    world.now += Duration::from_secs(1);
    world.look();
    assert!(world.protected.contains(&uid), "requests may be open");
}

/// A Pod that serves is not protected yet. It is off and on again between two looks, and the last read was before.
#[test]
fn unprotected_pod_that_was_off_between_two_looks_is_read_before_it_is_protected() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    let mut view = world.view();
    world.call(&mut view);
    // The write of the mark meets the write that begins the operation. It is undone at once.
    ready(&mut world, &uid, false);
    assert!(world.balancer.entries.is_empty());
    let input = world.pods.get_mut(&uid).unwrap();
    input.pod.on = true;
    input.ready_since = Some(world.now.to_string());
    world.now += Duration::from_secs(2);
    world.look();
    assert!(!world.protected.contains(&uid), "it is on no load balancer");
}

/// The former load balancer is one that somebody else changes. Its last look has found the Pod on. An operation has begun
/// since then and is undone, and the Pod is not back yet.
#[test]
fn place_on_of_a_former_adapter_is_not_older_than_the_last_turn() {
    let (mut world, uid) = serving();
    let view = world.view();
    let place = places(&view, &world.memory, world.now)[&uid].clone();
    let mut present = Memory::default();
    present.begin_look(&view, world.now);
    world.now += Duration::from_secs(2);
    world.begin_operation(&uid);
    world.pass();
    assert!(world.balancer.entries.is_empty());
    present.begin_look(&world.view(), world.now); // the present adapter sees it off
    world.now += Duration::from_secs(2);
    world.end_operations();
    let view = world.view();
    present.begin_look(&view, world.now);
    assert_eq!(place.as_of(&view, &present, &uid), Place::Unclear);
}

/// The annotation of the employer is wrong for a while, so that nobody looks.
#[test]
fn pod_may_have_turned_while_nobody_looked() {
    let (mut world, uid) = serving();
    operate(&mut world, &uid, 2);
    let turned = world.memory.turned_at(&uid);
    world.memory.end_look();
    world.now += Duration::from_secs(20);
    world.look();
    assert!(world.memory.turned_at(&uid) > turned);
    assert!(world.protected.contains(&uid), "requests may be open");
}
