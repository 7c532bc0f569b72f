//! Gives a PVC a new resourceVersion before a new Pod mounts the PVC. A deletion that was sent earlier may still be on
//! its way: from a leader that has died or was suspended, or from a call whose answer was lost. That deletion has the
//! resourceVersion of its plan as precondition, so it fails after the new write.

use kube::core::params::Patch;
use serde_json::json;

use super::super::requests::{RequestError, request_with_deadline};
use super::PlanExecution;
use crate::api::keys;
use crate::cluster::objects::{PvcObject, object_requests};

/// Fences each of these PVCs that belongs to the set: gives it a new resourceVersion. Each PVC is fenced once. A
/// deletion that this process sends removes the fence. A kept PVC is fenced too, so that an earlier write that releases
/// it fails.
pub async fn fence_pvcs(
    execution: &PlanExecution<'_>,
    pvc_names: impl Iterator<Item = &str>,
) -> Result<(), RequestError> {
    for name in pvc_names {
        let (namespace, store) = (execution.namespace(), &execution.objects().pvcs);
        let owned = store.get(namespace, name);
        let owned = owned.filter(|pvc| pvc.belongs_to_set(Some(execution.uid())));
        let Some(pvc) = owned.filter(|pvc| !execution.state.is_pvc_fenced(&pvc.uid)) else {
            continue;
        };
        let now = (execution.context.now)().to_string();
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": pvc.uid, "resourceVersion": pvc.resource_version,
            "annotations": { keys::HANDED_OUT: now },
        } }));
        let (client, objects) = (execution.client(), execution.objects());
        let object = (namespace, name);
        let request =
            object_requests::patch_object::<PvcObject>(client, objects, object, &patch, false);
        let description = format!("PersistentVolumeClaim {name}");
        request_with_deadline(&description, request).await?;
        let cached = store.get(namespace, name);
        let cached = cached.filter(|cached| cached.uid == pvc.uid && !cached.terminating);
        let Some(cached) = cached else {
            return Err(RequestError::Moved); // the deletion was carried out first
        };
        if cached.resource_version == pvc.resource_version {
            return Err(RequestError::not_as_written(&description)); // a webhook removed the annotation
        }
        execution.state.fence_pvc(&pvc.uid);
    }
    Ok(())
}
