//! Checks a write of a finalizer by the answer of the API server. Without these checks, a webhook that undoes the write
//! would cause the write again and again, or an object that still exists would be forgotten.

use super::requests::RequestError;
use crate::domain::pod::PodMetadata;

/// Checks that the finalizer was added.
pub fn check_added(
    answer: &PodMetadata,
    finalizer: &str,
    description: &str,
) -> Result<(), RequestError> {
    match has_finalizer(answer, finalizer) {
        true => Ok(()),
        false => Err(RequestError::not_as_written(description)),
    }
}

/// Checks that the finalizer was removed. Returns whether the object is gone with it: the object is being deleted, and no
/// other finalizer keeps it.
pub fn check_removed(
    answer: &PodMetadata,
    finalizer: &str,
    description: &str,
) -> Result<bool, RequestError> {
    match has_finalizer(answer, finalizer) {
        true => Err(RequestError::not_as_written(description)),
        false => Ok(answer.deletion_timestamp.is_some() && answer.finalizers.is_empty()),
    }
}

fn has_finalizer(metadata: &PodMetadata, finalizer: &str) -> bool {
    metadata.finalizers.iter().any(|found| found == finalizer)
}
