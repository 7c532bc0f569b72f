//! The containers before a restart, and how far the restart is. The job stores them in its status before it acts, so that
//! a controller that starts again can tell a restart that was made from a restart that is still to be made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::inplace::RunningContainers;
use crate::domain::pod::{Container, ContainerStatus, Pod, WaitingState};

/// Kept characters of a container ID. Twelve hexadecimal digits tell the runs of one container apart.
const ID_LENGTH: usize = 12;
/// The reason with which a container waits after it has crashed several times. Its image is there, because the container
/// has run.
pub(super) const CRASHES: &str = "CrashLoopBackOff";

/// The chosen containers before the restart, by name. As JSON: `{"<container>":{"id":"…","image":"…"}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Before(BTreeMap<String, ContainerBefore>);

/// A container before the restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerBefore {
    /// The first 12 characters of the container ID after the name of the runtime. Empty if the container had not run.
    pub id: String,
    /// The image in the spec.
    pub image: String,
}

impl Before {
    /// Notes the present state of the chosen containers.
    pub fn from_pod(pod: &Pod, chosen: &[&Container]) -> Before {
        let running = RunningContainers::from_pod(pod);
        let note = |container: &&Container| {
            let status = running.find_status(&container.name);
            let before = ContainerBefore {
                id: status.map(short_id).unwrap_or_default().to_owned(),
                image: container.image.clone(),
            };
            (container.name.clone(), before)
        };
        Before(chosen.iter().map(note).collect())
    }

    /// Reads the JSON of [`Before::to_json`]. `None` if the text is not of this form.
    pub fn from_json(text: &str) -> Option<Before> {
        serde_json::from_str(text).ok()
    }

    /// The value of `extraInfo.Before`.
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// The state of a container; `None` if it was not chosen.
    pub fn get(&self, container: &str) -> Option<&ContainerBefore> {
        self.0.get(container)
    }
}

/// Whether each of the containers has another run than before and is ready, and the kubelet has seen the present spec.
pub fn is_restarted(before: &Before, pod: &Pod) -> bool {
    let running = RunningContainers::from_pod(pod);
    before.0.iter().all(|(name, before)| {
        let status = running.ready_status(name);
        status.is_some_and(|status| short_id(status) != before.id)
    })
}

/// Whether the spec has another image than before for one of the containers. One patch changes the images of all
/// containers, so the images of all were changed.
pub fn is_patched(before: &Before, pod: &Pod) -> bool {
    let running = RunningContainers::from_pod(pod);
    before.0.iter().any(|(name, before)| {
        let container = running.find_container(name);
        container.is_some_and(|container| container.image != before.image)
    })
}

/// Whether a container has its former image in the spec, and its former run: nothing has restarted it yet, or will.
pub fn has_former_run(before: &Before, pod: &Pod, container: &Container) -> bool {
    let Some(former) = before.get(&container.name) else {
        return false;
    };
    let running = RunningContainers::from_pod(pod);
    let status = running.find_status(&container.name);
    container.image == former.image && status.is_none_or(|status| short_id(status) == former.id)
}

/// Why one of the containers can't run after its image was changed, in the words of the kubelet. `None` if all run, or
/// can be expected to run without a change.
///
/// A container that crashed before the restart waits with `CrashLoopBackOff` until the kubelet starts the new run. This
/// reason counts only for a new run.
pub fn trouble(before: &Before, pod: &Pod) -> Option<String> {
    if !pod.is_spec_observed() {
        return None;
    }
    let running = RunningContainers::from_pod(pod);
    before.0.iter().find_map(|(name, before)| {
        let status = running.find_status(name)?;
        let waiting = status.state.waiting.as_ref().filter(|w| w.is_broken())?;
        if waiting.reason == CRASHES && short_id(status) == before.id {
            return None;
        }
        Some(describe_wait(name, waiting))
    })
}

/// A container that waits, with the reason and the words of the kubelet.
pub(super) fn describe_wait(container: &str, waiting: &WaitingState) -> String {
    let WaitingState { reason, message } = waiting;
    let separator = if message.is_empty() { "" } else { ": " };
    format!("container {container:?} waits with {reason}{separator}{message}")
}

/// The first characters of the ID in `<runtime>://<ID>`.
fn short_id(status: &ContainerStatus) -> &str {
    let id = status.container_id.as_str();
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    let end = id.char_indices().nth(ID_LENGTH);
    end.map_or(id, |(end, _)| &id[..end])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// A Pod with the containers `app` and `log` and the sidecar `mesh`, after a merge patch.
    fn pod(patch: &Value) -> Pod {
        let run = |name: &str, id: &str| {
            json!({
                "name": name, "containerID": format!("containerd://{id}00000000000000"), "ready": true,
                "state": { "running": {} },
            })
        };
        let mut pod = json!({
            "metadata": { "name": "web-1", "generation": 1 },
            "spec": {
                "containers": [{ "name": "app", "image": "app:1" }, { "name": "log", "image": "log:1" }],
                "initContainers": [{ "name": "mesh", "image": "mesh:1", "restartPolicy": "Always" }],
            },
            "status": {
                "observedGeneration": 1,
                "containerStatuses": [run("app", "a1"), run("log", "b1")],
                "initContainerStatuses": [run("mesh", "c1")],
            },
        });
        let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
        json_patch::patch(&mut pod, &patch).unwrap();
        serde_json::from_value(pod).unwrap()
    }

    fn replace(path: &str, value: Value) -> Value {
        json!({ "op": "add", "path": path, "value": value })
    }

    /// `app` and `mesh` before the restart.
    fn before() -> Before {
        let pod = pod(&json!([]));
        let chosen = [&pod.spec.containers[0], &pod.spec.init_containers[0]];
        Before::from_pod(&pod, &chosen)
    }

    #[test]
    fn json_has_short_id_and_image_and_is_read_back() {
        let text = before().to_json();
        let expected = json!({
            "app": { "id": "a10000000000", "image": "app:1" },
            "mesh": { "id": "c10000000000", "image": "mesh:1" },
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert_eq!(Before::from_json(&text), Some(before()));
        for bad in ["", "[]", "{\"app\":1}", "{\"app\":{}}"] {
            assert_eq!(Before::from_json(bad), None, "{bad}");
        }
    }

    #[test]
    fn container_without_id_has_empty_id() {
        let pod = pod(&json!([replace("/status/containerStatuses", json!([]))]));
        let before = Before::from_pod(&pod, &[&pod.spec.containers[0]]);
        assert_eq!(before.get("app").unwrap().id, "");
        let before = Before::from_json("{\"app\":{\"id\":\"\",\"image\":\"app:1\"}}").unwrap();
        assert!(!is_restarted(&before, &pod));
    }

    #[test]
    fn all_containers_have_new_runs_and_are_ready_once_restarted() {
        let app = replace(
            "/status/containerStatuses/0/containerID",
            json!("containerd://a2"),
        );
        let mesh = replace(
            "/status/initContainerStatuses/0/containerID",
            json!("cri-o://c2"),
        );
        let restarted = |patch: Value| is_restarted(&before(), &pod(&patch));
        assert!(restarted(json!([app, mesh])));
        for missing in [
            json!([]),
            json!([app]),
            json!([mesh]),
            json!([
                app,
                mesh,
                replace("/status/containerStatuses/0/ready", json!(false))
            ]),
            json!([
                app,
                mesh,
                replace("/status/containerStatuses/0/containerID", json!(""))
            ]),
            json!([
                app,
                mesh,
                replace("/status/containerStatuses/0/name", json!("other"))
            ]),
            json!([app, mesh, replace("/metadata/generation", json!(2))]),
        ] {
            assert!(!restarted(missing.clone()), "{missing}");
        }
    }

    #[test]
    fn changed_image_of_a_chosen_container_is_a_patch() {
        let patched = |patch: Value| is_patched(&before(), &pod(&patch));
        assert!(!patched(json!([])));
        assert!(!patched(json!([replace(
            "/spec/containers/1/image",
            json!("log:2")
        )])));
        assert!(patched(json!([replace(
            "/spec/containers/0/image",
            json!("app:2")
        )])));
        assert!(patched(json!([replace(
            "/spec/initContainers/0/image",
            json!("mesh:2")
        )])));
    }

    #[test]
    fn trouble_has_the_words_of_the_kubelet() {
        let waits = |list: &str, reason: &str| {
            let state = json!({ "waiting": { "reason": reason, "message": "no such image" } });
            replace(&format!("/status/{list}/0/state"), state)
        };
        let found = |patch: Value| trouble(&before(), &pod(&patch));
        let words = found(json!([waits("containerStatuses", "ErrImagePull")])).unwrap();
        assert_eq!(
            words,
            "container \"app\" waits with ErrImagePull: no such image"
        );
        let words = found(json!([waits("initContainerStatuses", "ImagePullBackOff")])).unwrap();
        assert_eq!(
            words,
            "container \"mesh\" waits with ImagePullBackOff: no such image"
        );
        let not_seen = replace("/metadata/generation", json!(2));
        let not_chosen = replace("/status/containerStatuses/0/name", json!("other"));
        for none in [
            json!([]),
            json!([waits("containerStatuses", "ContainerCreating")]),
            json!([waits("containerStatuses", "ErrImagePull"), not_seen]),
            json!([waits("containerStatuses", "ErrImagePull"), not_chosen]),
        ] {
            assert_eq!(found(none.clone()), None, "{none}");
        }
    }

    #[test]
    fn only_a_crash_of_the_new_run_is_trouble() {
        let state = json!({ "waiting": { "reason": CRASHES } });
        let crashes = replace("/status/containerStatuses/0/state", state);
        let new_run = replace(
            "/status/containerStatuses/0/containerID",
            json!("containerd://a2"),
        );
        let found = |patch: Value| trouble(&before(), &pod(&patch));
        assert_eq!(found(json!([crashes])), None);
        let words = found(json!([crashes, new_run])).unwrap();
        assert_eq!(words, "container \"app\" waits with CrashLoopBackOff");
    }
}
