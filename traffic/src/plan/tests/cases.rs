//! Single cases.

use std::time::Duration;

use super::world::World;
use crate::plan::*;
use crate::{Control, Member, PodId};

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
