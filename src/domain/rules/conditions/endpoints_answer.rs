//! The condition `EndpointsAnswer` of a rule object: whether the endpoints of its webhook rules answer.

use super::{ConditionFinding, new_finding};
use crate::api::podtransitionrule::RuleState;
use crate::domain::rules::{RuleKind, RuleSet};

/// Type of the condition.
pub const ENDPOINTS_ANSWER: &str = "EndpointsAnswer";

/// The condition by the states of the rules. `None` unless the last call of a rule failed, or there is a problem with
/// certificates.
pub fn endpoints_answer_condition(
    rules: &RuleSet,
    states: &[RuleState],
) -> Option<ConditionFinding> {
    let webhooks = rules.rules.iter().filter_map(|rule| match &rule.kind {
        RuleKind::Webhook(webhook) => Some((rule, webhook)),
        _ => None,
    });
    let (mut failures, mut ignored_failures, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for (rule, webhook) in webhooks {
        let state = states.iter().find(|state| state.name == rule.id);
        let Some(status) = state.and_then(|state| state.webhook_status.as_ref()) else {
            continue;
        };
        let describe = |reason: &str| format!("rule {}: {reason}", rule.id);
        match (status.failing.as_str(), webhook.ignored_policy_warning()) {
            ("", _) if status.warning.is_empty() => {}
            ("", _) => warnings.push(describe(&status.warning)),
            (reason, _) if status.passed_unanswered => ignored_failures.push(describe(reason)),
            (reason, Some(note)) => failures.push(format!("{}; {note}", describe(reason))),
            (reason, None) => failures.push(describe(reason)),
        }
    }
    if failures.is_empty() && ignored_failures.is_empty() {
        let warnings = warnings.join("; ");
        return (!warnings.is_empty()).then(|| new_finding("True", "CaBundleUnused", warnings));
    }
    let waiting = match failures.is_empty() {
        true => String::new(),
        false => format!(
            "the last call failed, and Pods wait until the endpoint can be asked: {}",
            failures.join("; ")
        ),
    };
    if ignored_failures.is_empty() {
        return Some(new_finding("False", "CallsFail", waiting));
    }
    let passed = format!(
        "the last call failed, and Pods passed by failurePolicy Ignore, without an answer of their endpoint: {}; repair the endpoint, or set \
         failurePolicy to Fail",
        ignored_failures.join("; ")
    );
    let texts = [passed, waiting].into_iter().filter(|s| !s.is_empty());
    let texts: Vec<_> = texts.collect();
    Some(new_finding("False", "PassedByIgnore", texts.join(". ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::keys;

    #[test]
    fn failing_endpoints_are_reported_by_their_effect_on_pods() {
        let rule = |name: &str, policy: &str| json!({ "name": name, "webhook": { "failurePolicy": policy, "clientConfig": { "url": "http://a" } } });
        let annotations = json!({ (keys::IGNORES_FAILURES): "lax" });
        let object = serde_json::from_value(json!({
            "metadata": { "name": "web", "annotations": annotations },
            "spec": { "selector": {}, "rules": [rule("strict", "Fail"), rule("lax", "Ignore")] },
        }));
        let rules = RuleSet::compile(&object.unwrap());
        let condition = |failing: &[&str]| {
            let state = |name: &&str| json!({ "name": name, "webhookStatus": { "failing": "down", "passedUnanswered": *name == "lax" } });
            let states: Vec<_> = failing.iter().map(state).collect();
            endpoints_answer_condition(
                &rules,
                &serde_json::from_value::<Vec<_>>(json!(states)).unwrap(),
            )
        };
        assert_eq!(condition(&[]), None);
        assert_eq!(condition(&["gone"]), None);
        let strict = condition(&["strict"]).unwrap();
        assert_eq!(strict.reason, "CallsFail");
        assert!(strict.message.ends_with("asked: rule strict: down"));
        let both = condition(&["strict", "lax"]).unwrap();
        assert_eq!((both.status, both.reason), ("False", "PassedByIgnore"));
        assert!(both.message.contains("Pods passed by failurePolicy Ignore"));
        assert!(both.message.contains("rule lax: down; repair"));
        assert!(both.message.ends_with("asked: rule strict: down"));
    }
}
