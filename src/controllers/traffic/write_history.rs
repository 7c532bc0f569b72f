//! Remembers the last write of one thing, such as the marks of a Pod. A write that the API server refuses, or that another
//! program takes back, is repeated after pauses only: both could go on without end.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first write. It doubles with each repetition.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause is the first one, doubled so often: 32 s.
const DOUBLINGS: u32 = 5;
/// What lasts longer than this was not taken back by a program that writes again and again.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The last write.
pub struct WriteHistory<W>(Option<LastWrite<W>>);

struct LastWrite<W> {
    what: W,
    at: Instant,
    /// How often it was written in a row.
    tries: u32,
    /// Why it had no effect. `None`: it was stored.
    refusal: Option<String>,
}

/// Why a write has to wait.
#[derive(Debug, PartialEq, Eq)]
pub struct Pause {
    /// For how long.
    pub left: Duration,
    /// Why the API server has refused it. `None`: it was stored, and another program has taken it back.
    pub refusal: Option<String>,
}

impl<W> Default for WriteHistory<W> {
    fn default() -> Self {
        WriteHistory(None)
    }
}

impl<W: PartialEq> WriteHistory<W> {
    /// Whether a write has to wait. Another write than the last one need not.
    pub fn pause(&self, what: &W, now: Instant) -> Option<Pause> {
        self.same(what, now)?;
        self.last_pause(now)
    }

    /// For how long the last write is not to be repeated.
    pub fn last_pause(&self, now: Instant) -> Option<Pause> {
        let last = self.0.as_ref()?;
        let pause = FIRST_PAUSE * 2_u32.pow(last.tries.clamp(1, DOUBLINGS + 1) - 1);
        let left = pause.checked_sub(now.duration_since(last.at))?;
        let refusal = last.refusal.clone();
        (!left.is_zero()).then_some(Pause { left, refusal })
    }

    /// Remembers a write that was stored, or else why it was not.
    pub fn add(&mut self, what: W, refusal: Option<String>, now: Instant) {
        let before = self.same(&what, now).map_or(0, |last| last.tries);
        self.0 = Some(LastWrite {
            what,
            at: now,
            tries: before.saturating_add(1),
            refusal,
        });
    }

    /// Remembers that the last write was stored as something else. Each try is a write, and whoever changes it so does
    /// not stop soon: the pauses begin with 16 s.
    pub fn refuse(&mut self, refusal: String) {
        if let Some(last) = &mut self.0 {
            last.refusal = Some(refusal);
            last.tries = last.tries.max(DOUBLINGS);
        }
    }

    /// Whether the API server has refused the last write.
    pub fn is_refused(&self) -> bool {
        self.0.as_ref().is_some_and(|last| last.refusal.is_some())
    }

    /// Whether nothing of it matters any more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.over_in(now).is_none()
    }

    /// The time until nothing of it matters any more. `None` if that is so already.
    pub fn over_in(&self, now: Instant) -> Option<Duration> {
        let left = REMEMBERED.checked_sub(now.duration_since(self.0.as_ref()?.at));
        left.filter(|left| !left.is_zero())
    }

    fn same(&self, what: &W, now: Instant) -> Option<&LastWrite<W>> {
        let last = self.0.as_ref().filter(|last| last.what == *what)?;
        (!self.is_over(now)).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// How long the write `on` has to wait.
    fn left(history: &WriteHistory<&str>, now: Instant) -> Option<u64> {
        let pause = history.pause(&"on", now)?;
        Some(pause.left.as_secs())
    }

    #[test]
    fn write_that_is_taken_back_again_and_again_is_repeated_less_and_less() {
        let mut history = WriteHistory::default();
        let mut now = Instant::now();
        assert_eq!(left(&history, now), None, "nothing was written");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            history.add("on", None, now);
            let pause = left(&history, now).unwrap_or(0);
            pauses.push(pause);
            now += seconds(pause);
            assert_eq!(left(&history, now), None);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
        now += seconds(61);
        history.add("on", None, now);
        assert_eq!(left(&history, now), Some(1), "it has lasted");
    }

    #[test]
    fn another_write_need_not_wait() {
        let mut history = WriteHistory::default();
        let now = Instant::now();
        history.add("on", Some("denied".to_owned()), now);
        let pause = history.pause(&"on", now);
        let refusal = pause.and_then(|pause| pause.refusal);
        assert_eq!(refusal.as_deref(), Some("denied"));
        assert_eq!(history.pause(&"off", now), None);
        history.add("off", None, now);
        assert_eq!(history.pause(&"on", now), None, "it is the next step");
    }

    #[test]
    fn write_that_is_stored_as_something_else_is_not_repeated_soon() {
        let mut history = WriteHistory::default();
        let mut now = Instant::now();
        for pause in [16, 32, 32] {
            history.add("on", None, now);
            history.refuse("a webhook".to_owned());
            assert_eq!(left(&history, now), Some(pause));
            now += seconds(pause);
        }
    }
}
