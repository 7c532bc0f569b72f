//! CollaSets.

use json_patch::{Patch, PatchOperation};
use operating::api::collaset::CollaSet;
use operating::api::defaults;
use operating::api::validation::collaset::{validate, validate_change, warnings};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::read;

/// Adds defaults and runs validation, which must end.
pub fn run(data: &[u8]) {
    let Some(mut object) = read::<Value>(data) else {
        return;
    };
    let old = serde_json::from_value::<CollaSet>(object.clone());
    defaulted::<CollaSet>(&mut object, defaults::default_collaset);
    let (Ok(old), Ok(new)) = (old, serde_json::from_value::<CollaSet>(object)) else {
        return;
    };
    let _ = validate("fuzz", &new.spec);
    let _ = validate_change(&old.spec, &new.spec);
    for warning in warnings(Some(&old.spec), &new.spec) {
        assert!(!warning.is_empty());
    }
}

/// Adds the defaults to an object that can be read. Afterwards the object can still be read, and no default is missing.
pub fn defaulted<T: DeserializeOwned>(
    object: &mut Value,
    defaults: fn(&Value) -> Vec<PatchOperation>,
) {
    let patch = Patch(defaults(object));
    if serde_json::from_value::<T>(object.clone()).is_err() {
        return;
    }
    if let Err(error) = json_patch::patch(object, &patch) {
        panic!("defaults {patch} of {object}: {error}");
    }
    assert_eq!(defaults(object), [], "defaults of defaults of {object}");
    if let Err(error) = serde_json::from_value::<T>(object.clone()) {
        panic!("{object} with defaults: {error}");
    }
}
