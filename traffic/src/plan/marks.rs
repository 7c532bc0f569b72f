//! What each Pod's state permits: protect, release or keep.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::departure::drained_at;
use super::memory::Memory;
use super::open::{OpenMember, open_members};
use super::reach::Reach;
use super::view::View;
use super::waiting::Waiting;
use crate::{Control, MemberKey, Presence};

/// What may happen with the finalizer by which an employer protects a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// All members of the Pod serve: the Pod is protected from now on.
    Protect,
    /// No member of the Pod gets a request, and none is open: the Pod may be changed.
    Release,
    /// Neither is certain, for this reason. The finalizer stays as it is.
    Keep(String),
}

type Open<'a> = BTreeMap<&'a MemberKey, OpenMember<'a>>;

/// The mark of each Pod, by UID.
pub fn marks(view: &View, memory: &Memory, now: Timestamp) -> BTreeMap<String, Mark> {
    let reach = Reach::new(memory.members.values());
    let open = open_members(view, memory, now);
    let observes = view.settings.control == Control::Observes;
    let mark = |uid: &String| {
        let mark = match (&view.refused, view.should_serve(uid)) {
            (Some(error), _) => Mark::Keep(error.to_string()),
            (None, true) => mark_on(view, memory, uid, &open),
            // Whoever registers the members of a deleted employer removes them, but perhaps only when it is gone.
            (None, false) if view.deleting && observes => Mark::Release,
            (None, false) => mark_off(view, memory, uid, &reach, &open, now),
        };
        (uid.clone(), mark)
    };
    view.pods.keys().map(mark).collect()
}

/// The mark of a Pod that should serve.
fn mark_on(view: &View, memory: &Memory, uid: &str, open: &Open) -> Mark {
    if let Some(reason) = view.obstacle(uid) {
        return Mark::Keep(reason);
    }
    if let Some(reason) = not_read(view, memory, uid) {
        return Mark::Keep(reason);
    }
    let mut keys = view.planned_keys(uid).into_iter();
    match keys.find_map(|key| open.get(&key)) {
        Some(open) => Mark::Keep(Waiting::for_member(view, memory, open).to_string()),
        None => Mark::Protect,
    }
}

/// The mark of a Pod that should not serve.
fn mark_off(
    view: &View,
    memory: &Memory,
    uid: &str,
    reach: &Reach,
    open: &Open,
    now: Timestamp,
) -> Mark {
    if let Some(reason) = not_read(view, memory, uid) {
        return Mark::Keep(reason);
    }
    let keys = reach.keys(view, uid);
    if let Some(reason) = unreadable_of(memory, &keys) {
        return Mark::Keep(reason);
    }
    let key = match view.settings.control {
        Control::Observes if drained_at(view, memory, uid).is_some_and(|at| at <= now) => None,
        Control::Observes => {
            let is_open = |key: &&MemberKey| open.contains_key(*key);
            let Some(key) = keys.iter().find(is_open).or(keys.first()) else {
                // It was a member before its port was changed to one that it lacks.
                return Mark::Keep("requests may still be open".to_owned());
            };
            Some(key)
        }
        _ => keys.iter().find(|key| !is_off(view, memory, uid, key)),
    };
    key.map_or(Mark::Release, |key| {
        Mark::Keep(off_reason(view, memory, uid, key, open))
    })
}

/// Whether a Pod that should not serve gets no request at a member.
fn is_off(view: &View, memory: &Memory, uid: &str, key: &MemberKey) -> bool {
    let Some(known) = memory.members.get(key) else {
        return true; // a complete read has not listed it
    };
    if known.presence == Presence::Unknown {
        return false; // the last change of it may have been for this Pod
    }
    if known.late.may_reach(uid) {
        return false;
    }
    let registered_for = &known.member.pod.uid;
    if !registered_for.is_empty() && registered_for != uid {
        return true; // the load balancer sends these requests to another Pod
    }
    match view.wanted.get(key) {
        // Another Pod has the address now. Requests reach this Pod only if its containers still run.
        Some(_) => view.pods.get(uid).is_some_and(|input| input.ended),
        None => known.presence == Presence::Absent,
    }
}

fn off_reason(view: &View, memory: &Memory, uid: &str, key: &MemberKey, open: &Open) -> String {
    if let Some(member) = view.wanted.get(key) {
        return format!("Pod {} serves at its address and port", member.pod.name);
    }
    match open.get(key) {
        Some(open) => Waiting::for_member(view, memory, open),
        None => Waiting::for_pod(view, memory, uid, key),
    }
    .to_string()
}

/// Why the members are not known, if they are not.
fn not_read(view: &View, memory: &Memory, uid: &str) -> Option<String> {
    let failed = || {
        let failure = memory.failure.as_ref();
        failure.map_or_else(
            || "the load balancer has not been read yet".to_owned(),
            |failure| format!("the load balancer can't be read: {}", failure.error),
        )
    };
    let Some(observed) = memory.observed else {
        return Some(failed());
    };
    let turned = memory.turned_at(uid);
    let is_old = turned.is_none_or(|turned| observed < turned);
    (view.settings.control == Control::Observes && is_old).then(failed)
}

/// Why a group that the last read left out keeps the Pod, if it does.
fn unreadable_of(memory: &Memory, keys: &BTreeSet<MemberKey>) -> Option<String> {
    let mut unreadable = memory.unreadable.iter();
    let unread = unreadable.find(|(group, _)| {
        let concerns = keys.iter().any(|key| key.group == **group);
        concerns || !memory.read_groups.contains(*group)
    });
    unread.map(|(group, error)| format!("group {group} can't be read: {error}"))
}
