//! The input of a plan: the objects of a CollaSet as the controller has read them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::api_refusals::ApiRefusals;
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::resourcecontext::{ContextDetail, data};
use crate::domain::decoration::Decoration;
use crate::domain::pod::Pod;

/// Nanoseconds after which the controller reads the unmanaged Pods in `podToInclude` again. No watch reports their
/// changes, and the status says what keeps them out. Each read costs a GET for each such Pod.
pub const UNMANAGED_NANOS: u64 = 5_000_000_000;

/// All objects that a plan reads. They come from caches that already contain the controller's own last writes.
#[derive(Clone, Debug)]
pub struct ObservedSet {
    /// The CollaSet.
    pub set: Arc<CollaSet>,
    /// ControllerRevisions that the set controls, and those without a controller that the labels of its selector match.
    pub revisions: Vec<Arc<Revision>>,
    /// Pods that the set controls, in any phase.
    pub pods: Vec<Arc<Pod>>,
    /// Managed Pods that `podToInclude` names and that the set does not control.
    pub pods_to_include: Vec<Arc<Pod>>,
    /// Existing Pods that `podToInclude` names and that are not managed. The controller reads them live, because the
    /// caches hold managed Pods only.
    pub unmanaged: Vec<Arc<Pod>>,
    /// Managed Pods without a controller that may have belonged to a set of this name. They have an instance ID or
    /// mount PVCs, and their names have the form of the set's Pod names.
    pub orphans: Vec<Arc<Pod>>,
    /// The managed Pods of the namespace that mount a PVC, by the name of the PVC, with any controller and in any
    /// phase. Empty for a set that has neither PVCs nor `volumeClaimTemplates`.
    pub mounts: BTreeMap<String, Vec<Arc<Pod>>>,
    /// PVCs with the label `kusionstack.io/control=true` that the set controls, or that have no controller.
    pub pvcs: Vec<Arc<Pvc>>,
    /// The PodDecorations of the namespace.
    pub decorations: Vec<Arc<Decoration>>,
    /// The set's pool of instance IDs; `None` if the ResourceContext does not exist.
    pub pool: Option<Arc<InstancePool>>,
    /// Largest allowed size of the entries of the pool in bytes, see [`super::headroom`].
    pub pool_bytes: usize,
    /// The writes that the API server has refused.
    pub refused: ApiRefusals,
    /// For finished Pods, by UID: the time until which the set leaves the Pod as it is, in nanoseconds since 1970. Each
    /// time the Pod of an instance ID ends, the set waits longer before it creates the next Pod.
    pub ended_until: BTreeMap<String, u64>,
    /// The rules, each with its reason, for which Pods wait in PreCheck or PostCheck, by UID of the Pod. Only the first
    /// waiting Pods are listed.
    pub held: BTreeMap<String, Vec<String>>,
    /// Wall clock time in nanoseconds since 1970.
    pub now_nanos: u64,
}

/// `metadata.name` of the set; empty if it has none.
pub fn set_name(set: &CollaSet) -> &str {
    set.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the name of the pool of instance IDs (contract 6.2).
pub fn pool_name(set: &CollaSet) -> &str {
    match &set.spec.scale_strategy {
        Some(scale) if !scale.context.is_empty() => &scale.context,
        _ => set_name(set),
    }
}

/// Whether an entry of the pool belongs to the set. An entry without an owner belongs to the set if the pool has the
/// set's name.
pub fn owns_entry(set: &CollaSet, entry: &BTreeMap<String, String>) -> bool {
    let name = set_name(set);
    match entry.get(data::OWNER) {
        Some(owner) => owner == name,
        None => pool_name(set) == name,
    }
}

/// The fields of a ControllerRevision that a plan reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Revision {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`, for preconditions.
    pub resource_version: String,
    /// Position in the history; the largest is the newest.
    pub revision: i64,
    /// `{"spec":{"template":…,"volumeClaimTemplates":[…]}}` (contract 6.1).
    pub data: Value,
    /// UID of its controller; `None` if it has none.
    pub controller: Option<String>,
    /// `metadata.creationTimestamp`, in whole seconds.
    pub creation_timestamp: Option<Timestamp>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Value of the annotation [`crate::api::keys::STABLE_REVISION`].
    pub stable: Option<String>,
    /// Whether its deletion has begun while a finalizer keeps it.
    pub terminating: bool,
}

/// The fields of a PersistentVolumeClaim (PVC) that a plan reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pvc {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`, for preconditions.
    pub resource_version: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// UID of its controller; `None` if it has none.
    pub controller: Option<String>,
    /// `metadata.creationTimestamp`, in whole seconds.
    pub creation_timestamp: Option<Timestamp>,
    /// Whether its deletion has begun.
    pub terminating: bool,
}

impl Pvc {
    /// Whether the PVC belongs to the set with this UID: the set owns it or keeps it.
    pub fn belongs_to_set(&self, set: Option<&str>) -> bool {
        let is_owned = set.is_some() && self.controller.as_deref() == set;
        is_owned || self.controller.is_none() && self.is_kept_for(set)
    }

    /// Whether the set with this UID keeps the PVC and therefore never deletes it, see [`keys::KEPT_FOR`].
    pub fn is_kept_for(&self, set: Option<&str>) -> bool {
        let kept_for = self.labels.get(keys::KEPT_FOR).map(String::as_str);
        set.is_some() && kept_for == set
    }
}

/// The fields of a ResourceContext, the pool of instance IDs, that a plan reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstancePool {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`, for preconditions.
    pub resource_version: String,
    /// Entries of all owners.
    pub contexts: Vec<ContextDetail>,
}
