//! The JSON forms of the cached kinds, and the fields that the caches keep.

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
use crate::cluster::changes::Change;
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::workload_json::WorkloadObject;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision};
use crate::domain::decoration::labels::is_decoration;
use crate::domain::pod::{Owner, PodMetadata};

/// A cached kind.
pub trait CachedKind: DeserializeOwned + Send + 'static {
    /// The fields of an object that the cache keeps.
    type Cached: Send + Sync + 'static;
    /// The label selector of the watch.
    const LABEL_SELECTOR: Option<&'static str>;
    /// The watched kind.
    const KIND: WatchedKind;

    /// The cache of this kind.
    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<Self::Cached>;

    /// The metadata of the object.
    fn metadata(&self) -> &PodMetadata;

    /// The fields that the cache keeps. `None` if the cache does not keep this object.
    fn into_cached(self) -> Option<Self::Cached>;

    /// What listeners must know about a change of the object: its controller, or all CollaSets of the namespace if it
    /// has no controller.
    fn affected(metadata: &PodMetadata, objects: &ObjectCaches) -> Vec<Change> {
        affected_by_controller(metadata, objects)
    }

    /// The identity and the version of the object.
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

fn affected_by_controller(metadata: &PodMetadata, objects: &ObjectCaches) -> Vec<Change> {
    let namespace = &metadata.namespace;
    let sets = match controller(metadata) {
        Some(owner) if owner.is_collaset() => vec![owner.name.clone()],
        Some(_) => Vec::new(),
        None => objects.sets.names_where(namespace, |_| true),
    };
    collaset_changes(namespace, sets)
}

fn collaset_changes(namespace: &str, sets: Vec<String>) -> Vec<Change> {
    let sets = sets.into_iter();
    sets.map(|name| Change::CollaSet(namespace.to_owned(), name))
        .collect()
}

fn controller(metadata: &PodMetadata) -> Option<&Owner> {
    metadata.owner_references.iter().find(|o| o.controller)
}

/// Whether a CollaSet controls the object, or the object has no controller.
fn is_controlled_by_collaset(metadata: &PodMetadata) -> bool {
    controller(metadata).is_none_or(Owner::is_collaset)
}

/// Whether the cache keeps a revision: a CollaSet or a PodDecoration controls it, or it has no controller.
fn is_kept_revision(metadata: &PodMetadata) -> bool {
    controller(metadata).is_none_or(|owner| owner.is_collaset() || is_decoration(owner))
}

fn controller_uid(metadata: &PodMetadata) -> Option<String> {
    controller(metadata).map(|owner| owner.uid.clone())
}

/// A CollaSet. The fields that a budget reads are parsed separately, because a budget must not depend on the other
/// fields being valid.
#[derive(Debug)]
pub struct CollaSetObject {
    pub(crate) budget: WorkloadObject,
    metadata: PodMetadata,
    set: Option<CollaSet>,
}

impl<'de> Deserialize<'de> for CollaSetObject {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Bare {
            metadata: PodMetadata,
        }
        let raw = Box::<RawValue>::deserialize(d)?;
        let error = serde::de::Error::custom::<serde_json::Error>;
        let Bare { metadata } = serde_json::from_str(raw.get()).map_err(error)?;
        let budget = serde_json::from_str(raw.get()).map_err(error)?;
        let set = serde_json::from_str(raw.get());
        let set = set.inspect_err(|e| {
            let (namespace, set) = (&metadata.namespace, &metadata.name);
            warn!(%namespace, %set, error = %e, "a CollaSet can't be read; the controller does nothing for it until the CollaSet is corrected");
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

    fn metadata(&self) -> &PodMetadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<CollaSet> {
        let mut set = self.set?;
        set.metadata.managed_fields = None; // often larger than all other fields
        Some(set)
    }

    fn affected(metadata: &PodMetadata, _: &ObjectCaches) -> Vec<Change> {
        vec![Change::CollaSet(
            metadata.namespace.clone(),
            metadata.name.clone(),
        )]
    }
}

/// A ControllerRevision.
#[derive(Debug, Deserialize)]
#[serde(from = "WholeRevision")]
pub struct RevisionObject {
    metadata: PodMetadata,
    revision: i64,
    /// Null if the cache does not keep the revision. The revisions of StatefulSets and DaemonSets are often many more
    /// than those of CollaSets and PodDecorations.
    data: Value,
}

#[derive(Deserialize)]
struct WholeRevision {
    metadata: PodMetadata,
    #[serde(default)]
    revision: i64,
    #[serde(default)]
    data: Box<RawValue>,
}

impl From<WholeRevision> for RevisionObject {
    fn from(whole: WholeRevision) -> Self {
        let data =
            is_kept_revision(&whole.metadata).then(|| serde_json::from_str(whole.data.get()).ok());
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

    fn metadata(&self) -> &PodMetadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<Revision> {
        is_kept_revision(&self.metadata).then(|| Revision {
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

    /// As for other kinds. In addition, a revision that a PodDecoration controls affects this PodDecoration, and a
    /// revision without a controller affects all PodDecorations of the namespace: any of them may have lost it.
    fn affected(metadata: &PodMetadata, objects: &ObjectCaches) -> Vec<Change> {
        let namespace = &metadata.namespace;
        let mut affected = affected_by_controller(metadata, objects);
        let decorations = match controller(metadata) {
            Some(owner) if is_decoration(owner) => vec![owner.name.clone()],
            Some(_) => Vec::new(),
            None => objects.decorations.names_where(namespace, |_| true),
        };
        let decorations = decorations.into_iter();
        affected.extend(decorations.map(|name| Change::PodDecoration(namespace.clone(), name)));
        affected
    }
}

fn creation_time(metadata: &PodMetadata) -> Option<Timestamp> {
    metadata.creation_timestamp.as_deref()?.parse().ok()
}

/// A PersistentVolumeClaim.
#[derive(Debug, Deserialize)]
pub struct PvcObject {
    metadata: PodMetadata,
}

impl CachedKind for PvcObject {
    type Cached = Pvc;
    const LABEL_SELECTOR: Option<&'static str> = Some(keys::CONTROL_SELECTOR);
    const KIND: WatchedKind = WatchedKind::PersistentVolumeClaim;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<Pvc> {
        &objects.pvcs
    }

    fn metadata(&self) -> &PodMetadata {
        &self.metadata
    }

    /// `None` without the label that the watch selects, even if a response of the API server contains such an object.
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
    metadata: PodMetadata,
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

    fn metadata(&self) -> &PodMetadata {
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

    /// The CollaSets that use the ResourceContext. If none uses it, the CollaSet of its name: this CollaSet may have
    /// been deleted and have left the ResourceContext behind.
    fn affected(metadata: &PodMetadata, objects: &ObjectCaches) -> Vec<Change> {
        let users = objects.collasets_using_context(&metadata.namespace, &metadata.name);
        let users = match users.is_empty() {
            true => vec![metadata.name.clone()],
            false => users,
        };
        collaset_changes(&metadata.namespace, users)
    }
}
