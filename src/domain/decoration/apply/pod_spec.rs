//! Volumes, affinity, tolerations, and the RuntimeClass.

use serde_json::Value;

use super::json::{list_at, merge_items, object_at, text};
use crate::api::poddecoration::AffinityPatch;

const NODE_SELECTOR_TERMS: &[&str] = &[
    "spec",
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];

/// Adds volumes. A volume replaces the volume of the same name.
pub(super) fn add_volumes(pod: &mut Value, volumes: &[Value]) {
    let name = |volume: &Value| text(volume, "name").map(str::to_owned);
    merge_items(pod, &["spec", "volumes"], volumes, name);
}

/// Replaces the affinity if `overrideAffinity` is given, and then appends node selector terms.
///
/// Terms are alternatives. Therefore an appended term admits more nodes if the Pod has terms already.
pub(super) fn change_affinity(pod: &mut Value, patch: &AffinityPatch) {
    if !patch.override_affinity.is_null()
        && let Some(spec) = object_at(pod, &["spec"])
    {
        spec.insert("affinity".to_owned(), patch.override_affinity.clone());
    }
    if patch.node_selector_terms.is_empty() {
        return;
    }
    if let Some(terms) = list_at(pod, NODE_SELECTOR_TERMS) {
        terms.extend(patch.node_selector_terms.iter().cloned());
    }
}

/// Adds tolerations. A toleration replaces that of the same key and effect.
pub(super) fn add_tolerations(pod: &mut Value, tolerations: &[Value]) {
    let field = |toleration: &Value, key| text(toleration, key).unwrap_or_default().to_owned();
    let key = |toleration: &Value| (field(toleration, "key"), field(toleration, "effect"));
    merge_items(pod, &["spec", "tolerations"], tolerations, key);
}

/// Sets the RuntimeClass, unless the name is empty.
pub(super) fn set_runtime_class(pod: &mut Value, class: &str) {
    if class.is_empty() {
        return;
    }
    if let Some(spec) = object_at(pod, &["spec"]) {
        spec.insert("runtimeClassName".to_owned(), class.into());
    }
}
