//! Cases of a third reader. Each fails at the code as it is.

use std::time::Duration;

use super::cases::world_of_one;
use super::world::World;
use crate::plan::*;
use crate::Control;

fn serving() -> (World, String) {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(60);
    world.look();
    assert!(world.protected.contains(&uid));
    (world, uid)
}

/// The Pod is Ready from now on, or not.
fn ready(world: &mut World, uid: &str, on: bool) {
    world.pods.get_mut(uid).unwrap().pod.on = on;
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
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    world.now += Duration::from_secs(2);
    world.look(); // `check_marks` panics: it is protected, and on no load balancer
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
    assert_eq!(place.as_of(&view, &uid), Place::Unclear);
}

/// A move back and forth. The second read of the first move does not confirm the second one.
#[test]
fn move_back_and_forth_is_confirmed_anew() {
    let (mut world, _) = world_of_one(Control::Drains);
    world.look();
    world.move_to_another();
    world.balancer.faults = false;
    while !world.served {
        world.now += Duration::from_secs(2);
        world.look();
    }
    assert!(world.other.is_some(), "the former one drains");
    world.move_to_another();
    world.now += Duration::from_secs(2);
    world.look();
    let before = world.other.as_ref().unwrap().memory.clone();
    world.move_to_another();
    world.now += Duration::from_millis(500);
    world.look();
    assert_eq!(world.memory.observed, before.observed, "no read is due");
    assert!(!world.served, "the last read is from before the move");
}

/// The present load balancer serves all, and the former one has lost its first members. Another leader does not register
/// these again, only because it has not read twice.
#[test]
fn another_leader_registers_nobody_again_at_the_former_load_balancer() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    for _ in 0..3 {
        world.add_pod();
    }
    for input in world.pods.values_mut() {
        input.pod.on = true;
    }
    world.look();
    world.move_to_another();
    world.balancer.faults = false;
    let serving = |world: &World| {
        let former = world.other.as_ref().map(|other| other.balancer.entries.values());
        former.map_or(0, |entries| entries.filter(|entry| entry.serves()).count())
    };
    while serving(&world) > 0 {
        world.now += Duration::from_secs(2);
        world.look();
    }
    assert!(world.other.is_some());
    world.lead_anew();
    world.served = false;
    world.now += Duration::from_secs(2);
    world.look();
    assert_eq!(serving(&world), 0);
}

/// A former adapter was read, and refuses the employer now, for example because an annotation is gone. It can't retire, and
/// the others need not wait for it.
#[test]
fn former_adapter_that_refuses_the_employer_is_not_the_one_that_retires() {
    let (mut world, _) = world_of_one(Control::Drains);
    world.look();
    assert!(world.memory.is_read());
    world.refuses = true;
    world.now += Duration::from_secs(2);
    world.look();
    assert!(!world.memory.is_read(), "it is not asked any more");
}

/// The present load balancer of a move still serves a Pod that is not selected any more, because its successors do not
/// serve yet. Without both marks, the next operation would not wait: the employer neither selects it nor is expected.
#[test]
fn pod_that_left_the_selection_and_serves_keeps_its_marks_in_a_move() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.look();
    assert!(world.protected.contains(&uid));
    world.pods.get_mut(&uid).unwrap().selected = false;
    world.add_pod();
    let next = world.pods.keys().find(|other| **other != uid).unwrap().clone();
    world.pods.get_mut(&next).unwrap().pod.on = true;
    world.balancer.refuses = [next].into();
    world.now += Duration::from_secs(2);
    world.look();
    assert!(world.balancer.entries.values().any(|entry| entry.owner == uid && entry.serves()));
    let view = world.view();
    let mark = marks(&view, &world.memory, world.now)[&uid].clone();
    let formers = [Place::Off];
    let mark = mark_in_move(&view, &world.memory, &uid, mark, &formers, false);
    assert!(matches!(mark, Mark::Keep(_)), "{mark:?}");
}
