//! Which instance IDs are to be of the updated revision.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::draft::Draft;
use super::super::pool;
use super::super::set_facts::SetFacts;
use super::super::set_operations::SetOperation;
use super::super::strategy::UpdateScope;
use crate::api::keys;
use crate::domain::pod::Pod;

/// The IDs in scope. A partition of `p` keeps `p` of the wanted Pods out; those that are furthest come first, so that the
/// choice stays the same while it is carried out, and a smaller partition only ever adds to it. IDs without a Pod come before
/// Pods that run: a set that grows under a partition gets Pods of the updated revision, and nobody is restarted for that
/// (contract 6.2).
pub fn ids_in_scope(facts: &SetFacts, draft: &Draft, counted: &[i64]) -> BTreeSet<i64> {
    // A Pod that leaves, or is to be deleted, and can't for now, is left as it is, and takes no place from another but the one that it
    // has. The halves of a pair have one between them.
    let is_vacant = |id: &i64| !facts.members.contains_key(id);
    let is_another =
        |id: &i64| is_vacant(id) && pool::has_entry_mark(draft, *id, pool::JUST_CREATE);
    let stays = |id: &i64| !draft.leaving.contains(id) || is_another(id);
    let is_undeleted = |pod: &Arc<Pod>| {
        let paired = [keys::TO_REPLACE, keys::REPLACE_PAIR_ORIGIN_NAME];
        facts.deletion_refusal(pod).is_some() && paired.iter().all(|key| pod.label(key).is_none())
    };
    let is_free = |id: &i64| stays(id) && !facts.members.get(id).is_some_and(is_undeleted);
    let takes = |id: &i64| is_free(id) || is_id_updated(facts, draft, *id);
    let staying = counted.iter().copied().filter(takes);
    let UpdateScope::Partition(partition) = facts.strategy.scope else {
        let is_labelled = |pod: &Arc<Pod>| pod.label(keys::UPDATE_INCLUDED).is_some();
        let labelled = staying.filter(|id| facts.members.get(id).is_some_and(is_labelled));
        let beyond =
            unfinished_resize_ids(facts).chain(unmade_rolled_back_ids(facts, draft, counted));
        return labelled.chain(beyond).filter(stays).collect();
    };
    let size = facts.strategy.replicas;
    // Without an ID for want of room in the pool.
    let missing = size.saturating_sub(counted.len());
    let reached = size.saturating_sub(partition.saturating_add(missing));
    let mut ids: Vec<i64> = staying.collect();
    // Those that go back anyhow take no place from one that is kept.
    let back = rolled_back_ids(facts).chain(unmade_rolled_back_ids(facts, draft, counted));
    let back: BTreeSet<i64> = back.collect();
    ids.sort_by_cached_key(|id| {
        let is_sure = back.contains(id) || is_id_updated(facts, draft, *id);
        (!is_sure, update_order(facts, draft, *id))
    });
    // A Pod that is scaled in keeps its place while it is there, and takes none from one that stays.
    let staying = ids.iter().filter(|id| !draft.surplus.contains(id));
    let staying = staying.take(reached);
    let reached = ids.iter().take(reached).chain(staying).copied();
    let beyond = unfinished_resize_ids(facts).chain(back.iter().copied());
    reached.chain(beyond).filter(stays).collect()
}

/// IDs of the Pods that a rollout had reached whose template was then taken back to that of the current revision: a partition keeps Pods on older
/// revisions, and these are of one that was made later.
pub fn rolled_back_ids(facts: &SetFacts) -> impl Iterator<Item = i64> {
    let members = facts
        .members
        .iter()
        .filter(|_| is_template_rolled_back(facts));
    let later = members.filter(|(_, pod)| {
        let revision = pod.label(keys::REVISION);
        revision.is_some_and(|name| facts.history.is_later(name))
    });
    later.map(|(id, _)| *id)
}

/// IDs whose next Pods would be of such a revision: they could not be made of it.
fn unmade_rolled_back_ids(
    facts: &SetFacts,
    draft: &Draft,
    counted: &[i64],
) -> impl Iterator<Item = i64> {
    let vacant = counted
        .iter()
        .copied()
        .filter(|_| is_template_rolled_back(facts));
    let vacant = vacant.filter(|id| !facts.members.contains_key(id));
    vacant.filter(|id| {
        let recorded = draft.ids.get(id).and_then(|data| data.get(pool::REVISION));
        recorded.is_some_and(|name| facts.history.is_later(name))
    })
}

/// Whether the template is that of the stable revision.
fn is_template_rolled_back(facts: &SetFacts) -> bool {
    facts.history.updated.name == facts.history.stable
}

/// Whether the Pod of an ID is of the updated revision, or the next one is to be.
fn is_id_updated(facts: &SetFacts, draft: &Draft, id: i64) -> bool {
    match facts.members.get(&id) {
        Some(pod) => facts.is_updated(pod),
        None => {
            let recorded = draft.ids.get(&id).and_then(|data| data.get(pool::REVISION));
            recorded == Some(&facts.history.updated.name)
        }
    }
}

/// IDs of the Pods that are of the updated revision by their label, and have yet to get its resources: no choice keeps them as they are.
fn unfinished_resize_ids(facts: &SetFacts) -> impl Iterator<Item = i64> {
    let members = facts.members.iter();
    let unfinished =
        members.filter(|(_, pod)| facts.has_updated_label(pod) && !facts.is_updated(pod));
    unfinished.map(|(id, _)| *id)
}

/// Orders IDs, first those that are updated first.
pub fn update_order(facts: &SetFacts, draft: &Draft, id: i64) -> impl Ord + use<> {
    let pod = facts.members.get(&id);
    let updated = is_id_updated(facts, draft, id);
    let underway = pod.is_some_and(|p| SetOperation::Update.is_in_progress(p));
    let replaced = pod.is_some_and(|p| p.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some());
    let ready_since = pod
        .into_iter()
        .flat_map(|p| &p.status.conditions)
        .find(|c| c.type_ == "Ready")
        .and_then(|c| c.last_transition_time.clone());
    let created = pod.and_then(|p| p.metadata.creation_timestamp.clone());
    (
        !updated,
        !underway,
        !pod.is_some_and(|p| facts.is_resized(p)), // of no revision as it is
        !replaced,
        pod.is_some(),
        Reverse(update_priority(facts, pod)),
        pod.is_some_and(|p| p.is_ready()),
        Reverse(ready_since),
        Reverse(created),
        Reverse(id),
    )
}

/// The number in the label by which users order updates; a Pod without one comes last.
fn update_priority(facts: &SetFacts, pod: Option<&Arc<Pod>>) -> Option<i64> {
    let key = facts.strategy.priority.as_deref()?;
    pod?.label(key)?.parse().ok()
}
