//! The cache of employers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use traffic::{Adapter, EmployerKind};

use super::adapters::{Adapters, NamedAdapter};
use super::employer_object::{EmployerObject, EmployerState};
use crate::cluster::objects::{ObjectCache, ObjectKey};
use crate::domain::pod::Pod;
use crate::domain::traffic::adapter_in_use::AdapterInUse;
use crate::domain::traffic::names::EmployerName;
pub use crate::domain::traffic::names::is_clean_finalizer;

/// The employers of each kind. Kept are those with the control label, and those that still have something of ours.
#[derive(Default)]
pub struct Employers {
    kinds: BTreeMap<String, KindCache>,
}

/// The employers of one kind.
pub struct KindCache {
    /// The kind.
    pub kind: EmployerKind,
    /// The path that is watched.
    pub path: &'static str,
    objects: ObjectCache<CachedEmployer>,
    listed: watch::Sender<bool>,
}

/// An employer in the cache.
pub struct CachedEmployer {
    /// Its name.
    pub name: EmployerName,
    /// Its fields.
    pub state: EmployerState,
    /// Whether it has the control label.
    pub managed: bool,
    /// Who manages it; or why nobody can.
    pub adapter: Result<Option<NamedAdapter>, String>,
    /// The labels of the Pods that it selects. Empty: it selects none.
    pub selector: BTreeMap<String, String>,
    /// The finalizer by which it protects Pods.
    pub finalizer: String,
}

impl Employers {
    /// Empty caches of these kinds.
    pub fn new(kinds: BTreeSet<EmployerKind>) -> Employers {
        let caches = kinds.into_iter().map(|kind| {
            let path = format!("{}/{}", kind.api_path(), kind.plural);
            let cache = KindCache {
                kind: kind.clone(),
                // The kinds come from the configuration, once in the life of the process.
                path: Box::leak(path.into_boxed_str()),
                objects: ObjectCache::default(),
                listed: watch::Sender::new(false),
            };
            (kind.kind, cache)
        });
        Employers {
            kinds: caches.collect(),
        }
    }

    /// The cache of a kind.
    pub fn kind(&self, kind: &str) -> Option<&KindCache> {
        self.kinds.get(kind)
    }

    /// The kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &KindCache> {
        self.kinds.values()
    }

    /// An employer.
    pub fn get(&self, name: &EmployerName) -> Option<Arc<CachedEmployer>> {
        let cache = self.kinds.get(&name.kind)?;
        cache.objects.get(&name.namespace, &name.name)
    }

    /// The names of all employers.
    pub fn all_names(&self) -> Vec<EmployerName> {
        let of_kind = |cache: &KindCache| {
            let names = cache.objects.all_names().into_iter();
            let kind = cache.kind.kind.clone();
            names.map(move |(namespace, name): (String, String)| {
                EmployerName::new(&kind, &namespace, &name)
            })
        };
        self.kinds.values().flat_map(of_kind).collect()
    }

    /// The employers of a namespace for which `keep` returns true.
    pub fn names_where(
        &self,
        namespace: &str,
        keep: impl Fn(&CachedEmployer) -> bool,
    ) -> Vec<EmployerName> {
        let of_kind = |cache: &KindCache| {
            let names = cache.objects.names_where(namespace, &keep);
            let kind = cache.kind.kind.clone();
            let named = move |name: String| EmployerName::new(&kind, namespace, &name);
            names.into_iter().map(named).collect::<Vec<_>>()
        };
        self.kinds.values().flat_map(of_kind).collect()
    }

    /// The managed employers that select a Pod of `namespace`.
    pub fn selecting(&self, namespace: &str, pod: &Pod) -> Vec<Arc<CachedEmployer>> {
        let names = self.names_where(namespace, |employer| {
            employer.managed && employer.selects(pod)
        });
        names.iter().filter_map(|name| self.get(name)).collect()
    }
}

impl KindCache {
    /// Whether the first list is complete.
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Replaces all employers by those of a list. Returns the names of those that are gone.
    pub fn replace(
        &self,
        adapters: &Adapters,
        objects: Vec<EmployerObject>,
        version: u64,
    ) -> Vec<EmployerName> {
        let cached = objects.into_iter();
        let cached = cached.map(|object| self.cached(adapters, object)).collect();
        let gone = self.objects.replace(cached, version);
        self.listed.send_replace(true);
        gone.iter().map(|key| self.name_of(key)).collect()
    }

    /// Stores what the watch delivered. Returns whether that is news.
    pub fn apply(&self, adapters: &Adapters, object: EmployerObject) -> bool {
        let (key, cached) = self.cached(adapters, object);
        self.objects.apply(key, cached)
    }

    /// Stores the answer to a write of this replica.
    pub fn apply_own_write(&self, adapters: &Adapters, object: EmployerObject) {
        let (key, cached) = self.cached(adapters, object);
        self.objects.apply_own_write(key, cached);
    }

    /// Removes an employer whose deletion the watch delivered. Returns whether that is news.
    pub fn delete(&self, object: &EmployerObject) -> bool {
        self.objects.delete(&object.object_key())
    }

    /// Records that the watch has delivered every event up to `version`.
    pub fn bookmark(&self, version: u64) {
        self.objects.bookmark(version);
    }

    /// The name of an object of this kind.
    pub fn name_of(&self, key: &ObjectKey) -> EmployerName {
        EmployerName::new(&self.kind.kind, &key.namespace, &key.name)
    }

    fn cached(
        &self,
        adapters: &Adapters,
        object: EmployerObject,
    ) -> (ObjectKey, Option<CachedEmployer>) {
        let key = object.object_key();
        let managed = object.is_managed();
        if !object.concerns_traffic() {
            return (key, None);
        }
        let name = self.name_of(&key);
        let state = object.into_state(&self.kind);
        let chosen = adapters.choose(&self.kind, &state.employer);
        let mut adapter = chosen.map(Option::<&NamedAdapter>::cloned);
        let mut selector = None;
        if let Ok(Some(named)) = &adapter {
            match named.adapter.selected_labels(&state.employer) {
                Ok(labels) => selector = labels,
                Err(error) => adapter = Err(format!("adapter {}: {error}", named.name)),
            }
        }
        let cached = CachedEmployer {
            finalizer: name.finalizer(),
            name,
            managed,
            selector: selector.unwrap_or_default(),
            adapter,
            state,
        };
        (key, Some(cached))
    }
}

impl CachedEmployer {
    /// Whether it selects a Pod of its namespace.
    pub fn selects(&self, pod: &Pod) -> bool {
        let matches = |(key, value): (&String, &String)| pod.label(key) == Some(value);
        !self.selector.is_empty() && self.selector.iter().all(matches)
    }

    /// Whether a new Pod that it selects must wait for traffic before it is available: somebody manages the traffic, and
    /// has the finalizer and the record that this takes. If the adapter refuses the employer, a former one may go on.
    pub fn expects_traffic(&self) -> bool {
        let employer = &self.state.employer;
        let in_use = AdapterInUse::of(&employer.annotations);
        let adapter = self.adapter.as_ref().ok().and_then(Option::as_ref);
        let accepts = |named: &NamedAdapter| {
            let moves = in_use.formers(&named.name).next().is_some();
            moves || named.adapter.check(employer).is_ok()
        };
        self.may_have_members() && !employer.deleting && adapter.is_some_and(accepts)
    }

    /// Whether members may be registered, even if nobody can change them now: it is managed, and has the finalizer and
    /// the record that this takes.
    pub fn may_have_members(&self) -> bool {
        let mut finalizers = self.state.finalizers.iter();
        self.managed
            && finalizers.any(|finalizer| is_clean_finalizer(finalizer))
            && AdapterInUse::of(&self.state.employer.annotations)
                .present()
                .is_some()
    }
}
