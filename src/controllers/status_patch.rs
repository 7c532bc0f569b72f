//! Makes the merge patch of a status.

use serde::Serialize;
use serde_json::{Map, Value};

/// The merge patch that turns one status into the other; `None` if they are equal. If there is no current status, the
/// patch contains all fields that the wanted status serializes, including zeros.
pub fn status_patch<S: Serialize>(current: Option<&S>, wanted: &S) -> Option<Map<String, Value>> {
    let Ok(Value::Object(wanted)) = serde_json::to_value(wanted) else {
        return None;
    };
    let current = match current.map(serde_json::to_value) {
        Some(Ok(Value::Object(current))) => current,
        Some(_) => return None,
        None => Map::new(),
    };
    let patch = merge_patch(&current, &wanted);
    (!patch.is_empty()).then_some(patch)
}

fn merge_patch(current: &Map<String, Value>, wanted: &Map<String, Value>) -> Map<String, Value> {
    let removed = current.keys().filter(|key| !wanted.contains_key(*key));
    let mut patch: Map<String, Value> = removed.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in wanted {
        let change = match (current.get(key), value) {
            (Some(current), value) if current == value => continue,
            (Some(Value::Object(current)), Value::Object(wanted)) => {
                Value::Object(merge_patch(current, wanted))
            }
            _ => value.clone(),
        };
        patch.insert(key.clone(), change);
    }
    patch
}
