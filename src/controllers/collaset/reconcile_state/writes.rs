//! Writes that the API server refused, and objects that must not be written for a while.

use std::time::Duration;

use tokio::time::Instant;

use super::super::refusals::{BACKOFF_RANGE, KnownRefusal, MAX_UNTRIED_BACKOFF, RefusalKey};
use super::ReconcileState;
use crate::api::size_limits::truncate_text;

/// If admission denied a write of a Pod, the controller does not write the Pod again for this time.
pub const HELD_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum length, in characters, of the stored message of an admission denial.
const MAX_MESSAGE_CHARS: usize = 300;

/// The time until which an object must not be written.
#[derive(Debug)]
pub(super) struct WriteHold {
    pub(super) until: Instant,
    /// The message of the denial, if admission denied a write of the object.
    pub(super) denial: Option<String>,
}

impl ReconcileState {
    /// Records that admission denied a write of this Pod, and the message.
    pub fn record_held_write(&self, uid: &str, denial: &str, now: Instant) {
        let mut locked = self.locked.lock();
        let hold = locked
            .write_holds
            .entry(uid.to_owned())
            .or_insert(WriteHold {
                until: now,
                denial: None,
            });
        hold.until = now + HELD_BACKOFF;
        // If only the figures of the message change, the first message stays. Otherwise each change of a figure would
        // cause a write of the status.
        let without_digits = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let denial = truncate_text(denial, MAX_MESSAGE_CHARS);
        let known = hold.denial.as_deref().map(without_digits);
        if known != Some(without_digits(&denial)) {
            hold.denial = Some(denial);
        }
    }

    /// Records that admission no longer denies the writes of this Pod.
    pub fn clear_hold(&self, uid: &str) {
        self.locked.lock().write_holds.remove(uid);
    }

    /// Records that an object must not be written for this time.
    pub fn hold_object_for(&self, uid: &str, now: Instant, pause: Duration) {
        let mut locked = self.locked.lock();
        let hold = WriteHold {
            until: now + pause,
            denial: None,
        };
        locked.write_holds.insert(uid.to_owned(), hold);
    }

    /// The remaining time in which an object must not be written; `None` if it may be written.
    pub fn hold_remaining(&self, uid: &str, now: Instant) -> Option<Duration> {
        let locked = self.locked.lock();
        let until = locked.write_holds.get(uid)?.until;
        (until > now).then(|| until - now)
    }

    /// Records a refusal. Returns the time until the next try.
    pub fn record_refusal(
        &self,
        key: RefusalKey,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let mut locked = self.locked.lock();
        locked
            .refusals
            .record_refusal(key, message, now, generation)
    }

    /// As [`Self::record_refusal`], with another maximum backoff.
    pub fn record_refusal_capped(
        &self,
        max_backoff: Duration,
        key: RefusalKey,
        message: &str,
        now: Instant,
        generation: i64,
    ) -> Duration {
        let refusals = &mut self.locked.lock().refusals;
        refusals.record_refusal_capped(max_backoff, key, message, now, generation)
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
        let max_backoff = if never_tried {
            MAX_UNTRIED_BACKOFF
        } else {
            BACKOFF_RANGE.1
        };
        self.record_refusal_capped(max_backoff, key, message, now, generation)
    }

    /// What is known of a write that a plan asks for; `None` if it was not refused.
    pub fn mark_write_wanted(
        &self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<KnownRefusal> {
        self.locked
            .lock()
            .refusals
            .mark_wanted(key, now, generation)
    }

    /// The remaining backoff of a write, and the message of its refusal; `None` if the write may be tried.
    pub fn active_refusal(
        &self,
        key: &RefusalKey,
        now: Instant,
        generation: i64,
    ) -> Option<(Duration, String)> {
        self.locked
            .lock()
            .refusals
            .active_refusal(key, now, generation)
    }

    /// How many times in a row a write was refused, and the last reason.
    pub fn last_refusal(&self, key: &RefusalKey) -> Option<(u32, String)> {
        let locked = self.locked.lock();
        let (times, reason) = locked.refusals.last_refusal(key)?;
        Some((times, reason.to_owned()))
    }

    /// Records that a write succeeded.
    pub fn clear_refusal(&self, key: &RefusalKey) {
        self.locked.lock().refusals.clear_refusal(key);
    }

    /// Forgets all late refusals, so that the refused writes may be tried at once.
    pub fn clear_late_refusals(&self) {
        self.locked.lock().refusals.clear_late_refusals();
    }
}
