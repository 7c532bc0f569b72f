//! Creates the missing Pods: each instance ID without a Pod gets a Pod of the revision that the pool records for the
//! ID.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use super::composition::Composition;
use super::construct;
use super::draft::Draft;
use super::inclusion;
use super::membership;
use super::observed::Revision;
use super::pairs;
use super::plan::OwnershipChange;
use super::pool;
use super::pvcs;
use super::revision::data;
use super::set_facts::SetFacts;
use crate::api::keys;
use crate::domain::decoration::labels::owner_reference;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Most terminating PVCs that one plan reports.
const MAX_REPORTED_PVCS: usize = 20;

/// Nanoseconds after which the controller checks again whether a Pod outside the set has ended.
const RECHECK_NANOS: u64 = 5_000_000_000;

/// Creates PVCs. If an ID has all its PVCs, creates its Pod.
pub fn create_instances(facts: &SetFacts, draft: &mut Draft) {
    let vacant: Vec<i64> = draft
        .ids
        .keys()
        .copied()
        .filter(|id| !facts.is_id_held(*id) && !draft.is_id_moving(*id))
        .filter(|id| !pool::has_entry_mark(draft, *id, pool::REPLACED))
        // The instance was being scaled in when the set was paused.
        .filter(|id| !(facts.strategy.paused && pool::has_entry_mark(draft, *id, pool::SCALE_IN)))
        .collect();
    for id in vacant {
        create_instance(facts, draft, id);
    }
}

fn create_instance(facts: &SetFacts, draft: &mut Draft, id: i64) {
    let Some(entry) = draft.ids.get(&id) else {
        return;
    };
    let Some(revision) = entry
        .get(pool::REVISION)
        .and_then(|name| facts.history.find_revision(name))
        .map(Arc::clone)
    else {
        return; // the earlier steps have recorded a known revision
    };
    let first = entry.contains_key(pool::JUST_CREATE);
    let mut labels = BTreeMap::new();
    let origin = pool::origin_of(entry).and_then(|origin| facts.members.get(&origin));
    if let Some(origin) = origin {
        if pairs::is_pair_paused(facts, origin) || draft.removes_label(origin, keys::TO_REPLACE) {
            return;
        }
        let name = origin.metadata.name.clone();
        labels.insert(keys::REPLACE_PAIR_ORIGIN_NAME.to_owned(), name);
    }
    let set = &facts.observed.set;
    if let Some(decoration) = facts.holding_decoration(id, &revision) {
        // Without an Event: this lasts only moments, unless a write of the PodDecoration is refused.
        let (name, reason) = (&decoration.name, decoration.hold.as_deref());
        let reason = reason.unwrap_or_default();
        let message = format!("instance ID {id} waits for PodDecoration {name}: {reason}");
        if !is_reported(draft, &message) {
            draft.refused.push(("ScaleOutFailed", message));
        }
        return;
    }
    let composition = match compose_instance(facts, draft, id, &revision) {
        Ok(composition) => composition,
        Err(message) => {
            if !is_reported(draft, &message) {
                draft.report_refusal("ScaleOutFailed", message);
            }
            return;
        }
    };
    let templates = data::pvc_templates(&revision.data);
    let existing = facts.pvcs_with_id(id);
    let wanted = pvcs::plan_instance_pvcs(set, templates, id, existing, &facts.template_hashes);
    let ready = wanted.ready;
    if !ready && facts.is_name_taken(id) {
        let name = facts.persistent_pod_name(id);
        let message = format!(
            "Pod {name} has the name of instance ID {id} and does not belong to this CollaSet: change its labels so \
             that spec.selector matches it again, or delete it to get a new Pod with an empty volume"
        );
        draft.report_refusal("ScaleOutFailed", message);
        return; // if the set created PVCs for the next Pod, the returning Pod would not find its data
    }
    draft.pvcs.extend(wanted.create);
    if !ready {
        return; // the PVCs are created first
    }
    let mut volumes = wanted.volumes.values();
    if let Some(pod) = volumes.find_map(|pvc_name| facts.pvc_writer(pvc_name)) {
        recheck_pod_end(facts, draft, pod); // otherwise two Pods would write to one PVC
        return;
    }
    let now = facts.observed.now_nanos;
    match construct::pod_manifest(set, &composition, id, first, &wanted.volumes, &labels, now) {
        Ok(mut body) => {
            add_decoration_owners(facts, &composition, &mut body);
            note_origin(&mut body, origin.map(|pod| &*pod.metadata.uid));
            draft.create_pod(id, body);
        }
        Err(error) => draft.announce_event(
            true,
            "ScaleOutFailed",
            format!("no Pod can be made of revision {}: {error}", revision.name),
        ),
    }
}

/// Whether the same reason was reported for another instance. Most instances fail for the same reason, and one message
/// is enough.
fn is_reported(draft: &Draft, message: &str) -> bool {
    fn reason(message: &str) -> Option<&str> {
        let (_, rest) = message.strip_prefix("instance ID ")?.split_once(' ')?;
        Some(rest)
    }
    let mut reported = draft.refused.iter();
    reported.any(|(_, known)| reason(known) == reason(message))
}

/// Applies to a revision of the template the decorations of the next Pod of an instance. Returns an error if a
/// decoration can't be applied, or if the selector of the set would not match the Pod.
fn compose_instance(
    facts: &SetFacts,
    draft: &Draft,
    id: i64,
    revision: &Arc<Revision>,
) -> Result<Rc<Composition>, String> {
    if !construct::template_matches_selector(&revision.data["spec"]["template"], &facts.selector) {
        return Err(format!(
            "instance ID {id} needs a Pod of revision {}, but spec.selector does not match the labels of this \
             revision, so the Pod would be released at once; change updateStrategy so that it updates all Pods",
            revision.name
        ));
    }
    let wanted = facts.wanted_decorations((id, draft.ids.get(&id)), (None, true), revision);
    facts.compose(revision, &wanted.sure).map_err(|failure| {
        format!(
            "instance ID {id} needs a Pod with PodDecoration {}, which can't be applied: {}",
            failure.decoration, failure.message
        )
    })
}

/// Adds to a Pod the references to its PodDecorations.
fn add_decoration_owners(facts: &SetFacts, composition: &Composition, body: &mut Value) {
    let Some(owners) = body["metadata"]["ownerReferences"].as_array_mut() else {
        return;
    };
    let decorations = composition.decorations.keys();
    let decorations = decorations.filter_map(|name| facts.find_decoration(name));
    owners.extend(decorations.map(|decoration| owner_reference(&decoration.name, &decoration.uid)));
}

/// Creates the PVCs of Pods that were never scheduled and whose PVCs somebody has deleted.
pub fn recreate_missing_pvcs(facts: &SetFacts, draft: &mut Draft) {
    for (id, pod) in &facts.members {
        let waits = pod.condition("PodScheduled") != Some(true) && !pod.is_finished();
        if !waits || pod.spec.pvcs.is_empty() || draft.leaving.contains(id) {
            continue;
        }
        let Some(revision) = facts.revision_of(pod) else {
            continue;
        };
        let exists = |name: &str| facts.find_pvc(name).is_some();
        let (set, hashes) = (&facts.observed.set, &facts.template_hashes);
        let missing = pvcs::missing_pvcs(set, &revision.data, *id, pod, exists, hashes);
        draft.pvcs.extend(missing);
    }
}

/// Plans again after some time to see the end of a Pod outside the set. The end of a Pod of the set causes a plan by
/// itself.
fn recheck_pod_end(facts: &SetFacts, draft: &mut Draft, pod: &Pod) {
    if !facts.controls(pod) {
        draft.requeue_after(RECHECK_NANOS);
    }
}

/// Notes on a new Pod which Pod it replaces, for OperationJobs. The note in a template says nothing, and is removed.
fn note_origin(body: &mut Value, origin: Option<&str>) {
    let annotations = body.pointer_mut("/metadata/annotations");
    match (origin, annotations.and_then(Value::as_object_mut)) {
        (Some(uid), Some(annotations)) => {
            annotations.insert(keys::REPLACED_UID.to_owned(), uid.into());
        }
        (Some(uid), None) => body["metadata"]["annotations"] = json!({ (keys::REPLACED_UID): uid }),
        (None, Some(annotations)) => {
            annotations.remove(keys::REPLACED_UID);
        }
        (None, None) => {}
    }
}

/// Deletes or releases PVCs that no Pod needs any more. A PVC that a Pod mounts stays until that Pod has ended.
pub fn remove_leftover_pvcs(facts: &SetFacts, draft: &mut Draft) {
    membership::return_entering_pvcs(facts, draft);
    for (id, pod) in &facts.members {
        if !draft.leaving.contains(id) {
            inclusion::take_mounted_pvcs(facts, draft, pod, *id);
        }
    }
    keep_mismatched_pvcs(facts, draft);
    let (mut needed, mut unsure) = (BTreeMap::new(), BTreeSet::new());
    let mut replaced = Vec::new();
    for (id, entry) in &draft.ids {
        if entry.contains_key(pool::REPLACED) {
            replaced.push(*id);
            continue;
        }
        let recorded = entry.get(pool::REVISION);
        let recorded = recorded.and_then(|name| facts.history.find_revision(name));
        let present = facts.members.get(id).map(|pod| facts.revision_of(pod));
        // A revision that does not exist any more may have had any template.
        if recorded.is_none() || present == Some(None) {
            unsure.insert(*id);
        }
        // Until a rollout is over, it may be aborted. Then the Pod would come back to an empty volume.
        let current = Some(&facts.history.current).filter(|_| facts.rollout.is_on);
        // A rollback without a rollout is not recorded in the pool yet.
        let updated = Some(&facts.history.updated);
        // Take each revision only once, because its templates are compared with every PVC.
        let is_other = |taken: Option<&Arc<Revision>>, other: &Arc<Revision>| {
            taken.is_none_or(|taken| taken.name != other.name)
        };
        let current = current.filter(|current| is_other(present.flatten(), current));
        let updated = updated.filter(|updated| is_other(recorded, updated));
        let updated = updated.filter(|updated| is_other(present.flatten(), updated));
        let templates = [recorded, present.flatten(), current, updated];
        let templates = templates.into_iter().flatten();
        let templates = templates.flat_map(|revision| data::pvc_templates(&revision.data));
        needed.insert(*id, templates.collect::<Vec<_>>());
    }
    let observed = facts.observed;
    let hashes = &facts.template_hashes;
    let mut leftover = pvcs::leftover_pvcs(&observed.set, &observed.pvcs, &needed, hashes);
    if facts.strategy.retain_scaled {
        let of_pairs = replaced.iter().flat_map(|id| facts.owned_pvcs_with_id(*id));
        let of_pairs = of_pairs.filter(|pvc| !pvc.terminating);
        leftover.extend(of_pairs.cloned());
    }
    for pvc in leftover {
        if let Some(pod) = facts.pods_mounting(&pvc.name).first() {
            recheck_pod_end(facts, draft, pod);
            continue;
        }
        if pvcs::instance_id_label(&pvc).is_some_and(|id| unsure.contains(&id)) {
            continue;
        }
        draft
            .pvcs
            .push(pvcs::delete_or_release(&observed.set, &pvc));
    }
}

/// Keeps the PVCs of Pods whose label names another template than the Pod's revision has. Otherwise the set would
/// delete them as left over when the Pod ends.
fn keep_mismatched_pvcs(facts: &SetFacts, draft: &mut Draft) {
    let uid = facts.observed.set.metadata.uid.as_deref();
    let pvcs = facts.observed.pods.iter().flat_map(|pod| {
        let pvcs = facts.owned_pvcs_of_pod(pod);
        let own = pvcs.filter_map(|pvc| Some((facts.mismatched_template_hash(pod, pvc)?, pvc)));
        own.map(move |(hash, pvc)| (pod, hash, pvc))
    });
    let mut marked = BTreeSet::new();
    for (pod, hash, pvc) in pvcs {
        let (name, key) = (&pvc.name, keys::PVC_TEMPLATE_HASH);
        if !facts.keeps_pvc(pvc) {
            let is_leaving = facts
                .instance_id_of(pod)
                .is_some_and(|id| draft.leaving.contains(&id));
            if !is_leaving && marked.insert(name) {
                let mark = (keys::KEPT_FOR.to_owned(), uid.map(str::to_owned));
                draft.patch_pvc(pvc, LabelPatch([mark].into()), OwnershipChange::Release);
            }
            continue;
        }
        let message = format!(
            "the label {key} of PVC {name} of Pod {} names another template than the Pod's revision: one of their \
             labels was edited. The CollaSet keeps the PVC and never deletes it. If the label of the PVC was edited, \
             set it to {hash} again; otherwise the next Pod of that revision begins with an empty volume",
            pod.metadata.name
        );
        draft.announce_event(true, "ClaimKept", message);
    }
}

/// Warns about instances whose next volume will be empty because somebody else deletes a PVC that a Pod mounts. The API
/// server keeps such a PVC until the Pod has ended. Nobody can cancel the deletion, so no step waits for it.
pub fn report_terminating_pvcs(facts: &SetFacts, draft: &mut Draft) {
    let pvcs = facts.members.iter().flat_map(|(id, pod)| {
        let ending = facts.owned_pvcs_of_pod(pod).filter(|pvc| pvc.terminating);
        ending.map(move |pvc| (id, &pod.metadata.name, &pvc.name))
    });
    for (id, pod, pvc_name) in pvcs.take(MAX_REPORTED_PVCS) {
        draft.announce_event(
            true,
            "ClaimTerminating",
            format!(
                "PVC {pvc_name} of Pod {pod} is being deleted: the next Pod of instance ID {id} begins with an empty volume"
            ),
        );
    }
}
