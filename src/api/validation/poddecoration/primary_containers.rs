//! Validates changes of the containers of CollaSets.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api::poddecoration::{PrimaryContainerPatch, TargetPolicy};
use crate::api::validation::values::allowed_values;
use crate::api::validation::{FieldError, FieldErrors};

pub(super) fn check_primary_containers(
    patches: &[PrimaryContainerPatch],
    errors: &mut FieldErrors,
) {
    for (index, patch) in patches.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = format!("spec.template.primaryContainers[{index}]");
        check_target(&path, patch, errors);
        for (index, variable) in patch.env.iter().enumerate() {
            check_env_name(&format!("{path}.env[{index}].name"), variable, errors);
        }
        check_mounts(&path, &patch.volume_mounts, errors);
    }
}

fn check_target(path: &str, patch: &PrimaryContainerPatch, errors: &mut FieldErrors) {
    match patch.effective_target_policy() {
        TargetPolicy::Other(text) => {
            let path = format!("{path}.targetPolicy");
            errors.push(FieldError::new(
                path,
                &text,
                allowed_values(TargetPolicy::KNOWN),
            ));
        }
        TargetPolicy::ByName if patch.name.as_deref().unwrap_or_default().is_empty() => {
            let problem = "is required with targetPolicy ByName: set it to the name of a container, or choose All, First \
                           or Last";
            errors.push(FieldError::missing_field(format!("{path}.name"), problem));
        }
        _ => {}
    }
}

fn check_env_name(path: &str, variable: &Value, errors: &mut FieldErrors) {
    let name = variable["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        let problem = "is required: set it to the name of the environment variable";
        errors.push(FieldError::missing_field(path, problem));
        return;
    }
    let is_allowed = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    if !name.bytes().all(is_allowed) {
        let problem = "must have only printable ASCII characters other than '='";
        errors.push(FieldError::new(path, name, problem));
    }
}

fn check_mounts(path: &str, mounts: &[Value], errors: &mut FieldErrors) {
    let mut mount_paths = BTreeSet::new();
    for (index, mount) in mounts.iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        if text(mount, "name").is_none() {
            let problem = "is required: set it to the name of a volume";
            errors.push(FieldError::missing_field(format!("{path}.name"), problem));
        }
        let at = format!("{path}.mountPath");
        match text(mount, "mountPath") {
            None => {
                let problem = "is required: set it to the path in the container, such as /data";
                errors.push(FieldError::missing_field(at, problem));
            }
            Some(mount_path) if !mount_paths.insert(mount_path) => {
                let problem =
                    "is the path of an earlier mount: mount each volume at a path of its own";
                errors.push(FieldError::new(at, mount_path, problem));
            }
            Some(_) => {}
        }
        check_sub_paths(&path, mount, errors);
    }
}

fn check_sub_paths(path: &str, mount: &Value, errors: &mut FieldErrors) {
    let fields = ["subPath", "subPathExpr"];
    let [sub_path, expression] = fields.map(|field| text(mount, field));
    if sub_path.is_some()
        && let Some(expression) = expression
    {
        let problem = "can't be set together with subPath: remove one of them";
        errors.push(FieldError::new(
            format!("{path}.subPathExpr"),
            expression,
            problem,
        ));
    }
    for (field, value) in fields.into_iter().zip([sub_path, expression]) {
        let Some(value) = value else {
            continue;
        };
        let problem = if value.starts_with('/') {
            "must be relative to the volume: remove the leading '/'"
        } else if value.split('/').any(|part| part == "..") {
            "must not leave the volume: remove '..'"
        } else {
            continue;
        };
        errors.push(FieldError::new(format!("{path}.{field}"), value, problem));
    }
}

/// A text field that is not empty.
fn text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object[field].as_str().filter(|text| !text.is_empty())
}
