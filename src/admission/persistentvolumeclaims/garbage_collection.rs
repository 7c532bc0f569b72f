//! Reviews deletions of PVCs by the Kubernetes garbage collector. Some PVCs must outlast their CollaSet. In a
//! foreground deletion of the set, the garbage collector deletes all objects that the set owns at once, before the
//! controller can remove its owner reference from such a PVC.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::is_namespace_terminating;
use crate::admission::context::AdmissionContext;
use crate::admission::exempt::{CONTROLLER_MANAGER, GARBAGE_COLLECTOR};
use crate::admission::responses;
use crate::admission::review::{Handler, Request, Verdict};
use crate::api::keys;
use crate::api_request;
use crate::cluster::request_path::{self, ResourcePath};
use crate::domain::collaset::orphans_its_pods;
use crate::domain::pod::{Owner, PodMetadata};

/// The question that the message of a denial names when it could not be answered.
const CHECKED_SUBJECT: &str = "whether the PersistentVolumeClaim outlasts its CollaSet";

/// Decides deletions of PVCs by the garbage collector, which retries a denied deletion.
pub struct PvcCollectionValidator(pub Arc<AdmissionContext>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedPvc {
    metadata: PodMetadata,
}

/// The fields of a CollaSet that decide. The spec has no type, because a set whose spec cannot be parsed may be
/// deleted, too.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnerCollaSet {
    metadata: ObjectMeta,
    spec: Value,
}

#[async_trait]
impl Handler for PvcCollectionValidator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let old = request.old_object.as_deref();
        let pvc = match responses::parse_object::<ReviewedPvc>(old, "PersistentVolumeClaim") {
            Ok(pvc) => pvc.metadata,
            Err(denial) => return denial,
        };
        let is_terminating = pvc.deletion_timestamp.is_some()
            || is_namespace_terminating(&self.0, &request.namespace);
        let collectors = [GARBAGE_COLLECTOR, CONTROLLER_MANAGER];
        if is_terminating || !collectors.contains(&&*request.user_info.username) {
            return Verdict::allow();
        }
        let owners = pvc.owner_references.iter();
        for owner in owners.filter(|owner| owner.is_collaset()) {
            let read = self.read_collaset(&request.namespace, owner);
            let set = match api_request::by(deadline, read).await {
                Ok(set) => set.filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid)),
                Err(failure) => return self.fallback(request, &failure.text()),
            };
            if let Some(reason) = set.and_then(|set| retention_reason(&pvc, &set)) {
                let message = format!(
                    "PersistentVolumeClaim {} stays: CollaSet {} {reason}, and its controller removes the owner \
                     reference",
                    request.name, owner.name
                );
                return Verdict::deny(403, "Forbidden", message);
            }
        }
        Verdict::allow()
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        responses::deny_unchecked(CHECKED_SUBJECT, why)
    }
}

impl PvcCollectionValidator {
    /// A live read of the set that an owner reference names; `None` if it does not exist.
    async fn read_collaset(
        &self,
        namespace: &str,
        owner: &Owner,
    ) -> Result<Option<OwnerCollaSet>, kube::Error> {
        let name = request_path::checked_name(&owner.name)?;
        let api = format!("/apis/{}/{}", keys::GROUP, keys::VERSION);
        let read = ResourcePath::from_parts(&api, namespace, "collasets")?.get(name)?;
        match self.0.client.request(read).await {
            Ok(set) => Ok(Some(set)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Why a PVC outlasts the set that owns it; `None` if it does not.
fn retention_reason(pvc: &PodMetadata, set: &OwnerCollaSet) -> Option<&'static str> {
    let policy = "/scaleStrategy/persistentVolumeClaimRetentionPolicy/whenDeleted";
    let kept_for = pvc.labels.get(keys::KEPT_FOR);
    if set.metadata.deletion_timestamp.is_none() || orphans_its_pods(&set.metadata) {
        Some("keeps its PVCs")
    } else if set.spec.pointer(policy) == Some(&Value::from("Retain")) {
        Some("keeps it by whenDeleted Retain")
    } else {
        let is_kept = kept_for.is_some() && kept_for == set.metadata.uid.as_ref();
        is_kept.then_some("keeps it by the label kept-for")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn is_retained(pvc: Value, set: Value) -> bool {
        let pvc = serde_json::from_value(pvc).unwrap();
        let set = serde_json::from_value(set).unwrap();
        retention_reason(&pvc, &set).is_some()
    }

    #[test]
    fn pvc_outlasts_collaset_that_retains_it_or_stays() {
        let at = "2026-01-01T00:00:00Z";
        let set = |metadata: Value, policy: Value| {
            let mut set = json!({
                "metadata": { "uid": "1", "deletionTimestamp": at, "finalizers": ["foregroundDeletion"] },
                "spec": { "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": policy } },
            });
            json_patch::merge(&mut set["metadata"], &metadata);
            set
        };
        let kept = json!({ "labels": { (keys::KEPT_FOR): "1" } });
        let other = json!({ "labels": { (keys::KEPT_FOR): "2" } });
        let same = json!({});
        let retain = json!({ "whenDeleted": "Retain", "whenScaled": "Delete" });
        let delete = json!({ "whenDeleted": "Delete", "whenScaled": "Retain" });
        for policy in [&delete, &json!(null), &json!(7)] {
            assert!(!is_retained(json!({}), set(same.clone(), policy.clone())));
            assert!(!is_retained(
                other.clone(),
                set(same.clone(), policy.clone())
            ));
            assert!(is_retained(kept.clone(), set(same.clone(), policy.clone())));
        }
        assert!(is_retained(json!({}), set(same, retain)));
        let not_deleted = json!({ "deletionTimestamp": null });
        assert!(is_retained(json!({}), set(not_deleted, delete.clone())));
        let orphaning = json!({ "finalizers": ["orphan"] });
        assert!(is_retained(json!({}), set(orphaning, delete)));
    }
}
