//! API requests with a deadline, and what their failures mean.

use std::time::Duration;

use super::IssueError;
use crate::apirequest::{self, Failure};
use crate::tls::PairError;

/// For one API request.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// Why certificates could not be brought into line.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The API server refused.
    #[error(
        "{what}: {message}; the service account needs get, create and update on Secrets of its namespace, and get and patch on webhook configurations"
    )]
    Forbidden {
        /// Request and object.
        what: String,
        /// The API server's words.
        message: String,
    },
    /// The API server could not be asked, or did not answer.
    #[error("{what}: {why}")]
    Api {
        /// Request and object.
        what: String,
        /// Cause.
        why: String,
    },
    /// Other replicas kept writing.
    #[error("Secret or webhook configurations kept changing under {0} attempts; will retry")]
    Contended(u32),
    /// A certificate could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// What the Secret holds cannot be served.
    #[error("Secret: {0}")]
    Pair(#[from] PairError),
}

/// Whether a conditional write was made; one of the codes `raced` says that somebody else was faster.
pub(super) fn is_write_applied<T>(
    written: Result<T, RequestFailure>,
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

/// A request that failed; `what` names the request and its object.
pub(super) struct RequestFailure {
    what: String,
    failure: Failure,
}

impl From<RequestFailure> for SyncError {
    fn from(RequestFailure { what, failure }: RequestFailure) -> SyncError {
        let why = failure.text();
        match failure.code() {
            Some(401 | 403) => SyncError::Forbidden { what, message: why },
            _ => SyncError::Api { what, why },
        }
    }
}

pub(super) async fn send_request<T>(
    what: String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestFailure> {
    let answer = apirequest::within(REQUEST_DEADLINE, call).await;
    answer.map_err(|failure| RequestFailure { what, failure })
}
