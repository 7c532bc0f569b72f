//! Validates the selectors: which Pods are decorated, and which of them get the updated revision.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::api::poddecoration::PodDecorationSpec;
use crate::api::reserved_labels::is_selectable_by_decorations;
use crate::api::selector::Selector;
use crate::api::validation::values::check_non_negative;
use crate::api::validation::{FieldError, FieldErrors};

const ROLLING_UPDATE: &str = "spec.updateStrategy.rollingUpdate";

pub(super) fn check_selectors(spec: &PodDecorationSpec, errors: &mut FieldErrors) {
    for (path, selector) in selectors(spec) {
        Selector::check_selector(selector, &path, errors);
        check_keys(selector, &path, errors);
    }
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition);
    check_non_negative(partition, &format!("{ROLLING_UPDATE}.partition"), errors);
}

/// The selectors of a PodDecoration, with their paths.
pub(super) fn selectors(spec: &PodDecorationSpec) -> Vec<(String, &LabelSelector)> {
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let of_update = rolling.and_then(|rolling| rolling.selector.as_ref());
    let own = spec
        .selector
        .iter()
        .map(|s| ("spec.selector".to_owned(), s));
    let of_update = of_update.map(|s| (format!("{ROLLING_UPDATE}.selector"), s));
    own.chain(of_update).collect()
}

/// The label keys of a selector, with their paths below the selector.
pub(super) fn keys_of(selector: &LabelSelector) -> impl Iterator<Item = (String, &str)> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, _)| (format!("matchLabels[{key}]"), key.as_str()));
    let expressions = selector.match_expressions.iter().flatten().enumerate();
    let expressions = expressions.map(|(index, expression)| {
        let path = format!("matchExpressions[{index}].key");
        (path, expression.key.as_str())
    });
    labels.chain(expressions)
}

fn check_keys(selector: &LabelSelector, path: &str, errors: &mut FieldErrors) {
    let unusable = keys_of(selector).filter(|(_, key)| !is_selectable_by_decorations(key));
    errors.extend(unusable.map(|(at, key)| {
        let problem = "can't select Pods: operations and decorations change this label, so Pods would be decorated and \
                       undecorated in turn; select by labels of the Pod template, or by collaset.kusionstack.io/instance-id";
        FieldError::new(format!("{path}.{at}"), key, problem)
    }));
}
