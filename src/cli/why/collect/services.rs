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
        unmanaged_pods: 0,
        notes: Vec::new(),
    };
    let mut notes = ReadNotes::default();
    match list_pods(client, namespace, keys::CONTROL_SELECTOR).await {
        Ok(pods) => observed.pods = Some(pods),
        Err(e) => notes.add("which Pods the Service selects and has marked", &e),
    }
    if observed.pods.is_some() && !observed.selects_any() {
        observed.unmanaged_pods = count_selected(client, &observed.service, &mut notes).await;
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

/// How many Pods a Service selects, managed or not.
async fn count_selected(client: &Client, service: &Service, notes: &mut ReadNotes) -> usize {
    let selector = traffic::selector(service).into_iter();
    let labels: Vec<_> = selector.map(|(k, v)| format!("{k}={v}")).collect();
    if labels.is_empty() {
        return 0;
    }
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    match list_pods(client, namespace, &labels.join(",")).await {
        Ok(pods) => pods.len(),
        Err(e) => {
            notes.add("whether the Service selects Pods that are not managed", &e);
            0
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
