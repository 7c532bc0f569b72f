//! Writes JSON as `encoding/json` of Go does for a value of the types of Kubernetes 1.22.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::{Field, Kind, struct_fields};
use crate::domain::quantity;

/// Returns the JSON. Fields are in the order of their declaration, map keys are sorted, quantities are canonical, and
/// `<`, `>` and `&` are escaped. Fields that Kubernetes 1.22 did not know are left out.
pub fn go_json(kind: &Kind, value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, kind, value);
    out
}

fn write_value(out: &mut String, kind: &Kind, value: &Value) {
    match (kind, value) {
        (Kind::Struct(name), value) => write_struct(out, struct_fields(name), value),
        (Kind::Quantity, value) => {
            let text = quantity::canonical(value);
            write_text(out, text.as_deref().or(value.as_str()).unwrap_or("0"));
        }
        (Kind::Text, Value::Null) => out.push_str("\"\""),
        (Kind::Bool, Value::Null) => out.push_str("false"),
        (Kind::Int | Kind::IntOrString, Value::Null) => out.push('0'),
        (Kind::Pointer(inner), value) if !value.is_null() => write_value(out, inner, value),
        (Kind::List(inner), Value::Array(items)) => {
            join(out, ['[', ']'], items, |out, item| {
                write_value(out, inner, item)
            });
        }
        (Kind::Map(inner), Value::Object(entries)) => {
            let sorted: BTreeMap<_, _> = entries.iter().collect();
            join(out, ['{', '}'], sorted, |out, (key, value)| {
                write_text(out, key);
                out.push(':');
                write_value(out, inner, value);
            });
        }
        (_, Value::String(text)) => write_text(out, text),
        (_, other) => out.push_str(&other.to_string()),
    }
}

fn write_struct(out: &mut String, fields: &[Field], value: &Value) {
    let written = fields.iter().filter_map(|field| {
        let value = value.get(field.name).unwrap_or(&Value::Null);
        (field.always || !is_omitted(&field.kind, value)).then_some((field, value))
    });
    join(out, ['{', '}'], written, |out, (field, value)| {
        write_text(out, field.name);
        out.push(':');
        write_value(out, &field.kind, value);
    });
}

/// Whether `omitempty` leaves the value out. It has no effect on a struct.
fn is_omitted(kind: &Kind, value: &Value) -> bool {
    match (kind, value) {
        (Kind::Struct(_) | Kind::Quantity | Kind::Time | Kind::IntOrString, _) => false,
        (_, Value::Null) => true,
        (Kind::Pointer(_), _) => false,
        (_, Value::Bool(value)) => !value,
        (_, Value::Number(number)) => number.as_i64() == Some(0),
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        (_, Value::Object(entries)) => entries.is_empty(),
    }
}

fn join<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push(open);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(close);
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                // A write to a String can't fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::{POD_TEMPLATE, PVC};
    use super::*;

    #[test]
    fn structs_are_written_even_when_they_are_empty() {
        assert_eq!(
            go_json(&PVC, &json!({ "metadata": { "name": "data" } })),
            r#"{"metadata":{"name":"data","creationTimestamp":null},"spec":{"resources":{}},"status":{}}"#
        );
        assert_eq!(
            go_json(&POD_TEMPLATE, &json!({ "spec": { "containers": [{}] } })),
            r#"{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"","resources":{}}]}}"#
        );
    }

    /// Each line has a value and the output of `encoding/json` from a Go program with k8s.io/api v0.22.6.
    #[test]
    fn go_json_equals_output_of_go() {
        for line in include_str!("golden-1.22.jsonl").lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let kind = if line["kind"] == "pvc" {
                PVC
            } else {
                POD_TEMPLATE
            };
            assert_eq!(go_json(&kind, &line["value"]), line["go"].as_str().unwrap());
        }
    }

    #[test]
    fn text_is_escaped_for_html() {
        let mut out = String::new();
        write_text(&mut out, "<a>&\"\\\n\u{8}\u{2028}é");
        assert_eq!(out, r#""\u003ca\u003e\u0026\"\\\n\u0008\u2028é""#);
    }
}
