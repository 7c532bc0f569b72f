//! What the API server would not do: each thing is left alone for a while of its own, so that one that is always refused
//! holds up no other.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// First and longest time that something is left alone. Events don't cut it short: a set that has run out of quota does not
/// ask again at each of its Pods' heartbeats. A change of its spec does.
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Longest time that writes are left alone which were never tried, because others of their kind were refused.
pub const UNTRIED: Duration = Duration::from_secs(1);

/// Longest time that updates are left alone whose change is refused although its dry run passes: each try takes a Pod off traffic.
pub const LATE: Duration = Duration::from_mins(1);
/// For so long it is known after that how often it was tried: a try may take its time.
const LATE_KNOWN: Duration = Duration::from_mins(30);

/// What can be refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The revision of the template.
    Revision,
    /// Another change of a revision, by its name.
    RevisionWrite(String),
    /// The removal of the annotation by which users command a rollout.
    Command,
    /// What is read before a plan is carried out.
    Look,
    /// The pool of instance IDs.
    Pool,
    /// The status.
    Status,
    /// The removal of the finalizer.
    Finalizer,
    /// The creation of the claim of an instance ID and a claim template.
    Claim(i64, String),
    /// A change of a claim, by its name.
    ClaimWrite(String),
    /// The creation of the Pod of an instance ID.
    Pod(i64),
    /// A write of a Pod, by its UID.
    PodWrite(String),
    /// A change of a Pod to another revision, or the dry run of one, by its UID.
    PodChange(String),
    /// Changes to a revision that are refused although their dry runs pass, by the name of the revision. Another Pod's change that
    /// succeeds ends this.
    LateRefusal(String),
    /// The same of one Pod, by the name of the revision and the Pod's UID. Only its own change ends this.
    LateRefusalOf(String, String),
    /// Deletions that are refused although their dry runs pass. Any that succeeds ends this.
    LateDeletions,
    /// The deletion of a Pod, by its UID, that is refused although its dry run passes.
    LateDeletion(String),
    /// All of a kind: so many were refused that the others would be too.
    All(Kind),
}

/// Kinds of writes that are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Changes of revisions.
    RevisionWrites,
    /// Changes of claims.
    ClaimWrites,
    /// Creations of claims.
    ClaimCreations,
    /// Writes of Pods, deletions too.
    PodWrites,
    /// Changes of Pods to another revision.
    PodChanges,
    /// Updates that begin with a dry run.
    PodTrials,
    /// Creations of Pods.
    PodCreations,
}

/// One thing that was refused.
#[derive(Clone, Debug)]
struct Refusal {
    at: Instant,
    until: Instant,
    /// When a plan last asked for it.
    wanted: Instant,
    times: u32,
    generation: i64,
    message: String,
}

/// What is known of something that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// When it was last tried.
    pub at: Instant,
    /// How long it is still to be left alone; zero if it may be tried.
    pub left: Duration,
    /// Why, unless the spec has changed since.
    pub message: Option<String>,
}

fn is_late(key: &Key) -> bool {
    use Key::{LateDeletion, LateDeletions, LateRefusal, LateRefusalOf};
    matches!(
        key,
        LateRefusal(_) | LateRefusalOf(..) | LateDeletion(_) | LateDeletions
    )
}

/// What is left alone.
#[derive(Debug, Default)]
pub struct Refusals(HashMap<Key, Refusal>);

impl Refusals {
    /// Notes a refusal; how long to leave that alone, longer each time.
    pub fn note(&mut self, key: Key, message: &str, now: Instant, generation: i64) -> Duration {
        self.note_for(PAUSES.1, key, message, now, generation)
    }

    /// The same with another longest pause.
    pub fn note_for(
        &mut self,
        longest: Duration,
        key: Key,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let times = self.0.get(&key).filter(|r| r.generation == generation);
        let times = times.map_or(0, |refusal| refusal.times);
        let pause = longest.min(PAUSES.0 * 2u32.pow(times));
        let refusal = Refusal {
            at: now,
            until: now + pause,
            wanted: now,
            times: (times + 1).min(12),
            generation,
            message: message.to_owned(),
        };
        self.0.insert(key, refusal);
        pause
    }

    /// How long something is still to be left alone, and why; `None` if it may be tried.
    pub fn left(&self, key: &Key, now: Instant, generation: i64) -> Option<(Duration, String)> {
        let refusal = self.0.get(key)?;
        let left = refusal.until.saturating_duration_since(now);
        let stands = refusal.generation == generation && !left.is_zero();
        stands.then(|| (left, refusal.message.clone()))
    }

    /// What is known of a write that a plan asks for; `None` if it was not refused.
    pub fn known(&mut self, key: &Key, now: Instant, generation: i64) -> Option<Known> {
        let refusal = self.0.get_mut(key)?;
        refusal.wanted = now;
        let stands = refusal.generation == generation;
        let left = refusal.until.saturating_duration_since(now);
        Some(Known {
            at: refusal.at,
            left: if stands { left } else { Duration::ZERO },
            message: stands.then(|| refusal.message.clone()),
        })
    }

    /// Why something was refused when it was last tried, and how often it was in a row.
    pub fn last(&self, key: &Key) -> Option<(u32, &str)> {
        let refusal = self.0.get(key)?;
        Some((refusal.times, &refusal.message))
    }

    /// It has been done.
    pub fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Forgets what was refused late: a user wants it tried again.
    pub fn forget_late(&mut self) {
        self.0.retain(|key, _| !is_late(key));
    }

    /// Instance IDs whose Pod or claim could not be created when that was last tried, and why.
    pub fn creations(&self) -> impl Iterator<Item = (i64, &str)> {
        self.0.iter().filter_map(|(key, refusal)| match key {
            Key::Pod(id) | Key::Claim(id, _) => Some((*id, refusal.message.as_str())),
            _ => None,
        })
    }

    /// Names of revisions to which a change was refused late, and none was made since.
    pub fn late(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| match key {
            Key::LateRefusal(revision) => Some(revision.as_str()),
            _ => None,
        })
    }

    /// UIDs of the Pods that could not be changed when that was last tried.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| match key {
            Key::PodWrite(uid) => Some(uid.as_str()),
            _ => None,
        })
    }

    /// Names of the claims that could not be changed when that was last tried.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| match key {
            Key::ClaimWrite(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Forgets what no plan has asked for for a long time.
    pub fn tidy(&mut self, now: Instant) {
        let known = |key: &Key| match key {
            key if is_late(key) => LATE_KNOWN,
            _ => PAUSES.1 * 6,
        };
        self.0
            .retain(|key, refusal| refusal.until.max(refusal.wanted) + known(key) > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_is_left_alone_for_longer_each_time_until_it_is_done() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let pause = refusals.note(Key::Pool, "no", now, 1);
        assert_eq!(pause, PAUSES.0);
        let told = Some((pause, "no".to_owned()));
        assert_eq!(refusals.left(&Key::Pool, now, 1), told);
        assert_eq!(refusals.left(&Key::Pod(0), now, 1), None);
        assert_eq!(refusals.left(&Key::Pool, now + pause, 1), None);
        assert_eq!(refusals.left(&Key::Pool, now, 2), None, "another spec");
        for _ in 0..20 {
            refusals.note(Key::Pool, "no", now, 1);
        }
        assert_eq!(refusals.note(Key::Pool, "no", now, 1), PAUSES.1);
        assert_eq!(refusals.note(Key::Pool, "no", now, 2), PAUSES.0);
        refusals.forget(&Key::Pool);
        assert_eq!(refusals.note(Key::Pool, "no", now, 2), PAUSES.0);
    }

    #[tokio::test(start_paused = true)]
    async fn late_refusals_are_counted_on_although_a_try_takes_long() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        let mut pause = Duration::ZERO;
        for _ in 0..20 {
            let key = Key::LateRefusal("web-1".to_owned());
            pause = refusals.note_for(LATE, key, "no", now, 0);
            now += pause + PAUSES.1 * 12; // rules hold it, it drains
            refusals.tidy(now);
        }
        assert_eq!(pause, LATE);
    }

    #[tokio::test(start_paused = true)]
    async fn ids_that_stay_vacant_are_told_until_nobody_wants_them() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.note(Key::Pod(3), "policy", now, 1);
        refusals.note(Key::Claim(4, "data".to_owned()), "quota", now, 1);
        refusals.note(Key::Pool, "no", now, 1);
        let told = |refusals: &Refusals| {
            let mut told: Vec<_> = refusals.creations().map(|(id, _)| id).collect();
            told.sort_unstable();
            told
        };
        refusals.tidy(now + PAUSES.1);
        assert_eq!(told(&refusals), [3, 4]);
        refusals.tidy(now + PAUSES.1 * 10);
        assert!(told(&refusals).is_empty());
    }
}
