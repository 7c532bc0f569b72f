//! Checks of single values that the validation of several kinds shares.

use super::{FieldError, FieldErrors};

/// Adds an error if a number is below 0.
pub(super) fn check_non_negative(value: Option<i32>, path: &str, errors: &mut FieldErrors) {
    if let Some(value) = value.filter(|v| *v < 0) {
        errors.push(FieldError::with_raw_value(
            path,
            value.to_string(),
            "must be 0 or more",
        ));
    }
}

/// The problem of a value that is none of `known`.
pub(super) fn allowed_values(known: &[&str]) -> String {
    format!("must be {}", known.join(" or "))
}
