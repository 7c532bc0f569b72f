//! When a move ends.

use std::time::Duration;

use super::cases::world_of_one;
use super::world::World;
use crate::Control;
use crate::plan::*;

/// Pods that serve at the former load balancer of a move. The present one refuses the first so many.
fn moving(pods: usize, refused: usize) -> (World, Vec<String>) {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    for _ in 0..pods {
        world.add_pod();
    }
    for input in world.pods.values_mut() {
        input.pod.on = true;
    }
    world.look();
    let uids: Vec<_> = world.pods.keys().cloned().collect();
    world.move_to_another();
    world.balancer.faults = false;
    world.balancer.refuses = uids[..refused].iter().cloned().collect();
    pass(&mut world);
    (world, uids)
}

/// Ten looks, two seconds apart.
fn pass(world: &mut World) {
    for _ in 0..10 {
        world.now += Duration::from_secs(2);
        world.look();
    }
}

#[test]
fn move_ends_after_a_second_read() {
    let (world, _) = moving(2, 0);
    assert!(world.other.is_none());
}

#[test]
fn move_does_not_end_because_the_refused_pods_are_off() {
    for (pods, refused) in [(1, 1), (3, 1), (2, 2)] {
        let (mut world, uids) = moving(pods, refused);
        assert!(world.other.is_some());
        for uid in &uids[..refused] {
            world.begin_operation(uid);
        }
        pass(&mut world);
        assert!(world.other.is_some(), "the former one serves them again");
        let (pod, reason) = unproven(&world.view(), &world.memory).unwrap();
        assert!(
            pod.starts_with("web-") && reason.contains("is kept until"),
            "{reason}"
        );
        // It is accepted at last.
        world.balancer.refuses.clear();
        world.end_operations();
        pass(&mut world);
        assert!(world.other.is_none());
    }
}

/// A Pod that was off before the move began does not hold it up, if others serve.
#[test]
fn pod_that_never_serves_does_not_hold_up_a_move() {
    let (mut world, uids) = moving(2, 2);
    let mut others = uids.iter();
    world.pods.get_mut(others.next().unwrap()).unwrap().pod.on = false;
    world.memory = Memory::default(); // another leader
    world.balancer.refuses.clear();
    pass(&mut world);
    assert!(world.other.is_none());
}

#[test]
fn employer_without_pods_moves() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    world.look();
    world.move_to_another();
    world.balancer.faults = false;
    pass(&mut world);
    assert!(world.other.is_none());
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
