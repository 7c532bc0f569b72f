//! What the rules of a stage say about a Pod, except for budgets, which the ledger decides.

use super::webhook::{Candidate, EndpointVerdicts, UNANSWERED_MESSAGE};
use super::{CompiledRule, RuleKind, RuleSet, Stage};
use crate::api::keys::Family;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::lifecycle::has_operation_type;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Why a Pod waits in a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Name of the rule object.
    pub object: String,
    /// ID of the rule. Empty for the object as a whole.
    pub rule: String,
    /// The reason, for people.
    pub reason: String,
}

impl Rejection {
    /// The rule with the name of its object, for messages.
    pub fn qualified_rule_name(&self) -> String {
        let object = &self.object;
        match self.rule.as_str() {
            "" => format!("PodTransitionRule {object}"),
            rule => format!("rule {rule} of PodTransitionRule {object}"),
        }
    }
}

/// Rules of this object and stage that keep the Pod waiting whatever the budget, for all operations on the Pod that
/// wait in the stage. If the list is empty, only the ledger has yet to decide.
pub fn rejections(
    set: &RuleSet,
    stage: Stage,
    pod: &Pod,
    verdicts: &EndpointVerdicts,
) -> Vec<Rejection> {
    operation_rejections(set, stage, pod, &stage_candidates(stage, pod), verdicts).collect()
}

/// Like [`rejections`], for these operations only. Without any operations, a webhook rule holds the Pod. The iterator
/// is lazy, because an object may cause thousands of rejections.
pub fn operation_rejections<'a>(
    set: &'a RuleSet,
    stage: Stage,
    pod: &'a Pod,
    candidates: &'a [Candidate],
    verdicts: &'a EndpointVerdicts,
) -> impl Iterator<Item = Rejection> + 'a {
    let reject = |rule: &str, reason: String| Rejection {
        object: set.name.clone(),
        rule: rule.to_owned(),
        reason,
    };
    let selected = set.selects(pod);
    let unreadable = set.selector.as_ref().err().filter(|_| selected);
    let rules = (selected && unreadable.is_none()).then(|| set.applicable_rules(stage, pod));
    let rules = rules.into_iter().flatten().filter_map(move |rule| {
        let reason = match &rule.kind {
            RuleKind::Webhook(_) => {
                let passed = |c| verdicts.has_passed(&rule.id, c);
                let have_passed = !candidates.is_empty() && candidates.iter().all(passed);
                (!have_passed).then(|| UNANSWERED_MESSAGE.to_owned())
            }
            _ => immediate_rejection(rule, pod),
        };
        reason.map(|reason| reject(&rule.id, reason))
    });
    unreadable
        .map(|reason| reject("", reason.clone()))
        .into_iter()
        .chain(rules)
}

/// The rules of this object that an operation on the Pod has yet to pass in the stage, for messages: those that need a
/// budget or an endpoint, and those that reject the Pod as it is.
pub fn rules_to_pass<'a>(
    set: &'a RuleSet,
    stage: Stage,
    pod: &'a Pod,
) -> impl Iterator<Item = String> + 'a {
    let selected = set.selects(pod);
    let is_unreadable = selected && set.selector.is_err();
    let rules = (selected && !is_unreadable).then(|| set.applicable_rules(stage, pod));
    let rules = rules.into_iter().flatten().filter(|rule| match rule.kind {
        RuleKind::Availability(_) | RuleKind::Webhook(_) => true,
        RuleKind::LabelCheck(_) | RuleKind::Broken { .. } => {
            immediate_rejection(rule, pod).is_some()
        }
    });
    let rules = rules.map(|rule| messages::qualified_rule_name(&set.name, &rule.id));
    let object = is_unreadable.then(|| messages::qualified_rule_name(&set.name, ""));
    object.into_iter().chain(rules)
}

/// Why a rule holds an operation of a Pod, as the rules controller has stored it. `None` if it has stored no reason.
pub fn stored_rejection<'a>(
    object: &'a PodTransitionRule,
    stage: Stage,
    pod: &Pod,
    rule: &str,
    operation: &str,
) -> Option<&'a str> {
    let details = &object.status.as_ref()?.details;
    let mut pod_details = details
        .iter()
        .filter(|d| d.name == pod.metadata.name && d.stage == stage.as_str());
    let is_about_operation =
        |stored_operation: &str| stored_operation.is_empty() || stored_operation == operation;
    let rejection = pod_details.find_map(|d| {
        let mut rejection = d.reject_info.iter();
        rejection.find(|r| r.rule_name == rule && is_about_operation(&r.operation))
    })?;
    Some(&rejection.reason)
}

/// Whether a rule of this object and stage that depends only on the Pod keeps the Pod waiting.
pub fn has_immediate_rejection(set: &RuleSet, stage: Stage, pod: &Pod) -> bool {
    set.selects(pod)
        && (set.selector.is_err()
            || set
                .applicable_rules(stage, pod)
                .any(|rule| immediate_rejection(rule, pod).is_some()))
}

/// The reason of a rule that needs neither a budget nor an endpoint. `None` if the rule passes or needs one of them.
fn immediate_rejection(rule: &CompiledRule, pod: &Pod) -> Option<String> {
    match &rule.kind {
        RuleKind::Availability(_) | RuleKind::Webhook(_) => None,
        // Kuperator's wording (contract 5.4).
        RuleKind::LabelCheck(requires) => (!requires.matches(&pod.metadata.labels)).then(|| {
            format!(
                "block by label check policy, pod {}/{} labels not match {requires}",
                pod.metadata.namespace, pod.metadata.name
            )
        }),
        RuleKind::Broken { reason, .. } => Some(reason.clone()),
    }
}

/// The operations on a Pod that wait in a stage, by the Pod's labels, sorted by ID. Operations without a type are left
/// out, because they wait only for their type.
pub fn stage_candidates(stage: Stage, pod: &Pod) -> Vec<Candidate> {
    let labels = pod.metadata.labels.iter();
    labels
        .filter_map(|(key, since)| {
            let (family, id) = Family::parse(key)?;
            let is_waiting = family == stage.family()
                && (stage != Stage::PreCheck || has_operation_type(pod, id));
            is_waiting.then(|| new_candidate(pod, id, since))
        })
        .collect()
}

/// An operation on a Pod that waits in a stage. `since` is the value of its label.
pub fn new_candidate(pod: &Pod, id: &str, since: &str) -> Candidate {
    Candidate {
        name: pod.metadata.name.clone(),
        pod_uid: pod.metadata.uid.clone(),
        operation: id.to_owned(),
        since: since.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;

    fn object(status: Value) -> PodTransitionRule {
        serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "web", "namespace": "n", "generation": 2 },
            "spec": { "selector": {}, "rules": [
                { "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } },
                { "name": "labels", "labelCheck": { "requires": { "matchLabels": { "fit": "yes" } } } },
                { "name": "ask", "webhook": { "clientConfig": { "url": "http://a" } } },
                { "name": "after", "stage": "PostCheck", "labelCheck": { "requires": { "matchLabels": { "done": "yes" } } } },
                { "name": "ask-after", "stage": "PostCheck", "webhook": { "clientConfig": { "url": "http://a" } } },
            ] },
            "status": status,
        }))
        .unwrap()
    }

    fn pod(labels: Value) -> Pod {
        let mut pod: Pod = serde_json::from_value(
            json!({ "metadata": { "namespace": "n", "name": "p", "uid": "u", "labels": labels } }),
        )
        .unwrap();
        pod.metadata
            .labels
            .insert(keys::CONTROL.into(), keys::CONTROL_VALUE.into());
        pod
    }

    fn passed(rule: &str, generation: i64, operation: &str, since: &str) -> Value {
        json!({ "ruleStates": [{ "name": rule, "webhookStatus": { "generation": generation, "passed": [
            { "name": "p", "podUID": "u", "operation": operation, "since": since },
        ] } }] })
    }

    fn rules(status: Value, stage: Stage, pod: &Pod) -> Vec<String> {
        let object = object(status);
        let set = RuleSet::compile(&object);
        let verdicts = EndpointVerdicts::from_status(&object, &set);
        let rejected = rejections(&set, stage, pod, &verdicts);
        rejected.into_iter().map(|r| r.rule).collect()
    }

    #[test]
    fn rules_to_pass_are_those_that_may_still_hold() {
        let set = RuleSet::compile(&object(json!({})));
        let names = |stage, pod: &Pod| rules_to_pass(&set, stage, pod).collect::<Vec<_>>();
        let name = |rule: &str| format!("rule {rule} of PodTransitionRule web");
        assert_eq!(
            names(Stage::PreCheck, &pod(json!({}))),
            ["budget", "labels", "ask"].map(name)
        );
        let fit = pod(json!({ "fit": "yes" }));
        assert_eq!(names(Stage::PreCheck, &fit), ["budget", "ask"].map(name));
        assert_eq!(
            names(Stage::PostCheck, &fit),
            ["after", "ask-after"].map(name)
        );
    }

    #[test]
    fn label_check_names_labels_in_reason() {
        let object = object(json!({}));
        let set = RuleSet::compile(&object);
        let rejected = rejections(
            &set,
            Stage::PostCheck,
            &pod(json!({})),
            &EndpointVerdicts::default(),
        );
        assert_eq!(rejected[0].rule, "after");
        assert_eq!(
            rejected[0].reason,
            "block by label check policy, pod n/p labels not match done=yes"
        );
        assert_eq!(
            rules(json!({}), Stage::PostCheck, &pod(json!({ "done": "yes" }))),
            ["ask-after"]
        );
        assert!(has_immediate_rejection(
            &set,
            Stage::PreCheck,
            &pod(json!({ "done": "yes" }))
        ));
        assert!(!has_immediate_rejection(
            &set,
            Stage::PreCheck,
            &pod(json!({ "fit": "yes" }))
        ));
    }

    #[test]
    fn verdict_counts_for_this_operation_and_generation_only() {
        let waiting = pod(json!({
            "fit": "yes", Family::PreCheck.key("x"): "7", Family::OperationType.key("x"): "t",
        }));
        let pre = |status| rules(status, Stage::PreCheck, &waiting);
        assert_eq!(pre(json!({})), ["ask"]);
        assert_eq!(pre(passed("ask", 2, "x", "7")), [""; 0]);
        for stale in [
            passed("ask", 1, "x", "7"),   // another generation
            passed("ask", 2, "x", "6"),   // an earlier run of the ID
            passed("ask", 2, "y", "7"),   // another ID
            passed("other", 2, "x", "7"), // another rule
        ] {
            assert_eq!(pre(stale), ["ask"]);
        }
        let mut recreated = waiting.clone();
        recreated.metadata.uid = "v".into();
        assert_eq!(
            rules(passed("ask", 2, "x", "7"), Stage::PreCheck, &recreated),
            ["ask"]
        );
    }

    #[test]
    fn both_stages_at_once_are_judged_by_their_own_operations() {
        let both = pod(json!({
            "fit": "yes", "done": "yes", Family::PreCheck.key("x"): "7", Family::OperationType.key("x"): "t",
            Family::PostCheck.key("y"): "8",
        }));
        let status = passed("ask", 2, "x", "7");
        assert_eq!(rules(status.clone(), Stage::PreCheck, &both), [""; 0]);
        assert_eq!(rules(status, Stage::PostCheck, &both), ["ask-after"]);
        let status = passed("ask-after", 2, "y", "8");
        assert_eq!(rules(status.clone(), Stage::PreCheck, &both), ["ask"]);
        assert_eq!(rules(status, Stage::PostCheck, &both), [""; 0]);
    }

    #[test]
    fn two_operations_of_a_stage_need_a_verdict_each() {
        let object = object(passed("ask", 2, "x", "7"));
        let set = RuleSet::compile(&object);
        let verdicts = EndpointVerdicts::from_status(&object, &set);
        let pod = pod(json!({
            "fit": "yes", Family::PreCheck.key("x"): "7", Family::PreCheck.key("y"): "9",
            Family::OperationType.key("x"): "t", Family::OperationType.key("y"): "t",
        }));
        assert_eq!(rejections(&set, Stage::PreCheck, &pod, &verdicts).len(), 1);
        let operation = |id, since| {
            operation_rejections(
                &set,
                Stage::PreCheck,
                &pod,
                &[new_candidate(&pod, id, since)],
                &verdicts,
            )
            .count()
        };
        assert_eq!(operation("x", "7"), 0);
        assert_eq!(operation("y", "9"), 1);
        assert_eq!(
            operation_rejections(&set, Stage::PreCheck, &pod, &[], &verdicts).count(),
            1
        );
    }

    #[test]
    fn verdict_counts_only_for_rule_with_same_id() {
        let ask =
            |url: &str| json!({ "name": "ask", "webhook": { "clientConfig": { "url": url } } });
        let second =
            json!({ "name": "ask#2", "labelCheck": { "requires": { "matchLabels": {} } } });
        let rules = json!([ask("http://a"), second, ask("http://b")]);
        let mut object: PodTransitionRule = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "n", "generation": 2 },
            "spec": { "selector": {}, "rules": rules },
        }))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({ "metadata": {
            "name": "web-1", "uid": "u1",
            "labels": {
                (keys::CONTROL): keys::CONTROL_VALUE,
                "pre-check.podopslifecycle.kusionstack.io/id": "7",
                "operation-type.podopslifecycle.kusionstack.io/id": "t",
            },
        } }))
        .unwrap();
        let passed = stage_candidates(Stage::PreCheck, &pod);
        assert_eq!(passed.len(), 1);
        let mut waits_for = |answered: &[&str]| {
            let states = answered.iter().map(
                |id| json!({ "name": id, "webhookStatus": { "generation": 2, "passed": passed } }),
            );
            let states: Vec<_> = states.collect();
            object.status = serde_json::from_value(json!({ "ruleStates": states })).unwrap();
            let set = RuleSet::compile(&object);
            let verdicts = EndpointVerdicts::from_status(&object, &set);
            let waits = rejections(&set, Stage::PreCheck, &pod, &verdicts);
            waits.into_iter().map(|r| r.rule).collect::<Vec<_>>()
        };
        assert_eq!(waits_for(&[]), ["ask", "ask#3"]);
        assert_eq!(waits_for(&["ask"]), ["ask#3"]);
        assert_eq!(waits_for(&["ask#3"]), ["ask"]);
        assert_eq!(waits_for(&["ask", "ask#3"]), [""; 0]);
    }
}
