//! Reads Services.

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, Error};

use crate::api::keys;
use crate::cli::why::api_reads::{self, ReadNotes};
use crate::cluster::request_path::{self, ResourcePath};
use crate::domain::diagnosis::traffic::{
    self, AwaitedEmployer, ObservedService, awaited_employers,
};
use crate::domain::pod::Pod;
use crate::domain::traffic::names::SERVICE;

/// Most employers of which a diagnosis tells.
const MAX_EMPLOYERS: usize = 5;

/// The employers whose finalizers the Pod waits for. Only Services are read.
pub async fn observe_awaited(
    client: &Client,
    pod: &Pod,
    notes: &mut ReadNotes,
) -> Vec<AwaitedEmployer> {
    let namespace = pod.metadata.namespace.as_str();
    let mut employers = Vec::new();
    for name in awaited_employers(pod).into_iter().take(MAX_EMPLOYERS) {
        let read = match name.kind.as_str() {
            SERVICE => read_service(client, namespace, &name.name).await,
            _ => Ok(None),
        };
        match read {
            Ok(service) => employers.push(AwaitedEmployer { name, service }),
            Err(e) => {
                let unknown = format!("what Service {} says about the Pod", name.name);
                notes.add(&unknown, &e);
            }
        }
    }
    employers
}

/// A Service and its Pods. `None` if there is no such Service.
///
/// # Errors
/// If the Service can't be read. If its Pods can't be read, there is a note.
pub async fn observe_service(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<ObservedService>> {
    let Some(service) = read_service(client, namespace, name).await? else {
        return Ok(None);
    };
    let mut observed = ObservedService {
        service,
        pods: None,
        unmanaged_pods: Vec::new(),
        notes: Vec::new(),
    };
    let mut notes = ReadNotes::default();
    match list_pods(client, namespace, keys::CONTROL_SELECTOR).await {
        Ok(pods) => observed.pods = Some(pods),
        Err(e) => notes.add("which Pods the Service selects and has marked", &e),
    }
    if observed.pods.is_some() && traffic::is_managed(&observed.service) {
        observed.unmanaged_pods = unmanaged_pods(client, &observed.service, &mut notes).await;
    }
    observed.notes = notes.into_lines();
    Ok(Some(observed))
}

async fn read_service(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<Service>> {
    request_path::checked_name(name)?;
    let services: Api<Service> = request_path::namespaced_api(client, namespace)?;
    let read = services.get_opt(name);
    api_reads::call_with_timeout("get", "services", Some(namespace), read).await
}

/// The names of the Pods that a Service selects and that are not managed. Pods that end are left out: the first rollout
/// with the label replaces Pods without it.
async fn unmanaged_pods(client: &Client, service: &Service, notes: &mut ReadNotes) -> Vec<String> {
    let selector = traffic::selector(service).into_iter();
    let mut labels: Vec<_> = selector.map(|(k, v)| format!("{k}={v}")).collect();
    if labels.is_empty() {
        return Vec::new();
    }
    labels.push(format!("{}!={}", keys::CONTROL, keys::CONTROL_VALUE));
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    match list_pods(client, namespace, &labels.join(",")).await {
        Ok(pods) => {
            let pods = pods.into_iter();
            let running = pods.filter(|pod| !pod.is_terminating() && !pod.is_finished());
            running.map(|pod| pod.metadata.name).collect()
        }
        Err(e) => {
            notes.add("whether the Service selects Pods that are not managed", &e);
            Vec::new()
        }
    }
}

async fn list_pods(client: &Client, namespace: &str, labels: &str) -> anyhow::Result<Vec<Pod>> {
    let read = async {
        let path = ResourcePath::from_parts("/api/v1", namespace, "pods")?;
        let pods = api_reads::list_all_pages(client, path.path(), Some(labels)).await?;
        Ok::<_, Error>(pods)
    };
    api_reads::call_with_timeout("list", "pods", Some(namespace), read).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// What is observed of Service `web` if the API server lists `unmanaged` besides a managed Pod.
    async fn observed(unmanaged: Value) -> ObservedService {
        let service = tower::service_fn(move |request: Request<Body>| {
            let pod = |labels: Value| json!({ "metadata": { "namespace": "shop", "name": "managed", "labels": labels } });
            let managed = json!([pod(json!({ "app": "web", (keys::CONTROL): "true" }))]);
            let (path, query) = (request.uri().path(), request.uri().query());
            let query = query.unwrap_or_default();
            let answer = match path {
                "/api/v1/namespaces/shop/services/web" => json!({
                    "metadata": { "namespace": "shop", "name": "web", "labels": { (keys::CONTROL): "true" } },
                    "spec": { "selector": { "app": "web" } },
                }),
                // `app=web,kusionstack.io/control!=true`
                _ if query.contains("%21%3Dtrue") => json!({ "metadata": {}, "items": unmanaged }),
                _ => json!({ "metadata": {}, "items": managed }),
            };
            let answer = Body::from(answer.to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(Response::new(answer)))
        });
        let client = Client::new(service, "shop");
        let observed = observe_service(&client, "shop", "web").await;
        observed.unwrap().unwrap()
    }

    #[tokio::test]
    async fn unmanaged_pods_are_named_beside_managed_ones() {
        let ends = "2026-01-01T00:00:00Z";
        let observed = observed(json!([
            { "metadata": { "namespace": "shop", "name": "plain" } },
            { "metadata": { "namespace": "shop", "name": "ends", "deletionTimestamp": ends } },
            { "metadata": { "namespace": "shop", "name": "finished" }, "status": { "phase": "Succeeded" } },
        ]))
        .await;
        assert_eq!(observed.pods.unwrap().len(), 1);
        assert_eq!(observed.unmanaged_pods, ["plain"]);
        assert!(observed.notes.is_empty(), "{:?}", observed.notes);
    }
}
