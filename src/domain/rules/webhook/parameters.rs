//! The parameters that a rule sends to its endpoint about each Pod: literal values, and fields of the Pod.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::api::field_path::{FieldPath, LAST_APPLIED, MapField};
use crate::api::podtransitionrule as api;
use crate::domain::pod::Pod;

/// A compiled parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledParameter {
    key: String,
    source: ParameterField,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ParameterField {
    Literal(String),
    Field(FieldPath),
    /// A field that endpoints may not get. Validation refuses it. For a rule that an earlier version stored, an empty
    /// text is sent.
    Withheld,
}

/// Compiles the list at `path`. The error names the field and the remedy.
pub fn compile_parameters(
    parameters: &[api::Parameter],
    path: &str,
) -> Result<Vec<CompiledParameter>, String> {
    let compiled = parameters.iter().enumerate().map(|(index, parameter)| {
        let source = if parameter.value.is_empty() {
            let field = parameter.value_from.as_ref();
            let field = field.and_then(|from| from.field_ref.as_ref());
            let path_of_parameter = format!("{path}[{index}]");
            let field = field
                .ok_or_else(|| format!("{path_of_parameter}: needs value or valueFrom.fieldRef"))?;
            let parsed = FieldPath::parse(&field.field_path);
            let parsed = parsed.map_err(|problem| {
                format!(
                    "{path_of_parameter}.valueFrom.fieldRef.fieldPath: {:?} {problem}",
                    field.field_path
                )
            })?;
            match parsed.check_handed_out() {
                Ok(()) => ParameterField::Field(parsed),
                Err(_) => ParameterField::Withheld,
            }
        } else {
            ParameterField::Literal(parameter.value.clone())
        };
        Ok(CompiledParameter {
            key: parameter.key.clone(),
            source,
        })
    });
    compiled.collect()
}

impl CompiledParameter {
    /// Whether the parameter needs a field that [`slim_pod_json`] does not have.
    pub fn needs_whole_pod(&self) -> bool {
        match &self.source {
            ParameterField::Literal(_) | ParameterField::Withheld => false,
            ParameterField::Field(FieldPath::Map(map) | FieldPath::Entry(map, _)) => {
                *map == MapField::Annotations
            }
            ParameterField::Field(FieldPath::Fields(fields)) => {
                let slim_fields = ["name", "namespace", "uid"];
                !matches!(&fields[..], [root, field] if root == "metadata" && slim_fields.contains(&field.as_str()))
            }
        }
    }

    /// The values of all parameters for a Pod, which is given as JSON. A missing field gives an empty text. The error
    /// names a path that leads through a value without fields.
    pub fn pod_values(
        parameters: &[CompiledParameter],
        pod: &Value,
    ) -> Result<BTreeMap<String, String>, String> {
        let value = |p: &CompiledParameter| match &p.source {
            ParameterField::Literal(text) => Ok((p.key.clone(), text.clone())),
            ParameterField::Withheld => Ok((p.key.clone(), String::new())),
            ParameterField::Field(path) => match field_value(path, pod) {
                Ok(value) => Ok((p.key.clone(), value)),
                Err(error) => Err(format!("parameter {}: {path}: {error}", p.key)),
            },
        };
        parameters.iter().map(value).collect()
    }
}

/// The fields of a Pod that the caches keep, as JSON.
pub fn slim_pod_json(pod: &Pod) -> Value {
    json!({ "metadata": {
        "name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid,
        "labels": pod.metadata.labels,
    } })
}

fn field_value(path: &FieldPath, pod: &Value) -> Result<String, String> {
    match path {
        FieldPath::Map(map) => Ok(map_lines(&pod["metadata"][map.as_str()])),
        FieldPath::Entry(map, key) => Ok(value_text(&pod["metadata"][map.as_str()][key])),
        FieldPath::Fields(fields) => {
            let mut value = pod;
            for name in fields {
                value = match value {
                    Value::Object(object) => object.get(name).unwrap_or(&Value::Null),
                    Value::Null => return Ok(String::new()),
                    _ => return Err(format!("there is no field {name} in a plain value or list")),
                };
            }
            Ok(value_text(value))
        }
    }
}

/// The text of a value: a string unchanged, null as an empty text, any other value as JSON with sorted keys.
fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => sort_keys(other).to_string(),
    }
}

fn sort_keys(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let sorted: BTreeMap<&String, Value> = object
                .iter()
                .map(|(k, v)| (k, self::sort_keys(v)))
                .collect();
            json!(sorted)
        }
        Value::Array(items) => items.iter().map(sort_keys).collect(),
        other => other.clone(),
    }
}

/// Sorted lines `key="value"`, quoted like in Go, as the downward API writes them. kubectl's last-applied annotation is
/// left out.
fn map_lines(map: &Value) -> String {
    let entries: BTreeMap<&String, &Value> = map.as_object().into_iter().flatten().collect();
    let lines: Vec<_> = entries
        .into_iter()
        .filter(|(key, _)| *key != LAST_APPLIED)
        .map(|(key, value)| format!("{key}={}", quote_go(&value_text(value))))
        .collect();
    lines.join("\n")
}

fn quote_go(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0b' => quoted.push_str("\\v"),
            '\x0c' => quoted.push_str("\\f"),
            c if c.is_ascii_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(c)); // writing to a String never fails
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn compiled(parameters: Value) -> Result<Vec<CompiledParameter>, String> {
        let parameters: Vec<api::Parameter> = serde_json::from_value(parameters).unwrap();
        compile_parameters(&parameters, "p")
    }

    fn from(path: &str) -> Value {
        json!({ "key": path, "valueFrom": { "fieldRef": { "fieldPath": path } } })
    }

    fn value(path: &str, pod: &Value) -> Result<String, String> {
        let parameters = compiled(json!([from(path)])).unwrap();
        CompiledParameter::pod_values(&parameters, pod)
            .map(|mut values| values.remove(path).unwrap())
    }

    fn pod() -> Value {
        json!({
            "metadata": { "name": "web-0", "uid": "u", "labels": { "b": "2", "a": "1" },
                "annotations": { "note": "say \"hi\"\n\u{1}é", (LAST_APPLIED): "hunter2" } },
            "spec": { "containers": [{ "name": "a", "env": [{ "name": "PASSWORD", "value": "hunter2" }] }], "nodeName": "n", "priority": 7, "hostNetwork": true, "tolerations": [{ "z": 1, "a": null }] },
            "status": { "podIP": "10.0.0.1", "startTime": null,
                "containerStatuses": [{ "lastState": { "terminated": { "message": "hunter2" } } }] },
        })
    }

    #[test]
    fn parameters_read_every_field_kind() {
        for (path, expected) in [
            ("metadata.name", "web-0"),
            ("metadata.uid", "u"),
            ("metadata.labels", "a=\"1\"\nb=\"2\""),
            ("metadata.annotations", "note=\"say \\\"hi\\\"\\n\\x01é\""),
            ("metadata.labels['b']", "2"),
            ("metadata.annotations['none']", ""),
            ("status.podIP", "10.0.0.1"),
            ("status.startTime", ""),
            ("spec.priority", "7"),
            ("spec.hostNetwork", "true"),
            ("spec.tolerations", r#"[{"a":null,"z":1}]"#),
        ] {
            assert_eq!(value(path, &pod()).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn secrets_of_rules_stored_earlier_are_sent_empty() {
        for path in [
            "spec",
            "spec.containers",
            "spec.containers.env",
            "metadata",
            "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']",
            "status",
            "status.containerStatuses",
        ] {
            assert_eq!(value(path, &pod()).unwrap(), "", "{path}");
            let compiled = compiled(json!([from(path)])).unwrap();
            assert!(!compiled[0].needs_whole_pod(), "{path}");
        }
    }

    #[test]
    fn missing_field_is_empty_but_path_through_scalar_fails() {
        for path in [
            "status.hostIP",
            "status.startTime.seconds",
            "spec.securityContext.b.c",
            "metadata.labels['x']",
        ] {
            assert_eq!(value(path, &pod()).unwrap(), "", "{path}");
            assert_eq!(value(path, &json!({})).unwrap(), "", "{path}");
        }
        for path in [
            "metadata.name.first",
            "spec.priority.x.y",
            "spec.tolerations.z",
        ] {
            let error = value(path, &pod()).unwrap_err();
            assert!(
                error.starts_with(&format!("parameter {path}: {path}: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn literal_takes_precedence_and_a_source_is_required() {
        let both = json!([{ "key": "k", "value": "v", "valueFrom": { "fieldRef": { "fieldPath": "[" } } }]);
        let values = CompiledParameter::pod_values(&compiled(both).unwrap(), &json!({})).unwrap();
        assert_eq!(values, BTreeMap::from([("k".to_owned(), "v".to_owned())]));
        for (parameter, error) in [
            (
                json!([{ "key": "k" }]),
                "p[0]: needs value or valueFrom.fieldRef",
            ),
            (
                json!([{ "key": "k", "valueFrom": {} }]),
                "p[0]: needs value",
            ),
            (
                json!([from("a")]),
                "p[0].valueFrom.fieldRef.fieldPath: \"a\" must begin with",
            ),
        ] {
            assert!(
                compiled(parameter).unwrap_err().starts_with(error),
                "{error}"
            );
        }
    }

    #[test]
    fn only_fields_outside_slim_pod_need_whole_pod() {
        let needs = |path: &str| compiled(json!([from(path)])).unwrap()[0].needs_whole_pod();
        for path in [
            "metadata.name",
            "metadata.uid",
            "metadata.namespace",
            "metadata.labels",
            "metadata.labels['a']",
        ] {
            assert!(!needs(path), "{path}");
        }
        for path in [
            "metadata.annotations",
            "metadata.annotations['a']",
            "metadata.generateName",
            "status.podIP",
        ] {
            assert!(needs(path), "{path}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(
                    "metadata|labels|annotations|spec|status|name|a",
                    inner,
                    0..4
                )
                .prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        /// For each Pod and each path, there is a value or an error.
        #[test]
        fn no_path_through_any_value_panics(path in "(metadata|spec|status|labels|name|a|\\[|\\]|'|\\.){0,8}", pod in any_json()) {
            if let Ok(path) = FieldPath::parse(&path) {
                let _ = field_value(&path, &pod);
            }
        }
    }
}
