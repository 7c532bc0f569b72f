//! In-place resizes: the changes that `pods/resize` accepts (contract 6.5).

use serde_json::{Map, Value, json};

use super::data;
use super::data::{container_pairs, string_field};
use super::qos::{self, COMPUTE_RESOURCES};
use crate::domain::collaset::core_v1::{Kind, first_difference, normal_form};
use crate::domain::pod::Pod;
use crate::domain::quantity;

/// Returns the patch of `pods/resize`; `None` if no resource changes. Returns an error for a change that Kubernetes
/// would refuse or never apply: of other resources than cpu and memory, the removal of a request or limit, a lower
/// memory limit of a running container, another QoS class.
pub fn resize_patch(from: &Value, to: &Value) -> Result<Option<Value>, String> {
    let mut containers = Vec::new();
    for (old, new) in container_pairs(from, to, "containers") {
        let path = format!(
            "template.spec.containers[{}].resources",
            string_field(new, "name")
        );
        if let Some(resources) = container_resize(&path, old, new)? {
            containers.push(json!({ "name": string_field(new, "name"), "resources": resources }));
        }
    }
    let (old, new) = (qos::qos_class(&from["spec"]), qos::qos_class(&to["spec"]));
    if old != new {
        return Err(format!(
            "template.spec.containers: their resources change the QoS class from {old} to {new}"
        ));
    }
    Ok((!containers.is_empty()).then(|| json!({ "containers": containers })))
}

fn container_resize(path: &str, old: &Value, new: &Value) -> Result<Option<Value>, String> {
    let null = Value::Null;
    let resources = |container: &Value| {
        let raw = container.get("resources").unwrap_or(&null);
        normal_form(&Kind::Struct("ResourceRequirements"), raw).unwrap_or_else(|| json!({}))
    };
    let (before, after) = (resources(old), resources(new));
    let Some(field) = first_difference(path, &before, &after) else {
        return Ok(None);
    };
    let others = |resources: &Value| {
        let mut all = resources.clone();
        for kind in ["requests", "limits"] {
            for name in COMPUTE_RESOURCES {
                all[kind]
                    .as_object_mut()
                    .and_then(|amounts| amounts.shift_remove(name));
            }
            all[kind] =
                normal_form(&Kind::Map(Box::new(Kind::Quantity)), &all[kind]).unwrap_or_default();
        }
        all
    };
    if let Some(field) = first_difference(path, &others(&before), &others(&after)) {
        return Err(format!(
            "{field} differs, only cpu and memory can be resized"
        ));
    }
    let mut patch = Map::new();
    for kind in ["requests", "limits"] {
        for name in COMPUTE_RESOURCES {
            let (was, is) = (
                effective_amount(old, kind, name),
                effective_amount(new, kind, name),
            );
            let Some(is) = is else {
                if was.is_some() {
                    return Err(format!(
                        "{path}.{kind}.{name} is removed, which needs a new Pod"
                    ));
                }
                continue;
            };
            let shrinks = was.is_some_and(|was| quantity::nanos(is) < quantity::nanos(was));
            if kind == "limits" && name == "memory" && shrinks && !restarts_on_resize(new, name) {
                return Err(format!(
                    "{path}.limits.memory shrinks, which needs a new Pod unless resizePolicy says RestartContainer"
                ));
            }
            let amounts = patch.entry(kind).or_insert_with(|| json!({}));
            amounts[name] = is.clone();
        }
    }
    if patch.is_empty() {
        return Err(format!("{field} differs"));
    }
    Ok(Some(patch.into()))
}

/// Merges two patches that lead to the same resources.
pub fn merge_resizes(first: Option<Value>, second: Option<&Value>) -> Option<Value> {
    let (mut first, second) = match (first, second) {
        (Some(first), Some(second)) => (first, second),
        (first, second) => return first.or_else(|| second.cloned()),
    };
    let own = first["containers"].as_array().cloned().unwrap_or_default();
    let is_known = |container: &Value| own.iter().any(|c| c["name"] == container["name"]);
    let more = second["containers"].as_array().into_iter().flatten();
    let more = more.filter(|container| !is_known(container)).cloned();
    if let Some(containers) = first["containers"].as_array_mut() {
        containers.extend(more);
    }
    Some(first)
}

/// Whether a Pod has at least one resource value of revision data `to` that differs in its own revision data `of`.
pub fn has_resized_resources(pod: &Pod, of: &Value, to: &Value) -> bool {
    let (Ok(of), Ok(to)) = (data::pod_template(of), data::pod_template(to)) else {
        return false;
    };
    container_pairs(of, to, "containers").any(|(before, after)| {
        let mut containers = pod.spec.containers.iter();
        let container = containers.find(|c| c.name == string_field(after, "name"));
        container.is_some_and(|container| {
            let all = ["requests", "limits"].into_iter();
            let mut all = all.flat_map(|kind| COMPUTE_RESOURCES.map(|name| (kind, name)));
            all.any(|(kind, name)| {
                let [before, after, has] = [
                    effective_amount(before, kind, name),
                    effective_amount(after, kind, name),
                    explicit_or_limit(&container.resources, kind, name),
                ]
                .map(|amount| amount.and_then(quantity::nanos));
                after != before && after.is_some() && after == has
            })
        })
    })
}

/// Returns a request or limit as the API server stores it: a missing request defaults to the limit.
fn effective_amount<'a>(container: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    explicit_or_limit(container.get("resources")?, kind, name)
}

fn explicit_or_limit<'a>(resources: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    let of = |kind: &str| resources.get(kind)?.get(name).filter(|v| !v.is_null());
    of(kind).or_else(|| (kind == "requests").then(|| of("limits")).flatten())
}

fn restarts_on_resize(container: &Value, resource: &str) -> bool {
    let policies = container.get("resizePolicy").and_then(Value::as_array);
    policies.into_iter().flatten().any(|policy| {
        string_field(policy, "resourceName") == resource
            && string_field(policy, "restartPolicy") == "RestartContainer"
    })
}
