//! Label selectors, compiled once and matched often.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::SelectorExt;

use super::labels;
use super::validation::{FieldError, FieldErrors};

/// A label selector whose keys, operators and values are well formed. An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(kube::core::Selector);

impl Selector {
    /// Compiles a selector as the API server does. Errors carry paths relative to the selector, such as
    /// `matchExpressions[0].operator`.
    pub fn compile(selector: &LabelSelector) -> Result<Selector, FieldErrors> {
        let mut errors = FieldErrors::default();
        check_expressions(selector, &mut |error| errors.push(error));
        if !errors.is_empty() {
            return Err(errors);
        }
        kube::core::Selector::try_from(selector.clone())
            .map(Selector)
            .map_err(|e| FieldErrors::from(FieldError::new("matchExpressions", "", e.to_string())))
    }

    /// Adds all errors of a selector at `path` to `errors`. [`Selector::compile`] returns fewer of them; all
    /// are needed to compare a new selector with a stored one.
    pub fn check_selector(selector: &LabelSelector, path: &str, errors: &mut FieldErrors) {
        match Selector::compile(selector) {
            Ok(_) => {}
            Err(all) if !all.is_full() => {
                errors.extend(all.into_iter().map(|e| e.under_parent(path)))
            }
            Err(_) => {
                check_expressions(selector, &mut |error| errors.push(error.under_parent(path)))
            }
        }
    }

    /// Whether labels match every requirement. As in Kubernetes, `NotIn` and `DoesNotExist` match if the key
    /// is absent.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }
}

/// The text form of a selector, as in list requests and in the scale subresource.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reports every error of a selector.
fn check_expressions(selector: &LabelSelector, tell: &mut dyn FnMut(FieldError)) {
    for (key, value) in selector.match_labels.iter().flatten() {
        let path = format!("matchLabels[{key}]");
        if let Some(problem) = labels::key_problem(key) {
            tell(FieldError::new(&path, key, problem));
        }
        if let Some(problem) = labels::value_problem(value) {
            tell(FieldError::new(&path, value, problem));
        }
    }
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        check_expression(expression, &format!("matchExpressions[{index}]"), tell);
    }
}

fn check_expression(
    expression: &LabelSelectorRequirement,
    path: &str,
    tell: &mut dyn FnMut(FieldError),
) {
    let values = expression.values.as_deref().unwrap_or_default();
    if let Some(problem) = labels::key_problem(&expression.key) {
        let path = format!("{path}.key");
        tell(FieldError::new(path, &expression.key, problem));
    }
    for (index, value) in values.iter().enumerate() {
        if let Some(problem) = labels::value_problem(value) {
            tell(FieldError::new(
                format!("{path}.values[{index}]"),
                value,
                problem,
            ));
        }
    }
    match (expression.operator.as_str(), values) {
        ("In" | "NotIn", []) => {
            let problem = format!(
                "must not be empty with operator {}: list the values that are meant",
                expression.operator
            );
            tell(FieldError::missing_field(format!("{path}.values"), problem));
        }
        ("Exists" | "DoesNotExist", [first, ..]) => {
            let problem = format!(
                "must be empty with operator {}: use In or NotIn to compare values",
                expression.operator
            );
            tell(FieldError::new(format!("{path}.values"), first, problem));
        }
        ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
        (other, _) => {
            tell(FieldError::new(
                format!("{path}.operator"),
                other,
                "must be In, NotIn, Exists or DoesNotExist",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn compile(selector: Value) -> Result<Selector, FieldErrors> {
        Selector::compile(&serde_json::from_value(selector).unwrap())
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
    }

    #[test]
    fn selector_matches_as_in_kubernetes() {
        let both = json!({
            "matchLabels": { "app": "a" },
            "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["x", "y"] }],
        });
        type Row = (Value, &'static [(&'static str, &'static str)], bool);
        let table: &[Row] = &[
            (json!({}), &[], true),
            (json!({}), &[("app", "a")], true),
            (
                json!({ "matchLabels": {}, "matchExpressions": [] }),
                &[("app", "a")],
                true,
            ),
            (
                json!({ "matchLabels": { "app": "a" } }),
                &[("app", "a"), ("b", "c")],
                true,
            ),
            (
                json!({ "matchLabels": { "app": "a" } }),
                &[("app", "b")],
                false,
            ),
            (json!({ "matchLabels": { "app": "a" } }), &[], false),
            (json!({ "matchLabels": { "app": "" } }), &[], false),
            (
                json!({ "matchLabels": { "app": "" } }),
                &[("app", "")],
                true,
            ),
            (expression("app", "In", &["a", "b"]), &[("app", "b")], true),
            (expression("app", "In", &["a", "b"]), &[("app", "c")], false),
            (expression("app", "In", &["a"]), &[], false),
            (expression("app", "NotIn", &["a"]), &[("app", "b")], true),
            (expression("app", "NotIn", &["a"]), &[("app", "a")], false),
            (expression("app", "NotIn", &["a"]), &[], true),
            (expression("app", "Exists", &[]), &[("app", "")], true),
            (expression("app", "Exists", &[]), &[("b", "")], false),
            (expression("app", "DoesNotExist", &[]), &[("b", "")], true),
            (
                expression("app", "DoesNotExist", &[]),
                &[("app", "")],
                false,
            ),
            (both.clone(), &[("app", "a"), ("tier", "y")], true),
            (both.clone(), &[("app", "a"), ("tier", "z")], false),
            (both, &[("tier", "y")], false),
        ];
        for (selector, labels, want) in table {
            let labels = labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            assert_eq!(
                compile(selector.clone()).unwrap().matches(&labels),
                *want,
                "{selector} on {labels:?}"
            );
        }
    }

    #[test]
    fn errors_name_the_field() {
        for (selector, want) in [
            (
                expression("app", "Like", &["a"]),
                "matchExpressions[0].operator: \"Like\": must be In, NotIn, Exists or DoesNotExist",
            ),
            (
                expression("app", "", &[]),
                "matchExpressions[0].operator: \"\": must be In, NotIn, Exists or DoesNotExist",
            ),
            (
                expression("app", "In", &[]),
                "matchExpressions[0].values: must not be empty with operator In: list the values that are meant",
            ),
            (
                expression("app", "Exists", &["a"]),
                "matchExpressions[0].values: \"a\": must be empty with operator Exists: use In or NotIn to compare values",
            ),
        ] {
            assert_eq!(compile(selector).unwrap_err().to_string(), want);
        }
        let errors = compile(json!({
            "matchLabels": { "a b": "c d" },
            "matchExpressions": [{ "key": "", "operator": "In", "values": ["ok", "not ok"] }],
        }))
        .unwrap_err();
        let paths: Vec<_> = errors.iter().map(|e| e.path.as_str()).collect();
        let want = [
            "matchLabels[a b]",
            "matchLabels[a b]",
            "matchExpressions[0].key",
            "matchExpressions[0].values[1]",
        ];
        assert_eq!(paths, want);
    }

    #[test]
    fn text_form_is_that_of_list_request() {
        let selector = compile(json!({
            "matchLabels": { "app": "a" },
            "matchExpressions": [
                { "key": "b", "operator": "In", "values": ["x", "y"] },
                { "key": "c", "operator": "DoesNotExist" },
            ],
        }));
        assert_eq!(selector.unwrap().to_string(), "app=a,b in (x,y),!c");
    }
}
