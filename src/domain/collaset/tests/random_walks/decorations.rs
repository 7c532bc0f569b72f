//! The PodDecorations of a walk: what users do with them, and the checks at the end.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::super::world::World;
use super::invariants::ensure;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::decoration::labels::{decorations_of, is_decoration};
use crate::domain::pod::Pod;

/// Name of the PodDecoration that can't be applied to most Pods.
pub const FAILING: &str = "failing";

const NAMES: [&str; 2] = ["log", "mesh"];

pub fn draw_name(rng: &mut StdRng) -> &'static str {
    NAMES.choose(rng).unwrap()
}

pub fn draw_any_name(rng: &mut StdRng) -> &'static str {
    ["log", "mesh", "log", "mesh", FAILING].choose(rng).unwrap()
}

/// Draws a template: changes in place, changes that need another Pod, and changes of metadata alone.
pub fn draw_template(rng: &mut StdRng) -> Value {
    let sidecar = match rng.random_bool(0.7) {
        // `decorate` gives the sidecar the name of the PodDecoration.
        true => {
            json!([{ "image": format!("side:{}", rng.random_range(1..4)), "injectPolicy": "AfterPrimaryContainer" }])
        }
        false => json!([]),
    };
    let label = json!([{ "patchPolicy": "Retain", "labels": { "side": rng.random_range(1..4).to_string() } }]);
    let metadata = if rng.random_bool(0.5) {
        label
    } else {
        json!([])
    };
    json!({ "template": { "containers": sidecar, "metadata": metadata }, "weight": rng.random_range(0..2) })
}

/// Draws a selector: all Pods, those of the set, or some instance IDs.
pub fn draw_selector(rng: &mut StdRng) -> Value {
    let selector = match rng.random_range(0..4) {
        0 => json!({ "matchLabels": null, "matchExpressions": null }),
        1 => json!({ "matchLabels": { "app": "web" }, "matchExpressions": null }),
        2 => json!({ "matchLabels": { "app": "api" }, "matchExpressions": null }),
        _ => json!({ "matchLabels": null, "matchExpressions": [draw_ids(rng)] }),
    };
    json!({ "selector": selector })
}

/// Draws how far the rollout goes.
pub fn draw_strategy(rng: &mut StdRng) -> Value {
    let rolling = match rng.random_range(0..4) {
        0 => json!(null),
        1 => json!({ "selector": { "matchExpressions": [draw_ids(rng)] }, "partition": null }),
        _ => json!({ "selector": null, "partition": rng.random_range(0..5) }),
    };
    json!({ "updateStrategy": { "rollingUpdate": rolling } })
}

/// Draws a decoration that can't be applied: it changes a label that the set selects by.
pub fn draw_failing(rng: &mut StdRng) -> Value {
    let labels = json!([{ "patchPolicy": "Overwrite", "labels": { "app": "api" } }]);
    let ids = json!({ "matchExpressions": [draw_ids(rng)] });
    json!({ "selector": ids, "template": { "metadata": labels } })
}

fn draw_ids(rng: &mut StdRng) -> Value {
    let ids: Vec<String> = (0..3).map(|_| rng.random_range(0..6).to_string()).collect();
    json!({ "key": keys::INSTANCE_ID, "operator": "In", "values": ids })
}

/// Creates or edits a PodDecoration. A new one selects the Pods of the set.
pub fn decorate(world: &mut World, name: &str, patch: &Value) {
    if !world.decorations.objects.contains_key(name) {
        world.decorate(
            name,
            json!({ "selector": { "matchLabels": { "app": "web" } } }),
        );
    }
    let mut patch = patch.clone();
    if let Some(sidecar) = patch.pointer_mut("/template/containers/0") {
        sidecar["name"] = name.into();
    }
    world.decorate(name, patch);
}

/// Checks that each member has the decorations that the PodDecorations ask for, and nothing else.
pub fn check_decorations(world: &World) -> Result<(), String> {
    for object in world.decorations.objects.values() {
        ensure!(
            object.metadata.deletion_timestamp.is_none(),
            "PodDecoration {:?} is deleted and still there",
            object.metadata.name
        );
        check_rollout(world, object)?;
    }
    for pod in world.members().values() {
        check_pod(world, pod)?;
    }
    Ok(())
}

/// Checks that the rollout of a PodDecoration has reached the members that it should reach.
fn check_rollout(world: &World, object: &PodDecoration) -> Result<(), String> {
    let name = object.metadata.name.as_deref().unwrap();
    let status = object.status.clone().unwrap_or_default();
    let members = world.members();
    let selects = |id: &i64, selector: &Option<_>| {
        let raw = json!(selector);
        let ids = raw["matchExpressions"][0]["values"].as_array().cloned();
        let named = ids.is_none_or(|ids| ids.contains(&json!(id.to_string())));
        named
            && raw["matchLabels"]["app"]
                .as_str()
                .is_none_or(|app| app == "web")
    };
    let has = |pod: &Pod| decorations_of(pod).get(name).cloned();
    let is_updated = |pod: &Pod| has(pod).as_ref() == Some(&status.updated_revision);
    let (selected, others): (Vec<_>, Vec<_>) = members
        .iter()
        .partition(|(id, _)| selects(id, &object.spec.selector));
    for (id, pod) in others {
        ensure!(
            has(pod).is_none(),
            "{name} is on ID {id}, which it does not select"
        );
    }
    let strategy = object.spec.update_strategy.clone().unwrap_or_default();
    let rolling = strategy.rolling_update.unwrap_or_default();
    let updated = selected.iter().filter(|(_, pod)| is_updated(pod)).count();
    if rolling.selector.is_some() {
        for (id, pod) in &selected {
            let is_missed = selects(id, &rolling.selector) && !is_updated(pod);
            ensure!(!is_missed, "{name} is not rolled out to ID {id}");
        }
    } else {
        let partition = usize::try_from(rolling.partition.unwrap_or(0)).unwrap();
        let least = selected.len().saturating_sub(partition);
        ensure!(
            updated >= least,
            "{updated} members have {name}, {least} are to: {status:#?}"
        );
    }
    let counts = (status.matched_pods, status.updated_pods);
    let wanted = (selected.len() as i32, updated as i32);
    ensure!(
        counts == wanted,
        "{name} counts {counts:?} instead of {wanted:?}"
    );
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    ensure!(
        ready.is_some_and(|c| c.status == "True"),
        "{name}: {ready:?}"
    );
    Ok(())
}

/// Checks that a Pod consists of its template and its decorations.
fn check_pod(world: &World, pod: &Pod) -> Result<(), String> {
    let name = &pod.metadata.name;
    let mut wanted = BTreeSet::from(["app".to_owned()]);
    for (decoration, revision) in decorations_of(pod) {
        let revision = world.decorations.revisions.get(&revision);
        let revision = revision.ok_or_else(|| format!("{decoration} of Pod {name} is lost"))?;
        let sidecar = &revision.data["spec"]["template"]["containers"][0];
        let Some(image) = sidecar["image"].as_str() else {
            continue;
        };
        let container = pod.spec.containers.iter().find(|c| c.name == decoration);
        let runs = container.and_then(|c| c.image.split('@').next());
        ensure!(
            runs == Some(image),
            "{decoration} of Pod {name} is {runs:?}, not {image}"
        );
        wanted.insert(decoration);
    }
    let present = pod.spec.containers.iter().map(|c| c.name.clone());
    let present: BTreeSet<_> = present.collect();
    ensure!(
        present == wanted,
        "Pod {name} has the containers {present:?}, not {wanted:?}"
    );
    let owners = pod
        .metadata
        .owner_references
        .iter()
        .filter(|owner| is_decoration(owner));
    let owners: BTreeSet<_> = owners.map(|owner| owner.name.clone()).collect();
    let decorations: BTreeSet<_> = decorations_of(pod).into_keys().collect();
    ensure!(
        owners == decorations,
        "Pod {name} refers to {owners:?}, not {decorations:?}"
    );
    Ok(())
}
