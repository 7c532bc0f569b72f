//! Translates paths of fields in a probe into paths in the object that contains the template.

use crate::api::validation::FieldError;

/// Where the fields of a probe are in the object that contains the template.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldPaths {
    /// The template has the shape of the probe. Its fields are below this path.
    Below(String),
    /// The probe consists of parts of the object at this path.
    Parts {
        /// Path of the parts. It stands for all fields that no part contains.
        at: String,
        /// The path of each part in the probe, and its path in the object. The longest path that contains a field counts.
        parts: Vec<(String, String)>,
    },
}

impl FieldPaths {
    /// Path of the template.
    pub fn template(&self) -> &str {
        match self {
            FieldPaths::Below(at) | FieldPaths::Parts { at, .. } => at,
        }
    }

    /// An error in a field of the probe, with its path in the object.
    pub fn error_at(&self, field: &str, message: &str) -> FieldError {
        let (at, parts) = match self {
            FieldPaths::Below(at) => {
                return FieldError::missing_field(format!("{at}.{field}"), message);
            }
            FieldPaths::Parts { at, parts } => (at, parts),
        };
        let parts = parts.iter().filter_map(|(part, path)| {
            let rest = field.strip_prefix(part.as_str())?;
            let is_within = rest.is_empty() || rest.starts_with(['.', '[']);
            is_within.then_some((part.len(), path, rest))
        });
        match parts.max_by_key(|(length, ..)| *length) {
            Some((_, path, rest)) => FieldError::missing_field(format!("{path}{rest}"), message),
            None => {
                let problem = format!("a Pod that has it is refused: {field}: {message}");
                FieldError::missing_field(at, problem)
            }
        }
    }

    /// A text of the API server in which paths of the probe are replaced by paths in the object.
    pub fn translate_text(&self, text: String) -> String {
        let FieldPaths::Parts { parts, .. } = self else {
            return text;
        };
        let mut parts: Vec<_> = parts
            .iter()
            .filter(|(part, _)| text.contains(part))
            .collect();
        parts.sort_by_key(|(part, _)| std::cmp::Reverse(part.len()));
        parts
            .into_iter()
            .fold(text, |text, (part, path)| text.replace(part, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> FieldPaths {
        let part = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        FieldPaths::Parts {
            at: "spec.template".into(),
            parts: vec![
                part("spec.containers[1]", "spec.template.containers[0]"),
                part(
                    "spec.containers[0].env[2]",
                    "spec.template.primaryContainers[1].env[0]",
                ),
                part("spec.containers[0]", "spec.template.primaryContainers"),
                part("metadata.labels", "spec.template.metadata"),
            ],
        }
    }

    #[test]
    fn fields_of_parts_are_named_by_longest_path() {
        for (field, want) in [
            (
                "spec.containers[1].ports[0].name",
                "spec.template.containers[0].ports[0].name: no",
            ),
            (
                "spec.containers[0].env[2].name",
                "spec.template.primaryContainers[1].env[0].name: no",
            ),
            (
                "spec.containers[0].image",
                "spec.template.primaryContainers.image: no",
            ),
            ("metadata.labels", "spec.template.metadata: no"),
            (
                "spec.containers[10]",
                "spec.template: a Pod that has it is refused: spec.containers[10]: no",
            ),
        ] {
            assert_eq!(paths().error_at(field, "no").to_string(), want);
        }
        let below = FieldPaths::Below("spec.template".into());
        assert_eq!(
            below.error_at("spec.x", "no").to_string(),
            "spec.template.spec.x: no"
        );
    }

    #[test]
    fn paths_in_texts_are_translated() {
        let text =
            "unknown field \"spec.containers[1].newer\", spec.containers[0].env[2].name: hides";
        let want = "unknown field \"spec.template.containers[0].newer\", spec.template.primaryContainers[1].env[0].name: hides";
        assert_eq!(paths().translate_text(text.to_owned()), want);
        let below = FieldPaths::Below("spec.template".into());
        assert_eq!(below.translate_text(text.to_owned()), text);
    }
}
