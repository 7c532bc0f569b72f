//! When an owner is woken, and when it is left alone.

use std::time::Duration;

use tokio::time::Instant;

use super::look::Seen;

/// A controller that acts by itself does so within this time after the budget has room.
const PATIENCE: Duration = Duration::from_millis(300);

/// The longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(60);

/// How often something was written for one owner since the owner last changed.
///
/// Only a write that took place is a try. An attempt that fails, because the API server refuses the write or does not
/// answer, is repeated after pauses that double up to [`LONGEST`], without end.
#[derive(Debug)]
pub struct Pace {
    seen: Seen,
    most: u32,
    begun: Instant,
    /// Writes that took place.
    tries: u32,
    /// Attempts since the last write that took place. The latest attempt counts until [`Pace::wrote`] is called.
    failures: u32,
    due: Instant,
}

/// What to do for an owner now.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Write, call [`Pace::wrote`] if the write took place, and look again after this long.
    Wake(Duration),
    /// Look again after this long.
    Wait(Duration),
    /// Nothing until the owner changes.
    Rest,
}

impl Pace {
    /// An owner that is to be woken from `now` on, at most `most` times while it stays as `seen`.
    pub fn new(seen: Seen, now: Instant, most: u32) -> Pace {
        Pace {
            seen,
            most,
            begun: now,
            tries: 0,
            failures: 0,
            due: now + PATIENCE,
        }
    }

    /// The owner at `now`. An owner that has changed gets all its tries again.
    pub fn turn(&mut self, seen: Seen, now: Instant) -> Turn {
        if self.seen != seen {
            *self = Pace::new(seen, now, self.most);
        }
        self.next(now)
    }

    /// As [`Pace::turn`] for an owner that gets no further tries when it changes.
    pub fn next(&mut self, now: Instant) -> Turn {
        if self.tries >= self.most {
            return Turn::Rest;
        }
        if now < self.due {
            return Turn::Wait(self.due - now);
        }
        self.failures = self.failures.saturating_add(1);
        Turn::Wake(self.pause(now))
    }

    /// The write of the last turn took place at `now`. Returns when to look again.
    pub fn wrote(&mut self, now: Instant) -> Duration {
        self.tries += 1;
        self.failures = 0;
        self.pause(now)
    }

    /// Gives the owner all its tries again and keeps the pauses as they are: no try could have had an effect.
    pub fn uncount(&mut self) {
        self.tries = 0;
    }

    /// Starts from the beginning at `now`: what made all tries vain is over. Returns when to look again.
    pub fn restart(&mut self, now: Instant) -> Duration {
        *self = Pace::new(self.seen, now, self.most);
        PATIENCE
    }

    /// Whether the attempt of the last turn is the first one since the owner changed.
    pub fn is_first(&self) -> bool {
        self.tries == 0 && self.failures <= 1
    }

    /// Whether an attempt before the one of the last turn failed, and none has succeeded since.
    pub fn is_failing(&self) -> bool {
        self.failures > 1
    }

    /// How long ago the pace began.
    pub fn age(&self, now: Instant) -> Duration {
        now - self.begun
    }

    /// Lets some time pass before the next attempt.
    fn pause(&mut self, now: Instant) -> Duration {
        let attempts = self.tries.saturating_add(self.failures);
        let pause = PATIENCE.saturating_mul(2u32.saturating_pow(attempts));
        let pause = pause.min(LONGEST);
        self.due = now + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 8;

    const SEEN: Seen = Seen {
        version: 1,
        alive: 5,
        free: 5,
        rules: 1,
    };

    /// How often an owner that does not change is woken in 1,000 s.
    fn woken(pace: &mut Pace, seen: Seen, now: &mut Instant) -> u32 {
        let mut woken = 0;
        for _ in 0..1_000 {
            *now += Duration::from_secs(1);
            if let Turn::Wake(_) = pace.turn(seen, *now) {
                pace.wrote(*now);
                woken += 1;
            }
        }
        woken
    }

    #[test]
    fn controller_gets_time_to_act_by_itself() {
        let now = Instant::now();
        let mut pace = Pace::new(SEEN, now, MOST);
        assert_eq!(pace.turn(SEEN, now), Turn::Wait(PATIENCE));
        assert_eq!(pace.turn(SEEN, now + PATIENCE), Turn::Wake(2 * PATIENCE));
        assert_eq!(pace.turn(SEEN, now + PATIENCE), Turn::Wait(2 * PATIENCE));
    }

    #[test]
    fn owner_that_does_not_react_is_left_alone_until_it_changes() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now, MOST);
        assert_eq!(woken(&mut pace, SEEN, &mut now), MOST);
        assert_eq!(pace.turn(SEEN, now), Turn::Rest);
        let changed = Seen { alive: 4, ..SEEN };
        assert_eq!(pace.turn(changed, now), Turn::Wait(PATIENCE));
    }

    #[test]
    fn room_for_another_pod_or_an_edited_rule_wakes_again() {
        for changed in [Seen { free: 6, ..SEEN }, Seen { rules: 2, ..SEEN }] {
            let mut now = Instant::now();
            let mut pace = Pace::new(SEEN, now, MOST);
            woken(&mut pace, SEEN, &mut now);
            assert_eq!(woken(&mut pace, changed, &mut now), MOST, "{changed:?}");
        }
    }

    #[test]
    fn owner_that_was_released_gets_its_tries_once() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now, 2);
        let mut turns = Vec::new();
        for _ in 0..3 {
            now += Duration::from_secs(1);
            let turn = pace.next(now);
            if let Turn::Wake(_) = turn {
                pace.wrote(now);
            }
            turns.push(turn);
        }
        let pauses = [2, 4].map(|times| Turn::Wake(times * PATIENCE));
        assert_eq!(turns[..2], pauses);
        assert_eq!(turns[2], Turn::Rest);
    }
    /// Fails every attempt for so many seconds. Returns the pauses.
    fn refused(pace: &mut Pace, now: &mut Instant, seconds: u64) -> Vec<Duration> {
        let mut pauses = Vec::new();
        for _ in 0..seconds {
            *now += Duration::from_secs(1);
            if let Turn::Wake(pause) = pace.turn(SEEN, *now) {
                pauses.push(pause);
            }
        }
        pauses
    }

    #[test]
    fn failed_write_is_repeated_with_growing_pauses() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now, 2);
        let pauses = refused(&mut pace, &mut now, 1_000);
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!(pauses[..3], [2, 4, 8].map(|times| times * PATIENCE));
        assert_eq!(pauses.last(), Some(&LONGEST));
        assert!((16..=24).contains(&pauses.len()), "{}", pauses.len());
    }

    #[test]
    fn failed_write_is_no_try() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now, MOST);
        refused(&mut pace, &mut now, 1_000);
        assert!(pace.is_failing());
        assert_eq!(woken(&mut pace, SEEN, &mut now), MOST);
        assert!(!pace.is_failing());
    }

    #[test]
    fn first_write_after_failed_ones_shortens_the_pauses() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now, MOST);
        refused(&mut pace, &mut now, 1_000);
        now += LONGEST;
        assert_eq!(pace.turn(SEEN, now), Turn::Wake(LONGEST));
        assert_eq!(pace.wrote(now), 2 * PATIENCE);
        let again = pace.turn(SEEN, now + 2 * PATIENCE);
        assert_eq!(again, Turn::Wake(4 * PATIENCE));
    }

    #[test]
    fn tries_that_could_not_have_an_effect_are_given_again() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now, MOST);
        for _ in 0..MOST - 1 {
            now += LONGEST;
            pace.turn(SEEN, now);
            pace.wrote(now);
        }
        pace.uncount();
        assert_eq!(woken(&mut pace, SEEN, &mut now), MOST);
        assert_eq!(pace.restart(now), PATIENCE);
        assert_eq!(woken(&mut pace, SEEN, &mut now), MOST);
    }

    #[test]
    fn only_the_first_attempt_is_the_first() {
        let now = Instant::now();
        let mut pace = Pace::new(SEEN, now, MOST);
        pace.turn(SEEN, now + PATIENCE);
        assert!(pace.is_first());
        pace.turn(SEEN, now + LONGEST);
        assert!(!pace.is_first(), "the attempt before failed");
        pace.wrote(now + LONGEST);
        pace.turn(SEEN, now + 2 * LONGEST);
        assert!(!pace.is_first(), "the try before was in vain");
    }
}
