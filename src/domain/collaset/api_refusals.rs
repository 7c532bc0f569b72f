//! The writes that the API server refused recently. Plans read them and do not depend on a write that will be refused
//! again.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::pod::Pod;

/// Recent refusals. They may be forgotten at any time: the controller then tries the write again and is refused again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRefusals {
    /// Refused resizes, by UID of the Pod: the target revision and the API server's message.
    pub resizes: BTreeMap<String, (String, String)>,
    /// Pods whose decorations admission changed when they were created, by UID of the Pod: the composition that was asked
    /// for.
    pub altered: BTreeMap<String, String>,
    /// Refused in-place changes, by UID of the Pod: the target revision. The controller may try them again by a dry
    /// run. Meanwhile the Pods serve.
    pub changes: BTreeMap<String, String>,
    /// Revisions to which at least one Pod was changed in place, or could be by a dry run.
    pub accepted: BTreeSet<String>,
    /// Revisions to which a Pod could not be changed although its dry run had passed, and to which no Pod has been
    /// changed since.
    pub late: BTreeSet<String>,
    /// Instance IDs for which no Pod or PVC could be created, with the API server's message.
    pub creations: BTreeMap<i64, String>,
    /// UIDs of Pods that could not be deleted. A dry run may find that they can be deleted now.
    pub deletions: BTreeSet<String>,
    /// Whether the API server refused to delete a Pod that was off traffic for an update, and has accepted no deletion
    /// since.
    pub late_deletions: bool,
    /// Why Pods can't be deleted although their rules have allowed it, by UID. These Pods are off traffic.
    pub undeleted: BTreeMap<String, String>,
    /// Why the lifecycle of Pods can't make its next step, by UID.
    pub unstepped: BTreeMap<String, String>,
    /// Whether the pool of instance IDs can't be written.
    pub pool: bool,
    /// Why the finalizer of a set that is being deleted can't be removed.
    pub finalizer: Option<String>,
    /// UIDs of Pods that could not be changed, including those whose change admission denied.
    pub pods: BTreeSet<String>,
    /// The message of admission for Pods whose change or deletion it denied recently, by UID.
    pub held: BTreeMap<String, String>,
    /// Names of PVCs that could not be changed.
    pub pvcs: BTreeSet<String>,
    /// Why the revision of the present template can't be written; `None` if no refusal is known.
    pub revision: Option<String>,
    /// Revisions from which at least one Pod was created.
    pub proven: BTreeSet<String>,
}

impl ApiRefusals {
    /// Why a Pod can't be resized towards this revision.
    pub fn resize_refusal(&self, pod: &Pod, revision: &str) -> Option<&str> {
        let (to, reason) = self.resizes.get(&pod.metadata.uid)?;
        (to == revision).then_some(reason)
    }

    /// Whether the in-place change of the Pod to this revision was refused.
    pub fn refuses_change(&self, pod: &Pod, revision: &str) -> bool {
        let change = self.changes.get(&pod.metadata.uid);
        change.is_some_and(|to| to == revision)
    }

    /// Whether it is unknown if Pods can be changed in place to this revision: at least one change was refused and none
    /// was accepted since.
    pub fn is_change_in_doubt(&self, revision: &str) -> bool {
        let mut changes = self.changes.values();
        !self.accepted.contains(revision) && changes.any(|to| to == revision)
    }

    /// Whether a dry run must come before the in-place change of the Pod to this revision.
    pub fn needs_dry_run(&self, pod: &Pod, revision: &str) -> bool {
        !self.accepted.contains(revision)
            || self.late.contains(revision)
            || self.refuses_change(pod, revision)
    }
}
