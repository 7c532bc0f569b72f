//! A kubelet that has caught up with an in-place update of a CollaSet: its own write of the status ends the operation and puts
//! the Pod back on traffic, which would take three more writes of every Pod of a rollout otherwise. The controller does all of it
//! where this did not.

use json_patch::jsonptr::PointerBuf;
use json_patch::{PatchOperation, RemoveOperation};

use crate::admission::context::Context;
use crate::admission::review::Request;
use crate::api::keys;
use crate::domain::collaset::finish_in_place;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Ends the in-place update of a Pod, in `new`, if the status that is written shows that it is over; whether it did. An update
/// that another one is to follow is not ended: its CollaSet goes on with the Pod off traffic.
pub fn finish(context: &Context, request: &Request, new: &mut Pod) -> bool {
    let Some(labels) = finished(context, request, new) else {
        return false;
    };
    labels.apply(&mut new.metadata.labels);
    new.metadata.annotations.remove(keys::LAST_POD_STATUS);
    true
}

fn finished(context: &Context, request: &Request, new: &Pod) -> Option<LabelPatch> {
    if request.sub_resource.as_deref() != Some("status") {
        return None;
    }
    let labels = finish_in_place(new)?;
    let owner = new.controller().filter(|owner| owner.is_collaset())?;
    let sets = &context.index.objects.sets;
    let set = sets.get(&new.metadata.namespace, &owner.name)?;
    let status = set.status.as_ref()?;
    let is_last = set.metadata.uid.as_deref() == Some(&owner.uid)
        && set.metadata.deletion_timestamp.is_none()
        && set.metadata.generation == Some(status.observed_generation)
        && new.label(keys::REVISION) == Some(&status.updated_revision);
    is_last.then_some(labels)
}

/// What ending the update changes in the object of the request besides labels and conditions.
pub fn forget() -> PatchOperation {
    let annotation = ["metadata", "annotations", keys::LAST_POD_STATUS];
    PatchOperation::Remove(RemoveOperation {
        path: PointerBuf::from_tokens(annotation),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Arc;

    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::admission::pods::Mutate;
    use crate::admission::review::Handler;
    use crate::api::keys::Family;
    use crate::cluster::workloads::{SetObject, Wire};

    fn pod(image_id: &str) -> Value {
        let label = |family: Family| family.key("collaset");
        let last = json!({ "containerStates": { "app": {
            "latestImage": "app:2", "lastImageID": "id-1", "lastContainerID": "run-1", "lastImage": "app:1",
        } } });
        json!({
            "metadata": {
                "namespace": "shop", "name": "web-1", "uid": "u", "generation": 2,
                "labels": {
                    (keys::CONTROL): "true", (keys::INSTANCE_ID): "0", (keys::REVISION): "web-2",
                    (label(Family::Operating)): "1", (label(Family::OperationType)): "update",
                    (label(Family::PreCheck)): "1", (label(Family::PreChecked)): "1",
                    (label(Family::Preparing)): "1", (label(Family::Operate)): "1",
                    (Family::OperationPermission.key("update")): "1",
                },
                "annotations": { (keys::LAST_POD_STATUS): last.to_string() },
                "ownerReferences": [{
                    "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "s", "controller": true,
                }],
            },
            "spec": {
                "containers": [{ "name": "app", "image": "app:2" }],
                "readinessGates": [{ "conditionType": keys::SERVICE_READY }],
            },
            "status": {
                "phase": "Running", "observedGeneration": 2,
                "conditions": [
                    { "type": "Ready", "status": "False" }, { "type": keys::SERVICE_READY, "status": "False" },
                ],
                "containerStatuses": [{
                    "name": "app", "ready": true, "imageID": image_id, "containerID": format!("run-{image_id}"),
                    "state": { "running": {} },
                }],
            },
        })
    }

    fn set(generation: i64, updated: &str) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "s", "generation": generation, "resourceVersion": "1" },
            "status": { "observedGeneration": 1, "updatedRevision": updated },
        })
    }

    /// The Pod after the kubelet has written that its container runs anew.
    async fn written(set: Value, sub_resource: &str) -> Value {
        let service = tower::service_fn(async |_: http::Request<Body>| {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let context = Context::at_epoch(kube::Client::new(service, "default"));
        let set: SetObject = serde_json::from_value(set).unwrap();
        SetObject::store(&context.index.objects).apply(set.key(), set.keep());
        let (old, mut new) = (pod("id-1"), pod("id-2"));
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web-1", "subResource": sub_resource,
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "resource": { "group": "", "version": "v1", "resource": "pods" },
                "userInfo": { "username": "node" }, "oldObject": old, "object": new,
            },
        });
        let request = Request::parse(review.to_string().as_bytes()).unwrap();
        let soon = Instant::now() + std::time::Duration::from_secs(5);
        let verdict = Mutate(Arc::new(context)).review(&request, soon).await;
        assert!(verdict.is_allowed());
        json_patch::patch(&mut new, verdict.patch().map_or(&[], |patch| &patch.0)).unwrap();
        new
    }

    #[tokio::test]
    async fn kubelet_that_has_caught_up_ends_the_update_in_its_own_write() {
        let after = written(set(1, "web-2"), "status").await;
        assert_eq!(after["metadata"]["annotations"], json!({}));
        let labels = &after["metadata"]["labels"];
        assert_eq!(labels[Family::Operating.key("collaset")], Value::Null);
        let conditions = &after["status"]["conditions"];
        assert_eq!(conditions[0]["status"], "False", "the kubelet's own");
        // Until every rule has been seen, none can pass.
        assert!(!labels[Family::PostCheck.key("collaset")].is_null());
    }

    #[tokio::test]
    async fn update_that_another_one_is_to_follow_goes_on() {
        for (set, sub_resource) in [
            (set(2, "web-2"), "status"),
            (set(1, "web-3"), "status"),
            (set(1, "web-2"), ""),
        ] {
            let after = written(set, sub_resource).await;
            let operating = &after["metadata"]["labels"][Family::Operating.key("collaset")];
            assert_eq!(operating, "1");
        }
    }
}
