//! What an answer that is not a success means.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use traffic::AdapterError;

/// Longest wait that an endpoint may ask for. The framework calls again after it in any case.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    /// Why.
    pub error: AdapterError,
    /// Whether the endpoint may have acted all the same: it got the request, and did not say that nothing has changed.
    pub may_have_acted: bool,
}

impl CallError {
    /// A failure after which nothing has changed.
    pub fn without_effect(error: AdapterError) -> CallError {
        CallError {
            error,
            may_have_acted: false,
        }
    }

    /// A failure after which it is unknown what has changed.
    pub fn lost(text: String) -> CallError {
        CallError {
            error: AdapterError::Transient(text),
            may_have_acted: true,
        }
    }
}

/// What an answer means whose status is no success. `shown` makes a text of its body safe to show.
pub(crate) fn refusal(
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    shown: impl Fn(&str) -> String,
) -> CallError {
    let wait = retry_after(headers, Timestamp::now()).map(|wait| wait.min(MAX_WAIT));
    let text = said(status, body, shown);
    match status.as_u16() {
        429 => CallError::without_effect(AdapterError::Throttled(wait)),
        503 if wait.is_some() => CallError::without_effect(AdapterError::Throttled(wait)),
        300..=399 => CallError::without_effect(AdapterError::Permanent(format!(
            "{text}; redirects are not followed: set `url` to the target"
        ))),
        // A token or a certificate is replaced by itself, so the next call may succeed.
        401 => CallError::without_effect(AdapterError::Transient(format!(
            "{text}; the files of `tokenFile`, `hmacKeyFile` and `clientCertFile` must fit the endpoint"
        ))),
        408 | 425 => CallError::without_effect(AdapterError::Transient(text)),
        400..=499 => CallError::without_effect(AdapterError::Permanent(text)),
        _ => CallError::lost(text),
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

    fn means(status: u16, retry_after: Option<&str>, text: &str) -> CallError {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, value.parse().unwrap());
        }
        let shown = |text: &str| traffic::foreign_text(text, 300, str::to_owned);
        refusal(StatusCode::from_u16(status).unwrap(), &headers, text, shown)
    }

    #[test]
    fn requests_for_fewer_calls_are_throttling() {
        let throttled = |wait| CallError::without_effect(AdapterError::Throttled(wait));
        let seven = Some(Duration::from_secs(7));
        assert_eq!(means(429, Some("7"), ""), throttled(seven));
        assert_eq!(means(429, None, ""), throttled(None));
        assert_eq!(means(503, Some("7"), ""), throttled(seven));
        assert!(means(503, None, "").may_have_acted);
        let longest = Some(Duration::from_secs(300));
        let endless = u64::MAX.to_string();
        assert_eq!(means(429, Some(&endless), ""), throttled(longest));
        let date = "Thu, 31 Dec 9998 23:59:59 GMT";
        assert_eq!(means(429, Some(date), ""), throttled(longest));
        for unreadable in ["-1", "NaN", "1e3", "soon"] {
            assert_eq!(means(429, Some(unreadable), ""), throttled(None));
        }
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

    #[test]
    fn only_server_errors_may_have_acted() {
        for status in [500, 502, 503, 504] {
            let found = means(status, None, "");
            assert!(found.may_have_acted, "{status}");
            assert!(matches!(found.error, AdapterError::Transient(_)));
        }
        for status in [302, 400, 403, 404, 409, 422] {
            let found = means(status, None, "");
            assert!(!found.may_have_acted, "{status}");
            assert!(
                matches!(found.error, AdapterError::Permanent(_)),
                "{status}"
            );
        }
        for status in [401, 408, 425] {
            let found = means(status, None, "");
            assert!(!found.may_have_acted, "{status}");
            assert!(
                matches!(found.error, AdapterError::Transient(_)),
                "{status}"
            );
        }
    }

    #[test]
    fn message_is_cut_and_has_no_control_characters() {
        let text = format!(
            "{{\"message\":\"no\\u0000such\\n\\u202epool {}\"}}",
            "x".repeat(999)
        );
        let error = means(404, None, &text).error.to_string();
        assert!(
            error.starts_with("the endpoint answered 404: no such pool xxx"),
            "{error}"
        );
        assert!(
            error.chars().count() < 340 && error.ends_with('…'),
            "{error}"
        );
        let other = means(404, None, "{\"error\": \"gone\"}").error.to_string();
        assert_eq!(other, "the endpoint answered 404: {\"error\": \"gone\"}");
        let plain = means(404, None, "gone\r\nX: y").error.to_string();
        assert_eq!(plain, "the endpoint answered 404: gone X: y");
    }
}
