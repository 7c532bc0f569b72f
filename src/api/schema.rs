//! Parts of the CRD schemas that the types alone do not express.

use k8s_openapi::api::core::v1::ObjectFieldSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The valid new values of an int-or-string field of a rule: a count, or a percentage from 0% to 100%. This
/// is a pattern and not CEL, because the API server estimates the cost of CEL on an int-or-string from the
/// largest request, and this estimate exceeds the budget.
pub(super) const PERCENT: &str = "^(100|[0-9]{1,2})%$";

/// A count (from 0) or a percentage ([`PERCENT`]).
pub(super) fn int_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "minimum": 0, "pattern": PERCENT })
}

/// A LabelSelector, replaced as a whole by server-side apply.
pub(super) fn label_selector(g: &mut SchemaGenerator) -> Schema {
    let mut schema = meta::LabelSelector::json_schema(g);
    schema.insert("x-kubernetes-map-type".into(), "atomic".into());
    if let Some(operator) = schema.pointer_mut("/properties/matchExpressions/items") {
        *operator = json!({
            "type": "object",
            "properties": {
                "key": { "type": "string", "description": "Label key." },
                "operator": {
                    "type": "string",
                    "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                    "description": "Relation of the label's value to values.",
                },
                "values": {
                    "type": "array",
                    "items": { "type": "string" },
                    "x-kubernetes-list-type": "atomic",
                    "description": "Non-empty for In and NotIn, empty otherwise.",
                },
            },
            "required": ["key", "operator"],
        });
    }
    schema
}

/// A reference to a field of a Pod.
pub(super) fn field_ref(g: &mut SchemaGenerator) -> Schema {
    let mut schema = ObjectFieldSelector::json_schema(g);
    schema.insert("x-kubernetes-map-type".into(), "atomic".into());
    schema
}

/// Standard conditions, merged by type.
pub(super) fn conditions(g: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": meta::Condition::json_schema(g),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// RFC 3339 text.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Plain text for a narrower Rust type: the schema does not check values that controllers report.
pub(super) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

/// Any value: a Pod template, whose fields depend on the API server's version.
pub(super) fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// An object of the core API, stored as it is written.
pub(super) fn core_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of [`core_object`]s.
pub(super) fn core_objects(g: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": core_object(g) })
}

/// CEL rules that judge an object on its own. The API server ignores a violation while the node that carries
/// the rule is unchanged, so each rule is placed as deep in the schema as possible. It does not ignore a rule
/// that fails to evaluate: each rule calls `has` before it reads a field, even a required field.
pub(super) fn rules(rules: &[(&str, &str)]) -> Value {
    rules
        .iter()
        .map(|(rule, message)| json!({ "rule": rule, "message": message }))
        .collect()
}

/// CEL rules on a large node, such as a whole spec. After an unrelated change of the node (of replicas, for
/// example) the API server would enforce the rule, so the rule itself accepts an object that broke the rule
/// before. Each entry has the predicate over the object called `{}`, and the message.
pub(super) fn forgiving_rules(rules: &[(&str, &str)]) -> Value {
    rules
        .iter()
        .map(|(predicate, message)| {
            let now = predicate.replace("{}", "self");
            let before = predicate.replace("{}", "oldSelf.value()");
            json!({
                "rule": format!("({now}) || (oldSelf.hasValue() && !({before}))"),
                "message": message,
                "optionalOldSelf": true,
            })
        })
        .collect()
}

/// Merges several sets of rules.
pub(super) fn join(sets: impl IntoIterator<Item = Value>) -> Value {
    sets.into_iter()
        .flat_map(|set| {
            if let Value::Array(rules) = set {
                rules
            } else {
                vec![]
            }
        })
        .collect()
}
