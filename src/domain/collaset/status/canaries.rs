//! Pods of the updated revision that go down while a rollout pauses at a step.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::plan::{PausePoint, SetEvent};
use super::super::set_facts::SetFacts;
use super::super::set_operations;
use super::waits;
use crate::api::collaset::CollaSetStatus;
use crate::domain::lifecycle::stored_phases;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Reason of the Event.
const REASON: &str = "CanaryUnavailable";
/// Pods that it names at most.
const MAX_NAMES: usize = 20;

/// The pause that a rollout is at; `None` where it is at none.
pub fn rollout_pause(facts: &SetFacts, status: &CollaSetStatus) -> Option<PausePoint> {
    let step = waits::describe_pause(facts, status)?;
    let members = facts.members.values();
    let updated = members.filter(|pod| facts.is_updated(pod));
    let canaries = updated.cloned().collect();
    Some(PausePoint { step, canaries })
}

/// What is remembered of the canaries of a pause from one plan to the next: the UIDs of those that were available, until it is told
/// that they are no longer. If it is lost, a Pod that is down by then is not told of.
#[derive(Clone, Debug, Default)]
pub struct CanaryWatch(BTreeSet<String>);

impl CanaryWatch {
    /// What is to be told of those that have gone down since the last plan, if any have. A Pod in an operation, or on its way out, is off
    /// traffic on purpose.
    pub fn observe_pause(&mut self, pause: Option<&PausePoint>) -> Option<SetEvent> {
        let Some(pause) = pause else {
            self.0.clear();
            return None;
        };
        let mut known = std::mem::take(&mut self.0);
        let mut down = Vec::new();
        for pod in &pause.canaries {
            let uid = &pod.metadata.uid;
            let was_available = known.remove(uid);
            let is_meant = !stored_phases(pod).is_empty() || set_operations::is_leaving(pod);
            if pod.is_available() || was_available && is_meant {
                self.0.insert(uid.clone());
            } else if was_available {
                down.push(pod);
            }
        }
        (!down.is_empty()).then(|| SetEvent {
            warning: true,
            reason: REASON,
            message: canary_message(&down, &pause.step),
        })
    }
}

fn canary_message(down: &[&Arc<Pod>], step: &str) -> String {
    let names: Vec<&str> = down.iter().map(|pod| &*pod.metadata.name).collect();
    let names = match names.len() > waits::MAX_NAMES {
        true => format!(": {}", messages::list_names(&names, MAX_NAMES)),
        false => String::new(),
    };
    let pods = messages::count_pods_with_verb(
        down.len(),
        "of the updated revision is",
        "of the updated revision are",
    );
    // No rule holds them: a Pod in an operation is none of them.
    let why = waits::describe_unavailable(None, down.iter().copied());
    format!("{pods} no longer available{names}{why}; {step}")
}
