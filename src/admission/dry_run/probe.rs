//! The objects that are created in dry-run mode.

use serde_json::{Map, Value};

use super::field_paths::FieldPaths;

/// An object to create in dry-run mode.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRunProbe {
    /// Plural name of the resource in the API `v1`.
    pub resource: &'static str,
    /// Where the fields of the object are in the object that contains the template.
    pub paths: FieldPaths,
    /// The object. It has no name, but a `generateName`.
    pub object: Value,
}

/// The probe object of a template: its spec unchanged, and the metadata that is copied to objects. `None` if the template
/// has no spec.
pub fn probe_object(mut template: Value, kind: &str) -> Option<Value> {
    let spec = template.get_mut("spec").filter(|s| s.is_object())?.take();
    let mut metadata = Map::from_iter([("generateName".to_owned(), "dry-run-".into())]);
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template.pointer_mut(&format!("/metadata/{field}")) {
            metadata.insert(field.into(), value.take());
        }
    }
    // `json!` would copy the spec.
    let parts = [
        ("apiVersion", "v1".into()),
        ("kind", kind.into()),
        ("metadata", metadata.into()),
        ("spec", spec),
    ];
    let object = parts.map(|(name, part): (&str, Value)| (name.to_owned(), part));
    Some(Map::from_iter(object).into())
}
