//! The objects that a running Kuperator left behind when it was stopped: `kuperator-midway.json`, a dump of one
//! namespace without `managedFields`.

use serde_json::Value;

/// All objects of the dump.
pub fn objects() -> Vec<Value> {
    serde_json::from_str(include_str!("kuperator-midway.json")).unwrap()
}

pub fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}
