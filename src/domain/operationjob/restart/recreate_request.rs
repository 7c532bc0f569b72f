//! The ContainerRecreateRequest of OpenKruise: its body, and its result. The manager of OpenKruise completes the request
//! with data of the Pod. The daemon on the node of the Pod stops the containers, and the kubelet starts them again
//! (`apis/apps/v1alpha1/containerrecreaterequest_types.go` of OpenKruise; `v1beta1` has the same fields).

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::keys;
use crate::api::operationjob::OperationJob;
use crate::domain::digest::Digest;
use crate::domain::inplace::RunningContainers;
use crate::domain::pod::{Container, Pod};

/// API group of the requests.
pub const GROUP: &str = "apps.kruise.io";
/// Plural of the requests.
pub const PLURAL: &str = "containerrecreaterequests";
/// Label on a request: UID of the OperationJob that it belongs to.
pub const JOB_UID: &str = "operationjob.kusionstack.io/job-uid";
/// Least `activeDeadlineSeconds` that OpenKruise admits.
const MIN_DEADLINE_SECONDS: i64 = 3;
/// Seconds after which OpenKruise deletes a finished request.
const TTL_SECONDS: i64 = 600;
/// Part of the message with which OpenKruise ends a request that no daemon took up within a minute
/// (`pkg/controller/containerrecreaterequest` of OpenKruise: "daemon has not responded for a long time").
const NO_DAEMON: &str = "daemon has not responded";

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// The request is not finished.
    InProgress,
    /// All containers run again.
    Succeeded,
    /// OpenKruise has not taken the request, in its words.
    Refused(String),
    /// OpenKruise gave up, for this reason.
    Failed(String),
    /// No daemon of OpenKruise runs on the node of the Pod, in the words of OpenKruise. No container was stopped.
    NoDaemon(String),
}

/// Whether a request can restart these containers. OpenKruise only knows `spec.containers`, and only those that have
/// started. The kubelet starts a stopped container again if the restart policy is `Always`.
pub fn is_possible(pod: &Pod, chosen: &[&Container]) -> bool {
    let running = RunningContainers::from_pod(pod);
    chosen.iter().all(|container| {
        let policy = container.restart_policy.as_deref();
        let status = running.find_status(&container.name);
        policy.unwrap_or(&pod.spec.restart_policy) == "Always"
            && status.is_some_and(|status| !status.container_id.is_empty())
            && pod.spec.containers.iter().any(|c| c.name == container.name)
    })
}

/// The name of the request for a Pod of a job, by their UIDs.
pub fn name(job_uid: &str, pod_uid: &str) -> String {
    let mut digest = Digest::default();
    digest.add_text(job_uid);
    digest.add_text(pod_uid);
    format!("opj-{:016x}", digest.value())
}

/// The request in this version of the API (`apps.kruise.io/…`) that restarts the chosen containers within `seconds`.
pub fn body(
    api_version: &str,
    job: &OperationJob,
    pod: &Pod,
    chosen: &[&Container],
    seconds: i64,
) -> Value {
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let job_uid = job.metadata.uid.as_deref().unwrap_or_default();
    let containers = chosen.iter().map(|c| json!({ "name": c.name }));
    json!({
        "apiVersion": api_version,
        "kind": "ContainerRecreateRequest",
        "metadata": {
            "name": name(job_uid, &pod.metadata.uid),
            "namespace": pod.metadata.namespace,
            "labels": { (JOB_UID): job_uid },
            "ownerReferences": [{
                "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
                "kind": "OperationJob",
                "name": job_name,
                "uid": job_uid,
                "controller": true,
            }],
        },
        "spec": {
            "podName": pod.metadata.name,
            "containers": containers.collect::<Vec<_>>(),
            "strategy": { "failurePolicy": "Fail" },
            "activeDeadlineSeconds": seconds.max(MIN_DEADLINE_SECONDS),
            "ttlSecondsAfterFinished": TTL_SECONDS,
        },
    })
}

/// Reads the result of a request, which is its JSON.
pub fn state(request: &Value) -> RequestState {
    let status = Status::deserialize(&request["status"]).unwrap_or_default();
    if status.phase != "Completed" {
        return RequestState::InProgress;
    }
    if status.message.contains(NO_DAEMON) {
        return RequestState::NoDaemon(status.message);
    }
    let states = &status.container_recreate_states;
    let named = request["spec"]["containers"].as_array().map_or(0, Vec::len);
    if states.len() >= named.max(1) && states.iter().all(|state| state.phase == "Succeeded") {
        return RequestState::Succeeded;
    }
    RequestState::Failed(status.reason())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    message: String,
    container_recreate_states: Vec<ContainerState>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    name: String,
    phase: String,
    message: String,
}

impl Status {
    /// Why the request failed. The daemon writes the reason into the state of the container and leaves the message of
    /// the request empty.
    fn reason(&self) -> String {
        if !self.message.is_empty() {
            return self.message.clone();
        }
        let mut states = self.container_recreate_states.iter();
        let failed = states.find(|state| state.phase != "Succeeded");
        failed.map_or_else(
            || "the request ended without a result for all containers".to_owned(),
            |state| {
                let ContainerState {
                    name,
                    phase,
                    message,
                } = state;
                let separator = if message.is_empty() { "" } else { ": " };
                format!("container {name:?} is {phase}{separator}{message}")
            },
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod(restart_policy: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "web-1", "namespace": "shop", "uid": "pod-uid" },
            "spec": {
                "restartPolicy": restart_policy,
                "containers": [
                    { "name": "app" },
                    { "name": "log", "restartPolicy": "Never" },
                    { "name": "new" },
                ],
                "initContainers": [{ "name": "mesh", "restartPolicy": "Always" }],
            },
            "status": {
                "containerStatuses": [
                    { "name": "app", "containerID": "containerd://1" },
                    { "name": "log", "containerID": "containerd://2" },
                ],
                "initContainerStatuses": [{ "name": "mesh", "containerID": "containerd://3" }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn request_needs_started_containers_with_restart_policy_always() {
        let always = pod("Always");
        let containers = &always.spec.containers;
        assert!(is_possible(&always, &[&containers[0]]));
        assert!(
            !is_possible(&always, &[&containers[0], &containers[1]]),
            "its own policy"
        );
        assert!(!is_possible(&always, &[&containers[2]]), "not started");
        assert!(
            !is_possible(&always, &[&always.spec.init_containers[0]]),
            "a sidecar"
        );
        for policy in ["Never", "OnFailure"] {
            let pod = pod(policy);
            assert!(!is_possible(&pod, &[&pod.spec.containers[0]]), "{policy}");
        }
    }

    #[test]
    fn name_depends_on_both_uids() {
        let base = name("a", "b");
        let hex = base.strip_prefix("opj-").unwrap();
        assert!(
            hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()),
            "{base}"
        );
        assert_eq!(base, name("a", "b"));
        for other in [
            name("a", "c"),
            name("c", "b"),
            name("b", "a"),
            name("ab", ""),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn body_has_owner_label_and_containers() {
        let pod = pod("Always");
        let mut job = OperationJob::new(
            "nightly",
            crate::api::operationjob::OperationJobSpec::default(),
        );
        job.metadata.uid = Some("job-uid".into());
        let body = |seconds| {
            body(
                "apps.kruise.io/v1beta1",
                &job,
                &pod,
                &[&pod.spec.containers[0]],
                seconds,
            )
        };
        let expected = json!({
            "apiVersion": "apps.kruise.io/v1beta1",
            "kind": "ContainerRecreateRequest",
            "metadata": {
                "name": name("job-uid", "pod-uid"),
                "namespace": "shop",
                "labels": { "operationjob.kusionstack.io/job-uid": "job-uid" },
                "ownerReferences": [{
                    "apiVersion": "apps.kusionstack.io/v1alpha1",
                    "kind": "OperationJob",
                    "name": "nightly",
                    "uid": "job-uid",
                    "controller": true,
                }],
            },
            "spec": {
                "podName": "web-1",
                "containers": [{ "name": "app" }],
                "strategy": { "failurePolicy": "Fail" },
                "activeDeadlineSeconds": 90,
                "ttlSecondsAfterFinished": 600,
            },
        });
        assert_eq!(body(90), expected);
        assert_eq!(body(-5)["spec"]["activeDeadlineSeconds"], 3);
    }

    #[test]
    fn state_follows_from_phase_message_and_containers() {
        let of = |status: Value| {
            let containers = json!([{ "name": "app" }, { "name": "log" }]);
            state(&json!({ "spec": { "containers": containers }, "status": status }))
        };
        let container = |phase: &str| json!({ "name": "app", "phase": phase });
        let failed = |words: &str| RequestState::Failed(words.to_owned());
        for running in [
            json!(null),
            json!({}),
            json!({ "phase": "Pending" }),
            json!({ "phase": "Recreating" }),
        ] {
            assert_eq!(of(running.clone()), RequestState::InProgress, "{running}");
        }
        let completed = |message: &str, states: Value| {
            of(
                json!({ "phase": "Completed", "message": message, "containerRecreateStates": states }),
            )
        };
        let (done, broken) = (container("Succeeded"), container("Failed"));
        assert_eq!(completed("", json!([done, done])), RequestState::Succeeded);
        assert_eq!(completed("pod has gone", json!([])), failed("pod has gone"));
        assert_eq!(
            completed("", json!([done, broken])),
            failed("container \"app\" is Failed")
        );
        let with_message =
            json!({ "name": "log", "phase": "Failed", "message": "kill container error" });
        let words = "container \"log\" is Failed: kill container error";
        assert_eq!(completed("", json!([done, with_message])), failed(words));
        let words = "the request ended without a result for all containers";
        assert_eq!(completed("", json!([done])), failed(words));
        assert_eq!(of(json!({ "phase": "Completed" })), failed(words));
        let words = "daemon has not responded for a long time";
        assert_eq!(
            completed(words, json!([])),
            RequestState::NoDaemon(words.to_owned())
        );
    }
}
