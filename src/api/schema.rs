//! Pieces of the CRD schemas that the types alone do not say.

use k8s_openapi::api::core::v1::ObjectFieldSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// What an int-or-string field of a rule may newly be: a count, or a percentage from 0% to 100%. A pattern and not CEL,
/// because the cost of CEL on an int-or-string is estimated from the largest request and exceeds the budget.
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

/// Plain text where the Rust type is narrower: what controllers report is not checked by the schema.
pub(super) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

/// Anything at all: a Pod template, whose fields the API server's own version knows best.
pub(super) fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// An object of the core API, kept as it is written.
pub(super) fn core_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of [`core_object`]s.
pub(super) fn core_objects(g: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": core_object(g) })
}

/// CEL rules that judge an object by itself. The API server forgives a violation while the very node that carries the
/// rule is unchanged, so each rule sits as low in the schema as it can. It does not forgive a rule that fails to
/// evaluate: each asks `has` before it reads a field, required or not.
pub(super) fn rules(rules: &[(&str, &str)]) -> Value {
    rules
        .iter()
        .map(|(rule, message)| json!({ "rule": rule, "message": message }))
        .collect()
}

/// CEL rules over a wide node, such as a whole spec. An unrelated change of the node (replicas, say) would have the API
/// server judge it anew, so an object that broke the rule before is let through until it is mended.
/// Each entry is the predicate over the object called `{}`, and the message.
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

/// Several sets of rules as one.
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
