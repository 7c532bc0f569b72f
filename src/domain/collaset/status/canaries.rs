//! Pods of the updated revision that go down while a rollout pauses at a step.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::facts::Facts;
use super::super::lifecycle;
use super::super::plan::{Event, Pause};
use super::told;
use crate::api::collaset::CollaSetStatus;
use crate::domain::lifecycle::phases;
use crate::domain::pod::Pod;
use crate::domain::wording;

/// Reason of the Event.
const REASON: &str = "CanaryUnavailable";
/// Pods that it names at most.
const NAMED: usize = 20;

/// The pause that a rollout is at; `None` where it is at none.
pub fn pause(facts: &Facts, status: &CollaSetStatus) -> Option<Pause> {
    let step = told::pause(facts, status)?;
    let members = facts.members.values();
    let updated = members.filter(|pod| facts.is_updated(pod));
    let canaries = updated.cloned().collect();
    Some(Pause { step, canaries })
}

/// What is remembered of the canaries of a pause from one plan to the next: the UIDs of those that were available, until it is told
/// that they are no longer. If it is lost, a Pod that is down by then is not told of.
#[derive(Clone, Debug, Default)]
pub struct Canaries(BTreeSet<String>);

impl Canaries {
    /// What is to be told of those that have gone down since the last plan, if any have. A Pod in an operation, or on its way out, is off
    /// traffic on purpose.
    pub fn look(&mut self, pause: Option<&Pause>) -> Option<Event> {
        let Some(pause) = pause else {
            self.0.clear();
            return None;
        };
        let mut known = std::mem::take(&mut self.0);
        let mut down = Vec::new();
        for pod in &pause.canaries {
            let uid = &pod.metadata.uid;
            let was_available = known.remove(uid);
            let is_meant = !phases(pod).is_empty() || lifecycle::is_leaving(pod);
            if pod.is_available() || was_available && is_meant {
                self.0.insert(uid.clone());
            } else if was_available {
                down.push(pod);
            }
        }
        (!down.is_empty()).then(|| Event {
            warning: true,
            reason: REASON,
            message: message(&down, &pause.step),
        })
    }
}

fn message(down: &[&Arc<Pod>], step: &str) -> String {
    let names: Vec<&str> = down.iter().map(|pod| &*pod.metadata.name).collect();
    let names = match names.len() > told::NAMED {
        true => format!(": {}", wording::listed(&names, NAMED)),
        false => String::new(),
    };
    let pods = wording::pods_do(
        down.len(),
        "of the updated revision is",
        "of the updated revision are",
    );
    // No rule holds them: a Pod in an operation is none of them.
    let why = told::unavailable(None, down.iter().copied());
    format!("{pods} no longer available{names}{why}; {step}")
}
