//! A Pod during a move of its employer from one adapter to another. Several load balancers may send requests to it then.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::known::Known;
use super::marks::{Mark, marks};
use super::memory::Memory;
use super::reach::Reach;
use super::view::View;
use crate::{Control, Presence};

/// What one load balancer does with a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The Pod should serve, and does at all its members.
    On,
    /// It should not serve, gets no request, and none is open.
    Off,
    /// Neither is certain.
    Unclear,
}

/// What a load balancer did with a Pod when it was last looked at.
#[derive(Clone, Debug)]
pub struct PodPlace {
    /// What it did.
    pub place: Place,
    /// The operations that kept the Pod off then.
    operations: BTreeSet<String>,
    /// Whether somebody else changes the members, so that it is true only until the Pod turns.
    observes: bool,
    /// When it was known.
    at: Timestamp,
}

/// The time makes no difference: nothing has to be decided again.
impl PartialEq for PodPlace {
    fn eq(&self, other: &PodPlace) -> bool {
        (self.place, &self.operations) == (other.place, &other.operations)
    }
}

impl Eq for PodPlace {}

impl PodPlace {
    /// Whether the present adapter has seen the Pod turn since then, so that the former one must be asked again.
    pub fn is_outdated(&self, memory: &Memory, uid: &str) -> bool {
        let turned = memory.turned_at(uid);
        self.observes && turned.is_some_and(|turned| self.at < turned)
    }

    /// What is known of it now: a Pod may have turned since then.
    pub fn as_of(&self, view: &View, memory: &Memory, uid: &str) -> Place {
        let input = view.pods.get(uid);
        match self.place {
            _ if self.is_outdated(memory, uid) => Place::Unclear,
            Place::Off if input.is_none_or(|input| input.may_have_been_on(&self.operations)) => {
                Place::Unclear
            }
            place => place,
        }
    }
}

/// What a load balancer does with each Pod, by UID.
pub fn places(view: &View, memory: &Memory, now: Timestamp) -> BTreeMap<String, PodPlace> {
    let place = |(uid, mark): (String, Mark)| {
        let place = match mark {
            // An adapter that registers nobody lacks no member.
            Mark::Protect if memory.does_serve(view, &uid) => Place::On,
            // A Pod that nobody protects may be on and off again before the next look.
            Mark::Release if view.is_protected(&uid) => Place::Off,
            _ => Place::Unclear,
        };
        let input = view.pods.get(&uid);
        let operations = input.map(|input| input.operations.clone());
        let operations = operations.unwrap_or_default();
        let place = PodPlace {
            place,
            operations,
            observes: view.settings.control == Control::Observes,
            at: now,
        };
        (uid, place)
    };
    marks(view, memory, now).into_iter().map(place).collect()
}

/// The mark of a Pod by the present adapter, with what the former ones do with the Pod. `is_new` says that the present one
/// has never registered a member.
pub fn mark_in_move(
    view: &View,
    memory: &Memory,
    uid: &str,
    mark: Mark,
    formers: &[Place],
    is_new: bool,
) -> Mark {
    let all_off = formers.iter().all(|place| *place == Place::Off);
    match (mark, view.should_serve(uid)) {
        (_, true) if formers.contains(&Place::On) => Mark::Protect,
        // With the protection, it would count as available when it comes back, before it serves. The next operation protects
        // it again.
        (Mark::Keep(_), false)
            if all_off && (nobody_waits(view, uid) || is_new && has_nothing(view, memory, uid)) =>
        {
            Mark::Release
        }
        (Mark::Release, false) if !all_off => {
            let reason = "the adapter that managed the employer before may still send it requests";
            Mark::Keep(reason.to_owned())
        }
        (mark, _) => mark,
    }
}

/// Whether a Pod is off for another reason than an operation or its deletion.
fn nobody_waits(view: &View, uid: &str) -> bool {
    let input = view.pods.get(uid);
    !view.deleting && input.is_some_and(|input| input.selected && input.operations.is_empty())
}

/// Whether no member is known that may send requests to a Pod.
fn has_nothing(view: &View, memory: &Memory, uid: &str) -> bool {
    let reach = Reach::new(memory.members.values());
    let keys = reach.keys(view, uid).into_iter();
    let mut known = keys.filter_map(|key| memory.members.get(&key));
    let registered =
        |known: &Known| known.presence != Presence::Absent || known.late.may_reach(uid);
    !known.any(registered)
}
