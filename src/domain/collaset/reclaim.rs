//! The end of a set (contract 6.7): its Pods go through the lifecycle, then its claims, its instance IDs, its
//! finalizer.

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

/// Finalizer by which `--cascade=orphan` says that the Pods stay. The garbage collector removes it.
const ORPHAN_FINALIZER: &str = "orphan";

/// Whether a set is deleted together with its Pods, by its metadata.
pub fn deletes_its_pods(set: &ObjectMeta) -> bool {
    set.deletion_timestamp.is_some() && !orphans_its_pods(set)
}

/// Whether a set is deleted and its Pods are not, by its metadata: the garbage collector has yet to release them, or has done so and
/// admission has noted it.
pub fn orphans_its_pods(set: &ObjectMeta) -> bool {
    let noted = set.annotations.iter().flatten();
    let is_noted = |(key, uid): (&String, &String)| {
        key == keys::LEAVES_ITS_PODS && set.uid.as_ref() == Some(uid)
    };
    set.deletion_timestamp.is_some()
        && (awaits_garbage_collector(set) || noted.into_iter().any(is_noted))
}

/// Whether the garbage collector has yet to release what stays behind.
pub fn awaits_garbage_collector(set: &ObjectMeta) -> bool {
    let mut finalizers = set.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == ORPHAN_FINALIZER)
}

/// Releases the claims that outlast a set whose spec is not looked into: all that it `retains`, those that it keeps, and those that somebody else's
/// Pod mounts.
pub fn release_outlasting_pvcs(observed: &ObservedSet, retains: bool) -> Vec<PvcChange> {
    let uid = observed.set.metadata.uid.as_deref();
    let is_own = |claim: &&Arc<Pvc>| claim.belongs_to_set(uid);
    let is_kept = |claim: &&Arc<Pvc>| {
        let mut mounting = observed.mounts.get(&claim.name).into_iter().flatten();
        retains
            || claim.is_kept_for(uid)
            || mounting.any(|pod| {
                pod.controller()
                    .is_none_or(|owner| Some(&*owner.uid) != uid)
            })
    };
    let own = observed.pvcs.iter().filter(is_own);
    let kept = own.filter(is_kept);
    let release = kept.map(|claim| {
        let mut mounting = observed.mounts.get(&claim.name).into_iter().flatten();
        let is_excluded = mounting.any(|pod| pod.label(keys::ORPHANED).is_some());
        let labels = match claim.is_kept_for(uid) && !retains || is_excluded {
            true => pvcs::left_behind_labels(),
            false => LabelPatch::default(),
        };
        PvcChange::release_pvc(claim, labels)
    });
    release.collect()
}

/// The plan of a set that goes without the finalizer of Operating, which somebody has taken off: the garbage collector deletes its Pods, and would
/// delete the claims that outlast it.
pub fn plan_without_finalizer(observed: &ObservedSet) -> SetPlan {
    let set = &observed.set;
    let claims = match deletes_its_pods(&set.metadata) {
        true => release_outlasting_pvcs(
            observed,
            ResolvedStrategy::from_spec(&set.spec).retain_deleted,
        ),
        false => Vec::new(),
    };
    SetPlan {
        pvcs: claims,
        ..SetPlan::default()
    }
}

/// Releases what is still owned once the garbage collector has done so; true when nothing is. The collector goes by what its watches
/// have shown it, and what was adopted a moment before the deletion it overlooks: it would delete that when the set has gone.
pub fn release_dependents(observed: &ObservedSet, draft: &mut Draft) -> bool {
    if awaits_garbage_collector(&observed.set.metadata) {
        return false;
    }
    let uid = &observed.set.metadata.uid;
    for pod in &observed.pods {
        draft.set_ownership(pod, OwnershipChange::Release);
    }
    // One that is kept has no owner, and its label tells the next set of this name what it is.
    for claim in observed.pvcs.iter().filter(|c| c.controller == *uid) {
        draft.patch_pvc(claim, LabelPatch::default(), OwnershipChange::Release);
    }
    let revisions = observed.revisions.iter().filter(|r| r.controller == *uid);
    draft.released = revisions.cloned().collect();
    let is_left = observed.pods.is_empty() && draft.pvcs.is_empty() && draft.released.is_empty();
    if is_left {
        draft.ids.clear();
    }
    is_left
}

/// Takes the next step; true when nothing is left to do and the finalizer may go.
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
    for claim in &facts.observed.pvcs {
        if !claim.belongs_to_set(uid) {
            continue;
        }
        let retains = facts.strategy.retain_deleted;
        // The garbage collector would delete a claim that is still the set's own. A Pod that left the set mounts it.
        if retains || claim.is_kept_for(uid) || !facts.pods_mounting(&claim.name).is_empty() {
            released = true;
            draft.release_pvc(claim, released_pvc_labels(facts, claim));
        } else if !claim.terminating {
            draft.pvcs.push(PvcChange::Delete(claim.clone()));
        }
    }
    // A claim that is deleted must not keep the set.
    if released {
        return false;
    }
    draft.ids.clear();
    true
}

/// Releases the claims that the set owns and retains or keeps, while its Pods still exist. In a foreground deletion the garbage collector waits
/// for that: admission denies its deletions of these claims until they have no owner.
fn release_retained_pvcs(facts: &SetFacts, draft: &mut Draft) {
    let uid = facts.observed.set.metadata.uid.as_deref();
    let claims = facts.observed.pvcs.iter();
    for claim in claims.filter(|claim| claim.controller.as_deref() == uid) {
        if facts.strategy.retain_deleted {
            draft.release_pvc(claim, released_pvc_labels(facts, claim));
        } else if claim.is_kept_for(uid) {
            draft.patch_pvc(claim, LabelPatch::default(), OwnershipChange::Release); // let go once no Pod of the set is there
        }
    }
}

/// The labels that a released claim gets. A kept claim, and the claim of a Pod that has left, are marked so that no later set of this name takes
/// them.
fn released_pvc_labels(facts: &SetFacts, claim: &Pvc) -> LabelPatch {
    let is_let_go = facts.keeps_pvc(claim) && !facts.strategy.retain_deleted;
    let mut mounting = facts.pods_mounting(&claim.name).iter();
    match is_let_go || mounting.any(|pod| facts.has_left(pod)) {
        true => pvcs::left_behind_labels(),
        false => LabelPatch::default(),
    }
}
