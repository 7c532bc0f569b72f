//! Sends the requests of the certificate rotation. Adds to `api_request` the deadline and the errors of the rotation,
//! and whether another replica has written first.

use std::time::Duration;

use super::IssueError;
use crate::api_request::{self, ApiFailure};
use crate::tls::PairError;

/// Time limit of one API request.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// Why the certificates could not be synchronised.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The API server refused a request.
    #[error(
        "{description}: {message}; the service account needs get, create and update on Secrets of its namespace, and get and patch on webhook configurations"
    )]
    Forbidden {
        /// The request and its object.
        description: String,
        /// The message of the API server.
        message: String,
    },
    /// The API server could not be reached, or did not answer.
    #[error("{description}: {why}")]
    Api {
        /// The request and its object.
        description: String,
        /// The cause of the failure.
        why: String,
    },
    /// Other replicas kept writing.
    #[error("Secret or webhook configurations kept changing under {0} attempts; will retry")]
    Contended(u32),
    /// A certificate could not be issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The certificate in the Secret cannot be served.
    #[error("Secret: {0}")]
    Pair(#[from] PairError),
}

/// Whether a conditional write succeeded. One of the codes `raced` means that another client has written first.
pub(super) fn is_write_applied<T>(
    written: Result<T, FailedRequest>,
    raced: &[u16],
) -> Result<bool, SyncError> {
    match written {
        Ok(_) => Ok(true),
        Err(failed)
            if failed
                .failure
                .code()
                .is_some_and(|code| raced.contains(&code)) =>
        {
            Ok(false)
        }
        Err(failed) => Err(failed.into()),
    }
}

/// A failed request. `description` names the request and its object.
pub(super) struct FailedRequest {
    description: String,
    failure: ApiFailure,
}

impl From<FailedRequest> for SyncError {
    fn from(
        FailedRequest {
            description,
            failure,
        }: FailedRequest,
    ) -> SyncError {
        let why = failure.text();
        match failure.code() {
            Some(401 | 403) => SyncError::Forbidden {
                description,
                message: why,
            },
            _ => SyncError::Api { description, why },
        }
    }
}

pub(super) async fn send_request<T>(
    description: String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, FailedRequest> {
    let answer = api_request::within(REQUEST_DEADLINE, call).await;
    answer.map_err(|failure| FailedRequest {
        description,
        failure,
    })
}
