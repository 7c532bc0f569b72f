//! Init containers, changes of the set's own containers, and sidecars.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::json::{list_at, merge_items, text};
use crate::api::poddecoration::{InjectPolicy, PrimaryContainerPatch, TargetPolicy};

const CONTAINERS: &[&str] = &["spec", "containers"];
const INJECT_POLICY: &str = "injectPolicy";

/// Names of the containers of a template, in their order.
pub(super) fn container_names(template: &Value) -> Vec<String> {
    let containers = template
        .pointer("/spec/containers")
        .and_then(Value::as_array);
    let names = containers.into_iter().flatten().filter_map(name_of);
    names.map(str::to_owned).collect()
}

fn name_of(container: &Value) -> Option<&str> {
    text(container, "name")
}

/// Appends the init containers whose name no init container has.
pub(super) fn add_init_containers(pod: &mut Value, added: &[Value]) {
    if added.is_empty() {
        return;
    }
    let Some(list) = list_at(pod, &["spec", "initContainers"]) else {
        return;
    };
    let names = list.iter().filter_map(name_of).map(str::to_owned);
    let mut names: BTreeSet<String> = names.collect();
    for container in added {
        let name = name_of(container).map(str::to_owned);
        if name.is_none_or(|name| names.insert(name)) {
            list.push(container.clone());
        }
    }
}

/// Changes containers that exist. `primary` has the names of the primary containers, in their order.
///
/// # Errors
/// If a change has an unknown `targetPolicy`.
pub(super) fn change_containers(
    pod: &mut Value,
    patches: &[PrimaryContainerPatch],
    primary: &[String],
) -> Result<(), String> {
    for (i, patch) in patches.iter().enumerate() {
        let targets = targets_of(patch, primary).map_err(|problem| {
            format!("spec.template.primaryContainers[{i}].targetPolicy: {problem}")
        })?;
        if targets.is_empty() {
            continue;
        }
        for container in list_at(pod, CONTAINERS).into_iter().flatten() {
            if name_of(container).is_some_and(|name| targets.contains(&name)) {
                change_container(container, patch);
            }
        }
    }
    Ok(())
}

/// Names of the containers that a patch changes. ByName also reaches the sidecars of decorations before it.
fn targets_of<'a>(
    patch: &'a PrimaryContainerPatch,
    primary: &'a [String],
) -> Result<Vec<&'a str>, String> {
    let mut all = primary.iter().map(String::as_str);
    Ok(match patch.effective_target_policy() {
        TargetPolicy::All => all.collect(),
        TargetPolicy::First => all.take(1).collect(),
        TargetPolicy::Last => all.next_back().into_iter().collect(),
        TargetPolicy::ByName => patch.name.as_deref().into_iter().collect(),
        TargetPolicy::Other(text) => {
            return Err(format!(
                "{text:?} is not known to this version: set ByName, All, First or Last"
            ));
        }
    })
}

fn change_container(container: &mut Value, patch: &PrimaryContainerPatch) {
    let image = patch.image.as_ref().filter(|image| !image.is_empty());
    if let (Some(image), Some(fields)) = (image, container.as_object_mut()) {
        fields.insert("image".to_owned(), Value::String(image.clone()));
    }
    let field = |key: &'static str| move |item: &Value| text(item, key).map(str::to_owned);
    merge_items(container, &["env"], &patch.env, field("name"));
    // A Pod may mount a volume at several paths, but each path only once.
    merge_items(
        container,
        &["volumeMounts"],
        &patch.volume_mounts,
        field("mountPath"),
    );
}

/// Adds sidecars in front of all containers or behind them, in their order. A sidecar whose name a container has
/// replaces that container where it stands.
///
/// # Errors
/// If a sidecar has an unknown `injectPolicy`.
pub(super) fn add_sidecars(pod: &mut Value, sidecars: &[Value]) -> Result<(), String> {
    if sidecars.is_empty() {
        return Ok(());
    }
    let Some(list) = list_at(pod, CONTAINERS) else {
        return Ok(());
    };
    let mut front = Vec::<Value>::new();
    // Where the container of a name is: its index in `front`, or in the list.
    let mut places = BTreeMap::<String, (bool, usize)>::new();
    for (index, present) in list.iter().enumerate() {
        if let Some(name) = name_of(present) {
            places.entry(name.to_owned()).or_insert((false, index));
        }
    }
    for (i, sidecar) in sidecars.iter().enumerate() {
        let (container, policy) = split_policy(sidecar).map_err(|problem| {
            format!("spec.template.containers[{i}].{INJECT_POLICY}: {problem}")
        })?;
        let in_front = policy != InjectPolicy::AfterPrimaryContainer;
        let name = name_of(&container).map(str::to_owned);
        let place = name.as_ref().and_then(|name| places.get(name)).copied();
        let present = place.and_then(|(is_front, index)| match is_front {
            true => front.get_mut(index),
            false => list.get_mut(index),
        });
        if let Some(present) = present {
            *present = container;
            continue;
        }
        let target = if in_front { &mut front } else { &mut *list };
        if let Some(name) = name {
            places.insert(name, (in_front, target.len()));
        }
        target.push(container);
    }
    list.splice(0..0, front);
    Ok(())
}

/// Splits a sidecar into the container and its policy; BeforePrimaryContainer when absent, as Kuperator's webhook stored.
fn split_policy(sidecar: &Value) -> Result<(Value, InjectPolicy), String> {
    let mut container = sidecar.clone();
    let fields = container.as_object_mut();
    let policy = match fields.and_then(|fields| fields.shift_remove(INJECT_POLICY)) {
        None | Some(Value::Null) => InjectPolicy::BeforePrimaryContainer,
        Some(Value::String(text)) if text.is_empty() => InjectPolicy::BeforePrimaryContainer,
        Some(Value::String(text)) => InjectPolicy::from(text.as_str()),
        Some(other) => InjectPolicy::Other(other.to_string()),
    };
    if let InjectPolicy::Other(text) = policy {
        return Err(format!(
            "{text:?} is not known to this version: set BeforePrimaryContainer or AfterPrimaryContainer"
        ));
    }
    Ok((container, policy))
}
