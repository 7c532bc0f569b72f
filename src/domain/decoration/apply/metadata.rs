//! Labels and annotations.

use serde_json::{Map, Value};

use super::json::object_at;
use crate::api::keys;
use crate::api::poddecoration::{MetadataPatch, PatchPolicy};
use crate::api::reserved_labels::is_reserved;

/// Removes labels and annotations that record decorations. A template may contain them if somebody copied it from a Pod.
pub(super) fn remove_marks(pod: &mut Value) {
    for kind in ["labels", "annotations"] {
        let entries = pod.get_mut("metadata").and_then(|m| m.get_mut(kind));
        if let Some(entries) = entries.and_then(Value::as_object_mut) {
            entries.retain(|key, _| !key.starts_with(keys::DECORATION_DOMAIN));
        }
    }
}

/// Applies changes of labels and annotations in their order.
///
/// # Errors
/// If a change sets a key that belongs to Operating, has an unknown policy, or merges what is not JSON.
pub(super) fn apply_metadata(pod: &mut Value, patches: &[MetadataPatch]) -> Result<(), String> {
    for (i, patch) in patches.iter().enumerate() {
        let path = format!("spec.template.metadata[{i}]");
        let policy =
            policy_of(patch).map_err(|problem| format!("{path}.patchPolicy: {problem}"))?;
        for (key, value) in &patch.labels {
            let path = format!("{path}.labels[{key}]");
            check_key(is_reserved_label(key), &path)?;
            if let Some(labels) = object_at(pod, &["metadata", "labels"]) {
                set_label(labels, policy, key, value);
            }
        }
        for (key, value) in &patch.annotations {
            let path = format!("{path}.annotations[{key}]");
            check_key(is_reserved_annotation(key), &path)?;
            if let Some(annotations) = object_at(pod, &["metadata", "annotations"]) {
                set_annotation(annotations, policy, key, value)
                    .map_err(|problem| format!("{path}: {problem}"))?;
            }
        }
    }
    Ok(())
}

/// The policy of a patch; Retain when absent or empty.
fn policy_of(patch: &MetadataPatch) -> Result<&PatchPolicy, String> {
    match &patch.patch_policy {
        None => Ok(&PatchPolicy::Retain),
        Some(PatchPolicy::Other(text)) if text.is_empty() => Ok(&PatchPolicy::Retain),
        Some(PatchPolicy::Other(text)) => Err(format!(
            "{text:?} is not known to this version: set Retain, Overwrite or MergePatchJson"
        )),
        Some(policy) => Ok(policy),
    }
}

/// Whether a label belongs to Operating on each Pod, so that no decoration may set it.
fn is_reserved_label(key: &str) -> bool {
    is_reserved(key) || key == keys::CONTROL || key.starts_with(keys::DECORATION_DOMAIN)
}

fn is_reserved_annotation(key: &str) -> bool {
    key == keys::LAST_POD_STATUS || key.starts_with(keys::DECORATION_DOMAIN)
}

fn check_key(is_reserved: bool, path: &str) -> Result<(), String> {
    if is_reserved {
        return Err(format!(
            "{path}: the key is reserved for Operating, which sets it on single Pods: remove it"
        ));
    }
    Ok(())
}

// Labels have no JSON to merge, so that MergePatchJson is like Retain. `labels::decorated_labels` does the same.
fn set_label(labels: &mut Map<String, Value>, policy: &PatchPolicy, key: &str, value: &str) {
    match policy {
        PatchPolicy::Overwrite => set(labels, key, value),
        _ => retain(labels, key, value),
    }
}

fn set_annotation(
    annotations: &mut Map<String, Value>,
    policy: &PatchPolicy,
    key: &str,
    value: &str,
) -> Result<(), String> {
    match policy {
        PatchPolicy::Overwrite => set(annotations, key, value),
        PatchPolicy::MergePatchJson => {
            let present = annotations.get(key).and_then(Value::as_str);
            let merged = match present.unwrap_or_default() {
                "" => value.to_owned(),
                present => merge_json(present, value)?,
            };
            set(annotations, key, &merged);
        }
        _ => retain(annotations, key, value),
    }
    Ok(())
}

fn set(entries: &mut Map<String, Value>, key: &str, value: &str) {
    entries.insert(key.to_owned(), value.into());
}

fn retain(entries: &mut Map<String, Value>, key: &str, value: &str) {
    if !entries.contains_key(key) {
        set(entries, key, value);
    }
}

/// Merges a patch into the JSON of an annotation (RFC 7386).
fn merge_json(present: &str, patch: &str) -> Result<String, String> {
    let patch: Value = serde_json::from_str(patch).map_err(|error| {
        format!(
            "the value is not JSON ({error}), which patchPolicy MergePatchJson requires: correct it, or set patchPolicy \
             Overwrite"
        )
    })?;
    let mut merged: Value = serde_json::from_str(present).map_err(|error| {
        format!(
            "patchPolicy MergePatchJson can't merge into the annotation of the Pod, whose value is not JSON ({error}): \
             correct the annotation in the template of the CollaSet or in the decoration that sets it, or set patchPolicy \
             Overwrite"
        )
    })?;
    json_patch::merge(&mut merged, &patch);
    Ok(merged.to_string())
}
