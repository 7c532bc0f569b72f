//! Finds the stored revision of the template, and decides which revisions are kept (contract 6.1).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::stable::{self, RevisionUse};
use super::{data, hash};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::domain::collaset::observed::{Revision, set_name};
use crate::domain::collaset::plan::RevisionChange;

/// Number of unused revisions that are kept if the spec has no limit. A limit of 0 keeps none: Kuperator never stored a
/// 0 that a user had not given.
const HISTORY_LIMIT: i32 = 20;

#[derive(Clone, Debug)]
pub struct RevisionHistory {
    /// The revision of the present template. It may not exist yet, see `changes`.
    pub updated: Arc<Revision>,
    /// The stable revision: the revision that the status names, otherwise the updated revision.
    pub current: Arc<Revision>,
    /// Name of the stable revision, even if that revision does not exist any more.
    pub stable: String,
    /// Whether `updated` is used in place of the revision of the template because that revision can't be written. Then
    /// nothing is rolled out.
    pub stands_in: bool,
    /// The changes of ControllerRevisions to write.
    pub changes: Vec<RevisionChange>,
    /// `collisionCount` for the status.
    pub collisions: Option<i32>,
    /// Problems of stored revisions, each with its remedy.
    pub problems: Vec<String>,
    by_name: BTreeMap<String, Arc<Revision>>,
}

/// Why a plan can't have a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryFailure {
    /// The template is not a valid Pod template; the text names the field.
    Invalid(String),
    /// The revision of the template can't be written, and no other revision exists.
    NoRevision,
}

impl RevisionHistory {
    /// Finds a revision by name whose data can be read.
    pub fn find_revision(&self, name: &str) -> Option<&Arc<Revision>> {
        self.by_name.get(name)
    }

    /// Whether a revision was created after the updated one. The numbers of revisions can't tell, because the number of
    /// a former template grows when the template is applied again.
    pub fn is_later(&self, name: &str) -> bool {
        let made = |revision: &Arc<Revision>| revision.creation_timestamp;
        let updated = made(&self.updated);
        updated.is_some() && self.find_revision(name).and_then(made) > updated
    }

    /// Uses the current revision in place of the revision of the template, because an aborted rollout goes back to it.
    pub fn target_current_revision(&mut self) {
        self.updated = Arc::clone(&self.current);
    }

    /// All revisions whose data can be read.
    pub fn readable_revisions(&self) -> impl Iterator<Item = &Arc<Revision>> {
        self.by_name.values()
    }
}

/// Finds the revision of the template and plans the history. `revisions` are those that the set controls, and revisions
/// without a controller. `in_use` are the revisions that Pods and the pool refer to.
///
/// - If the latest revision equals the template, it stays. If an older revision does, it becomes the latest (a
///   rollback). Otherwise a revision is created. Only the latest may have lost fields to Kuperator, see
///   [`data::is_equal_kuperator_data`].
/// - A revision without a controller is adopted if the selector has `matchLabels` that match, the data has this format,
///   and the name has the form of the set's revision names. A selector without `matchLabels` would match every revision
///   of the namespace (contract Q39), and the selectors of two sets may overlap.
/// - A revision that can't be read is reported and not changed. If the status names it as the updated one, it counts as
///   the revision of the template while it exists. Nobody knows whether it differs, and a new revision would cause a
///   rollout.
/// - Of the revisions not in use, the oldest beyond the history limit are deleted (contract Q30).
/// - If the revision of the template can't be written (`refused`), the latest existing revision is used in its place.
///   Then nothing is rolled out, and everything else continues.
///
/// Returns an error if the template is not a valid Pod template, or if its revision is refused and no other exists.
pub fn plan_history(
    set: &CollaSet,
    revisions: &[Arc<Revision>],
    in_use: &RevisionUse,
    refused: bool,
) -> Result<RevisionHistory, HistoryFailure> {
    let wanted = data::revision_data(&set.spec);
    data::pod_template(&wanted).map_err(HistoryFailure::Invalid)?;
    let status = set.status.clone().unwrap_or_default();
    let SortedRevisions {
        readable,
        problems,
        mut changes,
    } = sort_revisions(set, revisions, &wanted, &status.updated_revision);
    let numbers = revisions.iter().map(|r| r.revision);
    let next = numbers.max().unwrap_or(0).saturating_add(1); // somebody may have written the largest number by hand
    let TemplateRevision {
        updated,
        change,
        stands_in,
        collisions,
    } = find_template_revision(set, revisions, &readable, wanted, next, refused)?;

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
        name => name.to_owned(),
    };
    // The annotation must follow the status. If the annotation of a complete rollout stayed, it could begin another
    // rollout after the status is lost.
    let last = readable.last().filter(|last| {
        let is_marked = last.stable.as_ref() == Some(&stable);
        change.is_none() && !is_marked && !status.current_revision.is_empty()
    });
    if let Some(last) = last {
        changes.push(RevisionChange::MarkStable(Arc::clone(last), stable.clone()));
    }
    changes.extend(change.map(|change| match change {
        TemplateChange::Renumber(older) => RevisionChange::Renumber(older, next, stable.clone()),
        TemplateChange::Create => RevisionChange::Create(Arc::new(Revision {
            stable: Some(stable.clone()),
            ..(*updated).clone()
        })),
    }));
    let needed_names = [&*updated.name, &current.name, &status.updated_revision];
    changes.extend(delete_unused(set, &readable, in_use, needed_names));
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

/// The revisions that [`plan_history`] was given, sorted by whether their data can be read.
#[derive(Default)]
struct SortedRevisions {
    /// The revisions whose data can be read, the latest last. A revision that stands in for the template's revision is
    /// among them, with the data of the template.
    readable: Vec<Arc<Revision>>,
    /// Messages about the revisions whose data can't be read.
    problems: Vec<String>,
    /// The adoption of each readable revision that has no controller.
    changes: Vec<RevisionChange>,
}

fn sort_revisions(
    set: &CollaSet,
    revisions: &[Arc<Revision>],
    wanted: &Value,
    updated_revision: &str,
) -> SortedRevisions {
    let mut sorted = SortedRevisions::default();
    for revision in revisions {
        let owned = revision.controller.is_some() && revision.controller == set.metadata.uid;
        match data::pod_template(&revision.data) {
            Ok(_) if owned => sorted.readable.push(revision.clone()),
            Ok(_) if is_adoptable_revision(set, revision) => {
                sorted.changes.push(RevisionChange::Adopt(revision.clone()));
                sorted.readable.push(revision.clone());
            }
            Err(problem) if owned => {
                let stands_in = revision.name == updated_revision;
                let message = unreadable_message(&revision.name, &problem, stands_in);
                sorted.problems.push(message);
                if stands_in {
                    sorted.readable.push(Arc::new(Revision {
                        data: wanted.clone(),
                        ..(**revision).clone()
                    }));
                }
            }
            _ => {}
        }
    }
    let readable = &mut sorted.readable;
    readable.sort_by(|a, b| (a.revision, &a.name).cmp(&(b.revision, &b.name)));
    sorted
}

struct TemplateRevision {
    updated: Arc<Revision>,
    /// The write that the revision needs.
    change: Option<TemplateChange>,
    /// Whether the revision can't be written, and `updated` is the latest existing revision instead.
    stands_in: bool,
    /// The collision count with which the name of a created revision was made.
    collisions: Option<i32>,
}

/// The write that the revision of the template needs.
enum TemplateChange {
    /// A rollback: this older revision becomes the latest.
    Renumber(Arc<Revision>),
    Create,
}

/// Finds the revision of the template among the readable revisions, the latest of which comes last, or makes a new one
/// with the number `next`.
fn find_template_revision(
    set: &CollaSet,
    revisions: &[Arc<Revision>],
    readable: &[Arc<Revision>],
    wanted: Value,
    next: i64,
    refused: bool,
) -> Result<TemplateRevision, HistoryFailure> {
    let status = set.status.as_ref();
    let collisions = status.and_then(|status| status.collision_count);
    let found = |updated: Arc<Revision>, change, stands_in| TemplateRevision {
        updated,
        change,
        stands_in,
        collisions,
    };
    let latest = readable
        .last()
        .filter(|latest| data::is_equal_kuperator_data(&latest.data, &wanted));
    if let Some(latest) = latest {
        return Ok(found(latest.clone(), None, false));
    }
    let older = readable
        .iter()
        .rfind(|older| data::is_equal_data(&older.data, &wanted));
    if let Some(older) = older {
        // The rollback starts before the new number is stored.
        let is_stored = refused || older.revision == next;
        let change = (!is_stored).then(|| TemplateChange::Renumber(Arc::clone(older)));
        let updated = Revision {
            revision: next,
            ..(**older).clone()
        };
        return Ok(found(Arc::new(updated), change, false));
    }
    if refused {
        let latest = readable.last().cloned().ok_or(HistoryFailure::NoRevision)?;
        return Ok(found(latest, None, true));
    }
    let (hash, collisions) = free_hash(set, revisions, &wanted, collisions);
    let updated = create_revision(set, wanted, next, &hash, collisions);
    Ok(TemplateRevision {
        updated: Arc::new(updated),
        change: Some(TemplateChange::Create),
        stands_in: false,
        collisions,
    })
}

/// Returns a hash of the data for a revision name that is free, and the collision count with which the hash was made.
fn free_hash(
    set: &CollaSet,
    revisions: &[Arc<Revision>],
    data: &Value,
    mut collisions: Option<i32>,
) -> (String, Option<i32>) {
    let mut hash = hash::hash_data(data, collisions);
    // A revision with the same data and without an owner was created by an earlier request, and somebody has removed
    // its owner or labels. Its name counts as free.
    let is_taken = |r: &Revision, hash: &str| {
        r.name == hash::revision_name(set_name(set), hash)
            && (r.controller.is_some() || !data::is_equal_data(&r.data, data))
    };
    while revisions.iter().any(|r| is_taken(r, &hash)) {
        collisions = Some(collisions.unwrap_or(0).wrapping_add(1));
        hash = hash::hash_data(data, collisions);
    }
    (hash, collisions)
}

/// Deletes the oldest revisions that are not in use, beyond the history limit. Revisions with the names in
/// `needed_names` stay.
fn delete_unused<'a>(
    set: &CollaSet,
    readable: &'a [Arc<Revision>],
    in_use: &RevisionUse,
    needed_names: [&str; 3],
) -> impl Iterator<Item = RevisionChange> + use<'a> {
    let unused: Vec<&'a Arc<Revision>> = readable
        .iter()
        .filter(|r| r.controller.is_some() && !in_use.contains_key(&r.name) && !r.terminating)
        .filter(|r| !needed_names.contains(&&*r.name))
        .collect();
    let limit = set.spec.history_limit.unwrap_or(HISTORY_LIMIT);
    let surplus = unused
        .len()
        .saturating_sub(usize::try_from(limit).unwrap_or(0));
    let oldest = unused.into_iter().take(surplus);
    oldest.map(|r| RevisionChange::Delete(r.clone()))
}

/// The `matchLabels` of the selector.
fn match_labels(set: &CollaSet) -> BTreeMap<String, String> {
    let selector = set.spec.selector.clone().unwrap_or_default();
    selector.match_labels.unwrap_or_default()
}

fn is_adoptable_revision(set: &CollaSet, revision: &Revision) -> bool {
    let labels = match_labels(set);
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
    data: Value,
    revision: i64,
    hash: &str,
    collisions: Option<i32>,
) -> Revision {
    let mut labels = match_labels(set);
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
