//! What keeps a Pod out of service after an operation on it is done (rows 10 to 12), for `kubectl operating why` and
//! for the status of a CollaSet.

use std::fmt;

use super::{ExpectedFinalizers, Phase, restarts, stored_phases};
use crate::api::keys;
use crate::domain::not_ready::NotReadyCause;
use crate::domain::pod::Pod;

/// A cause that keeps a Pod out of service. `Display` writes what can follow the words `waits for`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceObstacle {
    /// Another operation: its lifecycle ID and its phase.
    Operation(String, Phase),
    /// The label `stay-offline`, by which a user keeps the Pod off traffic.
    StayOffline,
    /// Containers that have yet to restart for a change, as a clause.
    Restart(String),
    /// The kubelet has not seen yet that the Pod was off traffic.
    Unnoticed,
    /// The condition `service-ready` is not True yet.
    Gate,
    /// The kubelet does not report the Pod Ready, and the cause in a clause, if it is known.
    NotReady(Option<String>),
    /// A finalizer that a cooperator has yet to add: its key in the annotation `available-conditions`, and the
    /// finalizer.
    Finalizer(String, String),
    /// Why the annotation `available-conditions` can't be read.
    Unreadable(String),
}

impl fmt::Display for ServiceObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceObstacle::Operation(id, phase) => write!(
                f,
                "operation {id}, which is in {} and keeps the Pod off traffic",
                phase.name()
            ),
            ServiceObstacle::StayOffline => {
                write!(f, "a user, to remove the label {}", keys::STAY_OFFLINE)
            }
            ServiceObstacle::Restart(restarts) => f.write_str(restarts),
            ServiceObstacle::Unnoticed => {
                f.write_str("the kubelet, to notice that the Pod was off traffic")
            }
            ServiceObstacle::Gate => write!(
                f,
                "the lifecycle controller, to set the condition {} to True",
                keys::SERVICE_READY
            ),
            ServiceObstacle::NotReady(None) => f.write_str("the kubelet, to report the Pod Ready"),
            ServiceObstacle::NotReady(Some(cause)) => {
                write!(f, "the kubelet, to report the Pod Ready: {cause}")
            }
            ServiceObstacle::Finalizer(key, finalizer) => write!(
                f,
                "finalizer {finalizer} of {key}, to be added once traffic is on"
            ),
            ServiceObstacle::Unreadable(error) => write!(
                f,
                "a user, to correct or remove the annotation {}: {error}",
                keys::AVAILABLE_CONDITIONS
            ),
        }
    }
}

/// All known causes that keep a Pod out of service. Empty if there are none. The operations `own_ids` are left out,
/// because the caller reports them itself.
pub fn service_obstacles(pod: &Pod, own_ids: &[&str]) -> Vec<ServiceObstacle> {
    let other_operations = stored_phases(pod).into_iter();
    let other_operations = other_operations
        .filter(|(id, phase)| !own_ids.contains(&id.as_str()) && phase.holds_offline());
    let mut obstacles: Vec<ServiceObstacle> = other_operations
        .map(|(id, phase)| ServiceObstacle::Operation(id, phase))
        .collect();
    if !obstacles.is_empty() {
        return obstacles;
    }
    if pod.label(keys::STAY_OFFLINE).is_some() {
        return vec![ServiceObstacle::StayOffline];
    }
    let cause = NotReadyCause::of_pod(pod);
    if let Some(restarts) = restarts::describe_pending(pod) {
        obstacles.push(ServiceObstacle::Restart(restarts));
    } else if let Some(stuck) = cause.filter(NotReadyCause::is_stuck) {
        obstacles.push(ServiceObstacle::NotReady(Some(stuck.describe(pod, None))));
    } else if pod.has_service_ready_gate() && pod.condition(keys::SERVICE_READY) != Some(true) {
        obstacles.push(match pod.is_ready() {
            true => ServiceObstacle::Unnoticed,
            false => ServiceObstacle::Gate,
        });
    } else if !pod.is_ready() {
        let cause = cause.map(|cause| cause.describe(pod, None));
        obstacles.push(ServiceObstacle::NotReady(cause));
    }
    obstacles.extend(missing_cooperator_finalizers(pod));
    obstacles
}

/// Finalizers that cooperators have yet to add to report that traffic is on.
pub fn missing_cooperator_finalizers(pod: &Pod) -> Vec<ServiceObstacle> {
    let expected = match ExpectedFinalizers::from_pod(pod) {
        Ok(expected) => expected,
        Err(error) => return vec![ServiceObstacle::Unreadable(error)],
    };
    let is_present = |finalizer: &str| pod.metadata.finalizers.iter().any(|f| f == finalizer);
    let missing = expected
        .entries()
        .filter(|(_, finalizer)| !is_present(finalizer))
        .map(|(key, finalizer)| ServiceObstacle::Finalizer(key.to_owned(), finalizer.to_owned()));
    missing.collect()
}
