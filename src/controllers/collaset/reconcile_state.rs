//! What is remembered of a CollaSet between two looks. All of it may be lost: it saves requests, waiting and doubles,
//! and decides nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::backoff::FinishedPodBackoff;
use super::names::{NameSlot, PendingNames};
use super::pod_lookups::PodLookups;
use super::refusals::{
    BACKOFF_RANGE, MAX_UNTRIED_BACKOFF, RefusalBackoff, RefusalInfo, RefusalKey,
};
use crate::api::keys;
use crate::api::size_limits::truncate_text;
use crate::cluster::workqueue::ReconcileOutcome;
use crate::domain::collaset::api_refusals::ApiRefusals;
use crate::domain::collaset::plan::{PausePoint, SetEvent};
use crate::domain::collaset::status::CanaryWatch;
use crate::domain::pod::Pod;

/// Two looks are at least this far apart: many events of Pods make one look.
pub const MIN_RECONCILE_INTERVAL: Duration = Duration::from_millis(50);
/// The status is written at most this often.
const MIN_STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Revisions that are remembered without a look at which of them are left.
const MAX_PROVEN_REVISIONS: usize = 20;
/// A Pod whose write admission held is left alone for this long.
pub const HELD_BACKOFF: Duration = Duration::from_secs(1);
/// Characters of what admission says that are kept.
const MAX_MESSAGE_CHARS: usize = 300;
/// For this long after that a plan does not build upon a write of the Pod.
const RECENTLY_HELD: Duration = Duration::from_secs(5);

/// The memory of one set.
#[derive(Debug, Default)]
pub struct ReconcileState {
    uid: String,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Largest resourceVersion of a Pod that this controller has written.
    reached: u64,
    names: PendingNames,
    /// Pods and claims by UID, until when, and why where admission holds a write.
    held: HashMap<String, (Instant, Option<String>)>,
    status: Option<Instant>,
    looked: Option<Instant>,
    failures: u32,
    /// No look before, unless the generation is another one.
    pause: Option<(Instant, i64)>,
    refusals: RefusalBackoff,
    backoff: FinishedPodBackoff,
    /// What was read of Pods that are to be included and in no cache.
    answers: PodLookups,
    /// Pods of the updated revision that served at a pause of the rollout.
    canaries: CanaryWatch,
    /// Resizes that are refused, by the UID of the Pod: the revision, and why.
    resizes: BTreeMap<String, (String, String)>,
    /// Changes in place that are refused, by the UID of the Pod: the revision.
    changes: BTreeMap<String, String>,
    /// UIDs of Pods whose deletion is refused.
    deletions: BTreeSet<String>,
    /// Pods by UID whose dry run has passed: for which revision, and until when they need no other.
    passed: HashMap<String, (String, Instant)>,
    /// Revisions to which Pods can be changed in place.
    accepted: BTreeSet<String>,
    /// Revisions of which a Pod has been created.
    proven: BTreeSet<String>,
    /// UIDs of claims of which no deletion is on its way that could be carried out.
    fenced: BTreeSet<String>,
}

impl ReconcileState {
    /// Nothing is known yet.
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

    /// Begins a look; what to do instead if it is too early.
    pub fn begin_reconcile(&self, now: Instant, generation: i64) -> Option<ReconcileOutcome> {
        let mut inner = self.inner.lock();
        let spaced = inner.looked.map(|at| at + MIN_RECONCILE_INTERVAL);
        let paused = inner.pause.filter(|(_, of)| *of == generation);
        let earliest = spaced.max(paused.map(|(at, _)| at));
        let Some(at) = earliest.filter(|at| *at > now) else {
            inner.looked = Some(now);
            return None;
        };
        // The queue keeps one time for each set. A second note of it here would miss a look whenever the two differ.
        Some(ReconcileOutcome::Early(at - now))
    }

    /// A look has failed; how long to pause.
    pub fn record_failure(&self, now: Instant, generation: i64) -> Duration {
        let mut inner = self.inner.lock();
        let pause = BACKOFF_RANGE
            .1
            .min(BACKOFF_RANGE.0 * 2u32.pow(inner.failures));
        inner.failures = (inner.failures + 1).min(12);
        inner.pause = Some((now + pause, generation));
        pause
    }

    /// A look has succeeded.
    pub fn record_success(&self) {
        let mut inner = self.inner.lock();
        inner.failures = 0;
        inner.pause = None;
    }

    /// The Pod cache must have reached this version before the next plan.
    pub fn required_pod_version(&self) -> u64 {
        self.inner.lock().reached
    }

    /// A Pod was written.
    pub fn record_pod_write(&self, version: u64) {
        let mut inner = self.inner.lock();
        inner.reached = inner.reached.max(version);
    }

    /// The name for what is to be created.
    pub fn choose_name(&self, slot: &NameSlot, prefix: &str) -> String {
        let mut inner = self.inner.lock();
        inner.names.choose_name(slot, prefix, rand::random())
    }

    /// Another name next time.
    pub fn forget_name(&self, slot: &NameSlot) {
        self.inner.lock().names.forget_name(slot);
    }

    /// Notes a name that a spec gives.
    pub fn record_given_name(&self, slot: &NameSlot, name: &str) {
        self.inner.lock().names.record_given_name(slot, name);
    }

    /// Whether no deletion of a claim is on its way that could be carried out.
    pub fn is_pvc_fenced(&self, uid: &str) -> bool {
        self.inner.lock().fenced.contains(uid)
    }

    /// Notes so: the claim is new, or has got a new version.
    pub fn fence_pvc(&self, uid: &str) {
        self.inner.lock().fenced.insert(uid.to_owned());
    }

    /// Its deletion is sent.
    pub fn unfence_pvc(&self, uid: &str) {
        self.inner.lock().fenced.remove(uid);
    }

    /// Forgets what was noted of claims that are not among these.
    pub fn retain_fences<'a>(&self, claims: impl Iterator<Item = &'a str>) {
        let mut inner = self.inner.lock();
        if !inner.fenced.is_empty() {
            let there: BTreeSet<&str> = claims.collect();
            inner.fenced.retain(|uid| there.contains(&**uid));
        }
    }

    /// What was made for a slot is not as it was made, see [`Names::spoil`].
    pub fn mark_altered(&self, slot: &NameSlot, uid: String) {
        self.inner.lock().names.mark_altered(slot, uid);
    }

    /// UID of what was made for a slot, if it is not as it was made.
    pub fn altered_uid(&self, slot: &NameSlot) -> Option<String> {
        self.inner.lock().names.altered_uid(slot)
    }

    /// Forgets the names of what has been seen, and that its creation was refused: an answer was lost.
    pub fn forget_observed_names(&self, is_seen: impl FnMut(&NameSlot, &str) -> bool) {
        let mut inner = self.inner.lock();
        for slot in inner.names.forget_observed_names(is_seen) {
            inner.refusals.clear_refusal(&slot.refusal_key());
        }
    }

    /// Admission holds a write of this Pod, and says why.
    pub fn record_held_write(&self, uid: &str, why: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let (until, known) = inner.held.entry(uid.to_owned()).or_insert((now, None));
        *until = now + HELD_BACKOFF;
        // Of figures that move the first are told: the status would be written with each of them.
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let why = truncate_text(why, MAX_MESSAGE_CHARS);
        if known.as_ref().map(|known| words(known)) != Some(words(&why)) {
            *known = Some(why);
        }
    }

    /// A write of this Pod is held no more.
    pub fn clear_hold(&self, uid: &str) {
        self.inner.lock().held.remove(uid);
    }

    /// An object is to be left alone for this long.
    pub fn hold_object_for(&self, uid: &str, now: Instant, pause: Duration) {
        let mut inner = self.inner.lock();
        inner.held.insert(uid.to_owned(), (now + pause, None));
    }

    /// How long a Pod is still to be left alone.
    pub fn hold_remaining(&self, uid: &str, now: Instant) -> Option<Duration> {
        let inner = self.inner.lock();
        let (until, _) = inner.held.get(uid)?;
        (*until > now).then(|| *until - now)
    }

    /// Something was refused; how long to leave it alone.
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

    /// As [`Memory::refuse`], with another longest pause.
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

    /// So much of a kind was refused that the rest was not tried; how long to leave the kind alone. What was `never_tried` does not
    /// wait for long.
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

    /// What is known of a write that a plan asks for, if it was refused.
    pub fn refusal_info(
        &self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<RefusalInfo> {
        self.inner
            .lock()
            .refusals
            .refusal_info(key, now, generation)
    }

    /// How long something is to be left alone, and why.
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

    /// Something was done.
    pub fn clear_refusal(&self, key: &RefusalKey) {
        self.inner.lock().refusals.clear_refusal(key);
    }

    /// What was refused late may be tried at once.
    pub fn clear_late_refusals(&self) {
        self.inner.lock().refusals.clear_late_refusals();
    }

    /// Until when Pods that have ended are left as they are, see [`Backoff::note`].
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

    /// Names of Pods that are to be asked for, see [`Answers::due`].
    pub fn names_to_look_up(
        &self,
        unknown: &BTreeSet<String>,
        now: Instant,
        generation: i64,
    ) -> Vec<String> {
        self.inner
            .lock()
            .answers
            .names_to_look_up(unknown, now, generation)
    }

    /// Whether more Pods are to be asked for than the last look did, see [`Answers::has_more`].
    pub fn has_more_lookups(&self) -> bool {
        self.inner.lock().answers.has_more_names()
    }

    /// Notes which Pods are there and not managed, see [`Answers::note`]; all that are known to be.
    pub fn record_lookups(
        &self,
        answers: Vec<(String, Option<Arc<Pod>>)>,
        now: Instant,
    ) -> Vec<Arc<Pod>> {
        let mut inner = self.inner.lock();
        for (name, unmanaged) in answers {
            inner.answers.record_lookup(name, unmanaged, now);
        }
        inner.answers.unmanaged_pods()
    }

    /// What is to be told of the canaries of a pause, see [`Canaries::look`].
    pub fn canary_event(&self, pause: Option<&PausePoint>) -> Option<SetEvent> {
        self.inner.lock().canaries.observe_pause(pause)
    }

    /// A Pod can't be resized on its way to a revision.
    pub fn record_refused_resize(&self, uid: &str, revision: &str, why: &str) {
        let resize = (revision.to_owned(), why.to_owned());
        self.inner.lock().resizes.insert(uid.to_owned(), resize);
    }

    /// A Pod can't be changed in place to a revision.
    pub fn record_refused_change(&self, uid: &str, revision: &str) {
        let mut inner = self.inner.lock();
        inner.changes.insert(uid.to_owned(), revision.to_owned());
    }

    /// A Pod can't be deleted.
    pub fn record_refused_deletion(&self, uid: &str) {
        self.inner.lock().deletions.insert(uid.to_owned());
    }

    /// A Pod has been deleted, or could be.
    pub fn clear_refused_deletion(&self, uid: &str) {
        self.inner.lock().deletions.remove(uid);
    }

    /// The dry run of a Pod's update to a revision has passed and is good until then. Without a revision it was that of its deletion.
    pub fn record_passed_dry_run(&self, uid: &str, revision: &str, until: Instant) {
        let passed = (revision.to_owned(), until);
        self.inner.lock().passed.insert(uid.to_owned(), passed);
    }

    /// Whether the update of a Pod needs no dry run, as one has passed.
    pub fn has_passed_dry_run(&self, uid: &str, revision: &str, now: Instant) -> bool {
        let inner = self.inner.lock();
        let passed = inner.passed.get(uid);
        passed.is_some_and(|(of, until)| of == revision && *until > now)
    }

    /// The Pod has made use of its dry run.
    pub fn forget_passed_dry_run(&self, uid: &str) {
        self.inner.lock().passed.remove(uid);
    }

    /// Whether it must be tried first if a Pod can be deleted: some can't.
    pub fn needs_deletion_dry_run(&self) -> bool {
        let inner = self.inner.lock();
        !inner.deletions.is_empty()
            || inner
                .refusals
                .last_refusal(&RefusalKey::LateDeletions)
                .is_some()
    }

    /// Why something was refused when it was last tried, and how often it was in a row.
    pub fn last_refusal(&self, key: &RefusalKey) -> Option<(u32, String)> {
        let inner = self.inner.lock();
        let (times, why) = inner.refusals.last_refusal(key)?;
        Some((times, why.to_owned()))
    }

    /// What could be changed in place to a revision before may not be now: others are tried again.
    pub fn distrust_revision(&self, revision: &str) {
        self.inner.lock().accepted.remove(revision);
    }

    /// A Pod has been changed in place to a revision, or could have been.
    pub fn record_accepted_change(&self, uid: &str, revision: &str) {
        let mut inner = self.inner.lock();
        inner.changes.remove(uid);
        inner.accepted.insert(revision.to_owned());
    }

    /// Whether it must be tried first if a Pod can be changed in place to a revision.
    pub fn needs_change_dry_run(&self, uid: &str, revision: &str) -> bool {
        let inner = self.inner.lock();
        let late = RefusalKey::LateRefusal(revision.to_owned());
        inner.changes.contains_key(uid)
            || !inner.accepted.contains(revision)
            || inner.refusals.last_refusal(&late).is_some()
    }

    /// A Pod of a revision has been created.
    pub fn mark_revision_proven(&self, revision: &str) {
        self.inner.lock().proven.insert(revision.to_owned());
    }

    /// What a plan goes by. `pods` and `revisions` are those that are there: what is noted of others is forgotten.
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
        inner.passed.retain(|_, (_, until)| *until > now);
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
        // Of several claims of one ID always the same words.
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
            undeleted: BTreeMap::new(), // other controllers know
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

    /// Begins a write of the status; how long to wait if it is too early.
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
