//! Marks CollaSets that are deleted without their Pods (`--cascade=orphan`).

use async_trait::async_trait;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::KIND;
use crate::admission::responses;
use crate::admission::review::{Handler, Request, Verdict};
use crate::api::keys;
use crate::domain::collaset::orphans_its_pods;

/// Records on a CollaSet that its deletion leaves its Pods. The Kubernetes garbage collector soon removes the finalizer
/// `orphan`, and without the record a later reader would take the set for a set that is deleted with its Pods.
pub struct OrphanAnnotator;

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedMetadata {
    metadata: ObjectMeta,
}

#[async_trait]
impl Handler for OrphanAnnotator {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        let parse = |raw| responses::parse_object::<ReviewedMetadata>(raw, KIND);
        let (old, new) = match (
            parse(request.old_object.as_deref()),
            parse(request.object.as_deref()),
        ) {
            (Ok(old), Ok(new)) => (old.metadata, new.metadata),
            (Err(denial), _) | (_, Err(denial)) => return denial,
        };
        let annotations = new.annotations.as_ref();
        let is_annotated =
            annotations.and_then(|all| all.get(keys::LEAVES_ITS_PODS)) == old.uid.as_ref();
        if !orphans_its_pods(&old) || is_annotated {
            return Verdict::allow();
        }
        let mut patch = Vec::new();
        let mut add = |path: &[&str], value| {
            let path = PointerBuf::from_tokens(path.iter().copied());
            patch.push(PatchOperation::Add(AddOperation { path, value }));
        };
        if annotations.is_none() {
            add(&["metadata", "annotations"], json!({}));
        }
        let annotation = ["metadata", "annotations", keys::LEAVES_ITS_PODS];
        add(&annotation, json!(old.uid));
        Verdict::allow().with_patch(Patch(patch))
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        responses::deny_unchecked("the deletion of the CollaSet without its Pods", why) // the garbage collector retries
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::Value;

    use super::*;

    async fn annotated_patch(old: &Value, new: &Value) -> Value {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web",
                "kind": { "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "CollaSet" },
                "resource": { "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "collasets" },
                "object": { "metadata": new }, "oldObject": { "metadata": old },
            },
        });
        let request = Request::parse(review.to_string().as_bytes()).unwrap();
        let verdict = OrphanAnnotator.review(&request, Instant::now()).await;
        assert!(verdict.is_allowed());
        let mut object = json!({ "metadata": new });
        let patch = verdict.patch().cloned().unwrap_or_default();
        json_patch::patch(&mut object, &patch).unwrap();
        object["metadata"]["annotations"].take()
    }

    #[tokio::test]
    async fn deletion_without_pods_is_annotated_for_good() {
        let metadata = |deleted: bool, finalizers: &[&str], annotations: Value| {
            let at = deleted.then_some("2026-01-01T00:00:00Z");
            json!({
                "name": "web", "uid": "1", "deletionTimestamp": at, "finalizers": finalizers, "annotations": annotations,
            })
        };
        let annotation = json!({ keys::LEAVES_ITS_PODS: "1" });
        let (with_orphan, others) = (["a", "orphan"], ["a"]);
        let without_finalizer = |annotations| metadata(true, &others, annotations);
        let orphaning = metadata(true, &with_orphan, Value::Null);
        assert_eq!(
            annotated_patch(&orphaning, &without_finalizer(Value::Null)).await,
            annotation
        );
        let mut all = annotation.clone();
        all["b"] = json!("c");
        assert_eq!(
            annotated_patch(&orphaning, &without_finalizer(json!({ "b": "c" }))).await,
            all
        );
        assert_eq!(
            annotated_patch(
                &without_finalizer(annotation.clone()),
                &without_finalizer(Value::Null)
            )
            .await,
            annotation
        );
        assert_eq!(
            annotated_patch(
                &without_finalizer(annotation.clone()),
                &without_finalizer(annotation.clone())
            )
            .await,
            annotation
        );
        // An annotation with the UID of another set, and a set that is not deleted, stay unchanged.
        let foreign = json!({ keys::LEAVES_ITS_PODS: "2" });
        assert_eq!(
            annotated_patch(
                &without_finalizer(foreign.clone()),
                &without_finalizer(foreign.clone())
            )
            .await,
            foreign
        );
        let not_deleted = metadata(false, &with_orphan, annotation.clone());
        assert_eq!(
            annotated_patch(&not_deleted, &metadata(false, &others, Value::Null)).await,
            Value::Null
        );
    }
}
