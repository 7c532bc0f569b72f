//! What an answer that is not a success means.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use traffic::AdapterError;

/// Longest wait that an endpoint may ask for. The framework calls again after it in any case.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// What an answer means whose status is no success. `shown` makes a text of its body safe to show.
pub(crate) fn refusal(
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    shown: impl Fn(&str) -> String,
) -> AdapterError {
    let wait = retry_after(headers, Timestamp::now()).map(|wait| wait.min(MAX_WAIT));
    let text = said(status, body, shown);
    match status.as_u16() {
        429 => AdapterError::Throttled { text, wait },
        503 if wait.is_some() => AdapterError::Unavailable { text, wait },
        300..=399 => AdapterError::Permanent(format!(
            "{text}; redirects are not followed: set `url` to the target"
        )),
        // A token or a certificate is replaced by itself, so the next call may succeed.
        401 => AdapterError::Unavailable {
            text: format!(
                "{text}; the files of `tokenFile`, `hmacKeyFile` and `clientCertFile` must fit the endpoint"
            ),
            wait: None,
        },
        408 | 425 => AdapterError::Unavailable { text, wait: None },
        400..=499 => AdapterError::Permanent(text),
        // Anything may have changed.
        _ => AdapterError::Transient(text),
    }
}

fn said(status: StatusCode, body: &str, shown: impl Fn(&str) -> String) -> String {
    #[derive(Deserialize)]
    struct Body {
        message: String,
    }
    let message = match serde_json::from_str::<Body>(body) {
        Ok(body) => body.message,
        // Escapes in other texts may hide a secret.
        Err(_) if body.contains('\\') => "the body has escapes, and no `message`".to_owned(),
        Err(_) => body.to_owned(),
    };
    let status = status.as_u16();
    match shown(&message) {
        message if message.is_empty() => format!("the endpoint answered {status}"),
        message => format!("the endpoint answered {status}: {message}"),
    }
}

/// The header `Retry-After`: a number of seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    let wait = date.duration_since(now);
    Some(Duration::try_from(wait).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn means(status: u16, retry_after: Option<&str>, text: &str) -> AdapterError {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, value.parse().unwrap());
        }
        let shown = |text: &str| traffic::foreign_text(text, 300, str::to_owned);
        refusal(StatusCode::from_u16(status).unwrap(), &headers, text, shown)
    }

    #[test]
    fn requests_for_fewer_calls_are_throttling() {
        let throttled = |wait| AdapterError::Throttled {
            text: "the endpoint answered 429: slow down".to_owned(),
            wait,
        };
        let seven = Some(Duration::from_secs(7));
        assert_eq!(means(429, Some("7"), "slow down"), throttled(seven));
        assert_eq!(means(429, None, "slow down"), throttled(None));
        let longest = Some(Duration::from_secs(300));
        let endless = u64::MAX.to_string();
        assert_eq!(means(429, Some(&endless), "slow down"), throttled(longest));
        let date = "Thu, 31 Dec 9998 23:59:59 GMT";
        assert_eq!(means(429, Some(date), "slow down"), throttled(longest));
        for unreadable in ["-1", "NaN", "1e3", "soon"] {
            let found = means(429, Some(unreadable), "slow down");
            assert_eq!(found, throttled(None));
        }
    }

    #[test]
    fn absence_with_a_wait_is_not_throttling() {
        let text = || "the endpoint answered 503: no pool".to_owned();
        let unavailable = |wait| AdapterError::Unavailable { text: text(), wait };
        let seven = Some(Duration::from_secs(7));
        assert_eq!(means(503, Some("7"), "no pool"), unavailable(seven));
        let transient = AdapterError::Transient(text());
        assert_eq!(means(503, None, "no pool"), transient);
        assert_eq!(means(503, Some("soon"), "no pool"), transient);
    }

    #[test]
    fn retry_after_may_be_a_date() {
        let mut headers = HeaderMap::new();
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        headers.insert(RETRY_AFTER, date.parse().unwrap());
        let wait = |now: &str| retry_after(&headers, now.parse().unwrap());
        assert_eq!(wait("1994-11-06T08:49:07Z"), Some(Duration::from_secs(30)));
        assert_eq!(wait("1994-11-06T09:00:00Z"), Some(Duration::ZERO));
    }

    /// Permanent means that nothing has changed.
    #[test]
    fn server_errors_are_not_permanent() {
        for status in [500, 502, 503, 504] {
            let found = means(status, None, "");
            assert!(
                matches!(found, AdapterError::Transient(_)),
                "{status}: {found:?}"
            );
        }
        for status in [401, 408, 425] {
            let found = means(status, None, "");
            assert!(
                matches!(found, AdapterError::Unavailable { wait: None, .. }),
                "{status}: {found:?}"
            );
        }
        for status in [302, 400, 403, 404, 409, 422] {
            let found = means(status, None, "");
            assert!(
                matches!(found, AdapterError::Permanent(_)),
                "{status}: {found:?}"
            );
        }
    }

    #[test]
    fn message_is_cut_and_has_no_control_characters() {
        let text = format!(
            "{{\"message\":\"no\\u0000such\\n\\u202epool {}\"}}",
            "x".repeat(999)
        );
        let error = means(404, None, &text).to_string();
        assert!(
            error.starts_with("the endpoint answered 404: no such pool xxx"),
            "{error}"
        );
        assert!(
            error.chars().count() < 340 && error.ends_with('…'),
            "{error}"
        );
        let other = means(404, None, "{\"error\": \"gone\"}").to_string();
        assert_eq!(other, "the endpoint answered 404: {\"error\": \"gone\"}");
        let plain = means(404, None, "gone\r\nX: y").to_string();
        assert_eq!(plain, "the endpoint answered 404: gone X: y");
    }
}
