//! Bounds the calls of the account.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use traffic::AdapterError;

/// First pause after the API has asked for fewer calls. It doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(32);

/// Spreads calls evenly, and makes none while the API asks for fewer calls.
pub(crate) struct Pace {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: Option<Instant>,
    closed: Option<Closed>,
    pause: Option<Duration>,
}

/// Why no call is made now.
struct Closed {
    until: Instant,
    /// What the API said.
    text: String,
}

impl State {
    /// The error of a call that is not made, because the API has asked for fewer calls.
    fn closed(&self, now: Instant) -> Option<AdapterError> {
        let closed = self.closed.as_ref()?;
        (closed.until > now).then(|| AdapterError::Throttled {
            text: closed.text.clone(),
            wait: Some(closed.until - now),
        })
    }
}

impl Pace {
    /// At most this many calls in a second.
    pub(crate) fn new(calls_per_second: u32) -> Pace {
        Pace {
            interval: Duration::from_secs(1) / calls_per_second.max(1),
            state: Mutex::default(),
        }
    }

    /// Waits for the turn of a call.
    ///
    /// # Errors
    /// If the API has asked for fewer calls: what it said, and the rest of the pause.
    pub(crate) async fn turn(&self) -> Result<(), AdapterError> {
        let at = {
            let now = Instant::now();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(closed) = state.closed(now) {
                return Err(closed);
            }
            let at = state.next.map_or(now, |next| next.max(now));
            state.next = Some(at + self.interval);
            at
        };
        tokio::time::sleep_until(at).await;
        Ok(())
    }

    /// The API has answered a call.
    pub(crate) fn answered(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pause = None;
    }

    /// The API has asked for fewer calls, and perhaps has said how long to wait. Returns the error with the pause.
    pub(crate) fn throttled(&self, text: String, wait: Option<Duration>) -> AdapterError {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Calls that were under way together are throttled together; they count once.
        if let Some(closed) = state.closed(now) {
            return closed;
        }
        let pause = state.pause.map_or(FIRST, |pause| (pause * 2).min(LONGEST));
        state.pause = Some(pause);
        let pause = pause.max(wait.unwrap_or_default());
        state.closed = Some(Closed {
            until: now + pause,
            text: text.clone(),
        });
        let wait = Some(pause);
        AdapterError::Throttled { text, wait }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_spread() {
        let pace = Pace::new(10);
        let start = Instant::now();
        for _ in 0..21 {
            pace.turn().await.unwrap();
        }
        assert_eq!(start.elapsed().as_millis(), 2000);
    }

    #[tokio::test(start_paused = true)]
    async fn pause_doubles_until_an_answer() {
        let pace = Pace::new(1000);
        let told = |text: &str, seconds| AdapterError::Throttled {
            text: text.to_owned(),
            wait: Some(Duration::from_secs(seconds)),
        };
        for seconds in [1, 2, 4, 8, 16, 32, 32] {
            let first = pace.throttled("first".to_owned(), None);
            assert_eq!(first, told("first", seconds));
            let second = pace.throttled("second".to_owned(), None);
            assert_eq!(second, told("first", seconds), "they count once");
            assert_eq!(pace.turn().await, Err(told("first", seconds)));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            pace.turn().await.unwrap();
        }
        pace.answered();
        let asked = Some(Duration::from_secs(5));
        assert_eq!(pace.throttled("third".to_owned(), asked), told("third", 5));
    }
}
