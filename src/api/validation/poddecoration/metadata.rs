//! Validates labels and annotations that a PodDecoration sets.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use super::selectors;
use crate::api::poddecoration::{MetadataPatch, PatchPolicy, PodDecorationSpec};
use crate::api::reserved_labels::is_reserved;
use crate::api::validation::values::allowed_values;
use crate::api::validation::{FieldError, FieldErrors};
use crate::api::{keys, labels};

const REMOVE_REMEDY: &str =
    "is reserved: it is set on single Pods, by CollaSet or for it; remove it";

pub(super) fn check_metadata(
    patches: &[MetadataPatch],
    spec: &PodDecorationSpec,
    errors: &mut FieldErrors,
) {
    let selected = selected_keys(spec);
    for (index, patch) in patches.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = format!("spec.template.metadata[{index}]");
        let policy = patch.patch_policy.as_ref();
        if let Some(PatchPolicy::Other(text)) = policy
            && !text.is_empty()
        {
            let path = format!("{path}.patchPolicy");
            errors.push(FieldError::new(
                path,
                text,
                allowed_values(PatchPolicy::KNOWN),
            ));
        }
        let is_merged = policy == Some(&PatchPolicy::MergePatchJson);
        if is_merged && !patch.labels.is_empty() {
            let problem = "must be empty with patchPolicy MergePatchJson, because the value of a label is no JSON document: \
                           move the labels to an entry with patchPolicy Retain or Overwrite";
            errors.push(FieldError::missing_field(format!("{path}.labels"), problem));
        }
        for (key, value) in &patch.labels {
            check_label(
                &format!("{path}.labels[{key}]"),
                key,
                value,
                &selected,
                errors,
            );
        }
        for (key, value) in &patch.annotations {
            let path = format!("{path}.annotations[{key}]");
            check_annotation(&path, key, value, is_merged, errors);
        }
    }
}

/// The path of the first use of each label key in the selectors of the PodDecoration.
fn selected_keys(spec: &PodDecorationSpec) -> BTreeMap<&str, String> {
    let mut selected = BTreeMap::new();
    for (path, selector) in selectors::selectors(spec) {
        for (_, key) in selectors::keys_of(selector) {
            selected.entry(key).or_insert_with(|| path.clone());
        }
    }
    selected
}

fn check_label(
    path: &str,
    key: &str,
    value: &str,
    selected: &BTreeMap<&str, String>,
    errors: &mut FieldErrors,
) {
    if let Some(problem) = labels::key_problem(key) {
        errors.push(FieldError::new(path, key, format!("the key {problem}")));
    }
    if let Some(problem) = labels::value_problem(value) {
        errors.push(FieldError::new(path, value, problem));
    }
    if is_reserved(key) || key == keys::CONTROL || key.starts_with(keys::DECORATION_DOMAIN) {
        errors.push(FieldError::new(path, value, REMOVE_REMEDY));
    }
    if let Some(selector) = selected.get(key) {
        let problem = format!(
            "can't be set, because {selector} of this PodDecoration reads the label: a decoration must not change which \
             Pods it selects; set another label, or select by another one"
        );
        errors.push(FieldError::new(path, value, problem));
    }
}

fn check_annotation(path: &str, key: &str, value: &str, is_merged: bool, errors: &mut FieldErrors) {
    // Unlike the key of a label, that of an annotation may have a prefix in upper case.
    if let Some(problem) = labels::key_problem(&key.to_lowercase()) {
        errors.push(FieldError::new(path, key, format!("the key {problem}")));
    }
    if key == keys::LAST_POD_STATUS || key.starts_with(keys::DECORATION_DOMAIN) {
        errors.push(FieldError::new(path, value, REMOVE_REMEDY));
    }
    if is_merged && let Err(error) = serde_json::from_str::<IgnoredAny>(value) {
        let problem = format!(
            "must be a JSON document with patchPolicy MergePatchJson, such as {{\"key\": \"value\"}} ({error}): correct it, \
             or set patchPolicy Overwrite"
        );
        errors.push(FieldError::new(path, value, problem));
    }
}
