//! Environment variables that a container takes from the labels, annotations and resources of its Pod. The kubelet sets
//! them when it starts the container, and does not change them later
//! (<https://kubernetes.io/docs/tasks/inject-data-application/environment-variable-expose-pod-information/>).

use std::collections::BTreeMap;

use serde_json::Value;

use super::data::{container_pairs, string_field, string_map};
use crate::api::keys;
use crate::domain::quantity;

/// The quantity 1 in the unit of [`quantity::nanos`].
const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// Returns the first variable that would keep its old value if a Pod changed in place between these templates, as a
/// path. The caller has checked that the rest of the templates is the same.
pub fn first_outdated_variable(from: &Value, to: &Value) -> Option<String> {
    let metadata = ChangedMetadata::between(from, to);
    let lists = ["containers", "initContainers"].into_iter();
    let mut pairs =
        lists.flat_map(|list| container_pairs(from, to, list).map(move |pair| (list, pair)));
    pairs.find_map(|(list, (old, container))| {
        // A new image restarts the container with new metadata. This does not help for resources, because they may
        // change after the image.
        let starts_anew = string_field(old, "image") != string_field(container, "image");
        let env = container.get("env").and_then(Value::as_array);
        let mut variables = env.into_iter().flatten();
        let (variable, source) = variables.find_map(|variable| {
            let is_resized = || reads_changed_resource((from, to), container, variable);
            let source = match !starts_anew && metadata.affects_variable(variable) {
                true => "metadata that changes",
                false => is_resized().then_some("a resource that changes")?,
            };
            Some((string_field(variable, "name"), source))
        })?;
        let name = string_field(container, "name");
        Some(format!(
            "template.spec.{list}[{name}].env[{variable}] is taken from {source}"
        ))
    })
}

/// Whether a variable of a container is taken from a resource that differs in the two templates, and whose resize does
/// not restart the container.
fn reads_changed_resource(
    templates: (&Value, &Value),
    container: &Value,
    variable: &Value,
) -> bool {
    let Some(field) = variable.pointer("/valueFrom/resourceFieldRef") else {
        return false;
    };
    let own = string_field(container, "name");
    let of = match string_field(field, "containerName") {
        "" => own,
        other => other,
    };
    let Some((kind, name)) = string_field(field, "resource").split_once('.') else {
        return false;
    };
    let divisor = field.get("divisor").and_then(quantity::nanos);
    let divisor = divisor
        .filter(|divisor| *divisor > 0)
        .unwrap_or(NANOS_PER_UNIT);
    let differs = |kind: &str, divisor: i128| {
        // The kubelet rounds the value up to a multiple of the divisor.
        let [before, after] = [templates.0, templates.1].map(|template| {
            let value = effective_nanos(template, of, kind, name)?;
            Some(value.saturating_add(divisor - 1) / divisor)
        });
        before != after
    };
    let policies = container.get("resizePolicy").and_then(Value::as_array);
    let restarts = policies.into_iter().flatten().any(|policy| {
        string_field(policy, "resourceName") == name
            && string_field(policy, "restartPolicy") == "RestartContainer"
    });
    // Some kubelets restart no container if only the memory request changes.
    let is_restarted = || kind == "limits" || name != "memory" || differs("limits", 1);
    differs(kind, divisor) && !(restarts && of == own && is_restarted())
}

/// Returns a resource of a container. A missing request defaults to the limit, and a missing limit to that of the Pod
/// (`pkg/api/v1/resource/helpers.go`, Kubernetes 1.36).
fn effective_nanos(template: &Value, container: &str, kind: &str, name: &str) -> Option<i128> {
    let lists = ["containers", "initContainers"].into_iter();
    let mut containers = lists.flat_map(|list| container_pairs(template, template, list));
    let container =
        containers.find_map(|(c, _)| (string_field(c, "name") == container).then_some(c));
    let of_pod = template.get("spec").filter(|_| kind == "limits");
    let candidates = [(container, kind), (container, "limits"), (of_pod, "limits")];
    let mut values = candidates
        .into_iter()
        .filter_map(|(of, kind)| of?.get("resources")?.get(kind)?.get(name));
    values.find_map(quantity::nanos)
}

/// Labels and annotations of two templates.
struct ChangedMetadata {
    labels: [BTreeMap<String, String>; 2],
    annotations: [BTreeMap<String, String>; 2],
}

impl ChangedMetadata {
    fn between(from: &Value, to: &Value) -> ChangedMetadata {
        ChangedMetadata {
            labels: [from, to].map(|template| string_map(template, "labels")),
            annotations: [from, to].map(|template| string_map(template, "annotations")),
        }
    }

    /// Whether a variable is taken from a label or annotation that differs.
    fn affects_variable(&self, variable: &Value) -> bool {
        let field = variable.pointer("/valueFrom/fieldRef/fieldPath");
        let field = field.and_then(Value::as_str).unwrap_or_default();
        let key = |of: &str| {
            let key = field.strip_prefix(of)?.strip_prefix("['")?;
            key.strip_suffix("']")
        };
        if let Some(key) = key("metadata.labels") {
            let [before, after] = &self.labels;
            // The label with the revision differs between any two revisions.
            return key == keys::REVISION || before.get(key) != after.get(key);
        }
        key("metadata.annotations").is_some_and(|key| {
            let [before, after] = &self.annotations;
            before.get(key) != after.get(key)
        })
    }
}
