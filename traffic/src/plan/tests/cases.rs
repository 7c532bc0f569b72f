//! Single cases.

use std::time::Duration;

use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Changes, Control, Member, Observation, PodId, Presence};

/// A world without faults that has one Pod, which should serve. Nobody has looked at it yet.
pub fn world_of_one(control: Control) -> (World, String) {
    let mut world = World::new(1, control);
    world.balancer.faults = false;
    world.add_pod();
    let (uid, input) = world.pods.iter_mut().next().unwrap();
    input.pod.on = true;
    let uid = uid.clone();
    (world, uid)
}

/// The first read finds nothing, and the first registration fails. Returns the view, and the changes that were tried.
pub fn fail_first_registration(world: &mut World, error: &AdapterError) -> (View, Changes) {
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let nothing = Ok(Observation::default());
    world.memory.observed(&view, nothing, world.now, world.now);
    let Next::Apply(changes) = next_call(&view, &world.memory, 1, true, world.now) else {
        panic!("nothing is registered");
    };
    let applied = changes.all_failed(error);
    world.memory.applied(&view, &changes, applied, world.now);
    (view, changes)
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

/// Another selector selects other Pods. The former ones serve until as many of the new ones do.
#[test]
fn pods_that_are_not_selected_any_more_serve_until_others_do() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    for _ in 0..4 {
        world.add_pod();
    }
    for (n, input) in world.pods.values_mut().enumerate() {
        (input.selected, input.pod.on) = (n < 2, true);
    }
    world.look();
    for input in world.pods.values_mut() {
        input.selected = !input.selected;
    }
    world.now += Duration::from_secs(5);
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    let Next::Apply(changes) = next_call(&view, &world.memory, 0, false, world.now) else {
        panic!("nothing is registered");
    };
    assert_eq!((changes.register.len(), changes.drain.len()), (2, 0));
    let mut applied = changes.all_failed(&AdapterError::Permanent("quota".to_owned()));
    applied.insert(changes.register[0].key.clone(), Ok(Presence::Serving));
    world.memory.applied(&view, &changes, applied, world.now);
    let next = next_call(&view, &world.memory, 1, false, world.now);
    assert!(matches!(next, Next::Wait(_)), "one of two serves: {next:?}");
    let summary = Summary::of(&view, &world.memory, world.now);
    assert_eq!((summary.registered, summary.draining), (1, 2));
    let text = summary.waiting[0].to_string();
    let stays = "traffic stays on, until the Pods that are selected now serve, at ";
    assert!(text.starts_with(stays), "{text}");
    let applied = changes.register.iter().map(|member| member.key.clone());
    let applied = applied.map(|key| (key, Ok(Presence::Serving))).collect();
    world.memory.applied(&view, &changes, applied, world.now);
    let next = next_call(&view, &world.memory, 1, false, world.now);
    assert!(
        matches!(&next, Next::Apply(changes) if changes.drain.len() == 2),
        "{next:?}"
    );
}

#[test]
fn failures_of_a_corrected_port_are_forgotten() {
    let (mut world, _) = world_of_one(Control::Drains);
    let error = AdapterError::Permanent("no such port".to_owned());
    let (view, _) = fail_first_registration(&mut world, &error);
    let retry = next_call(&view, &world.memory, 1, true, world.now);
    assert!(
        matches!(retry, Next::Wait(Some(at)) if at > world.now),
        "{retry:?}"
    );
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

/// A former adapter that only observes, and refuses the employer now, is not asked any more. What it sent to Pods that
/// are off drains for the drain time.
#[test]
fn pods_drain_for_the_drain_time_at_an_adapter_that_refuses_the_employer() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.protected.insert(uid.clone());
    let mut view = world.view();
    view.refused = Some(AdapterError::Permanent("another label".to_owned()));
    view.drain_time = Duration::from_secs(15);
    world.memory.begin_look(&view, world.now);
    for (passed, left) in [(0, 15), (10, 15 - 10), (20, 0)] {
        let now = world.now + Duration::from_secs(passed);
        let drains = Duration::from_secs(left);
        assert_eq!(refused_drain(&view, &world.memory, now), drains);
        assert_eq!(all_drained(&view, &world.memory, now), left == 0);
    }
    // Nobody waits for a Pod that serves, or that is not protected.
    view.pods.get_mut(&uid).unwrap().protected = false;
    assert!(all_drained(&view, &world.memory, world.now));
}
