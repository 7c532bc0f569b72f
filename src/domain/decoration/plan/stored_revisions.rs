//! The stored revisions of a PodDecoration, and the writes that they need.

use std::collections::BTreeSet;

use crate::api::resourcecontext::data;
use crate::domain::decoration::observed::ObservedDecoration;
use crate::domain::decoration::revision::{RevisionHistory, plan_history};
use crate::domain::decoration::{DecorationRevisions, labels};

/// Reads the stored revisions and plans the history. Without `writes`, no revision is written or deleted.
pub fn plan_revisions(observed: &ObservedDecoration, writes: bool) -> RevisionHistory {
    let last = observed.last.as_ref();
    let mut history = plan_history(
        &observed.object,
        &observed.revisions,
        &revisions_in_use(observed),
        last.and_then(|last| last.updated.as_deref()),
        !writes || observed.refused.revision.is_some(),
    );
    if !writes {
        history.write = None;
        history.unused.clear();
    }
    history
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
