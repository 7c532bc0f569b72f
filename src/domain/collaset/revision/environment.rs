//! The environment of a container that comes from the labels and annotations of its Pod. The kubelet makes it when it starts
//! the container, and never again
//! (<https://kubernetes.io/docs/tasks/inject-data-application/environment-variable-expose-pod-information/>).

use std::collections::BTreeMap;

use serde_json::Value;

use super::data::{pairs, strings, text};
use crate::api::keys;

/// The first variable that would keep its old value if a Pod of one template became one of the other in place, as a path.
/// That the rest of the templates is the same is known by then.
pub fn outdated(from: &Value, to: &Value) -> Option<String> {
    let metadata = Changed::between(from, to);
    let lists = ["containers", "initContainers"].into_iter();
    lists
        .flat_map(|list| pairs(from, to, list).map(move |pair| (list, pair)))
        .filter(|(_, (old, new))| text(old, "image") == text(new, "image"))
        .find_map(|(list, (_, container))| {
            let env = container.get("env").and_then(Value::as_array);
            let variable = env.into_iter().flatten().find(|v| metadata.reaches(v))?;
            let (name, variable) = (text(container, "name"), text(variable, "name"));
            Some(format!(
                "template.spec.{list}[{name}].env[{variable}] is taken from metadata that changes"
            ))
        })
}

/// Labels and annotations of two templates.
struct Changed {
    labels: [BTreeMap<String, String>; 2],
    annotations: [BTreeMap<String, String>; 2],
}

impl Changed {
    fn between(from: &Value, to: &Value) -> Changed {
        Changed {
            labels: [from, to].map(|template| strings(template, "labels")),
            annotations: [from, to].map(|template| strings(template, "annotations")),
        }
    }

    /// Whether a variable is one of those that differ.
    fn reaches(&self, variable: &Value) -> bool {
        let field = variable.pointer("/valueFrom/fieldRef/fieldPath");
        let field = field.and_then(Value::as_str).unwrap_or_default();
        let key = |of: &str| {
            let key = field.strip_prefix(of)?.strip_prefix("['")?;
            key.strip_suffix("']")
        };
        if let Some(key) = key("metadata.labels") {
            let [before, after] = &self.labels;
            // Each revision has a label of its own.
            return key == keys::REVISION || before.get(key) != after.get(key);
        }
        key("metadata.annotations").is_some_and(|key| {
            let [before, after] = &self.annotations;
            before.get(key) != after.get(key)
        })
    }
}
