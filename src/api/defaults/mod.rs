//! Defaults that admission writes into objects, as patches of the raw JSON: deserializing and serializing a
//! type would drop fields that this version does not know.

mod collaset;
mod operationjob;
mod poddecoration;
mod podtransitionrule;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

pub use collaset::default_collaset;
pub use operationjob::{ACTIVE_DEADLINE_SECONDS, TTL_SECONDS_AFTER_FINISHED, default_operationjob};
pub use poddecoration::default_poddecoration;
pub use podtransitionrule::default_podtransitionrule;

/// Adds `value` as `key` of the object at `path`, if there is no such key or it is null.
fn add_if_absent(object: &Value, path: &[&str], key: &str, value: Value) -> Option<PatchOperation> {
    let missing = object.as_object()?.get(key).is_none_or(Value::is_null);
    missing.then(|| {
        let path = PointerBuf::from_tokens(path.iter().copied().chain([key]));
        PatchOperation::Add(AddOperation { path, value })
    })
}
