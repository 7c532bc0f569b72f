//! Checks a write of the finalizer [`keys::PROTECTED_FINALIZER`] by the answer of the API server. Without these checks, a
//! webhook that undoes the write would cause the write again and again.

use super::requests::RequestError;
use crate::api::keys;
use crate::domain::pod::PodMetadata;

/// Checks that the finalizer was added.
pub fn check_added(answer: &PodMetadata, description: &str) -> Result<(), RequestError> {
    match has_finalizer(answer) {
        true => Ok(()),
        false => Err(RequestError::not_as_written(description)),
    }
}

/// Checks that the finalizer was removed. Returns whether the object is gone with it: the object is being deleted, and no
/// other finalizer keeps it.
pub fn check_removed(answer: &PodMetadata, description: &str) -> Result<bool, RequestError> {
    match has_finalizer(answer) {
        true => Err(RequestError::not_as_written(description)),
        false => Ok(answer.deletion_timestamp.is_some() && answer.finalizers.is_empty()),
    }
}

fn has_finalizer(metadata: &PodMetadata) -> bool {
    let mut all = metadata.finalizers.iter();
    all.any(|finalizer| finalizer == keys::PROTECTED_FINALIZER)
}
