//! What a read proves, and what it does not.

use std::time::Duration;

use super::cases::world_of_one;
use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Control, Observation, Presence, Registration};

/// The load balancer chooses the names of groups, so that they must not pile up.
#[test]
fn groups_of_former_reads_are_forgotten() {
    let (mut world, _) = world_of_one(Control::Drains);
    let view = world.view();
    let member = view.wanted.values().next().unwrap();
    world.memory.begin_look(&view, world.now);
    for n in 0..100 {
        let mut foreign = member.clone();
        foreign.key.group = format!("read-{n}");
        let error = AdapterError::Transient("busy".to_owned());
        let observation = Observation {
            registrations: vec![Registration {
                member: foreign,
                presence: Presence::Serving,
                connections: None,
            }],
            unreadable_groups: vec![(format!("unreadable-{n}"), error)],
        };
        world
            .memory
            .observed(&view, Ok(observation), world.now, world.now);
    }
    let groups: Vec<_> = world.memory.read_groups.iter().collect();
    assert_eq!(groups, ["g", "read-99"]);
}

/// A group that was read before keeps only the Pods that have members there.
#[test]
fn group_that_was_read_once_is_remembered_while_it_is_unreadable() {
    let (mut world, _) = world_of_one(Control::Drains);
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let unreadable = |group: &str| {
        let error = AdapterError::Transient("busy".to_owned());
        Observation {
            unreadable_groups: vec![(group.to_owned(), error)],
            ..Observation::default()
        }
    };
    for observation in [Observation::default(), unreadable("g"), unreadable("g")] {
        world
            .memory
            .observed(&view, Ok(observation), world.now, world.now);
        assert!(world.memory.read_groups.contains("g"));
    }
}

/// The walk that found this is long.
#[test]
fn pod_whose_port_changes_to_and_fro_is_read_before_it_is_protected() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    let mark = |world: &World| marks(&world.view(), &world.memory, world.now)[&uid].clone();
    assert_eq!(mark(&world), Mark::Protect);
    for port in [81, 80] {
        world.now += Duration::from_secs(1);
        world.shape = vec![("g", port)];
        let view = world.view();
        world.memory.begin_look(&view, world.now);
    }
    assert!(matches!(mark(&world), Mark::Keep(_)));
    world.now += Duration::from_secs(1);
    world.look();
    assert_eq!(mark(&world), Mark::Protect);
}

/// A call of a former leader may begin the drain while a new one reads.
#[test]
fn connections_that_were_counted_before_the_drain_prove_nothing() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let began = world.now;
    world.now += Duration::from_secs(2);
    let view = world.view();
    let member = world.balancer.entries.values().next().unwrap();
    let observation = Observation {
        registrations: vec![Registration {
            member: member.member.clone(),
            presence: Presence::Draining { until: None },
            connections: Some(0),
        }],
        ..Observation::default()
    };
    world.memory = Memory::default();
    let memory = &mut world.memory;
    memory.begin_look(&view, began);
    memory.observed(&view, Ok(observation.clone()), began, world.now);
    let next = next_call(&view, memory, 1, true, world.now);
    assert!(!matches!(next, Next::Apply(_)), "{next:?}");
    world.now += Duration::from_secs(1);
    memory.observed(&view, Ok(observation), world.now, world.now);
    let next = next_call(&view, memory, 1, true, world.now);
    assert!(matches!(next, Next::Apply(_)), "{next:?}");
}

/// A lost reply may be about a registration for this Pod, although the last read has named another one.
#[test]
fn pod_is_kept_while_a_member_at_its_address_is_unknown() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let known = world.memory.members.values_mut().next().unwrap();
    known.member.pod.uid = "former".to_owned();
    let mark = |world: &World| marks(&world.view(), &world.memory, world.now)[&uid].clone();
    assert_eq!(mark(&world), Mark::Release);
    let known = world.memory.members.values_mut().next().unwrap();
    known.presence = Presence::Unknown;
    assert!(matches!(mark(&world), Mark::Keep(_)));
}

/// Somebody else may have registered the Pod since its group was read.
#[test]
fn pod_is_kept_while_the_group_of_its_member_is_unreadable() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.look();
    let mark = |world: &World| marks(&world.view(), &world.memory, world.now)[&uid].clone();
    assert_eq!(mark(&world), Mark::Release);
    for (group, keeps) in [("g", true), ("h", false)] {
        world.memory.read_groups.insert("h".to_owned());
        let view = world.view();
        let error = AdapterError::Transient("busy".to_owned());
        let observation = Observation {
            unreadable_groups: vec![(group.to_owned(), error)],
            ..Observation::default()
        };
        world
            .memory
            .observed(&view, Ok(observation), world.now, world.now);
        assert_eq!(matches!(mark(&world), Mark::Keep(_)), keeps, "{group}");
    }
}
