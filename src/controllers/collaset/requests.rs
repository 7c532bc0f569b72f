//! Runs the requests of a plan, many at once, and decides what a failure means for the plan: whether its later stages
//! are skipped, and why.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

pub use super::super::requests::{RequestError, request_with_deadline};
use crate::domain::collaset::status::FailedStep;

/// Maximum number of concurrent requests in one call of [`send_all_requests`].
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Maximum number of failures in careful mode; then no further request begins.
const MAX_CAREFUL_FAILURES: usize = 3;

impl RequestError {
    /// The result of the stage if this error occurred during `step`.
    pub fn into_stage_error(self, step: FailedStep) -> StageError {
        match self {
            RequestError::Moved | RequestError::Exists => StageError::Moved,
            // Here this is a 429 for too many requests. A 429 from this server's admission concerns changes and
            // deletions of Pods, and `back_off_if_held` handles it before.
            RequestError::Held(message) => {
                StageError::Failed(step, format!("{message}; it is tried again"))
            }
            RequestError::Failed(message)
            | RequestError::Denied(message)
            | RequestError::Refused(message) => StageError::Failed(step, message),
        }
    }
}

/// Why the later stages are skipped. If several requests fail, [`worse_result`] selects the one to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageError {
    /// An object has changed since the plan was made; make a new plan.
    Moved,
    /// A revision with the same name and other data exists.
    Collision,
    /// A step failed, for a reason that users should know.
    Failed(FailedStep, String),
}

impl StageError {
    fn severity(&self) -> u8 {
        match self {
            StageError::Moved => 0,
            StageError::Collision => 1,
            StageError::Failed(..) => 2,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct BatchOutcome {
    /// The most severe failure; if several are equal, the failure of the first request.
    pub result: Result<(), StageError>,
    /// Whether at least one request ended without [`StageError::Failed`].
    pub any_succeeded: bool,
    /// Whether so many requests failed that the rest was not tried.
    pub given_up: bool,
    /// How many requests were begun, counted from the first request.
    pub begun: usize,
}

/// Runs requests of one kind concurrently. A few failures do not stop the others: an object that is always refused must
/// not delay the rest. With `carefully`, the requests run one by one until one has succeeded, and again after a
/// failure: if the quota is used up, for example, not all requests ask for it. If several requests fail, the failure of
/// the first request is reported, so that a lasting failure always has the same message.
pub async fn send_all_requests<F>(
    carefully: bool,
    requests: impl IntoIterator<Item = F>,
) -> BatchOutcome
where
    F: Future<Output = Result<(), StageError>>,
{
    let max_failures = if carefully {
        MAX_CAREFUL_FAILURES
    } else {
        MAX_CONCURRENT_REQUESTS
    };
    let (mut succeeded, mut failed, mut begun) = (0, 0, 0);
    let mut errors = BTreeMap::new();
    let mut waiting = requests.into_iter().enumerate();
    let mut running = FuturesUnordered::new();
    loop {
        let one_by_one = carefully && (succeeded == 0 || failed > 0);
        let max_running = if one_by_one {
            1
        } else {
            MAX_CONCURRENT_REQUESTS
        };
        while running.len() < max_running
            && failed < max_failures
            && let Some((index, request)) = waiting.next()
        {
            begun += 1;
            running.push(async move { (index, request.await) });
        }
        let Some((index, result)) = running.next().await else {
            return BatchOutcome {
                result: errors.into_values().fold(Ok(()), worse_result),
                any_succeeded: succeeded > 0,
                given_up: failed >= max_failures,
                begun,
            };
        };
        match &result {
            Err(StageError::Failed(..)) => failed += 1,
            _ => succeeded += 1,
        }
        if result.is_err() {
            errors.insert(index, result);
        }
    }
}

/// The more severe of two results; `a` if both are equal.
pub fn worse_result(
    a: Result<(), StageError>,
    b: Result<(), StageError>,
) -> Result<(), StageError> {
    match (&a, &b) {
        (_, Ok(())) => a,
        (Err(first), Err(second)) if first.severity() >= second.severity() => a,
        _ => b,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn failure() -> Result<(), StageError> {
        Err(StageError::Failed(FailedStep::ScaleOut, "no quota".into()))
    }

    async fn run(carefully: bool, fails: fn(usize) -> bool) -> (usize, BatchOutcome) {
        let begun = AtomicUsize::new(0);
        let requests = (0..100).map(|n| {
            let begun = &begun;
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                if fails(n) { failure() } else { Ok(()) }
            }
        });
        let result = send_all_requests(carefully, requests).await;
        (begun.into_inner(), result)
    }

    fn outcome(result: Result<(), StageError>, any_succeeded: bool, begun: usize) -> BatchOutcome {
        BatchOutcome {
            result,
            any_succeeded,
            given_up: begun < 100,
            begun,
        }
    }

    #[tokio::test]
    async fn careful_batch_stops_after_few_refusals() {
        let refused = outcome(failure(), false, MAX_CAREFUL_FAILURES);
        assert_eq!(run(true, |_| true).await, (MAX_CAREFUL_FAILURES, refused));
        let (begun, some_refused) = run(true, |n| n >= 1).await;
        assert!(
            (MAX_CAREFUL_FAILURES..=MAX_CONCURRENT_REQUESTS + MAX_CAREFUL_FAILURES)
                .contains(&begun),
            "{begun}"
        );
        assert_eq!(some_refused, outcome(failure(), true, begun));
        assert_eq!(run(false, |_| true).await.1.result, failure());
        assert!(run(false, |_| true).await.0 < 2 * MAX_CONCURRENT_REQUESTS);
        let none_refused = outcome(Ok(()), true, 100);
        assert_eq!(run(true, |_| false).await, (100, none_refused));
    }

    #[tokio::test]
    async fn first_failed_request_is_reported() {
        let requests = (0..10u32).map(|n| async move {
            for _ in n..10 {
                tokio::task::yield_now().await;
            }
            Err(StageError::Failed(FailedStep::ScaleOut, n.to_string()))
        });
        let reported = Err(StageError::Failed(FailedStep::ScaleOut, "0".into()));
        assert_eq!(send_all_requests(false, requests).await.result, reported);
    }

    #[tokio::test]
    async fn one_refused_request_does_not_stop_others() {
        let all_but_one = || outcome(failure(), true, 100);
        assert_eq!(run(true, |n| n == 0).await, (100, all_but_one()));
        assert_eq!(run(false, |n| n == 0).await, (100, all_but_one()));
    }

    #[tokio::test]
    async fn conflict_is_reported_and_stops_nothing() {
        let begun = AtomicUsize::new(0);
        let requests = (0..40).map(|n| {
            let begun = &begun;
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                if n == 0 {
                    Err(StageError::Moved)
                } else {
                    Ok(())
                }
            }
        });
        assert_eq!(
            send_all_requests(false, requests).await.result,
            Err(StageError::Moved)
        );
        assert_eq!(begun.into_inner(), 40);
        assert_eq!(worse_result(Err(StageError::Moved), failure()), failure());
        assert_eq!(worse_result(failure(), Err(StageError::Moved)), failure());
    }
}
