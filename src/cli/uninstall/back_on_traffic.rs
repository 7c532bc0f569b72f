//! Puts Pods back on traffic that the readiness gate of Operating keeps off, because nobody else writes the condition
//! when the server is gone.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as CorePod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::leftovers::{for_each_listed, is_off_traffic};
use crate::cli::install::request::retry_optional_request;
use crate::cluster::pod_requests;
use crate::domain::pod::Pod;

/// Sets the condition of all Pods that are off traffic to True, also of those that have lost the control label. Warns of
/// Pods whose status can't be written. Returns the number of the others.
pub async fn put_back(client: &Client) -> anyhow::Result<usize> {
    let mut found = Vec::new();
    for_each_listed::<CorePod>(client, "pods", ListParams::default(), |pod| {
        if is_off_traffic(pod) {
            found.push((pod.namespace().unwrap_or_default(), pod.name_any()));
        }
    })
    .await?;
    let mut errors = Vec::new();
    for (namespace, name) in &found {
        let api: Api<CorePod> = Api::namespaced(client.clone(), namespace);
        // Each attempt reads the Pod again, because after a conflict the Pod has changed.
        let step = || async {
            let now = api.get(name).await?;
            if !is_off_traffic(&now) {
                return Ok(());
            }
            let pod = serde_json::to_value(&now).and_then(serde_json::from_value::<Pod>);
            let pod = pod.map_err(kube::Error::SerdeError)?;
            pod_requests::patch_service_ready(client, &pod, true, Timestamp::now())
                .await
                .map(drop)
        };
        let description = format!("put Pod {namespace}/{name} back on traffic");
        // One Pod must not keep all others off traffic.
        if let Err(error) = retry_optional_request(&description, step).await {
            errors.push(format!("{error:#}"));
        }
    }
    for error in &errors {
        eprintln!(
            "warning: {error}; it stays off traffic until its condition is written or it is deleted"
        );
    }
    Ok(found.len() - errors.len())
}
