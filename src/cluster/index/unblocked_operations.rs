//! Decides which operations the rules of a stage let pass, apart from the budgets.

use super::{IndexState, RuleEntry};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{
    has_immediate_rejection, operation_rejections, stage_candidates,
};
use crate::domain::rules::webhook::Candidate;

impl IndexState {
    /// The rule objects that cover a Pod.
    pub fn rules_covering<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a RuleEntry> {
        let namespace = self.namespace(&pod.metadata.namespace);
        namespace
            .into_iter()
            .flat_map(|n| n.rules.values())
            .filter(|entry| entry.snapshot.rules.selects(pod))
    }

    /// The operations on the Pod that no rule of the stage rejects, whatever the budgets. The rule objects are looked
    /// up once for all operations.
    pub fn passing_operations(
        &self,
        stage: Stage,
        pod: &Pod,
        mut waiting: Vec<Candidate>,
    ) -> Vec<Candidate> {
        for entry in self.rules_covering(pod) {
            let rules = &entry.snapshot.rules;
            if waiting.is_empty() || has_immediate_rejection(rules, stage, pod) {
                return Vec::new();
            }
            if rules.webhook_rules(stage).next().is_some() {
                waiting.retain(|waiting| {
                    let own = std::slice::from_ref(waiting);
                    operation_rejections(rules, stage, pod, own, &entry.verdicts)
                        .next()
                        .is_none()
                });
            }
        }
        waiting
    }

    /// Whether the rules of the stage let at least one waiting operation on the Pod pass. False if no operation waits.
    pub fn has_passing_operation(&self, stage: Stage, pod: &Pod) -> bool {
        !self
            .passing_operations(stage, pod, stage_candidates(stage, pod))
            .is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::keys::{self, Family};

    #[test]
    fn operation_without_a_type_never_passes() {
        let (wait, type_) = (Family::PreCheck.key("x"), Family::OperationType.key("x"));
        let operating = Family::Operating.key("x");
        let pod = |labels: serde_json::Value| -> Pod {
            let mut labels = labels;
            labels[keys::CONTROL] = json!(keys::CONTROL_VALUE);
            let metadata =
                json!({ "namespace": "n", "name": "web-1", "uid": "u", "labels": labels });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        let state = IndexState::default();
        let complete = pod(json!({ &wait: "1", &operating: "1", &type_: "update" }));
        assert!(state.has_passing_operation(Stage::PreCheck, &complete));
        let untyped = pod(json!({ &wait: "1", &operating: "1" }));
        assert!(!state.has_passing_operation(Stage::PreCheck, &untyped));
        let one_of_two = pod(json!({
            &wait: "1", &operating: "1", &type_: "update",
            Family::PreCheck.key("y"): "1", Family::Operating.key("y"): "1",
        }));
        assert!(state.has_passing_operation(Stage::PreCheck, &one_of_two));
    }
}
