//! Reads and writes of single Pods, in the slim form and by minimal patches.

use jiff::Timestamp;
use kube::core::Status;
use kube::core::params::{DeleteParams, Patch, PostParams, Preconditions, PropagationPolicy};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::not_found;
use super::request_path::ResourcePath;
use crate::api::keys;
use crate::domain::deletion::{DeletionOptions, Propagation};
use crate::domain::pod::Pod;

fn pods_path(namespace: &str) -> Result<ResourcePath, Error> {
    ResourcePath::from_parts("/api/v1", namespace, "pods")
}

/// Reads a Pod from etcd; `None` when the API server says that there is none of that name. A 404 that does not name the Pod may
/// come from something before the API server and is an error: what looks gone needs no claim.
pub async fn get_pod(client: &Client, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
    request_pod(client, namespace, name).await
}

/// As [`get`], with all that the Pod has.
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

/// Sends a strategic merge patch of a Pod, or of one of its subresources. Preconditions are the caller's, in `metadata`.
pub async fn patch_pod(
    client: &Client,
    (namespace, name): (&str, &str),
    subresource: Option<&str>,
    patch: Value,
) -> Result<Pod, Error> {
    let request = pods_path(namespace)?.patch(name, subresource, &Patch::Strategic(patch))?;
    client.request(request).await
}

/// Whether everything that judges such a patch lets it pass, by a dry run; false where nobody can tell: a webhook knows no dry runs, as
/// one that was registered before Kubernetes 1.22 may not, or this program's own has denied it, which judges a Pod otherwise once
/// that is operated on.
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

/// Whether a denial says nothing of a request that is no dry run, see [`may_patch`].
pub fn is_inconclusive(status: &Status) -> bool {
    is_dry_run_unsupported(status) || is_own_denial(status)
}

/// Whether a webhook of this program has denied a request.
pub fn is_own_denial(status: &Status) -> bool {
    let told = status.message.strip_prefix("admission webhook \"");
    let name = told.and_then(|told| told.split('"').next());
    name.is_some_and(|name| name.ends_with(".apps.kusionstack.io"))
}

/// Whether a dry run was refused for being one (`NewDryRunUnsupportedErr` of kube-apiserver).
fn is_dry_run_unsupported(status: &Status) -> bool {
    status.code == 400 && status.message.ends_with("does not support dry run")
}

/// The metadata that wakes the controller of a Pod at `now`, for [`patch_metadata`].
pub fn wake_annotation(now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "annotations": { (keys::CONTROLLER_WOKEN): now } })
}

/// Merge-patches labels and annotations (`None` removes), if the Pod is still the very version that was looked at.
pub async fn patch_metadata(client: &Client, pod: &Pod, metadata: Value) -> Result<Pod, Error> {
    patch_metadata_at(client, pod, None, metadata).await
}

/// As [`patch_metadata`], through `pods/status`: admission may then change the status in the same write.
pub async fn patch_metadata_by_status(
    client: &Client,
    pod: &Pod,
    metadata: Value,
) -> Result<Pod, Error> {
    patch_metadata_at(client, pod, Some("status"), metadata).await
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
    let request =
        pods_path(&pod.metadata.namespace)?.patch(&pod.metadata.name, Some("status"), &patch)?;
    client.request(request).await
}

/// Deletes a Pod, if it is still the very version that was looked at: whoever stood still for a while must not delete one that serves
/// again. `wishes` are those of whoever asked for it first. Gone already is fine. Returns the resourceVersion that the
/// watch will have shown the effect at; 0 if the answer does not tell.
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

/// Whether everything that judges a deletion by this program lets this one pass, by a dry run.
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

/// As [`may_delete`], for an eviction. A PodDisruptionBudget has no say in it: what it refuses passes.
pub async fn dry_run_evict_pod(client: &Client, pod: &Pod) -> Result<(), Error> {
    match client.request::<Value>(eviction_request(pod)?).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if is_budget_refusal(&status) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Whether an eviction is refused by PodDisruptionBudgets: 429 with a cause of its own by one that is used up, or that the API
/// server has yet to count, 500 by several (`EvictionREST` of kube-apiserver). A webhook that denies with 429 has its name in
/// front, and a server that is overloaded has asked nobody.
fn is_budget_refusal(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|d| &d.causes);
    let by_one = causes.into_iter().any(|c| c.reason == "DisruptionBudget");
    let by_webhook = status.message.starts_with("admission webhook ");
    let by_several = "This pod has more than one PodDisruptionBudget";
    (status.code == 429 && by_one && !by_webhook) || status.message.starts_with(by_several)
}

/// The dry run of an eviction.
fn eviction_request(pod: &Pod) -> Result<http::Request<Vec<u8>>, Error> {
    let meta = &pod.metadata;
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "namespace": meta.namespace, "name": meta.name },
        "deleteOptions": { "preconditions": { "uid": meta.uid }, "dryRun": ["All"] },
    });
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
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

    /// What a read of the Pod `web-1` gives when the API server answers 404 with these details.
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
    fn only_the_refusal_of_a_budget_passes_for_one() {
        let told = |code: u16, message: &str, causes: Value| {
            let status = json!({
                "status": "Failure", "code": code, "message": message, "reason": "TooManyRequests",
                "details": { "causes": causes },
            });
            is_budget_refusal(&serde_json::from_value(status).unwrap())
        };
        let cause = json!([{ "reason": "DisruptionBudget", "message": "The disruption budget web needs 2" }]);
        let full = "Cannot evict pod as it would violate the pod's disruption budget.";
        assert!(told(429, full, cause.clone()));
        let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert!(told(500, several, json!([])));
        let webhook = format!("admission webhook \"a.b\" denied the request: {full}");
        assert!(!told(429, &webhook, cause));
        let webhook = format!("admission webhook \"a.b\" denied the request: {several}");
        assert!(!told(500, &webhook, json!([])));
        assert!(!told(
            429,
            "too many requests, please try again later",
            json!([])
        ));
    }

    #[tokio::test]
    async fn pod_is_gone_only_if_the_answer_names_it() {
        let told = request_test_pod(json!({ "kind": "pods", "name": "web-1" })).await;
        assert_eq!(told.unwrap(), None);
        for details in [json!({}), json!({ "kind": "pods", "name": "web-2" })] {
            assert!(
                request_test_pod(details.clone()).await.is_err(),
                "{details}"
            );
        }
    }
}
