//! Puts CollaSets, PodDecorations, their objects and OperationJobs from the watch of their kind into its cache, and
//! tells listeners which CollaSets, PodDecorations and OperationJobs a change affects.

use std::collections::HashSet;
use std::marker::PhantomData;

use super::owners::OwnerSink;
use crate::cluster::caches::Caches;
use crate::cluster::changes::Change;
use crate::cluster::objects::{CachedKind, CollaSetObject};
use crate::cluster::watch::{UnreadableObjects, WatchSink};
use crate::domain::pod::PodMetadata;

/// The sink of one cached kind.
pub struct CacheSink<W> {
    caches: Caches,
    kind: PhantomData<fn(W)>,
}

impl<W: CachedKind> CacheSink<W> {
    /// Creates a sink that fills the cache of this kind.
    pub fn new(caches: &Caches) -> Self {
        CacheSink {
            caches: caches.clone(),
            kind: PhantomData,
        }
    }

    fn notify(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.caches.changes.notify(change);
        }
    }

    /// Replaces the objects of the cache. Returns the changes to notify. The kind is not yet marked as listed.
    fn fill_cache(&self, objects: Vec<W>, version: u64) -> HashSet<Change> {
        let mut affected = HashSet::new();
        for object in &objects {
            affected.extend(self.affected(object.metadata()));
        }
        let cached = objects
            .into_iter()
            .map(|o| (o.object_key(), o.into_cached()))
            .collect();
        for key in W::object_cache(&self.caches.objects).replace(cached, version) {
            // The controller of an object that was deleted before we saw it is unknown; treat it as absent.
            affected.extend(self.affected(&PodMetadata {
                namespace: key.namespace,
                name: key.name,
                ..PodMetadata::default()
            }));
        }
        affected
    }

    fn affected(&self, metadata: &PodMetadata) -> Vec<Change> {
        W::affected(metadata, &self.caches.objects)
    }
}

/// What listeners must know of a write of this replica that the cache already contains. Its writer knows it.
fn own_write_changes(affected: Vec<Change>) -> HashSet<Change> {
    let changes = affected.into_iter().filter_map(|change| match change {
        Change::CollaSet(namespace, _) => Some(Change::CollaSetWritten(namespace)),
        _ => None,
    });
    changes.collect()
}

impl<W: CachedKind> WatchSink<W> for CacheSink<W> {
    fn parse(&self, raw: &str) -> serde_json::Result<W> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<W>, version: u64) {
        let affected = self.fill_cache(objects, version);
        self.caches.index.mark_listed(W::KIND);
        self.notify(affected);
    }

    fn apply(&self, object: W) {
        let affected = self.affected(object.metadata());
        let cache = W::object_cache(&self.caches.objects);
        let key = object.object_key();
        if cache.apply(key.clone(), object.into_cached()) {
            self.notify(affected);
        } else if cache.has_version(&key) {
            self.notify(own_write_changes(affected));
        }
    }

    fn delete(&self, object: W) {
        if W::object_cache(&self.caches.objects).delete(&object.object_key()) {
            self.notify(self.affected(object.metadata()));
        }
    }

    fn bookmark(&self, version: u64) {
        W::object_cache(&self.caches.objects).bookmark(version);
    }

    fn parse_unreadable(&self, _raw: &str) -> Option<W> {
        None
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
}

/// The sink of CollaSets. It fills the budgets and the cache.
pub struct CollaSetSink {
    pub budget: OwnerSink,
    pub cache: CacheSink<CollaSetObject>,
}

impl WatchSink<CollaSetObject> for CollaSetSink {
    fn parse(&self, raw: &str) -> serde_json::Result<CollaSetObject> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<CollaSetObject>, version: u64) {
        let budget = objects
            .iter()
            .map(|o| self.budget.read_owner(o.budget.clone()))
            .collect();
        // The budget marks the kind as listed, so it comes last: decisions wait for the budget, and the controller of
        // CollaSets waits for the cache.
        let affected = self.cache.fill_cache(objects, version);
        self.budget.replace(budget, version);
        self.cache.notify(affected);
    }

    fn apply(&self, object: CollaSetObject) {
        self.budget
            .apply(self.budget.read_owner(object.budget.clone()));
        self.cache.apply(object);
    }

    fn delete(&self, object: CollaSetObject) {
        self.budget
            .delete(self.budget.read_owner(object.budget.clone()));
        self.cache.delete(object);
    }

    fn bookmark(&self, version: u64) {
        self.cache.bookmark(version);
    }

    fn parse_unreadable(&self, raw: &str) -> Option<CollaSetObject> {
        self.cache.parse_unreadable(raw)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use serde_json::Value;
    use tokio::sync::broadcast::Receiver;

    use super::*;
    use crate::cluster::kind::WatchedKind;
    use crate::cluster::objects::{
        DecorationObject, JobObject, ResourceContextObject, RevisionObject,
    };

    fn read<W: CachedKind>(object: &Value) -> W {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    /// A revision, with a controller of this kind or without one.
    fn revision(version: u64, kind: Option<&str>) -> RevisionObject {
        let owner = |kind| {
            json!({
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind, "name": "log", "uid": "owner",
                "controller": true,
            })
        };
        let owners: Vec<_> = kind.map(owner).into_iter().collect();
        read(&json!({
            "metadata": {
                "namespace": "n", "name": "log-1", "uid": "r", "resourceVersion": version.to_string(),
                "ownerReferences": owners,
            },
            "data": { "spec": {} },
        }))
    }

    fn notified(changes: &mut Receiver<Change>) -> Vec<Change> {
        std::iter::from_fn(|| changes.try_recv().ok()).collect()
    }

    fn decoration_change() -> Change {
        Change::PodDecoration("n".into(), "log".into())
    }

    #[test]
    fn change_of_decoration_or_its_revision_notifies_decoration() {
        let caches = Caches::default();
        let mut changes = caches.changes.subscribe();
        let sink = CacheSink::<DecorationObject>::new(&caches);
        let decoration = |version: &str| {
            read(&json!({ "metadata": {
                "namespace": "n", "name": "log", "uid": "pd", "resourceVersion": version,
            } }))
        };
        sink.replace(vec![decoration("5")], 5);
        assert_eq!(notified(&mut changes), [decoration_change()]);
        sink.apply(decoration("5"));
        assert_eq!(notified(&mut changes), [], "no news");
        sink.apply(decoration("6"));
        assert_eq!(notified(&mut changes), [decoration_change()]);

        let revisions = CacheSink::<RevisionObject>::new(&caches);
        revisions.apply(revision(7, Some("PodDecoration")));
        assert_eq!(notified(&mut changes), [decoration_change()]);
        let controlled = caches.objects.revisions.controlled_by("n", "owner");
        assert_eq!(controlled[0].data, json!({ "spec": {} }));
        revisions.apply(revision(8, None));
        let lost = [decoration_change()];
        assert_eq!(notified(&mut changes), lost, "its controller was removed");
        revisions.apply(revision(9, Some("CollaSet")));
        let set = Change::CollaSet("n".into(), "log".into());
        assert_eq!(notified(&mut changes), [set]);

        sink.delete(decoration("10"));
        assert_eq!(notified(&mut changes), [decoration_change()]);
        assert!(caches.objects.decorations.get("n", "log").is_none());
    }

    /// PodDecorations read what the controller of CollaSets writes.
    #[test]
    fn own_write_notifies_other_readers_once_the_watch_shows_it() {
        let caches = Caches::default();
        let mut changes = caches.changes.subscribe();
        let pool = || {
            read::<ResourceContextObject>(&json!({ "metadata": {
                "namespace": "n", "name": "web", "uid": "p", "resourceVersion": "7",
            } }))
        };
        let set = json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set", "resourceVersion": "5" } });
        let sets = CacheSink::<CollaSetObject>::new(&caches);
        sets.apply(read(&set));
        let _ = notified(&mut changes);
        let written = pool();
        caches
            .objects
            .pools
            .apply_own_write(written.object_key(), written.into_cached());
        assert_eq!(notified(&mut changes), []);
        let sink = CacheSink::<ResourceContextObject>::new(&caches);
        sink.apply(pool());
        let expected = [Change::CollaSetWritten("n".into())];
        assert_eq!(notified(&mut changes), expected);
    }

    #[test]
    fn change_of_job_notifies_this_job() {
        let caches = Caches::default();
        let mut changes = caches.changes.subscribe();
        let sink = CacheSink::<JobObject>::new(&caches);
        let job = |name: &str, version: &str| {
            read(&json!({
                "metadata": { "namespace": "n", "name": name, "uid": name, "resourceVersion": version },
                "spec": { "action": "Restart", "targets": [{ "name": "web-1" }] },
            }))
        };
        let change = |name: &str| Change::OperationJob("n".into(), name.into());
        sink.replace(vec![job("a", "5")], 5);
        assert_eq!(notified(&mut changes), [change("a")]);
        sink.apply(job("b", "6"));
        assert_eq!(notified(&mut changes), [change("b")]);
        let jobs = &caches.objects;
        assert_eq!(jobs.jobs_naming("n", "web-1").len(), 2);
        assert!(jobs.jobs_naming("n", "web-2").is_empty());
        assert!(jobs.jobs_naming("m", "web-1").is_empty());

        sink.delete(job("b", "7"));
        assert_eq!(notified(&mut changes), [change("b")]);
        sink.replace(Vec::new(), 8);
        assert_eq!(notified(&mut changes), [change("a")]);
        assert!(jobs.jobs_naming("n", "web-1").is_empty());
    }

    #[test]
    fn revision_of_other_kinds_is_not_cached() {
        let caches = Caches::default();
        let revisions = CacheSink::<RevisionObject>::new(&caches);
        for kind in ["PodDecoration", "CollaSet"] {
            revisions.apply(revision(7, Some(kind)));
        }
        assert!(caches.objects.revisions.get("n", "log-1").is_some());
        revisions.apply(revision(9, Some("OperationJob")));
        assert!(caches.objects.revisions.get("n", "log-1").is_none());
    }

    #[test]
    fn collasets_count_as_listed_once_budget_and_cache_are_filled() {
        let caches = Caches::default();
        let sink = CollaSetSink {
            budget: OwnerSink::new(&caches, WatchedKind::CollaSet),
            cache: CacheSink::new(&caches),
        };
        let set = json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set" }, "spec": { "replicas": 1 } });
        let listed = || vec![serde_json::from_value(set.clone()).unwrap()];
        let is_listed = || {
            !caches
                .index
                .listed_kinds()
                .missing_kinds()
                .contains(&"CollaSet")
        };
        let is_cached = || caches.objects.sets.get("n", "web").is_some();
        let is_counted = || {
            let state = caches.index.read_state();
            state
                .namespace("n")
                .is_some_and(|home| home.workload("set").is_some())
        };
        assert!(!is_listed());
        sink.cache.fill_cache(listed(), 5);
        assert!(is_cached() && !is_counted() && !is_listed());
        sink.replace(listed(), 6);
        assert!(is_cached() && is_counted() && is_listed());
    }
}
