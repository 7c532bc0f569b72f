//! What the API server refused. Each write has a backoff of its own, so that a write that is always refused does not
//! delay the others.
//!
//! A *late* refusal is the refusal of a change or deletion whose dry run had passed.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// First and longest backoff. Events do not shorten a backoff: if a set has no quota left, it does not retry at each
/// event of its Pods. A change of the spec ends the backoff.
pub const BACKOFF_RANGE: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(10));
/// Longest backoff of writes that were never tried, because other writes of their kind were refused.
pub const MAX_UNTRIED_BACKOFF: Duration = Duration::from_secs(1);

/// Longest backoff after late refusals. Each try takes a Pod off traffic.
pub const MAX_LATE_BACKOFF: Duration = Duration::from_mins(1);
/// How long the number of tries is remembered after the backoff of a late refusal ended. A try may take a long time.
const LATE_REFUSAL_TTL: Duration = Duration::from_mins(30);

/// The write that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKey {
    /// The creation or renumbering of the revision of the template.
    Revision,
    /// Another change of a revision, by its name.
    RevisionWrite(String),
    /// The removal of the annotation by which users command a rollout.
    Command,
    /// The live reads before a plan is carried out.
    LiveRead,
    /// A write of the ResourceContext.
    Pool,
    Status,
    /// A write of an annotation of the object.
    Annotation,
    /// The removal of the finalizer.
    Finalizer,
    /// The creation of the PVC of an instance ID and a volume claim template.
    Pvc(i64, String),
    /// A change of a PVC, by its name.
    PvcWrite(String),
    /// The creation of the Pod of an instance ID.
    Pod(i64),
    /// A write of a Pod, by its UID.
    PodWrite(String),
    /// A live read of a Pod, by its name.
    PodRead(String),
    /// A write of the ContainerRecreateRequest of a Pod, by the UID of the Pod.
    RecreateRequest(String),
    /// The deletion of the object itself.
    Deletion,
    /// A change of a Pod to another revision, or the dry run of such a change, by the Pod's UID.
    PodChange(String),
    /// Late refusals of changes to a revision, by the name of the revision. A change of any Pod to the revision that
    /// succeeds ends this refusal.
    LateChanges(String),
    /// The late refusal of the change of one Pod, by the name of the revision and the Pod's UID. Only a change of this
    /// Pod that succeeds ends this refusal.
    LateChange(String, String),
    /// Late refusals of deletions. A deletion of any Pod in an update that succeeds ends this refusal.
    LateDeletions,
    /// The late refusal of the deletion of one Pod, by its UID.
    LateDeletion(String),
    /// All writes of a kind: so many were refused that the others would be refused too.
    All(BatchKind),
}

/// Kinds of writes that are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// Changes of revisions.
    RevisionWrites,
    /// Changes of PVCs.
    PvcWrites,
    PvcCreations,
    /// Writes of Pods, including deletions.
    PodWrites,
    /// Changes of Pods to another revision.
    PodChanges,
    /// Updates that begin with a dry run.
    PodDryRuns,
    PodCreations,
}

/// What is remembered of one refused write.
#[derive(Clone, Debug)]
struct RefusalRecord {
    refused_at: Instant,
    until: Instant,
    /// When a plan last asked for the write.
    wanted_at: Instant,
    times: u32,
    generation: i64,
    message: String,
}

/// What is known of a write that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRefusal {
    /// When the write was last tried.
    pub at: Instant,
    /// The remaining backoff; zero if the write may be tried.
    pub remaining: Duration,
    /// The reason; `None` if the spec has changed since.
    pub message: Option<String>,
}

fn is_late_key(key: &RefusalKey) -> bool {
    use RefusalKey::{LateChange, LateChanges, LateDeletion, LateDeletions};
    matches!(
        key,
        LateChanges(_) | LateChange(..) | LateDeletions | LateDeletion(_)
    )
}

/// The refused writes of one set, with their backoff.
#[derive(Debug, Default)]
pub struct RefusalBackoff(HashMap<RefusalKey, RefusalRecord>);

impl RefusalBackoff {
    /// Records a refusal. Returns the backoff, which doubles with each refusal in a row.
    pub fn record_refusal(
        &mut self,
        key: RefusalKey,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        self.record_refusal_capped(BACKOFF_RANGE.1, key, message, now, generation)
    }

    /// As [`Self::record_refusal`], with another maximum backoff.
    pub fn record_refusal_capped(
        &mut self,
        max_backoff: Duration,
        key: RefusalKey,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let last = self.0.get(&key).filter(|r| r.generation == generation);
        let times = last.map_or(0, |refusal| refusal.times);
        let pause = max_backoff.min(BACKOFF_RANGE.0 * 2u32.pow(times));
        let refusal = RefusalRecord {
            refused_at: now,
            until: now + pause,
            wanted_at: now,
            times: (times + 1).min(12),
            generation,
            message: message.to_owned(),
        };
        self.0.insert(key, refusal);
        pause
    }

    /// The remaining backoff of a write, and the message of its refusal; `None` if the write may be tried.
    pub fn active_refusal(
        &self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<(Duration, String)> {
        let refusal = self.0.get(key)?;
        let remaining = refusal.until.saturating_duration_since(now);
        let is_active = refusal.generation == generation && !remaining.is_zero();
        is_active.then(|| (remaining, refusal.message.clone()))
    }

    /// What is known of a write that a plan asks for; `None` if it was not refused.
    pub fn mark_wanted(
        &mut self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<KnownRefusal> {
        let refusal = self.0.get_mut(key)?;
        refusal.wanted_at = now;
        let is_of_same_spec = refusal.generation == generation;
        let remaining = refusal.until.saturating_duration_since(now);
        Some(KnownRefusal {
            at: refusal.refused_at,
            remaining: if is_of_same_spec {
                remaining
            } else {
                Duration::ZERO
            },
            message: is_of_same_spec.then(|| refusal.message.clone()),
        })
    }

    /// How many times in a row a write was refused, and the last reason.
    pub fn last_refusal(&self, key: &RefusalKey) -> Option<(u32, &str)> {
        let refusal = self.0.get(key)?;
        Some((refusal.times, &refusal.message))
    }

    /// Forgets the refusal of a write that succeeded.
    pub fn clear_refusal(&mut self, key: &RefusalKey) {
        self.0.remove(key);
    }

    /// Forgets all late refusals, because a user commands another try.
    pub fn clear_late_refusals(&mut self) {
        self.0.retain(|key, _| !is_late_key(key));
    }

    /// Instance IDs for which the creation of the Pod or a PVC was refused in the last try, with the reason.
    pub fn refused_creations(&self) -> impl Iterator<Item = (i64, &str)> {
        self.0.iter().filter_map(|(key, refusal)| match key {
            RefusalKey::Pod(id) | RefusalKey::Pvc(id, _) => Some((*id, refusal.message.as_str())),
            _ => None,
        })
    }

    /// Names of the revisions with a late refusal that no later change has ended.
    pub fn late_refused_revisions(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| match key {
            RefusalKey::LateChanges(revision) => Some(revision.as_str()),
            _ => None,
        })
    }

    /// UIDs of the Pods with a refused write that is no change to another revision.
    pub fn refused_pods(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| match key {
            RefusalKey::PodWrite(uid) => Some(uid.as_str()),
            _ => None,
        })
    }

    /// Names of the PVCs whose last change was refused.
    pub fn refused_pvcs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| match key {
            RefusalKey::PvcWrite(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Forgets refusals of writes that no plan has asked for during a long time.
    pub fn remove_expired(&mut self, now: Instant) {
        let ttl = |key: &RefusalKey| match key {
            key if is_late_key(key) => LATE_REFUSAL_TTL,
            _ => BACKOFF_RANGE.1 * 6,
        };
        self.0
            .retain(|key, refusal| refusal.until.max(refusal.wanted_at) + ttl(key) > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusal_backoff_grows_until_success() {
        let (mut refusals, now) = (RefusalBackoff::default(), Instant::now());
        let pause = refusals.record_refusal(RefusalKey::Pool, "no", now, 1);
        assert_eq!(pause, BACKOFF_RANGE.0);
        let refusal = Some((pause, "no".to_owned()));
        assert_eq!(refusals.active_refusal(&RefusalKey::Pool, now, 1), refusal);
        assert_eq!(refusals.active_refusal(&RefusalKey::Pod(0), now, 1), None);
        assert_eq!(
            refusals.active_refusal(&RefusalKey::Pool, now + pause, 1),
            None
        );
        assert_eq!(
            refusals.active_refusal(&RefusalKey::Pool, now, 2),
            None,
            "another spec"
        );
        for _ in 0..20 {
            refusals.record_refusal(RefusalKey::Pool, "no", now, 1);
        }
        assert_eq!(
            refusals.record_refusal(RefusalKey::Pool, "no", now, 1),
            BACKOFF_RANGE.1
        );
        assert_eq!(
            refusals.record_refusal(RefusalKey::Pool, "no", now, 2),
            BACKOFF_RANGE.0
        );
        refusals.clear_refusal(&RefusalKey::Pool);
        assert_eq!(
            refusals.record_refusal(RefusalKey::Pool, "no", now, 2),
            BACKOFF_RANGE.0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn late_refusal_count_outlasts_slow_tries() {
        let (mut refusals, mut now) = (RefusalBackoff::default(), Instant::now());
        let mut pause = Duration::ZERO;
        for _ in 0..20 {
            let key = RefusalKey::LateChanges("web-1".to_owned());
            pause = refusals.record_refusal_capped(MAX_LATE_BACKOFF, key, "no", now, 0);
            now += pause + BACKOFF_RANGE.1 * 12; // the rules hold the Pod, and then its traffic drains
            refusals.remove_expired(now);
        }
        assert_eq!(pause, MAX_LATE_BACKOFF);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_instance_ids_are_listed_until_unwanted() {
        let (mut refusals, now) = (RefusalBackoff::default(), Instant::now());
        refusals.record_refusal(RefusalKey::Pod(3), "policy", now, 1);
        refusals.record_refusal(RefusalKey::Pvc(4, "data".to_owned()), "quota", now, 1);
        refusals.record_refusal(RefusalKey::Pool, "no", now, 1);
        let refused_ids = |refusals: &RefusalBackoff| {
            let mut ids: Vec<_> = refusals.refused_creations().map(|(id, _)| id).collect();
            ids.sort_unstable();
            ids
        };
        refusals.remove_expired(now + BACKOFF_RANGE.1);
        assert_eq!(refused_ids(&refusals), [3, 4]);
        refusals.remove_expired(now + BACKOFF_RANGE.1 * 10);
        assert!(refused_ids(&refusals).is_empty());
    }
}
