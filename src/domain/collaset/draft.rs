//! What is wanted so far. Each step adds to it; what comes out is one patch for each Pod at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::observed::{Pvc, Revision};
use super::plan::{OwnershipChange, PodChange, PodPatch, PvcChange, SetEvent, Shortfall};
use super::set_facts::SetFacts;
use super::set_operations::{LIFECYCLE_ID, SetOperation::ScaleIn};
use crate::api::keys::{self, Family};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Changes of Pods, claims and instance IDs that are wanted.
#[derive(Debug, Default)]
pub struct Draft {
    /// The set's own entries of the pool, by instance ID.
    pub ids: BTreeMap<i64, BTreeMap<String, String>>,
    /// IDs of Pods that enter the set.
    pub entering: BTreeSet<i64>,
    /// IDs whose claims come back to the set.
    pub returning: BTreeSet<i64>,
    /// IDs of Pods that leave the set.
    pub leaving: BTreeSet<i64>,
    /// IDs of Pods that are scaled in.
    pub surplus: BTreeSet<i64>,
    /// No ID below this one is free.
    pub lowest: i64,
    /// No ID below this one is free and without volumes.
    pub lowest_empty: i64,
    /// Claims.
    pub pvcs: Vec<PvcChange>,
    /// ControllerRevisions that a set which is deleted leaves behind.
    pub released: Vec<Arc<Revision>>,
    /// Events.
    pub events: Vec<SetEvent>,
    /// What a command of the rollout has done, told once the status notes the command.
    pub events_after_status: Vec<SetEvent>,
    /// Why Pods that are asked to be included, or excluded, are not: a reason of contract 2.5 and a sentence each.
    pub refused: Vec<(&'static str, String)>,
    /// Removes the annotation by which users command the rollout.
    pub forget_command: bool,
    /// What the set lacks, see [`super::plan::Plan::left`].
    pub shortfall: Shortfall,
    /// UIDs of Pods that are to be deleted through their lifecycle.
    deletion_requests: BTreeSet<String>,
    patches: BTreeMap<String, PodPatch>,
    deletions: BTreeMap<String, (Arc<Pod>, Option<Box<SetEvent>>)>,
    creations: BTreeMap<i64, serde_json::Value>,
    again: Option<u64>,
}

impl Draft {
    /// Changes labels of a Pod. An earlier change of the same label wins.
    pub fn patch_labels(&mut self, pod: &Arc<Pod>, labels: LabelPatch) {
        let patch = self.pod_patch(pod);
        for (key, value) in labels.0 {
            patch.labels.0.entry(key).or_insert(value);
        }
    }

    /// Sets or removes one label.
    pub fn patch_label(&mut self, pod: &Arc<Pod>, key: &str, value: Option<String>) {
        self.patch_labels(pod, LabelPatch([(key.to_owned(), value)].into()));
    }

    /// Whether a label of a Pod is to go.
    pub fn removes_label(&self, pod: &Pod, key: &str) -> bool {
        let patch = self.patches.get(&pod.metadata.uid);
        patch.is_some_and(|patch| matches!(patch.labels.0.get(key), Some(None)))
    }

    /// Has a Pod deleted through its lifecycle. Said once: a time that moves on would be a change without end. A plan says anew of each
    /// Pod that it wants away: of whom it does not, the word is taken back, see [`Draft::is_sent_away`].
    pub fn request_deletion(&mut self, pod: &Arc<Pod>, now_nanos: u64) {
        self.deletion_requests.insert(pod.metadata.uid.clone());
        if pod.label(keys::TO_DELETE).is_none() {
            self.patch_label(pod, keys::TO_DELETE, Some(now_nanos.to_string()));
            self.patch_annotation(pod, keys::SENT_AWAY, Some(now_nanos.to_string()));
        }
    }

    /// Takes the word back by which a Pod was told to go, if it may still stay.
    pub fn withdraw_deletion(&mut self, facts: &SetFacts, pod: &Arc<Pod>) {
        if facts.may_stay(pod) {
            self.patch_label(pod, keys::TO_DELETE, None);
            self.patch_annotation(pod, keys::SENT_AWAY, None);
        }
    }

    /// Whether the plan wants a Pod away.
    pub fn is_deletion_planned(&self, pod: &Pod) -> bool {
        self.deletion_requests.contains(&pod.metadata.uid)
    }

    /// Whether the plan takes a Pod away: through its lifecycle, or by a scale-in that begins.
    pub fn removes_pod(&self, pod: &Pod) -> bool {
        let patch = self.patches.get(&pod.metadata.uid);
        let begun =
            patch.and_then(|patch| patch.labels.0.get(&Family::OperationType.key(LIFECYCLE_ID)));
        let scaled_in =
            begun.is_some_and(|type_| type_.as_deref() == Some(ScaleIn.operation_type()));
        scaled_in || self.is_deletion_planned(pod)
    }

    /// Sets or removes one annotation.
    pub fn patch_annotation(&mut self, pod: &Arc<Pod>, key: &str, value: Option<String>) {
        self.pod_patch(pod)
            .annotations
            .insert(key.to_owned(), value);
    }

    /// Changes who controls a Pod.
    pub fn set_ownership(&mut self, pod: &Arc<Pod>, ownership: OwnershipChange) {
        self.pod_patch(pod).ownership = ownership;
    }

    /// The patch of a Pod.
    pub fn pod_patch(&mut self, pod: &Arc<Pod>) -> &mut PodPatch {
        self.patches
            .entry(pod.metadata.uid.clone())
            .or_insert_with(|| PodPatch {
                pod: Arc::clone(pod),
                ..PodPatch::default()
            })
    }

    /// Whether a Pod of an ID, or its claims, enter, leave or come back: no Pod is made for the ID before.
    pub fn is_id_moving(&self, id: i64) -> bool {
        let moving = [&self.entering, &self.returning, &self.leaving];
        moving.iter().any(|ids| ids.contains(&id))
    }

    /// Whether anything of a Pod is to be changed.
    pub fn changes_pod(&self, pod: &Pod) -> bool {
        self.patches
            .get(&pod.metadata.uid)
            .is_some_and(changes_anything)
    }

    /// Deletes a Pod.
    pub fn delete_pod(&mut self, pod: &Arc<Pod>) {
        self.deletions
            .insert(pod.metadata.uid.clone(), (Arc::clone(pod), None));
    }

    /// Deletes a Pod, and tells of it once that is done.
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

    /// Lets go of a claim.
    pub fn release_pvc(&mut self, claim: &Arc<Pvc>, labels: LabelPatch) {
        self.pvcs.push(PvcChange::release_pvc(claim, labels));
    }

    /// Changes labels of a claim, and who controls it.
    pub fn patch_pvc(&mut self, claim: &Arc<Pvc>, labels: LabelPatch, ownership: OwnershipChange) {
        self.pvcs.push(PvcChange::Patch {
            claim: Arc::clone(claim),
            labels,
            ownership,
        });
    }

    /// Plans again after so many nanoseconds at the latest.
    pub fn requeue_after(&mut self, nanos: u64) {
        self.again = Some(self.again.map_or(nanos, |known| known.min(nanos)));
    }

    /// Refuses what is asked of a Pod: the status says so for as long as it is, and an Event.
    pub fn report_refusal(&mut self, reason: &'static str, message: String) {
        self.refused.push((reason, message.clone()));
        self.announce_event(true, reason, message);
    }

    /// An event about the set.
    pub fn announce_event(&mut self, warning: bool, reason: &'static str, message: String) {
        self.events.push(SetEvent {
            warning,
            reason,
            message,
        });
    }

    /// An event about the set that is told once the patch of a Pod is written, the first of several. The next plan may say it in other
    /// words.
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

    /// The changes of Pods, and when to plan again. A Pod that is deleted is not patched. Patches that change
    /// nothing are left out.
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
            .map(|(pod, told)| PodChange::Delete(Arc::clone(pod), told.clone()))
            .chain(patches)
            .chain(creations)
            .collect();
        (changes, self.again)
    }
}

/// The patch without what is so already; `None` if nothing is left.
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

/// Whether a patch changes anything.
pub fn changes_anything(patch: &PodPatch) -> bool {
    let (mut labels, mut annotations) = (patch.labels.0.iter(), patch.annotations.iter());
    labels.any(|(key, value)| !has_label(&patch.pod, key, value))
        || annotations.any(|(key, value)| !has_annotation(&patch.pod, key, value))
        || patch.ownership != OwnershipChange::Keep
        || patch.spec.is_some()
        || patch.resize.is_some()
}

fn has_label(pod: &Pod, key: &str, value: &Option<String>) -> bool {
    pod.metadata.labels.get(key) == value.as_ref()
}

/// Of annotations a slim Pod keeps only what the project reads.
fn has_annotation(pod: &Pod, key: &str, value: &Option<String>) -> bool {
    let known = [
        keys::LAST_POD_STATUS,
        keys::MIN_READY_SECONDS,
        keys::RESIZING,
    ];
    known.contains(&key) && pod.metadata.annotations.get(key) == value.as_ref()
}
