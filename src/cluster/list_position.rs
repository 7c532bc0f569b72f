//! The position of a kind of objects in etcd: a resourceVersion that is at least as large as those of all earlier
//! writes.
//!
//! A list without a resourceVersion is a consistent read. If the API server answers it from etcd, the version of the
//! list is etcd's revision at that moment. If the API server answers it from its watch cache (by default since
//! Kubernetes 1.31), it first reads etcd's revision and waits until the cache has reached it. Then the version of the
//! list is this revision or a later one. While the API server waits, it requests a progress notification for its own
//! watch, which also feeds our watches.
//!
//! The list selects one name that no object has. With `limit=1` instead, an API server may bypass its cache, and then
//! the cache does not learn etcd's progress. Or the API server answers from the cache, which has no pages, with all
//! objects. In both, one name in one namespace is one key.

use kube::core::params::ListParams;
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Client, Error};

use super::request_path::ResourcePath;

/// A name that no object of a watched kind can have, because names begin with a letter or a digit.
const IMPOSSIBLE_NAME: &str = "-";

/// Reads the position of the objects `at`.
///
/// # Errors
/// If the API server refuses or does not answer, or if the version of the list is not a number.
pub async fn read_list_position(
    client: &Client,
    at: &ResourcePath,
    fields: Option<&str>,
) -> Result<u64, PositionError> {
    let by_name = format!("metadata.name={IMPOSSIBLE_NAME}");
    let one = ListParams::default().fields(fields.unwrap_or(&by_name));
    let request = at.list_metadata(&one)?;
    let list: ObjectList<PartialObjectMeta> = client.request(request).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    version.parse().map_err(|_| PositionError::Version(version))
}

/// Why a position was not read.
#[derive(Debug, thiserror::Error)]
pub enum PositionError {
    /// The request failed.
    #[error(transparent)]
    Failed(#[from] Error),
    /// The list has this version, which is not a number.
    #[error("a list has version {0:?}, which is no number")]
    Version(String),
}
