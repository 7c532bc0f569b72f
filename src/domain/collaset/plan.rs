//! The plan of a CollaSet: the writes that the controller makes for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::observed::{Pvc, Revision};
use crate::api::collaset::CollaSetStatus;
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// The writes that a CollaSet needs. The controller makes them in the order of the fields. If a write fails, the
/// controller leaves out the writes that depend on it. The next plan starts from the objects that exist then.
#[derive(Clone, Debug, Default)]
pub struct SetPlan {
    /// Whether to add the finalizer of contract 2.3, before all other writes.
    pub add_finalizer: bool,
    /// Changes of ControllerRevisions.
    pub revisions: Vec<RevisionChange>,
    /// The wanted entries of the pool, of all owners. `None` leaves the pool unchanged. An empty list deletes the
    /// ResourceContext.
    pub pool: Option<Vec<ContextDetail>>,
    /// Changes of PersistentVolumeClaims.
    pub pvcs: Vec<PvcChange>,
    /// Changes of Pods.
    pub pods: Vec<PodChange>,
    /// The new status; `None` if the stored status is already right.
    pub status: Option<CollaSetStatus>,
    /// The text that the conditions add when a step fails.
    pub shortfall: Shortfall,
    /// Whether to remove the annotation [`crate::api::keys::ROLLOUT`] from the observed version of the set.
    pub clear_command: bool,
    /// Events about the CollaSet, sent after the writes.
    pub events: Vec<SetEvent>,
    /// Events that the controller sends once the status is stored. Each plan until then contains them again.
    pub events_after_status: Vec<SetEvent>,
    /// The pause at which the rollout stands, if any.
    pub pause: Option<PausePoint>,
    /// Whether to remove the finalizer, after all other writes.
    pub remove_finalizer: bool,
    /// Nanoseconds after which the controller plans again even if no object has changed.
    pub requeue_after_nanos: Option<u64>,
}

impl SetPlan {
    /// The plan without all writes but that of the status, and without Events.
    #[must_use]
    pub fn status_alone(self) -> SetPlan {
        SetPlan {
            status: self.status,
            ..SetPlan::default()
        }
    }
}

/// What a set lacks, as short texts that start with `; `. A text is empty if nothing is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// What the rollout lacks. The condition of a failed update adds this text.
    pub rollout: String,
    /// How many Pods are not available, and why the first of them is not. The condition `Ready` adds this text.
    pub down: String,
}

/// The pause of a rollout at a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PausePoint {
    /// The step, and how its pause ends.
    pub step: String,
    /// The Pods of the updated revision.
    pub canaries: Vec<Arc<Pod>>,
}

/// A change of a ControllerRevision.
#[derive(Clone, Debug, PartialEq)]
pub enum RevisionChange {
    /// Creates the revision with the CollaSet as its controller. `uid` and `resource_version` are empty. If the name is
    /// taken by a revision with other data, the controller raises `status.collisionCount`, and the next plan uses
    /// another name.
    Create(Arc<Revision>),
    /// A rollback: sets the position of the revision in the history, and the name of the stable revision.
    Renumber(Arc<Revision>, i64, String),
    /// Stores the name of the stable revision in an annotation of the revision.
    MarkStable(Arc<Revision>, String),
    /// Makes the CollaSet the controller of the revision.
    Adopt(Arc<Revision>),
    /// Removes the CollaSet's owner reference from the revision.
    Release(Arc<Revision>),
    /// Deletes the revision.
    Delete(Arc<Revision>),
}

/// A change of a PersistentVolumeClaim (PVC).
#[derive(Clone, Debug, PartialEq)]
pub enum PvcChange {
    /// Creates the PVC. The body has `generateName`, the labels and the controller reference.
    Create {
        /// Instance ID that the PVC belongs to.
        id: i64,
        /// Name of the entry in `volumeClaimTemplates`.
        template: String,
        /// The object to create.
        body: Value,
    },
    /// Changes the labels of the PVC and its controller.
    Patch {
        /// The observed PVC.
        pvc: Arc<Pvc>,
        /// Labels to set and to remove.
        labels: LabelPatch,
        /// Change of the controller reference.
        ownership: OwnershipChange,
    },
    /// Deletes the PVC.
    Delete(Arc<Pvc>),
    /// Releases the PVC instead of deleting it, because the set keeps it.
    Retain(Arc<Pvc>),
}

impl PvcChange {
    /// Releases a PVC and changes its labels. Afterwards the set neither owns nor keeps the PVC.
    pub fn release_pvc(pvc: &Arc<Pvc>, mut labels: LabelPatch) -> PvcChange {
        labels.0.extend(remove_kept_label(pvc));
        PvcChange::Patch {
            pvc: Arc::clone(pvc),
            labels,
            ownership: OwnershipChange::Release,
        }
    }
}

/// Removes the label by which the set keeps a PVC. The label `kept-as` stays: if a user gives the PVC to a Pod again,
/// the PVC serves the same template as before.
pub fn remove_kept_label(pvc: &Pvc) -> Option<(String, Option<String>)> {
    let is_kept = pvc.labels.contains_key(keys::KEPT_FOR);
    is_kept.then(|| (keys::KEPT_FOR.to_owned(), None))
}

/// A change of the controller reference of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnershipChange {
    /// Leaves the reference unchanged.
    #[default]
    Keep,
    /// Makes the CollaSet the controller.
    Adopt,
    /// Removes the CollaSet's reference.
    Release,
}

/// A change of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// Creates the Pod. The body has `generateName` if the naming policy is Random, otherwise `name`.
    Create {
        /// Instance ID.
        id: i64,
        /// The object to create.
        body: Value,
    },
    /// Patches the Pod, on the condition that its resourceVersion is still the observed one.
    Patch(PodPatch),
    /// Deletes the Pod, on the condition that its UID is still the observed one. The controller sends the Event after
    /// the API server has accepted the deletion.
    Delete(Arc<Pod>, Option<Box<SetEvent>>),
}

/// A patch of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPatch {
    /// The observed Pod.
    pub pod: Arc<Pod>,
    /// Labels to set and to remove.
    pub labels: LabelPatch,
    /// Annotations to set (`Some`) and to remove (`None`).
    pub annotations: BTreeMap<String, Option<String>>,
    /// Change of the controller reference.
    pub ownership: OwnershipChange,
    /// Owner references to PodDecorations to add and to remove, as entries of a strategic merge patch.
    pub decoration_owners: Vec<Value>,
    /// Strategic merge patch of `spec` for `pods`, such as new images.
    pub spec: Option<Value>,
    /// Strategic merge patch of `spec` for `pods/resize`, written before the rest.
    pub resize: Option<Value>,
    /// For a patch that updates the Pod in place: the name of the target [composition](super::composition).
    pub in_place_target: Option<String>,
    /// For a patch that begins an update in place: the change that will follow. The controller first tries that change
    /// by a dry run. If the API server refuses it, the controller writes nothing, so that no Pod goes off traffic for a
    /// change that is refused.
    pub dry_run_change: Option<Arc<DryRunChange>>,
    /// Whether the patch begins an update that deletes the Pod. While it is unknown whether the API server allows
    /// deletions of Pods, the controller first tries the deletion by a dry run. If the dry run is refused, the
    /// controller writes nothing.
    pub deletes: bool,
    /// Whether the controller only makes the dry run and writes nothing. This is so for an update that was refused
    /// before, because the plan reserves no slot for such a Pod. Once the dry run has passed, the next plan begins the
    /// update.
    pub dry_run_only: bool,
    /// The Event that the controller sends after the patch is stored.
    pub success_event: Option<Box<SetEvent>>,
}

/// The change of a Pod that follows once its operation is allowed. The controller tries it by a dry run before the
/// operation begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryRunChange {
    /// Name of the target [composition](super::composition).
    pub revision: String,
    /// Labels to set and to remove.
    pub labels: LabelPatch,
    /// Annotations to set (`Some`) and to remove (`None`).
    pub annotations: BTreeMap<String, Option<String>>,
    /// Strategic merge patch of `spec` for `pods`.
    pub spec: Option<Value>,
    /// Strategic merge patch of `spec` for `pods/resize`.
    pub resize: Option<Value>,
}

/// An Event about the CollaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetEvent {
    /// Whether the type of the Event is Warning. Otherwise the type is Normal.
    pub warning: bool,
    /// A reason of contract 2.5.
    pub reason: &'static str,
    /// The message, a full sentence.
    pub message: String,
}

impl SetPlan {
    /// Whether the plan contains no write. Events and the time of the next plan do not count.
    pub fn is_empty(&self) -> bool {
        !self.add_finalizer
            && !self.remove_finalizer
            && !self.clear_command
            && self.revisions.is_empty()
            && self.pool.is_none()
            && self.pvcs.is_empty()
            && self.pods.is_empty()
            && self.status.is_none()
    }
}
