//! What a plan is made from.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::api_refusals::ApiRefusals;
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::resourcecontext::{ContextDetail, data};
use crate::domain::pod::Pod;

/// Nanoseconds after which the Pods are read again that are named in `podToInclude` and not managed: nothing tells of their changes, and
/// the status says what keeps them out. Costs a GET of each such Pod.
pub const UNMANAGED_NANOS: u64 = 5_000_000_000;

/// Everything that [`super::plan`] looks at, read from caches that have seen the controller's own last writes.
#[derive(Clone, Debug)]
pub struct ObservedSet {
    /// The CollaSet.
    pub set: Arc<CollaSet>,
    /// ControllerRevisions that it controls, and those without a controller that its selector's labels match.
    pub revisions: Vec<Arc<Revision>>,
    /// Pods that it controls, in any phase.
    pub pods: Vec<Arc<Pod>>,
    /// Managed Pods that it does not control and whose names are in `podToInclude`.
    pub pods_to_include: Vec<Arc<Pod>>,
    /// Pods that are there and not managed and whose names are in `podToInclude`: read live, for the caches hold managed Pods only.
    pub unmanaged: Vec<Arc<Pod>>,
    /// Managed Pods without a controller that may have been of a set of this name: they carry an instance ID or mount claims,
    /// and their names are such as the set gives.
    pub orphans: Vec<Arc<Pod>>,
    /// The managed Pods of the namespace that mount a claim, by the name of the claim, whoever controls them and in whatever
    /// phase. Empty for a set that neither has claims nor claim templates.
    pub mounts: BTreeMap<String, Vec<Arc<Pod>>>,
    /// Claims with `kusionstack.io/control=true` that it controls, or that nobody controls.
    pub pvcs: Vec<Arc<Pvc>>,
    /// Its pool of instance IDs; `None` while there is no such object.
    pub pool: Option<Arc<InstancePool>>,
    /// Most bytes of the entries of the pool, see [`super::room`].
    pub pool_bytes: usize,
    /// What the API server has refused.
    pub refused: ApiRefusals,
    /// Until when Pods that ran to their end are left as they are, by UID, nanoseconds since 1970: each time that the Pod of an
    /// instance ID ends it is made again later.
    pub ended_until: BTreeMap<String, u64>,
    /// What the first Pods that wait in PreCheck or PostCheck wait for, by UID: rules, each with its reason.
    pub held: BTreeMap<String, Vec<String>>,
    /// Wall clock, nanoseconds since 1970.
    pub now_nanos: u64,
}

/// Name of the pool of instance IDs (contract 6.2).
pub fn pool_name(set: &CollaSet) -> &str {
    match &set.spec.scale_strategy {
        Some(scale) if !scale.context.is_empty() => &scale.context,
        _ => set.metadata.name.as_deref().unwrap_or_default(),
    }
}

/// Whether an entry of the pool is the set's own. One without an owner is, in a pool of the set's own name.
pub fn owns_entry(set: &CollaSet, entry: &BTreeMap<String, String>) -> bool {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    match entry.get(data::OWNER) {
        Some(owner) => owner == name,
        None => pool_name(set) == name,
    }
}

/// A ControllerRevision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Revision {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// resourceVersion, for preconditions.
    pub resource_version: String,
    /// Position in the history; the largest is the newest.
    pub revision: i64,
    /// `{"spec":{"template":…,"volumeClaimTemplates":[…]}}` (contract 6.1).
    pub data: Value,
    /// UID of its controller; `None` when it has none.
    pub controller: Option<String>,
    /// creationTimestamp, in whole seconds.
    pub creation_timestamp: Option<Timestamp>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// [`crate::api::keys::STABLE_REVISION`].
    pub stable: Option<String>,
    /// Whether its deletion has begun, which a finalizer keeps.
    pub terminating: bool,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pvc {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// resourceVersion, for preconditions.
    pub resource_version: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// UID of its controller; `None` when it has none.
    pub controller: Option<String>,
    /// creationTimestamp, in whole seconds.
    pub creation_timestamp: Option<Timestamp>,
    /// Whether its deletion has begun.
    pub terminating: bool,
}

impl Pvc {
    /// Whether the set of this UID has the claim: it owns it, or keeps it.
    pub fn belongs_to_set(&self, set: Option<&str>) -> bool {
        let is_owned = set.is_some() && self.controller.as_deref() == set;
        is_owned || self.controller.is_none() && self.is_kept_for(set)
    }

    /// Whether the set of this UID keeps the claim, and never deletes it: see [`keys::KEPT_FOR`].
    pub fn is_kept_for(&self, set: Option<&str>) -> bool {
        let kept = self.labels.get(keys::KEPT_FOR).map(String::as_str);
        set.is_some() && kept == set
    }
}

/// A ResourceContext.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstancePool {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// resourceVersion, for preconditions.
    pub resource_version: String,
    /// Entries of all owners.
    pub contexts: Vec<ContextDetail>,
}
