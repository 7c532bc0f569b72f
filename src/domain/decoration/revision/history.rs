//! Finds the stored revision of the spec, and decides which revisions are kept (contract 6.1).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::data;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::revision::hash;
use crate::domain::decoration::DecorationRevision;

/// Number of unused revisions that are kept if the spec has no limit. It is also the meaning of 0, for which Kuperator's
/// webhook stored 20.
const HISTORY_LIMIT: usize = 20;

/// The revisions of a PodDecoration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionHistory {
    /// Name of the updated revision among the stored ones: the revision of the present spec if it is stored, otherwise
    /// the former updated revision. `None` if no revision is stored.
    pub updated: Option<String>,
    /// Whether `updated` is the revision of the present spec.
    pub is_stored: bool,
    /// The stored revisions that can be read, by name.
    pub revisions: BTreeMap<String, Arc<DecorationRevision>>,
    /// The write that the revision of the spec needs.
    pub write: Option<RevisionWrite>,
    /// The revisions to delete.
    pub unused: Vec<Arc<Revision>>,
    /// `collisionCount` for the status.
    pub collisions: Option<i32>,
    /// Problems of stored revisions, each with its remedy.
    pub problems: Vec<String>,
}

/// A write of a ControllerRevision.
#[derive(Clone, Debug, PartialEq)]
pub enum RevisionWrite {
    /// Creates the revision with the PodDecoration as its controller. `uid` and `resource_version` are empty. If the
    /// name is taken by a revision with other data, the controller raises `status.collisionCount`, and the next plan
    /// uses another name.
    Create(Arc<Revision>),
    /// A rollback: sets the position of the revision in the history.
    Renumber(Arc<Revision>, i64),
}

/// Finds the revision of the spec and plans the history. `revisions` are those that the PodDecoration controls, by its
/// UID. `in_use` has the names of revisions that Pods and pools refer to. `published` is the updated revision that the
/// sets have been told last.
///
/// - If a stored revision equals the spec, it is the updated one, and the latest of several. If it does not have the
///   highest number, it gets it (a rollback).
/// - Otherwise a revision is created. Until it is stored, the former updated revision stays: the one published last,
///   otherwise that of the status, otherwise the latest. The status follows the published value with a delay.
/// - A revision that can't be read is reported and not changed.
/// - Of the revisions not in use, the oldest beyond the history limit are deleted (contract Q60). A limit below 1 counts
///   as absent.
/// - If the revision can't be written (`refused`), there is no write.
pub fn plan_history(
    decoration: &PodDecoration,
    revisions: &[Arc<Revision>],
    in_use: &BTreeSet<String>,
    published: Option<&str>,
    refused: bool,
) -> RevisionHistory {
    let wanted = data::revision_data(&decoration.spec);
    let status = decoration.status.clone().unwrap_or_default();
    let mut history = RevisionHistory {
        collisions: status.collision_count,
        ..RevisionHistory::default()
    };
    let readable = read_revisions(decoration, revisions, &mut history);
    let numbers = revisions.iter().map(|revision| revision.revision);
    let highest = numbers.max().unwrap_or(0);
    let next = highest.saturating_add(1); // somebody may have written the largest number by hand
    let of_spec = readable
        .iter()
        .rfind(|stored| data::is_equal_data(&stored.data, &wanted));
    history.write = match of_spec {
        _ if refused => None,
        Some(latest) if latest.revision == highest => None,
        Some(older) => Some(RevisionWrite::Renumber(Arc::clone(older), next)),
        None => {
            let revision = create_revision(decoration, revisions, wanted, next, &mut history);
            Some(RevisionWrite::Create(Arc::new(revision)))
        }
    };
    history.is_stored = of_spec.is_some();
    let named = |name: &str| readable.iter().find(|stored| stored.name == name);
    let updated = of_spec
        .or_else(|| named(published?))
        .or_else(|| named(&status.updated_revision))
        .or(readable.last());
    history.updated = updated.map(|revision| revision.name.clone());
    let needed = [&status.updated_revision, &status.current_revision];
    let is_needed = |name: &String| {
        in_use.contains(name) || needed.contains(&name) || history.updated.as_ref() == Some(name)
    };
    let unused = readable
        .iter()
        .filter(|stored| !is_needed(&stored.name) && !stored.terminating);
    let unused: Vec<_> = unused.cloned().collect();
    let surplus = unused.len().saturating_sub(history_limit(decoration));
    history.unused = unused.into_iter().take(surplus).collect();
    history
}

fn history_limit(decoration: &PodDecoration) -> usize {
    let limit = decoration.spec.history_limit.unwrap_or(0);
    let limit = usize::try_from(limit).ok();
    limit.filter(|limit| *limit > 0).unwrap_or(HISTORY_LIMIT)
}

/// Returns the revisions that can be read, the latest last, and adds them and the problems of the others to the history.
fn read_revisions(
    decoration: &PodDecoration,
    revisions: &[Arc<Revision>],
    history: &mut RevisionHistory,
) -> Vec<Arc<Revision>> {
    let mut readable = Vec::new();
    for stored in revisions {
        match data::parse_revision(name_of(decoration), stored) {
            Ok(revision) => {
                let revision = Arc::new(revision);
                history.revisions.insert(stored.name.clone(), revision);
                readable.push(Arc::clone(stored));
            }
            Err(problem) => history.problems.push(format!(
                "ControllerRevision {} cannot be read: {problem}. It is left alone; delete it",
                stored.name
            )),
        }
    }
    readable.sort_by(|a, b| (a.revision, &a.name).cmp(&(b.revision, &b.name)));
    readable
}

fn name_of(decoration: &PodDecoration) -> &str {
    decoration.metadata.name.as_deref().unwrap_or_default()
}

/// Makes the revision of the spec under a name that no stored revision has.
///
/// Kuperator writes a collision count that is absent from the status as 0, for the hash, too. The same hash gives the
/// same data the same name, so that Kuperator finds the revision if the cluster goes back to it.
fn create_revision(
    decoration: &PodDecoration,
    revisions: &[Arc<Revision>],
    data: Value,
    number: i64,
    history: &mut RevisionHistory,
) -> Revision {
    let named = |collisions: Option<i32>| {
        let count = collisions.unwrap_or(0);
        let hash = hash::hash_data(&data, Some(count));
        (hash::revision_name(name_of(decoration), &hash), hash, count)
    };
    let is_taken = |name: &str| revisions.iter().any(|stored| stored.name == name);
    let (mut name, mut hash, mut count) = named(history.collisions);
    while is_taken(&name) {
        history.collisions = Some(count.wrapping_add(1));
        (name, hash, count) = named(history.collisions);
    }
    let selector = decoration.spec.selector.clone().unwrap_or_default();
    let mut labels = selector.match_labels.unwrap_or_default();
    labels.insert(keys::REVISION_DATA_HASH.to_owned(), hash);
    labels.insert(keys::REVISION_COLLISION.to_owned(), count.to_string());
    Revision {
        name,
        revision: number,
        data,
        controller: decoration.metadata.uid.clone(),
        labels,
        ..Revision::default()
    }
}
