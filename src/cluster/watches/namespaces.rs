//! Puts namespaces from their watch into the index.

use crate::cluster::caches::Caches;
use crate::cluster::index::NamespaceFacts;
use crate::cluster::owner_sizes::workload_json::WorkloadObject;
use crate::cluster::watch::{UnreadableObjects, WatchSink};

pub(crate) struct NamespaceSink(pub(crate) Caches);

impl WatchSink<NamespaceFacts> for NamespaceSink {
    fn parse(&self, raw: &str) -> serde_json::Result<NamespaceFacts> {
        serde_json::from_str(raw).map(namespace_facts)
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.0.unreadable)
    }
    fn replace(&self, objects: Vec<NamespaceFacts>, _version: u64) {
        self.0.index.replace_namespaces(objects);
    }
    fn apply(&self, object: NamespaceFacts) {
        self.0.index.apply_namespace(object);
    }
    fn delete(&self, object: NamespaceFacts) {
        self.0.index.delete_namespace(&object.name, &object.uid);
    }
    fn bookmark(&self, _version: u64) {}
    fn parse_unreadable(&self, _raw: &str) -> Option<NamespaceFacts> {
        None
    }
}

fn namespace_facts(object: WorkloadObject) -> NamespaceFacts {
    let metadata = object.metadata;
    NamespaceFacts {
        name: metadata.name,
        uid: metadata.uid,
        version: metadata.resource_version,
        labels: metadata.labels.unwrap_or_default(),
        terminating_since: NamespaceFacts::parse_deletion_time(
            metadata.deletion_timestamp.as_deref(),
        ),
    }
}
