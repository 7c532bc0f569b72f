//! The time by the API server's clock.
//!
//! Replicas compare times that others have written: the API server in `creationTimestamp`, another replica in the record of a
//! restart. A clock that is an hour off would believe a restart that is still to come, or keep a Pod off traffic for an hour.
//! So all of them go by one clock. Every answer of the API server tells its time, in the header `Date`.

use std::sync::atomic::{AtomicI64, Ordering};

use http::HeaderMap;
use http::header::DATE;
use jiff::{SignedDuration, Timestamp};

/// `Date` has seconds, and an answer takes its time: so many seconds of difference are none.
const NEAR: i64 = 3;

/// By how many seconds the API server's clock is ahead of this machine's.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// The time now by the API server's clock, as its last answer told.
pub fn now() -> Timestamp {
    by(Timestamp::now(), AHEAD.load(Ordering::Relaxed))
}

/// Learns from the headers of an answer.
pub fn observe(headers: &HeaderMap) {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let Some(date) = date else { return };
    let ahead = ahead(date.timestamp(), Timestamp::now());
    let before = AHEAD.swap(ahead, Ordering::Relaxed);
    if (ahead - before).abs() > NEAR {
        tracing::warn!(
            seconds = ahead,
            "the API server's clock is ahead of this machine's by so much; its time is used"
        );
    }
}

fn ahead(told: Timestamp, here: Timestamp) -> i64 {
    let seconds = told.duration_since(here).as_secs();
    if seconds.abs() <= NEAR { 0 } else { seconds }
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
