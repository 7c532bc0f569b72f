//! A Pod during a move of its employer from one adapter to another. Several load balancers may send requests to it then.

use std::collections::BTreeMap;

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
    /// It should serve, and gets no new requests. Some may be open.
    Idle,
    /// It should not serve, gets no request, and none is open.
    Off,
    /// Neither is certain.
    Unclear,
}

/// What a load balancer does with each Pod, by UID.
pub fn places(view: &View, memory: &Memory, now: Timestamp) -> BTreeMap<String, Place> {
    let reach = Reach::new(memory.members.values());
    let observes = view.settings.control == Control::Observes;
    let place = |(uid, mark): (String, Mark)| {
        let keys = reach.keys(view, &uid);
        let is_idle = || {
            let mut known = keys.iter().filter_map(|key| memory.members.get(key));
            memory.is_read() && !observes && !known.any(|known| may_be_on(known, &uid))
        };
        let place = match mark {
            // An adapter that registers nobody lacks no member.
            Mark::Protect if memory.does_serve(view, &uid) => Place::On,
            Mark::Release => Place::Off,
            _ if view.should_serve(&uid) && is_idle() => Place::Idle,
            _ => Place::Unclear,
        };
        (uid, place)
    };
    marks(view, memory, now).into_iter().map(place).collect()
}

/// The mark of a Pod by the present adapter, with what the former ones do with the Pod. `is_new` says that the present one
/// had no members before this leader began the move.
pub fn mark_in_move(
    view: &View,
    memory: &Memory,
    uid: &str,
    mark: Mark,
    formers: &[Place],
    is_new: bool,
) -> Mark {
    let all_off = formers.iter().all(|place| *place == Place::Off);
    let all_idle = formers
        .iter()
        .all(|place| matches!(place, Place::Off | Place::Idle));
    let may_serve = || {
        let reach = Reach::new(memory.members.values());
        let keys = reach.keys(view, uid).into_iter();
        let mut known = keys.filter_map(|key| memory.members.get(&key));
        let is_known = memory.is_read() || is_new;
        !is_known || known.any(|known| may_be_on(known, uid))
    };
    match (mark, view.should_serve(uid)) {
        (Mark::Protect, _) => Mark::Protect,
        (_, true) if formers.contains(&Place::On) => Mark::Protect,
        // It was off, and is nowhere on traffic yet. With the protection it would count as available.
        (Mark::Keep(_), true) if !formers.is_empty() && all_idle && !may_serve() => Mark::Release,
        (Mark::Release, false) if !all_off => {
            let reason = "the adapter that managed the employer before may still send it requests";
            Mark::Keep(reason.to_owned())
        }
        (mark, _) => mark,
    }
}

/// Whether a member may get requests for this Pod, or may be about to.
fn may_be_on(known: &Known, uid: &str) -> bool {
    known.is_on() || known.presence == Presence::Unknown || known.late.may_reach(uid)
}
