//! From a watch into its cache, and word to the CollaSets that a change concerns.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use super::wire::{SetObject, Wire};
use crate::cluster::index::{Change, Index};
use crate::cluster::sources::Workloads;
use crate::cluster::unread::Unread;
use crate::cluster::watch::Sink;
use crate::domain::pod::Metadata;

/// The sink of one kind.
pub struct Feed<W> {
    index: Arc<Index>,
    kind: PhantomData<fn(W)>,
}

impl<W: Wire> Feed<W> {
    /// A sink that feeds the cache of this kind in the index.
    pub fn new(index: &Arc<Index>) -> Self {
        Feed {
            index: Arc::clone(index),
            kind: PhantomData,
        }
    }

    fn tell(&self, sets: impl IntoIterator<Item = (String, String)>) {
        for (namespace, name) in sets {
            self.index.tell(Change::CollaSet(namespace, name));
        }
    }

    fn concerned(&self, metadata: &Metadata) -> Vec<(String, String)> {
        W::concerns(metadata, &self.index.objects)
            .into_iter()
            .map(|name| (metadata.namespace.clone(), name))
            .collect()
    }
}

impl<W: Wire> Sink<W> for Feed<W> {
    fn parse(&self, raw: &str) -> serde_json::Result<W> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<W>, version: u64) {
        let mut told = BTreeSet::new();
        for object in &objects {
            told.extend(self.concerned(object.metadata()));
        }
        let kept = objects.into_iter().map(|o| (o.key(), o.keep())).collect();
        for key in W::store(&self.index.objects).replace(kept, version) {
            // Of what has gone unseen the controller's name is not known: as if there were none.
            told.extend(self.concerned(&Metadata {
                namespace: key.namespace,
                name: key.name,
                ..Metadata::default()
            }));
        }
        self.index.mark(|s| s.objects |= 1 << W::BIT);
        self.tell(told);
    }

    fn apply(&self, object: W) {
        let concerned = self.concerned(object.metadata());
        if W::store(&self.index.objects).apply(object.key(), object.keep()) {
            self.tell(concerned);
        }
    }

    fn delete(&self, object: W) {
        if W::store(&self.index.objects).delete(&object.key()) {
            self.tell(self.concerned(object.metadata()));
        }
    }

    fn bookmark(&self, version: u64) {
        W::store(&self.index.objects).bookmark(version);
    }

    fn unreadable(&self, _raw: &str) -> Option<W> {
        None
    }
    fn unread(&self) -> Option<&Unread> {
        Some(&self.index.unread)
    }
}

/// The sink of CollaSets: the budgets and the cache.
pub struct Sets {
    pub budget: Workloads,
    pub feed: Feed<SetObject>,
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
        self.feed.replace(objects, version);
    }

    fn apply(&self, object: SetObject) {
        self.budget.apply(self.budget.read(object.budget.clone()));
        self.feed.apply(object);
    }

    fn delete(&self, object: SetObject) {
        self.budget.delete(self.budget.read(object.budget.clone()));
        self.feed.delete(object);
    }

    fn bookmark(&self, version: u64) {
        self.feed.bookmark(version);
    }

    fn unreadable(&self, raw: &str) -> Option<SetObject> {
        self.feed.unreadable(raw)
    }
}
