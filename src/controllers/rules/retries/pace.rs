//! When an owner is woken, and when it is left alone.

use std::time::Duration;

use tokio::time::Instant;

use super::look::Seen;

/// A controller that acts by itself does so within this time after the budget has room.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often one owner was woken since it last changed.
#[derive(Debug)]
pub struct Pace {
    seen: Seen,
    most: u32,
    tries: u32,
    due: Instant,
}

/// What to do for an owner now.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Wake it, and look again after this long.
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
            tries: 0,
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
        self.tries += 1;
        let pause = PATIENCE * 2u32.pow(self.tries);
        self.due = now + pause;
        Turn::Wake(pause)
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
            turns.push(pace.next(now));
        }
        let pauses = [2, 4].map(|times| Turn::Wake(times * PATIENCE));
        assert_eq!(turns[..2], pauses);
        assert_eq!(turns[2], Turn::Rest);
    }
}
