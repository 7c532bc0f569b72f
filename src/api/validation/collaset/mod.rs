//! Validation of CollaSet (contract 1.1, and the missing checks that contract Q25 lists). The API server
//! checks the contents of Pods and PVCs; admission asks it by dry runs.

mod names;
mod pvc_templates;
mod steps;
mod strategy;
mod template;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::values::check_non_negative;
use super::{FieldError, FieldErrors};
use crate::api::collaset::{CollaSetSpec, PodNamingSuffixPolicy};
use crate::api::reserved_labels;
use crate::api::selector::Selector;

/// Maximum number of claim templates of a CollaSet. Typical sets have one to three.
pub const MAX_PVC_TEMPLATES: usize = 16;

/// The errors of a CollaSet on its own. `name` is empty while `generateName` is not resolved.
pub fn validate(name: &str, spec: &CollaSetSpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    check_collaset(name, spec, &mut errors);
    errors
}

/// Adds the errors of a CollaSet on its own to `errors`, see [`validate`].
pub fn check_collaset(name: &str, spec: &CollaSetSpec, errors: &mut FieldErrors) {
    names::check_collaset_name(name, naming_policy(spec), errors);
    check_non_negative(spec.replicas, "spec.replicas", errors);
    let labels = template::check_template(&spec.template, errors);
    check_selector(spec.selector.as_ref(), labels.as_ref(), errors);
    pvc_templates::check_pvc_templates(&spec.volume_claim_templates, errors);
    strategy::check_strategies(spec, errors);
    check_non_negative(spec.history_limit, "spec.historyLimit", errors);
}

/// The error of a CollaSet with too many claim templates. A CollaSet that is stored with more of them may
/// keep this number. The limit exists because each distinct template costs the API server a dry run.
pub fn validate_pvc_change(old: Option<&CollaSetSpec>, new: &CollaSetSpec) -> Option<FieldError> {
    let count = |spec: &CollaSetSpec| spec.volume_claim_templates.len();
    let most = old.map_or(0, count).max(MAX_PVC_TEMPLATES);
    (count(new) > most).then(|| {
        let problem = format!(
            "has {} entries and may have {most}: put the data on fewer volumes and mount parts of one with subPath",
            count(new)
        );
        FieldError::missing_field("spec.volumeClaimTemplates", problem)
    })
}

/// The errors of a change to immutable fields.
pub fn validate_change(old: &CollaSetSpec, new: &CollaSetSpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    // A selector that never selected a Pod may be corrected.
    let fixed = old.selector.as_ref().filter(|s| is_usable(s));
    if let (Some(old), Some(new)) = (fixed, &new.selector)
        && selector_requirements(old) != selector_requirements(new)
    {
        let problem = format!(
            "is immutable, it was {}: Pods would leave the CollaSet unseen; create another CollaSet to select by other labels",
            selector_text(old)
        );
        errors.push(FieldError::new(
            "spec.selector",
            &selector_text(new),
            problem,
        ));
    }
    let context = |spec: &CollaSetSpec| {
        let strategy = spec.scale_strategy.as_ref();
        strategy.map_or(String::new(), |s| s.context.clone())
    };
    if context(old) != context(new) {
        let problem = format!(
            "is immutable, it was {:?}: create another CollaSet to use another pool of instance IDs",
            context(old)
        );
        let path = "spec.scaleStrategy.context";
        errors.push(FieldError::new(path, &context(new), problem));
    }
    errors
}

/// Warnings about valid specs that probably have an unintended effect; `old` is the stored spec of an update.
pub fn warnings(old: Option<&CollaSetSpec>, new: &CollaSetSpec) -> Vec<String> {
    let mut warnings: Vec<String> = strategy::partition_beyond_replicas(new)
        .into_iter()
        .collect();
    if old.is_some_and(|old| naming_policy(old) != naming_policy(new)) {
        warnings.push(
            "spec.namingStrategy.podNamingSuffixPolicy: Pods keep their names until they are recreated".into(),
        );
    }
    warnings
}

/// The policy for the names of Pods.
fn naming_policy(spec: &CollaSetSpec) -> &PodNamingSuffixPolicy {
    let strategy = spec.naming_strategy.as_ref();
    strategy
        .and_then(|s| s.pod_naming_suffix_policy.as_ref())
        .unwrap_or(&PodNamingSuffixPolicy::Random)
}

fn check_selector(
    selector: Option<&LabelSelector>,
    labels: Option<&template::Labels>,
    errors: &mut FieldErrors,
) {
    let path = "spec.selector";
    let remedy = "set it to labels that spec.template carries";
    let Some(selector) = selector else {
        errors.push(FieldError::missing_field(
            path,
            format!("is required: {remedy}"),
        ));
        return;
    };
    if selector_requirements(selector) == Default::default() {
        let problem = format!(
            "must not be empty: the CollaSet would take every PersistentVolumeClaim of the namespace for its own; {remedy}"
        );
        errors.push(FieldError::with_raw_value(path, "{}", problem));
        return;
    }
    match (Selector::compile(selector), labels) {
        (Err(_), _) => Selector::check_selector(selector, path, errors),
        (Ok(_), _) if let Some(key) = reserved_labels::reserved_key_in(selector) => {
            let problem = format!(
                "must not ask for {key}, which is set on single Pods: those that differ would be released, and others made; {remedy}"
            );
            errors.push(FieldError::new(path, &selector_text(selector), problem));
        }
        (Ok(compiled), Some(labels))
            if !reserved_labels::is_selected(labels.clone(), &compiled) =>
        {
            let problem = format!(
                "must match spec.selector, which is {compiled}: a Pod that it does not select is released at once; add \
                 these labels"
            );
            let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let path = "spec.template.metadata.labels";
            errors.push(FieldError::new(path, &labels.join(","), problem));
        }
        _ => {}
    }
}

fn is_usable(selector: &LabelSelector) -> bool {
    selector_requirements(selector) != Default::default() && Selector::compile(selector).is_ok()
}

/// The requirements of a selector. Absent and empty parts are equal.
fn selector_requirements(selector: &LabelSelector) -> LabelSelector {
    LabelSelector {
        match_labels: selector.match_labels.clone().filter(|l| !l.is_empty()),
        match_expressions: selector.match_expressions.clone().filter(|e| !e.is_empty()),
    }
}

fn selector_text(selector: &LabelSelector) -> String {
    Selector::compile(selector).map_or_else(|_| "malformed".into(), |s| s.to_string())
}

#[cfg(test)]
mod tests;
