//! Runs the requests of a plan, many at once. Adds to `api_request` what a failure means for the plan: whether its
//! later stages are skipped, and why.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Error;
use kube::core::Status;
use tracing::{debug, warn};

use super::super::api_calls::API_CALL_TIMEOUT;
use crate::api_request::{self, ApiFailure};
use crate::cluster::pod_requests;
use crate::domain::collaset::status::FailedStep;

/// Maximum number of concurrent requests in one call of [`send_all_requests`].
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Maximum number of failures in careful mode; then no further request begins.
const MAX_CAREFUL_FAILURES: usize = 3;

/// Why a request had no effect, or may have had no effect.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The object is gone, or has another version than the plan. The cache will show the new state.
    Moved,
    /// An object with this name exists already.
    Exists,
    /// The API server answered 429: too many requests, or this server's admission denied the request. Contains the
    /// reason.
    Held(String),
    /// The request failed and may be repeated. Contains the object and the message of the API server.
    Failed(String),
    /// As [`RequestError::Failed`], but a webhook, a policy, a quota or another admission plugin denied the request
    /// because of its content. A denial by the authorizer is [`RequestError::Failed`].
    Denied(String),
    /// The API server rejects the request itself as invalid, does not know the operation, or the node of the Pod does
    /// not support the operation.
    Refused(String),
}

impl RequestError {
    /// The error for an object that differs from what was written. Without an error, the controller would repeat the
    /// write forever.
    pub fn not_as_written(description: &str) -> RequestError {
        RequestError::Refused(format!(
            "{description}: the API server stored another object than the one that was written; find the mutating \
             webhook or MutatingAdmissionPolicy that changes its labels, annotations, owners or finalizers"
        ))
    }

    /// The error for a new object that differs from what was created. The controller neither writes nor deletes the
    /// object: it may belong to somebody else by now.
    pub fn not_as_created(description: &str) -> RequestError {
        match RequestError::not_as_written(description) {
            RequestError::Refused(message) => RequestError::Refused(format!(
                "{message}; then delete the object, and the controller recreates it"
            )),
            other => other,
        }
    }

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

/// Awaits a request, with a deadline. `description` names the request or its object in messages.
pub async fn request_with_deadline<T>(
    description: &str,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, RequestError> {
    let failure = match api_request::within(API_CALL_TIMEOUT, request).await {
        Ok(done) => return Ok(done),
        Err(failure) => failure,
    };
    let error = match &failure {
        ApiFailure::Answered(status)
            if is_admission_denied(status) && !pod_requests::is_own_denial(status) =>
        {
            RequestError::Denied(format!("{description}: {}", status.message))
        }
        ApiFailure::Answered(status) if status.reason == "AlreadyExists" => RequestError::Exists,
        ApiFailure::Answered(status) if status.code == 409 => RequestError::Moved,
        ApiFailure::Answered(status) if status.code == 404 && has_object_name(status) => {
            RequestError::Moved
        }
        ApiFailure::Answered(status)
            if status.code == 429 && pod_requests::is_own_denial(status) =>
        {
            RequestError::Held(status.message.clone())
        }
        ApiFailure::Answered(status) if status.code == 429 => {
            RequestError::Held(format!("{description}: {}", status.message))
        }
        ApiFailure::Answered(status)
            if matches!(status.code, 400 | 404 | 405 | 413 | 422) || is_node_incapable(status) =>
        {
            RequestError::Refused(format!("{description}: {}", failure.text()))
        }
        ApiFailure::Answered(status) if status.code == 403 && !is_authorization_denied(status) => {
            RequestError::Denied(format!("{description}: {}", status.message))
        }
        ApiFailure::Answered(status) => {
            RequestError::Failed(format!("{description}: {}", status.message))
        }
        ApiFailure::NoAnswer(limit) => RequestError::Failed(format!(
            "{description}: the API server did not answer within {} s; it is tried again",
            limit.as_secs()
        )),
        ApiFailure::Broken(error) => RequestError::Failed(format!("{description}: {error}")),
    };
    if let RequestError::Failed(message)
    | RequestError::Denied(message)
    | RequestError::Refused(message) = &error
    {
        warn!(message, "a write failed; it will be tried again");
    } else {
        debug!(
            description,
            ?error,
            failure = failure.text(),
            "a write did nothing"
        );
    }
    Err(error)
}

/// Whether a 403 comes from the authorizer (`responsewriters.Forbidden` of kube-apiserver), and not from a quota, a
/// limit range, the capacity of a node, a policy or a webhook.
fn is_authorization_denied(status: &Status) -> bool {
    let message = &status.message;
    message.contains(" is forbidden: User ") && message.contains(" cannot ")
}

/// Whether a webhook or a ValidatingAdmissionPolicy denied the request. The status code does not tell: a denial without
/// a reason has the code 400 or 422 (`ToStatusErr` and the plugin `ValidatingAdmissionPolicy` of kube-apiserver).
fn is_admission_denied(status: &Status) -> bool {
    let message = &status.message;
    message.starts_with("admission webhook \"") && message.contains(" denied the request")
        || message.contains("ValidatingAdmissionPolicy '") && message.contains(" denied request")
}

/// Whether a 403 says that the node of the Pod can't do what the request asks for: plugins `PodResizeValidator` and
/// `NodeDeclaredFeatureValidator` of kube-apiserver. Another node may be able to do it.
fn is_node_incapable(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut reasons = causes.map(|cause| &*cause.reason);
    status.code == 403
        && (reasons.any(|reason| ["NodeCapacity", "UnsupportedPlatform"].contains(&reason))
            || status.message.contains(" not available on node "))
}

/// Whether a 404 names an object, which is then gone. A 404 without a name means an unknown operation, such as
/// `pods/resize` in an older Kubernetes.
fn has_object_name(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| !details.name.is_empty())
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

    #[test]
    fn authorization_denial_differs_from_admission_denial() {
        let is_authorization = |message: &str| {
            is_authorization_denied(&Status {
                message: message.to_owned(),
                ..Status::default()
            })
        };
        let missing_right = "pods \"web-a\" is forbidden: User \"system:serviceaccount:a:b\" cannot patch resource \"pods/resize\" in API group \"\"";
        assert!(is_authorization(missing_right));
        for message in [
            "pods \"web-a\" is forbidden: node didn't have enough allocatable resources: memory, requested: 1",
            "pods \"web-a\" is forbidden: exceeded quota: q, requested: requests.cpu=300m",
            "admission webhook \"a.test\" denied the request: no",
        ] {
            assert!(!is_authorization(message), "{message}");
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
