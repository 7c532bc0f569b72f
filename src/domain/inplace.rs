//! In-place changes of a running Pod that restart containers, and whether the kubelet has made these changes.

use std::collections::HashMap;

use super::digest::Digest;
use super::pod::{Container, ContainerStatus, Pod, RESIZE_IN_PROGRESS, RESIZE_PENDING, Resources};
use super::quantity;

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

/// What the kubelet reports about the last resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResizeState {
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
fn resize_state(pod: &Pod) -> ResizeState {
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

/// The containers of a Pod that run as long as the Pod does (containers and sidecars), and their statuses, by name. The
/// maps avoid a search for each container: a new Pod may have so many containers that such searches would take minutes.
pub struct RunningContainers<'a> {
    pod: &'a Pod,
    resize: ResizeState,
    named: HashMap<&'a str, &'a Container>,
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
            named: running_containers(pod)
                .rev()
                .map(|c| (c.name.as_str(), c))
                .collect(),
            statuses: statuses.rev().map(|s| (s.name.as_str(), s)).collect(),
        }
    }

    /// The container of this name.
    pub fn find_container(&self, name: &str) -> Option<&'a Container> {
        self.named.get(name).copied()
    }

    fn find_status(&self, name: &str) -> Option<&'a ContainerStatus> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// A Pod with one container that has this image and memory in its spec, and the container ID `run` of the image
    /// `runs`.
    fn pod(image: &str, memory: &str, run: &str, runs: &str) -> Pod {
        serde_json::from_value(json!({
            "spec": { "containers": [{
                "name": "app", "image": image,
                "resources": { "requests": { "memory": memory, "cpu": "1" } },
                "resizePolicy": [
                    { "resourceName": "memory", "restartPolicy": "RestartContainer" },
                    { "resourceName": "cpu", "restartPolicy": "NotRequired" },
                ],
            }], "initContainers": [{ "name": "init", "image": image }] },
            "status": { "containerStatuses": [{
                "name": "app", "containerID": run, "imageID": format!("sha256:{runs}"), "ready": true,
            }] },
        }))
        .unwrap()
    }

    fn before() -> Pod {
        pod("a:1", "1Gi", "run-1", "a:1")
    }

    #[test]
    fn an_image_or_a_resize_that_restarts_is_a_change() {
        let old = before();
        assert_eq!(in_place_restart(&old, &old), None);
        let image = in_place_restart(&old, &pod("a:2", "1Gi", "run-1", "a:1")).unwrap();
        let [app] = &image.containers[..] else {
            unreachable!("{image:?}")
        };
        assert_eq!((app.name.as_str(), app.run.as_str()), ("app", "run-1"));
        assert_eq!(
            app.image,
            Some(super::image_digest(&old.status.container_statuses[0]))
        );
        let resize = in_place_restart(&old, &pod("a:1", "2Gi", "run-1", "a:1")).unwrap();
        assert_eq!(resize.containers[0].image, None);
    }

    /// A Pod with these limits as a whole. Its container `own` has its own memory limit, `bare` has none.
    fn with_limits(memory: &str, cpu: &str) -> Pod {
        let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
        serde_json::from_value(json!({ "spec": {
            "resources": { "limits": { "memory": memory, "cpu": cpu }, "requests": { "memory": memory } },
            "containers": [
                { "name": "own", "resizePolicy": policy, "resources": { "limits": { "memory": "1Gi" } } },
                { "name": "bare", "resizePolicy": policy },
                { "name": "free" },
            ],
        } }))
        .unwrap()
    }

    #[test]
    fn resize_of_the_pod_restarts_containers_without_own_limit() {
        let old = with_limits("2Gi", "1");
        let resized = with_limits("3Gi", "1");
        let change = in_place_restart(&old, &resized).unwrap();
        let names: Vec<_> = change.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["bare"]);
        assert!(!is_spec_applied(&old, &change.target));
        assert!(is_spec_applied(&resized, &change.target));
    }

    #[test]
    fn resize_of_the_pod_without_restart_policy_is_no_change() {
        assert_eq!(
            in_place_restart(&with_limits("2Gi", "1"), &with_limits("2Gi", "2")),
            None
        );
        let mut requests = with_limits("2Gi", "1");
        requests.spec.resources["requests"]["memory"] = json!("1Gi");
        assert_eq!(in_place_restart(&with_limits("2Gi", "1"), &requests), None);
    }

    #[test]
    fn change_ends_when_every_container_restarted() {
        let after = |run, runs| pod("a:2", "1Gi", run, runs);
        let change = in_place_restart(&before(), &after("run-1", "a:1")).unwrap();
        assert!(!is_spec_applied(&before(), &change.target));
        assert!(is_spec_applied(&after("run-1", "a:1"), &change.target));
        let far = |pod| restart_progress_of(&pod, &change.containers);
        assert_eq!(far(after("run-1", "a:1")), RestartProgress::Awaited);
        assert_eq!(far(after("run-2", "a:2")), RestartProgress::Proven);
    }

    #[test]
    fn a_run_of_the_old_image_may_be_a_crash() {
        let after = pod("a:2", "1Gi", "run-2", "a:1");
        let image = in_place_restart(&before(), &after).unwrap();
        assert_eq!(
            restart_progress_of(&after, &image.containers),
            RestartProgress::Unproven
        );
        let after = pod("a:1", "2Gi", "run-2", "a:1");
        let resize = in_place_restart(&before(), &after).unwrap();
        assert_eq!(
            restart_progress_of(&after, &resize.containers),
            RestartProgress::Proven
        );
    }

    #[test]
    fn restart_before_kubelet_observes_change_does_not_count() {
        let mut after = pod("a:1", "2Gi", "run-2", "a:1");
        let resize = in_place_restart(&before(), &after).unwrap();
        for (generation, observed, far) in [
            (2, 1, RestartProgress::Awaited),
            (2, 2, RestartProgress::Proven),
            (2, 0, RestartProgress::Proven), // the kubelet does not report it
            (0, 1, RestartProgress::Proven),
        ] {
            after.metadata.generation = generation;
            after.status.observed_generation = observed;
            assert_eq!(
                restart_progress_of(&after, &resize.containers),
                far,
                "{observed} of {generation}"
            );
        }
    }

    /// A Pod of generation 2 that asks for the memory `wanted`, while `actual` is in force. `pending` is the reason of
    /// its condition `PodResizePending`.
    fn resized(desired: &str, actual: &str, run: &str, pending: Option<&str>) -> Pod {
        let mut pod = pod("a:1", desired, run, "a:1");
        let actual = json!({ "requests": { "memory": actual, "cpu": "1" } });
        pod.status.container_statuses[0].resources = Resources::from_resources(&actual);
        pod.metadata.generation = 2;
        pod.status.observed_generation = 2;
        pod.status.conditions = pending
            .map(|reason| {
                serde_json::from_value(json!({
                    "type": RESIZE_PENDING, "status": "True", "reason": reason, "observedGeneration": 2,
                }))
                .unwrap()
            })
            .into_iter()
            .collect();
        pod
    }

    #[test]
    fn infeasible_resize_restarts_nothing_and_deferred_one_may() {
        let resize = in_place_restart(&before(), &resized("2Gi", "1Gi", "run-1", None)).unwrap();
        let far = |pod: &Pod| restart_progress_of(pod, &resize.containers);
        assert_eq!(
            far(&resized("2Gi", "1Gi", "run-1", None)),
            RestartProgress::Awaited
        );
        let infeasible = resized("2Gi", "1Gi", "run-1", Some("Infeasible"));
        assert_eq!(far(&infeasible), RestartProgress::Nothing);
        let deferred = resized("2Gi", "1Gi", "run-1", Some("Deferred"));
        assert_eq!(far(&deferred), RestartProgress::Awaited);
        assert!(is_resize_pending(&infeasible) && is_resize_pending(&deferred));
        let mut of_the_last = infeasible.clone();
        of_the_last.status.conditions[0].observed_generation = 1;
        assert_eq!(far(&of_the_last), RestartProgress::Awaited);
        assert!(is_resize_pending(&of_the_last) && is_resize_settled(&of_the_last));
        assert!(!may_restart_for_resize(&of_the_last));
        of_the_last.status.observed_generation = 0;
        assert!(may_restart_for_resize(&of_the_last), "as far as is known");
        let mut of_the_last = deferred.clone();
        of_the_last.status.conditions[0].observed_generation = 1;
        assert_eq!(far(&of_the_last), RestartProgress::Awaited);
        assert!(is_resize_deferred(&of_the_last) && may_restart_for_resize(&of_the_last));
        let mut unseen = infeasible.clone();
        unseen.metadata.generation = 3;
        assert_eq!(far(&unseen), RestartProgress::Awaited);
        let mut of_1_33 = infeasible;
        of_1_33.metadata.generation = 3;
        of_1_33.status.observed_generation = 0;
        of_1_33.status.conditions[0].observed_generation = 0;
        assert_eq!(far(&of_1_33), RestartProgress::Awaited, "of which resize?");
    }

    #[test]
    fn deferred_resize_may_restart_nothing() {
        let resize = in_place_restart(&before(), &resized("2Gi", "1Gi", "run-1", None)).unwrap();
        let mut of_cpu = resized("1Gi", "1Gi", "run-1", Some("Deferred"));
        assert_eq!(
            restart_progress_of(&of_cpu, &resize.containers),
            RestartProgress::Nothing
        );
        assert!(!may_restart_for_resize(&of_cpu));
        let condition = &mut of_cpu.status.conditions[0];
        condition.observed_generation = 0;
        let restart = restart_progress_of(&of_cpu, &resize.containers);
        assert_eq!(restart, RestartProgress::Unproven, "of which resize?");
    }

    #[test]
    fn change_to_resources_in_force_withdraws_deferred_resize() {
        let deferred = resized("2Gi", "1Gi", "run-1", Some("Deferred"));
        let withdrawn = resized("1Gi", "1Gi", "run-1", Some("Deferred"));
        let mut another_image = withdrawn.clone();
        another_image.spec.containers[0].image = "a:2".into();
        for (old, new, is_back) in [
            (&deferred, &withdrawn, true),
            (&deferred, &resized("3Gi", "1Gi", "run-1", None), false),
            (&deferred, &another_image, false),
            (&resized("2Gi", "1Gi", "run-1", None), &withdrawn, false),
            (
                &resized("2Gi", "1Gi", "run-1", Some("Infeasible")),
                &withdrawn,
                false,
            ),
        ] {
            assert_eq!(withdraws_deferred_resize(old, new), is_back);
        }
    }

    #[test]
    fn resize_to_the_resources_in_force_restarts_nothing() {
        let desired = resized("2Gi", "1Gi", "run-1", Some("Infeasible"));
        let back = in_place_restart(&desired, &resized("1Gi", "1Gi", "run-1", None)).unwrap();
        let far = |pod: &Pod| restart_progress_of(pod, &back.containers);
        assert_eq!(
            far(&resized("1Gi", "1Gi", "run-1", None)),
            RestartProgress::Nothing
        );
        let notation = resized("1Gi", "1073741824", "run-1", None);
        assert_eq!(far(&notation), RestartProgress::Nothing);
        let mut acting = resized("1Gi", "1Gi", "run-1", None);
        acting.status.conditions.push(
            serde_json::from_value(json!({ "type": RESIZE_IN_PROGRESS, "status": "True" }))
                .unwrap(),
        );
        assert_eq!(far(&acting), RestartProgress::Awaited);
    }

    #[test]
    fn new_run_of_stacked_resize_proves_nothing() {
        let stacked = [ContainerBefore {
            by_resources: true,
            ..in_place_restart(&before(), &resized("2Gi", "1Gi", "run-1", None))
                .unwrap()
                .containers[0]
                .clone()
        }];
        let far = |pod: &Pod| restart_progress_of(pod, &stacked);
        assert_eq!(
            far(&resized("1Gi", "2Gi", "run-2", None)),
            RestartProgress::Awaited
        );
        assert_eq!(
            far(&resized("1Gi", "1Gi", "run-3", None)),
            RestartProgress::Nothing
        );
    }

    #[test]
    fn another_notation_of_a_quantity_is_no_change() {
        let old = before();
        assert_eq!(
            in_place_restart(&old, &pod("a:1", "1073741824", "run-1", "a:1")),
            None
        );
        let resize = in_place_restart(&old, &pod("a:1", "2Gi", "run-1", "a:1")).unwrap();
        let same = pod("a:1", "2147483648", "run-1", "a:1");
        assert!(is_spec_applied(&same, &resize.target));
        // A digest as earlier versions stored it.
        let stored = restart_digest(&pod("a:1", "2Gi", "run-1", "a:1"), ToString::to_string);
        assert!(is_spec_applied(&pod("a:1", "2Gi", "run-1", "a:1"), &stored));
    }

    /// A container with its own memory limit, and with the cpu limit of the Pod. A resize of either restarts it.
    fn inheriting() -> Pod {
        let mut pod = pod("a:1", "1Gi", "run-1", "a:1");
        pod.spec.containers[0].resources = json!({ "limits": { "memory": "1Gi" } });
        *pod.spec.resources = json!({ "limits": { "cpu": "1", "memory": "2Gi" } });
        pod.spec.containers[0].resize_policy[1].restart_policy = "RestartContainer".to_owned();
        let resources = json!({ "limits": { "memory": "1Gi" } });
        pod.status.container_statuses[0].resources = serde_json::from_value(resources).unwrap();
        pod
    }

    #[test]
    fn resources_in_force_follow_container_status() {
        let pod = inheriting();
        let before = |by_resources| ContainerBefore {
            name: "app".to_owned(),
            run: "run-1".to_owned(),
            image: None,
            by_resources,
        };
        assert_eq!(
            restart_progress_of(&pod, &[before(true)]),
            RestartProgress::Nothing
        );
        assert_eq!(
            restart_progress_of(&pod, &[before(false)]),
            RestartProgress::Awaited,
            "of a resize of the Pod only the restart tells"
        );
        let mut other = pod.clone();
        other.spec.containers[0].resources = json!({ "limits": { "memory": "2Gi" } });
        assert_eq!(
            restart_progress_of(&other, &[before(true)]),
            RestartProgress::Awaited
        );
    }

    #[test]
    fn inherited_resize_is_unobservable_until_made() {
        let mut pod = inheriting();
        assert!(!is_resize_unobservable(&pod));
        pod.metadata.generation = 2;
        pod.status.observed_generation = 1;
        assert!(is_resize_unobservable(&pod));
        *pod.spec.resources = json!({});
        assert!(!is_resize_unobservable(&pod));
    }
}
