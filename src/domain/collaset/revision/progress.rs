//! Whether the kubelet has applied an in-place update (contract 6.5, contract Q44).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::inplace::InPlaceChange;
use crate::api::keys;
use crate::domain::lifecycle::restarts;
use crate::domain::pod::{
    Container, ContainerStatus, Pod, RESIZE_IN_PROGRESS, RESIZE_PENDING, Resources,
};

/// Progress of the kubelet with an in-place update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateProgress {
    /// Every container runs its new image with its new resources. It need not be Ready.
    Done,
    /// The update is in progress or stuck; the text says why.
    Waiting(String),
    /// The update will never be applied; the text says why.
    Refused(String),
}

/// Returns the value of the annotation `last-pod-status`, to be written together with a change of `pod`. The format is
/// that of Kuperator, with more fields. `lastContainerID` reveals a container that has restarted with the same image ID
/// (a retag). `lastImage` is the image from which the container was created. `resize` says that resources change as
/// well. Entries of an earlier change that the kubelet has not applied yet are kept, whether the container changes
/// again or not.
pub fn last_pod_status(pod: &Pod, change: &InPlaceChange) -> String {
    let InPlaceChange::Yes { spec, resize, .. } = change else {
        return "{}".to_owned();
    };
    let LastPodStatus {
        container_states: mut earlier,
        resize: resized,
    } = LastPodStatus::from_pod(pod);
    earlier.retain(|name, last| {
        let image = find_container(pod, name).map(|c| &c.image);
        let status = find_container_status(pod, name);
        image.is_some_and(|image| !last.is_settled(pod, image, status))
    });
    let lists = ["containers", "initContainers"].into_iter();
    let changed: Vec<(String, LastContainerStatus)> = lists
        .filter_map(|list| spec.as_ref()?.get(list)?.as_array())
        .flatten()
        .filter_map(|c| Some((c.get("name")?.as_str()?, c.get("image")?.as_str()?)))
        .map(|(name, image)| {
            let previous = earlier.remove(name);
            let mut last =
                previous.unwrap_or_else(|| LastContainerStatus::from_container(pod, name));
            image.clone_into(&mut last.latest_image);
            // The container may not have restarted yet for the image in the spec. Then this change may lead back to the
            // image from which the container was created.
            if restarts::is_pending_for_image(pod, name, image) {
                last.last_image = Some(image.to_owned());
            }
            (name.to_owned(), last)
        })
        .collect();
    let last = LastPodStatus {
        container_states: earlier.into_iter().chain(changed).collect(),
        resize: resize.is_some() || resized && self::resize_progress(pod) != UpdateProgress::Done,
    };
    // The value contains only strings and a bool, so this can't fail.
    serde_json::to_string(&last).unwrap_or_else(|_| "{}".to_owned())
}

/// Returns the progress of the kubelet, judged by the annotation of [`last_pod_status`]. Without the annotation, or
/// with one that can't be read, there is nothing to wait for.
///
/// If the image in the Pod is not the requested one, admission has rewritten it, for example to a digest, or somebody
/// has changed it since. In both cases this function waits until the container has restarted. If it is the image that
/// the container ran before, the function waits until the kubelet has observed the spec. An annotation by Kuperator
/// does not tell what ran before; then the function does not wait for the container.
pub fn update_progress(pod: &Pod) -> UpdateProgress {
    let last = LastPodStatus::from_pod(pod);
    for (name, last) in &last.container_states {
        let Some(container) = find_container(pod, name) else {
            continue;
        };
        if last.last_image.is_none() && container.image != last.latest_image {
            continue;
        }
        let status = find_container_status(pod, name);
        if !last.is_settled(pod, &container.image, status) {
            return UpdateProgress::Waiting(awaited_restart_reason(name, &container.image, status));
        }
    }
    match last.resize {
        true => resize_progress(pod),
        false => UpdateProgress::Done,
    }
}

/// Returns the progress of the kubelet with the resources, whoever has changed them. The kubelet first reports that it
/// has observed the spec and acts afterwards. Then it reports the resources in force for each container
/// (<https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/#pod-resize-status>).
pub fn resize_progress(pod: &Pod) -> UpdateProgress {
    let waiting = |reason: &str| UpdateProgress::Waiting(reason.to_owned());
    let mut conditions = pod.status.conditions.iter();
    let pending = conditions.find(|c| c.type_ == RESIZE_PENDING && c.status == "True");
    let is_of_before = |generation: i64| generation != 0 && generation < pod.metadata.generation;
    // The kubelet does not update the condition of an infeasible resize when other parts of the spec change, such as
    // the image in the next write. Therefore such a condition is valid although its generation is older. The kubelet
    // evaluates a further resize before it reports the spec as observed, except in the first half minute after its
    // start. In that half minute a Pod may be created again although it could have been resized; the Pod is off traffic
    // then.
    let says_no_more = |reason: &str| reason == "Infeasible" && pod.status.observed_generation != 0;
    let is_former =
        pending.is_some_and(|p| is_of_before(p.observed_generation) && !says_no_more(&p.reason));
    if !pod.is_spec_observed() || is_former {
        return waiting("it has not seen the resize yet");
    }
    match pending.map(|pending| pending.reason.as_str()) {
        Some("Infeasible") => {
            return UpdateProgress::Refused("its node can never hold the new resources".to_owned());
        }
        Some(_) => return waiting("its node has no room for the resize"),
        None => {}
    }
    if pod.condition(RESIZE_IN_PROGRESS) == Some(true) {
        return waiting("its resize is in progress");
    }
    let former = pod.spec.containers.iter().find(|container| {
        let wanted = Resources::from_resources(&container.resources);
        let reported = find_container_status(pod, &container.name).map(|s| s.resources);
        let reported =
            reported.filter(|reported| ![*reported, wanted].contains(&Resources::default()));
        reported.is_some_and(|reported| reported != wanted)
    });
    match former {
        Some(container) => UpdateProgress::Waiting(format!(
            "container {} has its former resources still",
            container.name
        )),
        None => UpdateProgress::Done,
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LastPodStatus {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    container_states: BTreeMap<String, LastContainerStatus>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    resize: bool,
}

impl LastPodStatus {
    fn from_pod(pod: &Pod) -> LastPodStatus {
        pod.annotation(keys::LAST_POD_STATUS)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LastContainerStatus {
    latest_image: String,
    #[serde(rename = "lastImageID")]
    last_image_id: String,
    /// Absent in an annotation by Kuperator, like the next field.
    #[serde(rename = "lastContainerID", skip_serializing_if = "Option::is_none")]
    last_container_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_image: Option<String>,
}

impl LastContainerStatus {
    /// Describes a container before a change.
    fn from_container(pod: &Pod, name: &str) -> LastContainerStatus {
        let status = find_container_status(pod, name);
        LastContainerStatus {
            latest_image: String::new(),
            last_image_id: status.map(|s| s.image_id.clone()).unwrap_or_default(),
            last_container_id: Some(status.map(|s| s.container_id.clone()).unwrap_or_default()),
            last_image: find_container(pod, name).map(|c| c.image.clone()),
        }
    }

    /// Whether there is nothing more to wait for: the container has restarted, or need not restart.
    fn is_settled(&self, pod: &Pod, image: &String, status: Option<&ContainerStatus>) -> bool {
        self.has_restarted(status) || self.is_unchanged(image, status) && pod.is_spec_observed()
    }

    fn has_restarted(&self, status: Option<&ContainerStatus>) -> bool {
        let Some(status) = status else {
            return false;
        };
        let runs_anew =
            |last: &String| !status.container_id.is_empty() && status.container_id != *last;
        (!status.image_id.is_empty() && status.image_id != self.last_image_id)
            || self.last_container_id.as_ref().is_some_and(runs_anew)
    }

    /// Whether the change was withdrawn before the kubelet applied it. The container still runs with the image that the
    /// Pod has now, so the kubelet has no reason to restart it.
    fn is_unchanged(&self, image: &String, status: Option<&ContainerStatus>) -> bool {
        self.last_image.as_ref() == Some(image)
            && status.is_some_and(|s| {
                !s.container_id.is_empty()
                    && self.last_container_id.as_ref() == Some(&s.container_id)
            })
    }
}

fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let mut containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    containers.find(|c| c.name == name)
}

fn find_container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = &pod.status;
    let mut all = statuses
        .container_statuses
        .iter()
        .chain(&statuses.init_container_statuses);
    all.find(|s| s.name == name)
}

fn awaited_restart_reason(name: &str, image: &str, status: Option<&ContainerStatus>) -> String {
    let problem = format!("container {name} does not run image {image} yet");
    match status.and_then(|s| s.state.waiting.as_deref()) {
        Some(waiting) if !waiting.message.is_empty() => {
            format!("{problem}: {}: {}", waiting.reason, waiting.message)
        }
        Some(waiting) => format!("{problem}: {}", waiting.reason),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn change_withdrawn_before_kubelet_acts_ends_once_observed() {
        let ran: Pod = serde_json::from_value(json!({
            "metadata": { "generation": 1 },
            "spec": { "containers": [{ "name": "app", "image": "a:1" }] },
            "status": { "observedGeneration": 1, "containerStatuses": [{
                "name": "app", "imageID": "sha-1", "containerID": "run-1", "state": { "running": {} },
            }] },
        }))
        .unwrap();
        let change = |pod: &Pod, image: &str| {
            let mut next = pod.clone();
            let update = InPlaceChange::Yes {
                labels: Default::default(),
                annotations: Default::default(),
                spec: Some(json!({ "containers": [{ "name": "app", "image": image }] })),
                resize: None,
                images: vec!["app".into()],
            };
            let last = last_pod_status(pod, &update);
            next.metadata
                .annotations
                .insert(keys::LAST_POD_STATUS.into(), last);
            next.spec.containers[0].image = image.into();
            next.metadata.generation += 1;
            next
        };
        let forth = change(&ran, "a:2");
        assert!(matches!(
            update_progress(&forth),
            UpdateProgress::Waiting(_)
        ));
        let mut back = change(&forth, "a:1");
        assert!(
            matches!(update_progress(&back), UpdateProgress::Waiting(_)),
            "it may be ending the container"
        );
        back.status.observed_generation = back.metadata.generation;
        assert_eq!(update_progress(&back), UpdateProgress::Done);
        let mut on = change(&back, "a:3");
        on.status.observed_generation = on.metadata.generation;
        assert!(matches!(update_progress(&on), UpdateProgress::Waiting(_)));
    }

    #[test]
    fn pending_kubelet_work_survives_metadata_change() {
        let metadata = InPlaceChange::Yes {
            labels: Default::default(),
            annotations: Default::default(),
            spec: None,
            resize: None,
            images: Vec::new(),
        };
        let mut before = pod("", "sha-1", "run-1");
        before.spec.containers[0].image = "a:1".into();
        let mut changed = pod(&last_pod_status(&before, &of_image()), "sha-1", "run-1");
        let last = last_pod_status(&changed, &metadata);
        let key = keys::LAST_POD_STATUS.to_owned();
        changed
            .metadata
            .annotations
            .insert(key.clone(), last.clone());
        assert!(matches!(
            update_progress(&changed),
            UpdateProgress::Waiting(_)
        ));
        assert_eq!(
            update_progress(&pod(&last, "sha-2", "run-2")),
            UpdateProgress::Done
        );
        // The same holds for a resize.
        let mut resized = pod(r#"{"resize":true}"#, "sha-1", "run-1");
        resized.metadata.generation = 2;
        resized.status.observed_generation = 1;
        let last = last_pod_status(&resized, &metadata);
        resized.metadata.annotations.insert(key, last);
        assert!(matches!(
            update_progress(&resized),
            UpdateProgress::Waiting(_)
        ));
        resized.status.observed_generation = 2;
        assert_eq!(update_progress(&resized), UpdateProgress::Done);
        assert_eq!(last_pod_status(&resized, &metadata), "{}");
    }

    fn pod(annotation: &str, image_id: &str, container_id: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "annotations": { (keys::LAST_POD_STATUS): annotation } },
            "spec": { "containers": [{ "name": "app", "image": "a:2" }, { "name": "log", "image": "l:1" }] },
            "status": { "containerStatuses": [
                { "name": "log", "imageID": "sha-l", "containerID": "run-l", "state": { "running": {} } },
                { "name": "app", "imageID": image_id, "containerID": container_id, "state": null },
            ] },
        }))
        .unwrap()
    }

    fn of_image() -> InPlaceChange {
        InPlaceChange::Yes {
            labels: Default::default(),
            annotations: BTreeMap::new(),
            spec: Some(json!({ "containers": [{ "name": "app", "image": "a:2" }] })),
            resize: None,
            images: vec!["app".to_owned()],
        }
    }

    #[test]
    fn image_change_is_done_when_container_restarts() {
        let mut before = pod("", "sha-1", "run-1");
        before.spec.containers[0].image = "a:1".into();
        let last = last_pod_status(&before, &of_image());
        assert_eq!(
            last,
            r#"{"containerStates":{"app":{"latestImage":"a:2","lastImageID":"sha-1","lastContainerID":"run-1","lastImage":"a:1"}}}"#
        );
        assert!(matches!(
            update_progress(&pod(&last, "sha-1", "run-1")),
            UpdateProgress::Waiting(_)
        ));
        assert!(matches!(
            update_progress(&pod(&last, "", "")),
            UpdateProgress::Waiting(_)
        ));
        assert_eq!(
            update_progress(&pod(&last, "sha-2", "run-2")),
            UpdateProgress::Done
        );
        assert_eq!(
            update_progress(&pod(&last, "sha-1", "run-2")),
            UpdateProgress::Done,
            "a retag"
        );
    }

    #[test]
    fn kuperators_annotation_is_understood() {
        let last = r#"{"containerStates":{"app":{"latestImage":"a:2","lastImageID":"sha-1"}}}"#;
        assert!(matches!(
            update_progress(&pod(last, "sha-1", "run-2")),
            UpdateProgress::Waiting(_)
        ));
        assert_eq!(
            update_progress(&pod(last, "sha-2", "run-2")),
            UpdateProgress::Done
        );
        let other = last.replace("a:2", "a:3");
        assert_eq!(
            update_progress(&pod(&other, "sha-1", "run-1")),
            UpdateProgress::Done,
            "changed again by another"
        );
    }

    #[test]
    fn unreadable_annotation_awaits_nothing() {
        for annotation in ["{}", "", "nonsense", "[]"] {
            assert_eq!(
                update_progress(&pod(annotation, "sha-1", "run-1")),
                UpdateProgress::Done
            );
        }
    }

    #[test]
    fn unpullable_image_is_reported() {
        let last = last_pod_status(&pod("", "sha-1", "run-1"), &of_image());
        let mut stuck = pod(&last, "sha-1", "run-1");
        stuck.status.container_statuses[1] = serde_json::from_value(json!({
            "name": "app", "imageID": "", "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such tag" } },
        }))
        .unwrap();
        assert_eq!(
            update_progress(&stuck),
            UpdateProgress::Waiting(
                "container app does not run image a:2 yet: ImagePullBackOff: no such tag"
                    .to_owned()
            )
        );
    }

    #[test]
    fn image_rewritten_by_admission_is_awaited() {
        let rewritten = |image: &str, run: &str, generation: i64| -> Pod {
            let last = r#"{"containerStates":{"app":{"latestImage":"a:2","lastImageID":"sha-1","lastContainerID":"run-1","lastImage":"a@1"}}}"#;
            let mut pod = pod(last, if run == "run-1" { "sha-1" } else { "sha-2" }, run);
            pod.spec.containers[0].image = image.into();
            (pod.metadata.generation, pod.status.observed_generation) = (2, generation);
            pod
        };
        assert!(matches!(
            update_progress(&rewritten("a@2", "run-1", 2)),
            UpdateProgress::Waiting(_)
        ));
        assert_eq!(
            update_progress(&rewritten("a@2", "run-2", 2)),
            UpdateProgress::Done
        );
        assert!(matches!(
            update_progress(&rewritten("a@1", "run-1", 1)),
            UpdateProgress::Waiting(_)
        ));
        assert_eq!(
            update_progress(&rewritten("a@1", "run-1", 2)),
            UpdateProgress::Done,
            "the very image that ran before"
        );
    }

    fn resized(status: Value) -> UpdateProgress {
        let resources = json!({ "requests": { "cpu": "2" } });
        update_progress(
            &serde_json::from_value(json!({
                "metadata": { "generation": 2, "annotations": { (keys::LAST_POD_STATUS): r#"{"resize":true}"# } },
                "spec": { "containers": [{ "name": "app", "resources": resources }] },
                "status": status,
            }))
            .unwrap(),
        )
    }

    #[test]
    fn resize_is_done_once_observed_and_in_force() {
        let status = |generation: i64, cpu: &str| {
            json!({
                "observedGeneration": generation,
                "containerStatuses": [{ "name": "app", "resources": { "requests": { "cpu": cpu } } }],
            })
        };
        for (status, done) in [
            (status(1, "2"), false),
            (status(2, "1"), false),
            (status(2, "2"), true),
            (status(2, "2000m"), true),
            (
                json!({ "observedGeneration": 2, "containerStatuses": [{ "name": "app" }] }),
                true,
            ),
        ] {
            assert_eq!(
                resized(status.clone()) == UpdateProgress::Done,
                done,
                "{status}"
            );
        }
    }

    #[test]
    fn infeasible_resize_is_refused_once_kubelet_observed_it() {
        let pending_resize = |reason: &str, generation: i64, observed: i64| {
            let condition = json!({ "type": RESIZE_PENDING, "status": "True", "reason": reason, "observedGeneration": generation });
            resized(json!({ "observedGeneration": observed, "conditions": [condition] }))
        };
        let pending = |reason: &str, generation: i64| pending_resize(reason, generation, 2);
        assert!(matches!(
            pending("Infeasible", 2),
            UpdateProgress::Refused(_)
        ));
        assert!(matches!(
            pending("Infeasible", 0),
            UpdateProgress::Refused(_)
        ));
        // The image has changed since, or the kubelet does not report which generation it has observed.
        assert!(matches!(
            pending("Infeasible", 1),
            UpdateProgress::Refused(_)
        ));
        assert!(matches!(
            pending_resize("Infeasible", 1, 0),
            UpdateProgress::Waiting(_)
        ));
        assert!(matches!(pending("Deferred", 1), UpdateProgress::Waiting(_)));
        assert!(matches!(pending("Deferred", 2), UpdateProgress::Waiting(_)));
    }

    #[test]
    fn resize_is_awaited_while_kubelet_reports_progress() {
        let change = InPlaceChange::Yes {
            labels: Default::default(),
            annotations: BTreeMap::new(),
            spec: None,
            resize: Some(json!({})),
            images: Vec::new(),
        };
        let last = last_pod_status(&Pod::default(), &change);
        assert_eq!(last, r#"{"resize":true}"#);
        for (condition, done) in [
            (RESIZE_PENDING, false),
            (RESIZE_IN_PROGRESS, false),
            ("PodScheduled", true),
        ] {
            let mut pod = pod(&last, "", "");
            let conditions = json!({ "conditions": [{ "type": condition, "status": "True" }] });
            pod.status = serde_json::from_value(conditions).unwrap();
            assert_eq!(
                update_progress(&pod) == UpdateProgress::Done,
                done,
                "{condition}"
            );
        }
    }
}
