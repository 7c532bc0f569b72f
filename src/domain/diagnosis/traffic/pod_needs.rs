//! What the lifecycle and the kubelet want of the traffic of a Pod.

use crate::domain::lifecycle::service_obstacles::{self, ServiceObstacle};
use crate::domain::lifecycle::{Phase, stored_phases};
use crate::domain::pod::Pod;

/// Whether the Pod waits for its traffic to go off.
pub fn is_leaving(pod: &Pod) -> bool {
    let is_preparing = || {
        stored_phases(pod)
            .values()
            .any(|phase| *phase == Phase::Preparing)
    };
    pod.is_terminating() || is_preparing()
}

/// The keys of the finalizers that a Pod lacks, if the kubelet and the lifecycle want it on traffic.
pub fn missing_keys(pod: &Pod) -> Vec<String> {
    if !pod.is_managed() || !pod.is_ready() || pod.is_finished() {
        return Vec::new();
    }
    let phases = stored_phases(pod);
    let completing = phases
        .iter()
        .filter(|(_, phase)| **phase == Phase::Completing);
    let completing: Vec<&str> = completing.map(|(id, _)| id.as_str()).collect();
    let obstacles = service_obstacles::service_obstacles(pod, &completing).into_iter();
    let key = |obstacle| match obstacle {
        ServiceObstacle::Finalizer(key, _) => Some(key),
        _ => None,
    };
    obstacles.filter_map(key).collect()
}
