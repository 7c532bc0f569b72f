//! API requests with a deadline, and what their failures mean.

use std::time::Duration;

use tokio::time::timeout;

use super::IssueError;
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
pub(super) fn unless_raced<T>(
    written: Result<T, Failed>,
    raced: &[u16],
) -> Result<bool, SyncError> {
    match written {
        Ok(_) => Ok(true),
        Err(failed) if raced.contains(&failed.code) => Ok(false),
        Err(failed) => Err(failed.into()),
    }
}

/// A request that failed; `code` is 0 when there was no answer.
pub(super) struct Failed {
    what: String,
    code: u16,
    why: String,
}

impl From<Failed> for SyncError {
    fn from(Failed { what, code, why }: Failed) -> SyncError {
        match code {
            401 | 403 => SyncError::Forbidden { what, message: why },
            _ => SyncError::Api { what, why },
        }
    }
}

pub(super) async fn request<T>(
    what: String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failed> {
    match timeout(REQUEST_DEADLINE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(Failed {
            what,
            code: status.code,
            why: status.message.clone(),
        }),
        Ok(Err(error)) => Err(Failed {
            what,
            code: 0,
            why: error.to_string(),
        }),
        Err(_) => Err(Failed {
            what,
            code: 0,
            why: "no answer in time".to_owned(),
        }),
    }
}
