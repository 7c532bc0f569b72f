//! Takes the references to PodDecorations off Pods before the CRDs go. The Kubernetes garbage collector deletes a Pod
//! whose last owner is gone, and after the deletion of its CollaSet a PodDecoration is the last one.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::finalizers::for_each_page;
use crate::api::keys;
use crate::cli::install::request::retry_optional_request;

/// Removes the references from all Pods.
pub async fn release_decorated_pods(client: &Client) -> anyhow::Result<()> {
    let release = async |page: Vec<PartialObjectMeta<DynamicObject>>| {
        for pod in page {
            if !removals(&pod.metadata).is_empty() {
                release_pod(client, &pod.metadata).await?;
            }
        }
        Ok(())
    };
    let pods = ApiResource::erase::<Pod>(&());
    for_each_page(client, &pods, &ListParams::default(), release).await
}

async fn release_pod(client: &Client, pod: &ObjectMeta) -> anyhow::Result<()> {
    let namespace = pod.namespace.as_deref().unwrap_or_default();
    let name = pod.name.as_deref().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let body = json!({ "metadata": { "uid": pod.uid, "ownerReferences": removals(pod) } });
    let patch = Patch::Strategic(&body);
    let params = PatchParams::default();
    let description = format!("take the PodDecorations off the owners of Pod {namespace}/{name}");
    retry_optional_request(&description, || api.patch(name, &params, &patch)).await?;
    Ok(())
}

/// The entries of a strategic merge patch that remove the references.
fn removals(pod: &ObjectMeta) -> Vec<Value> {
    let owners = pod.owner_references.iter().flatten();
    let ours = owners.filter(|owner| is_released(owner));
    ours.map(|owner| json!({ "$patch": "delete", "uid": owner.uid }))
        .collect()
}

/// CollaSets are deleted in a way that leaves their Pods.
fn is_released(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split('/').next();
    group == Some(keys::GROUP) && owner.kind != "CollaSet"
}
