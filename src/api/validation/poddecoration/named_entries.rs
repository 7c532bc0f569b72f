//! Validates lists whose entries are identified by their names: containers and volumes.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api::validation::{FieldError, FieldErrors};

/// Adds an error for each entry of the list at `path` that has no name, or the name of an earlier entry.
pub(super) fn check_names(path: &str, entries: &[Value], errors: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    let problems = entries.iter().enumerate().filter_map(|(index, entry)| {
        let at = format!("{path}[{index}].name");
        let name = entry["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            let problem = "is required: give each entry a name of its own";
            return Some(FieldError::missing_field(at, problem));
        }
        (!names.insert(name)).then(|| {
            let problem = format!(
                "is the name of an earlier entry of {path}: give each entry a name of its own"
            );
            FieldError::new(at, name, problem)
        })
    });
    errors.extend(problems);
}
