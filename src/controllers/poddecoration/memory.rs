//! What the controller remembers of a PodDecoration between two runs. Everything may be lost: the memory saves requests,
//! and it decides nothing.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::collaset::refusals::{RefusalBackoff, RefusalKey};
use crate::domain::decoration::observed::RefusedWrites;

/// Minimum time between two runs for a PodDecoration. Many Pod events cause one run. A change of the spec does not wait.
pub const MIN_RUN_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time between the end of a run and the next run that is due.
const MAX_RUN_INTERVAL: Duration = Duration::from_secs(5);
/// A plan reads all CollaSets of the namespace. The time between two runs is at least this multiple of the time that the
/// last plan took, so that a large namespace with many Pod events does not keep a core busy.
const RUN_INTERVAL_PER_PLAN: u32 = 10;
/// Minimum time between two writes of the status.
pub const MIN_STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// What the controller remembers of one PodDecoration.
#[derive(Debug, Default)]
pub struct DecorationMemory {
    uid: String,
    locked: Mutex<LockedMemory>,
}

#[derive(Debug, Default)]
struct LockedMemory {
    /// The begin of the last run, and the generation that it read.
    last_run: Option<(Instant, i64)>,
    plan_duration: Duration,
    last_status_write: Option<Instant>,
    refusals: RefusalBackoff,
    /// The generation whose unreadable spec was reported.
    reported_unreadable: Option<i64>,
}

impl DecorationMemory {
    /// Creates the empty memory of the PodDecoration with this UID.
    pub fn new(uid: &str) -> Self {
        DecorationMemory {
            uid: uid.to_owned(),
            locked: Mutex::default(),
        }
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Begins a run. If it is too early for a run, returns the remaining time.
    pub fn begin_run(&self, now: Instant, generation: i64) -> Option<Duration> {
        let mut locked = self.locked.lock();
        let pause = locked.plan_duration * RUN_INTERVAL_PER_PLAN;
        let pause = pause.clamp(MIN_RUN_INTERVAL, MAX_RUN_INTERVAL);
        let last_run = locked.last_run.filter(|(_, known)| *known == generation);
        let remaining = last_run.map(|(begin, _)| (begin + pause).saturating_duration_since(now));
        if let Some(remaining) = remaining.filter(|remaining| !remaining.is_zero()) {
            return Some(remaining);
        }
        locked.last_run = Some((now, generation));
        None
    }

    /// Records how long a plan took.
    pub fn record_plan(&self, duration: Duration) {
        self.locked.lock().plan_duration = duration;
    }

    /// Begins a write of the status. If it is too early for a write, returns the remaining time.
    pub fn begin_status_write(&self, now: Instant) -> Option<Duration> {
        let mut locked = self.locked.lock();
        let last_write = locked.last_status_write;
        let next = last_write.map(|write| write + MIN_STATUS_INTERVAL);
        let remaining = next.map(|next| next.saturating_duration_since(now));
        if let Some(remaining) = remaining.filter(|remaining| !remaining.is_zero()) {
            return Some(remaining);
        }
        locked.last_status_write = Some(now);
        None
    }

    /// Records a refusal. The pause until the next try doubles with each refusal in a row.
    pub fn record_refusal(&self, key: RefusalKey, message: &str, now: Instant, generation: i64) {
        let mut locked = self.locked.lock();
        let refusals = &mut locked.refusals;
        refusals.record_refusal(key, message, now, generation);
    }

    /// The remaining time until a refused write may be tried; `None` if it may be tried now.
    pub fn pause_of(&self, key: &RefusalKey, now: Instant, generation: i64) -> Option<Duration> {
        let locked = self.locked.lock();
        let refusal = locked.refusals.active_refusal(key, now, generation);
        refusal.map(|(remaining, _)| remaining)
    }

    /// Forgets the refusal of a write that succeeded.
    pub fn clear_refusal(&self, key: &RefusalKey) {
        self.locked.lock().refusals.clear_refusal(key);
    }

    /// The reasons of refused writes for the planner. A reason stays until the write succeeds or the spec changes, also
    /// while the write is tried again. Otherwise the published value would change with each try, and each change wakes
    /// all CollaSets of the namespace.
    pub fn refused_writes(&self, now: Instant, generation: i64) -> RefusedWrites {
        let mut locked = self.locked.lock();
        let mut message_of = |key: &RefusalKey| {
            let known = locked.refusals.mark_wanted(key, now, generation);
            known.and_then(|known| known.message)
        };
        RefusedWrites {
            revision: message_of(&RefusalKey::Revision),
            finalizer: message_of(&RefusalKey::Finalizer),
        }
    }

    /// Whether it is the first time that this generation is reported as unreadable.
    pub fn begin_unreadable_report(&self, generation: i64) -> bool {
        let mut locked = self.locked.lock();
        locked.reported_unreadable.replace(generation) != Some(generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn long_plans_are_made_less_often() {
        let (memory, begin) = (DecorationMemory::new("u"), Instant::now());
        assert_eq!(memory.begin_run(begin, 1), None);
        assert_eq!(memory.begin_run(begin, 1), Some(MIN_RUN_INTERVAL));
        assert_eq!(memory.begin_run(begin + MIN_RUN_INTERVAL, 1), None);
        memory.record_plan(Duration::from_millis(30));
        let next = begin + 2 * MIN_RUN_INTERVAL;
        let remaining = Duration::from_millis(250);
        assert_eq!(memory.begin_run(next, 1), Some(remaining));
        assert_eq!(memory.begin_run(next, 2), None, "another spec");
        memory.record_plan(Duration::from_mins(1));
        assert_eq!(memory.begin_run(next, 2), Some(MAX_RUN_INTERVAL));
    }

    #[tokio::test(start_paused = true)]
    async fn reason_of_refusal_stays_during_next_try() {
        let (memory, begin) = (DecorationMemory::new("u"), Instant::now());
        let key = RefusalKey::Revision;
        memory.record_refusal(key.clone(), "no quota", begin, 1);
        let later = begin + Duration::from_mins(1);
        assert!(memory.pause_of(&key, begin, 1).is_some());
        assert_eq!(memory.pause_of(&key, later, 1), None);
        assert_eq!(memory.pause_of(&key, begin, 2), None, "another spec");
        let reason = |generation| memory.refused_writes(later, generation).revision;
        assert_eq!(reason(1).as_deref(), Some("no quota"));
        assert_eq!(reason(2), None);
        memory.clear_refusal(&key);
        assert_eq!(memory.refused_writes(later, 1), RefusedWrites::default());
    }
}
