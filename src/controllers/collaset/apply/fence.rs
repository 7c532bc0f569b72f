//! A claim that a new Pod is to mount gets a new version first. A deletion that was sent before, by a leader that has died or stood still
//! or by a call whose answer was lost, may be carried out at any time, and names the version that it was planned from: it fails then.

use kube::core::params::Patch;
use serde_json::json;

use super::super::requests::{RequestError, request_with_deadline};
use super::PlanExecution;
use crate::api::keys;
use crate::cluster::objects::{PvcObject, object_requests};

/// Gives a new version to those of these claims that the set has, each once until this process sends a deletion of its own. One that is kept is let go, which
/// must not come late either.
pub async fn fence_pvcs(
    work: &PlanExecution<'_>,
    claims: impl Iterator<Item = &str>,
) -> Result<(), RequestError> {
    for name in claims {
        let (namespace, store) = (work.namespace(), &work.objects().claims);
        let owned = store.get(namespace, name);
        let owned = owned.filter(|claim| claim.belongs_to_set(Some(work.uid())));
        let Some(claim) = owned.filter(|claim| !work.memory.is_pvc_fenced(&claim.uid)) else {
            continue;
        };
        let now = (work.context.now)().to_string();
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": claim.uid, "resourceVersion": claim.resource_version,
            "annotations": { keys::HANDED_OUT: now },
        } }));
        let (client, objects) = (work.client(), work.objects());
        let object = (namespace, name);
        let request =
            object_requests::patch_object::<PvcObject>(client, objects, object, &patch, false);
        let what = format!("PersistentVolumeClaim {name}");
        request_with_deadline(&what, request).await?;
        let now = store.get(namespace, name);
        let now = now.filter(|now| now.uid == claim.uid && !now.terminating);
        let Some(now) = now else {
            return Err(RequestError::Moved); // the deletion has come first
        };
        if now.resource_version == claim.resource_version {
            return Err(RequestError::not_as_written(&what)); // who takes the annotation out keeps the version
        }
        work.memory.fence_pvc(&claim.uid);
    }
    Ok(())
}
