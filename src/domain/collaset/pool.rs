//! Instance IDs: who has which (contract 6.2). The pool is what a Pod that is gone is made again from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::draft::Draft;
use super::headroom::Headroom;
use super::pvcs;
use super::set_facts::SetFacts;
use super::set_operations::SetOperation;
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
pub use crate::api::resourcecontext::data::{
    DELETED, JUST_CREATE, OWNER, REPLACE_NEW, REPLACE_ORIGIN, REPLACED, REVISION, SCALE_IN, new_of,
    origin_of,
};
use crate::domain::digest::Digest;
use crate::domain::pod::Pod;

/// New IDs of one plan: however many replicas are asked for, the pool and the Pods grow step by step, and each step is
/// seen to succeed first.
const MAX_NEW_IDS: usize = 500;

/// Fills the draft with the IDs that the pool and the Pods tell of.
pub fn load_ids(facts: &SetFacts, draft: &mut Draft) {
    let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
    for context in contexts.filter(|c| c.id >= 0 && facts.is_own_entry(&c.data)) {
        draft.ids.insert(context.id, context.data.clone());
    }
    let is_lost = draft.ids.is_empty();
    let origins = OriginsByName::from_facts(facts);
    for (id, pod) in &facts.members {
        if pod
            .label(keys::INSTANCE_ID)
            .is_none_or(|carried| *carried != id.to_string())
        {
            draft.patch_label(pod, keys::INSTANCE_ID, Some(id.to_string())); // changed by hand
        }
        let data = draft.ids.entry(*id).or_default();
        if let Some(revision) = pod.label(keys::REVISION) {
            data.entry(REVISION.to_owned())
                .or_insert_with(|| revision.to_owned());
        }
        // A pool that was lost or edited: the Pods know their pairs.
        if let Some(new) = pod.label(keys::REPLACE_PAIR_NEW_ID)
            && (pod.label(keys::TO_REPLACE).is_some() || origins.has_half(facts, *id, new))
            && *new != id.to_string()
        {
            data.entry(REPLACE_NEW.to_owned())
                .or_insert_with(|| new.to_owned());
        }
        if let Some(origin) = origins.origin_of_half(pod) {
            data.entry(REPLACE_ORIGIN.to_owned())
                .or_insert_with(|| origin.to_string());
        }
    }
    if is_lost {
        recover_ids(facts, draft);
    }
    for data in draft.ids.values_mut() {
        if data.get(OWNER).is_none_or(|owner| owner != facts.name) {
            data.insert(OWNER.to_owned(), facts.name.to_owned());
        }
    }
}

/// A pool that was lost, or emptied: Pods that have ended, or are terminating, know their IDs too, and of those that have gone their claims
/// do. Otherwise others would be made under other IDs, and the volumes would go. One that was scaled in, leaves, or has another in its
/// place, has given its ID up, and none takes the place of a Pod that is there and stays.
fn recover_ids(facts: &SetFacts, draft: &mut Draft) {
    let goes = |pod: &Pod| facts.leaves_alive(pod) || SetOperation::ScaleIn.is_in_progress(pod);
    let mut staying = counted_ids(facts, draft);
    staying.retain(|id| !facts.members.get(id).is_some_and(|pod| goes(pod)));
    let mut left = facts.strategy.replicas.saturating_sub(staying.len());
    let terminating = facts.terminating.values().flatten();
    for pod in facts.finished.iter().chain(terminating) {
        let new = pod.label(keys::REPLACE_PAIR_NEW_ID);
        let new = new.and_then(|id| id.parse::<i64>().ok());
        let is_replaced = new.is_some_and(|id| facts.members.contains_key(&id))
            || pod.label(keys::REPLACE_PAIR_ORIGIN_NAME).is_some();
        let leaves = facts.leaves_alive(pod) && !pod.is_terminating();
        let Some(id) = facts
            .instance_id_of(pod)
            .filter(|id| !facts.foreign.contains(id))
        else {
            continue;
        };
        let is_known = draft.ids.contains_key(&id);
        if is_replaced
            || leaves
            || SetOperation::ScaleIn.is_in_progress(pod)
            || is_known
            || left == 0
        {
            continue;
        }
        left -= 1;
        let revision = pod.label(keys::REVISION);
        let revision = revision.map(|name| (REVISION.to_owned(), name.to_owned()));
        draft.ids.insert(id, revision.into_iter().collect());
    }
    // Where they are retained, they may be those of a Pod that was scaled in.
    if facts.strategy.retain_scaled {
        return;
    }
    let halves = facts.origin_names_by_half(); // they have no data yet
    let mut gone = facts.ids_of_unmounted_pvcs(); // younger ones may be of a scale-out that was never made, and empty
    gone.retain(|id| {
        let is_other = facts.foreign.contains(id) || halves.contains_key(id);
        !is_other && !draft.ids.contains_key(id)
    });
    let gone = gone.into_iter().take(left);
    draft.ids.extend(gone.map(|id| (id, BTreeMap::new())));
}

/// The members by name, as the new half of a pair knows its origin: no search for each of ten thousand.
struct OriginsByName<'a>(HashMap<&'a str, i64>);

impl<'a> OriginsByName<'a> {
    fn from_facts(facts: &'a SetFacts) -> Self {
        let members = facts.members.iter();
        OriginsByName(
            members
                .map(|(id, pod)| (&*pod.metadata.name, *id))
                .collect(),
        )
    }

    /// Whether the Pod of the ID `new` says that it is the new half of the Pod of `id`: the pair was called off, and is not over.
    fn has_half(&self, facts: &SetFacts, id: i64, new: &str) -> bool {
        let half = new.parse().ok().and_then(|new| facts.members.get(&new));
        half.and_then(|half| self.origin_of_half(half)) == Some(id)
    }

    fn origin_of_half(&self, pod: &Pod) -> Option<i64> {
        self.0
            .get(pod.label(keys::REPLACE_PAIR_ORIGIN_NAME)?)
            .copied()
    }
}

/// Takes the lowest ID that nobody has, with the volumes that were retained of it: for one more instance of the set. That the
/// pool has room for it is for the caller to see.
fn allocate_id(facts: &SetFacts, draft: &mut Draft, revision: Option<&str>) -> i64 {
    let id = first_free_id(facts, draft, draft.lowest, |_| true);
    draft.lowest = id;
    insert_entry(facts, draft, id, revision);
    id
}

/// Takes the lowest ID that nobody has and of which no volume is left: for the new half of a pair, and for a Pod that brings its
/// own. Volumes that were retained are those of an instance that was scaled in: a replacement would begin with its data, and
/// they would go with a half that is cancelled.
pub fn allocate_id_without_volumes(
    facts: &SetFacts,
    draft: &mut Draft,
    revision: Option<&str>,
) -> i64 {
    let set = &facts.observed.set;
    let is_empty = |id: i64| {
        let mut claims = facts.pvcs_with_id(id).iter();
        !claims.any(|claim| !claim.terminating && pvcs::is_usable_pvc(set, claim))
    };
    let id = first_free_id(facts, draft, draft.lowest_empty, is_empty);
    draft.lowest_empty = id;
    insert_entry(facts, draft, id, revision);
    id
}

fn first_free_id(facts: &SetFacts, draft: &Draft, from: i64, suits: impl Fn(i64) -> bool) -> i64 {
    let is_free = |id: i64| {
        let is_known = draft.ids.contains_key(&id) || facts.foreign.contains(&id);
        // That of a Pod that leaves is free once it has left.
        !is_known && !facts.is_id_held(id) && !draft.leaving.contains(&id)
    };
    let mut id = from;
    while !is_free(id) || !suits(id) {
        id += 1;
    }
    id
}

/// Keeps an ID for a Pod that enters without one, until the Pod carries it.
pub fn reserve_id_for(draft: &mut Draft, id: i64, pod: &Pod) {
    set_entry_mark(draft, id, JUST_CREATE, &pod_digest(pod));
}

/// The ID that is kept for a Pod.
pub fn id_reserved_for(draft: &Draft, pod: &Pod) -> Option<i64> {
    let note = pod_digest(pod);
    let is_its = |data: &BTreeMap<_, _>| data.get(JUST_CREATE) == Some(&note);
    let kept = draft.ids.iter().find(|(_, data)| is_its(data));
    kept.map(|(id, _)| *id)
}

/// What an entry notes of a Pod that `podToDelete` or `podToInclude` names: a digest of its UID. Full pools have room for few UIDs.
pub fn pod_digest(pod: &Pod) -> String {
    let mut digest = Digest::default();
    digest.add_text(&pod.metadata.uid);
    format!("{:08x}", digest.value() & 0xffff_ffff)
}

/// The name of the Pods of an ID, where names persist (contract 6.0).
pub fn persistent_pod_name(facts: &SetFacts, id: i64) -> String {
    format!("{}-{id}", facts.name)
}

/// What an entry notes where no Pod is meant: `podToDelete` has named it before there was one. No Pod has this note.
const NO_POD: &str = "nobody";

fn insert_entry(facts: &SetFacts, draft: &mut Draft, id: i64, revision: Option<&str>) {
    let mut data = BTreeMap::from([(OWNER.to_owned(), facts.name.to_owned())]);
    if let Some(revision) = revision {
        data.insert(REVISION.to_owned(), revision.to_owned());
    }
    // One that was scaled in by this name comes back.
    if facts.strategy.sequence
        && facts
            .strategy
            .delete
            .contains(&persistent_pod_name(facts, id))
    {
        data.insert(DELETED.to_owned(), NO_POD.to_owned());
    }
    draft.ids.insert(id, data);
}

/// Takes this ID, which a Pod brings along.
pub fn take_id(facts: &SetFacts, draft: &mut Draft, id: i64, revision: Option<&str>) {
    let data = draft.ids.entry(id).or_default();
    data.insert(OWNER.to_owned(), facts.name.to_owned());
    data.remove(REPLACED);
    if let Some(revision) = revision {
        data.insert(REVISION.to_owned(), revision.to_owned());
    }
}

/// Frees the ID of a half of a pair that was replaced or cancelled. Its claims go, also where `whenScaled` is Retain
/// (contract 6.4). Until they have gone the ID stays in the pool with a mark, so that a restart in between leaves no claim behind.
pub fn retire_half_id(facts: &SetFacts, draft: &mut Draft, id: i64) {
    let has_claims = facts.owned_pvcs_with_id(id).any(|claim| !claim.terminating);
    match draft.ids.get_mut(&id) {
        Some(data) if has_claims && facts.strategy.retain_scaled => {
            for mark in [REPLACE_NEW, REPLACE_ORIGIN, JUST_CREATE] {
                data.remove(mark);
            }
            data.insert(REPLACED.to_owned(), "true".to_owned());
        }
        _ => {
            draft.ids.remove(&id);
        }
    }
}

/// Whether an ID belongs to the new Pod of a pair whose origin is still there.
pub fn is_entry_of_half(facts: &SetFacts, data: &BTreeMap<String, String>) -> bool {
    origin_of(data).is_some_and(|origin| facts.has_pod_with_id(origin))
}

/// IDs that count for the replicas: new halves stand for their origins.
pub fn counted_ids(facts: &SetFacts, draft: &Draft) -> Vec<i64> {
    draft
        .ids
        .iter()
        .filter(|(_, data)| !data.contains_key(REPLACED) && !is_entry_of_half(facts, data))
        .map(|(id, _)| *id)
        .collect()
}

/// Whether an entry says so in the pool as it is stored.
pub fn is_entry_stored(facts: &SetFacts, id: i64, key: &str, value: &str) -> bool {
    let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
    let mut entry = contexts.filter(|context| context.id == id);
    entry.any(|context| context.data.get(key).is_some_and(|known| known == value))
}

/// Pods that are wanted, and that the pool as it is stored has neither an entry nor room for.
pub fn count_missing_ids(facts: &SetFacts) -> usize {
    let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
    let own = contexts.filter(|context| facts.is_own_entry(&context.data));
    let is_other = |data| is_entry_of_half(facts, data) || data.contains_key(REPLACED);
    let counted = own.filter(|context| !is_other(&context.data)).count();
    let missing = facts.strategy.replicas.saturating_sub(counted);
    match missing > 0 && Headroom::from_stored_pool(facts).is_full() {
        true => missing,
        false => 0,
    }
}

/// Makes as many IDs as Pods are wanted.
pub fn grow_to(facts: &SetFacts, draft: &mut Draft, wanted: usize) {
    let counted = counted_ids(facts, draft).len();
    let mut room = Headroom::beside_draft(facts, draft);
    for _ in (counted..wanted).take(MAX_NEW_IDS) {
        if !room.take_entry() {
            break;
        }
        let id = allocate_id(facts, draft, None);
        if let Some(data) = draft.ids.get_mut(&id) {
            data.insert(JUST_CREATE.to_owned(), "true".to_owned());
        }
    }
}

/// Frees the ID of an instance that has no Pod and is not wanted.
pub fn free_id(draft: &mut Draft, id: i64) {
    draft.ids.remove(&id);
}

/// Whether an ID is kept for another Pod than this one.
pub fn is_id_reserved_elsewhere(draft: &Draft, id: i64, pod: &Pod) -> bool {
    let noted = draft.ids.get(&id).and_then(|data| data.get(JUST_CREATE));
    noted.is_some_and(|noted| noted != "true" && *noted != pod_digest(pod))
}

/// Whether an entry carries a mark.
pub fn has_entry_mark(draft: &Draft, id: i64, mark: &str) -> bool {
    draft
        .ids
        .get(&id)
        .is_some_and(|data| data.contains_key(mark))
}

/// Sets a mark.
pub fn set_entry_mark(draft: &mut Draft, id: i64, mark: &str, value: &str) {
    if let Some(data) = draft.ids.get_mut(&id)
        && data.get(mark).is_none_or(|known| known != value)
    {
        data.insert(mark.to_owned(), value.to_owned());
    }
}

/// Removes a mark.
pub fn remove_entry_mark(draft: &mut Draft, id: i64, mark: &str) {
    if let Some(data) = draft.ids.get_mut(&id) {
        data.remove(mark);
    }
}

/// All entries of the pool as they shall be, with those of others; `None` when that is what they are. That Pods have
/// been seen is written down once all are there, not Pod by Pod.
pub fn changed_entries(facts: &SetFacts, draft: &mut Draft) -> Option<Vec<ContextDetail>> {
    let seen: BTreeSet<i64> = facts.members.keys().copied().collect();
    let complete = draft.ids.keys().all(|id| seen.contains(id));
    let stored: &[ContextDetail] = facts
        .observed
        .pool
        .as_ref()
        .map_or(&[], |pool| &pool.contexts);
    let own: BTreeMap<i64, &BTreeMap<String, String>> = stored
        .iter()
        .filter(|c| facts.is_own_entry(&c.data))
        .map(|c| (c.id, &c.data))
        .collect();
    let same = own.len() == draft.ids.len()
        && draft
            .ids
            .iter()
            .all(|(id, data)| own.get(id) == Some(&data));
    let unseen_marks = seen
        .iter()
        .any(|id| has_entry_mark(draft, *id, JUST_CREATE));
    if same && !(complete && unseen_marks) {
        return None;
    }
    for id in seen {
        remove_entry_mark(draft, id, JUST_CREATE);
    }
    let mut all: Vec<ContextDetail> = stored
        .iter()
        .filter(|c| !facts.is_own_entry(&c.data))
        .cloned()
        .chain(draft.ids.iter().map(|(id, data)| ContextDetail {
            id: *id,
            data: data.clone(),
        }))
        .collect();
    all.sort_by_key(|c| c.id);
    Some(all)
}
