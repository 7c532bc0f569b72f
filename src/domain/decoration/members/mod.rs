//! The members of all CollaSets of a namespace, as one PodDecoration sees them.

mod instances;
mod member_labels;

pub use instances::Instance;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::observed::ObservedDecoration;
use super::{Decoration, MemberKey};
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::collaset::observed::set_name;
use crate::domain::pod::Pod;
use instances::find_instances;

/// A selected member of a set: one instance, or the two instances of a replace pair.
#[derive(Clone, Debug)]
pub struct Member {
    /// The key by which a partition knows the member. A pair has the key of its origin.
    pub key: MemberKey,
    /// The selected instances; never empty. The origin of a pair comes first.
    pub instances: Vec<Instance>,
}

impl Member {
    /// Whether the member has this revision: its Pod carries the revision, or the revision is noted for its next Pod.
    /// For a pair it is enough that one of both has the revision, because the pair ends with the new Pod.
    pub fn has_revision(&self, revision: &str) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|instance| instance.is_new || instance.has_revision(revision))
    }

    /// Whether the pool records this revision for the member.
    pub fn is_recorded_with(&self, revision: &str) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|instance| instance.recorded.as_deref() == Some(revision))
    }

    /// Whether the member has any revision of the PodDecoration.
    pub fn is_decorated(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|instance| instance.held.is_some())
    }

    /// Whether the set removes the member. Such a member keeps what it has, and no update reaches it.
    pub fn is_leaving(&self) -> bool {
        self.instances.iter().all(|instance| instance.is_leaving)
    }

    /// The Pods of the member that are neither terminating nor finished.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.instances
            .iter()
            .filter_map(|instance| instance.pod.as_ref())
    }
}

/// Returns the members that the selector matches, sorted by key. `known` are the decorations of the namespace with
/// their stored revisions; the labels that they set on Pods select nobody.
pub fn selected_members(
    observed: &ObservedDecoration,
    known: &[Arc<Decoration>],
    selector: &Selector,
) -> Vec<Member> {
    let name = observed.object.metadata.name.as_deref().unwrap_or_default();
    let mut members: BTreeMap<MemberKey, Vec<Instance>> = BTreeMap::new();
    for set in &observed.sets {
        let (instances, entries) = find_instances(set, name, known);
        let exists = |id: &i64| instances.contains_key(id);
        let origin_of = |id: i64| {
            let origin = entries.get(&id).and_then(|entry| data::origin_of(entry));
            // Somebody may have written the member's own ID as the ID of its origin.
            origin
                .filter(|origin| *origin != id && exists(origin))
                .unwrap_or(id)
        };
        let origins: BTreeMap<i64, i64> =
            instances.keys().map(|id| (*id, origin_of(*id))).collect();
        let mut instances: Vec<Instance> = instances.into_values().collect();
        instances
            .sort_by_key(|instance| (origins.get(&instance.id) != Some(&instance.id), instance.id));
        for instance in instances {
            if selector.matches(&instance.labels) {
                let origin = origins.get(&instance.id).copied().unwrap_or(instance.id);
                let key = (set_name(&set.set).to_owned(), origin);
                members.entry(key).or_default().push(instance);
            }
        }
    }
    let members = members.into_iter();
    members
        .map(|(key, instances)| Member { key, instances })
        .collect()
}
