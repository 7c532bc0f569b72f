//! Errors of fields.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Something wrong with one field. Written as `spec.rules[0].name: "x": must be …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, such as `spec.rules[0].name`.
    pub path: String,
    /// The value as written in JSON; `None` where something is missing.
    pub value: Option<String>,
    /// What is wrong, and what to do instead.
    pub problem: String,
}

impl FieldError {
    /// A text that is wrong; it is quoted as in JSON, and cut where it is long.
    pub fn new(path: impl Into<String>, value: &str, problem: impl Into<String>) -> Self {
        const LONGEST: usize = 100;
        let cut: String = value.chars().take(LONGEST).collect();
        let dots = if cut.len() < value.len() { "…" } else { "" };
        FieldError::raw(path, format!("{:?}", format!("{cut}{dots}")), problem)
    }

    /// A value of another type, as written in JSON.
    pub fn raw(
        path: impl Into<String>,
        value: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        FieldError {
            path: path.into(),
            value: Some(value.into()),
            problem: problem.into(),
        }
    }

    /// Something that is not there.
    pub fn missing(path: impl Into<String>, problem: impl Into<String>) -> Self {
        FieldError {
            path: path.into(),
            value: None,
            problem: problem.into(),
        }
    }

    /// The same error of a field further down, below `parent`.
    pub fn below(mut self, parent: &str) -> Self {
        self.path = format!("{parent}.{}", self.path);
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}: {value}: {}", self.path, self.problem),
            None => write!(f, "{}: {}", self.path, self.problem),
        }
    }
}

/// All that is wrong with an object. Written as one line, separated by semicolons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors(pub Vec<FieldError>);

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for FieldErrors {}

impl From<FieldError> for FieldErrors {
    fn from(error: FieldError) -> Self {
        FieldErrors(vec![error])
    }
}

impl Deref for FieldErrors {
    type Target = Vec<FieldError>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for FieldErrors {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_field_the_value_and_the_remedy() {
        let mut errors = FieldErrors::from(
            FieldError::new("name", "a\"b\n", "must be plain").below("spec.rules[0]"),
        );
        errors.push(FieldError::missing("spec.selector", "is required"));
        errors.push(FieldError::raw("spec.replicas", "-1", "must be 0 or more"));
        assert_eq!(
            errors.to_string(),
            "spec.rules[0].name: \"a\\\"b\\n\": must be plain; spec.selector: is required; \
             spec.replicas: -1: must be 0 or more"
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let error = FieldError::new("a", &"é".repeat(200), "is long");
        assert_eq!(
            error.to_string(),
            format!("a: \"{}…\": is long", "é".repeat(100))
        );
    }
}
