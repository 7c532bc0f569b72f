//! Decides when an owner is woken.

use std::time::Duration;

use tokio::time::Instant;

use super::owner_state::OwnerState;

/// A controller that acts by itself does so within this time after the budget gets headroom.
const INITIAL_DELAY: Duration = Duration::from_millis(300);

/// The longest pause between two attempts.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The attempts for one owner since the owner last changed.
///
/// Only a write that succeeded counts as a try. An attempt that fails, because the API server refuses the write or does
/// not answer, is repeated without end. The pauses double up to [`MAX_DELAY`].
#[derive(Debug)]
pub struct OwnerBackoff {
    tried_state: OwnerState,
    max_tries: u32,
    started_at: Instant,
    /// Writes that succeeded.
    tries: u32,
    /// Attempts since the last write that succeeded. The latest attempt counts until
    /// [`OwnerBackoff::record_owner_write`] is called.
    failures: u32,
    due: Instant,
}

/// What to do for an owner now.
#[derive(Debug, PartialEq, Eq)]
pub enum BackoffDecision {
    /// Write now. Call [`OwnerBackoff::record_owner_write`] if the write succeeds, and decide again after this time.
    Wake(Duration),
    /// Decide again after this time.
    Wait(Duration),
    /// Do nothing until the owner changes.
    Rest,
}

impl OwnerBackoff {
    /// An owner that is woken from `now` on, at most `max_tries` times while its state stays `tried_state`.
    pub fn new(tried_state: OwnerState, now: Instant, max_tries: u32) -> OwnerBackoff {
        OwnerBackoff {
            tried_state,
            max_tries,
            started_at: now,
            tries: 0,
            failures: 0,
            due: now + INITIAL_DELAY,
        }
    }

    /// Decides for the owner at `now`. If its state has changed, the owner gets all its tries again.
    pub fn decide_for_state(&mut self, state: OwnerState, now: Instant) -> BackoffDecision {
        if self.tried_state != state {
            *self = OwnerBackoff::new(state, now, self.max_tries);
        }
        self.decide_attempt(now)
    }

    /// As [`OwnerBackoff::decide_for_state`], for an owner that gets no further tries when it changes.
    pub fn decide_attempt(&mut self, now: Instant) -> BackoffDecision {
        if self.tries >= self.max_tries {
            return BackoffDecision::Rest;
        }
        if now < self.due {
            return BackoffDecision::Wait(self.due - now);
        }
        self.failures = self.failures.saturating_add(1);
        BackoffDecision::Wake(self.schedule_next(now))
    }

    /// Records that the last attempt succeeded at `now`. Returns the time until the next decision.
    pub fn record_owner_write(&mut self, now: Instant) -> Duration {
        self.tries += 1;
        self.failures = 0;
        self.schedule_next(now)
    }

    /// Gives the owner all its tries again and keeps the pauses, because no try could have an effect.
    pub fn reset_tries(&mut self) {
        self.tries = 0;
    }

    /// Starts from the beginning at `now`, because the reason why the tries had no effect is gone. Returns the time
    /// until the next decision.
    pub fn restart_backoff(&mut self, now: Instant) -> Duration {
        *self = OwnerBackoff::new(self.tried_state, now, self.max_tries);
        INITIAL_DELAY
    }

    /// Whether the last attempt is the first one since the owner changed.
    pub fn is_first_attempt(&self) -> bool {
        self.tries == 0 && self.failures <= 1
    }

    /// Whether an attempt before the last one failed, and none has succeeded since.
    pub fn is_failing(&self) -> bool {
        self.failures > 1
    }

    /// How long ago this backoff began.
    pub fn age(&self, now: Instant) -> Duration {
        now - self.started_at
    }

    /// Schedules the next attempt. Returns the pause until then.
    fn schedule_next(&mut self, now: Instant) -> Duration {
        let attempts = self.tries.saturating_add(self.failures);
        let pause = INITIAL_DELAY.saturating_mul(2u32.saturating_pow(attempts));
        let pause = pause.min(MAX_DELAY);
        self.due = now + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TRIES: u32 = 8;

    const STATE: OwnerState = OwnerState {
        version: 1,
        alive: 5,
        free: 5,
        rules: 1,
    };

    /// How many times an owner that does not change is woken in 1,000 s.
    fn count_wakes(backoff: &mut OwnerBackoff, state: OwnerState, now: &mut Instant) -> u32 {
        let mut wakes = 0;
        for _ in 0..1_000 {
            *now += Duration::from_secs(1);
            if let BackoffDecision::Wake(_) = backoff.decide_for_state(state, *now) {
                backoff.record_owner_write(*now);
                wakes += 1;
            }
        }
        wakes
    }

    #[test]
    fn controller_gets_time_to_act_by_itself() {
        let now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
        assert_eq!(
            backoff.decide_for_state(STATE, now),
            BackoffDecision::Wait(INITIAL_DELAY)
        );
        assert_eq!(
            backoff.decide_for_state(STATE, now + INITIAL_DELAY),
            BackoffDecision::Wake(2 * INITIAL_DELAY)
        );
        assert_eq!(
            backoff.decide_for_state(STATE, now + INITIAL_DELAY),
            BackoffDecision::Wait(2 * INITIAL_DELAY)
        );
    }

    #[test]
    fn unresponsive_owner_is_not_woken_until_it_changes() {
        let mut now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
        assert_eq!(count_wakes(&mut backoff, STATE, &mut now), MAX_TRIES);
        assert_eq!(backoff.decide_for_state(STATE, now), BackoffDecision::Rest);
        let changed = OwnerState { alive: 4, ..STATE };
        assert_eq!(
            backoff.decide_for_state(changed, now),
            BackoffDecision::Wait(INITIAL_DELAY)
        );
    }

    #[test]
    fn more_headroom_or_edited_rule_wakes_again() {
        for changed in [
            OwnerState { free: 6, ..STATE },
            OwnerState { rules: 2, ..STATE },
        ] {
            let mut now = Instant::now();
            let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
            count_wakes(&mut backoff, STATE, &mut now);
            assert_eq!(
                count_wakes(&mut backoff, changed, &mut now),
                MAX_TRIES,
                "{changed:?}"
            );
        }
    }

    #[test]
    fn uncovered_owner_gets_its_tries_once() {
        let mut now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, 2);
        let mut decisions = Vec::new();
        for _ in 0..3 {
            now += Duration::from_secs(1);
            let decision = backoff.decide_attempt(now);
            if let BackoffDecision::Wake(_) = decision {
                backoff.record_owner_write(now);
            }
            decisions.push(decision);
        }
        let pauses = [2, 4].map(|times| BackoffDecision::Wake(times * INITIAL_DELAY));
        assert_eq!(decisions[..2], pauses);
        assert_eq!(decisions[2], BackoffDecision::Rest);
    }

    /// Lets every attempt fail for this many seconds. Returns the pauses.
    fn fail_attempts(backoff: &mut OwnerBackoff, now: &mut Instant, seconds: u64) -> Vec<Duration> {
        let mut pauses = Vec::new();
        for _ in 0..seconds {
            *now += Duration::from_secs(1);
            if let BackoffDecision::Wake(pause) = backoff.decide_for_state(STATE, *now) {
                pauses.push(pause);
            }
        }
        pauses
    }

    #[test]
    fn failed_write_is_repeated_with_growing_pauses() {
        let mut now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, 2);
        let pauses = fail_attempts(&mut backoff, &mut now, 1_000);
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!(pauses[..3], [2, 4, 8].map(|times| times * INITIAL_DELAY));
        assert_eq!(pauses.last(), Some(&MAX_DELAY));
        assert!((16..=24).contains(&pauses.len()), "{}", pauses.len());
    }

    #[test]
    fn failed_write_does_not_count_as_try() {
        let mut now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
        fail_attempts(&mut backoff, &mut now, 1_000);
        assert!(backoff.is_failing());
        assert_eq!(count_wakes(&mut backoff, STATE, &mut now), MAX_TRIES);
        assert!(!backoff.is_failing());
    }

    #[test]
    fn first_write_after_failures_shortens_the_pauses() {
        let mut now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
        fail_attempts(&mut backoff, &mut now, 1_000);
        now += MAX_DELAY;
        assert_eq!(
            backoff.decide_for_state(STATE, now),
            BackoffDecision::Wake(MAX_DELAY)
        );
        assert_eq!(backoff.record_owner_write(now), 2 * INITIAL_DELAY);
        let decision = backoff.decide_for_state(STATE, now + 2 * INITIAL_DELAY);
        assert_eq!(decision, BackoffDecision::Wake(4 * INITIAL_DELAY));
    }

    #[test]
    fn ineffective_tries_are_reset() {
        let mut now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
        for _ in 0..MAX_TRIES - 1 {
            now += MAX_DELAY;
            backoff.decide_for_state(STATE, now);
            backoff.record_owner_write(now);
        }
        backoff.reset_tries();
        assert_eq!(count_wakes(&mut backoff, STATE, &mut now), MAX_TRIES);
        assert_eq!(backoff.restart_backoff(now), INITIAL_DELAY);
        assert_eq!(count_wakes(&mut backoff, STATE, &mut now), MAX_TRIES);
    }

    #[test]
    fn only_first_attempt_is_marked_first() {
        let now = Instant::now();
        let mut backoff = OwnerBackoff::new(STATE, now, MAX_TRIES);
        backoff.decide_for_state(STATE, now + INITIAL_DELAY);
        assert!(backoff.is_first_attempt());
        backoff.decide_for_state(STATE, now + MAX_DELAY);
        assert!(!backoff.is_first_attempt(), "the attempt before failed");
        backoff.record_owner_write(now + MAX_DELAY);
        backoff.decide_for_state(STATE, now + 2 * MAX_DELAY);
        assert!(!backoff.is_first_attempt(), "the try before was in vain");
    }
}
