//! Compiles API objects to [`RuleSet`]s. A rule that can't be read becomes [`RuleKind::Broken`] and holds its Pods,
//! because objects may have been stored without a check by admission, and such an object must not let Pods pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::ignore_policy;
use super::{
    AvailabilityLimits, CompiledRule, CompiledWebhook, RuleKind, RuleSet, SkipAnnotation, Stage,
};
use crate::api::int_or_percent::IntOrPercent;
use crate::api::podtransitionrule::{
    self as api, AvailablePolicy, LabelCheck, PodTransitionRule, UnhealthyPodPolicy,
};
use crate::api::selector::Selector;

impl RuleSet {
    /// Compiles an object. `None` if its deletion has begun: such an object holds no Pods and is in no cache.
    pub fn compile_if_alive(object: PodTransitionRule) -> Option<RuleSet> {
        let is_alive = object.metadata.deletion_timestamp.is_none();
        is_alive.then(|| RuleSet::compile(&object))
    }

    /// Compiles an object.
    pub fn compile(object: &PodTransitionRule) -> RuleSet {
        let meta = &object.metadata;
        let selector = match &object.spec.selector {
            Some(selector) => compile_selector(selector, "spec.selector"),
            None => Err(
                "spec.selector is missing: name the Pods, or write {} for all of the namespace"
                    .to_owned(),
            ),
        };
        let (selector, narrowed) = match &object.spec.unreadable {
            Some(unreadable) => (Err(unreadable.fault.to_string()), selector.ok()),
            None => (selector, None),
        };
        let ignores = ignore_policy::acknowledged_names(meta.annotations.as_ref());
        let rules: Vec<_> = object
            .spec
            .rules
            .iter()
            .zip(rule_ids(&object.spec.rules))
            .enumerate()
            .filter(|(_, (r, _))| !r.disabled)
            .map(|(index, (rule, id))| compile_rule(index, rule, id, &ignores))
            .collect();
        let may_limit_unread = object.spec.unreadable.as_ref().is_some_and(|u| u.may_limit);
        RuleSet {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: Arc::from(meta.uid.clone().unwrap_or_default()),
            generation: meta.generation.unwrap_or(0),
            selector,
            narrowed,
            may_limit: may_limit_unread || rules.iter().any(CompiledRule::may_limit),
            rules,
            ignores,
            skips: SkipAnnotation::default(),
        }
    }
}

/// The ID of each rule; see [`CompiledRule::id`].
fn rule_ids(rules: &[api::Rule]) -> Vec<String> {
    let names: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let mut used = BTreeSet::new();
    let id = |rule: &api::Rule| {
        let mut id = rule.name.clone();
        let mut number = 1;
        while used.contains(&id) || (number > 1 && names.contains(id.as_str())) {
            number += 1;
            id = format!("{}#{number}", rule.name);
        }
        used.insert(id.clone());
        id
    };
    rules.iter().map(id).collect()
}

fn compile_rule(
    index: usize,
    rule: &api::Rule,
    id: String,
    ignores: &BTreeSet<String>,
) -> CompiledRule {
    let path = format!("spec.rules[{index}]");
    let mut faults = Vec::new();
    let stage = match rule.effective_stage() {
        api::Stage::PreCheck => Stage::PreCheck,
        api::Stage::PostCheck => Stage::PostCheck,
        api::Stage::Other(text) => {
            faults.push(format!(
                "{path}.stage: {text:?} is neither PreCheck nor PostCheck"
            ));
            Stage::PreCheck
        }
    };
    if !rule.conditions.is_empty() {
        faults.push(format!(
            "{path}.conditions: no condition is known to this version; remove the list"
        ));
    }
    let filter = rule.filter.as_ref().and_then(|f| f.label_selector.as_ref());
    let filter = filter
        .map(|s| compile_selector(s, &format!("{path}.filter.labelSelector")))
        .transpose();
    let filter = filter.unwrap_or_else(|reason| {
        faults.push(reason);
        None
    });
    // If a rule has several kinds, the first in this order is used (contract 1.3).
    let kind = match rule.kinds().next() {
        Some(api::Kind::Availability(policy)) => {
            compile_limits(policy, &path).map(RuleKind::Availability)
        }
        Some(api::Kind::LabelCheck(check)) => {
            compile_label_check(check, &path).map(RuleKind::LabelCheck)
        }
        Some(api::Kind::Webhook(webhook)) => {
            let ignores = ignores.contains(&rule.name);
            let path = format!("{path}.webhook");
            CompiledWebhook::compile(webhook, rule.stage.as_ref(), &path, ignores)
                .map(|w| RuleKind::Webhook(Arc::new(w)))
        }
        None => Err(format!(
            "{path}: set one of availablePolicy, labelCheck or webhook"
        )),
    };
    let kind = kind.and_then(|kind| match faults.is_empty() {
        true => Ok(kind),
        false => Err(String::new()),
    });
    let kind = kind.unwrap_or_else(|reason| {
        faults.extend((!reason.is_empty()).then_some(reason));
        RuleKind::Broken {
            reason: faults.join("; "),
            // A rule of a kind that this version does not know may be a limit.
            may_limit: rule
                .kinds()
                .next()
                .is_none_or(api::Kind::limits_unavailable),
        }
    });
    CompiledRule {
        name: rule.name.clone(),
        id,
        stage,
        filter,
        kind,
    }
}

fn compile_selector(selector: &LabelSelector, path: &str) -> Result<Selector, String> {
    Selector::compile(selector).map_err(|e| format!("{path}: {e}"))
}

fn compile_label_check(check: &LabelCheck, path: &str) -> Result<Selector, String> {
    let path = format!("{path}.labelCheck.requires");
    let requires = check.requires.as_ref();
    compile_selector(requires.ok_or_else(|| format!("{path} is missing"))?, &path)
}

fn compile_limits(policy: &AvailablePolicy, path: &str) -> Result<AvailabilityLimits, String> {
    let parse_bound = |value: &Option<IntOrString>, field: &str| {
        let parsed = value.as_ref().map(IntOrPercent::parse).transpose();
        parsed.map_err(|e| format!("{path}.availablePolicy.{field}: {e}"))
    };
    let limits = AvailabilityLimits {
        max_unavailable: parse_bound(&policy.max_unavailable_value, "maxUnavailableValue")?,
        min_available: parse_bound(&policy.min_available_value, "minAvailableValue")?,
        if_healthy: match &policy.unhealthy_pod_policy {
            None | Some(UnhealthyPodPolicy::AlwaysAllow) => false,
            Some(UnhealthyPodPolicy::IfHealthyBudget) => true,
            Some(UnhealthyPodPolicy::Other(text)) => {
                return Err(format!(
                    "{path}.availablePolicy.unhealthyPodPolicy: {text:?} is neither AlwaysAllow nor IfHealthyBudget"
                ));
            }
        },
    };
    if limits.max_unavailable.is_none() && limits.min_available.is_none() {
        return Err(format!(
            "{path}.availablePolicy: set maxUnavailableValue or minAvailableValue"
        ));
    }
    Ok(limits)
}
