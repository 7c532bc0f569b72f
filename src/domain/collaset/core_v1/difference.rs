//! Finds where two values differ, for messages.

use serde_json::Value;

/// Returns the path of the first difference below `path`, such as `spec.containers[app].env`; `None` if the values are
/// equal. List elements are named by their field `name` if they have one, otherwise by their index.
pub fn first_difference(path: &str, a: &Value, b: &Value) -> Option<String> {
    if a == b {
        return None;
    }
    let inner = match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<_> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.into_iter().find_map(|key| {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => first_difference(&path, a, b),
                    _ => Some(path),
                }
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            (0..).zip(a.iter().zip(b)).find_map(|(i, (a, b))| {
                let name = |v: &Value| v.get("name").and_then(Value::as_str).map(str::to_owned);
                let label = name(a).filter(|n| name(b).as_ref() == Some(n));
                let label = label.unwrap_or_else(|| i32::to_string(&i));
                first_difference(&format!("{path}[{label}]"), a, b)
            })
        }
        _ => None,
    };
    Some(inner.unwrap_or_else(|| path.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_leads_to_first_difference() {
        let a = json!({ "spec": { "containers": [{ "name": "app", "env": [{ "name": "A", "value": "1" }] }], "x": 1 } });
        for (b, path) in [
            (
                json!({ "spec": { "containers": [{ "name": "app", "env": [{ "name": "A", "value": "2" }] }], "x": 1 } }),
                "spec.containers[app].env[A].value",
            ),
            (
                json!({ "spec": { "containers": [], "x": 1 } }),
                "spec.containers",
            ),
            (
                json!({ "spec": { "containers": [{ "name": "web" }], "x": 1 } }),
                "spec.containers[0].env",
            ),
            (json!({}), "spec"),
        ] {
            assert_eq!(first_difference("", &a, &b).as_deref(), Some(path));
            assert_eq!(first_difference("", &b, &a).as_deref(), Some(path));
        }
        assert_eq!(first_difference("", &a, &a), None);
    }
}
