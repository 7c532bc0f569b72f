//! Changes of a running Pod that restart containers, and whether the kubelet has caught up with them.

use super::digest::Digest;
use super::pod::{Container, ContainerStatus, Pod};

/// An in-place change that restarts at least one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Digest of the containers as they shall be.
    pub target: String,
    /// Containers that will restart.
    pub containers: Vec<Before>,
}

/// A container that a change restarts, as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// Name.
    pub name: String,
    /// The ID that it ran under; empty: none yet.
    pub run: String,
    /// If the change is one of the image, the digest of the ID of the image that it ran.
    pub image: Option<u64>,
}

/// How far the restart is that a change brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Restart {
    /// A container runs as before, or not at all, or the kubelet has not seen the change.
    Awaited,
    /// All run anew, but one has the very image it had: either it has crashed before the kubelet got to the change, or the
    /// new image is the old one by another name.
    Unproven,
    /// All run as they shall.
    Proven,
}

/// What an UPDATE changes in place; `None` when nothing restarts.
///
/// The kubelet restarts a container when its image changes, and on a resize of a resource whose `resizePolicy` is
/// `RestartContainer`. A container without a limit of its own has that of the Pod, so a resize of the Pod restarts it in
/// the same way. Init containers count only if they are restartable: others have run already.
pub fn change(old: &Pod, new: &Pod) -> Option<Change> {
    let restarting: Vec<_> = running(new)
        .filter_map(|c| {
            let o = running(old).find(|o| {
                o.name == c.name && (restarts(o, c) || inherits_another_limit((old, o), (new, c)))
            })?;
            let now = status(old, &c.name);
            Some(Before {
                name: c.name.clone(),
                run: now.map(|s| s.container_id.clone()).unwrap_or_default(),
                image: (o.image != c.image).then(|| now.map_or(0, image)),
            })
        })
        .collect();
    (!restarting.is_empty()).then(|| Change {
        target: digest(new),
        containers: restarting,
    })
}

/// Whether the Pod's spec is the admitted one.
pub fn is_applied(pod: &Pod, target: &str) -> bool {
    digest(pod) == target
}

/// How far the kubelet is with a change of these containers.
///
/// A new run is none of the change while the kubelet has not seen the spec. Nor is it proof as soon as it has: the kubelet
/// writes the status before it ends the containers.
pub fn restart(pod: &Pod, containers: &[Before]) -> Restart {
    if !pod.is_observed() {
        return Restart::Awaited;
    }
    let each = containers.iter().map(|before| {
        let anew = status(pod, &before.name)
            .filter(|s| s.ready && !s.container_id.is_empty() && s.container_id != before.run);
        match anew {
            None => Restart::Awaited,
            Some(now) if before.image == Some(image(now)) => Restart::Unproven,
            Some(_) => Restart::Proven,
        }
    });
    each.min().unwrap_or(Restart::Proven)
}

/// Digest of the ID of the image that a container runs; 0 when absent.
fn image(status: &ContainerStatus) -> u64 {
    if status.image_id.is_empty() {
        return 0;
    }
    let mut digest = Digest::default();
    digest.feed(&status.image_id);
    digest.value()
}

fn running(pod: &Pod) -> impl Iterator<Item = &Container> {
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    pod.spec.containers.iter().chain(sidecars)
}

fn restarts(old: &Container, new: &Container) -> bool {
    old.image != new.image
        || new.resize_policy.iter().any(|policy| {
            policy.restart_policy == "RestartContainer"
                && resource(old, &policy.resource_name) != resource(new, &policy.resource_name)
        })
}

/// Whether a limit of the Pod changed that the container inherits, in a way that restarts it. Requests of the Pod restart
/// nothing (`containerResourcesFromRequirements` in `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, Kubernetes 1.36).
fn inherits_another_limit(old: (&Pod, &Container), new: (&Pod, &Container)) -> bool {
    restarting(new.1).any(|name| inherited(old, name) != inherited(new, name))
}

/// The limit of a resource that the container has from its Pod; `None` where it has its own, or neither has one.
fn inherited<'a>(
    (pod, container): (&'a Pod, &Container),
    name: &str,
) -> Option<&'a serde_json::Value> {
    let [_, own] = resource(container, name);
    match own {
        Some(_) => None,
        None => pod.spec.resources.get("limits")?.get(name),
    }
}

/// The resources whose resize restarts the container.
fn restarting(container: &Container) -> impl Iterator<Item = &str> {
    let policies = container.resize_policy.iter();
    policies
        .filter(|p| p.restart_policy == "RestartContainer")
        .map(|p| p.resource_name.as_str())
}

/// Request and limit of one resource.
fn resource<'a>(container: &'a Container, name: &str) -> [Option<&'a serde_json::Value>; 2] {
    ["requests", "limits"].map(|kind| container.resources.get(kind).and_then(|r| r.get(name)))
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = &pod.status.container_statuses;
    statuses
        .iter()
        .chain(&pod.status.init_container_statuses)
        .find(|s| s.name == name)
}

/// Digest of what [`restarts`] compares, as hex.
fn digest(pod: &Pod) -> String {
    let mut digest = Digest::default();
    for container in running(pod) {
        digest.feed(&container.name);
        digest.feed(&container.image);
        for policy in container
            .resize_policy
            .iter()
            .filter(|p| p.restart_policy == "RestartContainer")
        {
            for value in resource(container, &policy.resource_name) {
                digest.feed(&value.map(ToString::to_string).unwrap_or_default());
            }
        }
        // Fed only where there is one: claims of earlier versions know nothing of them.
        for limit in restarting(container).filter_map(|name| inherited((pod, container), name)) {
            digest.feed(&limit.to_string());
        }
    }
    format!("{:016x}", digest.value())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// A Pod whose only container has this spec, and this run of this image.
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
        assert_eq!(change(&old, &old), None);
        let image = change(&old, &pod("a:2", "1Gi", "run-1", "a:1")).unwrap();
        let [app] = &image.containers[..] else {
            unreachable!("{image:?}")
        };
        assert_eq!((app.name.as_str(), app.run.as_str()), ("app", "run-1"));
        assert_eq!(
            app.image,
            Some(super::image(&old.status.container_statuses[0]))
        );
        let resize = change(&old, &pod("a:1", "2Gi", "run-1", "a:1")).unwrap();
        assert_eq!(resize.containers[0].image, None);
    }

    /// A Pod with these limits as a whole, and two containers: `own` has a limit of memory, `bare` has none.
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
        let change = change(&old, &resized).unwrap();
        let names: Vec<_> = change.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["bare"]);
        assert!(!is_applied(&old, &change.target));
        assert!(is_applied(&resized, &change.target));
    }

    #[test]
    fn resize_of_the_pod_without_restart_policy_is_no_change() {
        assert_eq!(
            change(&with_limits("2Gi", "1"), &with_limits("2Gi", "2")),
            None
        );
        let mut requests = with_limits("2Gi", "1");
        requests.spec.resources["requests"]["memory"] = json!("1Gi");
        assert_eq!(change(&with_limits("2Gi", "1"), &requests), None);
    }

    #[test]
    fn it_is_over_when_every_container_runs_anew() {
        let after = |run, runs| pod("a:2", "1Gi", run, runs);
        let change = change(&before(), &after("run-1", "a:1")).unwrap();
        assert!(!is_applied(&before(), &change.target));
        assert!(is_applied(&after("run-1", "a:1"), &change.target));
        let far = |pod| restart(&pod, &change.containers);
        assert_eq!(far(after("run-1", "a:1")), Restart::Awaited);
        assert_eq!(far(after("run-2", "a:2")), Restart::Proven);
    }

    #[test]
    fn a_run_of_the_old_image_may_be_a_crash() {
        let after = pod("a:2", "1Gi", "run-2", "a:1");
        let image = change(&before(), &after).unwrap();
        assert_eq!(restart(&after, &image.containers), Restart::Unproven);
        let after = pod("a:1", "2Gi", "run-2", "a:1");
        let resize = change(&before(), &after).unwrap();
        assert_eq!(restart(&after, &resize.containers), Restart::Proven);
    }

    #[test]
    fn a_restart_before_the_kubelet_has_seen_the_change_is_not_the_one() {
        let mut after = pod("a:1", "2Gi", "run-2", "a:1");
        let resize = change(&before(), &after).unwrap();
        for (generation, observed, far) in [
            (2, 1, Restart::Awaited),
            (2, 2, Restart::Proven),
            (2, 0, Restart::Proven), // a kubelet that does not tell
            (0, 1, Restart::Proven),
        ] {
            after.metadata.generation = generation;
            after.status.observed_generation = observed;
            assert_eq!(
                restart(&after, &resize.containers),
                far,
                "{observed} of {generation}"
            );
        }
    }
}
