//! The position of a kind of objects in etcd: the resourceVersion that every write before this moment is at or below.
//!
//! A list without a resourceVersion is a consistent read. Where the API server answers it from etcd, its version is etcd's
//! revision at that moment. Where it answers from its watch cache (by default since Kubernetes 1.31), it reads etcd's revision
//! first and waits until the cache has come that far, so that the version of the list is that revision or a later one. While it
//! waits it asks etcd for the progress of its watch, which our own watches are served from.
//!
//! The list asks for one name that no object has. With `limit=1` instead, an API server may read past its cache, which then
//! hears nothing of etcd's progress; or it answers from the cache, which knows no pages, with all objects. One name in one
//! namespace is one key for both.

use kube::core::params::ListParams;
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Client, Error};

use super::request_path::ResourcePath;

/// A name that no object of a watched kind can have: names begin with a letter or a digit.
const IMPOSSIBLE_NAME: &str = "-";

/// Reads the position of the objects `at`.
///
/// # Errors
/// What the API server answered, or that it did not; and a version that is no number.
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
    /// The list has this version.
    #[error("a list has version {0:?}, which is no number")]
    Version(String),
}
