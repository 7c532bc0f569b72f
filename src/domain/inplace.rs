//! Changes of a running Pod that restart containers, and whether the kubelet has caught up with them.

use super::pod::{Container, Pod};

/// An in-place change that restarts at least one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Digest of the containers as they shall be.
    pub target: String,
    /// Containers that will restart, and the container ID that each runs under now (empty: none yet).
    pub containers: Vec<(String, String)>,
}

/// What an UPDATE changes in place; `None` when nothing restarts.
///
/// The kubelet restarts a container when its image changes, and on a resize of a resource whose `resizePolicy` is
/// `RestartContainer`. Init containers count only if they are restartable: others have run already.
pub fn change(old: &Pod, new: &Pod) -> Option<Change> {
    let restarting: Vec<_> = running(new)
        .filter(|c| running(old).any(|o| o.name == c.name && restarts(o, c)))
        .map(|c| {
            (
                c.name.clone(),
                container_id(old, &c.name).unwrap_or_default().to_owned(),
            )
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

/// Whether every container of a change runs anew and is ready.
pub fn has_restarted(pod: &Pod, containers: &[(String, String)]) -> bool {
    let statuses = || {
        pod.status
            .container_statuses
            .iter()
            .chain(&pod.status.init_container_statuses)
    };
    containers.iter().all(|(name, before)| {
        statuses().any(|s| {
            s.name == *name && s.ready && !s.container_id.is_empty() && s.container_id != *before
        })
    })
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

/// Request and limit of one resource.
fn resource<'a>(container: &'a Container, name: &str) -> [Option<&'a serde_json::Value>; 2] {
    ["requests", "limits"].map(|kind| container.resources.get(kind).and_then(|r| r.get(name)))
}

fn container_id<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let statuses = pod
        .status
        .container_statuses
        .iter()
        .chain(&pod.status.init_container_statuses);
    statuses
        .into_iter()
        .find(|s| s.name == name)
        .map(|s| s.container_id.as_str())
}

/// FNV-1a over what [`restarts`] compares, as hex; only ever compared with another digest of the same Pod.
fn digest(pod: &Pod) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut feed = |text: &str| {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for container in running(pod) {
        feed(&container.name);
        feed(&container.image);
        for policy in container
            .resize_policy
            .iter()
            .filter(|p| p.restart_policy == "RestartContainer")
        {
            for value in resource(container, &policy.resource_name) {
                feed(&value.map(ToString::to_string).unwrap_or_default());
            }
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn pod(image: &str, memory: &str, id: &str) -> Pod {
        serde_json::from_value(json!({
            "spec": { "containers": [{
                "name": "app", "image": image,
                "resources": { "requests": { "memory": memory, "cpu": "1" } },
                "resizePolicy": [
                    { "resourceName": "memory", "restartPolicy": "RestartContainer" },
                    { "resourceName": "cpu", "restartPolicy": "NotRequired" },
                ],
            }], "initContainers": [{ "name": "init", "image": image }] },
            "status": { "containerStatuses": [{ "name": "app", "containerID": id, "ready": true }] },
        }))
        .unwrap()
    }

    #[test]
    fn an_image_or_a_resize_that_restarts_is_a_change() {
        let old = pod("a:1", "1Gi", "run-1");
        assert_eq!(change(&old, &old), None);
        let change = change(&old, &pod("a:2", "1Gi", "run-1")).unwrap();
        assert_eq!(
            change.containers,
            vec![("app".to_owned(), "run-1".to_owned())]
        );
        assert!(super::change(&old, &pod("a:1", "2Gi", "run-1")).is_some());
    }

    #[test]
    fn it_is_over_when_every_container_runs_anew() {
        let change = change(&pod("a:1", "1Gi", "run-1"), &pod("a:2", "1Gi", "run-1")).unwrap();
        assert!(!is_applied(&pod("a:1", "1Gi", "run-1"), &change.target));
        assert!(is_applied(&pod("a:2", "1Gi", "run-1"), &change.target));
        assert!(!has_restarted(
            &pod("a:2", "1Gi", "run-1"),
            &change.containers
        ));
        assert!(has_restarted(
            &pod("a:2", "1Gi", "run-2"),
            &change.containers
        ));
    }
}
