//! Puts owners of Pods from the watch of their kind into the index.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::cluster::caches::Caches;
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::Workload;
use crate::cluster::owner_sizes::workload_json::{self, WorkloadObject};
use crate::cluster::watch::{UnreadableObjects, WatchSink};
use crate::ledger::store::Uid;

/// The namespace and UID of an owner, and its content. `None` if its deletion has begun.
pub(super) type OwnerUpdate = ((String, Uid), Option<Workload>);

/// The sink of one kind of owners.
pub(crate) struct OwnerSink {
    caches: Caches,
    kind: WatchedKind,
    /// The owners that were listed or seen. The difference to the next list shows which owners are gone.
    known: Mutex<HashSet<(String, Uid)>>,
}

impl OwnerSink {
    pub(crate) fn new(caches: &Caches, kind: WatchedKind) -> Self {
        OwnerSink {
            caches: caches.clone(),
            kind,
            known: Mutex::default(),
        }
    }

    /// Parses the content of an owner.
    pub fn read_owner(&self, object: WorkloadObject) -> OwnerUpdate {
        workload_json::workload_from_object(self.kind, object)
    }
}

impl WatchSink<OwnerUpdate> for OwnerSink {
    fn parse(&self, raw: &str) -> serde_json::Result<OwnerUpdate> {
        serde_json::from_str(raw).map(|object| self.read_owner(object))
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
    fn replace(&self, objects: Vec<OwnerUpdate>, version: u64) {
        let all: Vec<_> = objects
            .into_iter()
            .filter_map(|(k, w)| Some((k, w?)))
            .collect();
        let mut known = self.known.lock();
        let now: HashSet<_> = all.iter().map(|(key, _)| key.clone()).collect();
        let deleted = known.difference(&now).cloned().collect();
        *known = now;
        let all = all
            .into_iter()
            .map(|((namespace, uid), workload)| (namespace, uid, workload))
            .collect();
        self.caches
            .index
            .replace_workloads(self.kind, all, deleted, version);
    }
    fn apply(&self, (key, workload): OwnerUpdate) {
        let mut known = self.known.lock();
        if workload.is_some() {
            known.insert(key.clone())
        } else {
            known.remove(&key)
        };
        self.caches.index.set_workload(&key.0, key.1, workload);
    }
    fn delete(&self, (key, _): OwnerUpdate) {
        self.known.lock().remove(&key);
        self.caches.index.set_workload(&key.0, key.1, None);
    }
    fn bookmark(&self, _version: u64) {}
    /// An API server may run without a built-in API group. Then no object of this kind owns Pods.
    fn on_kind_absent(&self) -> bool {
        self.caches
            .index
            .replace_workloads(self.kind, Vec::new(), Vec::new(), 0);
        true
    }
    fn parse_unreadable(&self, _raw: &str) -> Option<OwnerUpdate> {
        None
    }
}
