//! Pods that are wanted and not there: each instance ID without a Pod gets one, of the revision that is recorded for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claims;
use super::construct;
use super::draft::Draft;
use super::enter;
use super::facts::Facts;
use super::membership;
use super::observed::Revision;
use super::plan::Ownership;
use super::pool;
use super::replace;
use super::revision::data;
use crate::api::keys;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Claims of which a plan says at most that they are being deleted.
const TOLD: usize = 20;

/// Nanoseconds after which the end of a Pod of somebody else is looked for again.
const AWAIT: u64 = 5_000_000_000;

/// Creates claims, and where an ID has all of them, its Pod.
pub fn step(facts: &Facts, draft: &mut Draft) {
    let vacant: Vec<i64> = draft
        .ids
        .keys()
        .copied()
        .filter(|id| !facts.is_held(*id) && !draft.is_moving(*id))
        .filter(|id| !pool::is_marked(draft, *id, pool::REPLACED))
        // Scaled in when the set was paused.
        .filter(|id| !(facts.strategy.paused && pool::is_marked(draft, *id, pool::SCALE_IN)))
        .collect();
    for id in vacant {
        one(facts, draft, id);
    }
}

fn one(facts: &Facts, draft: &mut Draft, id: i64) {
    let Some(entry) = draft.ids.get(&id) else {
        return;
    };
    let Some(revision) = entry
        .get(pool::REVISION)
        .and_then(|name| facts.history.find(name))
        .map(Arc::clone)
    else {
        return; // recorded by the steps before; an unknown one was replaced there
    };
    let first = entry.contains_key(pool::JUST_CREATE);
    let mut labels = BTreeMap::new();
    if let Some(origin) = pool::origin_of(entry).and_then(|origin| facts.members.get(&origin)) {
        if replace::is_stopped(facts, origin) || draft.removes_label(origin, keys::TO_REPLACE) {
            return;
        }
        let name = origin.metadata.name.clone();
        labels.insert(keys::REPLACE_PAIR_ORIGIN_NAME.to_owned(), name);
    }
    let set = &facts.observed.set;
    if !construct::is_selected(&revision.data["spec"]["template"], &facts.selector) {
        let message = format!(
            "the Pod of instance ID {id} is to be of revision {}, whose labels spec.selector does not match: it would be released at once; have updateStrategy update all Pods",
            revision.name
        );
        draft.refuse("ScaleOutFailed", message);
        return;
    }
    let templates = data::claim_templates(&revision.data);
    let existing = facts.claims_at(id);
    let wanted = claims::for_instance(set, templates, id, existing, &facts.known_claims);
    let ready = wanted.ready;
    if !ready && facts.is_name_taken(id) {
        let name = pool::name_of(facts, id);
        let message = format!(
            "Pod {name} is there and does not belong to this CollaSet: it enters again once spec.selector matches its labels; delete it to have another made with an empty volume, the name is that of instance ID {id}"
        );
        draft.refuse("ScaleOutFailed", message);
        return; // it would not come back to its data beside claims that are made for the next Pod
    }
    draft.claims.extend(wanted.create);
    if !ready {
        return; // its claims first
    }
    let mut volumes = wanted.volumes.values();
    if let Some(pod) = volumes.find_map(|claim| facts.writer(claim)) {
        await_end(facts, draft, pod); // two Pods would write to one claim
        return;
    }
    let now = facts.observed.now_nanos;
    match construct::pod(set, &revision, id, first, &wanted.volumes, &labels, now) {
        Ok(body) => draft.create(id, body),
        Err(why) => draft.event(
            true,
            "ScaleOutFailed",
            format!("no Pod can be made of revision {}: {why}", revision.name),
        ),
    }
}

/// Creates the claims of Pods that were never scheduled and whose claims somebody has deleted.
pub fn missing_claims(facts: &Facts, draft: &mut Draft) {
    for (id, pod) in &facts.members {
        let waits = pod.condition("PodScheduled") != Some(true) && !pod.is_finished();
        if !waits || pod.spec.claims.is_empty() || draft.leaving.contains(id) {
            continue;
        }
        let Some(revision) = facts.revision_of(pod) else {
            continue;
        };
        let is_there = |name: &str| facts.claim(name).is_some();
        let (set, known) = (&facts.observed.set, &facts.known_claims);
        let missing = claims::missing(set, &revision.data, *id, pod, is_there, known);
        draft.claims.extend(missing);
    }
}

/// The end of a Pod of the set makes a new plan. That of another Pod does not.
fn await_end(facts: &Facts, draft: &mut Draft, pod: &Pod) {
    if !facts.controls(pod) {
        draft.again(AWAIT);
    }
}

/// What becomes of claims that no Pod asks for any more. A claim that a Pod mounts stays until that Pod has ended.
pub fn leftover_claims(facts: &Facts, draft: &mut Draft) {
    membership::give_back(facts, draft);
    for (id, pod) in &facts.members {
        if !draft.leaving.contains(id) {
            enter::take_claims(facts, draft, pod, *id);
        }
    }
    keep_contradicted(facts, draft);
    let (mut needed, mut unsure) = (BTreeMap::new(), BTreeSet::new());
    let mut replaced = Vec::new();
    for (id, entry) in &draft.ids {
        if entry.contains_key(pool::REPLACED) {
            replaced.push(*id);
            continue;
        }
        let recorded = entry.get(pool::REVISION);
        let recorded = recorded.and_then(|name| facts.history.find(name));
        let present = facts.members.get(id).map(|pod| facts.revision_of(pod));
        // A revision that is not known any more may have had any template.
        if recorded.is_none() || present == Some(None) {
            unsure.insert(*id);
        }
        // Until a rollout is over it may be taken back: the Pod would come back to an empty volume.
        let current = Some(&facts.history.current).filter(|_| facts.rollout.is_on);
        // One that is taken back without a rollout is yet to be recorded.
        let updated = Some(&facts.history.updated);
        // Each once: their templates are compared for each claim.
        let is_other = |one: Option<&Arc<Revision>>, other: &Arc<Revision>| {
            one.is_none_or(|one| one.name != other.name)
        };
        let current = current.filter(|current| is_other(present.flatten(), current));
        let updated = updated.filter(|updated| is_other(recorded, updated));
        let updated = updated.filter(|updated| is_other(present.flatten(), updated));
        let templates = [recorded, present.flatten(), current, updated];
        let templates = templates.into_iter().flatten();
        let templates = templates.flat_map(|revision| data::claim_templates(&revision.data));
        needed.insert(*id, templates.collect::<Vec<_>>());
    }
    let observed = facts.observed;
    let known = &facts.known_claims;
    let mut left = claims::leftovers(&observed.set, &observed.claims, &needed, known);
    if facts.strategy.retain_scaled {
        let of_pairs = replaced.iter().flat_map(|id| facts.claims_of(*id));
        let of_pairs = of_pairs.filter(|claim| !claim.terminating);
        left.extend(of_pairs.cloned());
    }
    for claim in left {
        if let Some(pod) = facts.mounting(&claim.name).first() {
            await_end(facts, draft, pod);
            continue;
        }
        if claims::instance(&claim).is_some_and(|id| unsure.contains(&id)) {
            continue;
        }
        draft.claims.push(claims::give_up(&observed.set, &claim));
    }
}

/// Keeps the claims of Pods that say to be of another template than the Pod's revision has: they would be deleted as left over with the Pod's
/// end.
fn keep_contradicted(facts: &Facts, draft: &mut Draft) {
    let uid = facts.observed.set.metadata.uid.as_deref();
    let claims = facts.observed.pods.iter().flat_map(|pod| {
        let claims = facts.claims_of_pod(pod);
        let own = claims.filter_map(|claim| Some((facts.contradicting(pod, claim)?, claim)));
        own.map(move |(hash, claim)| (pod, hash, claim))
    });
    let mut marked = BTreeSet::new();
    for (pod, hash, claim) in claims {
        let (name, key) = (&claim.name, keys::PVC_TEMPLATE_HASH);
        if !facts.keeps(claim) {
            let is_leaving = facts
                .id_of(pod)
                .is_some_and(|id| draft.leaving.contains(&id));
            if !is_leaving && marked.insert(name) {
                let mark = (keys::KEPT_FOR.to_owned(), uid.map(str::to_owned));
                draft.claim(claim, LabelPatch([mark].into()), Ownership::Release);
            }
            continue;
        }
        let message = format!(
            "claim {name} of Pod {} is of another template than the Pod's revision, by its label {key}: one of their labels was edited; it is \
             kept: the CollaSet never deletes it; if the claim's was edited, give it {hash} again, or the next Pod of that revision begins with an empty volume",
            pod.metadata.name
        );
        draft.event(true, "ClaimKept", message);
    }
}

/// Says whose next volume will be empty: somebody deletes a claim that a Pod mounts, which stays until the Pod has ended. The
/// set itself deletes no such claim. Nothing can take that back, so nothing waits for it.
pub fn tell_of_ending_claims(facts: &Facts, draft: &mut Draft) {
    let claims = facts.members.iter().flat_map(|(id, pod)| {
        let ending = facts.claims_of_pod(pod).filter(|claim| claim.terminating);
        ending.map(move |claim| (id, &pod.metadata.name, &claim.name))
    });
    for (id, pod, claim) in claims.take(TOLD) {
        draft.event(
            true,
            "ClaimTerminating",
            format!(
                "claim {claim} of Pod {pod} is being deleted: the next Pod of instance ID {id} begins with an empty volume"
            ),
        );
    }
}
