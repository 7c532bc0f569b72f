//! How often the load balancer is called.

use std::time::Duration;

use super::balancer::{Entry, State};
use super::cases::world_of_one;
use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Control};

#[test]
fn pauses_between_failed_reads_double_up_to_the_longest() {
    let (mut world, _) = world_of_one(Control::Drains);
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let down = Err(AdapterError::Transient("down".to_owned()));
        world.memory.observed(&view, down, world.now, world.now);
        let Next::Wait(Some(at)) = next_call(&view, &world.memory, 1, true, world.now) else {
            panic!("the failed read is repeated at once, or never");
        };
        pauses.push(at.duration_since(world.now).as_millis());
        world.now = at;
    }
    assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
}

/// A change that is refused with a wait stops all calls for the employer until then.
#[test]
fn load_balancer_that_asks_to_wait_is_not_called_before() {
    let wait = Some(Duration::from_secs(60));
    let text = || "closed".to_owned();
    for error in [
        AdapterError::Throttled { text: text(), wait },
        AdapterError::Unavailable { text: text(), wait },
    ] {
        let (mut world, uid) = world_of_one(Control::Drains);
        world.look();
        let view = world.view();
        world
            .memory
            .observed(&view, Err(error.clone()), world.now, world.now);
        let until = world.now + Duration::from_secs(60);
        let next = next_call(&view, &world.memory, 1, true, world.now);
        assert_eq!(next, Next::Wait(Some(until)), "after a read: {error}");

        world.look();
        world.now = until + Duration::from_secs(60);
        world.look();
        world.pods.get_mut(&uid).unwrap().pod.on = false;
        let view = world.view();
        world.memory.begin_look(&view, world.now);
        let Next::Apply(changes) = next_call(&view, &world.memory, 1, true, world.now) else {
            panic!("the member of a Pod that is off is not drained");
        };
        let results = changes.all_failed(&error);
        world.memory.applied(&view, &changes, results, world.now);
        let until = world.now + Duration::from_secs(60);
        let next = next_call(&view, &world.memory, 1, true, world.now);
        assert_eq!(next, Next::Wait(Some(until)), "after a change: {error}");
    }
}

#[test]
fn pending_member_is_read_again_and_not_registered_again() {
    let (mut world, _) = world_of_one(Control::Drains);
    world.look();
    let entry = world.balancer.entries.values_mut().next().unwrap();
    entry.state = State::Pending;
    world.memory.read_again();
    world.now += Duration::from_secs(30);
    world.look();
    for _ in 0..5 {
        world.now += Duration::from_secs(10);
        let calls = world.calls;
        world.look();
        assert_eq!(world.calls, calls + 1, "one read");
        let entry = world.balancer.entries.values().next().unwrap();
        assert_eq!(entry.state, State::Pending, "nothing was changed");
    }
}

#[test]
fn changes_that_come_together_share_a_round() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.look();
    let round = world.now + world.view().settings.round;
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let calls = world.calls;
    assert_eq!(world.look(), Some(round));
    assert_eq!(world.calls, calls);
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
    let settings = world.view().settings;
    world.now += Duration::from_secs(60);
    world.memory.read_again();
    let calls = world.calls;
    let wake = world.look().unwrap();
    assert_eq!(world.calls, calls + 1, "one read");
    let pause = wake.duration_since(world.now).unsigned_abs();
    let paced = settings.poll_min..=settings.poll_max;
    assert!(paced.contains(&pause), "{pause:?}");
}

#[test]
fn drain_without_counted_connections_is_waited_for_without_reads() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.balancer.counts = false;
    world.look();
    world.now += Duration::from_secs(60); // the first read is confirmed
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let begun = world.now;
    while world.now < begun + Duration::from_secs(5) {
        world.look();
        world.now += Duration::from_secs(1);
    }
    let calls = world.calls;
    let wake = world.look().unwrap();
    assert!(wake >= begun + world.view().drain_time, "{wake}");
    assert_eq!(world.calls, calls);
}
