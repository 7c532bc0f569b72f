//! Builds the probe of a PodDecoration: a Pod with this decoration, to be created in dry-run mode. The API server thus
//! judges containers, volumes, tolerations and affinity by the rules of its own version.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::probe_paths::probe_paths;
use crate::admission::dry_run::{DryRunProbe, probe_object};
use crate::api::keys;
use crate::api::poddecoration::{TargetPolicy, Template};
use crate::api::validation::FieldError;
use crate::domain::decoration::DecorationRevision;
use crate::domain::decoration::apply::apply_decorations;

/// Name and image of the container that stands for the containers of a CollaSet.
const PLACEHOLDER: &str = "placeholder";
/// The lists of containers in the spec of a Pod.
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// The probe of a template. `name` is the name of the PodDecoration.
///
/// # Errors
/// If the decoration can't be applied to any Pod.
pub(super) fn decorated_pod(name: &str, template: Template) -> Result<DryRunProbe, FieldError> {
    let placeholders = placeholder_names(&template);
    let decoration = DecorationRevision {
        decoration: name.to_owned(),
        template,
        ..DecorationRevision::default()
    };
    let undecorated = undecorated_pod(&placeholders);
    let applied = apply_decorations(&undecorated, &[&decoration]);
    let mut pod =
        applied.map_err(|failure| FieldError::missing_field("spec.template", failure.message))?;
    let paths = probe_paths(&pod["spec"], &decoration.template);
    drop(decoration);
    let spec = &mut pod["spec"];
    add_missing_volumes(spec);
    if let Some(spec) = spec.as_object_mut() {
        // A RuntimeClass can be created later. Until then, the API server refuses a Pod that names it.
        spec.shift_remove("runtimeClassName");
    }
    // Without this label, the API server does not call our own webhooks for the probe.
    if let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
        labels.shift_remove(keys::CONTROL);
    }
    let object = probe_object(pod, "Pod").ok_or_else(|| {
        FieldError::missing_field(
            "spec.template",
            "can't be applied to a Pod: correct its fields",
        )
    })?;
    Ok(DryRunProbe {
        resource: "pods",
        paths,
        object,
    })
}

/// The containers of other objects that the template changes. There is always one, because a Pod has a container.
fn placeholder_names(template: &Template) -> Vec<String> {
    let brought = template.containers.iter();
    let brought: BTreeSet<&str> = brought.filter_map(|c| c["name"].as_str()).collect();
    let patches = template.primary_containers.iter();
    let by_name = patches.filter(|p| p.effective_target_policy() == TargetPolicy::ByName);
    let names = by_name.filter_map(|patch| patch.name.clone());
    let names = names.filter(|name| !name.is_empty() && !brought.contains(name.as_str()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    match names.is_empty() {
        true => vec![PLACEHOLDER.to_owned()],
        false => names,
    }
}

/// A Pod with only these containers. It keeps the strictest Pod Security Standard, so that warnings and refusals are
/// about the decoration.
fn undecorated_pod(containers: &[String]) -> Value {
    let container = |name: &String| {
        json!({
            "name": name,
            "image": PLACEHOLDER,
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        })
    };
    let containers: Vec<Value> = containers.iter().map(container).collect();
    let security = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
    json!({ "metadata": {}, "spec": { "containers": containers, "securityContext": security } })
}

/// Adds a volume for each mount and each device whose volume is that of a CollaSet.
fn add_missing_volumes(spec: &mut Value) {
    let names = |list: &Value| -> BTreeSet<String> {
        let entries = list.as_array().into_iter().flatten();
        let names = entries.filter_map(|entry| entry["name"].as_str());
        names.map(str::to_owned).collect()
    };
    let mut known = names(&spec["volumes"]);
    let mut added = Vec::new();
    // A volume that is both mounted and a device can't be valid, so the order does not matter.
    for field in ["volumeMounts", "volumeDevices"] {
        let lists = CONTAINER_LISTS.iter().map(|list| &spec[*list]);
        let containers = lists.filter_map(Value::as_array).flatten();
        let used: BTreeSet<String> = containers.flat_map(|c| names(&c[field])).collect();
        for name in used.difference(&known.clone()) {
            added.push(match field {
                "volumeMounts" => json!({ "name": name, "emptyDir": {} }),
                // A device can only be the volume of a PVC.
                _ => json!({ "name": name, "persistentVolumeClaim": { "claimName": name } }),
            });
        }
        known.extend(used);
    }
    if added.is_empty() {
        return;
    }
    match spec["volumes"].as_array_mut() {
        Some(volumes) => volumes.extend(added),
        None => spec["volumes"] = added.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn template(template: Value) -> Template {
        serde_json::from_value(template).unwrap()
    }

    #[test]
    fn placeholders_are_the_named_containers_of_sets() {
        for (given, want) in [
            (json!({}), &["placeholder"][..]),
            (
                json!({ "primaryContainers": [{ "targetPolicy": "First" }] }),
                &["placeholder"],
            ),
            (
                json!({ "primaryContainers": [{ "name": "web" }, { "name": "api" }, { "name": "web" }] }),
                &["api", "web"],
            ),
            (
                json!({ "primaryContainers": [{ "name": "log" }], "containers": [{ "name": "log" }] }),
                &["placeholder"],
            ),
            (
                json!({ "primaryContainers": [{ "name": "web", "targetPolicy": "All" }] }),
                &["placeholder"],
            ),
        ] {
            assert_eq!(placeholder_names(&template(given)), want);
        }
    }

    #[test]
    fn volumes_of_sets_are_added() {
        let mut spec = json!({
            "initContainers": [{ "volumeMounts": [{ "name": "b" }] }],
            "containers": [
                { "volumeMounts": [{ "name": "a" }, { "name": "own" }, {}], "volumeDevices": [{ "name": "raw" }] },
                { "volumeMounts": [{ "name": "a" }] },
            ],
            "volumes": [{ "name": "own", "configMap": {} }],
        });
        add_missing_volumes(&mut spec);
        let want = json!([
            { "name": "own", "configMap": {} },
            { "name": "a", "emptyDir": {} },
            { "name": "b", "emptyDir": {} },
            { "name": "raw", "persistentVolumeClaim": { "claimName": "raw" } },
        ]);
        assert_eq!(spec["volumes"], want);
        let mut none = json!({ "containers": [{ "name": "c" }] });
        add_missing_volumes(&mut none);
        assert_eq!(none, json!({ "containers": [{ "name": "c" }] }));
    }

    #[test]
    fn probe_is_a_pod_without_name_and_runtime_class() {
        let probe = decorated_pod("log", template(json!({ "runtimeClassName": "gvisor" })));
        let object = probe.unwrap().object;
        assert_eq!(object["kind"], "Pod");
        assert_eq!(object["metadata"]["generateName"], "dry-run-");
        assert_eq!(object["metadata"]["name"], Value::Null);
        assert_eq!(object["spec"]["runtimeClassName"], Value::Null);
        assert_eq!(object["spec"]["containers"][0]["name"], "placeholder");
    }
}
