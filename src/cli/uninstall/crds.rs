//! Removes the CRDs and the objects of their kinds.

use anyhow::bail;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use super::delete_object;
use super::finalizers::{self, crd_resource};
use crate::api::{crd, keys};
use crate::cli::install::WAIT_TIMEOUT;
use crate::cli::install::request::retry_optional_request;

/// The kind that owns Pods.
const COLLASET_KIND: &str = "CollaSet";
/// Largest number of objects in which the search for a finalizer looks.
const FINALIZER_SAMPLE: u32 = 500;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of writes to a CRD that is being deleted.
const TOUCH_INTERVAL: Duration = Duration::from_secs(5);

/// Deletes the CRDs, and with them the objects of their kinds. CollaSets are deleted first and leave their Pods behind,
/// because an uninstallation must not stop running Pods.
pub async fn remove_crds(client: &Client) -> anyhow::Result<()> {
    let crds = crd::all_crds();
    for crd in crds.iter().filter(|c| c.spec.names.kind == COLLASET_KIND) {
        delete_with_orphans(client, crd).await?;
    }
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in &crds {
        delete_object(&api, &crd.name_any()).await?;
    }
    let until = Instant::now() + WAIT_TIMEOUT;
    for crd in &crds {
        let name = crd.name_any();
        let mut next_touch = Instant::now() + TOUCH_INTERVAL;
        let mut reported_holder = None;
        while retry_optional_request(&format!("get CRD {name}"), || api.get_metadata(&name))
            .await?
            .is_some()
        {
            if Instant::now() > until {
                let holder = finalizer_holder(client, crd).await?.unwrap_or_default();
                bail!(
                    "CRD {name} is not gone after {} s{holder}. Remove finalizers of others (kubectl get {name} -A -o \
                     custom-columns=NS:.metadata.namespace,NAME:.metadata.name,FINALIZERS:.metadata.finalizers) and run this again",
                    WAIT_TIMEOUT.as_secs()
                );
            }
            if Instant::now() > next_touch {
                next_touch = Instant::now() + TOUCH_INTERVAL;
                self::touch_crd(&api, &name).await?;
                let holder = finalizer_holder(client, crd).await?;
                if holder.is_some() && holder != reported_holder {
                    eprintln!(
                        "waiting for CRD {name} to be deleted{}",
                        holder.as_deref().unwrap_or_default()
                    );
                    reported_holder = holder;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// A clause about a finalizer that holds an object of a CRD, or the CRD itself. `None` if there is none.
async fn finalizer_holder(
    client: &Client,
    crd: &CustomResourceDefinition,
) -> anyhow::Result<Option<String>> {
    let resource = crd_resource(crd)?;
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let first = ListParams::default().limit(FINALIZER_SAMPLE);
    let description = format!("list {}", resource.plural);
    let listed = retry_optional_request(&description, || objects.list_metadata(&first)).await?;
    let listed = listed.map(|listed| listed.items).unwrap_or_default();
    if let Some(object) = listed.into_iter().find(|o| !o.finalizers().is_empty()) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let (kind, by) = (&crd.spec.names.kind, object.finalizers());
        return Ok(Some(format!(
            ": {kind} {namespace}/{name} has the finalizers {by:?}"
        )));
    }
    let (crds, name) = (
        Api::<CustomResourceDefinition>::all(client.clone()),
        crd.name_any(),
    );
    let now =
        retry_optional_request(&format!("get CRD {name}"), || crds.get_metadata(&name)).await?;
    // The API server removes its own finalizer when the objects are gone.
    let others = now.map(|crd| crd.finalizers().to_vec()).unwrap_or_default();
    let others: Vec<_> = others
        .into_iter()
        .filter(|f| !f.starts_with("customresourcecleanup."))
        .collect();
    Ok((!others.is_empty()).then(|| format!(": it has the finalizers {others:?}")))
}

/// Writes to a CRD that is being deleted, so that the API server tries the deletion again.
///
/// The API server first lists the objects of the CRD. For a kind without any earlier request, the storage is not set up
/// yet, and the list fails: condition `Terminating`, `InstanceDeletionFailed`, "storage is (re)initializing". The next
/// attempt may conflict with the write of this condition. Then the API server waits for the resync after five minutes
/// (`CRDFinalizer` of apiextensions-apiserver), unless the CRD changes in another way.
async fn touch_crd(api: &Api<CustomResourceDefinition>, name: &str) -> anyhow::Result<()> {
    let at = Timestamp::now().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {keys::DELETION_NUDGED: at}}}));
    let write = || async {
        api.patch_metadata(name, &PatchParams::default(), &patch)
            .await
    };
    retry_optional_request(&format!("annotate CRD {name}"), write).await?;
    Ok(())
}

/// Deletes all objects of a kind without the objects that they own, and returns when they are gone. If the CRD were
/// deleted before, the Kubernetes garbage collector would delete the Pods.
async fn delete_with_orphans(
    client: &Client,
    crd: &CustomResourceDefinition,
) -> anyhow::Result<()> {
    let resource = crd_resource(crd)?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let description = format!("list {}", resource.plural);
    let (everything, leaving) = (ListParams::default(), DeleteParams::orphan());
    let until = Instant::now() + WAIT_TIMEOUT;
    let (mut next_report, mut reported_count) = (Instant::now() + TOUCH_INTERVAL, None);
    loop {
        let Some(listed) =
            retry_optional_request(&description, || api.list_metadata(&everything)).await?
        else {
            return Ok(());
        };
        let Some(first) = listed.items.first() else {
            return Ok(());
        };
        finalizers::strip_listed(client, &resource, &listed.items).await?; // an ending server may add them again
        if Instant::now() > until {
            let (namespace, name) = (first.namespace().unwrap_or_default(), first.name_any());
            bail!(
                "{} {namespace}/{name} is not gone after {} s: it has the finalizers {:?}. The finalizer orphan is served \
                 by the kube-controller-manager: check that it runs, remove finalizers of others, and run this again",
                crd.spec.names.kind,
                WAIT_TIMEOUT.as_secs(),
                first.finalizers()
            );
        }
        if Instant::now() > next_report && reported_count != Some(listed.items.len()) {
            next_report = Instant::now() + TOUCH_INTERVAL;
            reported_count = Some(listed.items.len());
            eprintln!(
                "waiting for {} {} to be deleted, {}/{} with the finalizers {:?}",
                listed.items.len(),
                resource.plural,
                first.namespace().unwrap_or_default(),
                first.name_any(),
                first.finalizers()
            );
        }
        for object in listed
            .items
            .iter()
            .filter(|o| o.metadata.deletion_timestamp.is_none())
        {
            let name = object.name_any();
            let namespace = object.namespace().unwrap_or_default();
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &namespace, &resource);
            let delete = || api.delete(&name, &leaving);
            retry_optional_request(
                &format!("delete {} {namespace}/{name}", resource.plural),
                delete,
            )
            .await?;
        }
        sleep(POLL_INTERVAL).await;
    }
}
