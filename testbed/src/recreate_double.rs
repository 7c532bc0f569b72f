//! Plays OpenKruise, as far as a ContainerRecreateRequest needs it: the CustomResourceDefinition, and the manager and
//! daemon that carry out the requests of a namespace. The double gives a container another ID in the status of its Pod,
//! because the nodes are simulated.
#![allow(clippy::unwrap_used)] // a test fails by a panic

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::wait;

const GROUP: &str = "apps.kruise.io";
const KIND: &str = "ContainerRecreateRequest";
const PLURAL: &str = "containerrecreaterequests";
/// How often the double looks for requests.
const POLL: Duration = Duration::from_millis(100);
/// How long a container is down.
const DOWN: Duration = Duration::from_millis(300);
/// The message of OpenKruise if no daemon took up the request within a minute. The double does not wait for a minute.
pub const NO_DAEMON: &str = "daemon has not responded for a long time";

/// What becomes of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The containers are stopped and started again.
    Works,
    /// The manager ends the request, because there is no daemon on the node.
    NoDaemon,
    /// The daemon can't stop the containers, for this reason.
    Fails(String),
}

/// Defines ContainerRecreateRequest in these versions, the first of which is stored, and waits until it is served. The
/// definition is for the whole plane: a server on the plane finds it in all namespaces.
pub async fn install(client: &Client, versions: &[&str]) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let versions_json: Vec<Value> = versions
        .iter()
        .map(|v| version(v, *v == versions[0]))
        .collect();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{PLURAL}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": { "kind": KIND, "plural": PLURAL, "singular": KIND.to_lowercase() },
            "versions": versions_json,
        },
    });
    let name = format!("{PLURAL}.{GROUP}");
    let params = PatchParams::apply("recreate-double").force();
    let definition = Patch::Apply(&definition);
    definitions
        .patch(&name, &params, &definition)
        .await
        .unwrap();
    for version in versions {
        let requests: Api<DynamicObject> = Api::all_with(client.clone(), &resource(version));
        wait::until(&format!("{KIND} {version} to be served"), async || {
            requests.list(&ListParams::default().limit(1)).await.is_ok()
        })
        .await;
    }
}

/// The requests of a namespace, in a version of the API such as `v1alpha1`.
pub fn requests(client: &Client, namespace: &str, version: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(version))
}

fn resource(version: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: version.to_owned(),
        api_version: format!("{GROUP}/{version}"),
        kind: KIND.to_owned(),
        plural: PLURAL.to_owned(),
    }
}

/// A version of the definition. Its schema has the fields that OpenKruise requires, and keeps all others.
fn version(name: &str, is_stored: bool) -> Value {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let container = json!({
        "type": "object",
        "required": ["name"],
        "properties": { "name": { "type": "string" } },
        "x-kubernetes-preserve-unknown-fields": true,
    });
    json!({
        "name": name,
        "served": true,
        "storage": is_stored,
        "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["podName", "containers"],
                    "properties": {
                        "podName": { "type": "string" },
                        "containers": { "type": "array", "items": container },
                        "strategy": open,
                        "activeDeadlineSeconds": { "type": "integer", "format": "int64", "minimum": 3 },
                        "ttlSecondsAfterFinished": { "type": "integer", "format": "int32" },
                    },
                },
                "status": open,
            },
        } },
    })
}

/// Carries out the requests of a namespace until it is dropped.
pub struct RecreateDouble {
    task: JoinHandle<()>,
}

impl RecreateDouble {
    /// Begins to carry out the requests of a namespace, in a version of the API that [`install`] has defined. The
    /// client needs all rights, as that of [`crate::Bed::admin`].
    pub fn start(client: Client, namespace: &str, version: &str, mode: Mode) -> RecreateDouble {
        let requests = requests(&client, namespace, version);
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let task = tokio::spawn(async move {
            loop {
                let found = requests.list(&ListParams::default()).await;
                for request in found.into_iter().flatten() {
                    if request.data["status"]["phase"] != "Completed" {
                        // The next round repeats what failed.
                        let _ = carry_out(&requests, &pods, &request, &mode).await;
                    }
                }
                sleep(POLL).await;
            }
        });
        RecreateDouble { task }
    }
}

impl Drop for RecreateDouble {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry_out(
    requests: &Api<DynamicObject>,
    pods: &Api<Pod>,
    request: &DynamicObject,
    mode: &Mode,
) -> Result<(), Error> {
    let spec = &request.data["spec"];
    let pod = spec["podName"].as_str().unwrap_or_default();
    let containers = spec["containers"].as_array().into_iter().flatten();
    let containers: Vec<&str> = containers.filter_map(|c| c["name"].as_str()).collect();
    let report = async |status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        let params = PatchParams::default();
        let name = request.name_any();
        let written = requests.patch_status(&name, &params, &patch).await;
        written.map(drop)
    };
    let states = |phase: &str, message: &str| {
        let state = |name| json!({ "name": name, "phase": phase, "message": message });
        containers.iter().map(state).collect::<Vec<_>>()
    };
    let completed = |message: &str, states: Vec<Value>| {
        json!({
            "phase": "Completed",
            "completionTime": now(),
            "message": message,
            "containerRecreateStates": states,
        })
    };
    if pods.get_opt(pod).await?.is_none() {
        return report(completed("pod has gone", Vec::new())).await;
    }
    match mode {
        Mode::NoDaemon => report(completed(NO_DAEMON, Vec::new())).await,
        // The daemon writes why it failed into the states, and leaves the message of the request empty.
        Mode::Fails(reason) => report(completed("", states("Failed", reason))).await,
        Mode::Works => {
            let states_now = states("Recreating", "");
            report(json!({ "phase": "Recreating", "containerRecreateStates": states_now })).await?;
            write_status(pods, pod, &containers, stop).await?;
            sleep(DOWN).await;
            write_status(pods, pod, &containers, start).await?;
            report(completed("", states("Succeeded", ""))).await
        }
    }
}

/// Changes the statuses of containers, and sets whether all containers are ready. The simulated kubelet derives from
/// that whether the Pod is Ready.
async fn write_status(
    pods: &Api<Pod>,
    name: &str,
    containers: &[&str],
    change: fn(&mut Value),
) -> Result<(), Error> {
    loop {
        let pod = pods.get(name).await?;
        let mut statuses = json!(pod.status.clone().unwrap_or_default().container_statuses);
        for status in statuses.as_array_mut().into_iter().flatten() {
            if containers.iter().any(|name| status["name"] == *name) {
                change(status);
            }
        }
        let mut all = statuses.as_array().into_iter().flatten();
        let is_ready = all.all(|status| status["ready"] == true);
        let condition = json!({
            "type": "ContainersReady",
            "status": if is_ready { "True" } else { "False" },
            "lastTransitionTime": now(),
        });
        let patch = Patch::Strategic(json!({
            "metadata": { "resourceVersion": pod.metadata.resource_version },
            "status": { "containerStatuses": statuses, "conditions": [condition] },
        }));
        match pods
            .patch_status(name, &PatchParams::default(), &patch)
            .await
        {
            Err(Error::Api(status)) if status.code == 409 => {}
            written => return written.map(drop),
        }
    }
}

fn stop(status: &mut Value) {
    let ended = json!({ "terminated": {
        "exitCode": 0,
        "reason": "Completed",
        "containerID": status["containerID"],
        "finishedAt": now(),
    } });
    status["state"] = ended.clone();
    status["lastState"] = ended;
    status["ready"] = json!(false);
    status["started"] = json!(false);
}

fn start(status: &mut Value) {
    let id: [u128; 2] = rand::random();
    status["containerID"] = json!(format!("containerd://{:032x}{:032x}", id[0], id[1]));
    status["restartCount"] = json!(status["restartCount"].as_i64().unwrap_or_default() + 1);
    status["state"] = json!({ "running": { "startedAt": now() } });
    status["ready"] = json!(true);
    status["started"] = json!(true);
}

/// The present time, to the second.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
