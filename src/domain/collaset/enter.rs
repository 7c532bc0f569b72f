//! Pods that enter the set: those that `podToInclude` names, and orphans of the set.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::claims;
use super::draft::Draft;
use super::facts::Facts;
use super::membership;
use super::observed::{Claim, UNMANAGED_NANOS};
use super::obstacles;
use super::plan::{self, Ownership};
use super::pool;
use super::revision::data;
use super::room::Room;
use crate::api::keys;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Reason of what is said of a Pod that can't be included.
const REFUSED: &str = "IncludeNotAllowed";
/// Reason of what is said of a Pod that has entered.
const INCLUDED: &str = "IncludeTarget";

/// Takes a Pod in that `podToInclude` names. It keeps its instance ID if that is free. True if it enters, and the rest of the plan
/// is to wait for that.
pub fn include(facts: &Facts, draft: &mut Draft, room: &mut Room, pod: &Arc<Pod>) -> bool {
    let name = &pod.metadata.name;
    let own = facts
        .id_of(pod)
        .filter(|id| is_free(facts, draft, pod, *id));
    // Its entry was stored, and it could not be written.
    let kept = || pool::kept_for(draft, pod).filter(|id| is_free(facts, draft, pod, *id));
    let own = own.or_else(kept);
    let is_known = own.is_some_and(|id| draft.ids.contains_key(&id));
    let is_full = || {
        let full = !is_known && !room.take_entry();
        full.then(|| {
            let pool = facts.pool;
            format!("ResourceContext {pool} has no room for more instance IDs; scale in, or delete Pods of other sets that share it")
        })
    };
    if let Some(why) = obstacles::of(facts, pod).or_else(is_full) {
        refuse(facts, draft, pod, &why);
        return false;
    }
    let id = match own {
        Some(id) => {
            pool::take(facts, draft, id, pod.label(keys::REVISION));
            id
        }
        None => {
            let id = pool::allocate_empty(facts, draft, pod.label(keys::REVISION));
            pool::keep_for(draft, id, pod);
            id
        }
    };
    if enter(facts, draft, pod, id) {
        let kept = kept_claims(facts, pod);
        let message = match facts.revision_of(pod) {
            Some(_) => format!("Pod {name} is included under instance ID {id}{kept}"),
            None => format!(
                "Pod {name} is included under instance ID {id}; its revision is not known, so it is made again as by an update, as soon as updateStrategy has it in scope{kept}"
            ),
        };
        draft.event_once_written(pod, INCLUDED, message);
    }
    !facts.is_refused(pod)
}

/// Tells why a Pod that is not managed can't be included. It is read again later, as nothing tells of its changes.
pub fn refuse_unmanaged(facts: &Facts, draft: &mut Draft, pod: &Pod) {
    draft.again(UNMANAGED_NANOS);
    if let Some(why) = obstacles::of(facts, pod) {
        refuse(facts, draft, pod, &why);
    }
}

fn refuse(facts: &Facts, draft: &mut Draft, pod: &Pod, why: &str) {
    let message = format!("Pod {} can't be included: {why}", pod.metadata.name);
    let is_excluded = facts.strategy.exclude.contains(&pod.metadata.name);
    match obstacles::contradicts(facts, pod) && (facts.controls(pod) || is_excluded) {
        true => draft.event(true, REFUSED, message), // the spec contradicts itself, and one half of it is so, or told of elsewhere
        false => draft.refuse(REFUSED, message),
    }
}

/// Takes orphans in, each under its own instance ID (see [`id_for`]) with the claims that it mounts: Pods of a set of this name that was
/// deleted with `--cascade=orphan` and made again, or that outlived an uninstallation. Otherwise others would be made beside
/// them, on their claims. Those for whose IDs the pool has no room wait; no others are made for those IDs. A Pod that was excluded is no orphan: it carries [`keys::ORPHANED`].
pub fn adopt(facts: &Facts, draft: &mut Draft, room: &mut Room) -> bool {
    let mut moved = false;
    // One that has ended is made again, unless another has its ID.
    let mut orphans: Vec<_> = facts.observed.orphans.iter().collect();
    let has_left = |pod: &Pod| {
        let mut claims = pod.spec.claims.iter().filter_map(|name| facts.claim(name));
        claims.any(|claim| claim.labels.contains_key(keys::ORPHANED))
    };
    // One whose ID is another set's gets one that no other orphan has.
    let is_foreign = |pod: &Pod| {
        facts
            .id_of(pod)
            .is_some_and(|id| facts.foreign.contains(&id))
    };
    orphans.sort_by_key(|pod| (pod.is_finished(), has_left(pod), is_foreign(pod)));
    for pod in orphans {
        let Some(id) = facts.id_of(pod).filter(|_| is_orphan(facts, pod)) else {
            continue;
        };
        if pod.is_finished() && facts.members.contains_key(&id) {
            draft.own(pod, Ownership::Adopt); // it is cleaned away
            moved |= !facts.is_refused(pod);
            continue;
        }
        // One that has left with its claims comes back where an instance is missing: else it would be scaled in with them.
        let is_taken = facts.members.contains_key(&id);
        if has_left(pod) && (is_taken || !membership::comes_back(facts, draft, id)) {
            tell_of_outsider(facts, draft, pod);
            continue;
        }
        let Some(id) = id_for(facts, draft, room, pod, id) else {
            continue;
        };
        moved |= !facts.is_refused(pod);
        if enter(facts, draft, pod, id) {
            let name = &pod.metadata.name;
            let kept = kept_claims(facts, pod);
            let message =
                format!("Pod {name} has no owner and is adopted under instance ID {id}{kept}");
            draft.event_once_written(pod, INCLUDED, message);
        }
    }
    moved
}

/// The instance ID under which an orphan enters: its own, or, where another set of the pool has taken that meanwhile and an instance is
/// missing, one without volumes. `None` where it stays outside for now.
fn id_for(facts: &Facts, draft: &mut Draft, room: &mut Room, pod: &Pod, own: i64) -> Option<i64> {
    let revision = pod.label(keys::REVISION);
    let is_foreign = facts.foreign.contains(&own);
    let kept = || pool::kept_for(draft, pod).filter(|_| is_foreign);
    let known = Some(own).filter(|_| !is_foreign).or_else(kept);
    if let Some(id) = known {
        // Its ID is free again, but every instance is there: one that serves would go for it.
        let is_surplus = !facts.members.is_empty()
            && facts.members.len() >= facts.strategy.replicas
            && !draft.ids.contains_key(&id)
            && facts.claims_of(id).next().is_none();
        if is_surplus {
            tell_of_outsider(facts, draft, pod);
            return None;
        }
        let has_room = |room: &mut Room| draft.ids.contains_key(&id) || room.take_entry();
        if is_free(facts, draft, pod, id) && has_room(room) {
            pool::take(facts, draft, id, revision);
            return Some(id);
        }
        if facts.members.contains_key(&id) {
            tell_of_outsider(facts, draft, pod);
        }
        return None;
    }
    // Where names persist its name is that of an ID which is another's.
    let is_short = pool::counted(facts, draft).len() < facts.strategy.replicas;
    if facts.strategy.sequence || !is_short {
        tell_of_outsider(facts, draft, pod);
        return None;
    }
    room.take_entry().then(|| {
        let id = pool::allocate_empty(facts, draft, revision);
        pool::keep_for(draft, id, pod);
        id
    })
}

/// A Pod that matches the selector is counted by whoever counts by it.
fn tell_of_outsider(facts: &Facts, draft: &mut Draft, pod: &Pod) {
    if pod.is_finished() {
        return;
    }
    let claims = pod.spec.claims.join(", ");
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
    draft.event(true, REFUSED, message);
}

/// Whether a Pod has a name that a set of this name gives its Pods. Selectors may overlap: an orphan of another set is
/// left to that one.
pub fn has_name_of(set: &str, pod: &str) -> bool {
    claims::is_generated(&format!("{set}-"), pod)
}

fn is_orphan(facts: &Facts, pod: &Pod) -> bool {
    let name = &pod.metadata.name;
    let asked_for = facts.strategy.exclude.contains(name) || facts.strategy.include.contains(name);
    let marked = [keys::ORPHANED, keys::TO_EXCLUDE].map(|key| pod.label(key).is_some());
    !asked_for
        && marked == [false, false]
        && pod.controller().is_none()
        && (pod.label(keys::INSTANCE_ID).is_some() || facts.id_of_claims(pod).is_some())
        && !pod.is_terminating()
        && has_name_of(facts.name, name)
        && facts.selector.matches(&pod.metadata.labels)
}

/// Whether a Pod that enters can have this instance ID: no other Pod and no other set has it, nor is it reserved for the new
/// half of a pair, nor has the set claims of it that the Pod does not mount, but for those that [lie beside it](Facts::lies_beside).
fn is_free(facts: &Facts, draft: &Draft, pod: &Pod, id: i64) -> bool {
    let paired = [pool::REPLACE_NEW, pool::REPLACE_ORIGIN];
    !facts.foreign.contains(&id)
        && !facts.is_held(id)
        && !draft.entering.contains(&id)
        && !pool::is_kept_for_another(draft, id, pod)
        && !paired.iter().any(|mark| pool::is_marked(draft, id, mark))
        && facts.claims_of(id).all(|claim| {
            let is_mounted = pod.spec.claims.contains(&claim.name);
            is_mounted || claim.terminating || facts.lies_beside(pod, claim)
        })
}

/// Has a Pod enter; false while its claims are to enter first. Otherwise a Pod whose claims could not be changed would have
/// another ID than they have.
fn enter(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>, id: i64) -> bool {
    draft.entering.insert(id);
    if take_claims(facts, draft, pod, id) {
        return false;
    }
    draft.label(pod, keys::INSTANCE_ID, Some(id.to_string()));
    draft.label(pod, keys::ORPHANED, None);
    draft.own(pod, Ownership::Adopt);
    true
}

/// Has the claims that a Pod of the set mounts be of the set, under the Pod's ID; whether there is anything to change. Whoever
/// takes them from the set does not take the Pod, and an exclusion that is taken back half way has taken them.
pub fn take_claims(facts: &Facts, draft: &mut Draft, pod: &Pod, id: i64) -> bool {
    let id = id.to_string();
    let mut any = false;
    let mounted: BTreeSet<&str> = pod.spec.claims.iter().map(String::as_str).collect();
    for claim in mounted.into_iter().filter_map(|name| facts.claim(name)) {
        let named = claim.labels.get(keys::INSTANCE_ID) == Some(&id);
        let is_marked = claim.labels.contains_key(keys::ORPHANED);
        let is_own = claim.belongs_to(facts.observed.set.metadata.uid.as_deref());
        // A user has labelled an owned claim to be kept. The garbage collector deletes a claim that has an owner.
        let is_to_release = is_own && facts.keeps(claim) && claim.controller.is_some();
        let is_settled = is_own && named && !is_marked && !is_to_release;
        if is_settled || !is_own && !may_be_taken(facts, pod, claim) {
            continue;
        }
        let mut labels = LabelPatch::default();
        labels.0.insert(keys::ORPHANED.to_owned(), None);
        labels
            .0
            .insert(keys::INSTANCE_ID.to_owned(), Some(id.clone()));
        let ownership = if is_to_release {
            labels.0.extend(kept_as(facts, pod, claim));
            Ownership::Release
        } else {
            let is_kept = match is_own {
                true => claim.controller.is_none(),
                false => keep(facts, pod, claim, &mut labels),
            };
            match is_kept {
                true => Ownership::Keep,
                false => Ownership::Adopt,
            }
        };
        draft.claim(claim, labels, ownership);
        any = true;
    }
    any
}

/// Whether a claim that the set does not have may be one of its claims: it is of a template of the Pod's revision or the updated one, or has
/// a name of the set's. One that a Pod of somebody else mounts too is theirs.
fn may_be_taken(facts: &Facts, pod: &Pod, claim: &Claim) -> bool {
    let set = &facts.observed.set;
    let is_others = |other: &Arc<Pod>| other.controller().is_some() && !facts.controls(other);
    if facts.mounting(&claim.name).iter().any(is_others) {
        return false;
    }
    let revisions = facts.revision_of(pod).into_iter();
    let revisions = revisions.chain([&facts.history.updated]);
    let templates = revisions.flat_map(|revision| data::claim_templates(&revision.data));
    let templates: Vec<&Value> = templates.collect();
    let has_hash = claim.labels.contains_key(keys::PVC_TEMPLATE_HASH);
    is_of_one(facts, claim, &templates) || has_hash && claims::is_named_by(set, claim)
}

/// Whether a claim goes by the name of one of these templates, and is not known to be of another.
fn is_of_one(facts: &Facts, claim: &Claim, templates: &[&Value]) -> bool {
    let label = |key: &str| claim.labels.get(key).map(String::as_str);
    let of = label(keys::PVC_TEMPLATE_HASH).unwrap_or_default();
    let known = &facts.known_claims;
    templates.iter().any(|template| {
        let is_named = label(keys::PVC_TEMPLATE_NAME) == Some(data::claim_name(template));
        is_named && (known.is_same(&known.hash(template), of) || !known.contains(of))
    })
}

/// Whether a claim that enters is to be kept, which the labels say then: unless it is [`Facts::is_of_spec`]. One of a template
/// that is not known serves as one of its Pod's.
fn keep(facts: &Facts, pod: &Pod, claim: &Claim, labels: &mut LabelPatch) -> bool {
    labels.0.extend(plan::unkept(claim)); // it was for a former set
    if facts.is_of_spec(claim) {
        if claim.labels.contains_key(keys::KEPT_AS) {
            labels.0.insert(keys::KEPT_AS.to_owned(), None);
        }
        return false;
    }
    let uid = facts.observed.set.metadata.uid.clone();
    labels.0.insert(keys::KEPT_FOR.to_owned(), uid);
    labels.0.extend(kept_as(facts, pod, claim));
    true
}

/// The label of a kept claim of a template that is not known: it serves as one of its Pod's.
fn kept_as(facts: &Facts, pod: &Pod, claim: &Claim) -> Option<(String, Option<String>)> {
    let said = claim.labels.get(keys::PVC_TEMPLATE_HASH);
    if said.is_some_and(|said| facts.known_claims.contains(said)) {
        return None;
    }
    let own = facts.revision_of(pod);
    let own = own.and_then(|of| facts.hash_in(of, claim));
    let own = own.or_else(|| facts.hash_in(&facts.history.updated, claim))?;
    Some((keys::KEPT_AS.to_owned(), Some(own.into_owned())))
}

/// The claims of a Pod that the set keeps, in words; empty without any.
fn kept_claims(facts: &Facts, pod: &Pod) -> String {
    let mounted = pod.spec.claims.iter().filter_map(|name| facts.claim(name));
    let kept = mounted.filter(|claim| facts.keeps(claim));
    let told = kept.map(|claim| {
        let next = match (facts.serves_spec(claim), facts.is_named_in_spec(claim)) {
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
pub fn has_other_claims(facts: &Facts, pod: &Pod, id: i64) -> bool {
    let template = |claim: &Claim| claim.labels.get(keys::PVC_TEMPLATE_NAME).cloned();
    let mounted = pod.spec.claims.iter().filter_map(|name| facts.claim(name));
    let mounted: BTreeSet<_> = mounted.map(|claim| template(claim)).collect();
    // One that is kept may be of a template that no Pod is of any more.
    let others = facts.claims_of(id);
    let mut others = others.filter(|claim| !claim.terminating && !facts.keeps(claim));
    others.any(|claim| !pod.spec.claims.contains(&claim.name) && mounted.contains(&template(claim)))
}
