//! Keeps namespaces in the index: their labels, and whether they are terminating.
//!
//! The index does not drop Pods, rules and owners together with their namespace, because their own watches deliver the
//! deletions. A new namespace of the same name may be created, and its Pods may arrive before the deletion of the
//! former namespace.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;

use super::{Change, Index, NamespaceIndex, WatchedKind};
use crate::domain::rules::enforcement::ObservedNamespace;

/// The facts of a namespace that the index keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// resourceVersion.
    pub version: u64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The deletion timestamp. `None` if the namespace is not terminating.
    pub terminating_since: Option<Timestamp>,
}

impl NamespaceFacts {
    /// Parses a `metadata.deletionTimestamp` (RFC 3339) for [`NamespaceFacts::terminating_since`]. A text that is not a
    /// timestamp gives the earliest time: the deletion has begun, and no Pod is older.
    pub fn parse_deletion_time(deletion_timestamp: Option<&str>) -> Option<Timestamp> {
        deletion_timestamp.map(|text| text.parse().unwrap_or(Timestamp::MIN))
    }
}

impl NamespaceIndex {
    /// The version that the watch delivered last, with its namespace enforcement label. `None` until the namespace has
    /// been seen.
    pub fn observed_label(&self) -> Option<ObservedNamespace> {
        ObservedNamespace::new(&self.uid, self.version, self.labels.as_ref()?)
    }
}

impl Index {
    /// Replaces all namespaces by those of a list.
    pub fn replace_namespaces(&self, all: Vec<NamespaceFacts>) {
        let state = self.state.read();
        let listed: HashSet<&str> = all.iter().map(|n| n.name.as_str()).collect();
        let known = state.namespaces.iter();
        let deleted: Vec<(String, String)> = known
            .filter(|(name, _)| !listed.contains(name.as_str()))
            .map(|(name, namespace)| (name.clone(), namespace.uid.clone()))
            .collect();
        drop(state);
        for (name, uid) in deleted {
            self.delete_namespace(&name, &uid);
        }
        for namespace in all {
            self.apply_namespace(namespace);
        }
        self.mark_listed(WatchedKind::Namespace);
    }

    /// Adds or changes a namespace.
    pub fn apply_namespace(&self, facts: NamespaceFacts) {
        let mut state = self.state.write();
        let namespace_index = state.namespaces.entry(facts.name.clone()).or_default();
        namespace_index.uid = facts.uid;
        namespace_index.version = facts.version;
        namespace_index.labels = Some(facts.labels);
        namespace_index.terminating_since = facts.terminating_since;
        self.notify(Change::Namespace(facts.name));
    }

    /// Removes the namespace with this UID. Changes nothing if the index has another namespace of this name.
    pub fn delete_namespace(&self, name: &str, uid: &str) {
        let mut state = self.state.write();
        let Some(namespace_index) = state.namespaces.get_mut(name) else {
            return;
        };
        if namespace_index.uid != uid {
            return;
        }
        (namespace_index.uid, namespace_index.version) = (String::new(), 0);
        (namespace_index.labels, namespace_index.terminating_since) = (None, None);
        state.drop_unused_namespace(name);
    }
}
