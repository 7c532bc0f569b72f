//! The refusals that the planner takes into account.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::super::refusals::{RefusalBackoff, RefusalKey};
use super::{LockedState, ReconcileState};
use crate::domain::collaset::api_refusals::ApiRefusals;
use crate::domain::collaset::composition::split_name;
use crate::domain::pod::Pod;

/// If more revision names than this are remembered, the names of deleted revisions are forgotten.
const MAX_REMEMBERED_REVISIONS: usize = 20;
/// For this time after [`HELD_BACKOFF`](super::HELD_BACKOFF), a plan does not expect that a write of the Pod succeeds.
const RECENTLY_HELD: Duration = Duration::from_secs(5);

impl ReconcileState {
    /// The refusals that the next plan takes into account. `pods` and `revisions` are the existing Pods and revisions;
    /// records about others are forgotten.
    pub fn plan_refusals<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        revisions: impl Iterator<Item = &'a str>,
        now: Instant,
        generation: i64,
    ) -> ApiRefusals {
        let mut locked = self.locked.lock();
        locked.forget_expired(now);
        locked.forget_deleted_pods(pods);
        locked.forget_deleted_revisions(revisions);
        locked.to_api_refusals(now, generation)
    }
}

impl LockedState {
    fn forget_expired(&mut self, now: Instant) {
        self.refusals.remove_expired(now);
        self.write_holds
            .retain(|_, hold| hold.until + RECENTLY_HELD > now);
        self.passed_dry_runs
            .retain(|_, passed| passed.valid_until > now);
    }

    fn forget_deleted_pods<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>) {
        if self.refused_resizes.is_empty()
            && self.altered_pods.is_empty()
            && self.refused_in_place_changes.is_empty()
            && self.refused_deletions.is_empty()
        {
            return;
        }
        let existing: BTreeSet<&str> = pods.map(|pod| &*pod.metadata.uid).collect();
        let exists = |uid: &str| existing.contains(uid);
        self.refused_resizes.retain(|uid, _| exists(uid));
        self.altered_pods.retain(|uid, _| exists(uid));
        self.refused_in_place_changes.retain(|uid, _| exists(uid));
        self.refused_deletions.retain(|uid| exists(uid));
    }

    fn forget_deleted_revisions<'a>(&mut self, revisions: impl Iterator<Item = &'a str>) {
        let accepted = self.revisions_accepted_in_place.len();
        if self.revisions_with_created_pods.len().max(accepted) <= MAX_REMEMBERED_REVISIONS {
            return;
        }
        let existing: BTreeSet<&str> = revisions.collect();
        // The names of compositions begin with the name of a revision.
        let exists = |name: &String| existing.contains(split_name(name).0);
        self.revisions_with_created_pods.retain(exists);
        self.revisions_accepted_in_place.retain(exists);
    }

    fn to_api_refusals(&self, now: Instant, generation: i64) -> ApiRefusals {
        let refusals = &self.refusals;
        let revision = refusals.active_refusal(&RefusalKey::Revision, now, generation);
        let finalizer = refusals.last_refusal(&RefusalKey::Finalizer);
        let is_refused = |key| refusals.last_refusal(&key).is_some();
        let held = self.write_holds.keys().map(String::as_str);
        let denials = self.write_holds.iter();
        let denials = denials.filter_map(|(uid, hold)| Some((uid.clone(), hold.denial.clone()?)));
        let late = refusals.late_refused_revisions();
        ApiRefusals {
            creations: creation_refusals(refusals),
            pods: refusals
                .refused_pods()
                .chain(held)
                .map(str::to_owned)
                .collect(),
            held: denials.collect(),
            pvcs: refusals.refused_pvcs().map(str::to_owned).collect(),
            altered: self.altered_pods.clone(),
            resizes: self.refused_resizes.clone(),
            changes: self.refused_in_place_changes.clone(),
            deletions: self.refused_deletions.clone(),
            late_deletions: is_refused(RefusalKey::LateDeletions),
            undeleted: BTreeMap::new(), // the other controllers add these facts
            unstepped: BTreeMap::new(),
            late: late.map(str::to_owned).collect(),
            pool: is_refused(RefusalKey::Pool),
            finalizer: finalizer.map(|(_, reason)| reason.to_owned()),
            accepted: self.revisions_accepted_in_place.clone(),
            revision: revision.map(|(_, message)| message),
            proven: self.revisions_with_created_pods.clone(),
        }
    }
}

/// The reason why the creation of a Pod or a PVC was refused, by instance ID. If several refusals concern one instance
/// ID, this function always chooses the same reason, so that the status does not change.
fn creation_refusals(refusals: &RefusalBackoff) -> BTreeMap<i64, String> {
    let mut creations = BTreeMap::<i64, String>::new();
    for (id, reason) in refusals.refused_creations() {
        let known = creations.entry(id).or_insert_with(|| reason.to_owned());
        if reason < known.as_str() {
            reason.clone_into(known);
        }
    }
    creations
}
