//! The instances of one set: the entries of its pool and its Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::member_labels::SetTemplates;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::collaset::observed::owns_entry;
use crate::domain::decoration::observed::SetOfNamespace;
use crate::domain::decoration::{Decoration, labels};
use crate::domain::pod::Pod;

/// An instance ID of a set, with its Pod or without one.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The instance ID.
    pub id: i64,
    /// The labels by which decorations select the instance.
    pub labels: BTreeMap<String, String>,
    /// The Pod, if it is neither terminating nor finished.
    pub pod: Option<Arc<Pod>>,
    /// The revision of the PodDecoration that the instance has: the one on its Pod. Without a Pod, it is the recorded
    /// revision, or else the one on the former Pod.
    pub held: Option<String>,
    /// The revision of the PodDecoration that the pool records.
    pub recorded: Option<String>,
    /// Whether the set has just added the ID and no Pod exists. The new Pod of a pair does not count.
    pub is_new: bool,
    /// Whether the set removes the instance.
    pub is_leaving: bool,
    /// Whether the Pod is of the updated template revision of its set.
    pub has_updated_template: bool,
}

impl Instance {
    /// Whether the instance has this revision of the PodDecoration.
    pub fn has_revision(&self, revision: &str) -> bool {
        self.held.as_deref() == Some(revision)
    }
}

/// The data of pool entries by instance ID.
pub type Entries<'a> = BTreeMap<i64, &'a BTreeMap<String, String>>;

/// Returns the instances of a set by ID, and the entries of its pool. `decoration` is the name of the PodDecoration.
///
/// An entry that is only left from a replaced or cancelled half of a pair is no instance. A Pod without an ID of its own
/// becomes an instance as soon as its set has given it an ID.
pub fn find_instances<'a>(
    set: &'a SetOfNamespace,
    decoration: &str,
    known: &[Arc<Decoration>],
) -> (BTreeMap<i64, Instance>, Entries<'a>) {
    let contexts = set.pool.iter().flat_map(|pool| &pool.contexts);
    let (own, foreign): (Vec<_>, Vec<_>) = contexts
        .map(|context| (context.id, &context.data))
        .partition(|(_, data)| owns_entry(&set.set, data));
    let entries: Entries = own.into_iter().collect();
    let foreign = foreign.into_iter().map(|(id, _)| id).collect();
    let pods = SortedPods::from_set(set, &foreign);
    let templates = SetTemplates::from_set(set, known);
    let is_deleted = set.set.metadata.deletion_timestamp.is_some();
    let status = set.set.status.as_ref();
    let updated_template = status.map(|status| status.updated_revision.as_str());

    let vacant = entries.iter().filter(|(_, data)| {
        // A set that is being deleted creates no Pod.
        !is_deleted && !data.contains_key(data::REPLACED)
    });
    let ids: BTreeSet<i64> = vacant
        .map(|(id, _)| *id)
        .chain(pods.active.keys().copied())
        .collect();
    let instances = ids.into_iter().map(|id| {
        let entry = entries.get(&id).copied();
        let pod = pods.active.get(&id).copied();
        let mark = |key: &str| entry.and_then(|entry| entry.get(key));
        let recorded = mark(data::DECORATIONS).map(|text| labels::from_json(text));
        let recorded = recorded.and_then(|mut recorded| recorded.remove(decoration));
        let of_pod = |pod: &Pod| labels::decorations_of(pod).remove(decoration);
        let former = || pods.former.get(&id).and_then(|former| of_pod(former));
        let held = match pod {
            Some(pod) => of_pod(pod),
            None => recorded.clone().or_else(former),
        };
        let is_new = mark(data::JUST_CREATE).is_some_and(|mark| mark == "true");
        let instance = Instance {
            id,
            labels: templates.selection_labels(id, entry, pod),
            pod: pod.cloned(),
            held,
            recorded,
            is_new: is_new && pod.is_none() && mark(data::REPLACE_ORIGIN).is_none(),
            is_leaving: is_deleted || mark(data::SCALE_IN).is_some(),
            has_updated_template: pod
                .is_some_and(|pod| pod.label(keys::REVISION) == updated_template),
        };
        (id, instance)
    });
    (instances.collect(), entries)
}

/// The Pods of a set by instance ID. If two Pods have the same ID, the older Pod keeps it.
struct SortedPods<'a> {
    /// Pods that are selected by the set and are neither terminating nor finished.
    active: BTreeMap<i64, &'a Arc<Pod>>,
    /// The latest terminating or finished Pod.
    former: BTreeMap<i64, &'a Arc<Pod>>,
}

impl<'a> SortedPods<'a> {
    fn from_set(set: &'a SetOfNamespace, foreign: &BTreeSet<i64>) -> SortedPods<'a> {
        let selector = set.set.spec.selector.as_ref();
        let selector = selector.and_then(|selector| Selector::compile(selector).ok());
        let mut pods: Vec<&Arc<Pod>> = set.pods.iter().collect();
        pods.sort_by_key(|pod| (&pod.metadata.creation_timestamp, &pod.metadata.name));
        let mut sorted = SortedPods {
            active: BTreeMap::new(),
            former: BTreeMap::new(),
        };
        for pod in pods {
            let id = pod.label(keys::INSTANCE_ID).and_then(|id| id.parse().ok());
            let Some(id) = id.filter(|id| *id >= 0 && !foreign.contains(id)) else {
                continue;
            };
            if pod.is_terminating() || pod.is_finished() {
                sorted.former.insert(id, pod);
            } else if selector
                .as_ref()
                .is_none_or(|s| s.matches(&pod.metadata.labels))
            {
                sorted.active.entry(id).or_insert(pod);
            }
        }
        sorted
    }
}
