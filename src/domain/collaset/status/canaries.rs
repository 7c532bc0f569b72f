//! Reports Pods of the updated revision that go down while a rollout pauses at a step.

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

const REASON: &str = "CanaryUnavailable";
/// Most Pods that the Event names.
const MAX_NAMES: usize = 20;

/// Returns the pause at which a rollout stands; `None` if it is not at a pause.
pub fn rollout_pause(facts: &SetFacts, status: &CollaSetStatus) -> Option<PausePoint> {
    let step = waits::describe_pause(facts, status)?;
    let members = facts.members.values();
    let updated = members.filter(|pod| facts.is_updated(pod));
    let canaries = updated.cloned().collect();
    Some(PausePoint { step, canaries })
}

/// Remembers the canaries of a pause from one plan to the next: the UIDs of the canaries that were available and have
/// not been reported as down. If this memory is lost, a Pod that is already down is not reported.
#[derive(Clone, Debug, Default)]
pub struct CanaryWatch(BTreeSet<String>);

impl CanaryWatch {
    /// Returns the Event about canaries that have gone down since the last plan, if there are any. A Pod with an
    /// operation in progress, or one that is being deleted, is off traffic on purpose and not reported.
    pub fn observe_pause(&mut self, pause: Option<&PausePoint>) -> Option<SetEvent> {
        let Some(pause) = pause else {
            self.0.clear();
            return None;
        };
        let mut watched = std::mem::take(&mut self.0);
        let mut down = Vec::new();
        for pod in &pause.canaries {
            let uid = &pod.metadata.uid;
            let was_available = watched.remove(uid);
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
    let names = match names.len() > super::MAX_NAMES {
        true => format!(": {}", messages::list_names(&names, MAX_NAMES)),
        false => String::new(),
    };
    let pods = messages::count_pods_with_verb(
        down.len(),
        "of the updated revision is",
        "of the updated revision are",
    );
    // No rules are needed here: a Pod that waits for rules has an operation and is not in the list.
    let reasons = waits::describe_unavailable(None, down.iter().copied());
    format!("{pods} no longer available{names}{reasons}; {step}")
}
