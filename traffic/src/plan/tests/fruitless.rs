//! A load balancer that accepts changes and does not make them, and one that makes them after a lost answer.

use std::time::Duration;

use super::cases::{fail_first_registration, world_of_one};
use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Control};

/// Looks for so many seconds, and forgets or renews all members before each look. Returns the number of calls.
fn calls_in(world: &mut World, seconds: u64, undo: fn(&mut World)) -> usize {
    let (end, before) = (world.now + Duration::from_secs(seconds), world.calls);
    while world.now < end {
        undo(world);
        let wake = world.look();
        world.now = wake
            .unwrap_or(end)
            .max(world.now + Duration::from_millis(50));
    }
    world.calls - before
}

fn summary(world: &World) -> Summary {
    Summary::of(&world.view(), &world.memory, world.now)
}

#[test]
fn member_that_is_accepted_and_never_listed_is_registered_after_pauses() {
    let (mut world, _) = world_of_one(Control::Drains);
    world.balancer.checks = true;
    let forget: fn(&mut World) = |world| world.balancer.entries.clear();
    calls_in(&mut world, 40, forget);
    let calls = calls_in(&mut world, 40, forget);
    assert!(calls <= 12, "{calls} calls in 40 s");
    let error = summary(&world).last_error.unwrap();
    assert!(error.contains("does not list it as serving"), "{error}");
    // When it serves, the failure is over, also if it is registered without a health check.
    world.balancer.checks = false;
    calls_in(&mut world, 40, World::pass);
    assert_eq!((summary(&world).registered, summary(&world).failed), (1, 0));
    assert_eq!(summary(&world).last_error, None);
}

#[test]
fn drain_that_is_accepted_and_has_no_effect_is_repeated_after_pauses() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.protected.insert(uid);
    let renew: fn(&mut World) = |world| {
        for entry in world.balancer.entries.values_mut() {
            entry.state = super::balancer::State::Serving;
            entry.drained_from = None;
            entry.connections = 1;
        }
    };
    calls_in(&mut world, 40, renew);
    let calls = calls_in(&mut world, 40, renew);
    assert!(calls <= 12, "{calls} calls in 40 s");
    let error = summary(&world).last_error.unwrap();
    assert!(error.ends_with("still lists it as serving"), "{error}");
    assert_eq!((summary(&world).draining, summary(&world).failed), (1, 1));
}

/// The answer to a registration is lost. The load balancer may still make it, so the Pod is not released before a read
/// that tells.
#[test]
fn pod_is_not_released_while_a_lost_registration_may_be_made() {
    let (mut world, uid) = world_of_one(Control::Drains);
    let lost = AdapterError::Transient("no answer".to_owned());
    let (view, _) = fail_first_registration(&mut world, &lost);
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.protected.insert(uid.clone());
    let until = world.now + view.settings.timeout * 2;
    while world.now < until {
        world.look();
        let view = world.view();
        let mark = marks(&view, &world.memory, world.now).remove(&uid).unwrap();
        assert!(
            matches!(&mark, Mark::Keep(reason) if reason.contains("may still put traffic on")
                || reason.contains("not known")),
            "{mark:?}"
        );
        world.now += Duration::from_secs(1);
    }
    world.now = until;
    world.look();
    assert!(!world.protected.contains(&uid), "a read has told");
}

/// A call that was not made has no effect later.
#[test]
fn pod_is_released_at_once_after_a_registration_that_was_not_made() {
    let (mut world, uid) = world_of_one(Control::Drains);
    let unmade = AdapterError::Unavailable {
        text: "no connection".to_owned(),
        wait: None,
    };
    fail_first_registration(&mut world, &unmade);
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.protected.insert(uid.clone());
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let mark = |world: &World| marks(&view, &world.memory, world.now).remove(&uid);
    assert_eq!(mark(&world), Some(Mark::Release));
}

/// A lost change in a group that can't be read is read again after the pauses of the group, and not without a pause.
#[test]
fn lost_change_in_an_unreadable_group_is_read_after_pauses() {
    let (mut world, _) = world_of_one(Control::Drains);
    let lost = AdapterError::Transient("no answer".to_owned());
    let (view, changes) = fail_first_registration(&mut world, &lost);
    let group = changes.register[0].key.group.clone();
    let (end, mut reads) = (world.now + Duration::from_secs(600), 0);
    while world.now < end {
        world.memory.begin_look(&view, world.now);
        for calls in 0.. {
            match next_call(&view, &world.memory, calls, calls > 0, world.now) {
                Next::Observe => {
                    let error = AdapterError::Transient("busy".to_owned());
                    let observation = crate::Observation {
                        unreadable_groups: vec![(group.clone(), error)],
                        ..crate::Observation::default()
                    };
                    reads += 1;
                    world
                        .memory
                        .observed(&view, Ok(observation), world.now, world.now);
                }
                Next::Apply(changes) => panic!("{changes:?}"),
                Next::Wait(until) => {
                    let soon = world.now + Duration::from_millis(50);
                    world.now = until.unwrap_or(end).max(soon);
                    break;
                }
            }
        }
    }
    // The longest pause is 10 s.
    assert!((60..80).contains(&reads), "{reads} reads in 600 s");
}
