//! Init containers, changes of the set's own containers, and sidecars.

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

fn has_name(container: &Value, name: Option<&str>) -> bool {
    name.is_some() && name_of(container) == name
}

/// Appends the init containers whose name no init container has.
pub(super) fn add_init_containers(pod: &mut Value, added: &[Value]) {
    if added.is_empty() {
        return;
    }
    let Some(list) = list_at(pod, &["spec", "initContainers"]) else {
        return;
    };
    for container in added {
        let name = name_of(container);
        if !list.iter().any(|present| has_name(present, name)) {
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

/// The policy of a patch. Without a policy it is ByName for a patch with a name, as the API documents, and otherwise
/// All.
pub(in super::super) fn effective_target(patch: &PrimaryContainerPatch) -> TargetPolicy {
    let has_name = patch.name.as_ref().is_some_and(|name| !name.is_empty());
    match &patch.target_policy {
        Some(TargetPolicy::Other(text)) if !text.is_empty() => TargetPolicy::Other(text.clone()),
        None | Some(TargetPolicy::Other(_)) if has_name => TargetPolicy::ByName,
        None | Some(TargetPolicy::Other(_)) => TargetPolicy::All,
        Some(policy) => policy.clone(),
    }
}

/// Names of the containers that a patch changes. ByName also reaches the sidecars of decorations before it.
fn targets_of<'a>(
    patch: &'a PrimaryContainerPatch,
    primary: &'a [String],
) -> Result<Vec<&'a str>, String> {
    let all = primary.iter().map(String::as_str);
    Ok(match effective_target(patch) {
        TargetPolicy::All => all.collect(),
        TargetPolicy::First => all.take(1).collect(),
        TargetPolicy::Last => all.last().into_iter().collect(),
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
    let mut front = Vec::new();
    for (i, sidecar) in sidecars.iter().enumerate() {
        let (container, policy) = split_policy(sidecar).map_err(|problem| {
            format!("spec.template.containers[{i}].{INJECT_POLICY}: {problem}")
        })?;
        let name = name_of(&container);
        let mut present = front.iter_mut().chain(list.iter_mut());
        if let Some(present) = present.find(|present| has_name(present, name)) {
            *present = container;
        } else if policy == InjectPolicy::AfterPrimaryContainer {
            list.push(container);
        } else {
            front.push(container);
        }
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
