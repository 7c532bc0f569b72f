//! Cases of a reader who attacks the plan.

use std::time::Duration;

use super::cases::world_of_one;
use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Applied, Changes, Control, Observation, Presence, Registration};

/// A load balancer whose answers a test writes.
struct Rig<'a> {
    world: &'a mut World,
    observes: usize,
    applies: usize,
}

impl Rig<'_> {
    fn run(
        &mut self,
        seconds: u64,
        observe: &mut dyn FnMut() -> Result<Observation, AdapterError>,
        apply: &mut dyn FnMut(&Changes) -> Applied,
    ) {
        let end = self.world.now + Duration::from_secs(seconds);
        while self.world.now < end {
            let view = self.world.view();
            self.world.memory.begin_look(&view, self.world.now);
            let (mut calls, mut observed) = (0, false);
            let wake = loop {
                let now = self.world.now;
                match next_call(&view, &self.world.memory, calls, observed, now) {
                    Next::Wait(until) => break until,
                    Next::Observe => {
                        self.world.memory.begin_call(calls == 0, now);
                        self.observes += 1;
                        let result = observe();
                        self.world.memory.observed(&view, result, now, now);
                        observed = true;
                    }
                    Next::Apply(changes) => {
                        self.world.memory.begin_call(calls == 0, now);
                        self.applies += 1;
                        let applied = apply(&changes);
                        self.world.memory.applied(&view, &changes, applied, now);
                    }
                }
                calls += 1;
            };
            let soon = self.world.now + Duration::from_millis(50);
            self.world.now = wake.unwrap_or(end).max(soon).min(end.max(soon));
        }
    }
}

/// Rule 4 of traffic-http.md: `deregister` may be answered with `Draining` while requests go on.
#[test]
fn removal_answered_with_draining_is_not_repeated_without_a_pause() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.balancer.counts = false;
    world.look();
    let member = world.balancer.entries.values().next().unwrap().member.clone();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.protected.insert(uid.clone());
    world.now += Duration::from_secs(60);
    let state = std::cell::RefCell::new(Presence::Serving);
    let mut rig = Rig { world: &mut world, observes: 0, applies: 0 };
    rig.run(
        60,
        &mut || {
            Ok(Observation {
                registrations: vec![Registration {
                    member: member.clone(),
                    presence: state.borrow().clone(),
                    connections: None,
                }],
                ..Observation::default()
            })
        },
        &mut |changes| {
            *state.borrow_mut() = Presence::Draining { until: None };
            changes
                .members()
                .map(|m| (m.key.clone(), Ok(Presence::Draining { until: None })))
                .collect()
        },
    );
    let (observes, applies) = (rig.observes, rig.applies);
    assert!(applies <= 20, "{applies} applies, {observes} reads in 60 s");
}

/// A load balancer that has its own weights, and whose new members are pending.
#[test]
fn weight_that_is_accepted_and_not_taken_is_not_set_without_a_pause() {
    for answer in [Presence::Serving, Presence::Pending] {
        let (mut world, _) = world_of_one(Control::Drains);
        world.look();
        let mut member = world.balancer.entries.values().next().unwrap().member.clone();
        member.weight = 1;
        world.memory.read_again();
        world.now += Duration::from_secs(60);
        let mut rig = Rig { world: &mut world, observes: 0, applies: 0 };
        rig.run(
            60,
            &mut || {
                Ok(Observation {
                    registrations: vec![Registration {
                        member: member.clone(),
                        presence: Presence::Serving,
                        connections: None,
                    }],
                    ..Observation::default()
                })
            },
            &mut |changes| {
                changes
                    .members()
                    .map(|m| (m.key.clone(), Ok(answer.clone())))
                    .collect()
            },
        );
        let (observes, applies) = (rig.observes, rig.applies);
        let view = world.view();
        let summary = Summary::of(&view, &world.memory, world.now);
        eprintln!("{answer:?}: {applies} applies, {observes} reads in 60 s; {summary:?}");
        assert!(applies <= 12, "{answer:?}: {applies} applies, {observes} reads in 60 s");
    }
}

/// A registration that was accepted, and a read that is late and does not list it yet.
#[test]
fn late_read_after_an_accepted_registration_releases_nobody() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.look();
    assert!(world.protected.contains(&uid));
    world.now += Duration::from_secs(1);
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    // A read that shows the time before the registration.
    let late = Ok(Observation::default());
    world.memory.observed(&view, late, world.now, world.now);
    let mark = marks(&view, &world.memory, world.now).remove(&uid).unwrap();
    assert!(matches!(mark, Mark::Keep(_)), "{mark:?} while {:?}", world.balancer.entries);
}

/// An operation is undone and another begins between two looks. Both looks see the Pod off and protected.
#[test]
fn pod_that_was_on_between_two_looks_and_protected_in_both_is_drained_again() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(1);
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.protected.insert(uid.clone());
    world.pass();
    world.now += Duration::from_secs(1);
    world.look();
    for _ in 0..4 {
        world.now += Duration::from_secs(2);
        world.look();
    }
    assert!(world.protected.contains(&uid));
    // Undone, on, and off again by another operation.
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    world.pass();
    world.now += Duration::from_secs(3);
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.pass();
    world.now += Duration::from_secs(1);
    world.look();
    assert!(world.protected.contains(&uid), "requests may be open");
}

/// The port of the employer changes to one that the Pod lacks, so that somebody else takes it off. It drains all the same.
#[test]
fn pod_without_the_port_drains_where_somebody_else_changes_members() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(1);
    world.look();
    assert!(world.protected.contains(&uid));
    world.now += Duration::from_secs(30);
    world.look();
    world.now += Duration::from_secs(1);
    // No member is planned any more.
    world.shape = Vec::new();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.pass();
    assert!(world.balancer.entries.is_empty());
    world.look();
    assert!(world.protected.contains(&uid), "requests may be open");
}

/// The same, and whoever changes members has not taken the Pod off again. Nothing is read, because no turn was seen.
#[test]
fn pod_that_serves_again_is_not_released_by_an_old_read() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(60);
    world.look();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.pass();
    world.now += Duration::from_secs(2);
    world.look();
    world.now += Duration::from_secs(2);
    world.look();
    assert!(world.protected.contains(&uid));
    // Undone: it is on, and serves.
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    world.pass();
    assert_eq!(world.balancer.entries.len(), 1);
    world.now += Duration::from_secs(9);
    // Another operation begins, and takes it off a moment ago.
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let calls = world.calls;
    world.look();
    let released = !world.protected.contains(&uid);
    assert!(!released, "{} reads; {:?}", world.calls - calls, world.balancer.entries);
}

/// An operation begins and is undone between two looks. Whoever changes members has taken the Pod off meanwhile.
#[test]
fn pod_that_was_off_between_two_looks_is_read_before_it_is_protected() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(60);
    world.look();
    assert!(world.protected.contains(&uid));
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    world.pass();
    assert!(world.balancer.entries.is_empty());
    world.pods.get_mut(&uid).unwrap().pod.on = true; // the same write removes the protection
    world.protected.remove(&uid);
    world.now += Duration::from_secs(2);
    world.look();
    assert!(!world.protected.contains(&uid), "it is on no load balancer");
}

/// A Pod has the address of one that has ended and is still stored. With a named port, only the former one plans the
/// member that is registered. (Fails without the mend in `view.rs`.)
#[test]
fn ended_pod_does_not_hide_the_member_of_the_pod_at_its_address() {
    use crate::{Member, MemberKey, Pod, PodId, Settings};
    struct Named;
    #[async_trait::async_trait]
    impl crate::Adapter for Named {
        fn settings(&self) -> Settings {
            Settings { drain_time: Duration::from_secs(10), ..Settings::default() }
        }
        fn members(&self, _: &crate::Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
            let port = pod.labels["port"].parse().unwrap();
            let key = |address: &std::net::IpAddr| MemberKey { group: "g".to_owned(), address: *address, port };
            let member = |address| Member { key: key(address), pod: pod.id.clone(), weight: 1 };
            Ok(pod.addresses.iter().map(member).collect())
        }
        async fn observe(&self, _: &crate::Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
            Ok(Observation::default())
        }
        async fn apply(&self, _: &crate::Employer, _: &Changes) -> Applied {
            Applied::new()
        }
    }
    let input = |uid: &str, port: &str, on: bool, ended: bool| PodInput {
        pod: Pod {
            id: PodId { uid: uid.to_owned(), name: uid.to_owned() },
            addresses: vec!["10.0.0.1".parse().unwrap()],
            labels: [("port".to_owned(), port.to_owned())].into(),
            on,
            ..Pod::default()
        },
        selected: true,
        protected: true,
        ended,
    };
    // The load balancer has 10.0.0.1:80 of the time before the target port got a name, and names no Pod.
    let registration = Registration {
        member: Member {
            key: MemberKey { group: "g".to_owned(), address: "10.0.0.1".parse().unwrap(), port: 80 },
            pod: PodId::default(),
            weight: 1,
        },
        presence: Presence::Serving,
        connections: Some(3),
    };
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for on in [true, false] {
        let pods = vec![input("a-ended", "80", false, true), input("b-live", "81", on, false)];
        let view = View::new(&Named, &crate::Employer::default(), None, pods);
        let mut memory = Memory::default();
        memory.begin_look(&view, now);
        let read = Observation { registrations: vec![registration.clone()], ..Observation::default() };
        memory.observed(&view, Ok(read), now, now);
        let mark = marks(&view, &memory, now).remove("b-live").unwrap();
        let next = next_call(&view, &memory, 1, true, now);
        if on {
            assert!(
                !matches!(&next, Next::Apply(changes) if !changes.deregister.is_empty()),
                "the only member of a live Pod is cut off: {next:?}"
            );
        } else {
            assert!(matches!(mark, Mark::Keep(_)), "{mark:?} while 10.0.0.1:80 serves");
        }
    }
}
