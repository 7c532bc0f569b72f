//! The time by the API server's clock.
//!
//! Replicas compare times that others have written: the API server in `creationTimestamp`, another replica in the record of a
//! restart. A clock that is an hour off would believe a restart that is still to come, or keep a Pod off traffic for an hour.
//! So all of them go by one clock. Every answer of the API server tells its time, in the header `Date`.
//!
//! API servers may differ among themselves. Then the time must not jump back and forth with each answer: the first answer
//! counts at once, and another time only when nothing else has been told for a while.

use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::DATE;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// `Date` has seconds, and an answer takes its time: so many seconds of difference are none.
const NEAR: i64 = 3;

/// Another time is used after so many answers in a row that tell it, over so long.
const ANSWERS: u32 = 5;
const AGREEING: Duration = Duration::from_secs(10);

/// No second warning sooner.
const QUIET: Duration = Duration::from_secs(60);

static TOLD: Mutex<Told> = Mutex::new(Told {
    ahead: None,
    other: None,
    warned: None,
});

/// What the answers of the API servers have told.
#[derive(Debug, Default)]
struct Told {
    /// By how many seconds the API server's clock is ahead of this machine's; `None` before the first answer.
    ahead: Option<i64>,
    /// What all answers since the last that agreed with `ahead` have told instead.
    other: Option<Other>,
    warned: Option<Instant>,
}

#[derive(Debug)]
struct Other {
    ahead: i64,
    answers: u32,
    since: Instant,
}

/// The time now by the API server's clock, as its answers told.
pub fn now() -> Timestamp {
    by(Timestamp::now(), TOLD.lock().ahead.unwrap_or(0))
}

/// Learns from the headers of an answer.
pub fn observe(headers: &HeaderMap) {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let Some(date) = date else { return };
    let ahead = ahead(date.timestamp(), Timestamp::now());
    let mut told = TOLD.lock();
    if told.hear(ahead, Instant::now()) {
        let used = told.ahead.unwrap_or(0);
        drop(told);
        tracing::warn!(
            ahead,
            used,
            "an API server's clock is `ahead` of this machine's by so many seconds; its time is taken to be ahead by `used`. \
             Synchronize the clocks of the control plane's machines and of this one"
        );
    }
}

impl Told {
    /// An answer told that its clock is ahead by so much. Whether to warn.
    fn hear(&mut self, ahead: i64, at: Instant) -> bool {
        let before = self.ahead.unwrap_or(0);
        let used = *self.ahead.get_or_insert(ahead);
        if is_near(ahead, used) {
            self.other = None;
        } else {
            let same = self.other.take().filter(|o| is_near(o.ahead, ahead));
            let mut other = same.unwrap_or(Other {
                ahead,
                answers: 0,
                since: at,
            });
            other.answers += 1;
            if other.answers >= ANSWERS && at.duration_since(other.since) >= AGREEING {
                self.ahead = Some(ahead);
            } else {
                self.other = Some(other);
            }
        }
        let is_told = self.warned.is_some_and(|w| at.duration_since(w) < QUIET);
        let warns = !is_told && !is_near(ahead, before);
        if warns {
            self.warned = Some(at);
        }
        warns
    }
}

fn is_near(one: i64, other: i64) -> bool {
    (one - other).abs() <= NEAR
}

fn ahead(told: Timestamp, here: Timestamp) -> i64 {
    let seconds = told.duration_since(here).as_secs();
    if is_near(seconds, 0) { 0 } else { seconds }
}

fn by(here: Timestamp, ahead: i64) -> Timestamp {
    let told = here.checked_add(SignedDuration::from_secs(ahead));
    told.unwrap_or(here)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clock_that_is_hours_off_goes_by_the_api_servers() {
        let real: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        for hours in [-1, 1, 24 * 400] {
            let here = real + SignedDuration::from_hours(hours);
            assert_eq!(by(here, ahead(real, here)), real);
        }
        let here = real + SignedDuration::from_millis(1_500);
        assert_eq!(by(here, ahead(real, here)), here);
    }

    /// What is used after each of these answers, told second by second, and how often it was warned.
    fn heard(answers: impl IntoIterator<Item = i64>) -> (Vec<i64>, usize) {
        let (mut told, mut warnings) = (Told::default(), 0);
        let start = Instant::now();
        let used = answers.into_iter().zip(0..).map(|(ahead, second)| {
            warnings += usize::from(told.hear(ahead, start + Duration::from_secs(second)));
            told.ahead.unwrap()
        });
        (used.collect(), warnings)
    }

    #[test]
    fn api_servers_that_differ_do_not_move_the_time() {
        // Three answers of one, then seven of the other.
        let answers = (0..180).map(|second| if second % 10 < 3 { 0 } else { 40 });
        let (used, warnings) = heard(answers);
        assert!(used.iter().all(|used| *used == 0), "{used:?}");
        assert_eq!(warnings, 3, "one a minute");
        // Nor do two that differ from the first and from each other.
        let (used, _) = heard((0..60).map(|second| {
            if second == 0 {
                0
            } else {
                40 * (second % 2 + 1)
            }
        }));
        assert!(used.iter().all(|used| *used == 0), "{used:?}");
    }

    #[test]
    fn first_answer_counts_at_once_and_another_time_after_a_while() {
        let (used, warnings) = heard([-3600; 3].into_iter().chain([7; 20]));
        assert!(used[..13].iter().all(|used| *used == -3600), "{used:?}");
        assert!(used[13..].iter().all(|used| *used == 7), "{used:?}");
        assert_eq!(warnings, 1);
        assert_eq!(heard([0, 1, -2, 3]), (vec![0; 4], 0));
    }

    #[test]
    fn many_answers_within_a_moment_do_not_move_the_time() {
        let mut told = Told::default();
        let start = Instant::now();
        told.hear(0, start);
        for _ in 0..1000 {
            told.hear(40, start);
        }
        assert_eq!(told.ahead, Some(0));
        // One answer after that is no agreement either, if it is alone.
        let mut told = Told::default();
        told.hear(0, start);
        for minute in 1..ANSWERS {
            told.hear(40, start + QUIET * minute);
        }
        assert_eq!(told.ahead, Some(0));
    }

    #[test]
    fn date_of_an_answer_is_read() {
        let mut headers = HeaderMap::new();
        observe(&headers);
        headers.insert(DATE, "Sun, 01 Mar 2026 12:00:00 GMT".parse().unwrap());
        let date = headers[DATE].to_str().unwrap();
        let told = jiff::fmt::rfc2822::parse(date).unwrap().timestamp();
        assert_eq!(told.to_string(), "2026-03-01T12:00:00Z");
        headers.insert(DATE, "yesterday".parse().unwrap());
        observe(&headers);
        assert!(now().duration_since(Timestamp::now()).as_secs().abs() < 60);
    }
}
