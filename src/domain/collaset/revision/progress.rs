//! Whether the kubelet has caught up with an in-place update (contract 6.5, Q44).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::inplace::InPlace;
use crate::api::keys;
use crate::domain::pod::{ContainerStatus, Pod, RESIZE_IN_PROGRESS, RESIZE_PENDING};

/// How far the kubelet is with an in-place update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Every container runs what it is to run; it need not be ready.
    Done,
    /// It is under way, or stuck; says why.
    Waiting(String),
}

/// Value of the annotation `last-pod-status` to be written together with a change of `pod`. The format is Kuperator's,
/// with more fields: `lastContainerID` tells a container that runs anew under the same image (a retag), `lastImage`
/// the image that it was made of, and `resize` that resources change as well. Of a container that the kubelet has not
/// got to since an earlier change, what ran before that one stays.
pub fn last_status(pod: &Pod, change: &InPlace) -> String {
    let InPlace::Yes { spec, resize, .. } = change else {
        return "{}".to_owned();
    };
    let mut earlier = Last::of(pod).container_states;
    let lists = ["containers", "initContainers"].into_iter();
    let containers: BTreeMap<String, LastContainer> = lists
        .filter_map(|list| spec.as_ref()?.get(list)?.as_array())
        .flatten()
        .filter_map(|c| Some((c.get("name")?.as_str()?, c.get("image")?.as_str()?)))
        .map(|(name, image)| {
            let known = earlier
                .remove(name)
                .filter(|last| !last.is_over(status(pod, name)));
            let mut last = known.unwrap_or_else(|| LastContainer::of(pod, name));
            image.clone_into(&mut last.latest_image);
            (name.to_owned(), last)
        })
        .collect();
    let last = Last {
        container_states: containers,
        resize: resize.is_some(),
    };
    serde_json::to_string(&last).unwrap_or_else(|_| "{}".to_owned()) // texts and a flag: cannot fail
}

/// How far the kubelet is, judged by the annotation of [`last_status`]. Without one, or with one that cannot be read,
/// there is nothing to wait for. A container whose image was changed again meanwhile by somebody else is not waited for.
pub fn progress(pod: &Pod) -> Progress {
    let last = Last::of(pod);
    for (name, last) in &last.container_states {
        let mut containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        if !containers.any(|c| c.name == *name && c.image == last.latest_image) {
            continue;
        }
        let status = status(pod, name);
        let settled = last.is_unchanged(status) && pod.is_observed();
        if !last.is_over(status) && !settled {
            return Progress::Waiting(reason(name, &last.latest_image, status));
        }
    }
    if last.resize && pod.condition(RESIZE_PENDING) == Some(true) {
        return Progress::Waiting("its node has no room for the resize".to_owned());
    }
    if last.resize && pod.condition(RESIZE_IN_PROGRESS) == Some(true) {
        return Progress::Waiting("its resize is in progress".to_owned());
    }
    Progress::Done
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Last {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    container_states: BTreeMap<String, LastContainer>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    resize: bool,
}

impl Last {
    fn of(pod: &Pod) -> Last {
        pod.annotation(keys::LAST_POD_STATUS)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LastContainer {
    latest_image: String,
    #[serde(rename = "lastImageID")]
    last_image_id: String,
    /// Absent in an annotation by Kuperator, as is the next.
    #[serde(rename = "lastContainerID", skip_serializing_if = "Option::is_none")]
    last_container_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_image: Option<String>,
}

impl LastContainer {
    /// A container as it is before a change.
    fn of(pod: &Pod, name: &str) -> LastContainer {
        let mut containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        let status = status(pod, name);
        LastContainer {
            latest_image: String::new(),
            last_image_id: status.map(|s| s.image_id.clone()).unwrap_or_default(),
            last_container_id: Some(status.map(|s| s.container_id.clone()).unwrap_or_default()),
            last_image: containers.find(|c| c.name == name).map(|c| c.image.clone()),
        }
    }

    /// Whether the container runs anew.
    fn is_over(&self, status: Option<&ContainerStatus>) -> bool {
        let Some(status) = status else {
            return false;
        };
        let runs_anew =
            |last: &String| !status.container_id.is_empty() && status.container_id != *last;
        (!status.image_id.is_empty() && status.image_id != self.last_image_id)
            || self.last_container_id.as_ref().is_some_and(runs_anew)
    }

    /// Whether the change was taken back before the kubelet got to it: the container runs on, of the image that it is
    /// to be of, and the kubelet has no reason to touch it.
    fn is_unchanged(&self, status: Option<&ContainerStatus>) -> bool {
        self.last_image.as_ref() == Some(&self.latest_image)
            && status.is_some_and(|s| {
                !s.container_id.is_empty()
                    && self.last_container_id.as_ref() == Some(&s.container_id)
            })
    }
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = &pod.status;
    let mut all = statuses
        .container_statuses
        .iter()
        .chain(&statuses.init_container_statuses);
    all.find(|s| s.name == name)
}

fn reason(name: &str, image: &str, status: Option<&ContainerStatus>) -> String {
    let what = format!("container {name} does not run image {image} yet");
    match status.and_then(|s| s.waiting.as_deref()) {
        Some(waiting) if !waiting.message.is_empty() => {
            format!("{what}: {}: {}", waiting.reason, waiting.message)
        }
        Some(waiting) => format!("{what}: {}", waiting.reason),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_that_is_taken_back_before_the_kubelet_got_to_it_is_over_once_it_has_seen_that() {
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
            let way = InPlace::Yes {
                labels: Default::default(),
                annotations: Default::default(),
                spec: Some(json!({ "containers": [{ "name": "app", "image": image }] })),
                resize: None,
                images: vec!["app".into()],
            };
            let last = last_status(pod, &way);
            next.metadata
                .annotations
                .insert(keys::LAST_POD_STATUS.into(), last);
            next.spec.containers[0].image = image.into();
            next.metadata.generation += 1;
            next
        };
        let forth = change(&ran, "a:2");
        assert!(matches!(progress(&forth), Progress::Waiting(_)));
        let mut back = change(&forth, "a:1");
        assert!(
            matches!(progress(&back), Progress::Waiting(_)),
            "it may be ending the container"
        );
        back.status.observed_generation = back.metadata.generation;
        assert_eq!(progress(&back), Progress::Done);
        let mut on = change(&back, "a:3");
        on.status.observed_generation = on.metadata.generation;
        assert!(matches!(progress(&on), Progress::Waiting(_)));
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

    fn of_image() -> InPlace {
        InPlace::Yes {
            labels: Default::default(),
            annotations: BTreeMap::new(),
            spec: Some(json!({ "containers": [{ "name": "app", "image": "a:2" }] })),
            resize: None,
            images: vec!["app".to_owned()],
        }
    }

    #[test]
    fn a_change_of_image_is_done_when_the_container_runs_anew() {
        let mut before = pod("", "sha-1", "run-1");
        before.spec.containers[0].image = "a:1".into();
        let last = last_status(&before, &of_image());
        assert_eq!(
            last,
            r#"{"containerStates":{"app":{"latestImage":"a:2","lastImageID":"sha-1","lastContainerID":"run-1","lastImage":"a:1"}}}"#
        );
        assert!(matches!(
            progress(&pod(&last, "sha-1", "run-1")),
            Progress::Waiting(_)
        ));
        assert!(matches!(
            progress(&pod(&last, "", "")),
            Progress::Waiting(_)
        ));
        assert_eq!(progress(&pod(&last, "sha-2", "run-2")), Progress::Done);
        assert_eq!(
            progress(&pod(&last, "sha-1", "run-2")),
            Progress::Done,
            "a retag"
        );
    }

    #[test]
    fn kuperators_annotation_is_understood() {
        let last = r#"{"containerStates":{"app":{"latestImage":"a:2","lastImageID":"sha-1"}}}"#;
        assert!(matches!(
            progress(&pod(last, "sha-1", "run-2")),
            Progress::Waiting(_)
        ));
        assert_eq!(progress(&pod(last, "sha-2", "run-2")), Progress::Done);
        let other = last.replace("a:2", "a:3");
        assert_eq!(
            progress(&pod(&other, "sha-1", "run-1")),
            Progress::Done,
            "changed again by another"
        );
    }

    #[test]
    fn without_a_readable_annotation_there_is_nothing_to_wait_for() {
        for annotation in ["{}", "", "nonsense", "[]"] {
            assert_eq!(progress(&pod(annotation, "sha-1", "run-1")), Progress::Done);
        }
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_said() {
        let last = last_status(&pod("", "sha-1", "run-1"), &of_image());
        let mut stuck = pod(&last, "sha-1", "run-1");
        stuck.status.container_statuses[1] = serde_json::from_value(json!({
            "name": "app", "imageID": "", "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such tag" } },
        }))
        .unwrap();
        assert_eq!(
            progress(&stuck),
            Progress::Waiting(
                "container app does not run image a:2 yet: ImagePullBackOff: no such tag"
                    .to_owned()
            )
        );
    }

    #[test]
    fn a_resize_is_waited_for_while_the_kubelet_says_so() {
        let change = InPlace::Yes {
            labels: Default::default(),
            annotations: BTreeMap::new(),
            spec: None,
            resize: Some(json!({})),
            images: Vec::new(),
        };
        let last = last_status(&Pod::default(), &change);
        assert_eq!(last, r#"{"resize":true}"#);
        for (condition, done) in [
            (RESIZE_PENDING, false),
            (RESIZE_IN_PROGRESS, false),
            ("PodScheduled", true),
        ] {
            let mut pod = pod(&last, "", "");
            let conditions = json!({ "conditions": [{ "type": condition, "status": "True" }] });
            pod.status = serde_json::from_value(conditions).unwrap();
            assert_eq!(progress(&pod) == Progress::Done, done, "{condition}");
        }
    }
}
