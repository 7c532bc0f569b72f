//! The condition `EndpointsAnswer` of a rule object: whether the endpoints of its webhook rules answer.

use super::conditions::{ConditionFinding, new_finding};
use super::{RuleKind, RuleSet};
use crate::api::podtransitionrule::RuleState;

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
    let (mut holding, mut passing, mut warned) = (Vec::new(), Vec::new(), Vec::new());
    for (rule, webhook) in webhooks {
        let state = states.iter().find(|state| state.name == rule.id);
        let Some(status) = state.and_then(|state| state.webhook_status.as_ref()) else {
            continue;
        };
        let said = |why: &str| format!("rule {}: {why}", rule.id);
        match (status.failing.as_str(), webhook.ignored_policy_warning()) {
            ("", _) if status.warning.is_empty() => {}
            ("", _) => warned.push(said(&status.warning)),
            (why, _) if status.passed_unanswered => passing.push(said(why)),
            (why, Some(though)) => holding.push(format!("{}; {though}", said(why))),
            (why, None) => holding.push(said(why)),
        }
    }
    if holding.is_empty() && passing.is_empty() {
        let warned = warned.join("; ");
        return (!warned.is_empty()).then(|| new_finding("True", "CaBundleUnused", warned));
    }
    let waits = match holding.is_empty() {
        true => String::new(),
        false => format!(
            "the last call failed, and Pods wait until the endpoint can be asked: {}",
            holding.join("; ")
        ),
    };
    if passing.is_empty() {
        return Some(new_finding("False", "CallsFail", waits));
    }
    let passes = format!(
        "the last call failed, and Pods passed by failurePolicy Ignore, without an answer of their endpoint: {}; mend the endpoint, or set \
         failurePolicy to Fail",
        passing.join("; ")
    );
    let said = [passes, waits].into_iter().filter(|s| !s.is_empty());
    let said: Vec<_> = said.collect();
    Some(new_finding("False", "PassedByIgnore", said.join(". ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::keys;

    #[test]
    fn failing_endpoints_are_told_by_what_follows_for_the_pods() {
        let rule = |name: &str, policy: &str| json!({ "name": name, "webhook": { "failurePolicy": policy, "clientConfig": { "url": "http://a" } } });
        let annotations = json!({ (keys::IGNORES_FAILURES): "lax" });
        let object = serde_json::from_value(json!({
            "metadata": { "name": "web", "annotations": annotations },
            "spec": { "selector": {}, "rules": [rule("strict", "Fail"), rule("lax", "Ignore")] },
        }));
        let rules = RuleSet::compile(&object.unwrap());
        let told = |failing: &[&str]| {
            let state = |name: &&str| json!({ "name": name, "webhookStatus": { "failing": "down", "passedUnanswered": *name == "lax" } });
            let states: Vec<_> = failing.iter().map(state).collect();
            endpoints_answer_condition(
                &rules,
                &serde_json::from_value::<Vec<_>>(json!(states)).unwrap(),
            )
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["gone"]), None);
        let strict = told(&["strict"]).unwrap();
        assert_eq!(strict.reason, "CallsFail");
        assert!(strict.message.ends_with("asked: rule strict: down"));
        let both = told(&["strict", "lax"]).unwrap();
        assert_eq!((both.status, both.reason), ("False", "PassedByIgnore"));
        assert!(both.message.contains("Pods passed by failurePolicy Ignore"));
        assert!(both.message.contains("rule lax: down; mend"));
        assert!(both.message.ends_with("asked: rule strict: down"));
    }
}
