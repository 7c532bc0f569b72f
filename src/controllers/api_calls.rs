//! Sends the requests of the controllers to the API server with a deadline, and decides what happens to the key after a
//! failure.

use std::sync::Arc;
use std::time::Duration;

use kube::Error;
use tracing::{debug, warn};

use super::ControllerContext;
use crate::api_request::{self, ApiFailure};
use crate::cluster::pod_requests;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;

/// Timeout of a single request of a controller.
pub(super) const API_CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns a Pod with all its fields. The Pod is read live if the cache contains only its metadata, because the rest is
/// too large or can't be parsed. Returns `None` if there is nothing to act on; a newer version enqueues the Pod again.
pub(super) async fn read_whole_pod(
    context: &ControllerContext,
    cached: Arc<Pod>,
) -> Result<Option<Arc<Pod>>, ReconcileOutcome> {
    if cached.is_readable() {
        return Ok(Some(cached));
    }
    let metadata = &cached.metadata;
    let read = async {
        match pod_requests::get_pod(&context.client, &metadata.namespace, &metadata.name).await {
            Err(Error::SerdeError(_)) => Ok(None),
            read => read,
        }
    };
    let live = call_api("read a Pod that is not in the cache", read).await?;
    let is_same = |live: &Pod| live.metadata.uid == metadata.uid;
    Ok(live.filter(is_same).map(Arc::new))
}

/// Sends a request with a deadline. After a failure the key is tried again.
pub(super) async fn call_api<T>(
    description: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, ReconcileOutcome> {
    call_api_again(description, false, call).await
}

/// As [`call_api`]. `failing` says that the same request failed before, so that another failure is logged without a
/// warning.
pub(super) async fn call_api_again<T>(
    description: &'static str,
    failing: bool,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, ReconcileOutcome> {
    call_outcome(description, failing, with_api_deadline(call).await)
}

/// Awaits a request for at most [`API_CALL_TIMEOUT`].
pub(super) async fn with_api_deadline<T>(
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, ApiFailure> {
    api_request::within(API_CALL_TIMEOUT, call).await
}

/// The outcome for the key after a request.
pub(super) fn call_outcome<T>(
    description: &'static str,
    failing: bool,
    result: Result<T, ApiFailure>,
) -> Result<T, ReconcileOutcome> {
    match result {
        Ok(value) => return Ok(value),
        Err(ApiFailure::Answered(status)) if matches!(status.code, 404 | 409) => {
            debug!(
                description,
                code = status.code,
                "the object is gone or has changed"
            );
        }
        Err(ApiFailure::Answered(status)) if status.code == 429 => {
            debug!(description, message = %status.message, "the request is refused for now");
        }
        Err(e) if failing => debug!(description, error = e.text(), "write failed again"),
        Err(e) => warn!(
            description,
            error = e.text(),
            "write failed; it will be tried again"
        ),
    }
    Err(ReconcileOutcome::Retry)
}
