//! The outcome of requests, which faults and other changes of the walk may make fail.

use std::fmt::Debug;

use testbed::wait;

/// Whether a request succeeded. The expected failures are 404 and 409 (the object is gone or has changed), 429 (a rule
/// holds it), 403 and 422 (refused), and 500 and 504 (the webhook was killed).
pub fn passed<T: Debug>(outcome: kube::Result<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(kube::Error::Api(status))
            if [400, 403, 404, 409, 422, 429, 500, 504].contains(&status.code) =>
        {
            false
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Repeats a request while the webhooks are down. Returns false if the API server refuses it.
pub async fn is_taken<T: Debug>(
    description: &str,
    mut request: impl AsyncFnMut() -> kube::Result<T>,
) -> bool {
    let description = format!("{description} to be taken or refused");
    wait::value(&description, async || match request().await {
        Err(kube::Error::Api(status)) if [400, 403, 422].contains(&status.code) => Some(false),
        other => passed(other).then_some(true),
    })
    .await
}
