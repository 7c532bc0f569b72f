//! Instance IDs and the pool that stores them (contract 6.2). When a Pod is gone, the set creates it again from its
//! entry in the pool.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::draft::Draft;
use super::headroom::Headroom;
use super::pvcs;
use super::set_facts::SetFacts;
use super::set_operations::SetOperation;
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
pub use crate::api::resourcecontext::data::{
    DECORATIONS, DELETED, JUST_CREATE, OWNER, REPLACE_NEW, REPLACE_ORIGIN, REPLACED, REVISION,
    SCALE_IN, new_of, origin_of,
};
use crate::domain::decoration::DecorationRevisions;
use crate::domain::decoration::labels::to_json;
use crate::domain::digest::Digest;
use crate::domain::pod::Pod;

/// Most new IDs of one plan. A large set grows in steps, and each step must succeed before the next step begins.
const MAX_NEW_IDS: usize = 500;

/// Fills the draft with the IDs of the pool and of the Pods.
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
            draft.patch_label(pod, keys::INSTANCE_ID, Some(id.to_string())); // somebody has changed the label
        }
        let data = draft.ids.entry(*id).or_default();
        if let Some(revision) = pod.label(keys::REVISION) {
            data.entry(REVISION.to_owned())
                .or_insert_with(|| revision.to_owned());
        }
        // If the pool was lost or edited, the labels of the Pods still contain their pairs.
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

/// Recovers the IDs after the pool was lost or emptied. Finished and terminating Pods still carry their IDs, and so do
/// the PVCs of deleted Pods. Otherwise the set would create Pods under other IDs and delete the volumes. This
/// function recovers no ID of a Pod that was scaled in, leaves, or has been replaced. It recovers only as many IDs as
/// the set lacks.
fn recover_ids(facts: &SetFacts, draft: &mut Draft) {
    let goes = |pod: &Pod| facts.leaves_alive(pod) || SetOperation::ScaleIn.is_in_progress(pod);
    let mut staying = counted_ids(facts, draft);
    staying.retain(|id| !facts.members.get(id).is_some_and(|pod| goes(pod)));
    let mut missing = facts.strategy.replicas.saturating_sub(staying.len());
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
            || missing == 0
        {
            continue;
        }
        missing -= 1;
        let revision = pod.label(keys::REVISION);
        let revision = revision.map(|name| (REVISION.to_owned(), name.to_owned()));
        draft.ids.insert(id, revision.into_iter().collect());
    }
    // If PVCs of scaled-in Pods are retained, an unmounted PVC may belong to such a Pod.
    if facts.strategy.retain_scaled {
        return;
    }
    let halves = facts.origin_names_by_half(); // new Pods of pairs have no data yet
    // Younger PVCs may come from a scale-out whose Pods were never created, and be empty.
    let mut unmounted_ids = facts.ids_of_unmounted_pvcs();
    unmounted_ids.retain(|id| {
        let is_other = facts.foreign.contains(id) || halves.contains_key(id);
        !is_other && !draft.ids.contains_key(id)
    });
    let unmounted_ids = unmounted_ids.into_iter().take(missing);
    draft
        .ids
        .extend(unmounted_ids.map(|id| (id, BTreeMap::new())));
}

/// IDs of the members by Pod name. The new Pod of a pair knows its origin by name; the map avoids a search for each of
/// ten thousand Pods.
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

    /// Whether the Pod with the ID `new` says that it is the new Pod of the Pod with `id`. The replacement may have
    /// been cancelled and not be over.
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

/// Takes the lowest free ID, with the volumes that were retained for it, for one more instance of the set. The caller
/// must check that the pool has space for the entry.
fn allocate_id(facts: &SetFacts, draft: &mut Draft, revision: Option<&str>) -> i64 {
    let id = first_free_id(facts, draft, draft.lowest, |_| true);
    draft.lowest = id;
    insert_entry(facts, draft, id, revision);
    id
}

/// Takes the lowest free ID without volumes, for the new Pod of a pair or for a Pod that brings its own PVCs. Retained
/// volumes belong to an instance that was scaled in: a replacement would begin with its data, and the cancellation of a
/// replacement would delete them.
pub fn allocate_id_without_volumes(
    facts: &SetFacts,
    draft: &mut Draft,
    revision: Option<&str>,
) -> i64 {
    let set = &facts.observed.set;
    let is_empty = |id: i64| {
        let mut pvcs = facts.pvcs_with_id(id).iter();
        !pvcs.any(|pvc| !pvc.terminating && pvcs::is_usable_pvc(set, pvc))
    };
    let id = first_free_id(facts, draft, draft.lowest_empty, is_empty);
    draft.lowest_empty = id;
    insert_entry(facts, draft, id, revision);
    id
}

fn first_free_id(facts: &SetFacts, draft: &Draft, from: i64, suits: impl Fn(i64) -> bool) -> i64 {
    let is_free = |id: i64| {
        let is_known = draft.ids.contains_key(&id) || facts.foreign.contains(&id);
        // The ID of a leaving Pod is free only once the Pod has left.
        !is_known && !facts.is_id_held(id) && !draft.leaving.contains(&id)
    };
    let mut id = from;
    while !is_free(id) || !suits(id) {
        id += 1;
    }
    id
}

/// Reserves an ID for a Pod that enters without one, until the Pod has the label.
pub fn reserve_id_for(draft: &mut Draft, id: i64, pod: &Pod) {
    set_entry_mark(draft, id, JUST_CREATE, &pod_digest(pod));
}

/// The ID that is reserved for a Pod.
pub fn id_reserved_for(draft: &Draft, pod: &Pod) -> Option<i64> {
    let note = pod_digest(pod);
    let is_its = |data: &BTreeMap<_, _>| data.get(JUST_CREATE) == Some(&note);
    let entry = draft.ids.iter().find(|(_, data)| is_its(data));
    entry.map(|(id, _)| *id)
}

/// Returns what an entry records of a Pod in `podToDelete` or `podToInclude`: 32 bits of a digest of its UID. A full
/// pool has no space for many UIDs.
pub fn pod_digest(pod: &Pod) -> String {
    let mut digest = Digest::default();
    digest.add_text(&pod.metadata.uid);
    format!("{:08x}", digest.value() & 0xffff_ffff)
}

/// The value of [`DELETED`] in an entry for which no Pod is meant, because `podToDelete` contained its name before the
/// Pod existed. It is not the digest of any Pod.
const NO_POD: &str = "nobody";

fn insert_entry(facts: &SetFacts, draft: &mut Draft, id: i64, revision: Option<&str>) {
    let mut data = BTreeMap::from([(OWNER.to_owned(), facts.name.to_owned())]);
    if let Some(revision) = revision {
        data.insert(REVISION.to_owned(), revision.to_owned());
    }
    // The instance was scaled in by this name and now comes back.
    if facts.strategy.sequence
        && facts
            .strategy
            .delete
            .contains(&facts.persistent_pod_name(id))
    {
        data.insert(DELETED.to_owned(), NO_POD.to_owned());
    }
    draft.ids.insert(id, data);
}

/// Takes the ID that an entering Pod has.
pub fn take_id(facts: &SetFacts, draft: &mut Draft, id: i64, revision: Option<&str>) {
    let data = draft.ids.entry(id).or_default();
    data.insert(OWNER.to_owned(), facts.name.to_owned());
    data.remove(REPLACED);
    if let Some(revision) = revision {
        data.insert(REVISION.to_owned(), revision.to_owned());
    }
}

/// Frees the ID of a Pod of a pair that was replaced or cancelled. Its PVCs are deleted, even if `whenScaled` is
/// `Retain` (contract 6.4). Until the PVCs are gone, the ID stays in the pool with a mark, so that a restart in between
/// leaves no PVC behind.
pub fn retire_half_id(facts: &SetFacts, draft: &mut Draft, id: i64) {
    let has_pvcs = facts.owned_pvcs_with_id(id).any(|pvc| !pvc.terminating);
    match draft.ids.get_mut(&id) {
        Some(data) if has_pvcs && facts.strategy.retain_scaled => {
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

/// Whether an entry belongs to the new Pod of a pair whose origin still exists.
pub fn is_entry_of_half(facts: &SetFacts, data: &BTreeMap<String, String>) -> bool {
    origin_of(data).is_some_and(|origin| facts.has_pod_with_id(origin))
}

/// IDs that count for the replicas. The new Pod of a pair does not count, because it stands for its origin.
pub fn counted_ids(facts: &SetFacts, draft: &Draft) -> Vec<i64> {
    draft
        .ids
        .iter()
        .filter(|(_, data)| !data.contains_key(REPLACED) && !is_entry_of_half(facts, data))
        .map(|(id, _)| *id)
        .collect()
}

/// Whether the stored pool has this key and value in the entry of the ID.
pub fn is_entry_stored(facts: &SetFacts, id: i64, key: &str, value: &str) -> bool {
    let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
    let mut entry = contexts.filter(|context| context.id == id);
    entry.any(|context| context.data.get(key).is_some_and(|stored| stored == value))
}

/// Number of wanted Pods for which the stored pool has neither an entry nor space.
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

/// Creates IDs until there are as many as wanted Pods, or until the pool is full.
pub fn grow_to(facts: &SetFacts, draft: &mut Draft, wanted: usize) {
    let counted = counted_ids(facts, draft).len();
    let mut headroom = Headroom::beside_draft(facts, draft);
    for _ in (counted..wanted).take(MAX_NEW_IDS) {
        if !headroom.take_entry() {
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

/// Whether an ID is reserved for another Pod than this one.
pub fn is_id_reserved_elsewhere(draft: &Draft, id: i64, pod: &Pod) -> bool {
    let mark = draft.ids.get(&id).and_then(|data| data.get(JUST_CREATE));
    mark.is_some_and(|mark| mark != "true" && *mark != pod_digest(pod))
}

/// Whether the draft entry of an ID has this key.
pub fn has_entry_mark(draft: &Draft, id: i64, mark: &str) -> bool {
    draft
        .ids
        .get(&id)
        .is_some_and(|data| data.contains_key(mark))
}

/// Sets a key of the draft entry of an ID, if the entry exists.
pub fn set_entry_mark(draft: &mut Draft, id: i64, mark: &str, value: &str) {
    if let Some(data) = draft.ids.get_mut(&id)
        && data.get(mark).is_none_or(|stored| stored != value)
    {
        data.insert(mark.to_owned(), value.to_owned());
    }
}

/// Records the decorations of a member in its draft entry.
pub fn record_decorations(draft: &mut Draft, id: i64, decorations: &DecorationRevisions) {
    match decorations.is_empty() {
        true => remove_entry_mark(draft, id, DECORATIONS),
        false => set_entry_mark(draft, id, DECORATIONS, &to_json(decorations)),
    }
}

/// Removes a key from the draft entry of an ID.
pub fn remove_entry_mark(draft: &mut Draft, id: i64, mark: &str) {
    if let Some(data) = draft.ids.get_mut(&id) {
        data.remove(mark);
    }
}

/// Returns all wanted entries of the pool, with those of other owners; `None` if the stored entries are already the
/// same. The mark of a fresh ID is removed once the Pods of all IDs exist, not by a write for each Pod.
pub fn changed_entries(facts: &SetFacts, draft: &mut Draft) -> Option<Vec<ContextDetail>> {
    let member_ids: BTreeSet<i64> = facts.members.keys().copied().collect();
    let complete = draft.ids.keys().all(|id| member_ids.contains(id));
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
    let unseen_marks = member_ids
        .iter()
        .any(|id| has_entry_mark(draft, *id, JUST_CREATE));
    if same && !(complete && unseen_marks) {
        return None;
    }
    for id in member_ids {
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
