//! What is remembered of a CollaSet between two looks. All of it may be lost: it saves requests, waiting and doubles,
//! and decides nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::answers::Answers;
use super::backoff::Backoff;
use super::names::{Names, Slot};
use super::refusals::{Key, Known, PAUSES, Refusals, UNTRIED};
use crate::api::keys;
use crate::api::stored::text;
use crate::cluster::queue::Outcome;
use crate::domain::collaset::plan::{Event, Pause};
use crate::domain::collaset::refused::Refused;
use crate::domain::collaset::status::Canaries;
use crate::domain::pod::Pod;

/// Two looks are at least this far apart: many events of Pods make one look.
pub const SPACING: Duration = Duration::from_millis(50);
/// The status is written at most this often.
const STATUS_PERIOD: Duration = Duration::from_secs(1);
/// Revisions that are remembered without a look at which of them are left.
const MOST_PROVEN: usize = 20;
/// A Pod whose write admission held is left alone for this long.
pub const HELD: Duration = Duration::from_secs(1);
/// Characters of what admission says that are kept.
const LONGEST: usize = 300;
/// For this long after that a plan does not build upon a write of the Pod.
const HELD_LATELY: Duration = Duration::from_secs(5);

/// The memory of one set.
#[derive(Debug, Default)]
pub struct Memory {
    uid: String,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Largest resourceVersion of a Pod that this controller has written.
    reached: u64,
    names: Names,
    /// Pods and claims by UID, until when, and why where admission holds a write.
    held: HashMap<String, (Instant, Option<String>)>,
    status: Option<Instant>,
    looked: Option<Instant>,
    failures: u32,
    /// No look before, unless the generation is another one.
    pause: Option<(Instant, i64)>,
    refusals: Refusals,
    backoff: Backoff,
    /// What was read of Pods that are to be included and in no cache.
    answers: Answers,
    /// Pods of the updated revision that served at a pause of the rollout.
    canaries: Canaries,
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

impl Memory {
    /// Nothing is known yet.
    pub fn new(uid: &str) -> Self {
        Memory {
            uid: uid.to_owned(),
            inner: Mutex::default(),
        }
    }

    /// UID of the set.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Begins a look; what to do instead if it is too early.
    pub fn enter(&self, now: Instant, generation: i64) -> Option<Outcome> {
        let mut inner = self.inner.lock();
        let spaced = inner.looked.map(|at| at + SPACING);
        let paused = inner.pause.filter(|(_, of)| *of == generation);
        let earliest = spaced.max(paused.map(|(at, _)| at));
        let Some(at) = earliest.filter(|at| *at > now) else {
            inner.looked = Some(now);
            return None;
        };
        // The queue keeps one time for each set. A second note of it here would miss a look whenever the two differ.
        Some(Outcome::Early(at - now))
    }

    /// A look has failed; how long to pause.
    pub fn failed(&self, now: Instant, generation: i64) -> Duration {
        let mut inner = self.inner.lock();
        let pause = PAUSES.1.min(PAUSES.0 * 2u32.pow(inner.failures));
        inner.failures = (inner.failures + 1).min(12);
        inner.pause = Some((now + pause, generation));
        pause
    }

    /// A look has succeeded.
    pub fn succeeded(&self) {
        let mut inner = self.inner.lock();
        inner.failures = 0;
        inner.pause = None;
    }

    /// The Pod cache must have reached this version before the next plan.
    pub fn position(&self) -> u64 {
        self.inner.lock().reached
    }

    /// A Pod was written.
    pub fn wrote_pod(&self, version: u64) {
        let mut inner = self.inner.lock();
        inner.reached = inner.reached.max(version);
    }

    /// The name for what is to be created.
    pub fn choose(&self, slot: &Slot, prefix: &str) -> String {
        let mut inner = self.inner.lock();
        inner.names.choose(slot, prefix, rand::random())
    }

    /// Another name next time.
    pub fn forget(&self, slot: &Slot) {
        self.inner.lock().names.forget(slot);
    }

    /// Notes a name that a spec gives.
    pub fn note_name(&self, slot: &Slot, name: &str) {
        self.inner.lock().names.note(slot, name);
    }

    /// Whether no deletion of a claim is on its way that could be carried out.
    pub fn is_fenced(&self, uid: &str) -> bool {
        self.inner.lock().fenced.contains(uid)
    }

    /// Notes so: the claim is new, or has got a new version.
    pub fn fence(&self, uid: &str) {
        self.inner.lock().fenced.insert(uid.to_owned());
    }

    /// Its deletion is sent.
    pub fn unfence(&self, uid: &str) {
        self.inner.lock().fenced.remove(uid);
    }

    /// Forgets what was noted of claims that are not among these.
    pub fn keep_fences<'a>(&self, claims: impl Iterator<Item = &'a str>) {
        let mut inner = self.inner.lock();
        if !inner.fenced.is_empty() {
            let there: BTreeSet<&str> = claims.collect();
            inner.fenced.retain(|uid| there.contains(&**uid));
        }
    }

    /// What was made for a slot is not as it was made, see [`Names::spoil`].
    pub fn spoil(&self, slot: &Slot, uid: String) {
        self.inner.lock().names.spoil(slot, uid);
    }

    /// UID of what was made for a slot, if it is not as it was made.
    pub fn spoilt(&self, slot: &Slot) -> Option<String> {
        self.inner.lock().names.spoilt(slot)
    }

    /// Forgets the names of what has been seen, and that its creation was refused: an answer was lost.
    pub fn forget_seen(&self, is_seen: impl FnMut(&Slot, &str) -> bool) {
        let mut inner = self.inner.lock();
        for slot in inner.names.forget_seen(is_seen) {
            inner.refusals.forget(&slot.key());
        }
    }

    /// Admission holds a write of this Pod, and says why.
    pub fn hold(&self, uid: &str, why: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let (until, known) = inner.held.entry(uid.to_owned()).or_insert((now, None));
        *until = now + HELD;
        // Of figures that move the first are told: the status would be written with each of them.
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let why = text(why, LONGEST);
        if known.as_ref().map(|known| words(known)) != Some(words(&why)) {
            *known = Some(why);
        }
    }

    /// A write of this Pod is held no more.
    pub fn let_go(&self, uid: &str) {
        self.inner.lock().held.remove(uid);
    }

    /// An object is to be left alone for this long.
    pub fn hold_for(&self, uid: &str, now: Instant, pause: Duration) {
        let mut inner = self.inner.lock();
        inner.held.insert(uid.to_owned(), (now + pause, None));
    }

    /// How long a Pod is still to be left alone.
    pub fn held(&self, uid: &str, now: Instant) -> Option<Duration> {
        let inner = self.inner.lock();
        let (until, _) = inner.held.get(uid)?;
        (*until > now).then(|| *until - now)
    }

    /// Something was refused; how long to leave it alone.
    pub fn refuse(&self, key: Key, message: &str, now: Instant, generation: i64) -> Duration {
        let mut inner = self.inner.lock();
        inner.refusals.note(key, message, now, generation)
    }

    /// As [`Memory::refuse`], with another longest pause.
    pub fn refuse_for(
        &self,
        longest: Duration,
        key: Key,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let refusals = &mut self.inner.lock().refusals;
        refusals.note_for(longest, key, message, now, generation)
    }

    /// So much of a kind was refused that the rest was not tried; how long to leave the kind alone. What was `never_tried` does not
    /// wait for long.
    pub fn refuse_rest(
        &self,
        key: Key,
        message: &str,
        never_tried: bool,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let longest = if never_tried { UNTRIED } else { PAUSES.1 };
        self.refuse_for(longest, key, message, now, generation)
    }

    /// What is known of a write that a plan asks for, if it was refused.
    pub fn known(&self, key: &Key, now: Instant, generation: i64) -> Option<Known> {
        self.inner.lock().refusals.known(key, now, generation)
    }

    /// How long something is to be left alone, and why.
    pub fn refused(&self, key: &Key, now: Instant, generation: i64) -> Option<(Duration, String)> {
        self.inner.lock().refusals.left(key, now, generation)
    }

    /// Something was done.
    pub fn accept(&self, key: &Key) {
        self.inner.lock().refusals.forget(key);
    }

    /// What was refused late may be tried at once.
    pub fn forget_late_refusals(&self) {
        self.inner.lock().refusals.forget_late();
    }

    /// Until when Pods that have ended are left as they are, see [`Backoff::note`].
    pub fn ended<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        now_nanos: u64,
    ) -> BTreeMap<String, u64> {
        let id_of = |pod: &Pod| pod.label(keys::INSTANCE_ID)?.parse().ok();
        self.inner.lock().backoff.note(pods, id_of, now_nanos)
    }

    /// Names of Pods that are to be asked for, see [`Answers::due`].
    pub fn due(&self, unknown: &BTreeSet<String>, now: Instant, generation: i64) -> Vec<String> {
        self.inner.lock().answers.due(unknown, now, generation)
    }

    /// Whether more Pods are to be asked for than the last look did, see [`Answers::has_more`].
    pub fn has_more_to_ask(&self) -> bool {
        self.inner.lock().answers.has_more()
    }

    /// Notes which Pods are there and not managed, see [`Answers::note`]; all that are known to be.
    pub fn note_answers(
        &self,
        answers: Vec<(String, Option<Arc<Pod>>)>,
        now: Instant,
    ) -> Vec<Arc<Pod>> {
        let mut inner = self.inner.lock();
        for (name, unmanaged) in answers {
            inner.answers.note(name, unmanaged, now);
        }
        inner.answers.unmanaged()
    }

    /// What is to be told of the canaries of a pause, see [`Canaries::look`].
    pub fn canaries(&self, pause: Option<&Pause>) -> Option<Event> {
        self.inner.lock().canaries.look(pause)
    }

    /// A Pod can't be resized on its way to a revision.
    pub fn refuse_resize(&self, uid: &str, revision: &str, why: &str) {
        let resize = (revision.to_owned(), why.to_owned());
        self.inner.lock().resizes.insert(uid.to_owned(), resize);
    }

    /// A Pod can't be changed in place to a revision.
    pub fn refuse_change(&self, uid: &str, revision: &str) {
        let mut inner = self.inner.lock();
        inner.changes.insert(uid.to_owned(), revision.to_owned());
    }

    /// A Pod can't be deleted.
    pub fn refuse_deletion(&self, uid: &str) {
        self.inner.lock().deletions.insert(uid.to_owned());
    }

    /// A Pod has been deleted, or could be.
    pub fn accept_deletion(&self, uid: &str) {
        self.inner.lock().deletions.remove(uid);
    }

    /// The dry run of a Pod's update to a revision has passed and is good until then. Without a revision it was that of its deletion.
    pub fn pass(&self, uid: &str, revision: &str, until: Instant) {
        let passed = (revision.to_owned(), until);
        self.inner.lock().passed.insert(uid.to_owned(), passed);
    }

    /// Whether the update of a Pod needs no dry run, as one has passed.
    pub fn has_passed(&self, uid: &str, revision: &str, now: Instant) -> bool {
        let inner = self.inner.lock();
        let passed = inner.passed.get(uid);
        passed.is_some_and(|(of, until)| of == revision && *until > now)
    }

    /// The Pod has made use of its dry run.
    pub fn forget_passed(&self, uid: &str) {
        self.inner.lock().passed.remove(uid);
    }

    /// Whether it must be tried first if a Pod can be deleted: some can't.
    pub fn doubts_deletions(&self) -> bool {
        let inner = self.inner.lock();
        !inner.deletions.is_empty() || inner.refusals.last(&Key::LateDeletions).is_some()
    }

    /// Why something was refused when it was last tried, and how often it was in a row.
    pub fn last_refusal(&self, key: &Key) -> Option<(u32, String)> {
        let inner = self.inner.lock();
        let (times, why) = inner.refusals.last(key)?;
        Some((times, why.to_owned()))
    }

    /// What could be changed in place to a revision before may not be now: others are tried again.
    pub fn doubt(&self, revision: &str) {
        self.inner.lock().accepted.remove(revision);
    }

    /// A Pod has been changed in place to a revision, or could have been.
    pub fn accept_change(&self, uid: &str, revision: &str) {
        let mut inner = self.inner.lock();
        inner.changes.remove(uid);
        inner.accepted.insert(revision.to_owned());
    }

    /// Whether it must be tried first if a Pod can be changed in place to a revision.
    pub fn is_untried(&self, uid: &str, revision: &str) -> bool {
        let inner = self.inner.lock();
        let late = Key::LateRefusal(revision.to_owned());
        inner.changes.contains_key(uid)
            || !inner.accepted.contains(revision)
            || inner.refusals.last(&late).is_some()
    }

    /// A Pod of a revision has been created.
    pub fn prove(&self, revision: &str) {
        self.inner.lock().proven.insert(revision.to_owned());
    }

    /// What a plan goes by. `pods` and `revisions` are those that are there: what is noted of others is forgotten.
    pub fn facts<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        revisions: impl Iterator<Item = &'a str>,
        now: Instant,
        generation: i64,
    ) -> Refused {
        let mut inner = self.inner.lock();
        inner.refusals.tidy(now);
        inner
            .held
            .retain(|_, (until, _)| *until + HELD_LATELY > now);
        inner.passed.retain(|_, (_, until)| *until > now);
        if !inner.resizes.is_empty() || !inner.changes.is_empty() || !inner.deletions.is_empty() {
            let there: BTreeSet<&str> = pods.map(|pod| &*pod.metadata.uid).collect();
            inner.resizes.retain(|uid, _| there.contains(&**uid));
            inner.changes.retain(|uid, _| there.contains(&**uid));
            inner.deletions.retain(|uid| there.contains(&**uid));
        }
        if inner.proven.len().max(inner.accepted.len()) > MOST_PROVEN {
            let there: BTreeSet<&str> = revisions.collect();
            inner.proven.retain(|revision| there.contains(&**revision));
            inner
                .accepted
                .retain(|revision| there.contains(&**revision));
        }
        let revision = inner.refusals.left(&Key::Revision, now, generation);
        // Of several claims of one ID always the same words.
        let mut creations = BTreeMap::<i64, String>::new();
        for (id, why) in inner.refusals.creations() {
            let known = creations.entry(id).or_insert_with(|| why.to_owned());
            if why < known.as_str() {
                why.clone_into(known);
            }
        }
        Refused {
            creations,
            pods: {
                let held = inner.held.keys().map(String::as_str);
                let pods = inner.refusals.pods().chain(held);
                pods.map(str::to_owned).collect()
            },
            held: {
                let held = inner.held.iter();
                let held = held.filter_map(|(uid, (_, why))| Some((uid.clone(), why.clone()?)));
                held.collect()
            },
            claims: inner.refusals.claims().map(str::to_owned).collect(),
            resizes: inner.resizes.clone(),
            changes: inner.changes.clone(),
            deletions: inner.deletions.clone(),
            late_deletions: inner.refusals.last(&Key::LateDeletions).is_some(),
            undeleted: BTreeMap::new(), // other controllers know
            unstepped: BTreeMap::new(),
            late: inner.refusals.late().map(str::to_owned).collect(),
            pool: inner.refusals.last(&Key::Pool).is_some(),
            finalizer: {
                let last = inner.refusals.last(&Key::Finalizer);
                last.map(|(_, why)| why.to_owned())
            },
            accepted: inner.accepted.clone(),
            revision: revision.map(|(_, why)| why),
            proven: inner.proven.clone(),
        }
    }

    /// Begins a write of the status; how long to wait if it is too early.
    pub fn enter_status(&self, now: Instant) -> Option<Duration> {
        let mut inner = self.inner.lock();
        let left = inner
            .status
            .map(|at| (at + STATUS_PERIOD).saturating_duration_since(now));
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
    async fn a_storm_of_events_makes_one_look() {
        let (memory, start) = (Memory::new("a"), Instant::now());
        assert_eq!(memory.enter(start, 1), None, "the first at once");
        let at = |millis| start + Duration::from_millis(millis);
        let left = Duration::from_millis(40);
        assert_eq!(memory.enter(at(10), 1), Some(Outcome::Early(left)));
        let left = Duration::from_millis(30);
        assert_eq!(
            memory.enter(at(20), 1),
            Some(Outcome::Early(left)),
            "each time: the queue may have come to this look by another timer"
        );
        assert_eq!(memory.enter(at(50), 1), None);
        assert_eq!(
            memory.enter(at(51), 1),
            Some(Outcome::Early(SPACING - Duration::from_millis(1)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_pauses_whatever_comes_but_a_change_of_the_spec() {
        let (memory, now) = (Memory::new("a"), Instant::now());
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            last = memory.failed(now, 1);
        }
        assert_eq!(last, PAUSES.1);
        assert_eq!(
            memory.enter(now + SPACING, 1),
            Some(Outcome::Early(PAUSES.1 - SPACING)),
        );
        assert_eq!(memory.enter(now + SPACING, 2), None);
        memory.succeeded();
        assert_eq!(memory.failed(now, 2), PAUSES.0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_status_is_written_twice_a_second() {
        let (memory, now) = (Memory::new("a"), Instant::now());
        assert_eq!(memory.enter_status(now), None);
        assert_eq!(memory.enter_status(now), Some(STATUS_PERIOD));
        assert_eq!(memory.enter_status(now + STATUS_PERIOD), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_pod_is_left_alone_for_a_while() {
        let (memory, now) = (Memory::new("a"), Instant::now());
        memory.hold("pod", "why", now);
        assert_eq!(memory.held("pod", now), Some(HELD));
        assert_eq!(memory.held("other", now), None);
        assert_eq!(memory.held("pod", now + HELD), None);
    }

    #[tokio::test(start_paused = true)]
    async fn creation_that_was_done_after_all_is_refused_no_more() {
        let (memory, now) = (Memory::new("a"), Instant::now());
        let slots = |id| [Slot::Pod(id), Slot::Claim(id, "data".to_owned())];
        for slot in slots(3).iter().chain(&slots(4)) {
            memory.refuse(slot.key(), "no answer", now, 1);
        }
        let refused = || {
            let facts = memory.facts(std::iter::empty(), std::iter::empty(), now, 1);
            facts.creations.into_keys().collect::<Vec<_>>()
        };
        let pod = memory.choose(&Slot::Pod(3), "web-");
        memory.note_name(&Slot::Claim(3, "data".to_owned()), "web-data-3");
        memory.forget_seen(|slot, name| *slot == Slot::Pod(3) && name == pod);
        assert_eq!(refused(), [3, 4], "its claim has yet to be seen");
        memory.forget_seen(|_, name| name == "web-data-3");
        assert_eq!(refused(), [4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_held_again_and_again_is_a_fact_of_the_plan() {
        let (memory, now) = (Memory::new("a"), Instant::now());
        let none = || std::iter::empty();
        let facts = |at| {
            let facts = memory.facts(std::iter::empty(), none(), at, 1);
            (facts.pods, facts.held)
        };
        memory.hold("pod", "why", now);
        memory.hold_for("claim", now, HELD);
        let pods = BTreeSet::from(["pod", "claim"].map(str::to_owned));
        let held = (pods, BTreeMap::from([("pod".to_owned(), "why".to_owned())]));
        assert_eq!(facts(now), held);
        assert_eq!(facts(now + HELD), held, "when it is tried again");
        assert_eq!(facts(now + HELD * 10), Default::default());
    }
}
