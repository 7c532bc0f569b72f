//! Sends the requests of `install` and `uninstall`. Adds to `api_request` a limited number of retries with jitter, and
//! errors for people.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::Error;

use crate::api_request::{self, ApiFailure};

/// Longest wait for one answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses between attempts: each is twice the former one, up to the longest, and shortened by a random part.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
const MAX_ATTEMPTS: u32 = 8;

/// Repeats a request until it succeeds or another attempt would not help. `description` names the request in the error.
///
/// Conflicts are repeated too: if several replicas install at once, one of them succeeds, and the others find the work
/// done.
pub async fn retry_request<T, F>(description: &str, call: impl Fn() -> F) -> anyhow::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let mut pause = MIN_BACKOFF;
    for attempt in 1.. {
        let error = match api_request::within(ATTEMPT_TIMEOUT, call()).await {
            Ok(answer) => return Ok(answer),
            Err(ApiFailure::NoAnswer(_)) if attempt == MAX_ATTEMPTS => break,
            Err(failure) if attempt == MAX_ATTEMPTS || !is_passing(&failure) => {
                return Err(readable_error(failure)).context(description.to_owned());
            }
            Err(failure) => readable_error(failure),
        };
        tracing::debug!(
            description,
            attempt,
            error = format!("{error:#}"),
            "asking again"
        );
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = MAX_BACKOFF.min(pause * 2);
    }
    Err(anyhow!(
        "the API server gave no answer within {} s, {MAX_ATTEMPTS} times",
        ATTEMPT_TIMEOUT.as_secs()
    ))
    .context(description.to_owned())
}

/// Like [`retry_request`], but returns `None` if the object or its kind does not exist.
pub async fn retry_optional_request<T, F>(
    description: &str,
    call: impl Fn() -> F,
) -> anyhow::Result<Option<T>>
where
    F: Future<Output = kube::Result<T>>,
{
    let found = || async {
        match call().await {
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            other => other.map(Some),
        }
    };
    retry_request(description, found).await
}

/// Whether another attempt may succeed: after a conflict, if the API server is overloaded or starting, or after a
/// broken connection.
fn is_passing(failure: &ApiFailure) -> bool {
    failure.code() == Some(409) || failure.is_passing()
}

/// The error in the API server's words, without the debug format of the library.
fn readable_error(failure: ApiFailure) -> anyhow::Error {
    match failure {
        ApiFailure::Answered(status) if !status.message.is_empty() => {
            anyhow!("{} ({})", status.message, status.code)
        }
        ApiFailure::Answered(status) => anyhow!("{} ({})", status.reason, status.code),
        ApiFailure::NoAnswer(limit) => anyhow!("no answer within {} s", limit.as_secs()),
        ApiFailure::Broken(error) => anyhow!(api_request::text(&error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::cell::Cell;

    use kube::core::Status;

    use super::*;

    fn refused(code: u16) -> Error {
        Error::Api(Box::new(
            Status::failure("because", "Reason").with_code(code),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn conflict_is_tried_again_and_refusal_is_not() {
        let calls = Cell::new(0);
        let answer = retry_request("apply x", || async {
            calls.set(calls.get() + 1);
            if calls.get() < 3 {
                Err(refused(409))
            } else {
                Ok(7)
            }
        });
        assert_eq!((answer.await.unwrap(), calls.take()), (7, 3));

        let answer = retry_request("apply x", || async {
            calls.set(calls.get() + 1);
            Err::<(), _>(refused(403))
        });
        assert_eq!(
            format!("{:#}", answer.await.unwrap_err()),
            "apply x: because (403)"
        );
        assert_eq!(calls.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn request_gives_up_after_max_attempts() {
        let calls = Cell::new(0);
        let answer = retry_request("apply x", || async {
            calls.set(calls.get() + 1);
            Err::<(), _>(refused(503))
        });
        assert_eq!(
            format!("{:#}", answer.await.unwrap_err()),
            "apply x: because (503)"
        );
        assert_eq!(calls.get(), MAX_ATTEMPTS);

        let silent = retry_request("apply x", std::future::pending::<kube::Result<()>>);
        let error = format!("{:#}", silent.await.unwrap_err());
        assert_eq!(
            error,
            "apply x: the API server gave no answer within 30 s, 8 times"
        );
    }

    #[tokio::test]
    async fn missing_object_returns_none() {
        assert_eq!(
            retry_optional_request("get x", || async { Err::<(), _>(refused(404)) })
                .await
                .unwrap(),
            None
        );
        assert_eq!(
            retry_optional_request("get x", || async { Ok(1) })
                .await
                .unwrap(),
            Some(1)
        );
    }
}
