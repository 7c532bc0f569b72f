//! Plans the end of a set (contract 6.7). The set first deletes its Pods through the lifecycle, then its PVCs, its
//! instance IDs and its finalizer.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::draft::Draft;
use super::observed::{ObservedSet, Pvc};
use super::plan::{OwnershipChange, PvcChange, SetPlan};
use super::pvcs;
use super::scaling;
use super::set_facts::SetFacts;
use super::strategy::ResolvedStrategy;
use crate::api::keys;
use crate::domain::lifecycle::LabelPatch;

/// Finalizer that `--cascade=orphan` sets, so that the Pods stay. The garbage collector of Kubernetes removes it.
const ORPHAN_FINALIZER: &str = "orphan";

/// Whether the set is deleted together with its Pods, by its metadata.
pub fn deletes_its_pods(set: &ObjectMeta) -> bool {
    set.deletion_timestamp.is_some() && !orphans_its_pods(set)
}

/// Whether the set is deleted without its Pods, by its metadata. The Kubernetes garbage collector has yet to release
/// the Pods, or it has released them and admission has recorded that in an annotation.
pub fn orphans_its_pods(set: &ObjectMeta) -> bool {
    let annotations = set.annotations.iter().flatten();
    let is_recorded = |(key, uid): (&String, &String)| {
        key == keys::LEAVES_ITS_PODS && set.uid.as_ref() == Some(uid)
    };
    set.deletion_timestamp.is_some()
        && (awaits_garbage_collector(set) || annotations.into_iter().any(is_recorded))
}

/// Whether the Kubernetes garbage collector has yet to release the dependents.
pub fn awaits_garbage_collector(set: &ObjectMeta) -> bool {
    let mut finalizers = set.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == ORPHAN_FINALIZER)
}

/// Releases the PVCs that outlast a set whose spec is not evaluated: all PVCs if it `retains` them, the PVCs that it
/// keeps, and those that a Pod outside the set mounts.
pub fn release_outlasting_pvcs(observed: &ObservedSet, retains: bool) -> Vec<PvcChange> {
    let uid = observed.set.metadata.uid.as_deref();
    let is_own = |pvc: &&Arc<Pvc>| pvc.belongs_to_set(uid);
    let is_kept = |pvc: &&Arc<Pvc>| {
        let mut mounting = observed.mounts.get(&pvc.name).into_iter().flatten();
        retains
            || pvc.is_kept_for(uid)
            || mounting.any(|pod| {
                pod.controller()
                    .is_none_or(|owner| Some(&*owner.uid) != uid)
            })
    };
    let own = observed.pvcs.iter().filter(is_own);
    let kept_pvcs = own.filter(is_kept);
    let release = kept_pvcs.map(|pvc| {
        let mut mounting = observed.mounts.get(&pvc.name).into_iter().flatten();
        let is_excluded = mounting.any(|pod| pod.label(keys::ORPHANED).is_some());
        let labels = match pvc.is_kept_for(uid) && !retains || is_excluded {
            true => pvcs::left_behind_labels(),
            false => LabelPatch::default(),
        };
        PvcChange::release_pvc(pvc, labels)
    });
    release.collect()
}

/// The plan of a set that is being deleted and whose finalizer of Operating somebody has removed. The Kubernetes
/// garbage collector deletes its Pods, and would also delete the PVCs that outlast it.
pub fn plan_without_finalizer(observed: &ObservedSet) -> SetPlan {
    let set = &observed.set;
    let pvcs = match deletes_its_pods(&set.metadata) {
        true => release_outlasting_pvcs(
            observed,
            ResolvedStrategy::from_spec(&set.spec).retain_deleted,
        ),
        false => Vec::new(),
    };
    SetPlan {
        pvcs,
        ..SetPlan::default()
    }
}

/// Releases the dependents that the set still owns after the Kubernetes garbage collector has released its dependents.
/// Returns true if none is left. The collector relies on its watches, so it misses an object that the set adopted just
/// before the deletion. It would delete that object when the set is gone.
pub fn release_dependents(observed: &ObservedSet, draft: &mut Draft) -> bool {
    if awaits_garbage_collector(&observed.set.metadata) {
        return false;
    }
    let uid = &observed.set.metadata.uid;
    for pod in &observed.pods {
        draft.set_ownership(pod, OwnershipChange::Release);
    }
    // A kept PVC has no owner. Its label tells the next set of this name about it.
    for pvc in observed.pvcs.iter().filter(|c| c.controller == *uid) {
        draft.patch_pvc(pvc, LabelPatch::default(), OwnershipChange::Release);
    }
    let revisions = observed.revisions.iter().filter(|r| r.controller == *uid);
    draft.released = revisions.cloned().collect();
    let is_left = observed.pods.is_empty() && draft.pvcs.is_empty() && draft.released.is_empty();
    if is_left {
        draft.ids.clear();
    }
    is_left
}

/// Plans the next step of the deletion. Returns true if nothing is left to do and the finalizer may be removed.
pub fn reclaim_step(facts: &SetFacts, draft: &mut Draft) -> bool {
    if orphans_its_pods(&facts.observed.set.metadata) {
        return release_dependents(facts.observed, draft);
    }
    let alive = || facts.observed.pods.iter().filter(|p| !p.is_terminating());
    for pod in alive() {
        if pod.is_finished() {
            draft.delete_pod(pod);
        } else {
            draft.request_deletion(pod, facts.observed.now_nanos);
        }
        scaling::recheck_deletion(facts, draft, pod);
    }
    if !facts.observed.pods.is_empty() {
        release_retained_pvcs(facts, draft);
        return false;
    }
    let uid = facts.observed.set.metadata.uid.as_deref();
    let mut released = false;
    for pvc in &facts.observed.pvcs {
        if !pvc.belongs_to_set(uid) {
            continue;
        }
        let retains = facts.strategy.retain_deleted;
        // A Pod that left the set mounts the PVC. If the set still owned the PVC, the Kubernetes garbage collector
        // would delete it.
        if retains || pvc.is_kept_for(uid) || !facts.pods_mounting(&pvc.name).is_empty() {
            released = true;
            draft.release_pvc(pvc, released_pvc_labels(facts, pvc));
        } else if !pvc.terminating {
            draft.pvcs.push(PvcChange::Delete(pvc.clone()));
        }
    }
    // The release is stored first. A PVC that is being deleted does not delay the end of the set.
    if released {
        return false;
    }
    draft.ids.clear();
    true
}

/// Releases the PVCs that the set owns and retains or keeps, while its Pods still exist. A foreground deletion waits
/// for this release: admission denies the garbage collector's deletions of these PVCs until they have no owner.
fn release_retained_pvcs(facts: &SetFacts, draft: &mut Draft) {
    let uid = facts.observed.set.metadata.uid.as_deref();
    let pvcs = facts.observed.pvcs.iter();
    for pvc in pvcs.filter(|pvc| pvc.controller.as_deref() == uid) {
        if facts.strategy.retain_deleted {
            draft.release_pvc(pvc, released_pvc_labels(facts, pvc));
        } else if pvc.is_kept_for(uid) {
            // The set releases the PVC once it has no Pod.
            draft.patch_pvc(pvc, LabelPatch::default(), OwnershipChange::Release);
        }
    }
}

/// The labels that a released PVC gets. A kept PVC, and the PVC of a Pod that has left, get a label so that no later
/// set of this name takes them.
fn released_pvc_labels(facts: &SetFacts, pvc: &Pvc) -> LabelPatch {
    let is_kept_and_released = facts.keeps_pvc(pvc) && !facts.strategy.retain_deleted;
    let mut mounting = facts.pods_mounting(&pvc.name).iter();
    match is_kept_and_released || mounting.any(|pod| facts.has_left(pod)) {
        true => pvcs::left_behind_labels(),
        false => LabelPatch::default(),
    }
}
