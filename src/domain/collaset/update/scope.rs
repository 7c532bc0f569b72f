//! Chooses the instance IDs that get the updated revision.

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

/// Returns the IDs in scope. A partition of `p` keeps `p` of the wanted Pods out of scope. The Pods whose update has
/// progressed most come first, so that the choice stays the same while it is carried out, and a smaller partition only
/// adds Pods. IDs without a Pod come before running Pods: a set that grows under a partition gets Pods of the updated
/// revision, and no running Pod is restarted for that (contract 6.2).
pub fn ids_in_scope(facts: &SetFacts, draft: &Draft, counted: &[i64]) -> BTreeSet<i64> {
    // A Pod that should leave or be deleted, and can't for now, stays unchanged. It takes no place from another Pod
    // except the place that it already has. The two Pods of a pair share one place.
    let is_vacant = |id: &i64| !facts.members.contains_key(id);
    let is_another =
        |id: &i64| is_vacant(id) && pool::has_entry_mark(draft, *id, pool::JUST_CREATE);
    let is_eligible = |id: &i64| !draft.leaving.contains(id) || is_another(id);
    let is_deletion_refused = |pod: &Arc<Pod>| {
        let paired = [keys::TO_REPLACE, keys::REPLACE_PAIR_ORIGIN_NAME];
        facts.deletion_refusal(pod).is_some() && paired.iter().all(|key| pod.label(key).is_none())
    };
    let is_free =
        |id: &i64| is_eligible(id) && !facts.members.get(id).is_some_and(is_deletion_refused);
    let takes = |id: &i64| is_free(id) || is_id_updated(facts, draft, *id);
    let staying = counted.iter().copied().filter(takes);
    let UpdateScope::Partition(partition) = facts.strategy.scope else {
        let is_labelled = |pod: &Arc<Pod>| pod.label(keys::UPDATE_INCLUDED).is_some();
        let labelled = staying.filter(|id| facts.members.get(id).is_some_and(is_labelled));
        let beyond =
            unfinished_resize_ids(facts).chain(unmade_rolled_back_ids(facts, draft, counted));
        return labelled.chain(beyond).filter(is_eligible).collect();
    };
    let size = facts.strategy.replicas;
    // IDs that do not exist because the pool is full.
    let missing = size.saturating_sub(counted.len());
    let reached = size.saturating_sub(partition.saturating_add(missing));
    let mut ids: Vec<i64> = staying.collect();
    // Pods that go back in any case must not take the place of a Pod that is kept.
    let back = rolled_back_ids(facts).chain(unmade_rolled_back_ids(facts, draft, counted));
    let back: BTreeSet<i64> = back.collect();
    ids.sort_by_cached_key(|id| {
        let is_sure = back.contains(id) || is_id_updated(facts, draft, *id);
        (!is_sure, update_order(facts, draft, *id))
    });
    // A Pod that is scaled in keeps its place while it exists, and takes none from a Pod that stays.
    let staying = ids.iter().filter(|id| !draft.surplus.contains(id));
    let staying = staying.take(reached);
    let reached = ids.iter().take(reached).chain(staying).copied();
    let beyond = unfinished_resize_ids(facts).chain(back.iter().copied());
    reached.chain(beyond).filter(is_eligible).collect()
}

/// IDs of the Pods that a rollout had updated before its template was changed back to the template of the current
/// revision. A partition keeps Pods on older revisions, but the revision of these Pods is newer.
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

/// IDs without a Pod for which the pool records such a newer revision. Their Pods must not be created of that revision.
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

/// Whether the template is the template of the stable revision.
fn is_template_rolled_back(facts: &SetFacts) -> bool {
    facts.history.updated.name == facts.history.stable
}

/// Whether the Pod of an ID has the updated revision, or its next Pod will have it.
fn is_id_updated(facts: &SetFacts, draft: &Draft, id: i64) -> bool {
    match facts.members.get(&id) {
        Some(pod) => facts.is_updated(pod),
        None => {
            let recorded = draft.ids.get(&id).and_then(|data| data.get(pool::REVISION));
            recorded == Some(&facts.history.updated.name)
        }
    }
}

/// IDs of the Pods whose label names the updated revision and that do not have the resources of that revision yet. They
/// are always in scope.
fn unfinished_resize_ids(facts: &SetFacts) -> impl Iterator<Item = i64> {
    let members = facts.members.iter();
    let unfinished =
        members.filter(|(_, pod)| facts.has_updated_label(pod) && !facts.is_updated(pod));
    unfinished.map(|(id, _)| *id)
}

/// Whether an update of the Pod of an ID may be for decorations alone: the rollout had not chosen the ID. Such an update
/// must not bring the Pod into the scope of the rollout in place of another Pod.
fn is_decorated_only(facts: &SetFacts, draft: &Draft, id: i64) -> bool {
    let recorded = draft.ids.get(&id).and_then(|data| data.get(pool::REVISION));
    !facts.observed.decorations.is_empty() && recorded != Some(&facts.history.updated.name)
}

/// Sort key of IDs; IDs that are updated first come first.
pub fn update_order(facts: &SetFacts, draft: &Draft, id: i64) -> impl Ord + use<> {
    let pod = facts.members.get(&id);
    let updated = is_id_updated(facts, draft, id);
    let underway = pod.is_some_and(|p| SetOperation::Update.is_in_progress(p))
        && !is_decorated_only(facts, draft, id);
    let replaced = pod.is_some_and(|p| p.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some());
    // While the pool can't record which IDs the rollout has chosen, an update for decorations looks like an update of
    // the rollout. Readiness then does not count: each update for decorations would bring its Pod into the scope, and
    // the Pod that leaves the scope would begin such an update in its turn, without end.
    let is_choice_lost = facts.observed.refused.pool && !facts.observed.decorations.is_empty();
    let by_service = pod.filter(|_| !is_choice_lost);
    let ready_since = by_service
        .into_iter()
        .flat_map(|p| &p.status.conditions)
        .find(|c| c.type_ == "Ready")
        .and_then(|c| c.last_transition_time.clone());
    let created = pod.and_then(|p| p.metadata.creation_timestamp.clone());
    (
        !updated,
        !underway,
        !pod.is_some_and(|p| facts.is_resized(p)), // its resources and its label differ, so it matches no revision
        !replaced,
        pod.is_some(),
        Reverse(update_priority(facts, pod)),
        by_service.is_some_and(|p| p.is_ready()),
        Reverse(ready_since),
        Reverse(created),
        Reverse(id),
    )
}

/// The number in the label by which users order updates. A Pod without a number comes last.
fn update_priority(facts: &SetFacts, pod: Option<&Arc<Pod>>) -> Option<i64> {
    let key = facts.strategy.priority.as_deref()?;
    pod?.label(key)?.parse().ok()
}
