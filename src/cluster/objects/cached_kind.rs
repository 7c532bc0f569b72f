//! How the kinds look on the wire, and what is kept of them.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::warn;

use super::Objects;
use super::store::{Key, Store};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::resourcecontext::ResourceContextSpec;
use crate::cluster::kind::Kind;
use crate::cluster::sizes::wire::Object;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision};
use crate::domain::pod::{Metadata, Owner};

/// A kind that is cached.
pub trait CachedKind: DeserializeOwned + Send + 'static {
    /// What is kept of an object.
    type Kept: Send + Sync + 'static;
    /// Selects what is watched.
    const LABELS: Option<&'static str>;
    /// The kind.
    const KIND: Kind;

    /// Its cache.
    fn store(objects: &Objects) -> &Store<Self::Kept>;

    /// Metadata.
    fn metadata(&self) -> &Metadata;

    /// What is kept; `None` if the object is of no concern.
    fn keep(self) -> Option<Self::Kept>;

    /// Names of the CollaSets that a change of the object concerns: the controller, or, without one, all of the
    /// namespace.
    fn concerns(metadata: &Metadata, objects: &Objects) -> Vec<String> {
        match controller(metadata) {
            Some(owner) if owner.is_collaset() => vec![owner.name.clone()],
            Some(_) => Vec::new(),
            None => objects.sets.names_where(&metadata.namespace, |_| true),
        }
    }

    /// Which version of which object it is.
    fn key(&self) -> Key {
        let metadata = self.metadata();
        Key {
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
fn is_ours(metadata: &Metadata) -> bool {
    controller(metadata).is_none_or(Owner::is_collaset)
}

fn controller_uid(metadata: &Metadata) -> Option<String> {
    controller(metadata).map(|owner| owner.uid.clone())
}

/// A CollaSet, and separately what a budget reads of it: the budgets must not depend on the rest being well formed.
#[derive(Debug)]
pub struct SetObject {
    pub(crate) budget: Object,
    metadata: Metadata,
    set: Option<CollaSet>,
}

impl<'de> Deserialize<'de> for SetObject {
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
        Ok(SetObject {
            budget,
            metadata,
            set: set.ok(),
        })
    }
}

impl CachedKind for SetObject {
    type Kept = CollaSet;
    const LABELS: Option<&'static str> = None;
    const KIND: Kind = Kind::CollaSet;

    fn store(objects: &Objects) -> &Store<CollaSet> {
        &objects.sets
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn keep(self) -> Option<CollaSet> {
        let mut set = self.set?;
        set.metadata.managed_fields = None; // often larger than the rest
        Some(set)
    }

    fn concerns(metadata: &Metadata, _: &Objects) -> Vec<String> {
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
        let data = is_ours(&whole.metadata).then(|| serde_json::from_str(whole.data.get()).ok());
        RevisionObject {
            metadata: whole.metadata,
            revision: whole.revision,
            data: data.flatten().unwrap_or_default(),
        }
    }
}

impl CachedKind for RevisionObject {
    type Kept = Revision;
    const LABELS: Option<&'static str> = None;
    const KIND: Kind = Kind::ControllerRevision;

    fn store(objects: &Objects) -> &Store<Revision> {
        &objects.revisions
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn keep(self) -> Option<Revision> {
        is_ours(&self.metadata).then(|| Revision {
            stable: self
                .metadata
                .annotations
                .get(keys::STABLE_REVISION)
                .cloned(),
            controller: controller_uid(&self.metadata),
            creation_timestamp: created(&self.metadata),
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

fn created(metadata: &Metadata) -> Option<Timestamp> {
    metadata.creation_timestamp.as_deref()?.parse().ok()
}

/// A PersistentVolumeClaim.
#[derive(Debug, Deserialize)]
pub struct ClaimObject {
    metadata: Metadata,
}

impl CachedKind for ClaimObject {
    type Kept = Pvc;
    const LABELS: Option<&'static str> = Some("kusionstack.io/control=true");
    const KIND: Kind = Kind::PersistentVolumeClaim;

    fn store(objects: &Objects) -> &Store<Pvc> {
        &objects.claims
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// None without the label by which they are watched, also where an answer brings one.
    fn keep(self) -> Option<Pvc> {
        let control = self.metadata.labels.get(keys::CONTROL);
        let is_watched = control.is_some_and(|value| value == keys::CONTROL_VALUE);
        (is_watched && is_ours(&self.metadata)).then(|| Pvc {
            controller: controller_uid(&self.metadata),
            creation_timestamp: created(&self.metadata),
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
pub struct PoolObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<ResourceContextSpec>,
}

impl CachedKind for PoolObject {
    type Kept = InstancePool;
    const LABELS: Option<&'static str> = None;
    const KIND: Kind = Kind::ResourceContext;

    fn store(objects: &Objects) -> &Store<InstancePool> {
        &objects.pools
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn keep(self) -> Option<InstancePool> {
        Some(InstancePool {
            name: self.metadata.name,
            uid: self.metadata.uid,
            resource_version: self.metadata.resource_version.to_string(),
            contexts: self.spec.unwrap_or_default().contexts,
        })
    }

    /// The sets that use it. One that nobody uses concerns the set of its name, which is gone: it may be left over.
    fn concerns(metadata: &Metadata, objects: &Objects) -> Vec<String> {
        let users = objects.sets_using(&metadata.namespace, &metadata.name);
        match users.is_empty() {
            true => vec![metadata.name.clone()],
            false => users,
        }
    }
}
