//! The normal form of a value: the form that all notations of the same meaning share.

use serde_json::{Map, Value, json};

use super::defaults::drop_defaults;
use super::{Field, Kind, struct_fields};
use crate::domain::quantity;

/// Returns the normal form; `None` if the value means the same as a missing one.
///
/// The normal form has no nulls, and no zero values of fields that are not pointers: empty strings, lists, maps and
/// structs, `false` and 0. An empty object or a zero behind a pointer has a meaning (`emptyDir: {}`,
/// `namespaceSelector: {}`, `runAsUser: 0`) and stays, and so do the elements of a list. Quantities become their value.
/// Fields that Kubernetes 1.22 did not know stay unchanged, unless they are null. Defaults of the API server are
/// removed, see `defaults`.
pub fn normal_form(kind: &Kind, value: &Value) -> Option<Value> {
    match (kind, value) {
        (_, Value::Null) => None,
        (Kind::Pointer(inner), value) => Some(normal_present_value(inner, value)),
        (Kind::Text, Value::String(text)) if text.is_empty() => None,
        (Kind::Bool, Value::Bool(false)) => None,
        (Kind::Int | Kind::IntOrString, Value::Number(n)) if n.as_i64() == Some(0) => None,
        (Kind::Quantity, value) => match quantity::nanos(value) {
            Some(0) => None,
            Some(nanos) => Some(Value::String(format!("{nanos}n"))),
            None => Some(value.clone()),
        },
        (Kind::List(inner), Value::Array(items)) => (!items.is_empty()).then(|| {
            items
                .iter()
                .map(|item| normal_present_value(inner, item))
                .collect()
        }),
        (Kind::Map(inner), Value::Object(entries)) => non_empty_object(
            entries
                .iter()
                .map(|(key, value)| (key.clone(), normal_present_value(inner, value)))
                .collect(),
        ),
        (Kind::Struct(name), Value::Object(entries)) => {
            let fields = entries
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), normal_field(name, key, value)?)));
            let mut fields = fields.collect();
            drop_defaults(name, &mut fields);
            non_empty_object(fields)
        }
        (_, other) => Some(other.clone()),
    }
}

/// Returns `ours` without the fields that Kubernetes 1.22 did not know and that `stored` does not have. List elements
/// are compared by their index.
pub fn without_newer_fields(kind: &Kind, ours: &Value, stored: &Value) -> Value {
    match (kind, ours) {
        (Kind::Pointer(inner), ours) => without_newer_fields(inner, ours, stored),
        (Kind::List(inner), Value::Array(items)) => (0..)
            .zip(items)
            .map(|(i, item)| {
                without_newer_fields(inner, item, stored.get::<usize>(i).unwrap_or(&Value::Null))
            })
            .collect(),
        (Kind::Struct(name), Value::Object(entries)) => entries
            .iter()
            .filter_map(|(key, value)| {
                let stored_value = stored.get(key);
                match known_field(name, key) {
                    Some(field) => {
                        let stored_value = stored_value.unwrap_or(&Value::Null);
                        Some((
                            key.clone(),
                            without_newer_fields(&field.kind, value, stored_value),
                        ))
                    }
                    None => stored_value.map(|_| (key.clone(), value.clone())),
                }
            })
            .collect::<Map<_, _>>()
            .into(),
        (_, other) => other.clone(),
    }
}

fn known_field(name: &str, key: &str) -> Option<&'static Field> {
    struct_fields(name).iter().find(|field| field.name == key)
}

fn normal_field(name: &str, key: &str, value: &Value) -> Option<Value> {
    match known_field(name, key) {
        Some(field) => normal_form(&field.kind, value),
        None => (!value.is_null()).then(|| value.clone()),
    }
}

/// Returns the normal form of a value that can't be missing: in a list, in a map, behind a pointer.
fn normal_present_value(kind: &Kind, value: &Value) -> Value {
    normal_form(kind, value).unwrap_or_else(|| match kind {
        Kind::Text => json!(""),
        Kind::Bool => json!(false),
        Kind::Int | Kind::IntOrString => json!(0),
        Kind::Quantity => json!("0n"),
        Kind::Time | Kind::Pointer(_) => Value::Null,
        Kind::List(_) => json!([]),
        Kind::Map(_) | Kind::Struct(_) => json!({}),
    })
}

fn non_empty_object(entries: Map<String, Value>) -> Option<Value> {
    (!entries.is_empty()).then_some(Value::Object(entries))
}

#[cfg(test)]
mod tests {
    use super::super::POD_TEMPLATE;
    use super::*;

    fn spec(spec: Value) -> Option<Value> {
        normal_form(&POD_TEMPLATE, &json!({ "spec": spec }))
    }

    #[test]
    fn zero_values_read_as_absent() {
        for zero in [
            json!({ "hostNetwork": false, "nodeName": "", "nodeSelector": {}, "tolerations": [], "affinity": null }),
            json!({ "overhead": {}, "containers": null }),
        ] {
            assert_eq!(spec(zero.clone()), None, "{zero}");
        }
        assert_eq!(
            normal_form(
                &POD_TEMPLATE,
                &json!({ "metadata": { "creationTimestamp": null } })
            ),
            None
        );
    }

    #[test]
    fn empty_behind_a_pointer_and_elements_of_lists_stay() {
        for value in [
            json!({ "terminationGracePeriodSeconds": 0 }),
            json!({ "enableServiceLinks": false }),
            json!({ "affinity": {} }),
            json!({ "volumes": [{ "emptyDir": { "medium": "Memory" } }, {}] }),
            json!({ "containers": [{ "args": ["", "a"] }] }),
            json!({ "nodeSelector": { "a": "" } }),
        ] {
            assert_eq!(spec(value.clone()), Some(json!({ "spec": value })));
        }
    }

    #[test]
    fn mistyped_or_unknown_value_stays() {
        for value in [
            json!({ "hostNetwork": "false" }),
            json!({ "newer": { "empty": [] } }),
            json!({ "containers": [{ "resources": { "limits": { "cpu": "lots" } } }] }),
        ] {
            assert_eq!(spec(value.clone()), Some(json!({ "spec": value })));
        }
    }

    #[test]
    fn newer_field_is_dropped_only_if_stored_lacks_it() {
        let ours = json!({ "spec": {
            "hostUsers": false,
            "initContainers": [{ "name": "a", "restartPolicy": "Always" }, { "name": "b", "restartPolicy": "Always" }],
        } });
        let stored = json!({ "spec": { "initContainers": [{ "name": "a" }, { "name": "b", "restartPolicy": "Never" }] } });
        assert_eq!(
            without_newer_fields(&POD_TEMPLATE, &ours, &stored),
            json!({ "spec": { "initContainers": [{ "name": "a" }, { "name": "b", "restartPolicy": "Always" }] } })
        );
    }
}
