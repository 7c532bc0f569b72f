//! Keeps the Pods that one rule object selects, by name.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::domain::pod::Pod;

/// The selected Pods in the order of their names. A change of one Pod costs one search instead of a pass over all Pods.
#[derive(Clone, Debug, Default)]
pub(super) struct SelectedPods(BTreeSet<ByName>);

/// A Pod that is shared with the index, so that its name is not copied for every rule object. If a watch is behind, two
/// Pods may have the same name; the UID distinguishes them.
#[derive(Clone, Debug)]
struct ByName(Arc<Pod>);

impl ByName {
    fn key(&self) -> (&str, &str) {
        let metadata = &self.0.metadata;
        (&metadata.name, &metadata.uid)
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ByName {}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl SelectedPods {
    /// Adds or removes a Pod.
    pub fn update_pod(&mut self, pod: &Arc<Pod>, add: bool) {
        let pod = ByName(Arc::clone(pod));
        if add {
            self.0.insert(pod);
        } else {
            self.0.remove(&pod);
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn sorted_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|pod| pod.0.metadata.name.as_str())
    }
}
