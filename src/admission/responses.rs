//! Answers that the handlers of several kinds share.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::review::Verdict;
use crate::api::validation::FieldErrors;

/// Parses an object of the review. The error is the denial.
pub fn parse_object<T: DeserializeOwned>(raw: Option<&RawValue>, kind: &str) -> Result<T, Verdict> {
    let Some(raw) = raw else {
        let message = format!("the review carries no {kind}");
        return Err(Verdict::deny(400, "BadRequest", message));
    };
    serde_json::from_str(raw.get())
        .map_err(|e| Verdict::deny(422, "Invalid", format!("the {kind} can't be read: {e}")))
}

/// The denial of an invalid object, with all errors.
pub fn deny_invalid(kind: &str, name: &str, errors: &FieldErrors) -> Verdict {
    Verdict::deny(
        422,
        "Invalid",
        format!("{kind} {name} is invalid: {errors}"),
    )
}

/// The denial of a request that could not be checked. `why` is a clause.
pub fn deny_unchecked(what: &str, why: &str) -> Verdict {
    let message = format!("{what} can't be checked: {why}; try again in a moment");
    Verdict::deny(503, "ServiceUnavailable", message)
}
