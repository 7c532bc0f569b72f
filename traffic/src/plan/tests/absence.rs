//! When a Pod counts as drained whose members somebody else changes.

use std::time::Duration;

use super::cases::world_of_one;
use crate::plan::*;
use crate::{AdapterError, Control, Observation, Presence, Registration};

/// The answers to reads, one each second, after which a Pod that should not serve is drained since the last.
fn drained_since_the_last(answers: &[&str]) {
    let (mut world, uid) = world_of_one(Control::Observes);
    let view = world.view();
    let member = view.wanted.values().next().unwrap().clone();
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    let view = world.view();
    world.memory.begin_look(&view, world.now);
    for answer in answers {
        world.now += Duration::from_secs(1);
        let mut observation = Observation::default();
        match *answer {
            "present" => observation.registrations.push(Registration {
                member: member.clone(),
                presence: Presence::Serving,
                connections: None,
            }),
            "unreadable" => {
                let error = AdapterError::Transient("busy".to_owned());
                observation.unreadable_groups.push(("g".to_owned(), error));
            }
            _ => {}
        }
        let read = Ok(observation);
        world.memory.observed(&view, read, world.now, world.now);
    }
    let drained = world.now + view.drain_time;
    let mark = |now| marks(&view, &world.memory, now)[&uid].clone();
    let early = mark(drained - Duration::from_millis(1));
    assert!(matches!(early, Mark::Keep(_)), "{answers:?}");
    assert_eq!(mark(drained), Mark::Release, "{answers:?}");
}

#[test]
fn absence_counts_from_the_first_read_that_no_other_has_contradicted() {
    drained_since_the_last(&["absent"]);
    drained_since_the_last(&["present", "absent"]);
    drained_since_the_last(&["absent", "present", "absent"]);
    drained_since_the_last(&["unreadable", "absent"]);
    drained_since_the_last(&["absent", "unreadable", "absent"]);
}
