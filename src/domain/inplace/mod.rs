//! In-place changes of a running Pod that restart containers, and whether the kubelet has made these changes. It serves
//! Pods of any owner. How a CollaSet updates its Pods in place is in `domain/collaset/revision/inplace.rs`.

mod resize;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::digest::Digest;
use super::pod::{Container, ContainerStatus, Pod, Resources};
use super::quantity;
use resize::{ResizeState, resize_state};
pub use resize::{
    is_resize_deferred, is_resize_pending, is_resize_settled, is_resize_unobservable,
    may_restart_for_resize, unfinished_resizes, withdraws_deferred_resize,
};

/// An in-place change that restarts at least one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlaceRestart {
    /// Digest of the images and resources of the containers after the change; see [`is_spec_applied`].
    pub target: String,
    /// Containers that the change restarts, in their state before it.
    pub containers: Vec<ContainerBefore>,
}

/// A container that a change restarts, in its state before the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerBefore {
    /// Name of the container.
    pub name: String,
    /// The container ID before the change. Empty if the container had none yet.
    pub run: String,
    /// For a change of the image: the digest of the ID of the image that ran before.
    pub image: Option<u64>,
    /// If true, only the resources in force prove that the change is over. A new run proves nothing, because the
    /// kubelet may restart the container for an earlier resize too.
    pub by_resources: bool,
}

/// How far the kubelet is with the restarts of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RestartProgress {
    /// A container still has its former run, or does not run, or the kubelet has not seen the change.
    Awaited,
    /// All containers have a new run, but one has the same image ID as before. Either the container crashed before the
    /// kubelet made the change, or the new image name refers to the old image.
    Unproven,
    /// The change restarts nothing: the kubelet reports the resize infeasible, or the resources in force are those of
    /// the spec.
    Nothing,
    /// The restarts of all containers are proven.
    Proven,
}

/// The containers of a Pod that run as long as the Pod does (containers and sidecars), and their statuses, by name. The
/// maps avoid a search for each container: a new Pod may have so many containers that such searches would take minutes.
pub struct RunningContainers<'a> {
    pod: &'a Pod,
    resize: ResizeState,
    containers: HashMap<&'a str, &'a Container>,
    statuses: HashMap<&'a str, &'a ContainerStatus>,
}

impl<'a> RunningContainers<'a> {
    /// Collects the containers of a Pod.
    pub fn from_pod(pod: &'a Pod) -> Self {
        let status = &pod.status;
        let statuses = status.container_statuses.iter();
        let statuses = statuses.chain(&status.init_container_statuses);
        RunningContainers {
            pod,
            resize: resize_state(pod),
            // Reversed, so that the first of several entries with the same name is kept.
            containers: running_containers(pod)
                .rev()
                .map(|c| (c.name.as_str(), c))
                .collect(),
            statuses: statuses.rev().map(|s| (s.name.as_str(), s)).collect(),
        }
    }

    /// The container of this name.
    pub fn find_container(&self, name: &str) -> Option<&'a Container> {
        self.containers.get(name).copied()
    }

    /// The status of the container of this name.
    pub fn find_status(&self, name: &str) -> Option<&'a ContainerStatus> {
        self.statuses.get(name).copied()
    }

    /// The status of a container that runs and is ready. `None` if the kubelet has not seen the spec of the Pod.
    pub fn ready_status(&self, name: &str) -> Option<&'a ContainerStatus> {
        let status = self.find_status(name);
        status.filter(|s| self.pod.is_spec_observed() && s.ready && !s.container_id.is_empty())
    }

    /// Whether the kubelet reports that it will not make the last change of resources.
    pub fn is_resize_infeasible(&self) -> bool {
        matches!(
            self.resize,
            ResizeState::Infeasible | ResizeState::FormerInfeasible
        )
    }

    /// See [`restart_progress_of`].
    pub fn restart_progress(&self, containers: &[ContainerBefore]) -> RestartProgress {
        if !self.pod.is_spec_observed() {
            return RestartProgress::Awaited;
        }
        let each = containers
            .iter()
            .map(|before| self.container_restart_progress(before));
        each.min().unwrap_or(RestartProgress::Proven)
    }

    fn container_restart_progress(&self, before: &ContainerBefore) -> RestartProgress {
        let Some(status) = self.ready_status(&before.name) else {
            return RestartProgress::Awaited;
        };
        let is_new_run = status.container_id != before.run;
        match before.image {
            Some(old) if is_new_run && old == image_digest(status) => RestartProgress::Unproven,
            Some(_) if is_new_run => RestartProgress::Proven,
            Some(_) => RestartProgress::Awaited,
            None => match (self.resize, self.resources_in_force(status)) {
                (ResizeState::Infeasible, _) => RestartProgress::Nothing,
                // After its start, the kubelet first repeats its report on an earlier resize. It looks at the last
                // resize half a minute later.
                (ResizeState::InProgress | ResizeState::FormerInfeasible, _) => {
                    RestartProgress::Awaited
                }
                (ResizeState::SomeDeferred, ResourcesInForce::All) => RestartProgress::Unproven,
                // The deferred resize may restart nothing, or another container.
                (ResizeState::Idle | ResizeState::Deferred, ResourcesInForce::All) => {
                    RestartProgress::Nothing
                }
                (ResizeState::Idle, ResourcesInForce::AllKnown) if before.by_resources => {
                    RestartProgress::Nothing
                }
                (ResizeState::Idle, _) if is_new_run && !before.by_resources => {
                    RestartProgress::Proven
                }
                _ => RestartProgress::Awaited,
            },
        }
    }

    fn resources_in_force(&self, status: &ContainerStatus) -> ResourcesInForce {
        let container = self.find_container(&status.name);
        container.map_or(ResourcesInForce::NotAll, |container| {
            container_resources_in_force((self.pod, container), status)
        })
    }
}

fn container_resources_in_force(
    (pod, container): (&Pod, &Container),
    status: &ContainerStatus,
) -> ResourcesInForce {
    let desired = Resources::from_resources(&container.resources);
    let is_inherited = |name: &&str| inherited_limit((pod, container), name).is_some();
    let mut comparable = restarting_resources(container).filter(|name| !is_inherited(name));
    if status.resources == Resources::default()
        || !comparable.all(|name| desired.digest_of(name) == status.resources.digest_of(name))
    {
        return ResourcesInForce::NotAll;
    }
    match inherits_pod_limit(pod, container) {
        true => ResourcesInForce::AllKnown,
        false => ResourcesInForce::All,
    }
}

/// What an UPDATE changes in place. `None` if no container restarts.
///
/// The kubelet restarts a container when its image changes, and on a resize of a resource whose `resizePolicy` is
/// `RestartContainer`. A container without its own limit inherits the limit of the Pod, so a resize of the Pod restarts
/// this container in the same way. Of the init containers only sidecars count, because the others have ended.
pub fn in_place_restart(old: &Pod, new: &Pod) -> Option<InPlaceRestart> {
    let before = RunningContainers::from_pod(old);
    let restarting: Vec<_> = running_containers(new)
        .filter_map(|container| {
            let old_container = before.find_container(&container.name)?;
            if !is_restart_needed(old_container, container)
                && !has_inherited_limit_changed((old, old_container), (new, container))
            {
                return None;
            }
            let status = before.find_status(&container.name);
            Some(ContainerBefore {
                name: container.name.clone(),
                run: status.map(|s| s.container_id.clone()).unwrap_or_default(),
                image: (old_container.image != container.image)
                    .then(|| status.map_or(0, image_digest)),
                by_resources: false,
            })
        })
        .collect();
    (!restarting.is_empty()).then(|| InPlaceRestart {
        target: restart_digest(new, quantity::normal_form),
        containers: restarting,
    })
}

/// Whether the Pod's spec is the admitted one. Claims from earlier versions have a digest of the quantities as they are
/// written, so this function compares both digests.
pub fn is_spec_applied(pod: &Pod, target: &str) -> bool {
    restart_digest(pod, quantity::normal_form) == target
        || restart_digest(pod, ToString::to_string) == target
}

/// How far the kubelet is with a change of these containers.
///
/// A new run does not belong to the change while the kubelet has not seen the spec. The report that the kubelet has
/// seen the spec is no proof either, because the kubelet writes the status before it ends the containers.
///
/// The kubelet may never make a resize. An `Infeasible` resize is over, because the kubelet drops it. A `Deferred`
/// resize is not over, because the kubelet makes it as soon as the node has room.
/// (<https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/#pod-resize-status>)
pub fn restart_progress_of(pod: &Pod, containers: &[ContainerBefore]) -> RestartProgress {
    RunningContainers::from_pod(pod).restart_progress(containers)
}

/// How many of the resources that restart a container are in force as its spec asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResourcesInForce {
    All,
    /// All resources that the status shows are in force. It does not show a limit that the container inherits from the
    /// Pod.
    AllKnown,
    NotAll,
}

/// Whether the container inherits a limit from its Pod, and a change of this limit restarts the container.
fn inherits_pod_limit(pod: &Pod, container: &Container) -> bool {
    restarting_resources(container).any(|name| inherited_limit((pod, container), name).is_some())
}

/// The names of the resources whose resize restarts a container.
pub fn restarting_resources(container: &Container) -> impl Iterator<Item = &str> {
    let policies = container.resize_policy.iter();
    policies
        .filter(|policy| policy.restart_policy == "RestartContainer")
        .map(|policy| policy.resource_name.as_str())
}

/// Digest of the ID of the image that a container runs. 0 if the ID is absent.
pub fn image_digest(status: &ContainerStatus) -> u64 {
    if status.image_id.is_empty() {
        return 0;
    }
    let mut digest = Digest::default();
    digest.add_text(&status.image_id);
    digest.value()
}

fn running_containers(pod: &Pod) -> impl DoubleEndedIterator<Item = &Container> {
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    pod.spec.containers.iter().chain(sidecars)
}

fn is_restart_needed(old: &Container, new: &Container) -> bool {
    old.image != new.image
        || restarting_resources(new).any(|name| {
            let [old, new] = [old, new]
                .map(|c| request_and_limit(c, name).map(|v| v.map(quantity::normal_form)));
            old != new
        })
}

/// Whether a limit of the Pod changed that the container inherits, in a way that restarts the container. Requests of
/// the Pod restart nothing (`containerResourcesFromRequirements` in `pkg/kubelet/kuberuntime/kuberuntime_manager.go`,
/// Kubernetes 1.36).
fn has_inherited_limit_changed(old: (&Pod, &Container), new: (&Pod, &Container)) -> bool {
    restarting_resources(new.1).any(|name| {
        let [old, new] =
            [old, new].map(|container| inherited_limit(container, name).map(quantity::normal_form));
        old != new
    })
}

/// The limit of a resource that the container inherits from its Pod. `None` if the container has its own limit, or
/// neither has one.
fn inherited_limit<'a>(
    (pod, container): (&'a Pod, &Container),
    name: &str,
) -> Option<&'a serde_json::Value> {
    let [_, own_limit] = request_and_limit(container, name);
    match own_limit {
        Some(_) => None,
        None => pod.spec.resources.get("limits")?.get(name),
    }
}

/// Request and limit of one resource.
fn request_and_limit<'a>(
    container: &'a Container,
    name: &str,
) -> [Option<&'a serde_json::Value>; 2] {
    ["requests", "limits"].map(|kind| container.resources.get(kind).and_then(|r| r.get(name)))
}

/// Digest of all that [`in_place_restart`] compares, as 16 hexadecimal digits. `text` formats a quantity.
fn restart_digest(pod: &Pod, text: impl Fn(&serde_json::Value) -> String) -> String {
    let mut digest = Digest::default();
    for container in running_containers(pod) {
        digest.add_text(&container.name);
        digest.add_text(&container.image);
        for name in restarting_resources(container) {
            for value in request_and_limit(container, name) {
                digest.add_text(&value.map(&text).unwrap_or_default());
            }
        }
        // Inherited limits are added only if there are any, so that the digests of earlier versions, which did not
        // contain them, stay valid.
        for limit in restarting_resources(container)
            .filter_map(|name| inherited_limit((pod, container), name))
        {
            digest.add_text(&text(limit));
        }
    }
    format!("{:016x}", digest.value())
}
