//! Pods that enter the set: those that `podToInclude` names, and orphans of the set.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::draft::Draft;
use super::headroom::Headroom;
use super::membership;
use super::observed::{Pvc, UNMANAGED_NANOS};
use super::obstacles;
use super::plan::{self, OwnershipChange};
use super::pool;
use super::pvcs;
use super::revision::data;
use super::set_facts::SetFacts;
use crate::api::keys;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Reason of what is said of a Pod that can't be included.
const REFUSED: &str = "IncludeNotAllowed";
/// Reason of what is said of a Pod that has entered.
const INCLUDED: &str = "IncludeTarget";

/// Takes a Pod in that `podToInclude` names. It keeps its instance ID if that is free. True if it enters, and the rest of the plan
/// is to wait for that.
pub fn include_pod(
    facts: &SetFacts,
    draft: &mut Draft,
    room: &mut Headroom,
    pod: &Arc<Pod>,
) -> bool {
    let name = &pod.metadata.name;
    let own = facts
        .instance_id_of(pod)
        .filter(|id| is_id_free_for(facts, draft, pod, *id));
    // Its entry was stored, and it could not be written.
    let kept =
        || pool::id_reserved_for(draft, pod).filter(|id| is_id_free_for(facts, draft, pod, *id));
    let own = own.or_else(kept);
    let is_known = own.is_some_and(|id| draft.ids.contains_key(&id));
    let is_full = || {
        let full = !is_known && !room.take_entry();
        full.then(|| {
            let pool = facts.pool;
            format!("ResourceContext {pool} has no room for more instance IDs; scale in, or delete Pods of other sets that share it")
        })
    };
    if let Some(why) = obstacles::describe_obstacles(facts, pod).or_else(is_full) {
        refuse_inclusion(facts, draft, pod, &why);
        return false;
    }
    let id = match own {
        Some(id) => {
            pool::take_id(facts, draft, id, pod.label(keys::REVISION));
            id
        }
        None => {
            let id = pool::allocate_id_without_volumes(facts, draft, pod.label(keys::REVISION));
            pool::reserve_id_for(draft, id, pod);
            id
        }
    };
    if enter_pod(facts, draft, pod, id) {
        let kept = describe_kept_pvcs(facts, pod);
        let message = match facts.revision_of(pod) {
            Some(_) => format!("Pod {name} is included under instance ID {id}{kept}"),
            None => format!(
                "Pod {name} is included under instance ID {id}; its revision is not known, so it is made again as by an update, as soon as updateStrategy has it in scope{kept}"
            ),
        };
        draft.announce_once_written(pod, INCLUDED, message);
    }
    !facts.is_write_refused(pod)
}

/// Tells why a Pod that is not managed can't be included. It is read again later, as nothing tells of its changes.
pub fn refuse_unmanaged(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    draft.requeue_after(UNMANAGED_NANOS);
    if let Some(why) = obstacles::describe_obstacles(facts, pod) {
        refuse_inclusion(facts, draft, pod, &why);
    }
}

fn refuse_inclusion(facts: &SetFacts, draft: &mut Draft, pod: &Pod, why: &str) {
    let message = format!("Pod {} can't be included: {why}", pod.metadata.name);
    let is_excluded = facts.strategy.exclude.contains(&pod.metadata.name);
    match obstacles::contradicts_exclusion(facts, pod) && (facts.controls(pod) || is_excluded) {
        true => draft.announce_event(true, REFUSED, message), // the spec contradicts itself, and one half of it is so, or told of elsewhere
        false => draft.report_refusal(REFUSED, message),
    }
}

/// Takes orphans in, each under its own instance ID (see [`id_for`]) with the claims that it mounts: Pods of a set of this name that was
/// deleted with `--cascade=orphan` and made again, or that outlived an uninstallation. Otherwise others would be made beside
/// them, on their claims. Those for whose IDs the pool has no room wait; no others are made for those IDs. A Pod that was excluded is no orphan: it carries [`keys::ORPHANED`].
pub fn adopt_orphans(facts: &SetFacts, draft: &mut Draft, room: &mut Headroom) -> bool {
    let mut moved = false;
    // One that has ended is made again, unless another has its ID.
    let mut orphans: Vec<_> = facts.observed.orphans.iter().collect();
    let has_left = |pod: &Pod| {
        let mut claims = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
        claims.any(|claim| claim.labels.contains_key(keys::ORPHANED))
    };
    // One whose ID is another set's gets one that no other orphan has.
    let is_foreign = |pod: &Pod| {
        facts
            .instance_id_of(pod)
            .is_some_and(|id| facts.foreign.contains(&id))
    };
    orphans.sort_by_key(|pod| (pod.is_finished(), has_left(pod), is_foreign(pod)));
    for pod in orphans {
        let Some(id) = facts.instance_id_of(pod).filter(|_| is_orphan(facts, pod)) else {
            continue;
        };
        if pod.is_finished() && facts.members.contains_key(&id) {
            draft.set_ownership(pod, OwnershipChange::Adopt); // it is cleaned away
            moved |= !facts.is_write_refused(pod);
            continue;
        }
        // One that has left with its claims comes back where an instance is missing: else it would be scaled in with them.
        let is_taken = facts.members.contains_key(&id);
        if has_left(pod) && (is_taken || !membership::may_instance_return(facts, draft, id)) {
            report_outside_orphan(facts, draft, pod);
            continue;
        }
        let Some(id) = instance_id_for_orphan(facts, draft, room, pod, id) else {
            continue;
        };
        moved |= !facts.is_write_refused(pod);
        if enter_pod(facts, draft, pod, id) {
            let name = &pod.metadata.name;
            let kept = describe_kept_pvcs(facts, pod);
            let message =
                format!("Pod {name} has no owner and is adopted under instance ID {id}{kept}");
            draft.announce_once_written(pod, INCLUDED, message);
        }
    }
    moved
}

/// The instance ID under which an orphan enters: its own, or, where another set of the pool has taken that meanwhile and an instance is
/// missing, one without volumes. `None` where it stays outside for now.
fn instance_id_for_orphan(
    facts: &SetFacts,
    draft: &mut Draft,
    room: &mut Headroom,
    pod: &Pod,
    own: i64,
) -> Option<i64> {
    let revision = pod.label(keys::REVISION);
    let is_foreign = facts.foreign.contains(&own);
    let kept = || pool::id_reserved_for(draft, pod).filter(|_| is_foreign);
    let known = Some(own).filter(|_| !is_foreign).or_else(kept);
    if let Some(id) = known {
        // Its ID is free again, but every instance is there: one that serves would go for it.
        let is_surplus = !facts.members.is_empty()
            && facts.members.len() >= facts.strategy.replicas
            && !draft.ids.contains_key(&id)
            && facts.owned_pvcs_with_id(id).next().is_none();
        if is_surplus {
            report_outside_orphan(facts, draft, pod);
            return None;
        }
        let has_room = |room: &mut Headroom| draft.ids.contains_key(&id) || room.take_entry();
        if is_id_free_for(facts, draft, pod, id) && has_room(room) {
            pool::take_id(facts, draft, id, revision);
            return Some(id);
        }
        if facts.members.contains_key(&id) {
            report_outside_orphan(facts, draft, pod);
        }
        return None;
    }
    // Where names persist its name is that of an ID which is another's.
    let is_short = pool::counted_ids(facts, draft).len() < facts.strategy.replicas;
    if facts.strategy.sequence || !is_short {
        report_outside_orphan(facts, draft, pod);
        return None;
    }
    room.take_entry().then(|| {
        let id = pool::allocate_id_without_volumes(facts, draft, revision);
        pool::reserve_id_for(draft, id, pod);
        id
    })
}

/// A Pod that matches the selector is counted by whoever counts by it.
fn report_outside_orphan(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    if pod.is_finished() {
        return;
    }
    let claims = pod.spec.pvcs.join(", ");
    let unless_needed = match claims.is_empty() {
        true => String::new(),
        false => format!(" if nobody needs what is in its claims ({claims})"),
    };
    let way = match facts.strategy.sequence {
        true => "raise spec.replicas",
        false => "name it in podToInclude and add a replica",
    };
    let message = format!(
        "Pod {} matches spec.selector and stays outside, since its place is not free: {way}, or delete it{unless_needed}",
        pod.metadata.name
    );
    draft.announce_event(true, REFUSED, message);
}

/// Whether a Pod has a name that a set of this name gives its Pods. Selectors may overlap: an orphan of another set is
/// left to that one.
pub fn has_name_of_set(set: &str, pod: &str) -> bool {
    pvcs::is_generated(&format!("{set}-"), pod)
}

fn is_orphan(facts: &SetFacts, pod: &Pod) -> bool {
    let name = &pod.metadata.name;
    let asked_for = facts.strategy.exclude.contains(name) || facts.strategy.include.contains(name);
    let marked = [keys::ORPHANED, keys::TO_EXCLUDE].map(|key| pod.label(key).is_some());
    !asked_for
        && marked == [false, false]
        && pod.controller().is_none()
        && (pod.label(keys::INSTANCE_ID).is_some() || facts.instance_id_of_pvcs(pod).is_some())
        && !pod.is_terminating()
        && has_name_of_set(facts.name, name)
        && facts.selector.matches(&pod.metadata.labels)
}

/// Whether a Pod that enters can have this instance ID: no other Pod and no other set has it, nor is it reserved for the new
/// half of a pair, nor has the set claims of it that the Pod does not mount, but for those that [lie beside it](Facts::lies_beside).
fn is_id_free_for(facts: &SetFacts, draft: &Draft, pod: &Pod, id: i64) -> bool {
    let paired = [pool::REPLACE_NEW, pool::REPLACE_ORIGIN];
    !facts.foreign.contains(&id)
        && !facts.is_id_held(id)
        && !draft.entering.contains(&id)
        && !pool::is_id_reserved_elsewhere(draft, id, pod)
        && !paired
            .iter()
            .any(|mark| pool::has_entry_mark(draft, id, mark))
        && facts.owned_pvcs_with_id(id).all(|claim| {
            let is_mounted = pod.spec.pvcs.contains(&claim.name);
            is_mounted || claim.terminating || facts.is_pvc_set_aside(pod, claim)
        })
}

/// Has a Pod enter; false while its claims are to enter first. Otherwise a Pod whose claims could not be changed would have
/// another ID than they have.
fn enter_pod(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>, id: i64) -> bool {
    draft.entering.insert(id);
    if take_mounted_pvcs(facts, draft, pod, id) {
        return false;
    }
    draft.patch_label(pod, keys::INSTANCE_ID, Some(id.to_string()));
    draft.patch_label(pod, keys::ORPHANED, None);
    draft.set_ownership(pod, OwnershipChange::Adopt);
    true
}

/// Has the claims that a Pod of the set mounts be of the set, under the Pod's ID; whether there is anything to change. Whoever
/// takes them from the set does not take the Pod, and an exclusion that is taken back half way has taken them.
pub fn take_mounted_pvcs(facts: &SetFacts, draft: &mut Draft, pod: &Pod, id: i64) -> bool {
    let id = id.to_string();
    let mut any = false;
    let mounted: BTreeSet<&str> = pod.spec.pvcs.iter().map(String::as_str).collect();
    for claim in mounted.into_iter().filter_map(|name| facts.find_pvc(name)) {
        let named = claim.labels.get(keys::INSTANCE_ID) == Some(&id);
        let is_marked = claim.labels.contains_key(keys::ORPHANED);
        let is_own = claim.belongs_to_set(facts.observed.set.metadata.uid.as_deref());
        // A user has labelled an owned claim to be kept. The garbage collector deletes a claim that has an owner.
        let is_to_release = is_own && facts.keeps_pvc(claim) && claim.controller.is_some();
        let is_settled = is_own && named && !is_marked && !is_to_release;
        if is_settled || !is_own && !may_take_pvc(facts, pod, claim) {
            continue;
        }
        let mut labels = LabelPatch::default();
        labels.0.insert(keys::ORPHANED.to_owned(), None);
        labels
            .0
            .insert(keys::INSTANCE_ID.to_owned(), Some(id.clone()));
        let ownership = if is_to_release {
            labels.0.extend(kept_pvc_label(facts, pod, claim));
            OwnershipChange::Release
        } else {
            let is_kept = match is_own {
                true => claim.controller.is_none(),
                false => keep_entering_pvc(facts, pod, claim, &mut labels),
            };
            match is_kept {
                true => OwnershipChange::Keep,
                false => OwnershipChange::Adopt,
            }
        };
        draft.patch_pvc(claim, labels, ownership);
        any = true;
    }
    any
}

/// Whether a claim that the set does not have may be one of its claims: it is of a template of the Pod's revision or the updated one, or has
/// a name of the set's. One that a Pod of somebody else mounts too is theirs.
fn may_take_pvc(facts: &SetFacts, pod: &Pod, claim: &Pvc) -> bool {
    let set = &facts.observed.set;
    let is_others = |other: &Arc<Pod>| other.controller().is_some() && !facts.controls(other);
    if facts.pods_mounting(&claim.name).iter().any(is_others) {
        return false;
    }
    let revisions = facts.revision_of(pod).into_iter();
    let revisions = revisions.chain([&facts.history.updated]);
    let templates = revisions.flat_map(|revision| data::pvc_templates(&revision.data));
    let templates: Vec<&Value> = templates.collect();
    let has_hash = claim.labels.contains_key(keys::PVC_TEMPLATE_HASH);
    matches_any_template(facts, claim, &templates)
        || has_hash && pvcs::has_generated_name(set, claim)
}

/// Whether a claim goes by the name of one of these templates, and is not known to be of another.
fn matches_any_template(facts: &SetFacts, claim: &Pvc, templates: &[&Value]) -> bool {
    let label = |key: &str| claim.labels.get(key).map(String::as_str);
    let of = label(keys::PVC_TEMPLATE_HASH).unwrap_or_default();
    let known = &facts.template_hashes;
    templates.iter().any(|template| {
        let is_named = label(keys::PVC_TEMPLATE_NAME) == Some(data::pvc_template_name(template));
        is_named && (known.is_equivalent(&known.template_hash(template), of) || !known.contains(of))
    })
}

/// Whether a claim that enters is to be kept, which the labels say then: unless it is [`Facts::is_of_spec`]. One of a template
/// that is not known serves as one of its Pod's.
fn keep_entering_pvc(facts: &SetFacts, pod: &Pod, claim: &Pvc, labels: &mut LabelPatch) -> bool {
    labels.0.extend(plan::remove_kept_label(claim)); // it was for a former set
    if facts.is_pvc_of_spec(claim) {
        if claim.labels.contains_key(keys::KEPT_AS) {
            labels.0.insert(keys::KEPT_AS.to_owned(), None);
        }
        return false;
    }
    let uid = facts.observed.set.metadata.uid.clone();
    labels.0.insert(keys::KEPT_FOR.to_owned(), uid);
    labels.0.extend(kept_pvc_label(facts, pod, claim));
    true
}

/// The label of a kept claim of a template that is not known: it serves as one of its Pod's.
fn kept_pvc_label(facts: &SetFacts, pod: &Pod, claim: &Pvc) -> Option<(String, Option<String>)> {
    let said = claim.labels.get(keys::PVC_TEMPLATE_HASH);
    if said.is_some_and(|said| facts.template_hashes.contains(said)) {
        return None;
    }
    let own = facts.revision_of(pod);
    let own = own.and_then(|of| facts.template_hash_in(of, claim));
    let own = own.or_else(|| facts.template_hash_in(&facts.history.updated, claim))?;
    Some((keys::KEPT_AS.to_owned(), Some(own.into_owned())))
}

/// The claims of a Pod that the set keeps, in words; empty without any.
fn describe_kept_pvcs(facts: &SetFacts, pod: &Pod) -> String {
    let mounted = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
    let kept = mounted.filter(|claim| facts.keeps_pvc(claim));
    let told = kept.map(|claim| {
        let next = match (facts.serves_spec_template(claim), facts.has_template_in_spec(claim)) {
            (true, _) => "",
            (false, true) => ", and once the Pod is updated its instance gets a new, empty one",
            (false, false) => ", and once the Pod is updated nobody mounts it",
        };
        format!(
            "; its claim {} had no owner, is not known to be of spec.volumeClaimTemplates, and is kept: the CollaSet never deletes it{next}",
            claim.name
        )
    });
    told.collect()
}

/// Whether an ID has claims beside those that a Pod mounts, of the same templates.
pub fn has_other_pvcs(facts: &SetFacts, pod: &Pod, id: i64) -> bool {
    let template = |claim: &Pvc| claim.labels.get(keys::PVC_TEMPLATE_NAME).cloned();
    let mounted = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
    let mounted: BTreeSet<_> = mounted.map(|claim| template(claim)).collect();
    // One that is kept may be of a template that no Pod is of any more.
    let others = facts.owned_pvcs_with_id(id);
    let mut others = others.filter(|claim| !claim.terminating && !facts.keeps_pvc(claim));
    others.any(|claim| !pod.spec.pvcs.contains(&claim.name) && mounted.contains(&template(claim)))
}
