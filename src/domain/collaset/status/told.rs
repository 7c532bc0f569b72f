//! What Pods wait for, in the words of a condition.

use std::sync::Arc;

use super::super::facts::Facts;
use super::super::lifecycle::{self, Operation};
use super::super::revision::inplace::{Progress, progress};
use super::time;
use crate::domain::lifecycle::{Phase, phases};
use crate::domain::pod::Pod;

/// Pods that a message names at most.
pub const NAMED: usize = 3;

/// What the first of these Pods that are under way wait for, each after `; `; empty where none waits for anything that is known
/// here.
pub fn under_way(facts: &Facts, is_told: impl Fn(&Pod) -> bool) -> String {
    let going = facts.misnumbered.iter().chain(&facts.unselected);
    let members = facts.members.values().chain(going);
    let members = members.filter(|pod| is_told(pod));
    let waiting = members.filter_map(|pod| {
        Some(format!(
            "; Pod {} {}",
            pod.metadata.name,
            of_operation(facts, pod)?
        ))
    });
    waiting.take(NAMED).collect()
}

/// Why the first Pods that are not available are not, each after `; `.
pub fn unavailable<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> String {
    let told = pods.map(|pod| format!("; Pod {} {}", pod.metadata.name, of_pod(pod)));
    told.take(NAMED).collect()
}

/// When the first Pods that have ended are made again, each after `; `.
pub fn ended(facts: &Facts) -> String {
    let told = facts.waiting.values().filter_map(|pod| {
        let at = time(facts.made_again_at(pod)?);
        let (name, phase) = (&pod.metadata.name, &pod.status.phase);
        Some(format!("; Pod {name} is {phase} and is made again at {at}"))
    });
    told.take(NAMED).collect()
}

fn of_operation(facts: &Facts, pod: &Pod) -> Option<String> {
    if !Operation::Update.is_on(pod) && !Operation::ScaleIn.is_on(pod) {
        return None;
    }
    match phases(pod).get(lifecycle::ID)? {
        Phase::PreCheck => {
            let rules = facts.observed.rules.get(&pod.metadata.uid);
            Some(match rules.map(|rules| rules.join(", ")) {
                Some(rules) if !rules.is_empty() => format!("waits for PodTransitionRule {rules}"),
                _ => "waits to be let off traffic".to_owned(),
            })
        }
        Phase::Preparing => Some("waits to be off traffic".to_owned()),
        Phase::Operate => match progress(pod) {
            Progress::Waiting(why) | Progress::Refused(why) => {
                Some(format!("waits for its kubelet: {why}"))
            }
            Progress::Done => Some("is off traffic and waits for its turn".to_owned()),
        },
        _ => Some(format!("is to come back: {}", of_pod(pod))),
    }
}

/// Why a Pod does not serve.
fn of_pod(pod: &Pod) -> String {
    let status = &pod.status;
    let containers = status.init_container_statuses.iter();
    let mut containers = containers.chain(&status.container_statuses);
    let waiting = containers.find_map(|container| {
        let waiting = container.waiting.as_deref()?;
        let (name, reason) = (&container.name, &waiting.reason);
        Some(match waiting.message.as_str() {
            "" => format!("is down: container {name}: {reason}"),
            message => format!("is down: container {name}: {reason}: {message}"),
        })
    });
    let scheduled = status.conditions.iter().find(|c| c.type_ == "PodScheduled");
    match scheduled.filter(|c| c.status != "True") {
        Some(c) if c.reason.is_empty() => "has no node".to_owned(),
        Some(c) => format!("has no node: {}", c.reason),
        None => waiting.unwrap_or_else(|| match pod.is_ready() {
            true => "is Ready and not back in service yet".to_owned(),
            false => "is not Ready".to_owned(),
        }),
    }
}
