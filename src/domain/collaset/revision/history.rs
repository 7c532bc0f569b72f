//! Which stored revision the template is, and which are kept (contract 6.1).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::stable::{self, RevisionUse};
use super::{data, hash};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::plan::RevisionChange;

/// Unused revisions that are kept where the spec does not say. A 0 is taken at its word: Kuperator never stored one
/// that was not given.
const HISTORY_LIMIT: i32 = 20;

/// The revisions of a CollaSet.
#[derive(Clone, Debug)]
pub struct RevisionHistory {
    /// The revision of the present template; it may be yet to be created, see `changes`.
    pub updated: Arc<Revision>,
    /// The revision that is kept stable: the one that the status names, or else the updated one.
    pub current: Arc<Revision>,
    /// Name of the revision that is kept stable, though it may be gone.
    pub stable: String,
    /// Whether `updated` stands in for the revision of the template, which can't be written: nothing is rolled out.
    pub stands_in: bool,
    /// What is to be written.
    pub changes: Vec<RevisionChange>,
    /// Collision count for the status.
    pub collisions: Option<i32>,
    /// What is wrong with stored revisions, each with its remedy.
    pub problems: Vec<String>,
    by_name: BTreeMap<String, Arc<Revision>>,
}

/// How a revision becomes that of the template.
enum TemplateRevision {
    Renumbered(Arc<Revision>),
    Created,
}

/// Why there is no history to plan with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryFailure {
    /// The template is no Pod template; says where.
    Invalid(String),
    /// The revision of the template can't be written, and there is no other.
    NoRevision,
}

impl RevisionHistory {
    /// A revision whose data can be read.
    pub fn find_revision(&self, name: &str) -> Option<&Arc<Revision>> {
        self.by_name.get(name)
    }

    /// Whether a revision was made after the updated one. The number of a revision does not tell, since that of a former
    /// template grows when the template is applied again.
    pub fn is_later(&self, name: &str) -> bool {
        let made = |revision: &Arc<Revision>| revision.creation_timestamp;
        let updated = made(&self.updated);
        updated.is_some() && self.find_revision(name).and_then(made) > updated
    }

    /// Has the current revision stand in for that of the template: an aborted rollout goes back to it.
    pub fn target_current_revision(&mut self) {
        self.updated = Arc::clone(&self.current);
    }

    /// All revisions whose data can be read, by name.
    pub fn readable_revisions(&self) -> impl Iterator<Item = &Arc<Revision>> {
        self.by_name.values()
    }
}

/// Finds the revision of the template. `revisions` are those that the set controls, and ones without a controller;
/// `in_use` are those on Pods and in the pool.
///
/// - The latest revision that equals the template stays; an older one becomes the latest (a rollback); else one is
///   created. Only the latest may have lost fields to Kuperator, see [`data::equal_taken_over`].
/// - One without a controller is adopted if the selector has `matchLabels`, they match, it is of this format, and it carries
///   the name of the set: a selector without them would match every revision of the namespace (contract Q39), and the selectors of two
///   sets may overlap.
/// - A revision that cannot be read is left alone and reported. The one that the status names as updated stands for
///   the template as long as it is there, because nobody knows that it differs, and a new one would roll the set out.
/// - Of those not in use the oldest beyond the history limit are deleted (contract Q30).
///
/// - Where the revision of the template can't be written (`refused`), the latest that is there stands in for it: nothing is
///   rolled out, and everything else goes on.
///
/// Fails where the template is no Pod template, or its revision is refused and there is no other.
pub fn plan_history(
    set: &CollaSet,
    revisions: &[Arc<Revision>],
    in_use: &RevisionUse,
    refused: bool,
) -> Result<RevisionHistory, HistoryFailure> {
    let wanted = data::revision_data(&set.spec);
    data::pod_template(&wanted).map_err(HistoryFailure::Invalid)?;
    let status = set.status.clone().unwrap_or_default();

    let mut changes = Vec::new();
    let mut problems = Vec::new();
    let mut readable: Vec<Arc<Revision>> = Vec::new();
    for revision in revisions {
        let owned = revision.controller.is_some() && revision.controller == set.metadata.uid;
        match data::pod_template(&revision.data) {
            Ok(_) if owned => readable.push(revision.clone()),
            Ok(_) if is_adoptable_revision(set, revision) => {
                changes.push(RevisionChange::Adopt(revision.clone()));
                readable.push(revision.clone());
            }
            Err(problem) if owned => {
                let stands_in = revision.name == status.updated_revision;
                problems.push(unreadable_message(&revision.name, &problem, stands_in));
                if stands_in {
                    let data = wanted.clone();
                    readable.push(Arc::new(Revision {
                        data,
                        ..(**revision).clone()
                    }));
                }
            }
            _ => {}
        }
    }
    readable.sort_by(|a, b| (a.revision, &a.name).cmp(&(b.revision, &b.name)));
    let numbers = revisions.iter().map(|r| r.revision);
    let next = numbers.max().unwrap_or(0).saturating_add(1); // a hand may have given the largest

    let mut collisions = status.collision_count;
    let latest = readable
        .last()
        .filter(|latest| data::is_equal_kuperator_data(&latest.data, &wanted));
    let older = readable
        .iter()
        .rfind(|older| data::is_equal_data(&older.data, &wanted));
    let stands_in = refused && latest.is_none() && older.is_none();
    let mut becomes = None;
    let updated = if let Some(latest) = latest {
        latest.clone()
    } else if stands_in {
        readable.last().cloned().ok_or(HistoryFailure::NoRevision)?
    } else if let Some(older) = older {
        // A rollback does not wait for its number.
        if !refused && older.revision != next {
            becomes = Some(TemplateRevision::Renumbered(Arc::clone(older)));
        }
        Arc::new(Revision {
            revision: next,
            ..(**older).clone()
        })
    } else {
        let mut new = hash::hash_data(&wanted, collisions);
        // One of the same data that nobody owns is what was asked for before, without what somebody took out of it.
        let is_taken = |r: &Revision, new: &str| {
            r.name == hash::revision_name(set_name(set), new)
                && (r.controller.is_some() || !data::is_equal_data(&r.data, &wanted))
        };
        while revisions.iter().any(|r| is_taken(r, &new)) {
            collisions = Some(collisions.unwrap_or(0).wrapping_add(1));
            new = hash::hash_data(&wanted, collisions);
        }
        becomes = Some(TemplateRevision::Created);
        Arc::new(create_revision(set, wanted, next, &new, collisions))
    };

    let mut by_name: BTreeMap<_, _> = readable
        .iter()
        .map(|r| (r.name.clone(), r.clone()))
        .collect();
    by_name.insert(updated.name.clone(), updated.clone());
    let current = by_name
        .get(&status.current_revision)
        .cloned()
        .unwrap_or_else(|| stable::stable_revision(&updated, &readable, in_use));
    let stable = match status.current_revision.as_str() {
        "" => current.name.clone(),
        known => known.to_owned(),
    };
    // The note follows the status: that of a rollout that is over would begin another one.
    let last = readable.last().filter(|last| {
        let is_noted = last.stable.as_ref() == Some(&stable);
        becomes.is_none() && !is_noted && !status.current_revision.is_empty()
    });
    if let Some(last) = last {
        changes.push(RevisionChange::Note(Arc::clone(last), stable.clone()));
    }
    changes.extend(becomes.map(|becomes| match becomes {
        TemplateRevision::Renumbered(older) => {
            RevisionChange::Renumber(older, next, stable.clone())
        }
        TemplateRevision::Created => RevisionChange::Create(Arc::new(Revision {
            stable: Some(stable.clone()),
            ..(*updated).clone()
        })),
    }));

    let unused: Vec<_> = readable
        .iter()
        .filter(|r| r.controller.is_some() && !in_use.contains_key(&r.name) && !r.terminating)
        .filter(|r| ![&updated.name, &current.name, &status.updated_revision].contains(&&r.name))
        .collect();
    let limit = set.spec.history_limit.unwrap_or(HISTORY_LIMIT);
    let surplus = unused
        .len()
        .saturating_sub(usize::try_from(limit).unwrap_or(0));
    changes.extend(
        unused
            .into_iter()
            .take(surplus)
            .map(|r| RevisionChange::Delete(r.clone())),
    );
    Ok(RevisionHistory {
        updated,
        current,
        stable,
        stands_in,
        changes,
        collisions,
        problems,
        by_name,
    })
}

fn set_name(set: &CollaSet) -> &str {
    set.metadata.name.as_deref().unwrap_or_default()
}

fn selector_labels(set: &CollaSet) -> BTreeMap<String, String> {
    let selector = set.spec.selector.clone().unwrap_or_default();
    selector.match_labels.unwrap_or_default()
}

fn is_adoptable_revision(set: &CollaSet, revision: &Revision) -> bool {
    let labels = selector_labels(set);
    revision.controller.is_none()
        && hash::is_revision_name_of(set_name(set), &revision.name)
        && revision.labels.contains_key(keys::REVISION_DATA_HASH)
        && !labels.is_empty()
        && labels
            .iter()
            .all(|(key, value)| revision.labels.get(key) == Some(value))
}

fn create_revision(
    set: &CollaSet,
    data: serde_json::Value,
    revision: i64,
    hash: &str,
    collisions: Option<i32>,
) -> Revision {
    let mut labels = selector_labels(set);
    labels.insert(keys::REVISION_DATA_HASH.to_owned(), hash.to_owned());
    labels.insert(
        keys::REVISION_COLLISION.to_owned(),
        collisions.unwrap_or(0).to_string(),
    );
    Revision {
        name: hash::revision_name(set_name(set), hash),
        revision,
        data,
        controller: set.metadata.uid.clone(),
        labels,
        ..Revision::default()
    }
}

fn unreadable_message(name: &str, problem: &str, stands_in: bool) -> String {
    if stands_in {
        return format!(
            "ControllerRevision {name} cannot be read: {problem}. It is taken for the present template; delete it to have \
             the template rolled out"
        );
    }
    format!("ControllerRevision {name} cannot be read: {problem}. It is left alone; delete it")
}
