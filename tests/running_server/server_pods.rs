//! Processes of the server in place of the containers of its simulated Pods: with the arguments, the environment, the
//! mounted volumes and the account that their Deployment gives them. A Pod becomes Ready when its process is ready.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use operating::cli::install::names;
use rustix::process::Signal;
use serde_json::json;
use testbed::containers::loopback_of;
use testbed::plane::Plane;
use testbed::probe;
use testbed::process::Process;
use tokio_util::task::AbortOnDropHandle;

use super::projection::Projection;

/// kwok does not report the containers of a Pod with this annotation as ready.
const NOT_READY: &str = testbed::containers::ANNOTATION;
/// Keeps a Pod, and its address, until its process has ended, as the kubelet does.
const FINALIZER: &str = "plane.test/process";
/// Pause between two looks at the Pods.
const PAUSE: Duration = Duration::from_millis(100);

/// The processes. Dropping it kills them.
pub struct ServerPods {
    ends: Arc<Mutex<Vec<String>>>,
    arguments: Arc<Mutex<HashMap<String, Vec<String>>>>,
    _following: AbortOnDropHandle<()>,
}

/// A process, and what it needs.
struct Running {
    pod: String,
    process: Process,
    metrics: SocketAddr,
    is_ready: bool,
    is_ending: bool,
    _volumes: Vec<Projection>,
}

/// What the processes of a plane have in common.
struct Node {
    client: Client,
    pods: Api<Pod>,
    supervisor: PathBuf,
    logs: PathBuf,
    kubeconfig: PathBuf,
}

impl ServerPods {
    /// Follows the Pods of the server. Its ServiceAccount may be created later.
    pub async fn start(plane: &Plane) -> ServerPods {
        hold_readiness(plane).await;
        let client = plane.client().unwrap();
        let node = Node {
            pods: Api::namespaced(client.clone(), names::NAMESPACE),
            client,
            supervisor: plane.controlplane_binary().to_owned(),
            logs: plane.logs(),
            kubeconfig: plane.kubeconfig().to_owned(),
        };
        let (ends, arguments) = (Arc::default(), Arc::default());
        let following = follow(node, Arc::clone(&ends), Arc::clone(&arguments));
        ServerPods {
            ends,
            arguments,
            _following: AbortOnDropHandle::new(tokio::spawn(following)),
        }
    }

    /// The processes that ended although their Pod goes on, with the end of their log.
    pub fn unexpected_ends(&self) -> Vec<String> {
        self.ends.lock().unwrap().clone()
    }

    /// The arguments of the running processes, by Pod.
    pub fn arguments(&self) -> HashMap<String, Vec<String>> {
        self.arguments.lock().unwrap().clone()
    }
}

/// Adds [`NOT_READY`] and [`FINALIZER`] to the Pods of the server, which leaves their Deployment as it was rendered.
async fn hold_readiness(plane: &Plane) {
    let name = "server-pods.plane.test";
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                }]},
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": format!(
                    "Object{{metadata: Object.metadata{{annotations: {{'{NOT_READY}': '0'}}, finalizers: ['{FINALIZER}']}}}}"
                )}}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "matchResources": {"namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": names::NAMESPACE},
            }}},
        },
    ]});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, objects.to_string()).unwrap();
    let file = file.path().to_str().unwrap();
    let _ = plane.ask_kubectl(&["apply", "-f", file]).await.success();
}

async fn follow(
    node: Node,
    ends: Arc<Mutex<Vec<String>>>,
    arguments: Arc<Mutex<HashMap<String, Vec<String>>>>,
) {
    let mut running: HashMap<String, Running> = HashMap::new();
    loop {
        tokio::time::sleep(PAUSE).await;
        let Some(pods) = pods_by_uid(&node.pods).await else {
            continue;
        };
        for (uid, pod) in pods {
            let is_deleted = pod.metadata.deletion_timestamp.is_some();
            let Some(server) = running.get_mut(&uid) else {
                if is_deleted {
                    let _ = let_go(&node.pods, &pod).await;
                } else if let Some((server, args)) = start(&node, &pod).await {
                    arguments.lock().unwrap().insert(server.pod.clone(), args);
                    running.insert(uid, server);
                }
                continue;
            };
            if let Some(status) = server.process.exit_status() {
                if !server.is_ending {
                    let tail = server.process.log_tail(20);
                    let end = format!("{} ended with {status}:\n{tail}", server.pod);
                    ends.lock().unwrap().push(end);
                }
                arguments.lock().unwrap().remove(&server.pod);
                running.remove(&uid);
            } else if is_deleted && !server.is_ending {
                server.is_ending = true;
                server.process.signal(Signal::TERM).unwrap();
            } else if !is_deleted && !server.is_ready && probe::is_ready(server.metrics).await {
                server.is_ready = report(&node.pods, &pod).await;
            }
        }
    }
}

/// The Pods of the server by UID. `None` if the API server does not answer.
async fn pods_by_uid(pods: &Api<Pod>) -> Option<HashMap<String, Pod>> {
    let of_server = ListParams::default().labels("app.kubernetes.io/name=operating");
    let found = pods.list(&of_server).await.ok()?.items.into_iter();
    Some(found.map(|pod| (pod.uid().unwrap(), pod)).collect())
}

/// Removes the finalizer of a Pod without a process.
async fn let_go(pods: &Api<Pod>, pod: &Pod) -> kube::Result<Pod> {
    let patch = Patch::Merge(json!({"metadata": {
        "finalizers": null, "resourceVersion": pod.metadata.resource_version,
    }}));
    let params = PatchParams::default();
    pods.patch(&pod.name_any(), &params, &patch).await
}

/// Starts the process of a Pod whose container runs. `None` if the kubelet would wait.
async fn start(node: &Node, pod: &Pod) -> Option<(Running, Vec<String>)> {
    let status = pod.status.as_ref()?;
    let is_running = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
        c.state.as_ref().is_some_and(|s| s.running.is_some())
    };
    status
        .container_statuses
        .iter()
        .flatten()
        .find(|c| is_running(c))?;
    let address = loopback_of(status.pod_ip.as_ref()?.parse().ok()?)?;
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.first()?;

    let secrets: Api<Secret> = Api::namespaced(node.client.clone(), names::NAMESPACE);
    let mut volumes = Vec::new();
    let mut paths = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = spec.volumes.iter().flatten().find(|v| v.name == mount.name);
        // The volume with the token of the account has no Secret; the process gets a kubeconfig.
        let Some(secret) = volume.and_then(|v| v.secret.as_ref()) else {
            continue;
        };
        let name = secret.secret_name.as_ref()?;
        secrets.get_opt(name).await.ok()??;
        let volume = Projection::begin(secrets.clone(), name);
        while !volume.is_written() {
            tokio::time::sleep(PAUSE).await;
        }
        paths.push((mount.mount_path.clone(), volume.path().to_owned()));
        volumes.push(volume);
    }
    let in_process = |text: &str| {
        let mut text = text.to_owned();
        for (mounted, path) in &paths {
            text = text.replace(&format!("={mounted}"), &format!("={}", path.display()));
        }
        text
    };

    let port = |name: &str| {
        let mut ports = container.ports.iter().flatten();
        let port = ports.find(|p| p.name.as_deref() == Some(name))?;
        u16::try_from(port.container_port).ok()
    };
    let listen = SocketAddr::from((address, port("webhook")?));
    let metrics = SocketAddr::from((address, port("metrics")?));
    let account = spec.service_account_name.as_ref()?;
    let kubeconfig = account_kubeconfig(node, account).await?;
    let args: Vec<String> = container.args.iter().flatten().cloned().collect();
    let mut command = Command::new(&node.supervisor);
    command
        .arg("supervise")
        .arg(testbed::server::binary())
        .args(args.iter().map(|arg| in_process(arg)))
        .envs(environment(pod, container))
        .env("OPERATING_KUBECONFIG", kubeconfig)
        // The addresses of all Pods are on one machine.
        .env("OPERATING_LISTEN", listen.to_string())
        .env("OPERATING_METRICS_LISTEN", metrics.to_string());
    let name = pod.name_any();
    let process = Process::spawn(&name, command, &node.logs).unwrap();
    let server = Running {
        pod: name,
        process,
        metrics,
        is_ready: false,
        is_ending: false,
        _volumes: volumes,
    };
    Some((server, args))
}

/// The variables of a container, as the kubelet computes them.
fn environment(pod: &Pod, container: &Container) -> Vec<(String, String)> {
    let value = |variable: &k8s_openapi::api::core::v1::EnvVar| {
        if let Some(value) = &variable.value {
            return value.clone();
        }
        let source = variable.value_from.as_ref().unwrap();
        match source.field_ref.as_ref().unwrap().field_path.as_str() {
            "metadata.name" => pod.name_any(),
            "metadata.namespace" => pod.namespace().unwrap(),
            other => panic!("the test does not know the field {other}"),
        }
    };
    let all = container.env.iter().flatten();
    all.map(|variable| (variable.name.clone(), value(variable)))
        .collect()
}

/// A kubeconfig with a token of the account, which the kubelet would mount. `None` if the account does not exist.
async fn account_kubeconfig(node: &Node, account: &str) -> Option<PathBuf> {
    let plane = Plane::attach(&node.kubeconfig).await.unwrap();
    let path = plane.kubeconfig_for_service_account(names::NAMESPACE, account);
    let path = path.await.ok()?;
    // The file of `attach` ends with it.
    let kept = node.logs.join(format!("{account}.kubeconfig"));
    std::fs::copy(path, &kept).unwrap();
    Some(kept)
}

/// Reports that the containers of the Pod are ready. Returns whether the API server has accepted it.
async fn report(pods: &Api<Pod>, pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let mut containers = status.container_statuses.unwrap_or_default();
    for container in &mut containers {
        container.ready = true;
    }
    let patch = Patch::Strategic(json!({
        "metadata": {"resourceVersion": pod.metadata.resource_version},
        "status": {
            "containerStatuses": containers,
            "conditions": [{"type": "ContainersReady", "status": "True", "reason": null, "message": null}],
        },
    }));
    let params = PatchParams::default();
    let written = pods.patch_status(&pod.name_any(), &params, &patch).await;
    written.is_ok()
}
