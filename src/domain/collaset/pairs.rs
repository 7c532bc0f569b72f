//! Replace pairs: an origin, and the new Pod that takes its place once it is available (contract 6.6). The code also
//! calls the new Pod the new half of the pair.

use std::sync::Arc;

use super::draft::Draft;
use super::headroom::Headroom;
use super::pool;
use super::set_facts::SetFacts;
use super::set_operations::{self, SetOperation};
use crate::api::keys;
use crate::domain::decoration::labels::decorations_of;
use crate::domain::lifecycle::manual_label;
use crate::domain::pod::Pod;

/// Opens, continues, cancels and closes pairs.
pub fn reconcile_pairs(facts: &SetFacts, draft: &mut Draft) {
    let mut headroom = Headroom::beside_draft(facts, draft);
    for (id, pod) in &facts.members {
        if pod.label(keys::TO_REPLACE).is_some() {
            follow_pair(facts, draft, &mut headroom, *id, pod);
        } else if pod.label(keys::REPLACE_PAIR_NEW_ID).is_some()
            || pool::has_entry_mark(draft, *id, pool::REPLACE_NEW)
        {
            cancel_pair(facts, draft, *id, pod);
        }
    }
    close_pairs(facts, draft);
    let replaced = draft
        .ids
        .iter()
        .filter(|(_, data)| data.contains_key(pool::REPLACED));
    for id in replaced.map(|(id, _)| *id).collect::<Vec<_>>() {
        match facts.members.contains_key(&id) {
            true => pool::remove_entry_mark(draft, id, pool::REPLACED),
            false => pool::retire_half_id(facts, draft, id),
        }
    }
}

fn follow_pair(
    facts: &SetFacts,
    draft: &mut Draft,
    headroom: &mut Headroom,
    id: i64,
    origin: &Arc<Pod>,
) {
    let wanted = new_half_revision(facts, origin);
    let recorded_id = draft
        .ids
        .get(&id)
        .and_then(pool::new_of)
        // Somebody may have written the origin's own ID as the ID of its new Pod.
        .filter(|new| *new != id && draft.ids.contains_key(new));
    let new = match recorded_id {
        Some(new) => new,
        None => {
            let unfinished_new = draft
                .ids
                .get(&id)
                .is_some_and(|data| pool::is_entry_of_half(facts, data));
            if facts.strategy.paused
                || unfinished_new
                || SetOperation::ScaleIn.is_in_progress(origin)
            {
                return; // the origin is scaled in, or is itself the new Pod of another pair
            }
            if !headroom.take_half() {
                return; // the pair opens once other pairs are over
            }
            let new = pool::allocate_id_without_volumes(facts, draft, Some(&wanted));
            pool::set_entry_mark(draft, new, pool::JUST_CREATE, "true");
            pool::set_entry_mark(draft, new, pool::REPLACE_ORIGIN, &id.to_string());
            pool::set_entry_mark(draft, id, pool::REPLACE_NEW, &new.to_string());
            let name = &origin.metadata.name;
            draft.announce_event(
                false,
                "ReplaceTarget",
                format!("Pod {name} is being replaced"),
            );
            new
        }
    };
    draft.patch_label(origin, keys::REPLACE_PAIR_NEW_ID, Some(new.to_string()));
    pool::set_entry_mark(draft, new, pool::REPLACE_ORIGIN, &id.to_string());
    if is_pair_paused(facts, origin) {
        return;
    }
    match facts.members.get(&new) {
        Some(pod)
            if !is_half_as_wanted(facts, draft, (new, pod), &wanted)
                && !facts.must_leave(origin)
                && !serves_alone(pod, origin) =>
        {
            // The new Pod has a revision that is no longer wanted: delete it and create another under its ID. First
            // withdraw the deletion of the origin. That withdrawal may come too late, and then both Pods would be
            // deleted.
            pool::set_entry_mark(draft, new, pool::REVISION, &wanted);
            if !set_operations::is_leaving(origin) {
                let reason =
                    "it is the new Pod of a replacement, of a revision that is no longer wanted";
                delete_new_half(facts, draft, pod, reason);
            }
        }
        Some(pod) if stands_in_for(pod, origin) => {
            // If the origin is asked to be excluded, it leaves by its exclusion.
            if !facts.leaves_alive(origin) {
                draft.request_deletion(origin, facts.observed.now_nanos);
            }
        }
        Some(_) => {}
        None => pool::set_entry_mark(draft, new, pool::REVISION, &wanted),
    }
}

/// Whether a pair that an update has opened stays as it is because the set is paused.
pub fn is_pair_paused(facts: &SetFacts, origin: &Pod) -> bool {
    facts.strategy.paused && origin.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some()
}

/// Whether a new Pod exists that can take the place of this origin.
pub fn has_replacement(facts: &SetFacts, draft: &Draft, id: i64, origin: &Pod) -> bool {
    let new = draft.ids.get(&id).and_then(pool::new_of);
    let half = new.and_then(|new| facts.members.get(&new));
    let wanted = new_half_revision(facts, origin);
    origin.label(keys::TO_REPLACE).is_some()
        && new.zip(half).is_some_and(|half| {
            is_half_as_wanted(facts, draft, half, &wanted) && stands_in_for(half.1, origin)
        })
}

/// Whether the new Pod of a pair is of the wanted revision and has the decorations that it should have. A Pod without a
/// known revision counts as wanted, because somebody has changed its label.
fn is_half_as_wanted(
    facts: &SetFacts,
    draft: &Draft,
    (id, half): (i64, &Arc<Pod>),
    wanted: &str,
) -> bool {
    let Some(revision) = half.label(keys::REVISION) else {
        return true;
    };
    let Some(template) = facts.history.find_revision(wanted) else {
        return revision == wanted;
    };
    let decorations =
        facts.wanted_decorations((id, draft.ids.get(&id)), (Some(half), true), template);
    revision == wanted && (facts.strategy.paused || decorations.sure == decorations_of(half))
}

/// The new Pod of an origin whose replacement was cancelled. The new Pod stays for now because it serves and the origin
/// does not serve.
pub fn serving_half_of_cancelled_pair<'a>(
    facts: &'a SetFacts,
    draft: &Draft,
    origin: &Pod,
) -> Option<&'a Pod> {
    let entry = draft.ids.get(&facts.instance_id_of(origin)?)?;
    let half = facts.members.get(&pool::new_of(entry)?)?;
    let stands_in = serves_alone(half, origin) && !set_operations::is_leaving(half);
    stands_in.then_some(&**half)
}

/// Whether the new Pod serves and its origin does not. Then the new Pod stays until the origin serves again, or until
/// the new Pod takes its place.
fn serves_alone(half: &Pod, origin: &Pod) -> bool {
    half.is_available() && !origin.is_available()
}

fn stands_in_for(half: &Pod, origin: &Pod) -> bool {
    manual_label::replaces_origin(half, origin) && !set_operations::is_leaving(half)
}

/// The revision of the new Pod: the revision of the update that asked for the replacement, otherwise the origin's own
/// revision.
fn new_half_revision(facts: &SetFacts, origin: &Pod) -> String {
    let named = [keys::REPLACED_BY_REPLACE_UPDATE, keys::REVISION]
        .into_iter()
        .filter_map(|key| origin.label(key))
        .find(|name| facts.history.find_revision(name).is_some());
    named.unwrap_or(&facts.history.updated.name).to_owned()
}

/// Cancels a replacement that nobody asks for any more. The new Pod is deleted, available or not (contract Q36), unless
/// the rules have already allowed the deletion of the origin.
fn cancel_pair(facts: &SetFacts, draft: &mut Draft, id: i64, origin: &Arc<Pod>) {
    if facts.must_leave(origin) {
        return;
    }
    // If an update takes over the pair, a later step of this plan sets the label again.
    if origin.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some() {
        draft.patch_label(origin, keys::REPLACED_BY_REPLACE_UPDATE, None);
    }
    let new = draft
        .ids
        .get(&id)
        .and_then(pool::new_of)
        .or_else(|| origin.label(keys::REPLACE_PAIR_NEW_ID)?.parse().ok());
    match new.and_then(|new| facts.members.get(&new)) {
        Some(pod) if pod.label(keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&origin.metadata.name) => {
            // First withdraw the deletion of the origin. That withdrawal may come too late, and then both Pods would be
            // deleted.
            if !set_operations::is_leaving(origin) && !serves_alone(pod, origin) {
                let reason = "it is the new Pod of a replacement that was cancelled";
                delete_new_half(facts, draft, pod, reason);
            }
        }
        // The name of the new Pod persists, so its ID stays reserved until the Pod is gone.
        None if new.is_some_and(|new| facts.is_id_held(new)) => {}
        // The new Pod is gone, or belongs to another pair because somebody changed IDs by hand.
        _ => {
            draft.patch_label(origin, keys::REPLACE_PAIR_NEW_ID, None);
            pool::remove_entry_mark(draft, id, pool::REPLACE_NEW);
            // The label alone proves nothing: it may name an instance outside any pair, or the new Pod of another pair.
            let is_half = |new: &i64| draft.ids.get(new).and_then(pool::origin_of) == Some(id);
            if let Some(new) = new.filter(is_half) {
                dissolve_pair(facts, draft, new);
            }
        }
    }
}

/// Asks for the deletion of the new Pod. If its deletion can't be withdrawn any more, this function sends no Event.
fn delete_new_half(facts: &SetFacts, draft: &mut Draft, half: &Arc<Pod>, reason: &str) {
    if !facts.must_leave(half) {
        if facts.leaves_alive(half) && half.label(keys::TO_DELETE).is_none() {
            let name = &half.metadata.name;
            let message = format!("Pod {name} is deleted and can't be excluded: {reason}");
            draft.announce_event(true, "ExcludeNotAllowed", message);
        }
        draft.request_deletion(half, facts.observed.now_nanos);
    }
}

/// Closes pairs whose origin is gone or terminating: the new Pod becomes an instance of its own, and the origin's ID is
/// free.
fn close_pairs(facts: &SetFacts, draft: &mut Draft) {
    let links: Vec<(i64, i64)> = draft
        .ids
        .iter()
        .filter_map(|(id, data)| Some((*id, pool::origin_of(data)?)))
        .collect();
    for (new, origin) in links {
        if facts.has_pod_with_id(origin) {
            let linked = draft.ids.get(&origin).and_then(pool::new_of) == Some(new);
            if !linked {
                dissolve_pair(facts, draft, new);
            }
            continue;
        }
        let Some(pod) = facts.members.get(&new) else {
            // Neither Pod exists: the next Pod needs only one ID.
            let revision = draft
                .ids
                .get(&new)
                .and_then(|data| data.get(pool::REVISION).cloned());
            if draft.ids.contains_key(&origin) {
                draft.ids.remove(&new);
                pool::remove_entry_mark(draft, origin, pool::REPLACE_NEW);
                if let Some(revision) = revision {
                    pool::set_entry_mark(draft, origin, pool::REVISION, &revision);
                }
            } else {
                pool::remove_entry_mark(draft, new, pool::REPLACE_ORIGIN);
            }
            continue;
        };
        pool::remove_entry_mark(draft, new, pool::REPLACE_ORIGIN);
        pool::retire_half_id(facts, draft, origin);
        remove_pair_labels(draft, pod);
    }
    // The label names a Pod that is gone, and the pool has no such pair.
    for (id, pod) in &facts.members {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        let is_recorded = draft
            .ids
            .get(id)
            .is_some_and(|data| pool::origin_of(data).is_some());
        if origin.is_some() && !is_recorded {
            remove_pair_labels(draft, pod);
        }
    }
}

/// Ends a pair that the origin does not know. From now on its new Pod, if there is one, counts like any other Pod.
fn dissolve_pair(facts: &SetFacts, draft: &mut Draft, new: i64) {
    pool::remove_entry_mark(draft, new, pool::REPLACE_ORIGIN);
    match facts.members.get(&new) {
        Some(pod) => remove_pair_labels(draft, pod),
        None if !facts.is_id_held(new) => pool::retire_half_id(facts, draft, new),
        None => {}
    }
}

/// Removes the label and the annotation that mark a Pod as the new Pod of a pair.
fn remove_pair_labels(draft: &mut Draft, pod: &Arc<Pod>) {
    draft.patch_label(pod, keys::REPLACE_PAIR_ORIGIN_NAME, None);
    if pod.annotation(keys::REPLACES).is_some() {
        draft.patch_annotation(pod, keys::REPLACES, None);
    }
}
