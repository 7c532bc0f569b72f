//! How dry runs, changes and deletions of Pods ended. The results decide which Pods need a dry run before an update.

use tokio::time::Instant;

use super::super::refusals::RefusalKey;
use super::ReconcileState;

/// A dry run that passed. The update to the revision needs no other dry run until `valid_until`.
#[derive(Debug)]
pub(super) struct PassedDryRun {
    revision: String,
    pub(super) valid_until: Instant,
}

impl ReconcileState {
    /// Records that the resize of a Pod to a revision is refused, and why.
    pub fn record_refused_resize(&self, uid: &str, revision: &str, reason: &str) {
        let resize = (revision.to_owned(), reason.to_owned());
        let mut locked = self.locked.lock();
        locked.refused_resizes.insert(uid.to_owned(), resize);
    }

    /// Records that the in-place change of a Pod to a revision is refused.
    pub fn record_refused_change(&self, uid: &str, revision: &str) {
        let mut locked = self.locked.lock();
        locked
            .refused_in_place_changes
            .insert(uid.to_owned(), revision.to_owned());
    }

    /// Records that the deletion of a Pod is refused.
    pub fn record_refused_deletion(&self, uid: &str) {
        let mut locked = self.locked.lock();
        locked.refused_deletions.insert(uid.to_owned());
    }

    /// Records that a Pod has been deleted, or that a dry run of its deletion passed.
    pub fn clear_refused_deletion(&self, uid: &str) {
        self.locked.lock().refused_deletions.remove(uid);
    }

    /// Records that the dry run of a Pod's update to a revision passed, and how long the result is valid. An empty
    /// revision stands for the deletion of the Pod.
    pub fn record_passed_dry_run(&self, uid: &str, revision: &str, valid_until: Instant) {
        let passed = PassedDryRun {
            revision: revision.to_owned(),
            valid_until,
        };
        let mut locked = self.locked.lock();
        locked.passed_dry_runs.insert(uid.to_owned(), passed);
    }

    /// Whether a valid dry run has passed for the update of a Pod to a revision.
    pub fn has_passed_dry_run(&self, uid: &str, revision: &str, now: Instant) -> bool {
        let locked = self.locked.lock();
        let passed = locked.passed_dry_runs.get(uid);
        passed.is_some_and(|passed| passed.revision == revision && passed.valid_until > now)
    }

    /// Forgets the dry run of a Pod whose update has begun.
    pub fn forget_passed_dry_run(&self, uid: &str) {
        self.locked.lock().passed_dry_runs.remove(uid);
    }

    /// Whether the deletion of a Pod needs a dry run first, because deletions of Pods of this set were refused.
    pub fn needs_deletion_dry_run(&self) -> bool {
        let locked = self.locked.lock();
        !locked.refused_deletions.is_empty()
            || locked
                .refusals
                .last_refusal(&RefusalKey::LateDeletions)
                .is_some()
    }

    /// Forgets that Pods can be changed in place to a revision, because such a change was refused. Other Pods need a
    /// dry run again.
    pub fn distrust_revision(&self, revision: &str) {
        let mut locked = self.locked.lock();
        locked.revisions_accepted_in_place.remove(revision);
    }

    /// Records that a Pod has been changed in place to a revision, or that a dry run of the change passed.
    pub fn record_accepted_change(&self, uid: &str, revision: &str) {
        let mut locked = self.locked.lock();
        locked.refused_in_place_changes.remove(uid);
        locked
            .revisions_accepted_in_place
            .insert(revision.to_owned());
    }

    /// Whether the in-place change of a Pod to a revision needs a dry run first.
    pub fn needs_change_dry_run(&self, uid: &str, revision: &str) -> bool {
        let locked = self.locked.lock();
        let late_key = RefusalKey::LateChanges(revision.to_owned());
        locked.refused_in_place_changes.contains_key(uid)
            || !locked.revisions_accepted_in_place.contains(revision)
            || locked.refusals.last_refusal(&late_key).is_some()
    }
}
