//! Reads and writes of single Pods, in the slim form and by minimal patches.

use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, Patch, PatchParams, Preconditions};
use kube::{Client, Error};
use serde_json::{Value, json};

use crate::api::keys;
use crate::domain::pod::Pod;

fn path(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

/// Reads a Pod from etcd; `None` when there is none of that name.
pub async fn get(client: &Client, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
    let request = path(namespace)
        .get(name, &GetParams::default())
        .map_err(Error::BuildRequest)?;
    match client.request(request).await {
        Ok(pod) => Ok(Some(pod)),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(e) => Err(e),
    }
}

/// Merge-patches labels and annotations (`None` removes), if the Pod is still the very version that was looked at.
pub async fn patch_metadata(client: &Client, pod: &Pod, metadata: Value) -> Result<Pod, Error> {
    let mut metadata = metadata;
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert("uid".into(), json!(pod.metadata.uid));
        fields.insert(
            "resourceVersion".into(),
            json!(pod.metadata.resource_version.to_string()),
        );
    }
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let request = path(&pod.metadata.namespace)
        .patch(&pod.metadata.name, &PatchParams::default(), &patch)
        .map_err(Error::BuildRequest)?;
    client.request(request).await
}

/// Writes the condition `pod.kusionstack.io/service-ready` through `pods/status` (contract 2.4), if the Pod is still the
/// very version that was looked at: a late True must not put a Pod back on traffic that is being operated on.
pub async fn patch_service_ready(
    client: &Client,
    pod: &Pod,
    ready: bool,
    now: jiff::Timestamp,
) -> Result<Pod, Error> {
    let patch = Patch::Strategic(json!({
        "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version.to_string() },
        "status": { "conditions": [{
            "type": keys::SERVICE_READY,
            "status": if ready { "True" } else { "False" },
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "message": "updated by PodOpsLifecycle",
        }] },
    }));
    let request = path(&pod.metadata.namespace)
        .patch_subresource(
            "status",
            &pod.metadata.name,
            &PatchParams::default(),
            &patch,
        )
        .map_err(Error::BuildRequest)?;
    client.request(request).await
}

/// Deletes a Pod, if it is still the one that was looked at. Gone already is fine.
pub async fn delete(client: &Client, pod: &Pod) -> Result<(), Error> {
    let preconditions = Preconditions {
        uid: Some(pod.metadata.uid.clone()),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    let request = path(&pod.metadata.namespace)
        .delete(&pod.metadata.name, &params)
        .map_err(Error::BuildRequest)?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        Err(e) => Err(e),
    }
}
