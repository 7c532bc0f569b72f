//! What belongs to CollaSets, from the watch of its kind into its cache. Notifies the CollaSets that a change concerns.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::owners::Owners;
use crate::cluster::caches::Caches;
use crate::cluster::changes::Change;
use crate::cluster::objects::{CachedKind, SetObject};
use crate::cluster::watch::{Sink, UnreadableObjects};
use crate::domain::pod::Metadata;

/// The sink of one kind.
pub struct CacheSink<W> {
    caches: Caches,
    kind: PhantomData<fn(W)>,
}

impl<W: CachedKind> CacheSink<W> {
    /// A sink that feeds the cache of this kind in the index.
    pub fn new(caches: &Caches) -> Self {
        CacheSink {
            caches: caches.clone(),
            kind: PhantomData,
        }
    }

    fn notify(&self, sets: impl IntoIterator<Item = (String, String)>) {
        for (namespace, name) in sets {
            self.caches
                .changes
                .notify(Change::CollaSet(namespace, name));
        }
    }

    fn concerned(&self, metadata: &Metadata) -> Vec<(String, String)> {
        W::concerns(metadata, &self.caches.objects)
            .into_iter()
            .map(|name| (metadata.namespace.clone(), name))
            .collect()
    }
}

impl<W: CachedKind> Sink<W> for CacheSink<W> {
    fn parse(&self, raw: &str) -> serde_json::Result<W> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<W>, version: u64) {
        let mut told = BTreeSet::new();
        for object in &objects {
            told.extend(self.concerned(object.metadata()));
        }
        let kept = objects.into_iter().map(|o| (o.key(), o.keep())).collect();
        for key in W::store(&self.caches.objects).replace(kept, version) {
            // Of what has gone unseen the controller's name is not known: as if there were none.
            told.extend(self.concerned(&Metadata {
                namespace: key.namespace,
                name: key.name,
                ..Metadata::default()
            }));
        }
        self.caches.index.mark_listed(W::KIND);
        self.notify(told);
    }

    fn apply(&self, object: W) {
        let concerned = self.concerned(object.metadata());
        if W::store(&self.caches.objects).apply(object.key(), object.keep()) {
            self.notify(concerned);
        }
    }

    fn delete(&self, object: W) {
        if W::store(&self.caches.objects).delete(&object.key()) {
            self.notify(self.concerned(object.metadata()));
        }
    }

    fn bookmark(&self, version: u64) {
        W::store(&self.caches.objects).bookmark(version);
    }

    fn unreadable(&self, _raw: &str) -> Option<W> {
        None
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
}

/// The sink of CollaSets: the budgets and the cache.
pub struct Sets {
    pub budget: Owners,
    pub cache: CacheSink<SetObject>,
}

impl Sink<SetObject> for Sets {
    fn parse(&self, raw: &str) -> serde_json::Result<SetObject> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<SetObject>, version: u64) {
        let budget = objects
            .iter()
            .map(|o| self.budget.read(o.budget.clone()))
            .collect();
        self.budget.replace(budget, version);
        self.cache.replace(objects, version);
    }

    fn apply(&self, object: SetObject) {
        self.budget.apply(self.budget.read(object.budget.clone()));
        self.cache.apply(object);
    }

    fn delete(&self, object: SetObject) {
        self.budget.delete(self.budget.read(object.budget.clone()));
        self.cache.delete(object);
    }

    fn bookmark(&self, version: u64) {
        self.cache.bookmark(version);
    }

    fn unreadable(&self, raw: &str) -> Option<SetObject> {
        self.cache.unreadable(raw)
    }
}
