//! Sends one request to the API server with a deadline, and classifies its failure. Other modules add to this one:
//! `controllers/api_calls.rs` when the key is tried again, `controllers/collaset/requests.rs` what the failure means for a
//! plan, `cli/install/request.rs` retries, and `tls/selfmanaged/request.rs` the errors of the certificate rotation.

use std::time::Duration;

use kube::Error;
use kube::core::Status;
use tokio::time::{Instant, timeout_at};

/// Why a request to the API server has no result.
#[derive(Debug)]
pub enum ApiFailure {
    /// The API server answered with a failure.
    Answered(Box<Status>),
    /// The API server did not answer within this time.
    NoAnswer(Duration),
    /// The request could not be sent, or its answer could not be parsed.
    Broken(Error),
}

impl ApiFailure {
    /// The HTTP code of the answer; `None` if there was no answer.
    pub fn code(&self) -> Option<u16> {
        match self {
            ApiFailure::Answered(status) => Some(status.code),
            ApiFailure::NoAnswer(_) | ApiFailure::Broken(_) => None,
        }
    }

    /// Whether the failure passes by itself: the API server is overloaded, starts or can't be reached. A write may have
    /// been stored all the same.
    pub fn is_passing(&self) -> bool {
        match self {
            ApiFailure::Answered(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
            ApiFailure::NoAnswer(_) => true,
            ApiFailure::Broken(error) => matches!(error, Error::HyperError(_) | Error::Service(_)),
        }
    }

    /// The failure as text for messages and the log; see [`text`].
    pub fn text(&self) -> String {
        match self {
            ApiFailure::Answered(status) => status_text(status),
            ApiFailure::NoAnswer(_) => "no answer in time".to_owned(),
            ApiFailure::Broken(error) => text(error),
        }
    }
}

impl From<Error> for ApiFailure {
    fn from(error: Error) -> ApiFailure {
        match error {
            Error::Api(status) => ApiFailure::Answered(status),
            error => ApiFailure::Broken(error),
        }
    }
}

/// Awaits a request until `deadline`.
///
/// # Errors
/// [`ApiFailure`]. [`ApiFailure::NoAnswer`] has the time from the call of this function to the deadline.
pub async fn by<T>(
    deadline: Instant,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, ApiFailure> {
    let limit = deadline.saturating_duration_since(Instant::now());
    match timeout_at(deadline, request).await {
        Ok(answer) => answer.map_err(ApiFailure::from),
        Err(_) => Err(ApiFailure::NoAnswer(limit)),
    }
}

/// Awaits a request for at most `limit`.
///
/// # Errors
/// [`ApiFailure`], the same as for [`by`].
pub async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, ApiFailure> {
    let answer = tokio::time::timeout(limit, request).await;
    answer.map_or(Err(ApiFailure::NoAnswer(limit)), |answer| {
        answer.map_err(ApiFailure::from)
    })
}

/// The message of a failed request. For an answer of the API server, this is only the `message` of its `Status`: the
/// text of `kube` repeats the message and adds a debug dump of the `Status`.
pub fn text(error: &Error) -> String {
    match error {
        Error::Api(status) => status_text(status),
        // Without the name of the variant, which says nothing to a reader.
        Error::Service(cause) => cause.to_string(),
        error => error.to_string(),
    }
}

fn status_text(status: &Status) -> String {
    match status.message.is_empty() {
        true => format!("the API server answered {}", status.code),
        false => status.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::Error;
    use kube::core::Status;
    use tokio::time::Instant;

    use super::{ApiFailure, by, text, within};

    fn answer(message: &str) -> Error {
        let status = Status::failure(message, "Invalid").with_code(422);
        Error::Api(Box::new(status))
    }

    #[test]
    fn text_of_an_answer_is_its_message_alone() {
        for (message, want) in [
            ("status.ledger is too long", "status.ledger is too long"),
            ("", "the API server answered 422"),
        ] {
            assert_eq!(text(&answer(message)), want);
            assert_eq!(ApiFailure::from(answer(message)).text(), want);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_an_answer_ends_at_its_deadline() {
        let limit = Duration::from_secs(3);
        let silent = std::future::pending::<Result<(), Error>>;
        let failures = [
            within(limit, silent()).await,
            by(Instant::now() + limit, silent()).await,
        ];
        for failure in failures {
            assert!(matches!(failure, Err(ApiFailure::NoAnswer(after)) if after == limit));
        }
        let refused = within(limit, async { Err::<(), _>(answer("")) }).await;
        assert_eq!(refused.map_err(|failure| failure.code()), Err(Some(422)));
    }
}
