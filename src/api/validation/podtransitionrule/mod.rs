//! Validation of PodTransitionRule (contract 1.3, and the missing checks that it lists).

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{FieldError, FieldErrors, endpoint};
use crate::api::field_path::FieldPath;
use crate::api::int_or_percent::IntOrPercent;
use crate::api::podtransitionrule::{
    AvailablePolicy, FailurePolicy, Kind, LabelCheck, MAX_RULES, Parameter, PodTransitionRuleSpec,
    Poll, Rule, Stage, UnhealthyPodPolicy, UnreadableRule, WebhookRule,
};
use crate::api::selector::Selector;
use crate::api::size_limits::{self, MAX_SPEC_BYTES};

/// The errors of a spec. Disabled rules are checked, too, because they may be enabled later.
pub fn validate(spec: &PodTransitionRuleSpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    check_rules(spec, &mut errors);
    errors
}

/// Adds the errors of a spec to `errors`.
pub fn check_rules(spec: &PodTransitionRuleSpec, errors: &mut FieldErrors) {
    if let Some(UnreadableRule { fault, .. }) = &spec.unreadable {
        return errors.push(fault.clone());
    }
    let remedy = "is required: write {} to select every Pod of the namespace";
    check_selector(spec.selector.as_ref(), "spec.selector", remedy, errors);
    check_size(spec, errors);
    let mut names = BTreeSet::new();
    for (index, rule) in spec.rules.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = format!("spec.rules[{index}]");
        if rule.name.is_empty() {
            let problem = "is required: skip annotations and reports refer to the rule by it";
            errors.push(FieldError::missing_field(format!("{path}.name"), problem));
        } else if !names.insert(rule.name.as_str()) {
            let problem = "is the name of an earlier rule: give each rule a name of its own";
            errors.push(FieldError::new(format!("{path}.name"), &rule.name, problem));
        }
        check_rule(rule, &path, errors);
    }
}

fn check_size(spec: &PodTransitionRuleSpec, errors: &mut FieldErrors) {
    let rules = spec.rules.len();
    if rules > MAX_RULES {
        let problem =
            format!("has {rules} rules and may have {MAX_RULES}: split it into several objects");
        errors.push(FieldError::missing_field("spec.rules", problem));
    }
    let bytes = size_limits::json_bytes(spec);
    if bytes > MAX_SPEC_BYTES {
        let problem = format!(
            "takes {bytes} bytes and may take {MAX_SPEC_BYTES}: split its rules over several objects, or shorten \
             caBundles to the one certificate that is needed"
        );
        errors.push(FieldError::missing_field("spec", problem));
    }
}

fn check_rule(rule: &Rule, path: &str, errors: &mut FieldErrors) {
    if let Some(Stage::Other(text)) = &rule.stage {
        errors.push(FieldError::new(
            format!("{path}.stage"),
            text,
            "must be PreCheck or PostCheck",
        ));
    }
    if let Some(first) = rule.conditions.first() {
        let problem = "is not known, because this version supports no condition: take it out; use filter.labelSelector \
            to limit the rule to some Pods";
        errors.push(FieldError::new(
            format!("{path}.conditions[0]"),
            first,
            problem,
        ));
    }
    if let Some(filter) = rule.filter.as_ref().and_then(|f| f.label_selector.as_ref()) {
        check_selector(
            Some(filter),
            &format!("{path}.filter.labelSelector"),
            "",
            errors,
        );
    }
    let kinds: Vec<&str> = rule.kinds().map(Kind::field).collect();
    match kinds[..] {
        [_] => {}
        [] => errors.push(FieldError::missing_field(
            path,
            "needs one of availablePolicy, labelCheck and webhook",
        )),
        _ => {
            let problem = format!(
                "has {}: split it into one rule for each",
                kinds.join(" and ")
            );
            errors.push(FieldError::missing_field(path, problem));
        }
    }
    if let Some(policy) = &rule.available_policy {
        check_available_policy(policy, &format!("{path}.availablePolicy"), errors);
    }
    if let Some(LabelCheck { requires }) = &rule.label_check {
        let remedy = "is required: name the labels that a Pod must have";
        check_selector(
            requires.as_ref(),
            &format!("{path}.labelCheck.requires"),
            remedy,
            errors,
        );
    }
    if let Some(rule) = &rule.webhook {
        check_webhook(rule, &format!("{path}.webhook"), errors);
    }
}

fn check_selector(
    selector: Option<&LabelSelector>,
    path: &str,
    remedy: &str,
    errors: &mut FieldErrors,
) {
    match selector {
        None => errors.push(FieldError::missing_field(path, remedy)),
        Some(selector) => Selector::check_selector(selector, path, errors),
    }
}

fn check_available_policy(policy: &AvailablePolicy, path: &str, errors: &mut FieldErrors) {
    let bounds = [
        ("maxUnavailableValue", &policy.max_unavailable_value),
        ("minAvailableValue", &policy.min_available_value),
    ];
    if bounds.iter().all(|(_, value)| value.is_none()) {
        let problem = "needs maxUnavailableValue or minAvailableValue: a count such as 3, or a percentage such as \"30%\"";
        errors.push(FieldError::missing_field(path, problem));
    }
    if let Some(UnhealthyPodPolicy::Other(text)) = &policy.unhealthy_pod_policy {
        errors.push(FieldError::new(
            format!("{path}.unhealthyPodPolicy"),
            text,
            "must be AlwaysAllow or IfHealthyBudget",
        ));
    }
    for (field, value) in bounds {
        let parsed = value
            .as_ref()
            .map(|value: &IntOrString| IntOrPercent::parse(value));
        if let Some(Err(e)) = parsed {
            errors.push(FieldError::with_raw_value(
                format!("{path}.{field}"),
                e.value,
                e.problem,
            ));
        }
    }
}

fn check_webhook(rule: &WebhookRule, path: &str, errors: &mut FieldErrors) {
    if let Some(FailurePolicy::Other(text)) = &rule.failure_policy {
        errors.push(FieldError::new(
            format!("{path}.failurePolicy"),
            text,
            "must be Ignore or Fail",
        ));
    }
    for (index, parameter) in rule.parameters.iter().enumerate() {
        check_parameter(parameter, &format!("{path}.parameters[{index}]"), errors);
    }
    let Some(config) = &rule.client_config else {
        let problem = "is required: set its url to the endpoint that is asked";
        errors.push(FieldError::missing_field(
            format!("{path}.clientConfig"),
            problem,
        ));
        return;
    };
    let path = format!("{path}.clientConfig");
    errors.extend(endpoint::url_error(&config.url, &format!("{path}.url")));
    errors.extend(endpoint::ca_bundle_error(
        &config.ca_bundle,
        &format!("{path}.caBundle"),
    ));
    if let Some(poll) = &config.poll {
        check_poll(poll, &format!("{path}.poll"), errors);
    }
}

fn check_parameter(parameter: &Parameter, path: &str, errors: &mut FieldErrors) {
    if parameter.key.is_empty() {
        let problem = "is required: the endpoint finds the value by this key";
        errors.push(FieldError::missing_field(format!("{path}.key"), problem));
    }
    if !parameter.value.is_empty() {
        return; // wins over valueFrom
    }
    let from = parameter.value_from.as_ref();
    let Some(field) = from.and_then(|from| from.field_ref.as_ref()) else {
        let problem = "needs a value, or in valueFrom.fieldRef the field of the Pod that has it";
        errors.push(FieldError::missing_field(path, problem));
        return;
    };
    let parsed = FieldPath::parse(&field.field_path).map_err(str::to_owned);
    if let Err(problem) = parsed.and_then(|path| path.check_handed_out()) {
        let path = format!("{path}.valueFrom.fieldRef.fieldPath");
        errors.push(FieldError::new(path, &field.field_path, problem));
    }
}

fn check_poll(poll: &Poll, path: &str, errors: &mut FieldErrors) {
    errors.extend(endpoint::url_error(&poll.url, &format!("{path}.url")));
    errors.extend(endpoint::ca_bundle_error(
        &poll.ca_bundle,
        &format!("{path}.caBundle"),
    ));
    for (field, seconds) in [
        ("intervalSeconds", poll.interval_seconds),
        ("timeoutSeconds", poll.timeout_seconds),
    ] {
        if let Some(seconds) = seconds.filter(|s| *s < 1) {
            errors.push(FieldError::with_raw_value(
                format!("{path}.{field}"),
                seconds.to_string(),
                "must be 1 or more seconds",
            ));
        }
    }
}

#[cfg(test)]
mod tests;
