//! What sets that are gone have left behind.

use super::super::Context;
use super::CollaSetName;
use super::api_request::{RequestError, request_with_deadline};
use crate::cluster::objects::{PoolObject, write};
use crate::cluster::queue::Outcome;

/// Deletes the ResourceContext of this name if it is empty (contract 9) and no CollaSet uses it: one that was
/// edited by hand, or that an earlier controller has left. One with entries stays, since another set of that name may
/// want to go on with it.
pub async fn delete_empty_resource_context(
    context: &Context,
    (namespace, name): &CollaSetName,
) -> Outcome {
    let objects = &context.objects;
    if !context.index.listed().for_collasets() {
        return Outcome::Retry;
    }
    let Some(pool) = objects.pools.get(namespace, name) else {
        return Outcome::Done;
    };
    if !pool.contexts.is_empty() || !objects.sets_using(namespace, name).is_empty() {
        return Outcome::Done;
    }
    let (object, version) = (
        (&**namespace, &**name, &*pool.uid),
        Some(&*pool.resource_version),
    );
    let request = write::delete::<PoolObject>(&context.client, objects, object, version);
    match request_with_deadline(&format!("ResourceContext {name}"), request).await {
        Ok(()) => Outcome::Done,
        Err(
            RequestError::Moved
            | RequestError::Exists
            | RequestError::Held(_)
            | RequestError::Failed(_)
            | RequestError::Denied(_)
            | RequestError::Refused(_),
        ) => Outcome::Retry,
    }
}
