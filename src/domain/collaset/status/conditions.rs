//! Conditions of a CollaSet.
//!
//! `Scale`, `Update` and `Terminating` speak as they always have: False when a step could not be made, True once what
//! it leads to is there. `Ready` says in one word whether everything that the spec asks for is so, and `Stalled`
//! appears when it will not be without a change, in the form that tools for rollouts read (kstatus).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::facts::Facts;
use super::super::strategy::Scope;
use super::{leaving, told};
use crate::api::collaset::{CollaSetCondition, CollaSetStatus};
use crate::api::keys;
use crate::domain::pod::Pod;

/// What could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pods could not be created.
    ScaleOut,
    /// Pods could not be taken away.
    ScaleIn,
    /// Pods could not be changed.
    Update,
    /// PersistentVolumeClaims could not be written.
    Claims,
    /// The pool of instance IDs could not be written.
    Pool,
    /// ControllerRevisions could not be written.
    Revisions,
}

/// Notes a step that failed. `former` are the conditions that are stored: one that says so already keeps its time.
pub fn failed(
    status: &mut CollaSetStatus,
    former: &[CollaSetCondition],
    step: Step,
    message: &str,
    now: Timestamp,
) {
    let (type_, reason) = match step {
        Step::ScaleOut | Step::Claims | Step::Pool => ("Scale", "ScaleOutFailed"),
        Step::ScaleIn => ("Scale", "ScaleInFailed"),
        Step::Update | Step::Revisions => ("Update", "UpdateFailed"),
    };
    for type_ in [type_, "Ready"] {
        set(status, now, type_, false, reason, message.to_owned());
        let known = former.iter().find(|c| c.type_ == type_);
        let since = known.filter(|c| c.status == "False");
        let since = since.and_then(|c| c.last_transition_time.clone());
        let noted = status.conditions.iter_mut().find(|c| c.type_ == type_);
        if let (Some(noted), Some(since)) = (noted, since) {
            noted.last_transition_time = Some(since);
        }
    }
}

/// Notes a spec that nothing can be made of.
pub fn invalid(status: &mut CollaSetStatus, message: &str, now: Timestamp) {
    set(status, now, "Ready", false, "Invalid", message.to_owned());
    set(status, now, "Stalled", true, "Invalid", message.to_owned());
}

/// The conditions that the facts make; what they do not speak of stays.
pub(super) fn of(facts: &Facts, status: &mut CollaSetStatus) {
    let now = time(facts.observed.now_nanos);
    if facts.observed.set.metadata.deletion_timestamp.is_some() {
        let left = facts.observed.pods.len();
        let (done, reason) = match left {
            0 => (true, "Deleted"),
            _ => (false, "ReclaimingTargetsDeletion"),
        };
        let message = format!("{left} Pods left{}", leaving::told(facts));
        set(status, now, "Terminating", done, reason, message.clone());
        set(status, now, "Ready", false, "Terminating", message);
        return;
    }
    let view = View::of(facts, status);
    let paused = facts.strategy.paused;
    if view.missing == 0 && view.surplus == 0 {
        set(status, now, "Scale", true, "Scaled", String::new());
    } else if paused {
        let message = view.scaling(facts);
        set(status, now, "Scale", false, "Paused", message);
    }
    match &view.stuck {
        Some(why) => set(status, now, "Update", false, "UpdateFailed", why.clone()),
        None if view.behind == 0 && view.updating == 0 && view.pairs == 0 => {
            set(status, now, "Update", true, "Updated", String::new());
        }
        None if paused && view.behind > 0 => {
            let message = format!("{} Pods to update", view.behind);
            set(status, now, "Update", false, "Paused", message);
        }
        None => {}
    }
    let (ready, reason, message) = view.ready(facts);
    set(status, now, "Ready", ready, reason, message);
    status.conditions.retain(|c| c.type_ != "Stalled");
}

struct View {
    missing: usize,
    surplus: usize,
    behind: usize,
    updating: usize,
    /// Pairs of a Pod and the one that takes its place.
    pairs: usize,
    unavailable: Vec<Arc<Pod>>,
    /// Pods that are terminating and whose names, which persist, others need.
    awaited: Vec<String>,
    stuck: Option<String>,
}

impl View {
    fn of(facts: &Facts, status: &CollaSetStatus) -> View {
        let pods: Vec<_> = facts.members.values().collect();
        let wanted = facts.strategy.replicas;
        let pairs = pods.iter().filter(|p| facts.is_half(p)).count();
        let there = pods.len() - pairs;
        let old = pods.iter().filter(|p| !facts.is_updated(p));
        let behind = match facts.strategy.scope {
            Scope::Partition(partition) => old.count().saturating_sub(partition),
            Scope::ByLabel => old
                .filter(|p| p.label(keys::UPDATE_INCLUDED).is_some())
                .count(),
        };
        let unavailable = pods.iter().filter(|p| !p.is_available());
        View {
            missing: wanted.saturating_sub(there),
            surplus: there.saturating_sub(wanted)
                + facts.misnumbered.len()
                + facts.unselected.len(),
            behind,
            updating: usize::try_from(status.operating_replicas).unwrap_or(0),
            pairs,
            unavailable: unavailable.map(|p| Arc::clone(p)).collect(),
            awaited: awaited(facts),
            stuck: pods
                .iter()
                .filter(|p| facts.is_updated(p))
                .find_map(|p| Some(format!("Pod {}: {}", p.metadata.name, trouble(p)?))),
        }
    }

    fn ready(&self, facts: &Facts) -> (bool, &'static str, String) {
        let paused = facts.strategy.paused;
        if self.missing > 0 || self.surplus > 0 {
            let reason = if paused { "Paused" } else { "Scaling" };
            return (false, reason, self.scaling(facts));
        }
        if let Some(why) = &self.stuck {
            return (false, "UpdateFailed", why.clone());
        }
        if self.behind > 0 || self.updating > 0 {
            let (behind, updating) = (self.behind, self.updating);
            let told = told::under_way(facts);
            let message = format!("{behind} Pods to update, {updating} under way{told}");
            let reason = if paused { "Paused" } else { "Updating" };
            return (false, reason, message);
        }
        if self.pairs > 0 {
            let message = format!("{} Pods are being replaced", self.pairs);
            return (false, "Replacing", message);
        }
        if !self.unavailable.is_empty() {
            let count = self.unavailable.len();
            let told = told::unavailable(self.unavailable.iter());
            return (
                false,
                "Unavailable",
                format!("{count} Pods are not available{told}"),
            );
        }
        (true, "AsWanted", String::new())
    }

    fn scaling(&self, facts: &Facts) -> String {
        let mut message = format!("{} Pods missing, {} to go", self.missing, self.surplus);
        if self.missing > 0 && !self.awaited.is_empty() {
            message += &format!("; waiting for {} to end", self.awaited.join(", "));
        } else if self.missing > 0
            && let Some((pod, claim)) = facts.awaited_claim()
        {
            let pod = &pod.metadata.name;
            message +=
                &format!("; waiting for Pod {pod}, which still mounts claim {claim}, to end");
        }
        if self.missing > 0 {
            message += &told::ended(facts);
        }
        message + &told::under_way(facts)
    }
}

/// Names of Pods that have to end before others of their names can be made, the first few. On a node that is lost they
/// hang until the node is back, its object is deleted, or somebody deletes them by force.
fn awaited(facts: &Facts) -> Vec<String> {
    let vacant = facts
        .terminating
        .iter()
        .filter(|(id, _)| facts.strategy.sequence && !facts.members.contains_key(id));
    let pods = vacant.flat_map(|(_, pods)| pods);
    let names = pods.map(|p| p.metadata.name.clone());
    names.take(told::NAMED).collect()
}

/// Reasons of a waiting container that do not go away by waiting.
const TROUBLES: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// What keeps a container of a Pod from running, if a change of the template is needed.
fn trouble(pod: &Pod) -> Option<String> {
    let status = &pod.status;
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses);
    all.into_iter().find_map(|container| {
        let waiting = container.waiting.as_deref()?;
        TROUBLES.contains(&waiting.reason.as_str()).then(|| {
            let (name, reason, message) = (&container.name, &waiting.reason, &waiting.message);
            format!("container {name}: {reason}: {message}")
        })
    })
}

/// The time of conditions, to the second; `now_nanos` since 1970.
pub fn time(now_nanos: u64) -> Timestamp {
    let seconds = i64::try_from(now_nanos / 1_000_000_000).unwrap_or(0);
    Timestamp::from_second(seconds).unwrap_or_default()
}

/// Sets a condition; the time moves only with the status.
fn set(
    status: &mut CollaSetStatus,
    now: Timestamp,
    type_: &str,
    value: bool,
    reason: &str,
    message: String,
) {
    let value = if value { "True" } else { "False" };
    let generation = Some(status.observed_generation).filter(|g| *g > 0);
    let known = status.conditions.iter_mut().find(|c| c.type_ == type_);
    let since = known
        .as_ref()
        .filter(|c| c.status == value)
        .and_then(|c| c.last_transition_time.clone());
    let condition = CollaSetCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        observed_generation: generation,
        last_transition_time: since.or(Some(Time(now))),
        reason: reason.to_owned(),
        message,
    };
    match known {
        Some(known) => *known = condition,
        None => status.conditions.push(condition),
    }
}
