//! The controllers of the matrix's own kinds, which the matrix simulates.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::observer::{Pod, resource};

use super::cell::Cell;
use super::owners::{GROUP, NAME, Owner};

/// Interval of rounds; a refused deletion is repeated in the next round.
const PERIOD: Duration = Duration::from_millis(400);

/// Simulates the controller of the cell's owner until the future is dropped; ends at once for built-in kinds.
pub async fn run(cell: &Cell<'_>) {
    loop {
        // A refused or conflicting request is repeated in the next round, as controllers do.
        let _ = match cell.owner {
            Owner::Scaled | Owner::Plain => pods(cell).await,
            Owner::Rollout => replica_sets(cell).await,
            _ => return,
        };
        tokio::time::sleep(PERIOD).await;
    }
}

/// Maintains the desired number of Pods of the current template.
async fn pods(cell: &Cell<'_>) -> Result<()> {
    let object = cell.owners()?.get(NAME).await?;
    let desired = match cell.owner {
        Owner::Plain => count(&object.data["spec"]["size"]),
        _ => replicas(&object),
    };
    let template = &object.data["spec"]["template"];
    let image = &template["spec"]["containers"][0]["image"];
    let pods = cell.pods().list(&ListParams::default()).await?.items;
    let mut live: Vec<&DynamicObject> = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .collect();
    for _ in live.len()..desired {
        let mut pod = template.clone();
        pod["metadata"]["generateName"] = json!(format!("{NAME}-"));
        pod["metadata"]["ownerReferences"] = json!([reference(&object, cell.owner)?]);
        let pod = serde_json::from_value(pod)?;
        cell.pods().create(&PostParams::default(), &pod).await?;
    }
    // Unavailable Pods are deleted first.
    live.sort_by_key(|pod| Pod::read(pod).serves());
    let old = |pod: &&&DynamicObject| &pod.data["spec"]["containers"][0]["image"] != image;
    let surplus = live.len().saturating_sub(desired);
    let outdated: Vec<_> = live.iter().filter(old).collect();
    let surplus_pods = match surplus {
        0 => outdated.into_iter().collect(),
        _ => live.iter().take(surplus).collect::<Vec<_>>(),
    };
    for pod in surplus_pods {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let _ = cell.pods().delete(&pod.name_any(), &params).await;
    }
    Ok(())
}

/// Moves replicas from the old ReplicaSets to that of the current template, with a surge and an
/// unavailability of 25%.
async fn replica_sets(cell: &Cell<'_>) -> Result<()> {
    let object = cell.owners()?.get(NAME).await?;
    let desired = replicas(&object);
    let template = &object.data["spec"]["template"];
    let image = template["spec"]["containers"][0]["image"].as_str();
    let hash = image.context("an image")?.replace(':', "-");
    let kind = resource("apps", "v1", "ReplicaSet");
    let sets: Api<DynamicObject> =
        Api::namespaced_with(cell.client.clone(), &cell.namespace, &kind);
    let all = sets.list(&ListParams::default()).await?.items;
    let name = format!("{NAME}-{hash}");
    let (new, old): (Vec<_>, Vec<_>) = all.iter().partition(|set| set.name_any() == name);
    let Some(new) = new.first() else {
        let first = if old.is_empty() { desired } else { 0 };
        let labels = json!({"app": NAME, "hash": hash});
        let mut template = template.clone();
        template["metadata"]["labels"]["hash"] = json!(hash);
        let set = serde_json::from_value(json!({
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name, "labels": labels,
                "ownerReferences": [reference(&object, cell.owner)?],
            },
            "spec": {"replicas": first, "selector": {"matchLabels": labels}, "template": template},
        }))?;
        sets.create(&PostParams::default(), &set).await?;
        return Ok(());
    };
    let quarter = desired.div_ceil(4);
    let available = |set: &DynamicObject| count(&set.data["status"]["availableReplicas"]);
    let old_total: usize = old.iter().map(|set| replicas(set)).sum();
    let grown = desired.min((desired + quarter).saturating_sub(old_total));
    if grown > replicas(new) || desired < replicas(new) {
        scale(&sets, new, grown.min(desired)).await?;
    }
    let mut to_keep = (desired.saturating_sub(quarter)).saturating_sub(available(new));
    for set in old {
        let target = to_keep.min(replicas(set));
        if target < replicas(set) {
            scale(&sets, set, target).await?;
        }
        to_keep -= target;
    }
    Ok(())
}

async fn scale(sets: &Api<DynamicObject>, set: &DynamicObject, replicas: usize) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    sets.patch(&set.name_any(), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

fn replicas(object: &DynamicObject) -> usize {
    count(&object.data["spec"]["replicas"])
}

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap_or_default()).unwrap_or_default()
}

fn reference(object: &DynamicObject, owner: Owner) -> Result<Value> {
    let kind = owner.kind().context("a kind")?.kind;
    Ok(json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind, "name": object.name_any(),
        "uid": object.uid(), "controller": true, "blockOwnerDeletion": true,
    }))
}
