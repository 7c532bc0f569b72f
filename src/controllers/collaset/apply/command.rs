//! The annotation by which users command a rollout: removed once it has been carried out.

use kube::core::params::Patch;
use serde_json::json;

use super::super::call::{Halt, call};
use super::Work;
use crate::api::keys;
use crate::cluster::workloads::{SetObject, write};
use crate::domain::collaset::status::Step;

/// Removes it, on condition of the version that the plan was made from: a command that has come since stays.
pub async fn forget(work: &Work<'_>) -> Result<(), Halt> {
    let metadata = &work.set.metadata;
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "annotations": { keys::ROLLOUT: null },
    } }));
    let object = (work.namespace(), work.name());
    let request = write::patch::<SetObject>(work.client(), work.objects(), object, &patch, false);
    call(&format!("CollaSet {}", work.name()), request)
        .await
        .map_err(|trouble| trouble.halt(Step::Update))
}
