//! Validates the Pod template: its shape, and that it contains no reserved labels.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{FieldError, FieldErrors};
use crate::api::keys;
use crate::api::reserved_labels::is_reserved;

pub(super) type Labels = BTreeMap<String, String>;

const LABELS_PATH: &str = "spec.template.metadata.labels";

/// Checks the template, and its labels if they can be parsed.
pub(super) fn check_template(template: &Value, errors: &mut FieldErrors) -> Option<Labels> {
    if !template.is_object() {
        let problem = "is required: describe the Pod to create, with metadata and spec";
        errors.push(missing_or_invalid("spec.template", template, problem));
        return None;
    }
    let spec = &template["spec"];
    if !spec.is_object() {
        let problem = "is required: describe the Pod to create, with its containers";
        errors.push(missing_or_invalid("spec.template.spec", spec, problem));
    }
    let annotation = template
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(keys::LAST_POD_STATUS));
    if let Some(value) = annotation {
        let path = format!(
            "spec.template.metadata.annotations[{}]",
            keys::LAST_POD_STATUS
        );
        errors.push(FieldError::with_raw_value(
            path,
            value.to_string(),
            REMOVE_REMEDY,
        ));
    }
    let labels = &template["metadata"]["labels"];
    let Some(labels) = Labels::deserialize(labels).ok() else {
        let problem =
            "is required: a map from text to text with the labels that spec.selector matches";
        errors.push(missing_or_invalid(LABELS_PATH, labels, problem));
        return None;
    };
    for (key, value) in &labels {
        errors.extend(
            label_problem(key, value)
                .map(|problem| FieldError::new(format!("{LABELS_PATH}[{key}]"), value, problem)),
        );
    }
    Some(labels)
}

const REMOVE_REMEDY: &str =
    "is reserved: it is set on single Pods, by CollaSet or for it; take it out of the template";

fn label_problem(key: &str, value: &str) -> Option<&'static str> {
    if key == keys::CONTROL {
        let problem =
            "must be true: CollaSet manages all of its Pods and sets the label itself; take it out";
        return (value != keys::CONTROL_VALUE).then_some(problem);
    }
    is_reserved(key).then_some(REMOVE_REMEDY)
}

fn missing_or_invalid(path: &str, value: &Value, problem: &str) -> FieldError {
    match value {
        Value::Null => FieldError::missing_field(path, problem),
        wrong => FieldError::with_raw_value(path, json_type_name(wrong), problem),
    }
}

/// The type of a value, for errors about values that may be long.
fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "an object",
        Value::Array(_) => "a list",
        Value::String(_) => "a text",
        _ => "a single value",
    }
}
