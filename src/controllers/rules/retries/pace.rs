//! When an owner is woken, and when it is left alone.

use std::time::Duration;

use tokio::time::Instant;

/// A controller that acts by itself does so within this time after the budget has room.
const PATIENCE: Duration = Duration::from_millis(300);
/// Times that an owner is woken in vain. A StatefulSet with a partition, for example, keeps old Pods on purpose.
const MOST: u32 = 8;

/// What an owner looked like. Any difference says that its controller did something, or has something new to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// resourceVersion of the owner.
    pub version: u64,
    /// Its living Pods.
    pub alive: usize,
}

/// How often one owner was woken since it last changed.
#[derive(Debug)]
pub struct Pace {
    seen: Seen,
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
    /// An owner that has Pods to delete, and that the budget has room for from `now` on.
    pub fn new(seen: Seen, now: Instant) -> Pace {
        Pace {
            seen,
            tries: 0,
            due: now + PATIENCE,
        }
    }

    /// The owner at `now`.
    pub fn turn(&mut self, seen: Seen, now: Instant) -> Turn {
        if self.seen != seen {
            *self = Pace::new(seen, now);
        }
        if self.tries >= MOST {
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

    const SEEN: Seen = Seen {
        version: 1,
        alive: 5,
    };

    #[test]
    fn controller_gets_time_to_act_by_itself() {
        let now = Instant::now();
        let mut pace = Pace::new(SEEN, now);
        assert_eq!(pace.turn(SEEN, now), Turn::Wait(PATIENCE));
        assert_eq!(pace.turn(SEEN, now + PATIENCE), Turn::Wake(2 * PATIENCE));
        assert_eq!(pace.turn(SEEN, now + PATIENCE), Turn::Wait(2 * PATIENCE));
    }

    #[test]
    fn owner_that_does_not_react_is_left_alone_until_it_changes() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SEEN, now);
        let mut woken = 0;
        for _ in 0..1_000 {
            now += Duration::from_secs(1);
            match pace.turn(SEEN, now) {
                Turn::Wake(_) => woken += 1,
                Turn::Wait(_) => {}
                Turn::Rest => break,
            }
        }
        assert_eq!(woken, MOST);
        assert_eq!(pace.turn(SEEN, now), Turn::Rest);
        let changed = Seen { alive: 4, ..SEEN };
        assert_eq!(pace.turn(changed, now), Turn::Wait(PATIENCE));
    }
}
