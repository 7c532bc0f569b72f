//! What the controller remembers of a PodDecoration between two runs. Everything may be lost: the memory saves requests,
//! and it decides nothing.

use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::time::Instant;

use super::super::collaset::refusals::{RefusalBackoff, RefusalKey};
use crate::controllers::run_pace::RunPace;
use crate::domain::decoration::observed::RefusedWrites;

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
    pace: RunPace,
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

    /// When the next run may begin.
    pub fn pace(&self) -> MappedMutexGuard<'_, RunPace> {
        MutexGuard::map(self.locked.lock(), |locked| &mut locked.pace)
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
