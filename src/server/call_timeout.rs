//! Computes when the API server stops waiting for a verdict, from the query `timeout` that it adds to every webhook
//! call.

use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::Instant;

/// Default of `timeoutSeconds` in webhook configurations.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest `timeoutSeconds` that the API server accepts.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// The API server started its timer before the call arrived here, and the answer needs time to reach it.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);

/// When the verdict must be ready for a call that arrived at `arrival` with the given query string. The timeout is a Go
/// duration such as `10s`. If it is absent or invalid, the default of webhook configurations applies.
pub(super) fn review_deadline(query: Option<&str>, arrival: Instant) -> Instant {
    let timeout = query
        .and_then(|query| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix("timeout="))
        })
        .and_then(|text| text.parse::<SignedDuration>().ok())
        .and_then(|timeout| Duration::try_from(timeout).ok())
        .filter(|timeout| !timeout.is_zero())
        .unwrap_or(DEFAULT_TIMEOUT)
        .min(MAX_TIMEOUT);
    arrival + timeout - ANSWER_MARGIN.min(timeout / 4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn millis(query: &str) -> u128 {
        let arrival = Instant::now();
        (review_deadline(Some(query), arrival) - arrival).as_millis()
    }

    #[test]
    fn go_durations_are_read_and_leave_a_margin() {
        for (text, expected) in [
            ("10s", 9_500),
            ("5s", 4_500),
            ("1s", 750),
            ("1.5s", 1_125),
            ("400ms", 300),
            ("0.1s", 75),
            ("20s500ms", 20_000),
            ("0m30s", 29_500),
            ("1m0s", 29_500),
            ("2h45m", 29_500),
        ] {
            assert_eq!(millis(&format!("timeout={text}")), expected, "{text}");
        }
        assert_eq!(millis("a=b&timeout=2s"), 1_500);
    }

    #[test]
    fn default_timeout_applies_without_usable_timeout() {
        for query in [
            "",
            "timeout=",
            "timeout=soon",
            "timeout=-5s",
            "timeout=0s",
            "timeouts=1s",
        ] {
            assert_eq!(millis(query), 9_500, "{query}");
        }
        let arrival = Instant::now();
        assert_eq!(
            review_deadline(None, arrival),
            arrival + Duration::from_millis(9_500)
        );
    }
}
