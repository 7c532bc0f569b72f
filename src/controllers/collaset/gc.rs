//! Deletes ResourceContexts that deleted CollaSets have left behind.

use super::super::ControllerContext;
use super::CollaSetName;
use super::requests::{RequestError, request_with_deadline};
use crate::cluster::objects::{ResourceContextObject, object_requests};
use crate::cluster::work_queue::ReconcileOutcome;

/// Deletes the ResourceContext of this name if it is empty (contract 9) and no CollaSet uses it. Somebody may have
/// edited it, or an earlier controller may have left it. A ResourceContext with entries stays, because another set of
/// that name may continue to use them.
pub async fn delete_empty_resource_context(
    context: &ControllerContext,
    (namespace, name): &CollaSetName,
) -> ReconcileOutcome {
    let objects = &context.objects;
    if !context.index.listed_kinds().has_collaset_kinds() {
        return ReconcileOutcome::Retry;
    }
    let Some(pool) = objects.pools.get(namespace, name) else {
        return ReconcileOutcome::Done;
    };
    if !pool.contexts.is_empty() || !objects.collasets_using_context(namespace, name).is_empty() {
        return ReconcileOutcome::Done;
    }
    let (object, version) = (
        (&**namespace, &**name, &*pool.uid),
        Some(&*pool.resource_version),
    );
    let request = object_requests::delete_object::<ResourceContextObject>(
        &context.client,
        objects,
        object,
        version,
    );
    match request_with_deadline(&format!("ResourceContext {name}"), request).await {
        Ok(()) => ReconcileOutcome::Done,
        Err(
            RequestError::Moved
            | RequestError::Exists
            | RequestError::Held(_)
            | RequestError::Failed(_)
            | RequestError::Denied(_)
            | RequestError::Refused(_),
        ) => ReconcileOutcome::Retry,
    }
}
