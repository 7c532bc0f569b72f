//! What the API server has refused lately, as facts of a plan: what will be refused again is not built upon.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::pod::Pod;

/// Refusals that the next plan goes by. All of it may be forgotten: what is tried again is refused again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRefusals {
    /// Resizes of Pods, by UID: the revision that each was to lead to, and the API server's words.
    pub resizes: BTreeMap<String, (String, String)>,
    /// Changes in place of Pods, by UID: the revision that each was to lead to. They may be tried again by a dry run, and the Pods serve
    /// meanwhile.
    pub changes: BTreeMap<String, String>,
    /// Revisions to which a Pod has been changed in place, or could have been by a dry run.
    pub accepted: BTreeSet<String>,
    /// Revisions to which a Pod could not be changed although a dry run had passed, and none could since.
    pub late: BTreeSet<String>,
    /// Instance IDs for which no Pod or claim could be created, with the API server's words.
    pub creations: BTreeMap<i64, String>,
    /// UIDs of Pods that could not be deleted. A dry run may tell that they can be by now.
    pub deletions: BTreeSet<String>,
    /// Whether a Pod that was off traffic for an update could not be deleted, and none could since.
    pub late_deletions: bool,
    /// Why Pods can't be deleted that were told to go and that the rules have let go, by UID: they are off traffic.
    pub undeleted: BTreeMap<String, String>,
    /// Why the lifecycle of Pods can't go on, by UID.
    pub unstepped: BTreeMap<String, String>,
    /// Whether the pool of instance IDs can't be written.
    pub pool: bool,
    /// Why the finalizer of a set that goes can't be removed.
    pub finalizer: Option<String>,
    /// Pods that could not be changed, or whose change admission held, by UID.
    pub pods: BTreeSet<String>,
    /// What admission says of Pods whose change or deletion it has held lately, by UID.
    pub held: BTreeMap<String, String>,
    /// Claims that could not be changed, by name.
    pub pvcs: BTreeSet<String>,
    /// Why the revision of the present template can't be written; `None` when that is not known to be so.
    pub revision: Option<String>,
    /// Revisions of which a Pod has been created.
    pub proven: BTreeSet<String>,
}

impl ApiRefusals {
    /// Why a Pod can't be resized on its way to a revision.
    pub fn resize_refusal(&self, pod: &Pod, revision: &str) -> Option<&str> {
        let (to, why) = self.resizes.get(&pod.metadata.uid)?;
        (to == revision).then_some(why)
    }

    /// Whether a Pod could not be changed in place to a revision.
    pub fn refuses_change(&self, pod: &Pod, revision: &str) -> bool {
        let change = self.changes.get(&pod.metadata.uid);
        change.is_some_and(|to| to == revision)
    }

    /// Whether it is in doubt if Pods can be changed in place to a revision: some could not, and none could since.
    pub fn is_change_in_doubt(&self, revision: &str) -> bool {
        let mut changes = self.changes.values();
        !self.accepted.contains(revision) && changes.any(|to| to == revision)
    }

    /// Whether it must be tried first if a Pod can be changed in place to a revision.
    pub fn needs_dry_run(&self, pod: &Pod, revision: &str) -> bool {
        !self.accepted.contains(revision)
            || self.late.contains(revision)
            || self.refuses_change(pod, revision)
    }
}
