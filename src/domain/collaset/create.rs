//! Pods that are wanted and not there: each instance ID without a Pod gets one, of the revision that is recorded for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::claims;
use super::construct;
use super::draft::Draft;
use super::facts::Facts;
use super::pool;
use super::revision::data;
use crate::api::keys;

/// Creates claims, and where an ID has all of them, its Pod.
pub fn step(facts: &Facts, draft: &mut Draft) {
    let vacant: Vec<i64> = draft
        .ids
        .keys()
        .copied()
        .filter(|id| !facts.is_held(*id))
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
        let name = origin.metadata.name.clone();
        labels.insert(keys::REPLACE_PAIR_ORIGIN_NAME.to_owned(), name);
    }
    let set = &facts.observed.set;
    let templates = data::claim_templates(&revision.data);
    let existing = facts.claims_at(id);
    let wanted = claims::for_instance(set, templates, id, existing, &facts.known_claims);
    let ready = wanted.ready;
    draft.claims.extend(wanted.create);
    if !ready {
        return; // its claims first
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

/// What becomes of claims that no Pod asks for any more, or again.
pub fn leftover_claims(facts: &Facts, draft: &mut Draft) {
    let needed = draft
        .ids
        .iter()
        .map(|(id, entry)| {
            let recorded = entry
                .get(pool::REVISION)
                .and_then(|name| facts.history.find(name));
            let present = facts.members.get(id).and_then(|pod| facts.revision_of(pod));
            let templates = [recorded, present]
                .into_iter()
                .flatten()
                .flat_map(|revision| data::claim_templates(&revision.data))
                .collect();
            (*id, templates)
        })
        .collect();
    let observed = facts.observed;
    let changes = claims::leftovers(
        &observed.set,
        &observed.claims,
        &needed,
        &facts.known_claims,
    );
    draft.claims.extend(changes);
}
