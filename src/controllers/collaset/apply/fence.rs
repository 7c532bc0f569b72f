//! A claim that a new Pod is to mount gets a new version first. A deletion that was sent before, by a leader that has died or stood still
//! or by a call whose answer was lost, may be carried out at any time, and names the version that it was planned from: it fails then.

use kube::core::params::Patch;
use serde_json::json;

use super::super::call::{Trouble, call};
use super::Work;
use crate::api::keys;
use crate::cluster::workloads::{ClaimObject, write};

/// Does so for these claims, each once until this process sends a deletion of its own. Claims that no cache knows are deleted by nobody
/// here.
pub async fn raise(work: &Work<'_>, claims: impl Iterator<Item = &str>) -> Result<(), Trouble> {
    for name in claims {
        let (namespace, store) = (work.namespace(), &work.objects().claims);
        let Some(claim) = store.get(namespace, name) else {
            continue;
        };
        if work.memory.is_fenced(&claim.uid) {
            continue;
        }
        let now = (work.context.now)().to_string();
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": claim.uid, "annotations": { keys::HANDED_OUT: now },
        } }));
        let (client, objects) = (work.client(), work.objects());
        let object = (namespace, name);
        let request = write::patch::<ClaimObject>(client, objects, object, &patch, false);
        call(&format!("PersistentVolumeClaim {name}"), request).await?;
        // The deletion may have come first.
        let now = store.get(namespace, name);
        if now.is_none_or(|now| now.terminating || now.uid != claim.uid) {
            return Err(Trouble::Moved);
        }
        work.memory.fence(&claim.uid);
    }
    Ok(())
}
