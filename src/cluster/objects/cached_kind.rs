//! How the kinds look on the wire, and what is kept of them.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::warn;

use super::ObjectCaches;
use super::object_cache::{ObjectCache, ObjectKey};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::resourcecontext::ResourceContextSpec;
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::workload_json::WorkloadObject;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision};
use crate::domain::pod::{Metadata, Owner};

/// A kind that is cached.
pub trait CachedKind: DeserializeOwned + Send + 'static {
    /// What is kept of an object.
    type Cached: Send + Sync + 'static;
    /// Selects what is watched.
    const LABEL_SELECTOR: Option<&'static str>;
    /// The kind.
    const KIND: WatchedKind;

    /// Its cache.
    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<Self::Cached>;

    /// Metadata.
    fn metadata(&self) -> &Metadata;

    /// What is kept; `None` if the object is of no concern.
    fn into_cached(self) -> Option<Self::Cached>;

    /// Names of the CollaSets that a change of the object concerns: the controller, or, without one, all of the
    /// namespace.
    fn affected_collasets(metadata: &Metadata, objects: &ObjectCaches) -> Vec<String> {
        match controller(metadata) {
            Some(owner) if owner.is_collaset() => vec![owner.name.clone()],
            Some(_) => Vec::new(),
            None => objects.sets.names_where(&metadata.namespace, |_| true),
        }
    }

    /// Which version of which object it is.
    fn object_key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            version: metadata.resource_version,
            controller: controller(metadata).map_or_else(String::new, |o| o.uid.clone()),
        }
    }
}

fn controller(metadata: &Metadata) -> Option<&Owner> {
    metadata.owner_references.iter().find(|o| o.controller)
}

/// Whether a CollaSet controls the object, or nobody.
fn is_controlled_by_collaset(metadata: &Metadata) -> bool {
    controller(metadata).is_none_or(Owner::is_collaset)
}

fn controller_uid(metadata: &Metadata) -> Option<String> {
    controller(metadata).map(|owner| owner.uid.clone())
}

/// A CollaSet, and separately what a budget reads of it: the budgets must not depend on the rest being well formed.
#[derive(Debug)]
pub struct CollaSetObject {
    pub(crate) budget: WorkloadObject,
    metadata: Metadata,
    set: Option<CollaSet>,
}

impl<'de> Deserialize<'de> for CollaSetObject {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Bare {
            metadata: Metadata,
        }
        let raw = Box::<RawValue>::deserialize(d)?;
        let error = serde::de::Error::custom::<serde_json::Error>;
        let Bare { metadata } = serde_json::from_str(raw.get()).map_err(error)?;
        let budget = serde_json::from_str(raw.get()).map_err(error)?;
        let set = serde_json::from_str(raw.get());
        let set = set.inspect_err(|e| {
            let (namespace, set) = (&metadata.namespace, &metadata.name);
            warn!(%namespace, %set, error = %e, "a CollaSet can't be read; nothing is done for it");
        });
        Ok(CollaSetObject {
            budget,
            metadata,
            set: set.ok(),
        })
    }
}

impl CachedKind for CollaSetObject {
    type Cached = CollaSet;
    const LABEL_SELECTOR: Option<&'static str> = None;
    const KIND: WatchedKind = WatchedKind::CollaSet;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<CollaSet> {
        &objects.sets
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<CollaSet> {
        let mut set = self.set?;
        set.metadata.managed_fields = None; // often larger than the rest
        Some(set)
    }

    fn affected_collasets(metadata: &Metadata, _: &ObjectCaches) -> Vec<String> {
        vec![metadata.name.clone()]
    }
}

/// A ControllerRevision.
#[derive(Debug, Deserialize)]
#[serde(from = "WholeRevision")]
pub struct RevisionObject {
    metadata: Metadata,
    revision: i64,
    /// Null if the revision is of no concern: those of StatefulSets and DaemonSets are often many times those of CollaSets.
    data: Value,
}

#[derive(Deserialize)]
struct WholeRevision {
    metadata: Metadata,
    #[serde(default)]
    revision: i64,
    #[serde(default)]
    data: Box<RawValue>,
}

impl From<WholeRevision> for RevisionObject {
    fn from(whole: WholeRevision) -> Self {
        let data = is_controlled_by_collaset(&whole.metadata)
            .then(|| serde_json::from_str(whole.data.get()).ok());
        RevisionObject {
            metadata: whole.metadata,
            revision: whole.revision,
            data: data.flatten().unwrap_or_default(),
        }
    }
}

impl CachedKind for RevisionObject {
    type Cached = Revision;
    const LABEL_SELECTOR: Option<&'static str> = None;
    const KIND: WatchedKind = WatchedKind::ControllerRevision;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<Revision> {
        &objects.revisions
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<Revision> {
        is_controlled_by_collaset(&self.metadata).then(|| Revision {
            stable: self
                .metadata
                .annotations
                .get(keys::STABLE_REVISION)
                .cloned(),
            controller: controller_uid(&self.metadata),
            creation_timestamp: creation_time(&self.metadata),
            terminating: self.metadata.deletion_timestamp.is_some(),
            name: self.metadata.name,
            uid: self.metadata.uid,
            resource_version: self.metadata.resource_version.to_string(),
            revision: self.revision,
            data: self.data,
            labels: self.metadata.labels,
        })
    }
}

fn creation_time(metadata: &Metadata) -> Option<Timestamp> {
    metadata.creation_timestamp.as_deref()?.parse().ok()
}

/// A PersistentVolumeClaim.
#[derive(Debug, Deserialize)]
pub struct PvcObject {
    metadata: Metadata,
}

impl CachedKind for PvcObject {
    type Cached = Pvc;
    const LABEL_SELECTOR: Option<&'static str> = Some("kusionstack.io/control=true");
    const KIND: WatchedKind = WatchedKind::PersistentVolumeClaim;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<Pvc> {
        &objects.claims
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// None without the label by which they are watched, also where an answer brings one.
    fn into_cached(self) -> Option<Pvc> {
        let control = self.metadata.labels.get(keys::CONTROL);
        let is_watched = control.is_some_and(|value| value == keys::CONTROL_VALUE);
        (is_watched && is_controlled_by_collaset(&self.metadata)).then(|| Pvc {
            controller: controller_uid(&self.metadata),
            creation_timestamp: creation_time(&self.metadata),
            name: self.metadata.name,
            uid: self.metadata.uid,
            resource_version: self.metadata.resource_version.to_string(),
            labels: self.metadata.labels,
            terminating: self.metadata.deletion_timestamp.is_some(),
        })
    }
}

/// A ResourceContext.
#[derive(Debug, Deserialize)]
pub struct ResourceContextObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<ResourceContextSpec>,
}

impl CachedKind for ResourceContextObject {
    type Cached = InstancePool;
    const LABEL_SELECTOR: Option<&'static str> = None;
    const KIND: WatchedKind = WatchedKind::ResourceContext;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<InstancePool> {
        &objects.pools
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<InstancePool> {
        Some(InstancePool {
            name: self.metadata.name,
            uid: self.metadata.uid,
            resource_version: self.metadata.resource_version.to_string(),
            contexts: self.spec.unwrap_or_default().contexts,
        })
    }

    /// The sets that use it. One that nobody uses concerns the set of its name, which is gone: it may be left over.
    fn affected_collasets(metadata: &Metadata, objects: &ObjectCaches) -> Vec<String> {
        let users = objects.collasets_using_context(&metadata.namespace, &metadata.name);
        match users.is_empty() {
            true => vec![metadata.name.clone()],
            false => users,
        }
    }
}
