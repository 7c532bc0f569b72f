//! Interprets the answers of the API server to a dry run.

use kube::core::Status;

use super::field_paths::FieldPaths;
use crate::api::validation::{FieldError, FieldErrors, truncate_value};

/// Longest text of the API server that is passed on, in characters.
const MAX_TEXT_CHARS: usize = 1_000;

/// The meaning of a refusal of a probe.
#[derive(Clone, Debug, PartialEq)]
pub enum DryRunFinding {
    /// The template is invalid: no object can ever be created from it.
    Wrong(FieldErrors),
    /// The refusal may be temporary: a quota, a policy, a ServiceAccount that does not exist yet. The text is the
    /// message.
    Doubtful(String),
    /// The API server gave no judgement; a clause that says why.
    Unknown(String),
}

/// Classifies a refusal of the API server.
pub fn classify_refusal(status: &Status, paths: &FieldPaths) -> DryRunFinding {
    let message = truncate_value(&status.message, MAX_TEXT_CHARS);
    let doubtful = || DryRunFinding::Doubtful(message.clone().into_owned());
    // Another webhook refused the probe. A webhook without support for dry run gives the same message, with the code
    // 400 of the API server.
    if message.starts_with("admission webhook ") {
        return doubtful();
    }
    match status.code {
        // A webhook that Pods or PVCs need does not answer. Until then users must be able to change the template, above
        // all to roll back.
        500 if message.contains("failed calling webhook") => doubtful(),
        422 => {
            let causes = status.details.iter().flat_map(|d| &d.causes);
            let mut errors = FieldErrors::default();
            errors.extend(causes.filter(|c| !c.field.is_empty()).map(|cause| {
                let field = truncate_value(&cause.field, MAX_TEXT_CHARS);
                let message = truncate_value(&cause.message, MAX_TEXT_CHARS);
                paths.error_at(&field, &message)
            }));
            // A 422 without a field comes from a ValidatingAdmissionPolicy.
            if errors.is_empty() {
                doubtful()
            } else {
                DryRunFinding::Wrong(errors)
            }
        }
        400 | 413 => {
            DryRunFinding::Wrong(FieldError::missing_field(paths.template(), message).into())
        }
        403 | 404 => doubtful(),
        code => DryRunFinding::Unknown(format!(
            "the API server answers {code} to a dry-run, {message}"
        )),
    }
}

/// The text of a `Warning` header such as `299 - "unknown field \"spec.x\""`.
pub fn parse_warning_header(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?;
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(inner.len());
    let mut escaped = false;
    for c in inner.chars() {
        escaped = c == '\\' && !escaped;
        if !escaped {
            text.push(c);
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use serde_json::{Value, json};

    use super::*;

    fn below(path: &str) -> FieldPaths {
        FieldPaths::Below(path.to_owned())
    }

    fn status(code: u16, message: &str, causes: Value) -> Status {
        let details = json!({ "kind": "Pod", "causes": causes });
        serde_json::from_value(
            json!({ "status": "Failure", "code": code, "message": message, "details": details }),
        )
        .unwrap()
    }

    #[test]
    fn wrong_fields_are_named_by_path_in_template() {
        let causes = json!([
            { "reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].image" },
            { "reason": "FieldValueInvalid", "message": "Invalid value: \"a b\": no", "field": "metadata.labels" },
            { "message": "of a policy" },
        ]);
        let DryRunFinding::Wrong(errors) =
            classify_refusal(&status(422, "m", causes), &below("spec.template"))
        else {
            panic!("it is wrong");
        };
        assert_eq!(
            errors.to_string(),
            "spec.template.spec.containers[0].image: Required value; spec.template.metadata.labels: Invalid value: \"a b\": no"
        );
        let undecodable = "Pod in version \"v1\" cannot be handled as a Pod: json: …";
        let want = FieldError::missing_field("spec.template", undecodable).into();
        assert_eq!(
            classify_refusal(
                &status(400, undecodable, json!([])),
                &below("spec.template")
            ),
            DryRunFinding::Wrong(want)
        );
    }

    #[test]
    fn refusal_that_may_end_is_doubtful_failed_call_unknown() {
        for (code, message) in [
            (403, "pods \"x\" is forbidden: exceeded quota: q"),
            (404, "namespaces \"x\" not found"),
            (
                422,
                "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no",
            ),
            (400, "admission webhook \"a.b.c\" does not support dry run"),
            (422, "admission webhook \"a.b.c\" denied the request: no"),
        ] {
            let causes = json!([{ "message": "no" }]);
            assert_eq!(
                classify_refusal(&status(code, message, causes), &below("a")),
                DryRunFinding::Doubtful(message.into())
            );
        }
        let down = "Internal error occurred: failed calling webhook \"a.b.c\": failed to call webhook: no endpoints";
        assert_eq!(
            classify_refusal(&status(500, down, json!([])), &below("a")),
            DryRunFinding::Doubtful(down.into())
        );
        assert_eq!(
            classify_refusal(
                &status(500, "etcdserver: no leader", json!([])),
                &below("a")
            ),
            DryRunFinding::Unknown(
                "the API server answers 500 to a dry-run, etcdserver: no leader".into()
            )
        );
    }

    #[test]
    fn warnings_are_unquoted() {
        for (header, want) in [
            (
                r#"299 - "unknown field \"spec.a\"""#,
                Some("unknown field \"spec.a\""),
            ),
            (r#"299 - "back\\slash""#, Some("back\\slash")),
            (r#"299 - """#, Some("")),
            ("299 - plain", None),
            ("299", None),
        ] {
            assert_eq!(parse_warning_header(header).as_deref(), want, "{header}");
        }
    }
}
