//! What the controller remembers of a CollaSet between two runs. Everything may be lost: the state saves requests,
//! waiting time and duplicate objects, but it decides nothing.
//!
//! | File | Purpose |
//! |---|---|
//! | `writes` | remembers writes that were refused, and objects that must not be written for a while |
//! | `updates` | remembers how dry runs, changes and deletions of Pods ended |
//! | `api_refusals` | tells the planner what was refused |

mod api_refusals;
#[cfg(test)]
mod tests;
mod updates;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::backoff::FinishedPodBackoff;
use super::names::{NameSlot, PendingNames};
use super::pod_lookups::PodLookups;
use super::refusals::{BACKOFF_RANGE, RefusalBackoff};
use crate::api::keys;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::collaset::plan::{PausePoint, SetEvent};
use crate::domain::collaset::status::CanaryWatch;
use crate::domain::pod::Pod;
use updates::PassedDryRun;
pub use writes::HELD_BACKOFF;
use writes::WriteHold;

/// Minimum time between two runs for a set. Many Pod events cause one run.
pub const MIN_RECONCILE_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between two writes of the status.
const MIN_STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// What the controller remembers of one set.
#[derive(Debug, Default)]
pub struct ReconcileState {
    uid: String,
    locked: Mutex<LockedState>,
}

#[derive(Debug, Default)]
struct LockedState {
    last_run: Option<Instant>,
    consecutive_failures: u32,
    failure_pause: Option<FailurePause>,
    last_status_write: Option<Instant>,
    /// The largest resourceVersion of a Pod that this controller has written.
    written_version: u64,
    pending_names: PendingNames,
    /// UIDs of the PVCs for which no deletion that was sent earlier can still succeed.
    fenced_pvcs: BTreeSet<String>,
    finished_pod_backoff: FinishedPodBackoff,
    pod_lookups: PodLookups,
    canary_watch: CanaryWatch,
    refusals: RefusalBackoff,
    /// Pods and PVCs that must not be written for a while, by UID.
    write_holds: HashMap<String, WriteHold>,
    /// Resizes that the API server refused: the revision and the reason, by the UID of the Pod.
    refused_resizes: BTreeMap<String, (String, String)>,
    /// In-place changes that the API server refused: the revision, by the UID of the Pod.
    refused_in_place_changes: BTreeMap<String, String>,
    /// UIDs of the Pods whose deletion the API server refused.
    refused_deletions: BTreeSet<String>,
    /// The last dry run that passed, by the UID of the Pod.
    passed_dry_runs: HashMap<String, PassedDryRun>,
    revisions_accepted_in_place: BTreeSet<String>,
    /// Created Pods whose decorations admission changed, by UID, with the composition that was asked for.
    altered_pods: BTreeMap<String, String>,
    revisions_with_created_pods: BTreeSet<String>,
}

/// The pause after a failed run. A change of the spec ends the pause.
#[derive(Debug)]
struct FailurePause {
    until: Instant,
    /// The generation of the set whose run failed.
    generation: i64,
}

impl ReconcileState {
    /// Creates an empty state for the set with this UID.
    pub fn new(uid: &str) -> Self {
        ReconcileState {
            uid: uid.to_owned(),
            locked: Mutex::default(),
        }
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Begins a run. If it is too early for a run, returns the outcome with the remaining time.
    pub fn begin_reconcile(&self, now: Instant, generation: i64) -> Option<ReconcileOutcome> {
        let mut locked = self.locked.lock();
        let interval_end = locked.last_run.map(|run| run + MIN_RECONCILE_INTERVAL);
        let pause = locked.failure_pause.as_ref();
        let pause = pause.filter(|pause| pause.generation == generation);
        let earliest = interval_end.max(pause.map(|pause| pause.until));
        let Some(earliest) = earliest.filter(|earliest| *earliest > now) else {
            locked.last_run = Some(now);
            return None;
        };
        // The queue keeps one time for each set. If this state kept a second time, a run would be lost whenever the two
        // differ.
        Some(ReconcileOutcome::Early(earliest - now))
    }

    /// Records that a run failed. Returns the pause until the next run.
    pub fn record_failure(&self, now: Instant, generation: i64) -> Duration {
        let mut locked = self.locked.lock();
        let pause = BACKOFF_RANGE
            .1
            .min(BACKOFF_RANGE.0 * 2u32.pow(locked.consecutive_failures));
        locked.consecutive_failures = (locked.consecutive_failures + 1).min(12);
        locked.failure_pause = Some(FailurePause {
            until: now + pause,
            generation,
        });
        pause
    }

    pub fn record_success(&self) {
        let mut locked = self.locked.lock();
        locked.consecutive_failures = 0;
        locked.failure_pause = None;
    }

    /// The resourceVersion that the Pod cache must reach before the next plan.
    pub fn required_pod_version(&self) -> u64 {
        self.locked.lock().written_version
    }

    /// Records the resourceVersion of a Pod that was written.
    pub fn record_pod_write(&self, version: u64) {
        let mut locked = self.locked.lock();
        locked.written_version = locked.written_version.max(version);
    }

    /// Returns the name for an object to be created, see [`PendingNames::choose_name`].
    pub fn choose_name(&self, slot: &NameSlot, prefix: &str) -> String {
        let mut locked = self.locked.lock();
        locked
            .pending_names
            .choose_name(slot, prefix, rand::random())
    }

    /// Forgets the name of a slot. The next object of the slot gets another name.
    pub fn forget_name(&self, slot: &NameSlot) {
        self.locked.lock().pending_names.forget_name(slot);
    }

    /// Records a name that is given by a spec.
    pub fn record_given_name(&self, slot: &NameSlot, name: &str) {
        self.locked
            .lock()
            .pending_names
            .record_given_name(slot, name);
    }

    /// Whether no deletion of this PVC that was sent earlier can still succeed.
    pub fn is_pvc_fenced(&self, uid: &str) -> bool {
        self.locked.lock().fenced_pvcs.contains(uid)
    }

    /// Records that earlier deletions of this PVC can't succeed any more: the PVC is new, or has got a new
    /// resourceVersion.
    pub fn fence_pvc(&self, uid: &str) {
        self.locked.lock().fenced_pvcs.insert(uid.to_owned());
    }

    /// Records that a deletion of this PVC is sent.
    pub fn unfence_pvc(&self, uid: &str) {
        self.locked.lock().fenced_pvcs.remove(uid);
    }

    /// Forgets the fences of PVCs that no longer exist. `pvc_uids` are the UIDs of the existing PVCs.
    pub fn retain_fences<'a>(&self, pvc_uids: impl Iterator<Item = &'a str>) {
        let mut locked = self.locked.lock();
        if !locked.fenced_pvcs.is_empty() {
            let existing: BTreeSet<&str> = pvc_uids.collect();
            locked.fenced_pvcs.retain(|uid| existing.contains(&**uid));
        }
    }

    /// Records that the object of a slot differs from what was created, see [`PendingNames::mark_altered`].
    pub fn mark_altered(&self, slot: &NameSlot, uid: String) {
        self.locked.lock().pending_names.mark_altered(slot, uid);
    }

    /// UID of the object of a slot, if the object differs from what was created.
    pub fn altered_uid(&self, slot: &NameSlot) -> Option<String> {
        self.locked.lock().pending_names.altered_uid(slot)
    }

    /// Forgets the names of objects that the caches contain. If the creation of such an object counted as refused, its
    /// answer was lost, so the refusal is forgotten too.
    pub fn forget_observed_names(&self, is_cached: impl FnMut(&NameSlot, &str) -> bool) {
        let mut locked = self.locked.lock();
        for slot in locked.pending_names.forget_observed_names(is_cached) {
            locked.refusals.clear_refusal(&slot.refusal_key());
        }
    }

    /// Records finished Pods. Returns the time until which each stays as it is, by UID, see
    /// [`FinishedPodBackoff::record_finished_pods`].
    pub fn record_finished_pods<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        now_nanos: u64,
    ) -> BTreeMap<String, u64> {
        let id_of = |pod: &Pod| pod.label(keys::INSTANCE_ID)?.parse().ok();
        self.locked
            .lock()
            .finished_pod_backoff
            .record_finished_pods(pods, id_of, now_nanos)
    }

    /// Names of the Pods to read from the API server now, see [`PodLookups::names_to_look_up`].
    pub fn names_to_look_up(
        &self,
        unknown: &BTreeSet<String>,
        now: Instant,
        generation: i64,
    ) -> Vec<String> {
        self.locked
            .lock()
            .pod_lookups
            .names_to_look_up(unknown, now, generation)
    }

    /// Whether there were more names to look up than one run may read, see [`PodLookups::has_more_names`].
    pub fn has_more_lookups(&self) -> bool {
        self.locked.lock().pod_lookups.has_more_names()
    }

    /// Records answers of the API server, see [`PodLookups::record_lookup`]. Returns all Pods that are known to exist
    /// and to be not managed.
    pub fn record_lookups(
        &self,
        answers: Vec<(String, Option<Arc<Pod>>)>,
        now: Instant,
    ) -> Vec<Arc<Pod>> {
        let mut locked = self.locked.lock();
        for (name, unmanaged) in answers {
            locked.pod_lookups.record_lookup(name, unmanaged, now);
        }
        locked.pod_lookups.unmanaged_pods()
    }

    /// The Event about the canaries of a rollout pause, see [`CanaryWatch::observe_pause`].
    pub fn canary_event(&self, pause: Option<&PausePoint>) -> Option<SetEvent> {
        self.locked.lock().canary_watch.observe_pause(pause)
    }

    /// Records that admission changed the decorations of a created Pod. `composition` is the one that was asked for.
    pub fn record_altered_pod(&self, uid: &str, composition: &str) {
        let altered = (uid.to_owned(), composition.to_owned());
        self.locked.lock().altered_pods.extend([altered]);
    }

    /// Records that a Pod of a revision has been created.
    pub fn record_created_pod(&self, revision: &str) {
        let mut locked = self.locked.lock();
        locked
            .revisions_with_created_pods
            .insert(revision.to_owned());
    }

    /// Begins a write of the status. If it is too early for a write, returns the remaining time.
    pub fn begin_status_write(&self, now: Instant) -> Option<Duration> {
        let mut locked = self.locked.lock();
        let remaining = locked
            .last_status_write
            .map(|write| (write + MIN_STATUS_INTERVAL).saturating_duration_since(now));
        match remaining {
            Some(remaining) if !remaining.is_zero() => Some(remaining),
            _ => {
                locked.last_status_write = Some(now);
                None
            }
        }
    }
}
