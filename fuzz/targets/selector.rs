//! Label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use operating::api::selector::Selector;
use serde::Deserialize;

use super::read;

#[derive(Deserialize)]
struct Input {
    selector: LabelSelector,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// A selector that compiles matches as Kubernetes documents it, requirement by requirement.
pub fn run(data: &[u8]) {
    let Some(Input { selector, labels }) = read(data) else {
        return;
    };
    match Selector::compile(&selector) {
        Ok(compiled) => {
            assert_eq!(compiled.matches(&labels), matches(&selector, &labels));
            let _ = compiled.to_string();
        }
        Err(errors) => assert!(!errors.is_empty() && !errors.to_string().is_empty()),
    }
}

fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|expression| {
            let value = labels.get(&expression.key);
            let listed = value.is_some_and(|v| expression.values.iter().flatten().any(|w| w == v));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("operator {other:?} compiled"),
            }
        })
}
