//! The condition `EndpointsAnswer` of a rule object: whether the endpoints of its webhook rules can be asked.

use super::effect::{Finding, finding};
use super::{RuleKind, RuleSet};
use crate::api::podtransitionrule::RuleState;

/// Type of the condition.
pub const ENDPOINTS_ANSWER: &str = "EndpointsAnswer";

/// The condition, by what is known of the rules; `None` unless the last call of a rule has failed.
pub fn condition(rules: &RuleSet, states: &[RuleState]) -> Option<Finding> {
    let failing = |rule: &super::Rule| {
        let RuleKind::Webhook(webhook) = &rule.kind else {
            return None;
        };
        let state = states.iter().find(|state| state.name == rule.id)?;
        let why = &state.webhook_status.as_ref()?.failing;
        let said = format!("rule {}: {why}", rule.id);
        (!why.is_empty()).then_some((webhook.fail, said))
    };
    let failing = rules.rules.iter().filter_map(failing);
    let (holding, passing): (Vec<_>, Vec<_>) = failing.partition(|(fail, _)| *fail);
    let all = |said: Vec<(bool, String)>| {
        let said: Vec<_> = said.into_iter().map(|(_, said)| said).collect();
        said.join("; ")
    };
    let waits = match holding.is_empty() {
        true => String::new(),
        false => format!(
            "Pods wait until their endpoint can be asked: {}",
            all(holding)
        ),
    };
    if passing.is_empty() {
        return (!waits.is_empty()).then(|| finding("False", "CallsFail", waits));
    }
    let passes = format!(
        "Pods pass by failurePolicy Ignore, without an answer of their endpoint: {}; mend the endpoint, or set failurePolicy to Fail",
        all(passing)
    );
    let said: Vec<_> = [passes, waits]
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect();
    Some(finding("False", "PassedByIgnore", said.join(". ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn failing_endpoints_are_told_by_what_follows_for_the_pods() {
        let rule = |name: &str, policy: &str| json!({ "name": name, "webhook": { "failurePolicy": policy, "clientConfig": { "url": "http://a" } } });
        let object = serde_json::from_value(json!({
            "metadata": { "name": "web" },
            "spec": { "selector": {}, "rules": [rule("strict", "Fail"), rule("lax", "Ignore")] },
        }));
        let rules = RuleSet::compile(&object.unwrap());
        let told = |failing: &[&str]| {
            let state =
                |name: &&str| json!({ "name": name, "webhookStatus": { "failing": "down" } });
            let states: Vec<_> = failing.iter().map(state).collect();
            condition(
                &rules,
                &serde_json::from_value::<Vec<_>>(json!(states)).unwrap(),
            )
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["former"]), None);
        let strict = told(&["strict"]).unwrap();
        assert_eq!(strict.reason, "CallsFail");
        assert!(strict.message.ends_with("asked: rule strict: down"));
        let both = told(&["strict", "lax"]).unwrap();
        assert_eq!((both.status, both.reason), ("False", "PassedByIgnore"));
        assert!(
            both.message
                .starts_with("Pods pass by failurePolicy Ignore")
        );
        assert!(both.message.contains("rule lax: down; mend"));
        assert!(both.message.ends_with("asked: rule strict: down"));
    }
}
