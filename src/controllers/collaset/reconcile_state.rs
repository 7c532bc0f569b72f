//! What the controller remembers of a CollaSet between two runs. Everything may be lost: it saves requests, waiting
//! time and duplicate objects, but it decides nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::backoff::FinishedPodBackoff;
use super::names::{NameSlot, PendingNames};
use super::pod_lookups::PodLookups;
use super::refusals::{
    BACKOFF_RANGE, KnownRefusal, MAX_UNTRIED_BACKOFF, RefusalBackoff, RefusalKey,
};
use crate::api::keys;
use crate::api::size_limits::truncate_text;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::collaset::api_refusals::ApiRefusals;
use crate::domain::collaset::plan::{PausePoint, SetEvent};
use crate::domain::collaset::status::CanaryWatch;
use crate::domain::pod::Pod;

/// Minimum time between two runs for a set. Many Pod events cause one run.
pub const MIN_RECONCILE_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between two writes of the status.
const MIN_STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// If more revision names than this are remembered, the names of deleted revisions are forgotten.
const MAX_PROVEN_REVISIONS: usize = 20;
/// If admission denied a write of a Pod, the controller does not write the Pod again for this time.
pub const HELD_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum length, in characters, of the stored message of an admission denial.
const MAX_MESSAGE_CHARS: usize = 300;
/// For this time after [`HELD_BACKOFF`], a plan does not expect that a write of the Pod succeeds.
const RECENTLY_HELD: Duration = Duration::from_secs(5);

/// What the controller remembers of one set.
#[derive(Debug, Default)]
pub struct ReconcileState {
    uid: String,
    inner: Mutex<LockedState>,
}

#[derive(Debug, Default)]
struct LockedState {
    /// The largest resourceVersion of a Pod that this controller has written.
    written_version: u64,
    names: PendingNames,
    /// Pods and PVCs by UID: the time until which they are not written, and the message of the denial if admission
    /// denied a write.
    held: HashMap<String, (Instant, Option<String>)>,
    status: Option<Instant>,
    last_run: Option<Instant>,
    failures: u32,
    /// The time of the next run, for this generation. A new generation ends the pause.
    pause: Option<(Instant, i64)>,
    refusals: RefusalBackoff,
    backoff: FinishedPodBackoff,
    /// The answers of the API server about Pods that are to be included and that no cache contains.
    pod_lookups: PodLookups,
    /// Pods of the updated revision that were available at a pause of the rollout.
    canaries: CanaryWatch,
    /// Refused resizes, by the UID of the Pod: the revision and the reason.
    resizes: BTreeMap<String, (String, String)>,
    /// Refused in-place changes, by the UID of the Pod: the revision.
    changes: BTreeMap<String, String>,
    /// UIDs of the Pods whose deletion is refused.
    deletions: BTreeSet<String>,
    /// Pods by UID whose dry run has passed: the revision, and the time until which no other dry run is needed.
    passed_dry_runs: HashMap<String, (String, Instant)>,
    /// Revisions to which Pods can be changed in place.
    accepted: BTreeSet<String>,
    /// Revisions for which a Pod has been created.
    proven: BTreeSet<String>,
    /// UIDs of the PVCs for which no deletion that was sent earlier can still succeed.
    fenced: BTreeSet<String>,
}

impl ReconcileState {
    /// Creates an empty state for the set with this UID.
    pub fn new(uid: &str) -> Self {
        ReconcileState {
            uid: uid.to_owned(),
            inner: Mutex::default(),
        }
    }

    /// UID of the set.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Begins a run. If it is too early for a run, returns the outcome with the remaining time.
    pub fn begin_reconcile(&self, now: Instant, generation: i64) -> Option<ReconcileOutcome> {
        let mut inner = self.inner.lock();
        let spaced = inner.last_run.map(|at| at + MIN_RECONCILE_INTERVAL);
        let paused = inner.pause.filter(|(_, of)| *of == generation);
        let earliest = spaced.max(paused.map(|(at, _)| at));
        let Some(at) = earliest.filter(|at| *at > now) else {
            inner.last_run = Some(now);
            return None;
        };
        // The queue keeps one time for each set. If this state kept a second time, a run would be lost whenever the two
        // differ.
        Some(ReconcileOutcome::Early(at - now))
    }

    /// Records that a run failed. Returns the pause until the next run.
    pub fn record_failure(&self, now: Instant, generation: i64) -> Duration {
        let mut inner = self.inner.lock();
        let pause = BACKOFF_RANGE
            .1
            .min(BACKOFF_RANGE.0 * 2u32.pow(inner.failures));
        inner.failures = (inner.failures + 1).min(12);
        inner.pause = Some((now + pause, generation));
        pause
    }

    /// Records that a run succeeded.
    pub fn record_success(&self) {
        let mut inner = self.inner.lock();
        inner.failures = 0;
        inner.pause = None;
    }

    /// The resourceVersion that the Pod cache must reach before the next plan.
    pub fn required_pod_version(&self) -> u64 {
        self.inner.lock().written_version
    }

    /// Records the resourceVersion of a Pod that was written.
    pub fn record_pod_write(&self, version: u64) {
        let mut inner = self.inner.lock();
        inner.written_version = inner.written_version.max(version);
    }

    /// Returns the name for an object to be created, see [`PendingNames::choose_name`].
    pub fn choose_name(&self, slot: &NameSlot, prefix: &str) -> String {
        let mut inner = self.inner.lock();
        inner.names.choose_name(slot, prefix, rand::random())
    }

    /// Forgets the name of a slot. The next object of the slot gets another name.
    pub fn forget_name(&self, slot: &NameSlot) {
        self.inner.lock().names.forget_name(slot);
    }

    /// Records a name that is given by a spec.
    pub fn record_given_name(&self, slot: &NameSlot, name: &str) {
        self.inner.lock().names.record_given_name(slot, name);
    }

    /// Whether no deletion of this PVC that was sent earlier can still succeed.
    pub fn is_pvc_fenced(&self, uid: &str) -> bool {
        self.inner.lock().fenced.contains(uid)
    }

    /// Records that earlier deletions of this PVC can't succeed any more: the PVC is new, or has got a new
    /// resourceVersion.
    pub fn fence_pvc(&self, uid: &str) {
        self.inner.lock().fenced.insert(uid.to_owned());
    }

    /// Records that a deletion of this PVC is sent.
    pub fn unfence_pvc(&self, uid: &str) {
        self.inner.lock().fenced.remove(uid);
    }

    /// Forgets the fences of PVCs that are not in `claims`, the UIDs of the existing PVCs.
    pub fn retain_fences<'a>(&self, claims: impl Iterator<Item = &'a str>) {
        let mut inner = self.inner.lock();
        if !inner.fenced.is_empty() {
            let there: BTreeSet<&str> = claims.collect();
            inner.fenced.retain(|uid| there.contains(&**uid));
        }
    }

    /// Records that the object of a slot differs from what was created, see [`PendingNames::mark_altered`].
    pub fn mark_altered(&self, slot: &NameSlot, uid: String) {
        self.inner.lock().names.mark_altered(slot, uid);
    }

    /// UID of the object of a slot, if the object differs from what was created.
    pub fn altered_uid(&self, slot: &NameSlot) -> Option<String> {
        self.inner.lock().names.altered_uid(slot)
    }

    /// Forgets the names of objects that the caches contain. If the creation of such an object counted as refused, its
    /// answer was lost, so the refusal is forgotten too.
    pub fn forget_observed_names(&self, is_seen: impl FnMut(&NameSlot, &str) -> bool) {
        let mut inner = self.inner.lock();
        for slot in inner.names.forget_observed_names(is_seen) {
            inner.refusals.clear_refusal(&slot.refusal_key());
        }
    }

    /// Records that admission denied a write of this Pod, and the message.
    pub fn record_held_write(&self, uid: &str, why: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let (until, known) = inner.held.entry(uid.to_owned()).or_insert((now, None));
        *until = now + HELD_BACKOFF;
        // If only the figures of the message change, the first message stays. Otherwise each change of a figure would
        // cause a write of the status.
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let why = truncate_text(why, MAX_MESSAGE_CHARS);
        if known.as_ref().map(|known| words(known)) != Some(words(&why)) {
            *known = Some(why);
        }
    }

    /// Records that admission no longer denies the writes of this Pod.
    pub fn clear_hold(&self, uid: &str) {
        self.inner.lock().held.remove(uid);
    }

    /// Records that an object must not be written for this time.
    pub fn hold_object_for(&self, uid: &str, now: Instant, pause: Duration) {
        let mut inner = self.inner.lock();
        inner.held.insert(uid.to_owned(), (now + pause, None));
    }

    /// The remaining time in which an object must not be written; `None` if it may be written.
    pub fn hold_remaining(&self, uid: &str, now: Instant) -> Option<Duration> {
        let inner = self.inner.lock();
        let (until, _) = inner.held.get(uid)?;
        (*until > now).then(|| *until - now)
    }

    /// Records a refusal. Returns the time until the next try.
    pub fn record_refusal(
        &self,
        key: RefusalKey,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let mut inner = self.inner.lock();
        inner.refusals.record_refusal(key, message, now, generation)
    }

    /// As [`Self::record_refusal`], with another maximum backoff.
    pub fn record_refusal_capped(
        &self,
        longest: Duration,
        key: RefusalKey,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let refusals = &mut self.inner.lock().refusals;
        refusals.record_refusal_capped(longest, key, message, now, generation)
    }

    /// Records that so many writes of a kind were refused that the rest was not tried. Returns the backoff of the whole
    /// kind. The backoff is short if some writes were never tried (`never_tried`).
    pub fn record_untried_rest(
        &self,
        key: RefusalKey,
        message: &str,
        never_tried: bool,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let longest = if never_tried {
            MAX_UNTRIED_BACKOFF
        } else {
            BACKOFF_RANGE.1
        };
        self.record_refusal_capped(longest, key, message, now, generation)
    }

    /// What is known of a write that a plan asks for; `None` if it was not refused.
    pub fn mark_write_wanted(
        &self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<KnownRefusal> {
        self.inner.lock().refusals.mark_wanted(key, now, generation)
    }

    /// The remaining backoff of a write, and the message of its refusal; `None` if the write may be tried.
    pub fn active_refusal(
        &self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<(Duration, String)> {
        self.inner
            .lock()
            .refusals
            .active_refusal(key, now, generation)
    }

    /// Records that a write succeeded.
    pub fn clear_refusal(&self, key: &RefusalKey) {
        self.inner.lock().refusals.clear_refusal(key);
    }

    /// Forgets all late refusals, so that the refused writes may be tried at once.
    pub fn clear_late_refusals(&self) {
        self.inner.lock().refusals.clear_late_refusals();
    }

    /// The time until which each finished Pod stays as it is, by UID, see [`FinishedPodBackoff::record_finished_pods`].
    pub fn record_finished_pods<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        now_nanos: u64,
    ) -> BTreeMap<String, u64> {
        let id_of = |pod: &Pod| pod.label(keys::INSTANCE_ID)?.parse().ok();
        self.inner
            .lock()
            .backoff
            .record_finished_pods(pods, id_of, now_nanos)
    }

    /// Names of the Pods to read from the API server now, see [`PodLookups::names_to_look_up`].
    pub fn names_to_look_up(
        &self,
        unknown: &BTreeSet<String>,
        now: Instant,
        generation: i64,
    ) -> Vec<String> {
        self.inner
            .lock()
            .pod_lookups
            .names_to_look_up(unknown, now, generation)
    }

    /// Whether there were more names to look up than one run may read, see [`PodLookups::has_more_names`].
    pub fn has_more_lookups(&self) -> bool {
        self.inner.lock().pod_lookups.has_more_names()
    }

    /// Records answers of the API server, see [`PodLookups::record_lookup`]. Returns all Pods that are known to exist
    /// and to be not managed.
    pub fn record_lookups(
        &self,
        answers: Vec<(String, Option<Arc<Pod>>)>,
        now: Instant,
    ) -> Vec<Arc<Pod>> {
        let mut inner = self.inner.lock();
        for (name, unmanaged) in answers {
            inner.pod_lookups.record_lookup(name, unmanaged, now);
        }
        inner.pod_lookups.unmanaged_pods()
    }

    /// The Event about the canaries of a rollout pause, see [`CanaryWatch::observe_pause`].
    pub fn canary_event(&self, pause: Option<&PausePoint>) -> Option<SetEvent> {
        self.inner.lock().canaries.observe_pause(pause)
    }

    /// Records that the resize of a Pod to a revision is refused, and why.
    pub fn record_refused_resize(&self, uid: &str, revision: &str, why: &str) {
        let resize = (revision.to_owned(), why.to_owned());
        self.inner.lock().resizes.insert(uid.to_owned(), resize);
    }

    /// Records that the in-place change of a Pod to a revision is refused.
    pub fn record_refused_change(&self, uid: &str, revision: &str) {
        let mut inner = self.inner.lock();
        inner.changes.insert(uid.to_owned(), revision.to_owned());
    }

    /// Records that the deletion of a Pod is refused.
    pub fn record_refused_deletion(&self, uid: &str) {
        self.inner.lock().deletions.insert(uid.to_owned());
    }

    /// Records that a Pod has been deleted, or that a dry run of its deletion passed.
    pub fn clear_refused_deletion(&self, uid: &str) {
        self.inner.lock().deletions.remove(uid);
    }

    /// Records that the dry run of a Pod's update to a revision passed, and how long the result is valid. An empty
    /// revision stands for the deletion of the Pod.
    pub fn record_passed_dry_run(&self, uid: &str, revision: &str, until: Instant) {
        let passed = (revision.to_owned(), until);
        self.inner
            .lock()
            .passed_dry_runs
            .insert(uid.to_owned(), passed);
    }

    /// Whether a valid dry run has passed for the update of a Pod to a revision.
    pub fn has_passed_dry_run(&self, uid: &str, revision: &str, now: Instant) -> bool {
        let inner = self.inner.lock();
        let passed = inner.passed_dry_runs.get(uid);
        passed.is_some_and(|(of, until)| of == revision && *until > now)
    }

    /// Forgets the dry run of a Pod whose update has begun.
    pub fn forget_passed_dry_run(&self, uid: &str) {
        self.inner.lock().passed_dry_runs.remove(uid);
    }

    /// Whether the deletion of a Pod needs a dry run first, because deletions of Pods of this set were refused.
    pub fn needs_deletion_dry_run(&self) -> bool {
        let inner = self.inner.lock();
        !inner.deletions.is_empty()
            || inner
                .refusals
                .last_refusal(&RefusalKey::LateDeletions)
                .is_some()
    }

    /// How many times in a row a write was refused, and the last reason.
    pub fn last_refusal(&self, key: &RefusalKey) -> Option<(u32, String)> {
        let inner = self.inner.lock();
        let (times, why) = inner.refusals.last_refusal(key)?;
        Some((times, why.to_owned()))
    }

    /// Forgets that Pods can be changed in place to a revision, because such a change was refused. Other Pods need a
    /// dry run again.
    pub fn distrust_revision(&self, revision: &str) {
        self.inner.lock().accepted.remove(revision);
    }

    /// Records that a Pod has been changed in place to a revision, or that a dry run of the change passed.
    pub fn record_accepted_change(&self, uid: &str, revision: &str) {
        let mut inner = self.inner.lock();
        inner.changes.remove(uid);
        inner.accepted.insert(revision.to_owned());
    }

    /// Whether the in-place change of a Pod to a revision needs a dry run first.
    pub fn needs_change_dry_run(&self, uid: &str, revision: &str) -> bool {
        let inner = self.inner.lock();
        let late = RefusalKey::LateRefusal(revision.to_owned());
        inner.changes.contains_key(uid)
            || !inner.accepted.contains(revision)
            || inner.refusals.last_refusal(&late).is_some()
    }

    /// Records that a Pod of a revision has been created.
    pub fn mark_revision_proven(&self, revision: &str) {
        self.inner.lock().proven.insert(revision.to_owned());
    }

    /// The refusals that the next plan takes into account. `pods` and `revisions` are those that exist; what is
    /// recorded of others is forgotten.
    pub fn plan_refusals<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        revisions: impl Iterator<Item = &'a str>,
        now: Instant,
        generation: i64,
    ) -> ApiRefusals {
        let mut inner = self.inner.lock();
        inner.refusals.remove_expired(now);
        inner
            .held
            .retain(|_, (until, _)| *until + RECENTLY_HELD > now);
        inner.passed_dry_runs.retain(|_, (_, until)| *until > now);
        if !inner.resizes.is_empty() || !inner.changes.is_empty() || !inner.deletions.is_empty() {
            let there: BTreeSet<&str> = pods.map(|pod| &*pod.metadata.uid).collect();
            inner.resizes.retain(|uid, _| there.contains(&**uid));
            inner.changes.retain(|uid, _| there.contains(&**uid));
            inner.deletions.retain(|uid| there.contains(&**uid));
        }
        if inner.proven.len().max(inner.accepted.len()) > MAX_PROVEN_REVISIONS {
            let there: BTreeSet<&str> = revisions.collect();
            inner.proven.retain(|revision| there.contains(&**revision));
            inner
                .accepted
                .retain(|revision| there.contains(&**revision));
        }
        let revision = inner
            .refusals
            .active_refusal(&RefusalKey::Revision, now, generation);
        // If several refusals concern one instance ID, always choose the same message, so that the status does not
        // change.
        let mut creations = BTreeMap::<i64, String>::new();
        for (id, why) in inner.refusals.refused_creations() {
            let known = creations.entry(id).or_insert_with(|| why.to_owned());
            if why < known.as_str() {
                why.clone_into(known);
            }
        }
        ApiRefusals {
            creations,
            pods: {
                let held = inner.held.keys().map(String::as_str);
                let pods = inner.refusals.refused_pods().chain(held);
                pods.map(str::to_owned).collect()
            },
            held: {
                let held = inner.held.iter();
                let held = held.filter_map(|(uid, (_, why))| Some((uid.clone(), why.clone()?)));
                held.collect()
            },
            pvcs: inner.refusals.refused_pvcs().map(str::to_owned).collect(),
            resizes: inner.resizes.clone(),
            changes: inner.changes.clone(),
            deletions: inner.deletions.clone(),
            late_deletions: inner
                .refusals
                .last_refusal(&RefusalKey::LateDeletions)
                .is_some(),
            undeleted: BTreeMap::new(), // the other controllers add these facts
            unstepped: BTreeMap::new(),
            late: inner
                .refusals
                .late_refused_revisions()
                .map(str::to_owned)
                .collect(),
            pool: inner.refusals.last_refusal(&RefusalKey::Pool).is_some(),
            finalizer: {
                let last = inner.refusals.last_refusal(&RefusalKey::Finalizer);
                last.map(|(_, why)| why.to_owned())
            },
            accepted: inner.accepted.clone(),
            revision: revision.map(|(_, why)| why),
            proven: inner.proven.clone(),
        }
    }

    /// Begins a write of the status. If it is too early for a write, returns the remaining time.
    pub fn begin_status_write(&self, now: Instant) -> Option<Duration> {
        let mut inner = self.inner.lock();
        let left = inner
            .status
            .map(|at| (at + MIN_STATUS_INTERVAL).saturating_duration_since(now));
        match left {
            Some(left) if !left.is_zero() => Some(left),
            _ => {
                inner.status = Some(now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn event_burst_causes_one_reconcile() {
        let (memory, start) = (ReconcileState::new("a"), Instant::now());
        assert_eq!(memory.begin_reconcile(start, 1), None, "the first at once");
        let at = |millis| start + Duration::from_millis(millis);
        let left = Duration::from_millis(40);
        assert_eq!(
            memory.begin_reconcile(at(10), 1),
            Some(ReconcileOutcome::Early(left))
        );
        let left = Duration::from_millis(30);
        assert_eq!(
            memory.begin_reconcile(at(20), 1),
            Some(ReconcileOutcome::Early(left)),
            "each time: the queue may have come to this look by another timer"
        );
        assert_eq!(memory.begin_reconcile(at(50), 1), None);
        assert_eq!(
            memory.begin_reconcile(at(51), 1),
            Some(ReconcileOutcome::Early(
                MIN_RECONCILE_INTERVAL - Duration::from_millis(1)
            ))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failure_pauses_reconcile_until_spec_changes() {
        let (memory, now) = (ReconcileState::new("a"), Instant::now());
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            last = memory.record_failure(now, 1);
        }
        assert_eq!(last, BACKOFF_RANGE.1);
        assert_eq!(
            memory.begin_reconcile(now + MIN_RECONCILE_INTERVAL, 1),
            Some(ReconcileOutcome::Early(
                BACKOFF_RANGE.1 - MIN_RECONCILE_INTERVAL
            )),
        );
        assert_eq!(
            memory.begin_reconcile(now + MIN_RECONCILE_INTERVAL, 2),
            None
        );
        memory.record_success();
        assert_eq!(memory.record_failure(now, 2), BACKOFF_RANGE.0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_status_is_written_twice_a_second() {
        let (memory, now) = (ReconcileState::new("a"), Instant::now());
        assert_eq!(memory.begin_status_write(now), None);
        assert_eq!(memory.begin_status_write(now), Some(MIN_STATUS_INTERVAL));
        assert_eq!(memory.begin_status_write(now + MIN_STATUS_INTERVAL), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_pod_is_left_alone_for_a_while() {
        let (memory, now) = (ReconcileState::new("a"), Instant::now());
        memory.record_held_write("pod", "why", now);
        assert_eq!(memory.hold_remaining("pod", now), Some(HELD_BACKOFF));
        assert_eq!(memory.hold_remaining("other", now), None);
        assert_eq!(memory.hold_remaining("pod", now + HELD_BACKOFF), None);
    }

    #[tokio::test(start_paused = true)]
    async fn observed_creation_clears_its_refusal() {
        let (memory, now) = (ReconcileState::new("a"), Instant::now());
        let slots = |id| [NameSlot::Pod(id), NameSlot::Pvc(id, "data".to_owned())];
        for slot in slots(3).iter().chain(&slots(4)) {
            memory.record_refusal(slot.refusal_key(), "no answer", now, 1);
        }
        let refused = || {
            let facts = memory.plan_refusals(std::iter::empty(), std::iter::empty(), now, 1);
            facts.creations.into_keys().collect::<Vec<_>>()
        };
        let pod = memory.choose_name(&NameSlot::Pod(3), "web-");
        memory.record_given_name(&NameSlot::Pvc(3, "data".to_owned()), "web-data-3");
        memory.forget_observed_names(|slot, name| *slot == NameSlot::Pod(3) && name == pod);
        assert_eq!(refused(), [3, 4], "its claim has yet to be seen");
        memory.forget_observed_names(|_, name| name == "web-data-3");
        assert_eq!(refused(), [4]);
    }

    #[tokio::test(start_paused = true)]
    async fn repeatedly_held_pod_is_passed_to_planner() {
        let (memory, now) = (ReconcileState::new("a"), Instant::now());
        let none = || std::iter::empty();
        let facts = |at| {
            let facts = memory.plan_refusals(std::iter::empty(), none(), at, 1);
            (facts.pods, facts.held)
        };
        memory.record_held_write("pod", "why", now);
        memory.hold_object_for("claim", now, HELD_BACKOFF);
        let pods = BTreeSet::from(["pod", "claim"].map(str::to_owned));
        let held = (pods, BTreeMap::from([("pod".to_owned(), "why".to_owned())]));
        assert_eq!(facts(now), held);
        assert_eq!(facts(now + HELD_BACKOFF), held, "when it is tried again");
        assert_eq!(facts(now + HELD_BACKOFF * 10), Default::default());
    }
}
