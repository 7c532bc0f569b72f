//! The strategic merge patches of a restart by image references. They contain only `spec`; the caller adds the
//! preconditions in `metadata`.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::before::{Before, CRASHES, describe_wait};
use super::image_reference::{REMEDY, is_other_reference, other_reference};
use crate::domain::inplace::RunningContainers;
use crate::domain::pod::{Container, Pod};

/// Why no patch restarts the containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRestartPatch {
    /// A container does not run yet, so the digest of its image is not known. The Pod may get there without a change.
    NotYet(String),
    /// Another reference to the image is not known, or the kubelet could not use it. A sentence with a remedy.
    NotSupported(String),
}

/// The patch that gives each chosen container another reference to the image that it runs.
///
/// # Errors
///
/// See [`NoRestartPatch`]. While the kubelet has not seen the spec, or a container waits for its image, the status may
/// still have the image that ran before the last change of the spec. Its digest would undo that change.
pub fn restart_patch(pod: &Pod, chosen: &[&Container]) -> Result<Value, NoRestartPatch> {
    if !pod.is_spec_observed() {
        let sentence = "the kubelet has not seen the last change of the Pod's spec";
        return Err(NoRestartPatch::NotYet(sentence.to_owned()));
    }
    let running = RunningContainers::from_pod(pod);
    let mut images = HashMap::new();
    for container in chosen {
        images.insert(&*container.name, restart_image(&running, container)?);
    }
    let patch = images_patch(pod, |container| images.get(&*container.name).cloned());
    Ok(patch.unwrap_or_else(|| json!({})))
}

fn restart_image(
    running: &RunningContainers,
    container: &Container,
) -> Result<String, NoRestartPatch> {
    let name = &container.name;
    let not_supported =
        |problem: String| NoRestartPatch::NotSupported(format!("container {name:?}: {problem}"));
    if container.never_pulls {
        return Err(not_supported(format!(
            "with imagePullPolicy Never, the kubelet may not find the image under another reference; {REMEDY}"
        )));
    }
    let status = running.find_status(name);
    let Some(status) = status.filter(|s| !s.container_id.is_empty()) else {
        let sentence = format!("container {name:?} has not started");
        return Err(NoRestartPatch::NotYet(sentence));
    };
    match &status.state.waiting {
        Some(waiting) if waiting.reason != CRASHES => {
            Err(NoRestartPatch::NotYet(describe_wait(name, waiting)))
        }
        _ => other_reference(&container.image, &status.image_id).map_err(not_supported),
    }
}

/// The patch that puts these images back, by the names of the containers. `None` if no container has an image from
/// [`restart_patch`]. An image that was changed otherwise since then stays.
pub fn restore_patch(former: &BTreeMap<String, String>, pod: &Pod) -> Option<Value> {
    images_patch(pod, |container| {
        let image = former.get(&container.name)?;
        is_other_reference(image, &container.image).then(|| image.clone())
    })
}

/// Whether a container has an image that [`restart_patch`] can have made of its image in `before`.
pub fn is_changed(before: &Before, pod: &Pod) -> bool {
    let has_other = |container: &Container| {
        let former = before.get(&container.name);
        former.is_some_and(|former| is_other_reference(&former.image, &container.image))
    };
    images_patch(pod, |container| has_other(container).then(String::new)).is_some()
}

/// The patch with the new images of the containers and init containers; `None` if there are none.
fn images_patch(pod: &Pod, new_image: impl Fn(&Container) -> Option<String>) -> Option<Value> {
    let lists = [
        ("containers", &pod.spec.containers),
        ("initContainers", &pod.spec.init_containers),
    ];
    let mut spec = Map::new();
    for (field, containers) in lists {
        let changes = containers.iter().filter_map(|container| {
            let image = new_image(container)?;
            Some(json!({ "name": container.name, "image": image }))
        });
        let changes: Vec<Value> = changes.collect();
        if !changes.is_empty() {
            spec.insert(field.to_owned(), Value::Array(changes));
        }
    }
    (!spec.is_empty()).then(|| json!({ "spec": spec }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn pod_json() -> Value {
        let status = |name: &str| {
            json!({
                "name": name, "containerID": format!("containerd://{name}"), "ready": true,
                "imageID": format!("docker.io/library/{name}@sha256:{HEX}"),
            })
        };
        json!({
            "metadata": { "name": "web-1", "generation": 1 },
            "spec": {
                "containers": [{ "name": "app", "image": "app:1" }, { "name": "log", "image": "log" }],
                "initContainers": [
                    { "name": "setup", "image": "setup:1" },
                    { "name": "mesh", "image": "mesh:1", "restartPolicy": "Always" },
                ],
            },
            "status": {
                "observedGeneration": 1,
                "containerStatuses": [status("app"), status("log")],
                "initContainerStatuses": [status("setup"), status("mesh")],
            },
        })
    }

    fn read(pod: &Value) -> Pod {
        serde_json::from_value(pod.clone()).unwrap()
    }

    /// The patch that restarts `app` and `mesh`.
    fn patch_of(pod: &Value) -> Result<Value, NoRestartPatch> {
        let pod = read(pod);
        restart_patch(
            &pod,
            &[&pod.spec.containers[0], &pod.spec.init_containers[1]],
        )
    }

    #[test]
    fn patch_names_only_the_chosen_containers() {
        let expected = json!({ "spec": {
            "containers": [{ "name": "app", "image": format!("app:1@sha256:{HEX}") }],
            "initContainers": [{ "name": "mesh", "image": format!("mesh:1@sha256:{HEX}") }],
        } });
        assert_eq!(patch_of(&pod_json()), Ok(expected));
    }

    #[test]
    fn pod_that_is_not_settled_is_not_patched_yet() {
        let waits = |reason: &str| json!({ "waiting": { "reason": reason, "message": "no" } });
        for (pointer, value, words) in [
            (
                "/metadata/generation",
                json!(2),
                "has not seen the last change",
            ),
            (
                "/status/containerStatuses",
                json!([]),
                "\"app\" has not started",
            ),
            (
                "/status/containerStatuses/0/containerID",
                json!(""),
                "\"app\" has not started",
            ),
            (
                "/status/containerStatuses/0/state",
                waits("ErrImagePull"),
                "waits with ErrImagePull: no",
            ),
        ] {
            let mut pod = pod_json();
            pod["status"]["containerStatuses"][0]["state"] = json!({});
            *pod.pointer_mut(pointer).unwrap() = value;
            let Err(NoRestartPatch::NotYet(sentence)) = patch_of(&pod) else {
                panic!("{pointer}");
            };
            assert!(sentence.contains(words), "{sentence}");
        }
    }

    #[test]
    fn crashing_container_can_be_restarted() {
        let mut pod = pod_json();
        let state = json!({ "waiting": { "reason": CRASHES } });
        pod["status"]["containerStatuses"][0]["state"] = state;
        assert!(patch_of(&pod).is_ok());
    }

    #[test]
    fn image_without_digest_or_pull_is_not_supported() {
        let mut without_digest = pod_json();
        without_digest["status"]["containerStatuses"][0]["imageID"] = json!("sha256:00");
        let mut without_pull = pod_json();
        without_pull["spec"]["initContainers"][1]["imagePullPolicy"] = json!("Never");
        for (pod, container) in [(without_digest, "\"app\": "), (without_pull, "\"mesh\": ")] {
            let Err(NoRestartPatch::NotSupported(sentence)) = patch_of(&pod) else {
                panic!("{pod}");
            };
            assert!(
                sentence.contains(container) && sentence.ends_with(REMEDY),
                "{sentence}"
            );
        }
        let mut always = pod_json();
        always["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        assert!(patch_of(&always).is_ok());
    }

    #[test]
    fn restore_puts_back_only_images_of_the_restart() {
        let old = read(&pod_json());
        let before = Before::from_pod(
            &old,
            &[&old.spec.containers[0], &old.spec.init_containers[1]],
        );
        let former = [("app", "app:1"), ("mesh", "mesh:1")];
        let former = former.map(|(name, image)| (name.to_owned(), image.to_owned()));
        let former = former.into();
        assert_eq!(restore_patch(&former, &old), None);
        assert!(!is_changed(&before, &old));
        let mut pod = pod_json();
        pod["spec"]["containers"][0]["image"] = json!(format!("app:1@sha256:{HEX}"));
        pod["spec"]["containers"][1]["image"] = json!(format!("log@sha256:{HEX}"));
        pod["spec"]["initContainers"][1]["image"] = json!("mesh:2");
        let expected = json!({ "spec": { "containers": [{ "name": "app", "image": "app:1" }] } });
        assert_eq!(restore_patch(&former, &read(&pod)), Some(expected));
        assert!(is_changed(&before, &read(&pod)));
    }
}
