//! Decides which Pods enter the set: those that `podToInclude` names, and orphans of the set.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::draft::Draft;
use super::headroom::Headroom;
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

/// Event reason for a Pod that can't be included.
const REFUSED: &str = "IncludeNotAllowed";
/// Event reason for a Pod that has entered.
const INCLUDED: &str = "IncludeTarget";

/// Includes a Pod that `podToInclude` names. The Pod keeps its instance ID if that is free. Returns true if the Pod
/// enters and the rest of the plan must wait for it.
pub fn include_pod(
    facts: &SetFacts,
    draft: &mut Draft,
    headroom: &mut Headroom,
    pod: &Arc<Pod>,
) -> bool {
    let name = &pod.metadata.name;
    let own = facts
        .instance_id_of(pod)
        .filter(|id| is_id_free_for(facts, draft, pod, *id));
    // An earlier plan stored an entry for the Pod, and the write of the Pod failed.
    let reserved_id =
        || pool::id_reserved_for(draft, pod).filter(|id| is_id_free_for(facts, draft, pod, *id));
    let own = own.or_else(reserved_id);
    let is_known = own.is_some_and(|id| draft.ids.contains_key(&id));
    let is_full = || {
        let full = !is_known && !headroom.take_entry();
        full.then(|| {
            let pool = facts.pool;
            format!("ResourceContext {pool} has no room for more instance IDs; scale in, or delete Pods of other sets that share it")
        })
    };
    if let Some(reason) = obstacles::describe_obstacles(facts, pod).or_else(is_full) {
        refuse_inclusion(facts, draft, pod, &reason);
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
        let kept_pvcs = describe_kept_pvcs(facts, pod);
        let message = match facts.revision_of(pod) {
            Some(_) => format!("Pod {name} is included under instance ID {id}{kept_pvcs}"),
            None => format!(
                "Pod {name} is included under instance ID {id}; its revision is not known, so it is recreated, as in \
                 an update, as soon as updateStrategy includes it{kept_pvcs}"
            ),
        };
        draft.announce_once_written(pod, INCLUDED, message);
    }
    !facts.is_write_refused(pod)
}

/// Reports why an unmanaged Pod can't be included. The controller reads the Pod again later, because no watch reports
/// its changes.
pub fn refuse_unmanaged(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    draft.requeue_after(UNMANAGED_NANOS);
    if let Some(reason) = obstacles::describe_obstacles(facts, pod) {
        refuse_inclusion(facts, draft, pod, &reason);
    }
}

fn refuse_inclusion(facts: &SetFacts, draft: &mut Draft, pod: &Pod, reason: &str) {
    let message = format!("Pod {} can't be included: {reason}", pod.metadata.name);
    let is_excluded = facts.strategy.exclude.contains(&pod.metadata.name);
    match obstacles::contradicts_exclusion(facts, pod) && (facts.controls(pod) || is_excluded) {
        // Only an Event: the spec contradicts itself, and the other request is fulfilled or reported elsewhere.
        true => draft.announce_event(true, REFUSED, message),
        false => draft.report_refusal(REFUSED, message),
    }
}

/// Adopts orphans, each with the PVCs that it mounts, under the instance ID of [`instance_id_for_orphan`]. Orphans are
/// Pods of a set of this name that was deleted with `--cascade=orphan` and recreated, or whose Pods outlived an
/// uninstallation. Without the adoption the set would create other Pods on the same PVCs.
///
/// An orphan for whose ID the pool has no space waits, and the set creates no other Pod for that ID. An excluded Pod is
/// no orphan: it has the label [`keys::ORPHANED`].
pub fn adopt_orphans(facts: &SetFacts, draft: &mut Draft, headroom: &mut Headroom) -> bool {
    let mut moved = false;
    // Finished orphans come last: another orphan may have the same ID.
    let mut orphans: Vec<_> = facts.observed.orphans.iter().collect();
    let has_left = |pod: &Pod| {
        let mut pvcs = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
        pvcs.any(|pvc| pvc.labels.contains_key(keys::ORPHANED))
    };
    // An orphan whose ID belongs to another set comes later, because it gets an ID that no other orphan has.
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
            draft.set_ownership(pod, OwnershipChange::Adopt); // the set deletes it afterwards, because it is finished
            moved |= !facts.is_write_refused(pod);
            continue;
        }
        // An orphan that has left with its PVCs returns only if an instance is missing. Otherwise a scale-in would
        // delete it with its PVCs.
        let is_taken = facts.members.contains_key(&id);
        if has_left(pod) && (is_taken || !may_instance_return(facts, draft, id)) {
            report_outside_orphan(facts, draft, pod);
            continue;
        }
        let Some(id) = instance_id_for_orphan(facts, draft, headroom, pod, id) else {
            continue;
        };
        moved |= !facts.is_write_refused(pod);
        if enter_pod(facts, draft, pod, id) {
            let name = &pod.metadata.name;
            let kept_pvcs = describe_kept_pvcs(facts, pod);
            let message =
                format!("Pod {name} has no owner and is adopted under instance ID {id}{kept_pvcs}");
            draft.announce_once_written(pod, INCLUDED, message);
        }
    }
    moved
}

/// Returns the instance ID under which an orphan enters. This is its own ID. If another set of the pool has taken that
/// ID and an instance is missing, it is a free ID without volumes. `None` if the orphan stays outside for now.
fn instance_id_for_orphan(
    facts: &SetFacts,
    draft: &mut Draft,
    headroom: &mut Headroom,
    pod: &Pod,
    own: i64,
) -> Option<i64> {
    let revision = pod.label(keys::REVISION);
    let is_foreign = facts.foreign.contains(&own);
    let reserved_id = || pool::id_reserved_for(draft, pod).filter(|_| is_foreign);
    let usable_id = Some(own).filter(|_| !is_foreign).or_else(reserved_id);
    if let Some(id) = usable_id {
        // The ID is free again but no instance is missing: a serving Pod would be scaled in for the orphan.
        let is_surplus = !facts.members.is_empty()
            && facts.members.len() >= facts.strategy.replicas
            && !draft.ids.contains_key(&id)
            && facts.owned_pvcs_with_id(id).next().is_none();
        if is_surplus {
            report_outside_orphan(facts, draft, pod);
            return None;
        }
        let fits = |headroom: &mut Headroom| draft.ids.contains_key(&id) || headroom.take_entry();
        if is_id_free_for(facts, draft, pod, id) && fits(headroom) {
            pool::take_id(facts, draft, id, revision);
            return Some(id);
        }
        if facts.members.contains_key(&id) {
            report_outside_orphan(facts, draft, pod);
        }
        return None;
    }
    // Under `PersistentSequence` the name of the orphan belongs to an ID that another set has.
    let is_short = pool::counted_ids(facts, draft).len() < facts.strategy.replicas;
    if facts.strategy.sequence || !is_short {
        report_outside_orphan(facts, draft, pod);
        return None;
    }
    headroom.take_entry().then(|| {
        let id = pool::allocate_id_without_volumes(facts, draft, revision);
        pool::reserve_id_for(draft, id, pod);
        id
    })
}

/// Reports an orphan that stays outside. The selector matches such a Pod, so Services and others with the same selector
/// count it.
fn report_outside_orphan(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    if pod.is_finished() {
        return;
    }
    let pvc_names = pod.spec.pvcs.join(", ");
    let unless_needed = match pvc_names.is_empty() {
        true => String::new(),
        false => format!(" if nobody needs the data in its PVCs ({pvc_names})"),
    };
    let remedy = match facts.strategy.sequence {
        true => "raise spec.replicas",
        false => "name it in podToInclude and add a replica",
    };
    let message = format!(
        "Pod {} matches spec.selector and is not adopted, because its instance ID is not free: {remedy}, or delete \
         it{unless_needed}",
        pod.metadata.name
    );
    draft.announce_event(true, REFUSED, message);
}

/// Whether a Pod has a name that a set of this name gives its Pods. Selectors may overlap, and an orphan of another set
/// must be left to that set.
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

/// Whether an entering Pod can have this instance ID. No other Pod and no other set may have the ID, and it may not be
/// reserved for the new Pod of a pair. The set may have no PVCs of this ID that the Pod does not mount, except those
/// that are [spare](SetFacts::is_pvc_spare).
fn is_id_free_for(facts: &SetFacts, draft: &Draft, pod: &Pod, id: i64) -> bool {
    let paired = [pool::REPLACE_NEW, pool::REPLACE_ORIGIN];
    !facts.foreign.contains(&id)
        && !facts.is_id_held(id)
        && !draft.entering.contains(&id)
        && !pool::is_id_reserved_elsewhere(draft, id, pod)
        && !paired
            .iter()
            .any(|mark| pool::has_entry_mark(draft, id, mark))
        && facts.owned_pvcs_with_id(id).all(|pvc| {
            let is_mounted = pod.spec.pvcs.contains(&pvc.name);
            is_mounted || pvc.terminating || facts.is_pvc_spare(pod, pvc)
        })
}

/// Makes a Pod enter. Returns false while its PVCs must enter first. If the PVCs entered later and that write failed,
/// the Pod would have another ID than its PVCs.
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

/// Makes the PVCs that a Pod mounts belong to the set, under the Pod's ID. Returns whether there is anything to change.
/// This is necessary because somebody can take PVCs from the set without the Pod, and an exclusion that was withdrawn
/// may already have released them.
pub fn take_mounted_pvcs(facts: &SetFacts, draft: &mut Draft, pod: &Pod, id: i64) -> bool {
    let id = id.to_string();
    let mut any = false;
    let mounted: BTreeSet<&str> = pod.spec.pvcs.iter().map(String::as_str).collect();
    for pvc in mounted.into_iter().filter_map(|name| facts.find_pvc(name)) {
        let named = pvc.labels.get(keys::INSTANCE_ID) == Some(&id);
        let is_marked = pvc.labels.contains_key(keys::ORPHANED);
        let is_own = pvc.belongs_to_set(facts.observed.set.metadata.uid.as_deref());
        // A user has labelled an owned PVC to be kept. Release it, because the garbage collector deletes a PVC that has
        // an owner.
        let is_to_release = is_own && facts.keeps_pvc(pvc) && pvc.controller.is_some();
        let is_settled = is_own && named && !is_marked && !is_to_release;
        if is_settled || !is_own && !may_take_pvc(facts, pod, pvc) {
            continue;
        }
        let mut labels = LabelPatch::default();
        labels.0.insert(keys::ORPHANED.to_owned(), None);
        labels
            .0
            .insert(keys::INSTANCE_ID.to_owned(), Some(id.clone()));
        let ownership = if is_to_release {
            labels.0.extend(kept_pvc_label(facts, pod, pvc));
            OwnershipChange::Release
        } else {
            let is_kept = match is_own {
                true => pvc.controller.is_none(),
                false => keep_entering_pvc(facts, pod, pvc, &mut labels),
            };
            match is_kept {
                true => OwnershipChange::Keep,
                false => OwnershipChange::Adopt,
            }
        };
        draft.patch_pvc(pvc, labels, ownership);
        any = true;
    }
    any
}

/// Whether a PVC that does not belong to the set may be taken. It must be of a template of the Pod's revision or of the
/// updated revision, or have a name that the set generates. A PVC that a Pod of another controller mounts too is not
/// taken.
fn may_take_pvc(facts: &SetFacts, pod: &Pod, pvc: &Pvc) -> bool {
    let set = &facts.observed.set;
    let is_others = |other: &Arc<Pod>| other.controller().is_some() && !facts.controls(other);
    if facts.pods_mounting(&pvc.name).iter().any(is_others) {
        return false;
    }
    let revisions = facts.revision_of(pod).into_iter();
    let revisions = revisions.chain([&facts.history.updated]);
    let templates = revisions.flat_map(|revision| data::pvc_templates(&revision.data));
    let templates: Vec<&Value> = templates.collect();
    let has_hash = pvc.labels.contains_key(keys::PVC_TEMPLATE_HASH);
    matches_any_template(facts, pvc, &templates) || has_hash && pvcs::has_generated_name(set, pvc)
}

/// Whether a PVC has the name of one of these templates, and its hash is not that of another known template.
fn matches_any_template(facts: &SetFacts, pvc: &Pvc, templates: &[&Value]) -> bool {
    let label = |key: &str| pvc.labels.get(key).map(String::as_str);
    let of = label(keys::PVC_TEMPLATE_HASH).unwrap_or_default();
    let hashes = &facts.template_hashes;
    templates.iter().any(|template| {
        let is_named = label(keys::PVC_TEMPLATE_NAME) == Some(data::pvc_template_name(template));
        is_named
            && (hashes.is_equivalent(&hashes.template_hash(template), of) || !hashes.contains(of))
    })
}

/// Whether the set is to keep an entering PVC. This function also adds the labels of a kept PVC. The set keeps every
/// PVC for which [`SetFacts::is_pvc_of_spec`] is false. A kept PVC of an unknown template serves as a PVC of its Pod's
/// template.
fn keep_entering_pvc(facts: &SetFacts, pod: &Pod, pvc: &Pvc, labels: &mut LabelPatch) -> bool {
    labels.0.extend(plan::remove_kept_label(pvc)); // the label may name a former set
    if facts.is_pvc_of_spec(pvc) {
        if pvc.labels.contains_key(keys::KEPT_AS) {
            labels.0.insert(keys::KEPT_AS.to_owned(), None);
        }
        return false;
    }
    let uid = facts.observed.set.metadata.uid.clone();
    labels.0.insert(keys::KEPT_FOR.to_owned(), uid);
    labels.0.extend(kept_pvc_label(facts, pod, pvc));
    true
}

/// The label of a kept PVC whose template is unknown: it makes the PVC serve as a PVC of its Pod's template.
fn kept_pvc_label(facts: &SetFacts, pod: &Pod, pvc: &Pvc) -> Option<(String, Option<String>)> {
    let hash = pvc.labels.get(keys::PVC_TEMPLATE_HASH);
    if hash.is_some_and(|hash| facts.template_hashes.contains(hash)) {
        return None;
    }
    let own = facts.revision_of(pod);
    let own = own.and_then(|of| facts.template_hash_in(of, pvc));
    let own = own.or_else(|| facts.template_hash_in(&facts.history.updated, pvc))?;
    Some((keys::KEPT_AS.to_owned(), Some(own.into_owned())))
}

/// Describes the PVCs of a Pod that the set keeps; empty if there are none.
fn describe_kept_pvcs(facts: &SetFacts, pod: &Pod) -> String {
    let mounted = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
    let kept_pvcs = mounted.filter(|pvc| facts.keeps_pvc(pvc));
    let descriptions = kept_pvcs.map(|pvc| {
        let next = match (facts.serves_spec_template(pvc), facts.has_template_in_spec(pvc)) {
            (true, _) => "",
            (false, true) => ", and once the Pod is updated its instance gets a new, empty one",
            (false, false) => ", and once the Pod is updated nobody mounts it",
        };
        format!(
            "; its PVC {} had no owner, is not known to be of spec.volumeClaimTemplates, and is kept: the CollaSet never deletes it{next}",
            pvc.name
        )
    });
    descriptions.collect()
}

/// Whether an ID has PVCs, of the same templates, besides those that a Pod mounts.
pub fn has_other_pvcs(facts: &SetFacts, pod: &Pod, id: i64) -> bool {
    let template = |pvc: &Pvc| pvc.labels.get(keys::PVC_TEMPLATE_NAME).cloned();
    let mounted = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
    let mounted: BTreeSet<_> = mounted.map(|pvc| template(pvc)).collect();
    // Ignore kept PVCs: their template may be one that no Pod has any more.
    let others = facts.owned_pvcs_with_id(id);
    let mut others = others.filter(|pvc| !pvc.terminating && !facts.keeps_pvc(pvc));
    others.any(|pvc| !pod.spec.pvcs.contains(&pvc.name) && mounted.contains(&template(pvc)))
}

/// Whether the set has this ID, or can take it again because an instance is missing and the pool has space for the
/// entry.
pub fn may_instance_return(facts: &SetFacts, draft: &Draft, id: i64) -> bool {
    let entering = facts.observed.pods_to_include.len();
    let is_short = || pool::counted_ids(facts, draft).len() + entering < facts.strategy.replicas;
    let is_free =
        || !facts.foreign.contains(&id) && Headroom::beside_draft(facts, draft).take_entry();
    draft.ids.contains_key(&id) || is_short() && is_free()
}
