//! Validates claim templates: their names, and the fields without which the API server refuses a PVC.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{FieldError, FieldErrors};
use crate::api::labels;

pub(super) fn check_pvc_templates(templates: &[Value], errors: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for (index, template) in templates.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = format!("spec.volumeClaimTemplates[{index}]");
        let name = template["metadata"]["name"].as_str().unwrap_or_default();
        let problem = if name.is_empty() {
            Some("is required: it is the name of the volume that containers mount")
        } else if !names.insert(name) {
            Some(
                "is the name of an earlier entry of spec.volumeClaimTemplates: give each entry a name of its own",
            )
        } else {
            labels::dns_label_problem(name)
        };
        let named = format!("{path}.metadata.name");
        errors.extend(problem.map(|problem| match name {
            "" => FieldError::missing_field(named, problem),
            _ => FieldError::new(named, name, problem),
        }));
        let spec = &template["spec"];
        if spec["accessModes"].as_array().is_none_or(Vec::is_empty) {
            let problem = "is required: list at least one, such as ReadWriteOnce";
            errors.push(FieldError::missing_field(
                format!("{path}.spec.accessModes"),
                problem,
            ));
        }
        if spec["resources"]["requests"]["storage"].is_null() {
            let problem = "is required: set it to the size of the volume, such as 10Gi";
            let path = format!("{path}.spec.resources.requests.storage");
            errors.push(FieldError::missing_field(path, problem));
        }
    }
}
