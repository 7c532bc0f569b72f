//! Applies revisions of decorations to a Pod template (contract 1.4).
//!
//! | File | Purpose |
//! |---|---|
//! | `metadata` | labels and annotations |
//! | `containers` | init containers, changes of the set's own containers, and sidecars |
//! | `pod_spec` | volumes, affinity, tolerations, and the RuntimeClass |
//! | `json` | access to parts of a raw template |
//!
//! Templates are raw JSON, so that no field is lost, however new it is. A part of the template that has the wrong type
//! stays as it is: the API server refuses the Pod and names the field.

mod containers;
mod json;
mod metadata;
mod pod_spec;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::DecorationRevision;

/// Why a decoration can't be applied to a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// Name of the PodDecoration.
    pub decoration: String,
    /// The field of the PodDecoration, what is wrong, and the remedy.
    pub message: String,
}

/// Returns the Pod template with all decorations applied, ordered by weight and then by name. `template` is a raw
/// `PodTemplateSpec`. Its labels and annotations that record decorations are removed.
///
/// The *primary* containers are those of `template`. A sidecar of another decoration is none of them, even if it was
/// added earlier.
///
/// # Errors
/// If a decoration can't be applied to this template.
pub fn apply_decorations(
    template: &Value,
    decorations: &[&DecorationRevision],
) -> Result<Value, ApplyFailure> {
    let primary = containers::container_names(template);
    let mut decorated = template.clone();
    metadata::remove_marks(&mut decorated);
    let mut decorations = decorations.to_vec();
    decorations.sort_by_key(|revision| (revision.weight, &revision.decoration));
    for revision in decorations {
        apply_decoration(&mut decorated, revision, &primary).map_err(|message| ApplyFailure {
            decoration: revision.decoration.clone(),
            message,
        })?;
    }
    Ok(decorated)
}

/// Applies one decoration. `primary` has the names of the primary containers.
fn apply_decoration(
    pod: &mut Value,
    revision: &DecorationRevision,
    primary: &[String],
) -> Result<(), String> {
    let additions = &revision.template;
    metadata::apply_metadata(pod, &additions.metadata)?;
    containers::add_init_containers(pod, &additions.init_containers);
    containers::change_containers(pod, &additions.primary_containers, primary)?;
    containers::add_sidecars(pod, &additions.containers)?;
    pod_spec::add_volumes(pod, &additions.volumes);
    if let Some(affinity) = &additions.affinity {
        pod_spec::change_affinity(pod, affinity);
    }
    pod_spec::add_tolerations(pod, &additions.tolerations);
    if let Some(class) = &additions.runtime_class_name {
        pod_spec::set_runtime_class(pod, class);
    }
    Ok(())
}
