//! Single cases.

use std::time::Duration;

use super::balancer::{Entry, State};
use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Applied, Control, Member, Observation, PodId, Presence, Registration};

/// A world without faults that has one Pod, which should serve. Nobody has looked at it yet.
fn world_of_one(control: Control) -> (World, String) {
    let mut world = World::new(1, control);
    world.balancer.faults = false;
    world.add_pod();
    let (uid, input) = world.pods.iter_mut().next().unwrap();
    input.pod.on = true;
    let uid = uid.clone();
    (world, uid)
}

/// A call of a former leader may end after the first read of a new one, so the new leader reads once more, and then
/// waits for the next regular read.
#[test]
fn first_read_is_confirmed_once() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    world.add_pod();
    let settings = world.view().settings;
    let begun = world.now;
    world.look();
    let mut reads = Vec::new();
    while let Some(wake) = world.look().filter(|_| reads.len() < 3) {
        world.now = wake;
        let before = world.calls;
        world.look();
        if world.calls > before {
            reads.push(world.now.duration_since(begun).unsigned_abs());
        }
    }
    let resync = settings.resync.unwrap();
    let confirmed = settings.timeout * 2;
    assert_eq!(
        reads,
        [confirmed, confirmed + resync, confirmed + resync * 2]
    );
}

/// A Pod whose address another Pod has taken over is held, and the summary says by whom.
#[test]
fn pod_that_is_held_by_another_is_told() {
    let mut world = World::new(1, Control::Drains);
    (world.balancer.faults, world.balancer.tells_pods) = (false, false);
    world.add_pod();
    let uid = world.pods.keys().next().unwrap().clone();
    let input = world.pods.get_mut(&uid).unwrap();
    input.pod.on = false;
    let mut other = input.clone();
    other.pod.on = true;
    other.pod.id = PodId {
        uid: "other".to_owned(),
        name: "web-9".to_owned(),
    };
    world.pods.insert("other".to_owned(), other);
    world.look();
    world.now += Duration::from_secs(60);
    world.look(); // a read that does not tell whose member it is
    world.protected.insert(uid);
    let view = world.view();
    let mut summary = Summary::of(&view, &world.memory, world.now);
    assert_eq!((summary.registered, summary.draining), (1, 0));
    let marks = marks(&view, &world.memory, world.now);
    summary.add_held(&view, &marks);
    assert_eq!(summary.draining, 1);
    let reason = "Pod web-9 serves at its address and port".to_owned();
    assert_eq!(summary.held, [("web-1".to_owned(), reason)]);
}

/// A member that serves with another weight, or for another Pod, is not as it should be. The former adapter of a move
/// must not go before it is.
#[test]
fn member_that_is_not_as_wanted_is_not_counted_as_registered() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    world.add_pod();
    let uid = world.pods.keys().next().unwrap().clone();
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    world.look();
    let changes: [fn(&mut Member); 2] = [
        |member| member.weight = 1,
        |member| member.pod.uid = "other".to_owned(),
    ];
    for change in changes {
        let view = world.view();
        let mut memory = world.memory.clone();
        let summary = Summary::of(&view, &memory, world.now);
        assert_eq!((summary.registered, summary.pending), (1, 0));
        let known = memory.members.values_mut().next().unwrap();
        change(&mut known.member);
        let summary = Summary::of(&view, &memory, world.now);
        assert_eq!((summary.registered, summary.pending), (0, 1));
    }
}

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

/// A load balancer that is late, or whose clock is, does not keep a processor busy.
#[test]
fn drain_until_a_time_in_the_past_is_polled_at_leisure() {
    let (mut world, uid) = world_of_one(Control::Deregisters);
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let (key, member) = {
        let view = world.view();
        let (key, _) = view.planned_members().next().unwrap();
        (key.clone(), world.balancer.entries[key].member.clone())
    };
    let mut entry = Entry::new(member, State::Draining);
    entry.drained_from = Some(world.now - Duration::from_secs(3600));
    world.balancer.entries.insert(key, entry);
    let polls = world.view().settings.poll_min;
    world.now += Duration::from_secs(60);
    world.memory.read_again();
    let calls = world.calls;
    let wake = world.look().unwrap();
    assert_eq!(world.calls, calls + 1, "one read");
    let pause = wake.duration_since(world.now).unsigned_abs();
    assert!(pause >= polls, "{pause:?}");
}

#[test]
fn failures_of_a_corrected_port_are_forgotten() {
    let (mut world, _) = world_of_one(Control::Drains);
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let observation = Ok(Observation::default());
    world
        .memory
        .observed(&view, observation, world.now, world.now);
    let Next::Apply(changes) = next_call(&view, &world.memory, 1, true, world.now) else {
        panic!("nothing is registered");
    };
    let error = AdapterError::Permanent("no such port".to_owned());
    let applied: Applied = changes.all_failed(&error);
    world.memory.applied(&view, &changes, applied, world.now);
    let summary = Summary::of(&view, &world.memory, world.now);
    assert_eq!(
        (summary.failed, summary.last_error),
        (1, Some("no such port".to_owned()))
    );
    world.shape = vec![("g", 81)];
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let summary = Summary::of(&view, &world.memory, world.now);
    assert_eq!((summary.failed, summary.last_error), (0, None));
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
