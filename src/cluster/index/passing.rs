//! Which operations the rules of a stage let pass, apart from the budgets.

use super::{Entry, State};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{candidates, rejections_of};
use crate::domain::rules::webhook::Candidate;

impl State {
    /// The rule objects that cover a Pod.
    pub fn covering<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Entry> {
        let namespace = self.namespace(&pod.metadata.namespace);
        namespace
            .into_iter()
            .flat_map(|n| n.rules.values())
            .filter(|entry| entry.snapshot.rules.selects(pod))
    }

    /// Whether no rule of the stage keeps this operation on the Pod waiting whatever the budgets.
    pub fn passes(&self, stage: Stage, pod: &Pod, waiting: &Candidate) -> bool {
        let waiting = std::slice::from_ref(waiting);
        self.covering(pod).all(|entry| {
            rejections_of(&entry.snapshot.rules, stage, pod, waiting, &entry.verdicts).is_empty()
        })
    }

    /// Whether no rule of the stage keeps all operations on the Pod waiting. False if none waits.
    pub fn any_passes(&self, stage: Stage, pod: &Pod) -> bool {
        candidates(stage, pod)
            .iter()
            .any(|waiting| self.passes(stage, pod, waiting))
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
        let state = State::default();
        let complete = pod(json!({ &wait: "1", &operating: "1", &type_: "update" }));
        assert!(state.any_passes(Stage::PreCheck, &complete));
        let untyped = pod(json!({ &wait: "1", &operating: "1" }));
        assert!(!state.any_passes(Stage::PreCheck, &untyped));
        let one_of_two = pod(json!({
            &wait: "1", &operating: "1", &type_: "update",
            Family::PreCheck.key("y"): "1", Family::Operating.key("y"): "1",
        }));
        assert!(state.any_passes(Stage::PreCheck, &one_of_two));
    }
}
