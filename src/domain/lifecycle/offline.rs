//! What keeps a Pod out of service once an operation on it is done (rows 10 to 12): for `kubectl operating why`, and for the
//! status of a CollaSet.

use std::fmt;

use super::{ExpectedFinalizers, Phase, phases, restarts};
use crate::api::keys;
use crate::domain::pod::Pod;

/// Something that keeps a Pod out of service. Its text completes `waits for`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Another operation: its lifecycle ID, and where it stands.
    Operation(String, Phase),
    /// A label by which a user keeps the Pod off traffic.
    StayOffline,
    /// Containers that are yet to restart for a change, as a clause.
    Restart(String),
    /// The kubelet has not noticed that the Pod was off traffic.
    Unnoticed,
    /// The condition `service-ready` is not set back yet.
    Gate,
    /// The kubelet does not report the Pod Ready.
    NotReady,
    /// A finalizer that a cooperator is to add: its key in the annotation `available-conditions`, and the finalizer.
    Finalizer(String, String),
    /// The annotation `available-conditions` can't be read, and why.
    Unreadable(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Operation(id, phase) => write!(
                f,
                "operation {id}, which is in {} and keeps the Pod off traffic",
                phase.name()
            ),
            Obstacle::StayOffline => {
                write!(f, "somebody, to take the label {} off", keys::STAY_OFFLINE)
            }
            Obstacle::Restart(restarts) => f.write_str(restarts),
            Obstacle::Unnoticed => {
                f.write_str("the kubelet, to notice that the Pod was off traffic")
            }
            Obstacle::Gate => write!(
                f,
                "the lifecycle controller, to set the condition {} to True",
                keys::SERVICE_READY
            ),
            Obstacle::NotReady => f.write_str("the kubelet, to report the Pod Ready"),
            Obstacle::Finalizer(key, finalizer) => write!(
                f,
                "finalizer {finalizer} of {key}, to be added once traffic is on"
            ),
            Obstacle::Unreadable(error) => write!(
                f,
                "somebody, to mend or remove the annotation {}: {error}",
                keys::AVAILABLE_CONDITIONS
            ),
        }
    }
}

/// What keeps a Pod out of service, all of it; empty where nothing does that is known here. The operations `own` are left out: the
/// caller tells of them.
pub fn obstacles(pod: &Pod, own: &[&str]) -> Vec<Obstacle> {
    let others = phases(pod).into_iter();
    let others = others.filter(|(id, phase)| !own.contains(&id.as_str()) && phase.holds_offline());
    let mut all: Vec<Obstacle> = others
        .map(|(id, phase)| Obstacle::Operation(id, phase))
        .collect();
    if !all.is_empty() {
        return all;
    }
    if pod.label(keys::STAY_OFFLINE).is_some() {
        return vec![Obstacle::StayOffline];
    }
    if let Some(restarts) = restarts::told(pod) {
        all.push(Obstacle::Restart(restarts));
    } else if pod.has_service_ready_gate() && pod.condition(keys::SERVICE_READY) != Some(true) {
        all.push(match pod.is_ready() {
            true => Obstacle::Unnoticed,
            false => Obstacle::Gate,
        });
    } else if !pod.is_ready() {
        all.push(Obstacle::NotReady);
    }
    all.extend(cooperators(pod));
    all
}

/// Finalizers that cooperators have yet to add, by which they say that traffic is on.
pub fn cooperators(pod: &Pod) -> Vec<Obstacle> {
    let expected = match ExpectedFinalizers::of(pod) {
        Ok(expected) => expected,
        Err(error) => return vec![Obstacle::Unreadable(error)],
    };
    let has = |finalizer: &str| pod.metadata.finalizers.iter().any(|f| f == finalizer);
    let missing = expected
        .entries()
        .filter(|(_, finalizer)| !has(finalizer))
        .map(|(key, finalizer)| Obstacle::Finalizer(key.to_owned(), finalizer.to_owned()));
    missing.collect()
}
