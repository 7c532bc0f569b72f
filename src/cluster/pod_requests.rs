//! Reads and writes single Pods, as slim Pods and by minimal patches.

use jiff::Timestamp;
use kube::core::Status;
use kube::core::params::{DeleteParams, Patch, PostParams, Preconditions, PropagationPolicy};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::not_found;
use super::request_path::{FIELD_MANAGER, ResourcePath};
use crate::api::keys;
use crate::domain::deletion::{DeletionOptions, Propagation};
use crate::domain::pod::Pod;

fn pods_path(namespace: &str) -> Result<ResourcePath, Error> {
    ResourcePath::from_parts("/api/v1", namespace, "pods")
}

/// Reads a Pod from etcd. `None` if the API server says that no Pod has this name. A 404 that does not name the Pod is
/// an error, because it may come from a proxy, and a disruption of a Pod that is gone needs no claim.
pub async fn get_pod(client: &Client, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
    request_pod(client, namespace, name).await
}

/// As [`get_pod`], with all fields of the Pod.
pub async fn get_raw_pod(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, Error> {
    request_pod(client, namespace, name).await
}

async fn request_pod<T: DeserializeOwned>(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<T>, Error> {
    let request = pods_path(namespace)?.get(name)?;
    match client.request(request).await {
        Ok(pod) => Ok(Some(pod)),
        Err(Error::Api(status)) if not_found::proves_not_found(&status, "", "pods", name) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Creates a Pod from its JSON.
pub async fn create_pod(client: &Client, namespace: &str, body: &Value) -> Result<Pod, Error> {
    let body = serde_json::to_vec(body).map_err(Error::SerdeError)?;
    let request = pods_path(namespace)?.create(&PostParams::default(), body)?;
    client.request(request).await
}

/// Sends a strategic merge patch of a Pod, or of one of its subresources. The caller puts preconditions into `metadata`
/// of the patch.
pub async fn patch_pod(
    client: &Client,
    (namespace, name): (&str, &str),
    subresource: Option<&str>,
    patch: Value,
) -> Result<Pod, Error> {
    let request = pods_path(namespace)?.patch(name, subresource, &Patch::Strategic(patch))?;
    client.request(request).await
}

/// Whether a dry run of this patch passes all admission. False if the dry run is inconclusive: a webhook does not
/// support dry runs, as some that were registered before Kubernetes 1.22, or a webhook of this program denied it. This
/// program may decide differently about the Pod once the operation has begun.
pub async fn dry_run_patch_pod(
    client: &Client,
    (namespace, name): (&str, &str),
    subresource: Option<&str>,
    patch: Value,
) -> Result<bool, Error> {
    let request =
        pods_path(namespace)?.dry_run_patch(name, subresource, &Patch::Strategic(patch))?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if is_inconclusive(&status) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether a denial of a dry run says nothing about the real request, see [`dry_run_patch_pod`].
pub fn is_inconclusive(status: &Status) -> bool {
    is_dry_run_unsupported(status) || is_own_denial(status)
}

/// Whether a webhook of this program denied the request.
pub fn is_own_denial(status: &Status) -> bool {
    let after_prefix = status.message.strip_prefix("admission webhook \"");
    let name = after_prefix.and_then(|after_prefix| after_prefix.split('"').next());
    name.is_some_and(|name| name.ends_with(".apps.kusionstack.io"))
}

/// Whether the API server refused a dry run because a webhook does not support it (`NewDryRunUnsupportedErr` of
/// kube-apiserver).
fn is_dry_run_unsupported(status: &Status) -> bool {
    status.code == 400 && status.message.ends_with("does not support dry run")
}

/// The metadata that wakes the controller of a Pod at `now`, for [`patch_metadata`].
pub fn wake_annotation(now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "annotations": { (keys::CONTROLLER_WOKEN): now } })
}

/// Merge-patches labels and annotations (`null` removes one), if the Pod still has the resourceVersion of `pod`.
pub async fn patch_metadata(client: &Client, pod: &Pod, metadata: Value) -> Result<Pod, Error> {
    patch_metadata_at(client, pod, None, metadata).await
}

/// As [`patch_metadata`], through `pods/status`, so that admission can change the status in the same write.
pub async fn patch_metadata_by_status(
    client: &Client,
    pod: &Pod,
    metadata: Value,
) -> Result<Pod, Error> {
    patch_metadata_at(client, pod, Some("status"), metadata).await
}

/// Adds and removes owner references, if the Pod still has the resourceVersion of `pod`. `entries` are those of a
/// strategic merge patch.
pub async fn patch_owner_references(
    client: &Client,
    pod: &Pod,
    entries: &[Value],
) -> Result<Pod, Error> {
    let patch = Patch::Strategic(json!({ "metadata": {
        "uid": pod.metadata.uid,
        "resourceVersion": pod.metadata.resource_version.to_string(),
        "ownerReferences": entries,
    } }));
    let request = pods_path(&pod.metadata.namespace)?.patch(&pod.metadata.name, None, &patch)?;
    client.request(request).await
}

async fn patch_metadata_at(
    client: &Client,
    pod: &Pod,
    subresource: Option<&str>,
    metadata: Value,
) -> Result<Pod, Error> {
    let mut metadata = metadata;
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert("uid".into(), json!(pod.metadata.uid));
        fields.insert(
            "resourceVersion".into(),
            json!(pod.metadata.resource_version.to_string()),
        );
    }
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let request =
        pods_path(&pod.metadata.namespace)?.patch(&pod.metadata.name, subresource, &patch)?;
    client.request(request).await
}

/// Writes the condition `pod.kusionstack.io/service-ready` through `pods/status` (contract 2.4), if the Pod still has
/// the resourceVersion of `pod`. Without this precondition, a late `True` could put a Pod back on traffic during an
/// operation.
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
    let request =
        pods_path(&pod.metadata.namespace)?.patch(&pod.metadata.name, Some("status"), &patch)?;
    client.request(request).await
}

/// Deletes a Pod, if it still has the resourceVersion of `pod`. Without this precondition, a process that was paused
/// could delete a Pod that serves again. `wishes` are the options of the original deletion request. A Pod that is
/// already gone is no error. Returns the resourceVersion at which the watch shows the deletion; 0 if the response does
/// not have it.
pub async fn delete_pod(
    client: &Client,
    pod: &Pod,
    wishes: &DeletionOptions,
) -> Result<u64, Error> {
    match client
        .request::<Value>(deletion_request(pod, wishes, false)?)
        .await
    {
        Ok(answer) => {
            let version = answer["metadata"]["resourceVersion"].as_str();
            Ok(version.and_then(|v| v.parse().ok()).unwrap_or(0))
        }
        Err(Error::Api(status)) if status.code == 404 => Ok(0),
        Err(e) => Err(e),
    }
}

/// Checks by a dry run whether all admission lets this program delete the Pod.
pub async fn dry_run_delete_pod(
    client: &Client,
    pod: &Pod,
    wishes: &DeletionOptions,
) -> Result<(), Error> {
    client
        .request::<Value>(deletion_request(pod, wishes, true)?)
        .await?;
    Ok(())
}

/// As [`dry_run_delete_pod`], for an eviction. A refusal by a PodDisruptionBudget counts as success.
pub async fn dry_run_evict_pod(client: &Client, pod: &Pod) -> Result<(), Error> {
    match client.request::<Value>(eviction_request(pod)?).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if is_budget_refusal(&status) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Whether PodDisruptionBudgets refuse an eviction (`EvictionREST` of kube-apiserver). The code is 429 with a cause of
/// its own if one PodDisruptionBudget is used up or not counted yet, and 500 if there are several. A denial with 429 by
/// a webhook begins with the name of the webhook. An overloaded API server also answers with 429, but without this
/// cause.
fn is_budget_refusal(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|d| &d.causes);
    let by_one = causes.into_iter().any(|c| c.reason == "DisruptionBudget");
    let by_webhook = status.message.starts_with("admission webhook ");
    let by_several = "This pod has more than one PodDisruptionBudget";
    (status.code == 429 && by_one && !by_webhook) || status.message.starts_with(by_several)
}

/// The request for the dry run of an eviction.
fn eviction_request(pod: &Pod) -> Result<http::Request<Vec<u8>>, Error> {
    let meta = &pod.metadata;
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "namespace": meta.namespace, "name": meta.name },
        "deleteOptions": { "preconditions": { "uid": meta.uid }, "dryRun": ["All"] },
    });
    let params = PostParams {
        dry_run: true,
        field_manager: Some(FIELD_MANAGER.to_owned()),
    };
    let body = body.to_string().into_bytes();
    pods_path(&meta.namespace)?.create_subresource(&meta.name, "eviction", &params, body)
}

fn deletion_request(
    pod: &Pod,
    wishes: &DeletionOptions,
    dry_run: bool,
) -> Result<http::Request<Vec<u8>>, Error> {
    let version = pod.metadata.resource_version.to_string();
    let preconditions = Preconditions {
        uid: Some(pod.metadata.uid.clone()),
        resource_version: (!dry_run).then_some(version),
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        dry_run,
        grace_period_seconds: wishes.grace_period_seconds,
        propagation_policy: wishes.propagation_policy.map(|policy| match policy {
            Propagation::Foreground => PropagationPolicy::Foreground,
            Propagation::Orphan => PropagationPolicy::Orphan,
        }),
    };
    pods_path(&pod.metadata.namespace)?.delete(&pod.metadata.name, &params)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kube::client::Body;

    use super::*;

    /// The result of reading the Pod `web-1` if the API server answers 404 with these details.
    async fn request_test_pod(details: Value) -> Result<Option<Pod>, Error> {
        let answer = json!({
            "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "details": details,
        });
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let body = Body::from(answer.to_string().into_bytes());
            let answer = http::Response::builder().status(404).body(body);
            async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
        });
        get_pod(&Client::new(service, "default"), "n", "web-1").await
    }

    #[test]
    fn only_refusal_by_disruption_budget_counts_as_budget_refusal() {
        let after_prefix = |code: u16, message: &str, causes: Value| {
            let status = json!({
                "status": "Failure", "code": code, "message": message, "reason": "TooManyRequests",
                "details": { "causes": causes },
            });
            is_budget_refusal(&serde_json::from_value(status).unwrap())
        };
        let cause = json!([{ "reason": "DisruptionBudget", "message": "The disruption budget web needs 2" }]);
        let full = "Cannot evict pod as it would violate the pod's disruption budget.";
        assert!(after_prefix(429, full, cause.clone()));
        let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert!(after_prefix(500, several, json!([])));
        let webhook = format!("admission webhook \"a.b\" denied the request: {full}");
        assert!(!after_prefix(429, &webhook, cause));
        let webhook = format!("admission webhook \"a.b\" denied the request: {several}");
        assert!(!after_prefix(500, &webhook, json!([])));
        assert!(!after_prefix(
            429,
            "too many requests, please try again later",
            json!([])
        ));
    }

    #[tokio::test]
    async fn pod_is_gone_only_if_the_answer_names_it() {
        let after_prefix = request_test_pod(json!({ "kind": "pods", "name": "web-1" })).await;
        assert_eq!(after_prefix.unwrap(), None);
        for details in [json!({}), json!({ "kind": "pods", "name": "web-2" })] {
            assert!(
                request_test_pod(details.clone()).await.is_err(),
                "{details}"
            );
        }
    }
}
