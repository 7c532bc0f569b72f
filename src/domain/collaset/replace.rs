//! Pairs: an origin that is to be replaced, and the new Pod that takes its place once it is available (contract 6.6).

use std::sync::Arc;

use super::draft::Draft;
use super::facts::Facts;
use super::lifecycle::{self, Operation};
use super::pool;
use super::room::Room;
use crate::api::keys;
use crate::domain::lifecycle::by_hand;
use crate::domain::pod::Pod;

/// Opens, follows, cancels and closes pairs.
pub fn step(facts: &Facts, draft: &mut Draft) {
    let mut room = Room::beside(facts, draft);
    for (id, pod) in &facts.members {
        if pod.label(keys::TO_REPLACE).is_some() {
            follow(facts, draft, &mut room, *id, pod);
        } else if pod.label(keys::REPLACE_PAIR_NEW_ID).is_some()
            || pool::is_marked(draft, *id, pool::REPLACE_NEW)
        {
            cancel(facts, draft, *id, pod);
        }
    }
    close(facts, draft);
    let replaced = draft
        .ids
        .iter()
        .filter(|(_, data)| data.contains_key(pool::REPLACED));
    for id in replaced.map(|(id, _)| *id).collect::<Vec<_>>() {
        match facts.members.contains_key(&id) {
            true => pool::unmark(draft, id, pool::REPLACED),
            false => pool::retire(facts, draft, id),
        }
    }
}

fn follow(facts: &Facts, draft: &mut Draft, room: &mut Room, id: i64, origin: &Arc<Pod>) {
    let wanted = pair_revision(facts, origin);
    let known = draft
        .ids
        .get(&id)
        .and_then(pool::new_of)
        // Its own ID it may have been given by hand.
        .filter(|new| *new != id && draft.ids.contains_key(new));
    let new = match known {
        Some(new) => new,
        None => {
            let unfinished_new = draft
                .ids
                .get(&id)
                .is_some_and(|data| pool::is_new_half(facts, data));
            if facts.strategy.paused || unfinished_new || Operation::ScaleIn.is_on(origin) {
                return; // one that is going, or has yet to take a place itself
            }
            if !room.take_half() {
                return; // once other pairs are over
            }
            let new = pool::allocate_empty(facts, draft, Some(&wanted));
            pool::mark(draft, new, pool::JUST_CREATE, "true");
            pool::mark(draft, new, pool::REPLACE_ORIGIN, &id.to_string());
            pool::mark(draft, id, pool::REPLACE_NEW, &new.to_string());
            let name = &origin.metadata.name;
            draft.event(
                false,
                "ReplaceTarget",
                format!("Pod {name} is being replaced"),
            );
            new
        }
    };
    draft.label(origin, keys::REPLACE_PAIR_NEW_ID, Some(new.to_string()));
    pool::mark(draft, new, pool::REPLACE_ORIGIN, &id.to_string());
    if is_stopped(facts, origin) {
        return;
    }
    match facts.members.get(&new) {
        Some(pod)
            if pod.label(keys::REVISION) != Some(&wanted)
                && pod.label(keys::REVISION).is_some()
                && !facts.must_leave(origin)
                && !serves_alone(pod, origin) =>
        {
            // Made of a revision that is no longer wanted: it goes, and another is made under its ID. Not before its origin is
            // called back: that write may come too late, and both would go.
            pool::mark(draft, new, pool::REVISION, &wanted);
            if !lifecycle::is_leaving(origin) {
                let why =
                    "it is the new Pod of a replacement, of a revision that is no longer wanted";
                send_half_away(facts, draft, pod, why);
            }
        }
        Some(pod) if takes_place_of(pod, origin) => {
            // One that is to be excluded leaves by itself.
            if !facts.leaves_alive(origin) {
                draft.send_away(origin, facts.observed.now_nanos);
            }
        }
        Some(_) => {}
        None => pool::mark(draft, new, pool::REVISION, &wanted),
    }
}

/// Whether a pair that an update has opened stays as it is, since the set is paused.
pub fn is_stopped(facts: &Facts, origin: &Pod) -> bool {
    facts.strategy.paused && origin.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some()
}

/// Whether a new half is there that takes the place of a Pod.
pub fn is_replaced(facts: &Facts, draft: &Draft, id: i64, origin: &Pod) -> bool {
    let new = draft.ids.get(&id).and_then(pool::new_of);
    let half = new.and_then(|new| facts.members.get(&new));
    let wanted = pair_revision(facts, origin);
    origin.label(keys::TO_REPLACE).is_some()
        && half.is_some_and(|half| {
            let revision = half.label(keys::REVISION);
            revision.is_none_or(|revision| revision == wanted) && takes_place_of(half, origin)
        })
}

/// The new half of an origin whose pair was called off, and that stays for now as it serves alone.
pub fn open_half<'a>(facts: &'a Facts, draft: &Draft, origin: &Pod) -> Option<&'a Pod> {
    let entry = draft.ids.get(&facts.id_of(origin)?)?;
    let half = facts.members.get(&pool::new_of(entry)?)?;
    let stays = serves_alone(half, origin) && !lifecycle::is_leaving(half);
    stays.then_some(&**half)
}

/// Whether the new half serves and its origin does not: it stays until the origin serves, or stands for it.
fn serves_alone(half: &Pod, origin: &Pod) -> bool {
    half.is_available() && !origin.is_available()
}

fn takes_place_of(half: &Pod, origin: &Pod) -> bool {
    by_hand::replaces(half, origin) && !lifecycle::is_leaving(half)
}

/// The revision that the new Pod gets: that of the update which asked for the pair, else the origin's own.
fn pair_revision(facts: &Facts, origin: &Pod) -> String {
    let named = [keys::REPLACED_BY_REPLACE_UPDATE, keys::REVISION]
        .into_iter()
        .filter_map(|key| origin.label(key))
        .find(|name| facts.history.find(name).is_some());
    named.unwrap_or(&facts.history.updated.name).to_owned()
}

/// The request was taken back: the new Pod goes, available or not (contract Q36), unless the rules have let the origin
/// go already.
fn cancel(facts: &Facts, draft: &mut Draft, id: i64, origin: &Arc<Pod>) {
    if facts.must_leave(origin) {
        return;
    }
    // An update that takes the pair over sets it anew in this plan.
    if origin.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some() {
        draft.label(origin, keys::REPLACED_BY_REPLACE_UPDATE, None);
    }
    let new = draft
        .ids
        .get(&id)
        .and_then(pool::new_of)
        .or_else(|| origin.label(keys::REPLACE_PAIR_NEW_ID)?.parse().ok());
    match new.and_then(|new| facts.members.get(&new)) {
        Some(pod) if pod.label(keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&origin.metadata.name) => {
            // Not before its origin is called back: that write may come too late, and both would go.
            if !lifecycle::is_leaving(origin) && !serves_alone(pod, origin) {
                let why = "it is the new Pod of a replacement that was taken back";
                send_half_away(facts, draft, pod, why);
            }
        }
        // The name of the new Pod persists, and so does its ID until it is gone.
        None if new.is_some_and(|new| facts.is_held(new)) => {}
        // Gone, or the new Pod of another: somebody changed IDs by hand.
        _ => {
            draft.label(origin, keys::REPLACE_PAIR_NEW_ID, None);
            pool::unmark(draft, id, pool::REPLACE_NEW);
            // The label alone proves nothing: it may name an instance like any other, or the new half of another pair.
            let is_half = |new: &i64| draft.ids.get(new).and_then(pool::origin_of) == Some(id);
            if let Some(new) = new.filter(is_half) {
                part(facts, draft, new);
            }
        }
    }
}

/// Whoever is on the way out already goes without a word.
fn send_half_away(facts: &Facts, draft: &mut Draft, half: &Arc<Pod>, why: &str) {
    if !facts.must_leave(half) {
        if facts.leaves_alive(half) && half.label(keys::TO_DELETE).is_none() {
            let name = &half.metadata.name;
            let message = format!("Pod {name} is deleted and can't be excluded: {why}");
            draft.event(true, "ExcludeNotAllowed", message);
        }
        draft.send_away(half, facts.observed.now_nanos);
    }
}

/// Where the origin is gone, or is terminating and never comes back, the new Pod stands on its own, and the origin's ID is free.
fn close(facts: &Facts, draft: &mut Draft) {
    let links: Vec<(i64, i64)> = draft
        .ids
        .iter()
        .filter_map(|(id, data)| Some((*id, pool::origin_of(data)?)))
        .collect();
    for (new, origin) in links {
        if facts.is_there(origin) {
            let linked = draft.ids.get(&origin).and_then(pool::new_of) == Some(new);
            if !linked {
                part(facts, draft, new);
            }
            continue;
        }
        let Some(pod) = facts.members.get(&new) else {
            // Neither half is there: one ID is enough for the Pod that is made again.
            let revision = draft
                .ids
                .get(&new)
                .and_then(|data| data.get(pool::REVISION).cloned());
            if draft.ids.contains_key(&origin) {
                draft.ids.remove(&new);
                pool::unmark(draft, origin, pool::REPLACE_NEW);
                if let Some(revision) = revision {
                    pool::mark(draft, origin, pool::REVISION, &revision);
                }
            } else {
                pool::unmark(draft, new, pool::REPLACE_ORIGIN);
            }
            continue;
        };
        pool::unmark(draft, new, pool::REPLACE_ORIGIN);
        pool::retire(facts, draft, origin);
        stand_alone(draft, pod);
    }
    // A label that speaks of a Pod that is gone, with a pool that knows nothing of it.
    for (id, pod) in &facts.members {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        let known = draft
            .ids
            .get(id)
            .is_some_and(|data| pool::origin_of(data).is_some());
        if origin.is_some() && !known {
            stand_alone(draft, pod);
        }
    }
}

/// Ends a pair of which the origin knows nothing: its Pod, if there is one, counts like any other from now on.
fn part(facts: &Facts, draft: &mut Draft, new: i64) {
    pool::unmark(draft, new, pool::REPLACE_ORIGIN);
    match facts.members.get(&new) {
        Some(pod) => stand_alone(draft, pod),
        None if !facts.is_held(new) => pool::retire(facts, draft, new),
        None => {}
    }
}

/// Takes off what says that a Pod is a new half.
fn stand_alone(draft: &mut Draft, pod: &Arc<Pod>) {
    draft.label(pod, keys::REPLACE_PAIR_ORIGIN_NAME, None);
    if pod.annotation(keys::REPLACES).is_some() {
        draft.annotation(pod, keys::REPLACES, None);
    }
}
