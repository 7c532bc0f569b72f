//! Load balancers whose answers a test writes: removals that take long, and weights that are not taken.

use std::cell::RefCell;
use std::time::Duration;

use super::cases::world_of_one;
use super::world::World;
use crate::plan::*;
use crate::{AdapterError, Applied, Changes, Control, Member, Observation, Presence, Registration};

/// A load balancer whose answers a test writes.
struct Script<'a> {
    world: &'a mut World,
    applies: usize,
}

impl Script<'_> {
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

/// The answer of a read that lists one member.
fn listing(member: &Member, presence: Presence) -> Result<Observation, AdapterError> {
    let registration = Registration {
        member: member.clone(),
        presence,
        connections: None,
    };
    Ok(Observation {
        registrations: vec![registration],
        ..Observation::default()
    })
}

fn all_answered(changes: &Changes, presence: &Presence) -> Applied {
    let answer = |member: &Member| (member.key.clone(), Ok(presence.clone()));
    changes.members().map(answer).collect()
}

/// A load balancer may answer a removal with `Draining` while requests go on.
#[test]
fn removal_answered_with_draining_is_not_repeated_without_a_pause() {
    let (mut world, uid) = world_of_one(Control::Drains);
    world.balancer.counts = false;
    world.look();
    let entry = world.balancer.entries.values().next().unwrap();
    let member = entry.member.clone();
    world.begin_operation(&uid);
    world.now += Duration::from_secs(60);
    let presence = RefCell::new(Presence::Serving);
    let mut script = Script {
        world: &mut world,
        applies: 0,
    };
    script.run(
        60,
        &mut || listing(&member, presence.borrow().clone()),
        &mut |changes| {
            *presence.borrow_mut() = Presence::Draining { until: None };
            all_answered(changes, &presence.borrow())
        },
    );
    assert!(script.applies <= 20, "{} changes in 60 s", script.applies);
}

/// A load balancer has its own weights, and its new members are pending for a moment.
#[test]
fn weight_that_is_accepted_and_not_taken_is_not_set_without_a_pause() {
    for answer in [Presence::Serving, Presence::Pending] {
        let (mut world, _) = world_of_one(Control::Drains);
        world.look();
        let entry = world.balancer.entries.values().next().unwrap();
        let mut member = entry.member.clone();
        member.weight = 1;
        world.memory.read_again();
        world.now += Duration::from_secs(60);
        let mut script = Script {
            world: &mut world,
            applies: 0,
        };
        script.run(
            60,
            &mut || listing(&member, Presence::Serving),
            &mut |changes| all_answered(changes, &answer),
        );
        assert!(
            script.applies <= 12,
            "{answer:?}: {} changes in 60 s",
            script.applies
        );
        let summary = Summary::of(&world.view(), &world.memory, world.now);
        let is_told = summary
            .last_error
            .is_some_and(|error| error.contains("with its weight"));
        // After `Serving`, only the next read of a member at rest shows it.
        assert_eq!(is_told, answer == Presence::Pending);
    }
}
