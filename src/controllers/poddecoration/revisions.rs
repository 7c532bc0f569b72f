//! Writes the ControllerRevisions of a PodDecoration.

use std::sync::Arc;

use kube::core::params::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::execution::{Execution, WriteResult};
use crate::api::keys;
use crate::cluster::objects::{RevisionObject, object_requests};
use crate::controllers::collaset::refusals::RefusalKey;
use crate::controllers::requests::{RequestError, request_with_deadline};
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::plan::RevisionWrite;

impl Execution<'_> {
    /// Writes the revision of the present spec.
    pub async fn write_revision(&self, write: &RevisionWrite) -> WriteResult {
        match write {
            RevisionWrite::Create(revision) => self.create_revision(revision).await,
            RevisionWrite::Renumber(revision, number) => {
                self.renumber_revision(revision, *number).await
            }
        }
    }

    /// Deletes an unused revision. A revision that has changed since the plan was made stays.
    pub async fn delete_revision(&self, key: RefusalKey, revision: &Revision) -> WriteResult {
        let request = object_requests::delete_object::<RevisionObject>(
            self.client(),
            self.objects(),
            (self.namespace(), &revision.name, &revision.uid),
            Some(&revision.resource_version),
        );
        self.send(key, &describe(revision), request).await
    }

    async fn renumber_revision(&self, revision: &Revision, number: i64) -> WriteResult {
        let patch = Patch::Merge(json!({
            "metadata": { "uid": revision.uid, "resourceVersion": revision.resource_version },
            "revision": number,
        }));
        let object = (self.namespace(), &*revision.name);
        let request = object_requests::patch_object::<RevisionObject>(
            self.client(),
            self.objects(),
            object,
            &patch,
            false,
        );
        let written = request_with_deadline(&describe(revision), request).await;
        let is_renumbered = |cached: &Revision| cached.revision == number;
        let written = written.and_then(|()| self.check_written(revision, is_renumbered));
        self.record_result(RefusalKey::Revision, written)
    }

    async fn create_revision(&self, revision: &Revision) -> WriteResult {
        let body = json!({
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": revision.name,
                "namespace": self.namespace(),
                "labels": revision.labels,
                "ownerReferences": [{
                    "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
                    "kind": "PodDecoration",
                    "name": self.name(),
                    "uid": self.uid(),
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "data": revision.data,
            "revision": revision.revision,
        });
        let (client, objects) = (self.client(), self.objects());
        let namespace = self.namespace();
        let request =
            object_requests::create_object::<RevisionObject>(client, objects, namespace, &body);
        let created = match request_with_deadline(&describe(revision), request).await {
            Ok(_) => self.check_written(revision, |cached| self.is_as_wanted(revision, cached)),
            Err(RequestError::Exists) => {
                let object = (namespace, &*revision.name);
                let request =
                    object_requests::get_object::<RevisionObject>(client, objects, object);
                match request_with_deadline(&describe(revision), request).await {
                    // An earlier attempt created it, and its answer was lost.
                    Ok(Some(existing)) if self.is_as_wanted(revision, &existing) => Ok(()),
                    Ok(_) => return self.raise_collision_count().await,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        self.record_result(RefusalKey::Revision, created)
    }

    /// Whether a stored revision is controlled by the PodDecoration and has the data of the wanted revision.
    fn is_as_wanted(&self, wanted: &Revision, stored: &Revision) -> bool {
        stored.controller.as_deref() == Some(self.uid()) && stored.data == wanted.data
    }

    /// Checks by the cached answer of the API server that a revision contains what was written. Otherwise the revision
    /// would be written again and again.
    fn check_written(
        &self,
        revision: &Revision,
        is_written: impl FnOnce(&Revision) -> bool,
    ) -> Result<(), RequestError> {
        let revisions = &self.objects().revisions;
        let cached: Option<Arc<Revision>> = revisions.get(self.namespace(), &revision.name);
        cached
            .is_none_or(|cached| is_written(&cached))
            .then_some(())
            .ok_or_else(|| RequestError::not_as_written(&describe(revision)))
    }

    /// The name of the revision belongs to another object. The next plan makes another name from the raised count.
    async fn raise_collision_count(&self) -> WriteResult {
        let mut status = self.object.status.clone().unwrap_or_default();
        status.collision_count = Some(status.collision_count.unwrap_or(0).wrapping_add(1));
        let patch = self.status_patch(&status).unwrap_or_default();
        let result = self.write_status(patch, &[]).await;
        if let WriteResult::Refused(message) = &result {
            // Without the count, the revision would be created again at once.
            let key = RefusalKey::Revision;
            let (now, generation) = (Instant::now(), self.generation());
            self.memory.record_refusal(key, message, now, generation);
        }
        result
    }
}

fn describe(revision: &Revision) -> String {
    format!("ControllerRevision {}", revision.name)
}
