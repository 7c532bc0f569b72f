//! What the state of a Pod asks of its process.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use super::{ANNOTATION, loopback_of};
use crate::pods::condition;

/// The longest time until a process listens.
const LONGEST_WARM_UP: Duration = Duration::from_secs(10);

/// What should become of the process of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// No process, or no process any more.
    #[default]
    NoProcess,
    /// A process for this container.
    Serve {
        container: String,
        address: SocketAddr,
        /// Time until the process listens.
        warm_up: Duration,
        /// Whether all containers run, and the status of the Pod does not say yet that they are ready.
        is_unreported: bool,
    },
}

/// What a Pod asks of its process; `None` if the Pod has none.
///
/// # Errors
/// If the annotated Pod cannot have a process, with the field that is wrong.
pub(super) fn wanted(pod: &Pod) -> Result<Option<Wanted>, String> {
    let Some(warm_up) = pod.annotations().get(ANNOTATION) else {
        return Ok(None);
    };
    let warm_up = warm_up.parse().map(Duration::from_millis);
    let warm_up = warm_up.ok().filter(|time| *time <= LONGEST_WARM_UP);
    let warm_up = warm_up.ok_or_else(|| {
        format!(
            "metadata.annotations[{ANNOTATION}] must be milliseconds, at most {LONGEST_WARM_UP:?}"
        )
    })?;
    let status = pod.status.clone().unwrap_or_default();
    let has_ended = ["Succeeded", "Failed"].contains(&status.phase.as_deref().unwrap_or_default());
    if pod.metadata.deletion_timestamp.is_some() || has_ended {
        return Ok(Some(Wanted::NoProcess));
    }
    let spec = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let spec = spec.ok_or("spec.containers is empty")?;
    let statuses = status.container_statuses.unwrap_or_default();
    let first = statuses.iter().find(|status| status.name == spec.name);
    let running = first.filter(|status| is_running(status));
    let container = running.and_then(|status| status.container_id.clone());
    let (Some(container), Some(ip)) = (container, status.pod_ip) else {
        return Ok(Some(Wanted::NoProcess));
    };
    let port = spec.ports.iter().flatten().next();
    let port = port.and_then(|port| u16::try_from(port.container_port).ok());
    let port = port.ok_or("spec.containers[0].ports is empty: declare the port of the process")?;
    let loopback = ip.parse().ok().and_then(loopback_of);
    let loopback = loopback.ok_or_else(|| {
        format!("status.podIP {ip:?} is not in 10.0.0.0/8: leave spec.hostNetwork unset")
    })?;
    let all_run = statuses.iter().all(is_running);
    let is_reported = condition(pod, "ContainersReady") == Some(true)
        && statuses.iter().all(|status| status.ready);
    Ok(Some(Wanted::Serve {
        container,
        address: SocketAddr::new(IpAddr::V4(loopback), port),
        warm_up,
        is_unreported: all_run && !is_reported,
    }))
}

/// Whether a container runs, by its status.
pub(super) fn is_running(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    state.is_some_and(|state| state.running.is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn of(change: Value) -> Result<Option<Wanted>, String> {
        let mut pod = json!({
            "metadata": {"name": "web", "annotations": {ANNOTATION: "300"}},
            "spec": {"containers": [{"name": "main", "ports": [{"containerPort": 8080}]}]},
            "status": {
                "phase": "Running", "podIP": "10.128.0.7",
                "conditions": [{"type": "ContainersReady", "status": "False"}],
                "containerStatuses": [status("main", false, "running")],
            },
        });
        json_patch::merge(&mut pod, &change);
        wanted(&serde_json::from_value(pod).unwrap())
    }

    fn serves(is_unreported: bool) -> Wanted {
        Wanted::Serve {
            container: "containerd://1".to_owned(),
            address: "127.128.0.7:8080".parse().unwrap(),
            warm_up: Duration::from_millis(300),
            is_unreported,
        }
    }

    fn status(container: &str, ready: bool, state: &str) -> Value {
        json!({
            "name": container, "image": "web:1", "imageID": "", "ready": ready, "restartCount": 0,
            "containerID": "containerd://1", "state": {state: {}},
        })
    }

    #[test]
    fn process_follows_state_of_pod() {
        let reported = json!({"status": {
            "conditions": [{"type": "ContainersReady", "status": "True"}],
            "containerStatuses": [status("main", true, "running")],
        }});
        let statuses = |list: &[Value]| json!({"status": {"containerStatuses": list}});
        let pulling = statuses(&[status("main", false, "waiting")]);
        let second = status("second", false, "waiting");
        let half = statuses(&[status("main", false, "running"), second]);
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (change, expected) in [
            (json!({}), Some(serves(true))),
            (reported, Some(serves(false))),
            (half, Some(serves(false))),
            (json!({"metadata": {"annotations": null}}), None),
            (json!({"status": {"podIP": null}}), Some(Wanted::NoProcess)),
            (pulling, Some(Wanted::NoProcess)),
            (deleted, Some(Wanted::NoProcess)),
            (
                json!({"status": {"phase": "Failed"}}),
                Some(Wanted::NoProcess),
            ),
        ] {
            assert_eq!(of(change.clone()), Ok(expected), "{change}");
        }
    }

    #[test]
    fn pod_that_cannot_have_process_is_refused_by_field() {
        for (change, field) in [
            (
                json!({"spec": {"containers": [{"name": "main"}]}}),
                "spec.containers[0].ports",
            ),
            (json!({"status": {"podIP": "127.0.0.1"}}), "status.podIP"),
            (
                json!({"metadata": {"annotations": {ANNOTATION: "10001"}}}),
                ANNOTATION,
            ),
            (
                json!({"metadata": {"annotations": {ANNOTATION: "true"}}}),
                ANNOTATION,
            ),
        ] {
            let error = of(change).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }
}
