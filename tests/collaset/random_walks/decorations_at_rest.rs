//! Checks the PodDecorations of a set that nobody changes any more: each Pod has exactly what they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use operating::api::keys;
use operating::api::poddecoration::PodDecoration;
use serde_json::{Value, json};
use testbed::wait;

use crate::fixtures::{Pods, Set, label};
use crate::invariants::{DECORATED, MIRROR};

/// The revisions of a Pod's decorations, by the name of the PodDecoration.
type Marks = BTreeMap<String, String>;

/// The objects of the namespace. The revisions are by name, each the `spec` of its data.
struct Seen {
    decorations: Vec<PodDecoration>,
    revisions: BTreeMap<String, Value>,
    pods: Pods,
}

/// Waits until the PodDecorations and the Pods of a set agree.
pub async fn until_decorated(set: &Set<'_>) {
    let begun = Instant::now();
    loop {
        let seen = read(set).await;
        let Err(why) = check(&seen) else {
            return;
        };
        if begun.elapsed() > wait::PATIENCE {
            let decorations = seen.decorations.iter().map(|d| json!(d).to_string());
            let decorations: Vec<_> = decorations.collect();
            panic!("never decorated: {why}:\n{}", decorations.join("\n"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn read(set: &Set<'_>) -> Seen {
    let all = ListParams::default();
    let decorations: Api<PodDecoration> = set.scope.api();
    let revisions: Api<ControllerRevision> = set.scope.api();
    let stored = revisions.list(&all).await.unwrap().items;
    let spec = |revision: &ControllerRevision| {
        let data = revision.data.as_ref().map(|data| data.0["spec"].clone());
        (revision.name_any(), data.unwrap_or_default())
    };
    Seen {
        decorations: decorations.list(&all).await.unwrap().items,
        revisions: stored.iter().map(spec).collect(),
        pods: set.pods().await,
    }
}

fn check(seen: &Seen) -> Result<(), String> {
    for decoration in &seen.decorations {
        let name = decoration.name_any();
        check_rollout(decoration, &name, &seen.pods).map_err(|why| format!("{name}: {why}"))?;
    }
    for (id, pod) in &seen.pods {
        check_pod(seen, pod).map_err(|why| format!("ID {id}: {why}"))?;
    }
    Ok(())
}

fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(otherwise()),
    }
}

/// Checks that the PodDecoration has reached the Pods that it should reach, and counts them correctly.
fn check_rollout(decoration: &PodDecoration, name: &str, pods: &Pods) -> Result<(), String> {
    let metadata = &decoration.metadata;
    require(metadata.deletion_timestamp.is_none(), || {
        format!(
            "it is deleted and still there, with {:?}",
            metadata.finalizers
        )
    })?;
    let status = decoration.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    let is_current = Some(status.observed_generation) == metadata.generation;
    let is_ready = is_current && ready.is_some_and(|c| c.status == "True");
    require(is_ready, || format!("{ready:?}"))?;

    let key = format!("{}{name}", keys::DECORATION_PREFIX);
    let (selected, others): (Vec<_>, Vec<_>) = pods
        .iter()
        .partition(|(id, _)| selects(decoration.spec.selector.as_ref(), **id));
    let wrong = others.iter().find(|(_, pod)| label(pod, &key).is_some());
    require(wrong.is_none(), || {
        format!("it does not select {:?}", wrong.map(|(id, _)| id))
    })?;
    let is_updated = |pod: &Pod| label(pod, &key) == Some(&status.updated_revision);
    let updated = selected.iter().filter(|(_, pod)| is_updated(pod)).count();
    let strategy = decoration.spec.update_strategy.clone().unwrap_or_default();
    let rolling = strategy.rolling_update.unwrap_or_default();
    if let Some(reached) = &rolling.selector {
        let mut reached = selected
            .iter()
            .filter(|(id, _)| selects(Some(reached), **id));
        let missed = reached.find(|(_, pod)| !is_updated(pod));
        require(missed.is_none(), || {
            format!("it does not reach {:?}", missed.map(|(id, _)| id))
        })?;
    } else {
        // New Pods of a set that grows are updated whatever the partition is.
        let partition = usize::try_from(rolling.partition.unwrap_or(0)).unwrap();
        let least = selected.len().saturating_sub(partition);
        require(updated >= least, || {
            format!("{updated} Pods have it, {least} should")
        })?;
    }
    let injected = selected
        .iter()
        .filter(|(_, pod)| label(pod, &key).is_some());
    let counted = [
        status.matched_pods,
        status.injected_pods,
        status.updated_pods,
        status.updated_available_pods,
    ];
    let wanted = [selected.len(), injected.count(), updated, updated];
    let wanted = wanted.map(|count| i32::try_from(count).unwrap());
    require(counted == wanted, || {
        format!("it counts {counted:?} instead of {wanted:?} matched, injected, updated, available")
    })
}

/// Whether a selector that a walk has drawn selects the Pod of an instance ID.
fn selects(selector: Option<&LabelSelector>, id: i64) -> bool {
    let Some(selector) = selector else {
        return false;
    };
    let selector = json!(selector);
    let ids = selector["matchExpressions"][0]["values"].as_array();
    let app = selector["matchLabels"]["app"].as_str();
    ids.is_none_or(|ids| ids.contains(&json!(id.to_string()))) && app.is_none_or(|app| app == "web")
}

/// Checks that a Pod consists of its template and its decorations.
fn check_pod(seen: &Seen, pod: &Pod) -> Result<(), String> {
    let marks = marks(pod);
    let (mut containers, mut labels) = (BTreeMap::new(), Vec::new());
    for (decoration, name) in &marks {
        let revision = seen.revisions.get(name);
        let revision = revision.ok_or_else(|| format!("revision {name} is lost"))?;
        let sidecar = &revision["template"]["containers"][0];
        if let Some(image) = sidecar["image"].as_str() {
            containers.insert(decoration.clone(), image.to_owned());
        }
        let added = &revision["template"]["metadata"][0]["labels"][DECORATED];
        if let Some(value) = added.as_str() {
            let weight = revision["weight"].as_i64().unwrap_or_default();
            labels.push((weight, decoration, value));
        }
    }
    let present = sidecars(pod);
    require(present == containers, || {
        format!("the sidecars are {present:?} instead of {containers:?}")
    })?;
    // The first decoration sets the label, and the others retain it.
    let wanted = labels.iter().min().map(|(_, _, value)| *value);
    let present = label(pod, DECORATED);
    require(present == wanted, || {
        format!("the label is {present:?} instead of {wanted:?}")
    })?;
    let owners = pod.owner_references().iter();
    let owners = owners.filter(|owner| owner.kind == "PodDecoration");
    let owners: BTreeSet<_> = owners.map(|o| (Some(&*o.name), Some(&*o.uid))).collect();
    let existing = seen.decorations.iter().map(|d| &d.metadata);
    let existing = existing.filter(|m| m.name.as_ref().is_some_and(|n| marks.contains_key(n)));
    let existing = existing.map(|m| (m.name.as_deref(), m.uid.as_deref()));
    let existing: BTreeSet<_> = existing.collect();
    require(owners == existing && owners.len() == marks.len(), || {
        format!("it refers to {owners:?} instead of {existing:?}, its labels are {marks:?}")
    })?;
    let annotation = pod.annotations().get(keys::DECORATIONS);
    let annotated: Value = annotation.map_or(json!([]), |text| serde_json::from_str(text).unwrap());
    let entries = marks.iter();
    let entries = entries.map(|(name, revision)| json!({ "name": name, "revision": revision }));
    let wanted = Value::Array(entries.collect());
    require(annotated == wanted, || {
        format!("its annotation is {annotated} instead of {wanted}")
    })
}

fn marks(pod: &Pod) -> Marks {
    let labels = pod.labels().iter();
    let marks = labels.filter_map(|(key, revision)| {
        let name = key.strip_prefix(keys::DECORATION_PREFIX)?;
        Some((name.to_owned(), revision.clone()))
    });
    marks.collect()
}

/// The images of all containers but that of the template, by name.
fn sidecars(pod: &Pod) -> BTreeMap<String, String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let sidecars = containers.filter(|container| container.name != "app");
    let image = |image: &Option<String>| {
        let image = image.as_deref().unwrap_or_default();
        image.trim_start_matches(MIRROR).to_owned()
    };
    sidecars
        .map(|container| (container.name.clone(), image(&container.image)))
        .collect()
}
