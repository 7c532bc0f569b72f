//! The containers of a Pod and their statuses.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::parse;
use crate::domain::digest::Digest;
use crate::domain::quantity;

/// A container, with the fields that an in-place change can alter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name, unique in the Pod.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Whether the kubelet never pulls the image (`imagePullPolicy: Never`).
    #[serde(rename = "imagePullPolicy", deserialize_with = "parse::is_never")]
    pub never_pulls: bool,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<String>,
    /// Requests and limits of `cpu` and `memory`, as raw JSON, because they are only compared. Other resources are
    /// dropped: the API server does not allow a resize of them, and a Pod may ask for thousands of resources that do
    /// not exist.
    #[serde(deserialize_with = "parse::resizable_resources")]
    pub resources: serde_json::Value,
    /// For each resource, whether a resize restarts the container.
    #[serde(deserialize_with = "parse::exact_list")]
    pub resize_policy: Vec<ResizePolicy>,
    /// The declared ports.
    #[serde(deserialize_with = "parse::exact_list")]
    pub ports: Vec<ContainerPort>,
}

/// An entry of `ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name; may be empty.
    pub name: String,
    /// Number.
    pub container_port: u16,
    /// `TCP`, `UDP` or `SCTP`. Empty means TCP.
    pub protocol: String,
}

/// An entry of `resizePolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResizePolicy {
    /// `cpu` or `memory`.
    pub resource_name: String,
    /// `NotRequired` or `RestartContainer`.
    pub restart_policy: String,
}

/// A container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Container name.
    pub name: String,
    /// ID of the present run of the container. Each restart gives a new ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Name of the running image, as the runtime reports it. It may be another name of the image in the spec.
    pub image: String,
    /// ID of the running image. Two tags of one image have the same ID.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// Whether the container is ready.
    pub ready: bool,
    /// The resources that are in force.
    pub resources: Resources,
    /// Whether the container runs, or why it waits.
    #[serde(deserialize_with = "container_state")]
    pub state: ContainerState,
    /// Exit code of the run before the present one, from `lastState.terminated`.
    #[serde(rename = "lastState", deserialize_with = "exit_code")]
    pub last_exit_code: Option<i32>,
}

/// `state` of a container status. A container that neither waits nor runs has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerState {
    /// Why the container does not run, from `state.waiting`.
    pub waiting: Option<Box<WaitingState>>,
    /// Whether the container runs.
    pub is_running: bool,
    /// The exit code of a container that has ended, from `state.terminated`.
    pub exit_code: Option<i32>,
}

/// The resources of a container that can be resized. Each is a digest of its request and limit; both are 0 if not
/// reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Digest of `cpu`.
    pub cpu: u64,
    /// Digest of `memory`.
    pub memory: u64,
}

impl Resources {
    /// Makes the digests of a `resources` field.
    pub fn from_resources(resources: &serde_json::Value) -> Resources {
        let digest = |name| {
            let mut digest = Digest::default();
            for kind in ["requests", "limits"] {
                let value = resources.get(kind).and_then(|r| r.get(name));
                digest.add_text(&value.map(quantity::normal_form).unwrap_or_default());
            }
            digest.value()
        };
        match resources {
            serde_json::Value::Object(_) => Resources {
                cpu: digest("cpu"),
                memory: digest("memory"),
            },
            _ => Resources::default(),
        }
    }

    /// The digest of a resource by its name in a `resizePolicy`. `None` for a resource that can't be resized.
    pub fn digest_of(&self, name: &str) -> Option<u64> {
        match name {
            "cpu" => Some(self.cpu),
            "memory" => Some(self.memory),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Resources, D::Error> {
        Ok(Resources::from_resources(&serde_json::Value::deserialize(
            d,
        )?))
    }
}

/// `state.waiting` of a container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WaitingState {
    /// The reason, in one word such as `ImagePullBackOff`.
    pub reason: String,
    /// The reason, in a sentence of at most 200 bytes.
    pub message: String,
}

impl WaitingState {
    /// Whether the container can't run as the Pod describes it. False for the reasons of a normal start.
    pub fn is_broken(&self) -> bool {
        BROKEN_REASONS.contains(&self.reason.as_str())
    }
}

/// `terminated` of the present or of the last state.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
}

fn container_state<'de, D: Deserializer<'de>>(d: D) -> Result<ContainerState, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct State {
        waiting: Option<Box<WaitingState>>,
        running: Option<IgnoredAny>,
        terminated: Option<Terminated>,
    }
    let State {
        mut waiting,
        running,
        terminated,
    } = parse::null_as_default(d)?;
    if let Some(waiting) = &mut waiting {
        waiting.message = parse::truncate_message(std::mem::take(&mut waiting.message));
    }
    Ok(ContainerState {
        waiting,
        is_running: running.is_some(),
        exit_code: terminated.map(|terminated| terminated.exit_code),
    })
}

fn exit_code<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i32>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct LastState {
        terminated: Option<Terminated>,
    }
    let last: LastState = parse::null_as_default(d)?;
    Ok(last.terminated.map(|terminated| terminated.exit_code))
}

/// Values of `state.waiting.reason` that say that a container cannot run as the Pod describes it. The kubelet sets them
/// (`pkg/kubelet/container/sync_result.go`, `pkg/kubelet/images/types.go`, `pkg/kubelet/kuberuntime`). The other
/// reasons, `ContainerCreating` and `PodInitializing`, belong to every normal start.
pub(super) const BROKEN_REASONS: [&str; 14] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "PostStartHookError",
    "PreCreateHookError",
    "PreStartHookError",
    "RegistryUnavailable",
    "RunContainerError",
    "SignatureValidationFailed",
];
