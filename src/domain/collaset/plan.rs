//! What is to be written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::observed::{Pvc, Revision};
use crate::api::collaset::CollaSetStatus;
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// What is to be written, in the order of the fields. What fails is left out, with what depends on it; the next plan starts
/// from what is there then.
#[derive(Clone, Debug, Default)]
pub struct SetPlan {
    /// Adds the finalizer of contract 2.3 before anything else.
    pub add_finalizer: bool,
    /// ControllerRevisions.
    pub revisions: Vec<RevisionChange>,
    /// All entries of the pool as they shall be; `None` leaves it alone. Without entries it is deleted.
    pub pool: Option<Vec<ContextDetail>>,
    /// PersistentVolumeClaims.
    pub pvcs: Vec<PvcChange>,
    /// Pods.
    pub pods: Vec<PodChange>,
    /// The status, when it differs.
    pub status: Option<CollaSetStatus>,
    /// What is said beside a step that fails.
    pub shortfall: Shortfall,
    /// Removes the annotation [`crate::api::keys::ROLLOUT`] of the set that was looked at.
    pub forget_command: bool,
    /// Events about the CollaSet.
    pub events: Vec<SetEvent>,
    /// Events that are told once the status is stored: each plan until then has them again.
    pub events_after_status: Vec<SetEvent>,
    /// The pause that the rollout is at.
    pub pause: Option<PausePoint>,
    /// Removes the finalizer, after everything else.
    pub remove_finalizer: bool,
    /// Nanoseconds after which to plan again although nothing has changed.
    pub requeue_after_nanos: Option<u64>,
}

/// What a set lacks, in short and after `; `. Empty where it lacks nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// Of the rollout: for what is said of an update that fails.
    pub rollout: String,
    /// How many Pods are not available, and why the first is not: for the condition `Ready`.
    pub down: String,
}

/// A rollout that pauses at a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PausePoint {
    /// The step, and how it ends.
    pub step: String,
    /// Pods of the updated revision.
    pub canaries: Vec<Arc<Pod>>,
}

/// A change of a ControllerRevision.
#[derive(Clone, Debug, PartialEq)]
pub enum RevisionChange {
    /// Creates it, controlled by the CollaSet. `uid` and `resource_version` are empty. Where the name is taken by
    /// other data, the collision count of the status is raised and the next plan finds another name.
    Create(Arc<Revision>),
    /// Sets its position in the history, and the name of the stable revision: a rollback.
    Renumber(Arc<Revision>, i64, String),
    /// Notes the name of the stable revision at it.
    Note(Arc<Revision>, String),
    /// Sets the CollaSet as its controller.
    Adopt(Arc<Revision>),
    /// Removes the CollaSet's reference.
    Release(Arc<Revision>),
    /// Deletes it.
    Delete(Arc<Revision>),
}

/// A change of a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq)]
pub enum PvcChange {
    /// Creates it; the body carries `generateName`, labels and the controller reference.
    Create {
        /// Instance ID.
        id: i64,
        /// Name of the claim template.
        template: String,
        /// The body.
        body: Value,
    },
    /// Changes labels, and who controls it.
    Patch {
        /// The claim.
        claim: Arc<Pvc>,
        /// Labels.
        labels: LabelPatch,
        /// Controller.
        ownership: OwnershipChange,
    },
    /// Deletes it.
    Delete(Arc<Pvc>),
    /// Lets go of it in the place of a deletion, since it is kept.
    LetGo(Arc<Pvc>),
}

impl PvcChange {
    /// The set lets go of a claim, with these changes of its labels: it is neither owned nor kept.
    pub fn release_pvc(claim: &Arc<Pvc>, mut labels: LabelPatch) -> PvcChange {
        labels.0.extend(remove_kept_label(claim));
        PvcChange::Patch {
            claim: Arc::clone(claim),
            labels,
            ownership: OwnershipChange::Release,
        }
    }
}

/// Takes the label of a claim off by which it is kept. What it was kept as stays: it serves that again, if somebody hands it out.
pub fn remove_kept_label(claim: &Pvc) -> Option<(String, Option<String>)> {
    let is_kept = claim.labels.contains_key(keys::KEPT_FOR);
    is_kept.then(|| (keys::KEPT_FOR.to_owned(), None))
}

/// What becomes of a controller reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnershipChange {
    /// As it is.
    #[default]
    Keep,
    /// The CollaSet becomes the controller.
    Adopt,
    /// The CollaSet's reference is removed.
    Release,
}

/// A change of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// Creates it. The body carries `generateName` (naming Random) or `name`.
    Create {
        /// Instance ID.
        id: i64,
        /// The body.
        body: Value,
    },
    /// Patches it, if it is still the version that was looked at.
    Patch(PodPatch),
    /// Deletes it, if it is still that Pod. The Event is told once the API server has accepted that.
    Delete(Arc<Pod>, Option<Box<SetEvent>>),
}

/// A patch of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPatch {
    /// The Pod that was looked at.
    pub pod: Arc<Pod>,
    /// Labels.
    pub labels: LabelPatch,
    /// Annotations to set (`Some`) and to remove (`None`).
    pub annotations: BTreeMap<String, Option<String>>,
    /// Controller.
    pub ownership: OwnershipChange,
    /// Strategic merge patch of `spec` for `pods`, e.g. images.
    pub spec: Option<Value>,
    /// Strategic merge patch of `spec` for `pods/resize`, written before the rest.
    pub resize: Option<Value>,
    /// Of a patch that updates its Pod in place: name of the revision that it leads to.
    pub leads_to: Option<String>,
    /// Of a patch that begins an update in place: the change that is to follow. Unless the API server takes it in a dry run nothing is
    /// written, so that no Pod goes off traffic for a change that is refused.
    pub dry_run_change: Option<Arc<DryRunChange>>,
    /// Whether the patch begins an update that deletes its Pod. While it is in doubt if the API server lets Pods be deleted, that is tried
    /// by a dry run first, and nothing is written if it is refused.
    pub deletes: bool,
    /// Whether the patch begins an update that was refused: it is only tried by a dry run, as no place is kept for it, and nothing is
    /// written. Once the dry run has passed the next plan begins it.
    pub only_tried: bool,
    /// What is told once the patch is written.
    pub success_event: Option<Box<SetEvent>>,
}

/// A change of a Pod that is to follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryRunChange {
    /// Name of the revision that it leads to.
    pub revision: String,
    /// Labels.
    pub labels: LabelPatch,
    /// Annotations to set (`Some`) and to remove (`None`).
    pub annotations: BTreeMap<String, Option<String>>,
    /// Strategic merge patch of `spec` for `pods`.
    pub spec: Option<Value>,
    /// Strategic merge patch of `spec` for `pods/resize`.
    pub resize: Option<Value>,
}

/// An event about the CollaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetEvent {
    /// Whether something is wrong.
    pub warning: bool,
    /// One of contract 2.5.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl SetPlan {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        !self.add_finalizer
            && !self.remove_finalizer
            && !self.forget_command
            && self.revisions.is_empty()
            && self.pool.is_none()
            && self.pvcs.is_empty()
            && self.pods.is_empty()
            && self.status.is_none()
    }
}
