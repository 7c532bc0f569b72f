//! Puts managed Pods from their watch into the index.

use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::Error as _;
use tokio::time::Instant;

use crate::cluster::caches::Caches;
use crate::cluster::pods_by_controller::Neighbours;
use crate::cluster::watch::{UnreadableObjects, WatchSink};
use crate::domain::pod::{Pod, PodMetadata};
use crate::domain::pod_size::{MAX_POD_BYTES, excess_message};

/// The sink of managed Pods.
pub(crate) struct PodSink {
    caches: Caches,
    neighbours: Mutex<Neighbours>,
}

impl PodSink {
    /// Creates a sink that fills the index.
    pub(crate) fn new(caches: &Caches) -> Self {
        PodSink {
            caches: caches.clone(),
            neighbours: Mutex::default(),
        }
    }
}

impl WatchSink<Pod> for PodSink {
    fn parse(&self, raw: &str) -> serde_json::Result<Pod> {
        let mut pod: Pod = serde_json::from_str(raw)?;
        let bytes = pod.pod_bytes();
        if bytes > MAX_POD_BYTES {
            let PodMetadata {
                namespace, name, ..
            } = &pod.metadata;
            let excess = excess_message(bytes);
            return Err(serde_json::Error::custom(format!(
                "Pod {namespace}/{name} {excess}"
            )));
        }
        self.neighbours.lock().intern_pod_parts(&mut pod);
        Ok(pod)
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
    fn replace(&self, objects: Vec<Pod>, version: u64) {
        self.caches.index.replace_pods(objects, version);
    }
    fn apply(&self, object: Pod) {
        self.caches.index.apply_pod(object);
    }
    fn delete(&self, object: Pod) {
        self.caches.index.delete_pod(&object);
    }
    fn bookmark(&self, version: u64) {
        self.caches.index.bookmark_pods(version);
    }
    fn on_known_at(&self, at: Instant) {
        self.caches.index.decision_watches.pods.extend_trust(at);
    }
    fn on_lost(&self) {
        self.caches.index.decision_watches.pods.end_trust();
    }
    /// Keeps only the metadata of the Pod, so that the Pod counts as expected but not as available. The known state
    /// must not stay, because the Pod may be off traffic since. The Pod must not be removed either: a Pod that counts
    /// for itself would then no longer use the budget. The same holds for a Pod that is too large to be cached.
    fn parse_unreadable(&self, raw: &str) -> Option<Pod> {
        #[derive(Deserialize)]
        struct Bare {
            metadata: PodMetadata,
        }
        let Bare { metadata } = serde_json::from_str(raw).ok()?;
        Some(Pod {
            metadata: metadata.reduced(),
            ..Pod::default()
        })
    }
}
