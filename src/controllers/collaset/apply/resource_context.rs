//! Writes the pool of instance IDs (contract 6.2). The write is a compare-and-swap on the resourceVersion that the plan
//! was made from, because several sets may share a pool.

use kube::core::params::Patch;
use serde_json::json;

use super::super::refusals::RefusalKey;
use super::super::requests::{StageError, request_with_deadline};
use super::PlanExecution;
use super::batch::{self, WriteRequest};
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
use crate::cluster::objects::{ResourceContextObject, object_requests};
use crate::domain::collaset::observed::pool_name;
use crate::domain::collaset::status::FailedStep;

/// Replaces the entries of the pool. A pool without entries is deleted.
pub async fn write_resource_context(
    execution: &PlanExecution<'_>,
    wanted: Option<Vec<ContextDetail>>,
) -> Result<(), StageError> {
    let Some(contexts) = wanted else {
        return Ok(());
    };
    let write = WriteRequest {
        key: RefusalKey::Pool,
        step: FailedStep::Pool,
        request: replace_resource_context(execution, contexts),
    };
    execution.requeue_if_written(batch::send_write(execution, write).await)
}

async fn replace_resource_context(
    execution: &PlanExecution<'_>,
    contexts: Vec<ContextDetail>,
) -> Result<(), StageError> {
    let (client, objects, namespace) = (
        execution.client(),
        execution.objects(),
        execution.namespace(),
    );
    let name = pool_name(execution.set);
    let description = format!("ResourceContext {name}");
    let result = match execution.pool {
        None if contexts.is_empty() => Ok(()),
        None => {
            let body = json!({
                "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
                "kind": "ResourceContext",
                "metadata": { "name": name, "namespace": namespace },
                "spec": { "contexts": contexts },
            });
            let request = object_requests::create_object::<ResourceContextObject>(
                client, objects, namespace, &body,
            );
            request_with_deadline(&description, request)
                .await
                .map(|_| ())
        }
        Some(pool) if contexts.is_empty() => {
            let (object, version) = ((namespace, name, &*pool.uid), Some(&*pool.resource_version));
            let request = object_requests::delete_object::<ResourceContextObject>(
                client, objects, object, version,
            );
            request_with_deadline(&description, request).await
        }
        Some(pool) => {
            let patch = Patch::Merge(json!({
                "metadata": { "uid": pool.uid, "resourceVersion": pool.resource_version },
                "spec": { "contexts": contexts },
            }));
            let object = (namespace, name);
            let request = object_requests::patch_object::<ResourceContextObject>(
                client, objects, object, &patch, false,
            );
            request_with_deadline(&description, request).await
        }
    };
    result.map_err(|error| error.into_stage_error(FailedStep::Pool))
}
