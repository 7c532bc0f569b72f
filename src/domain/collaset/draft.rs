//! What is wanted so far. Each step adds to it; what comes out is one patch for each Pod at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::facts::Facts;
use super::lifecycle::{ID, Operation::ScaleIn};
use super::observed::{Claim, Revision};
use super::plan::{ClaimChange, Event, Left, Ownership, PodChange, PodPatch};
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
    pub claims: Vec<ClaimChange>,
    /// ControllerRevisions that a set which is deleted leaves behind.
    pub released: Vec<Arc<Revision>>,
    /// Events.
    pub events: Vec<Event>,
    /// What a command of the rollout has done, told once the status notes the command.
    pub news: Vec<Event>,
    /// Why Pods that are asked to be included, or excluded, are not: a reason of contract 2.5 and a sentence each.
    pub refused: Vec<(&'static str, String)>,
    /// Removes the annotation by which users command the rollout.
    pub forget_command: bool,
    /// What the set lacks, see [`super::plan::Plan::left`].
    pub left: Left,
    /// UIDs of Pods that are to be deleted through their lifecycle.
    sent: BTreeSet<String>,
    patches: BTreeMap<String, PodPatch>,
    deletions: BTreeMap<String, (Arc<Pod>, Option<Box<Event>>)>,
    creations: BTreeMap<i64, serde_json::Value>,
    again: Option<u64>,
}

impl Draft {
    /// Changes labels of a Pod. An earlier change of the same label wins.
    pub fn labels(&mut self, pod: &Arc<Pod>, labels: LabelPatch) {
        let patch = self.patch(pod);
        for (key, value) in labels.0 {
            patch.labels.0.entry(key).or_insert(value);
        }
    }

    /// Sets or removes one label.
    pub fn label(&mut self, pod: &Arc<Pod>, key: &str, value: Option<String>) {
        self.labels(pod, LabelPatch([(key.to_owned(), value)].into()));
    }

    /// Whether a label of a Pod is to go.
    pub fn removes_label(&self, pod: &Pod, key: &str) -> bool {
        let patch = self.patches.get(&pod.metadata.uid);
        patch.is_some_and(|patch| matches!(patch.labels.0.get(key), Some(None)))
    }

    /// Has a Pod deleted through its lifecycle. Said once: a time that moves on would be a change without end. A plan says anew of each
    /// Pod that it wants away: of whom it does not, the word is taken back, see [`Draft::is_sent_away`].
    pub fn send_away(&mut self, pod: &Arc<Pod>, now_nanos: u64) {
        self.sent.insert(pod.metadata.uid.clone());
        if pod.label(keys::TO_DELETE).is_none() {
            self.label(pod, keys::TO_DELETE, Some(now_nanos.to_string()));
            self.annotation(pod, keys::SENT_AWAY, Some(now_nanos.to_string()));
        }
    }

    /// Takes the word back by which a Pod was told to go, if it may still stay.
    pub fn call_back(&mut self, facts: &Facts, pod: &Arc<Pod>) {
        if facts.may_stay(pod) {
            self.label(pod, keys::TO_DELETE, None);
            self.annotation(pod, keys::SENT_AWAY, None);
        }
    }

    /// Whether the plan wants a Pod away.
    pub fn is_sent_away(&self, pod: &Pod) -> bool {
        self.sent.contains(&pod.metadata.uid)
    }

    /// Whether the plan takes a Pod away: through its lifecycle, or by a scale-in that begins.
    pub fn takes_away(&self, pod: &Pod) -> bool {
        let patch = self.patches.get(&pod.metadata.uid);
        let begun = patch.and_then(|patch| patch.labels.0.get(&Family::OperationType.key(ID)));
        let scaled_in = begun.is_some_and(|type_| type_.as_deref() == Some(ScaleIn.type_()));
        scaled_in || self.is_sent_away(pod)
    }

    /// Sets or removes one annotation.
    pub fn annotation(&mut self, pod: &Arc<Pod>, key: &str, value: Option<String>) {
        self.patch(pod).annotations.insert(key.to_owned(), value);
    }

    /// Changes who controls a Pod.
    pub fn own(&mut self, pod: &Arc<Pod>, ownership: Ownership) {
        self.patch(pod).ownership = ownership;
    }

    /// The patch of a Pod.
    pub fn patch(&mut self, pod: &Arc<Pod>) -> &mut PodPatch {
        self.patches
            .entry(pod.metadata.uid.clone())
            .or_insert_with(|| PodPatch {
                pod: Arc::clone(pod),
                ..PodPatch::default()
            })
    }

    /// Whether a Pod of an ID, or its claims, enter, leave or come back: no Pod is made for the ID before.
    pub fn is_moving(&self, id: i64) -> bool {
        let moving = [&self.entering, &self.returning, &self.leaving];
        moving.iter().any(|ids| ids.contains(&id))
    }

    /// Whether anything of a Pod is to be changed.
    pub fn changes(&self, pod: &Pod) -> bool {
        self.patches.get(&pod.metadata.uid).is_some_and(changes)
    }

    /// Deletes a Pod.
    pub fn delete(&mut self, pod: &Arc<Pod>) {
        self.deletions
            .insert(pod.metadata.uid.clone(), (Arc::clone(pod), None));
    }

    /// Deletes a Pod, and tells of it once that is done.
    pub fn delete_and_tell(&mut self, pod: &Arc<Pod>, reason: &'static str, message: String) {
        let event = Event {
            warning: false,
            reason,
            message,
        };
        let deletion = (Arc::clone(pod), Some(Box::new(event)));
        self.deletions.insert(pod.metadata.uid.clone(), deletion);
    }

    /// Creates the Pod of an instance ID.
    pub fn create(&mut self, id: i64, body: serde_json::Value) {
        self.creations.insert(id, body);
    }

    /// Lets go of a claim.
    pub fn release_claim(&mut self, claim: &Arc<Claim>, labels: LabelPatch) {
        self.claims.push(ClaimChange::release(claim, labels));
    }

    /// Changes labels of a claim, and who controls it.
    pub fn claim(&mut self, claim: &Arc<Claim>, labels: LabelPatch, ownership: Ownership) {
        self.claims.push(ClaimChange::Patch {
            claim: Arc::clone(claim),
            labels,
            ownership,
        });
    }

    /// Plans again after so many nanoseconds at the latest.
    pub fn again(&mut self, nanos: u64) {
        self.again = Some(self.again.map_or(nanos, |known| known.min(nanos)));
    }

    /// Refuses what is asked of a Pod: the status says so for as long as it is, and an Event.
    pub fn refuse(&mut self, reason: &'static str, message: String) {
        self.refused.push((reason, message.clone()));
        self.event(true, reason, message);
    }

    /// An event about the set.
    pub fn event(&mut self, warning: bool, reason: &'static str, message: String) {
        self.events.push(Event {
            warning,
            reason,
            message,
        });
    }

    /// An event about the set that is told once the patch of a Pod is written, the first of several. The next plan may say it in other
    /// words.
    pub fn event_once_written(&mut self, pod: &Arc<Pod>, reason: &'static str, message: String) {
        let event = Event {
            warning: false,
            reason,
            message,
        };
        self.patch(pod).told.get_or_insert_with(|| Box::new(event));
    }

    /// The changes of Pods, and when to plan again. A Pod that is deleted is not patched. Patches that change
    /// nothing are left out.
    pub fn into_pods(self) -> (Vec<PodChange>, Option<u64>) {
        let deletions = self.deletions;
        let patches = self
            .patches
            .into_values()
            .filter(|patch| !deletions.contains_key(&patch.pod.metadata.uid))
            .filter_map(effective)
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
fn effective(mut patch: PodPatch) -> Option<PodPatch> {
    let pod = &patch.pod;
    patch
        .labels
        .0
        .retain(|key, value| !has_label(pod, key, value));
    patch
        .annotations
        .retain(|key, value| !has_annotation(pod, key, value));
    changes(&patch).then_some(patch)
}

/// Whether a patch changes anything.
pub fn changes(patch: &PodPatch) -> bool {
    let (mut labels, mut annotations) = (patch.labels.0.iter(), patch.annotations.iter());
    labels.any(|(key, value)| !has_label(&patch.pod, key, value))
        || annotations.any(|(key, value)| !has_annotation(&patch.pod, key, value))
        || patch.ownership != Ownership::Keep
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
