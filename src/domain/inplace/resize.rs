//! What the kubelet reports about the last resize of a Pod.

use super::{
    ContainerBefore, ResourcesInForce, RunningContainers, container_resources_in_force,
    inherited_limit, inherits_pod_limit, restarting_resources, running_containers,
};
use crate::domain::pod::{
    Container, ContainerStatus, Pod, RESIZE_IN_PROGRESS, RESIZE_PENDING, Resources,
};

/// What the kubelet reports about the last resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResizeState {
    /// The resize is neither pending nor in progress.
    Idle,
    /// The kubelet is making the resize, or has not reported about it yet.
    InProgress,
    /// The node has no room for the resize now. The kubelet tries again by itself, so the restart may come at any time.
    Deferred,
    /// A resize is deferred, but it may be an earlier one. The node may have room for the last one.
    SomeDeferred,
    /// The node can never have room for the resize. The kubelet does not try again.
    Infeasible,
    /// The kubelet reported an earlier spec as infeasible. If the later changes do not touch resources, the kubelet
    /// does not look at the resources again.
    FormerInfeasible,
}

/// What the kubelet reports about the resize to the Pod's spec. The condition describes the last spec that changed
/// resources. Other changes, such as a new image or an ephemeral container, raise only the generation
/// (`HandlePodUpdates` in `pkg/kubelet/kubelet.go`, Kubernetes 1.36). Kubernetes 1.33 does not report which resize the
/// condition describes.
pub(super) fn resize_state(pod: &Pod) -> ResizeState {
    if !pod.is_spec_observed() || pod.condition(RESIZE_IN_PROGRESS) == Some(true) {
        return ResizeState::InProgress;
    }
    let mut conditions = pod.status.conditions.iter();
    let pending = conditions.find(|c| c.type_ == RESIZE_PENDING && c.status == "True");
    let Some(pending) = pending else {
        return ResizeState::Idle;
    };
    let (reported_generation, generation) = (pending.observed_generation, pod.metadata.generation);
    let is_former = reported_generation != 0 && reported_generation < generation;
    match pending.reason.as_str() {
        // It is not known whether the kubelet has seen the spec.
        _ if is_former && pod.status.observed_generation == 0 => ResizeState::InProgress,
        "Infeasible" if is_former => ResizeState::FormerInfeasible,
        "Infeasible" if reported_generation != 0 => ResizeState::Infeasible,
        _ if is_former || reported_generation == 0 => ResizeState::SomeDeferred,
        _ => ResizeState::Deferred,
    }
}

/// Whether the kubelet reports that it has not begun the last resize of the Pod. Another resize may replace this one.
pub fn is_resize_pending(pod: &Pod) -> bool {
    is_resize_deferred(pod)
        || matches!(
            resize_state(pod),
            ResizeState::Infeasible | ResizeState::FormerInfeasible
        )
}

/// Whether the kubelet reports that it has finished the last resize of the Pod, or will not make it. False if a
/// container inherits a limit from the Pod, because the status does not show such a limit.
pub fn is_resize_settled(pod: &Pod) -> bool {
    let is_done = matches!(
        resize_state(pod),
        ResizeState::Idle | ResizeState::Infeasible | ResizeState::FormerInfeasible
    );
    is_done && !running_containers(pod).any(|container| inherits_pod_limit(pod, container))
}

/// Whether the kubelet has deferred the last resize of the Pod because the node has no room for it now.
pub fn is_resize_deferred(pod: &Pod) -> bool {
    matches!(
        resize_state(pod),
        ResizeState::Deferred | ResizeState::SomeDeferred
    )
}

/// Whether the kubelet has neither finished nor refused the last resize of the Pod.
fn is_resize_open(pod: &Pod) -> bool {
    resize_state(pod) == ResizeState::InProgress || is_resize_deferred(pod)
}

/// Whether a change withdraws a resize that the kubelet has deferred. The resources of the new spec must be in force
/// already, so that nothing restarts.
pub fn withdraws_deferred_resize(old: &Pod, new: &Pod) -> bool {
    let before = RunningContainers::from_pod(old);
    let is_in_force = |container: &Container| {
        let former = before.find_container(&container.name);
        let status = before.find_status(&container.name);
        former.is_some_and(|former| former.image == container.image)
            && status.is_some_and(|status| {
                container_resources_in_force((new, container), status) == ResourcesInForce::All
            })
    };
    is_resize_deferred(old) && running_containers(new).all(is_in_force)
}

/// Whether a resize of the Pod will or may still restart a container.
pub fn may_restart_for_resize(pod: &Pod) -> bool {
    is_resize_unobservable(pod) || !unfinished_resizes(pod).is_empty()
}

/// Containers that the last resize of the Pod has yet to restart, in their present state. Empty if the kubelet reports
/// that the resize is finished or that it will not make the resize. Resources whose limit comes from the Pod are not
/// compared, because the status does not show what is in force for them.
pub fn unfinished_resizes(pod: &Pod) -> Vec<ContainerBefore> {
    if !is_resize_open(pod) {
        return Vec::new();
    }
    let containers = RunningContainers::from_pod(pod);
    let differs = |container: &Container, status: &ContainerStatus| {
        let desired = Resources::from_resources(&container.resources);
        status.resources != Resources::default()
            && restarting_resources(container)
                .filter(|name| inherited_limit((pod, container), name).is_none())
                .any(|name| desired.digest_of(name) != status.resources.digest_of(name))
    };
    let resized = running_containers(pod).filter_map(|container| {
        let status = containers.find_status(&container.name)?;
        differs(container, status).then(|| ContainerBefore {
            name: container.name.clone(),
            run: status.container_id.clone(),
            image: None,
            by_resources: false,
        })
    });
    resized.collect()
}

/// Whether the kubelet has yet to make a resize of the Pod, and a container inherits a limit from the Pod. The status
/// would not show the restart of such a container.
pub fn is_resize_unobservable(pod: &Pod) -> bool {
    is_resize_open(pod)
        && running_containers(pod).any(|container| inherits_pod_limit(pod, container))
}
