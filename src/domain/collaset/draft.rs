//! Collects the changes that the planning steps ask for, and merges them into at most one patch for each Pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::observed::{Pvc, Revision};
use super::plan::{OwnershipChange, PodChange, PodPatch, PvcChange, SetEvent, Shortfall};
use super::set_facts::SetFacts;
use super::set_operations::{LIFECYCLE_ID, SetOperation::ScaleIn};
use crate::api::keys::{self, Family};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Wanted changes of Pods, PVCs and instance IDs.
#[derive(Debug, Default)]
pub struct Draft {
    /// The set's own entries of the pool, by instance ID.
    pub ids: BTreeMap<i64, BTreeMap<String, String>>,
    /// IDs of Pods that enter the set.
    pub entering: BTreeSet<i64>,
    /// IDs whose PVCs return to the set.
    pub returning: BTreeSet<i64>,
    /// IDs of Pods that leave the set.
    pub leaving: BTreeSet<i64>,
    /// IDs of instances that are scaled in.
    pub surplus: BTreeSet<i64>,
    /// Lower bound for the search of a free ID: no lower ID is free.
    pub lowest: i64,
    /// Lower bound for the search of a free ID without volumes: every lower ID is taken or has volumes.
    pub lowest_empty: i64,
    /// Wanted changes of PVCs.
    pub pvcs: Vec<PvcChange>,
    /// ControllerRevisions that a set releases because it is deleted without its Pods.
    pub released: Vec<Arc<Revision>>,
    pub events: Vec<SetEvent>,
    /// Events about commands to the rollout, sent once the status records the command.
    pub events_after_status: Vec<SetEvent>,
    /// Why Pods can't be included or excluded as asked: a reason of contract 2.5, and a sentence.
    pub refused: Vec<(&'static str, String)>,
    /// Whether to remove the annotation by which users command the rollout.
    pub forget_command: bool,
    /// What the set lacks, see [`super::plan::SetPlan::shortfall`].
    pub shortfall: Shortfall,
    /// UIDs of Pods that this plan wants deleted through their lifecycle.
    deletion_requests: BTreeSet<String>,
    patches: BTreeMap<String, PodPatch>,
    deletions: BTreeMap<String, (Arc<Pod>, Option<Box<SetEvent>>)>,
    creations: BTreeMap<i64, serde_json::Value>,
    again: Option<u64>,
}

impl Draft {
    /// Changes labels of a Pod. If an earlier step has changed the same label, the earlier change wins.
    pub fn patch_labels(&mut self, pod: &Arc<Pod>, labels: LabelPatch) {
        let patch = self.pod_patch(pod);
        for (key, value) in labels.0 {
            patch.labels.0.entry(key).or_insert(value);
        }
    }

    /// Sets or removes one label of a Pod.
    pub fn patch_label(&mut self, pod: &Arc<Pod>, key: &str, value: Option<String>) {
        self.patch_labels(pod, LabelPatch([(key.to_owned(), value)].into()));
    }

    /// Whether the draft removes this label of the Pod.
    pub fn removes_label(&self, pod: &Pod, key: &str) -> bool {
        let patch = self.patches.get(&pod.metadata.uid);
        patch.is_some_and(|patch| matches!(patch.labels.0.get(key), Some(None)))
    }

    /// Asks for the deletion of a Pod through its lifecycle. The label is set only once: a timestamp that moves would
    /// cause a patch on every reconcile. Each plan must call this function again for each Pod that it wants deleted;
    /// otherwise the request is withdrawn, see [`Draft::is_deletion_planned`].
    pub fn request_deletion(&mut self, pod: &Arc<Pod>, now_nanos: u64) {
        self.deletion_requests.insert(pod.metadata.uid.clone());
        if pod.label(keys::TO_DELETE).is_none() {
            self.patch_label(pod, keys::TO_DELETE, Some(now_nanos.to_string()));
            self.patch_annotation(pod, keys::SENT_AWAY, Some(now_nanos.to_string()));
        }
    }

    /// Withdraws the request to delete a Pod, if the Pod may still stay.
    pub fn withdraw_deletion(&mut self, facts: &SetFacts, pod: &Arc<Pod>) {
        if facts.may_stay(pod) {
            self.patch_label(pod, keys::TO_DELETE, None);
            self.patch_annotation(pod, keys::SENT_AWAY, None);
        }
    }

    /// Whether a step of this plan wants the Pod deleted through its lifecycle.
    pub fn is_deletion_planned(&self, pod: &Pod) -> bool {
        self.deletion_requests.contains(&pod.metadata.uid)
    }

    /// Whether the plan removes a Pod: through its lifecycle, or by a scale-in that begins.
    pub fn removes_pod(&self, pod: &Pod) -> bool {
        let patch = self.patches.get(&pod.metadata.uid);
        let operation_type =
            patch.and_then(|patch| patch.labels.0.get(&Family::OperationType.key(LIFECYCLE_ID)));
        let scaled_in =
            operation_type.is_some_and(|type_| type_.as_deref() == Some(ScaleIn.operation_type()));
        scaled_in || self.is_deletion_planned(pod)
    }

    /// Sets or removes one annotation of a Pod.
    pub fn patch_annotation(&mut self, pod: &Arc<Pod>, key: &str, value: Option<String>) {
        self.pod_patch(pod)
            .annotations
            .insert(key.to_owned(), value);
    }

    /// Changes the controller of a Pod.
    pub fn set_ownership(&mut self, pod: &Arc<Pod>, ownership: OwnershipChange) {
        self.pod_patch(pod).ownership = ownership;
    }

    /// The patch of a Pod, empty if no step has changed the Pod yet.
    pub fn pod_patch(&mut self, pod: &Arc<Pod>) -> &mut PodPatch {
        self.patches
            .entry(pod.metadata.uid.clone())
            .or_insert_with(|| PodPatch {
                pod: Arc::clone(pod),
                ..PodPatch::default()
            })
    }

    /// The patch of a Pod, if a step has changed the Pod.
    pub fn find_patch(&self, pod: &Pod) -> Option<&PodPatch> {
        self.patches.get(&pod.metadata.uid)
    }

    /// Whether a Pod of this ID, or its PVCs, enter, leave or return. Until they have, no Pod is created for the ID.
    pub fn is_id_moving(&self, id: i64) -> bool {
        let moving = [&self.entering, &self.returning, &self.leaving];
        moving.iter().any(|ids| ids.contains(&id))
    }

    /// Whether the draft changes anything in a Pod.
    pub fn changes_pod(&self, pod: &Pod) -> bool {
        self.patches
            .get(&pod.metadata.uid)
            .is_some_and(changes_anything)
    }

    /// Deletes a Pod without an Event.
    pub fn delete_pod(&mut self, pod: &Arc<Pod>) {
        self.deletions
            .insert(pod.metadata.uid.clone(), (Arc::clone(pod), None));
    }

    /// Deletes a Pod, and sends an Event once the API server has accepted the deletion.
    pub fn delete_and_announce(&mut self, pod: &Arc<Pod>, reason: &'static str, message: String) {
        let event = SetEvent {
            warning: false,
            reason,
            message,
        };
        let deletion = (Arc::clone(pod), Some(Box::new(event)));
        self.deletions.insert(pod.metadata.uid.clone(), deletion);
    }

    /// Creates the Pod of an instance ID.
    pub fn create_pod(&mut self, id: i64, body: serde_json::Value) {
        self.creations.insert(id, body);
    }

    /// Releases a PVC and changes its labels.
    pub fn release_pvc(&mut self, pvc: &Arc<Pvc>, labels: LabelPatch) {
        self.pvcs.push(PvcChange::release_pvc(pvc, labels));
    }

    /// Changes labels of a PVC and its controller.
    pub fn patch_pvc(&mut self, pvc: &Arc<Pvc>, labels: LabelPatch, ownership: OwnershipChange) {
        self.pvcs.push(PvcChange::Patch {
            pvc: Arc::clone(pvc),
            labels,
            ownership,
        });
    }

    /// Requests the next plan after this many nanoseconds at the latest.
    pub fn requeue_after(&mut self, nanos: u64) {
        self.again = Some(self.again.map_or(nanos, |earlier| earlier.min(nanos)));
    }

    /// Reports that a request about a Pod can't be fulfilled: by an Event, and in the status for as long as the request
    /// stands.
    pub fn report_refusal(&mut self, reason: &'static str, message: String) {
        self.refused.push((reason, message.clone()));
        self.announce_event(true, reason, message);
    }

    /// Adds an Event about the set.
    pub fn announce_event(&mut self, warning: bool, reason: &'static str, message: String) {
        self.events.push(SetEvent {
            warning,
            reason,
            message,
        });
    }

    /// Adds an Event about the set that is sent once the patch of a Pod is stored. If several steps add one for the
    /// same Pod, the first is sent, because the next plan may word the Event differently.
    pub fn announce_once_written(&mut self, pod: &Arc<Pod>, reason: &'static str, message: String) {
        let event = SetEvent {
            warning: false,
            reason,
            message,
        };
        self.pod_patch(pod)
            .success_event
            .get_or_insert_with(|| Box::new(event));
    }

    /// Returns the changes of Pods, and the nanoseconds until the next plan. A Pod that is deleted is not patched, and
    /// a patch without an effect is left out.
    pub fn into_pod_changes(self) -> (Vec<PodChange>, Option<u64>) {
        let deletions = self.deletions;
        let patches = self
            .patches
            .into_values()
            .filter(|patch| !deletions.contains_key(&patch.pod.metadata.uid))
            .filter_map(effective_patch)
            .map(PodChange::Patch)
            .collect::<Vec<_>>();
        let creations = self
            .creations
            .into_iter()
            .map(|(id, body)| PodChange::Create { id, body });
        let changes = deletions
            .values()
            .map(|(pod, event)| PodChange::Delete(Arc::clone(pod), event.clone()))
            .chain(patches)
            .chain(creations)
            .collect();
        (changes, self.again)
    }
}

/// Removes from a patch the values that the Pod already has; `None` if the patch then has no effect.
fn effective_patch(mut patch: PodPatch) -> Option<PodPatch> {
    let pod = &patch.pod;
    patch
        .labels
        .0
        .retain(|key, value| !has_label(pod, key, value));
    patch
        .annotations
        .retain(|key, value| !has_annotation(pod, key, value));
    changes_anything(&patch).then_some(patch)
}

/// Whether a patch changes anything in its Pod.
pub fn changes_anything(patch: &PodPatch) -> bool {
    let (mut labels, mut annotations) = (patch.labels.0.iter(), patch.annotations.iter());
    labels.any(|(key, value)| !has_label(&patch.pod, key, value))
        || annotations.any(|(key, value)| !has_annotation(&patch.pod, key, value))
        || patch.ownership != OwnershipChange::Keep
        || !patch.decoration_owners.is_empty()
        || patch.spec.is_some()
        || patch.resize.is_some()
}

fn has_label(pod: &Pod, key: &str, value: &Option<String>) -> bool {
    pod.metadata.labels.get(key) == value.as_ref()
}

/// A slim Pod contains only some annotations. For any other annotation this function can't know the value, and answers
/// false.
fn has_annotation(pod: &Pod, key: &str, value: &Option<String>) -> bool {
    let stored_annotations = [
        keys::LAST_POD_STATUS,
        keys::MIN_READY_SECONDS,
        keys::RESIZING,
    ];
    stored_annotations.contains(&key) && pod.metadata.annotations.get(key) == value.as_ref()
}
