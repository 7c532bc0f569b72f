//! Puts employers and EndpointSlices from their watches into the caches of ResourceConsist, and tells listeners which
//! employers a change affects.

use std::sync::Arc;

use crate::cluster::caches::Caches;
use crate::cluster::changes::Change;
use crate::cluster::traffic::employers::KindCache;
use crate::cluster::traffic::slices::SliceObject;
use crate::cluster::traffic::{EmployerObject, Traffic};
use crate::cluster::watch::{UnreadableObjects, WatchSink};
use crate::domain::traffic::names::EmployerName;

/// The sink of one kind of employers.
pub struct EmployerSink {
    pub caches: Caches,
    pub traffic: Arc<Traffic>,
    pub kind: String,
}

impl EmployerSink {
    fn with_cache(&self, change: impl FnOnce(&KindCache)) {
        if let Some(cache) = self.traffic.employers.kind(&self.kind) {
            change(cache);
        }
    }

    fn notify(&self, employer: EmployerName) {
        self.caches.changes.notify(Change::Employer(employer));
    }
}

impl WatchSink<EmployerObject> for EmployerSink {
    fn parse(&self, raw: &str) -> serde_json::Result<EmployerObject> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<EmployerObject>, version: u64) {
        self.with_cache(|cache| {
            let ours = objects.iter().filter(|object| object.concerns_traffic());
            let names: Vec<_> = ours.map(|o| cache.name_of(&o.object_key())).collect();
            let gone = cache.replace(&self.traffic.adapters, objects, version);
            names
                .into_iter()
                .chain(gone)
                .for_each(|name| self.notify(name));
        });
    }

    fn apply(&self, object: EmployerObject) {
        self.with_cache(|cache| {
            let name = cache.name_of(&object.object_key());
            if cache.apply(&self.traffic.adapters, object) {
                self.notify(name);
            }
        });
    }

    fn delete(&self, object: EmployerObject) {
        self.with_cache(|cache| {
            if cache.delete(&object) {
                self.notify(cache.name_of(&object.object_key()));
            }
        });
    }

    fn bookmark(&self, version: u64) {
        self.with_cache(|cache| cache.bookmark(version));
    }

    fn parse_unreadable(&self, _raw: &str) -> Option<EmployerObject> {
        None
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
}

/// The sink of EndpointSlices.
pub struct SliceSink {
    pub caches: Caches,
    pub traffic: Arc<Traffic>,
}

impl SliceSink {
    /// Tells listeners about the Service of a slice, if its traffic is managed.
    fn notify(&self, slice: &SliceObject) {
        if let Some((namespace, service)) = slice.service() {
            let name = EmployerName::new("Service", namespace, service);
            if self.traffic.employers.get(&name).is_some() {
                self.caches.changes.notify(Change::Employer(name));
            }
        }
    }
}

impl WatchSink<SliceObject> for SliceSink {
    fn parse(&self, raw: &str) -> serde_json::Result<SliceObject> {
        serde_json::from_str(raw)
    }
    fn replace(&self, slices: Vec<SliceObject>, version: u64) {
        self.traffic.slices.replace(slices, version);
        for name in self.traffic.employers.all_names() {
            self.caches.changes.notify(Change::Employer(name));
        }
    }

    fn apply(&self, slice: SliceObject) {
        self.traffic.slices.apply(slice.clone());
        self.notify(&slice);
    }

    fn delete(&self, slice: SliceObject) {
        self.traffic.slices.delete(&slice);
        self.notify(&slice);
    }

    fn bookmark(&self, version: u64) {
        self.traffic.slices.bookmark(version);
    }

    fn parse_unreadable(&self, _raw: &str) -> Option<SliceObject> {
        None
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
}
