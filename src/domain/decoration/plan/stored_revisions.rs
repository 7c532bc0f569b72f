//! The stored revisions of a PodDecoration, and the writes that they need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::RevisionWrite;
use crate::api::resourcecontext::data;
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::observed::ObservedDecoration;
use crate::domain::decoration::{DecorationRevision, DecorationRevisions, labels};

/// The stored revisions of a PodDecoration.
#[derive(Clone, Debug, Default)]
pub struct StoredRevisions {
    /// The revisions whose data can be read, by name.
    pub parsed: BTreeMap<String, Arc<DecorationRevision>>,
    /// Name of the revision of the spec; `None` until it is stored.
    pub updated: Option<String>,
    /// The write that the revision of the spec needs.
    pub write: Option<RevisionWrite>,
    /// Revisions to delete.
    pub delete: Vec<Arc<Revision>>,
    /// `status.collisionCount`.
    pub collisions: Option<i32>,
}

// PLACEHOLDER until `domain::decoration::revision` exists.
/// Reads the stored revisions and plans the history.
pub fn plan_revisions(observed: &ObservedDecoration, writes: bool) -> StoredRevisions {
    let object = &observed.object;
    let wanted = serde_json::json!({ "template": object.spec.template, "weight": object.spec.weight.unwrap_or(0) });
    let name = object.metadata.name.clone().unwrap_or_default();
    let parsed = observed.revisions.iter().map(|revision| {
        let template =
            serde_json::from_value(revision.data["template"].clone()).unwrap_or_default();
        let weight = revision.data["weight"].as_i64().unwrap_or(0);
        let parsed = DecorationRevision {
            decoration: name.clone(),
            name: revision.name.clone(),
            template,
            weight: i32::try_from(weight).unwrap_or(0),
        };
        (revision.name.clone(), Arc::new(parsed))
    });
    let updated = observed
        .revisions
        .iter()
        .find(|revision| revision.data == wanted);
    let create = || {
        let number = observed
            .revisions
            .iter()
            .map(|r| r.revision)
            .max()
            .unwrap_or(0)
            + 1;
        RevisionWrite::Create(Arc::new(Revision {
            name: format!("{name}-{number}"),
            revision: number,
            controller: object.metadata.uid.clone(),
            data: wanted.clone(),
            ..Revision::default()
        }))
    };
    let status = object.status.as_ref();
    let in_use = revisions_in_use(observed);
    let limit = usize::try_from(object.spec.history_limit.unwrap_or(20)).unwrap_or(0);
    let unused = observed.revisions.iter().filter(|r| {
        !in_use.contains(&r.name) && updated.is_none_or(|updated| updated.name != r.name)
    });
    let unused: Vec<_> = unused.cloned().collect();
    let surplus = unused.len().saturating_sub(limit);
    StoredRevisions {
        parsed: parsed.collect(),
        updated: updated.map(|updated| updated.name.clone()),
        write: (writes && updated.is_none()).then(create),
        delete: unused
            .into_iter()
            .take(if writes { surplus } else { 0 })
            .collect(),
        collisions: status.and_then(|status| status.collision_count),
    }
}

/// The revisions of a PodDecoration that are in use: those on Pods in any phase, those that pools record, and those of
/// the status.
pub fn revisions_in_use(observed: &ObservedDecoration) -> BTreeSet<String> {
    let name = observed.object.metadata.name.as_deref().unwrap_or_default();
    let of_decoration = |mut revisions: DecorationRevisions| revisions.remove(name);
    let pods = observed.sets.iter().flat_map(|set| &set.pods);
    let on_pods = pods.filter_map(|pod| of_decoration(labels::decorations_of(pod)));
    let pools = observed.sets.iter().filter_map(|set| set.pool.as_ref());
    let entries = pools.flat_map(|pool| &pool.contexts);
    let recorded = entries.filter_map(|entry| {
        let text = entry.data.get(data::DECORATIONS)?;
        of_decoration(labels::from_json(text))
    });
    let status = observed.object.status.iter();
    let of_status = status.flat_map(|s| [s.current_revision.clone(), s.updated_revision.clone()]);
    let last = observed.last.iter().filter_map(|last| last.updated.clone());
    on_pods
        .chain(recorded)
        .chain(of_status)
        .chain(last)
        .collect()
}
