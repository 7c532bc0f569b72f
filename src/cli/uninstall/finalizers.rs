//! Removes finalizers that no program would remove any more.

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::api::{crd, keys};
use crate::cli::install::request::retry_optional_request;

/// All finalizers that Operating or Kuperator removes (contract 2.3). Cooperators remove their own finalizers, which
/// begin with [`keys::PROTECTION_FINALIZER_PREFIX`]. `traffic_marks` removes those of ResourceConsist.
const OWN_FINALIZERS: [&str; 3] = [
    keys::PROTECTED_FINALIZER,
    keys::PRE_RECLAIM_FINALIZER,
    keys::REPLACE_PROTECTED_FINALIZER,
];

const PAGE_LIMIT: u32 = 500;

/// Removes these finalizers from every object of the API group and from managed Pods.
pub async fn strip_all_finalizers(client: &Client) -> anyhow::Result<()> {
    for crd in crd::all_crds() {
        strip_kind(client, &crd_resource(&crd)?, &ListParams::default()).await?;
    }
    let managed = ListParams::default().labels(keys::CONTROL_SELECTOR);
    strip_kind(client, &ApiResource::erase::<Pod>(&()), &managed).await
}

/// The kind that a CRD defines, in its first version.
pub fn crd_resource(crd: &CustomResourceDefinition) -> anyhow::Result<ApiResource> {
    let version = crd
        .spec
        .versions
        .first()
        .context("a CRD without versions")?;
    let gvk = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
    Ok(ApiResource::from_gvk_with_plural(
        &gvk,
        &crd.spec.names.plural,
    ))
}

async fn strip_kind(
    client: &Client,
    resource: &ApiResource,
    params: &ListParams,
) -> anyhow::Result<()> {
    let strip = async |page: Vec<PartialObjectMeta<DynamicObject>>| {
        strip_listed(client, resource, &page).await
    };
    for_each_page(client, resource, params, strip).await
}

/// Reads the metadata of all objects of a kind, page by page. If the kind is not served, there are none.
pub async fn for_each_page(
    client: &Client,
    resource: &ApiResource,
    params: &ListParams,
    mut visit: impl AsyncFnMut(Vec<PartialObjectMeta<DynamicObject>>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let mut page = params.clone().limit(PAGE_LIMIT);
    loop {
        let description = format!("list {}", resource.plural);
        let Some(listed) =
            retry_optional_request(&description, || api.list_metadata(&page)).await?
        else {
            return Ok(());
        };
        visit(listed.items).await?;
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Removes these finalizers from the given objects.
pub async fn strip_listed(
    client: &Client,
    resource: &ApiResource,
    objects: &[PartialObjectMeta<DynamicObject>],
) -> anyhow::Result<()> {
    for object in objects {
        if foreign_finalizers(object.meta()).is_some() {
            strip_object(client, resource, object.meta()).await?;
        }
    }
    Ok(())
}

async fn strip_object(
    client: &Client,
    resource: &ApiResource,
    object: &ObjectMeta,
) -> anyhow::Result<()> {
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let name = object.name.as_deref().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    // Each attempt reads the object again, because the list may be older, and after a conflict the object has changed.
    let step = || async {
        let now = api.get_metadata(name).await?;
        let Some(remaining) = foreign_finalizers(now.meta()) else {
            return Ok(());
        };
        let patch = json!({"metadata": {"resourceVersion": now.resource_version(), "finalizers": remaining}});
        api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(drop)
    };
    retry_optional_request(
        &format!("take finalizers off {} {namespace}/{name}", resource.plural),
        step,
    )
    .await?;
    Ok(())
}

/// The finalizers without those of Operating and Kuperator. `None` if the object has none of these.
fn foreign_finalizers(object: &ObjectMeta) -> Option<Vec<&String>> {
    let all = object.finalizers.as_deref().unwrap_or_default();
    let remaining: Vec<_> = all
        .iter()
        .filter(|f| !OWN_FINALIZERS.contains(&f.as_str()))
        .collect();
    (remaining.len() < all.len()).then_some(remaining)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn finalizers_of_others_stay() {
        let with = |finalizers: &[&str]| ObjectMeta {
            finalizers: Some(finalizers.iter().map(|f| (*f).to_owned()).collect()),
            ..ObjectMeta::default()
        };
        assert_eq!(foreign_finalizers(&ObjectMeta::default()), None);
        assert_eq!(
            foreign_finalizers(&with(&["prot.podopslifecycle.kusionstack.io/x"])),
            None
        );
        assert_eq!(foreign_finalizers(&with(&OWN_FINALIZERS)), Some(vec![]));
        assert_eq!(
            foreign_finalizers(&with(&[OWN_FINALIZERS[0], "example.com/theirs"])),
            Some(vec![&"example.com/theirs".to_owned()])
        );
    }
}
