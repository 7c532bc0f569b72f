//! Names the rules that hold the Pods which wait to go off traffic or to come back, with the reasons. The text quotes
//! stored answers of endpoints. Its figures change only with the rules and with the number of expected Pods, because
//! each change of the text causes a write of the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::size_limits::truncate_text;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::domain::collaset::awaited_rule_stage;
use crate::domain::lifecycle::Stage;
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{operation_rejections, stage_candidates, stored_rejection};
use crate::domain::rules::webhook::UNANSWERED_MESSAGE;
use crate::domain::rules::{AvailabilityRules, ExpectedPods};

/// Maximum number of waiting Pods that are explained.
const MAX_EXPLAINED_PODS: usize = 20;
/// Maximum number of rules named for each Pod, and of characters of each reason.
const MAX_NAMED_RULES: usize = 3;
const MAX_REASON_CHARS: usize = 200;

/// What the first waiting Pods wait for, by UID. In PreCheck: the rules that reject the Pod; if there are none, the
/// budgets; if there are none, all rules that cover the Pod. If the set is being deleted (`is_deleting`), the budgets
/// are left out, because they do not hold its Pods. In PostCheck: the rules that reject the Pod.
pub fn describe_blocking_rules(
    state: &IndexState,
    pods: &[Arc<Pod>],
    is_deleting: bool,
) -> BTreeMap<String, Vec<String>> {
    let waiting = pods
        .iter()
        .filter_map(|pod| Some((awaited_rule_stage(pod)?, pod)));
    let explained = waiting.take(MAX_EXPLAINED_PODS).map(|(stage, pod)| {
        let is_before = stage == Stage::PreCheck;
        let covering = || state.rules_covering(pod);
        let mut reasons = rejection_reasons(state, stage, pod);
        if reasons.is_empty() && is_before && !is_deleting {
            let budgets = covering().filter_map(|entry| blocking_budget(entry, pod));
            reasons.extend(budgets.take(MAX_NAMED_RULES));
        }
        if reasons.is_empty() && is_before {
            let names = covering()
                .map(|entry| messages::qualified_rule_name(&entry.snapshot.rules.name, ""));
            reasons.extend(names.take(MAX_NAMED_RULES));
        }
        (pod.metadata.uid.clone(), reasons)
    });
    explained.collect()
}

/// The rules that reject a Pod in a stage, with their reasons.
fn rejection_reasons(state: &IndexState, stage: Stage, pod: &Pod) -> Vec<String> {
    let candidates = stage_candidates(stage, pod);
    let rejections = state.rules_covering(pod).flat_map(|entry| {
        let rules = &entry.snapshot.rules;
        let rejections = operation_rejections(rules, stage, pod, &candidates, &entry.verdicts);
        rejections.map(move |rejection| (entry, rejection))
    });
    let reasons = rejections.take(MAX_NAMED_RULES).map(|(entry, rejection)| {
        // Only the rule controller knows the answer of an endpoint, or why the endpoint was not asked, and stores it in
        // the status.
        let is_unanswered = rejection.reason == UNANSWERED_MESSAGE;
        let mut unanswered = candidates.iter().filter(|_| is_unanswered);
        let stored_reason = unanswered.find_map(|candidate| {
            let operation = &candidate.operation;
            stored_rejection(&entry.object, stage, pod, &rejection.rule, operation)
        });
        let reason = stored_reason.unwrap_or(&rejection.reason);
        format!(
            "{}: {}",
            rejection.qualified_rule_name(),
            truncate_text(reason, MAX_REASON_CHARS)
        )
    });
    reasons.collect()
}

/// The strictest availability rule of a rule object that limits a Pod, whether or not its budget has headroom now;
/// `None` if there is no such rule.
fn blocking_budget(entry: &RuleEntry, pod: &Pod) -> Option<String> {
    let AvailabilityRules::Held(rules) = entry.snapshot.rules.availability_rules(pod) else {
        return None;
    };
    let size = ExpectedPods {
        total: entry.tally.expected(),
        base: entry.tally.percentage_base(),
    };
    let desired_by_rule = rules
        .into_iter()
        .map(|(rule, limits)| (limits.desired(size), rule));
    let (desired, rule) = desired_by_rule.max_by_key(|(desired, _)| *desired)?;
    let rule_name = messages::qualified_rule_name(&entry.snapshot.rules.name, rule);
    Some(match entry.tally.unknown_replicas_owners().denies_all() {
        true => format!("{rule_name}: {}", messages::EXPECTED_UNKNOWN_MESSAGE),
        false => {
            let (total, limit) = (size.total, size.total.saturating_sub(desired));
            format!("{rule_name}: at most {limit} of {total} Pods may be unavailable")
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys::{self, Family};
    use crate::cluster::index::Index;

    /// The explanation for four Pods without an owner under `rules`; the first Pod waits to be updated.
    fn explain(rules: Value, is_deleting: bool) -> Vec<String> {
        explain_stage(Family::PreCheck, rules, is_deleting)
    }

    /// As [`explain`], but the first Pod has the label of another stage.
    fn explain_stage(stage: Family, rules: Value, is_deleting: bool) -> Vec<String> {
        explain_with_status(stage, rules, json!({}), is_deleting)
    }

    /// As [`explain_stage`], under a rule object with this status.
    fn explain_with_status(
        stage: Family,
        rules: Value,
        status: Value,
        is_deleting: bool,
    ) -> Vec<String> {
        let index = Index::default();
        index.apply_rule(
            serde_json::from_value(json!({
                "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
                "spec": { "selector": {}, "rules": rules },
                "status": status,
            }))
            .unwrap(),
        );
        let pod = |name: String| -> Pod {
            serde_json::from_value(json!({ "metadata": {
                "namespace": "n", "name": name, "uid": name, "labels": { keys::CONTROL: "true" },
            } }))
            .unwrap()
        };
        let mut pods: Vec<_> = (0..4).map(|n| pod(format!("web-{n}"))).collect();
        let labels = &mut pods[0].metadata.labels;
        if stage == Family::PreCheck {
            labels.insert(Family::Operating.key("collaset"), "1".into());
            labels.insert(Family::OperationType.key("collaset"), "update".into());
        }
        labels.insert(stage.key("collaset"), "1".into());
        pods.iter().for_each(|pod| index.apply_pod(pod.clone()));
        let pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
        let mut reasons = describe_blocking_rules(&index.read_state(), &pods, is_deleting);
        assert_eq!(reasons.keys().collect::<Vec<_>>(), ["web-0"]);
        reasons.remove("web-0").unwrap()
    }

    fn check() -> Value {
        json!({ "name": "fit", "labelCheck": { "requires": { "matchLabels": { "fit": "1" } } } })
    }

    fn budget(name: &str, limit: Value) -> Value {
        json!({ "name": name, "availablePolicy": { "maxUnavailableValue": limit } })
    }

    #[test]
    fn rule_that_rejects_is_named_with_its_reason() {
        let wanted = [
            "rule fit of PodTransitionRule web: block by label check policy, pod n/web-0 labels not match fit=1",
        ];
        for is_deleting in [false, true] {
            assert_eq!(
                explain(json!([budget("a", json!(1)), check()]), is_deleting),
                wanted
            );
        }
    }

    #[test]
    fn budget_is_named_with_its_limit() {
        let rules = json!([budget("a", json!("50%")), budget("b", json!(1))]);
        let wanted = ["rule b of PodTransitionRule web: at most 1 of 4 Pods may be unavailable"];
        assert_eq!(explain(rules.clone(), false), wanted);
        assert_eq!(explain(rules, true), ["PodTransitionRule web"]);
    }

    #[test]
    fn post_check_rule_is_named_for_returning_pod() {
        let mut after = check();
        after["stage"] = json!("PostCheck");
        after["name"] = json!("after");
        let rules = json!([budget("a", json!(1)), check(), after]);
        let wanted = [
            "rule after of PodTransitionRule web: block by label check policy, pod n/web-0 labels not match fit=1",
        ];
        assert_eq!(explain_stage(Family::PostCheck, rules, false), wanted);
        let others = json!([budget("a", json!(1)), check()]);
        assert!(explain_stage(Family::PostCheck, others, false).is_empty());
    }

    #[test]
    fn stored_endpoint_answer_is_quoted() {
        let ask = json!([{ "name": "ask", "webhook": { "clientConfig": { "url": "https://a" } } }]);
        let detail = |pod: &str, stage: &str| json!({ "details": [{ "name": pod, "stage": stage, "rejectInfo": [{ "ruleName": "ask", "reason": "no route" }] }] });
        let explain =
            |status: Value| explain_with_status(Family::PreCheck, ask.clone(), status, false);
        let rule = "rule ask of PodTransitionRule web: ";
        let unanswered = format!("{rule}its endpoint has not let the Pod pass yet");
        assert_eq!(
            explain(detail("web-0", "PreCheck")),
            [format!("{rule}no route")]
        );
        assert_eq!(explain(json!({})), [&*unanswered]);
        assert_eq!(explain(detail("web-1", "PreCheck")), [&*unanswered]);
        assert_eq!(explain(detail("web-0", "PostCheck")), [&*unanswered]);
    }
}
