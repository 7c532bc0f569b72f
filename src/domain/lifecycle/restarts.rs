//! Records which containers have yet to restart for a change that was made while an operation kept the Pod off traffic.
//!
//! Such a change needs no claim, so the lifecycle itself must keep the Pod off traffic until the restart. The kubelet
//! writes the status, with Ready and `observedGeneration`, before it ends the old containers. A Pod that came back
//! because of this status would become unavailable again without a claim. Therefore the mutating webhook records in the
//! same write, in the annotation [`keys::AWAITS_RESTART`], the state of the containers before the change. The
//! annotation keeps the Pod off traffic until [`inplace::restart_progress_of`] proves the restart of each container, by
//! the same rules that release claims.
//!
//! Only the webhook writes the annotation. It ignores the value of the annotation in a request.

pub use super::restart_record::{ASSUMED_AFTER_NANOS, PendingRestarts};
use super::restart_record::{ContainerProgress, digest_text, names_same_image};
use crate::api::keys;
use crate::domain::inplace::{self, RestartProgress, RunningContainers};
use crate::domain::pod::Pod;

/// The restarts that keep the Pod off traffic. `None` if there are none, or if the Pod has finished.
pub fn pending_restarts(pod: &Pod) -> Option<PendingRestarts> {
    pod.annotation(keys::AWAITS_RESTART)?;
    let mut restarts = PendingRestarts::from_pod(pod).ok()?;
    let containers = RunningContainers::from_pod(pod);
    restarts.drop_finished(&containers, 0);
    for (name, entry) in &mut restarts.0 {
        // The new image runs, so only the resize is pending, and the text names the resize.
        if entry.resize && entry.restart_progress(&containers, name) == RestartProgress::Proven {
            entry.image = None;
        }
    }
    (!restarts.0.is_empty() && !pod.is_finished()).then_some(restarts)
}

/// The text of [`pending_restarts`] for people, as a clause.
pub fn describe_pending(pod: &Pod) -> Option<String> {
    let restarts = pending_restarts(pod)?;
    let mut text = restarts.to_string();
    if restarts.0.values().any(|entry| entry.image.is_none()) && inplace::is_resize_deferred(pod) {
        text += "; the node has no room for the resize now, and changing it back ends the wait";
    }
    Some(text)
}

/// The time of a write, in nanoseconds since 1970. The clocks of the replicas may differ.
#[derive(Clone, Copy, Debug)]
pub struct WriteTime {
    /// The time by the clock of this replica. New records get this time.
    pub now: u64,
    /// The earliest time that it can be, because the clock of this replica may be fast. A record that has expired by
    /// this time has expired by every clock.
    pub earliest: u64,
}

/// A time by a clock that is known to be right.
impl From<u64> for WriteTime {
    fn from(now: u64) -> WriteTime {
        WriteTime { now, earliest: now }
    }
}

/// The record after a write at `time` that turns `old` into `new`. `current` is the Pod with the status that the API
/// server stores: `new` for a write of `pods/status`, `old` for any other write. `is_lost` is whether the Pod has been
/// down for so long that its changes need no claim.
pub fn restarts_after_write(
    old: &Pod,
    new: &Pod,
    current: &Pod,
    is_lost: bool,
    time: impl Into<WriteTime>,
) -> PendingRestarts {
    let time = time.into();
    let mut restarts = PendingRestarts::from_pod(old).unwrap_or_default();
    restarts.drop_finished(&RunningContainers::from_pod(current), time.earliest);
    restarts.add_change(old, new, is_lost, time.now);
    restarts
}

/// Nanoseconds until restarts that cannot be proven are assumed to be done; 0 if that time has come. `None` if a
/// restart is still awaited, or if none is pending. `now` is the earliest time that it can be, see
/// [`WriteTime::earliest`].
pub fn assumed_done_in(pod: &Pod, now: u64) -> Option<u64> {
    let PendingRestarts(entries) = pending_restarts(pod)?;
    let containers = RunningContainers::from_pod(pod);
    let mut done_at = 0;
    for (name, entry) in &entries {
        match entry.container_progress(&containers, name) {
            ContainerProgress::Unproven => done_at = done_at.max(entry.assumed_done_at()),
            ContainerProgress::Awaited => return None,
            ContainerProgress::Over => {}
        }
    }
    Some(done_at.saturating_sub(now))
}

/// Whether a container with a pending restart runs the image of this name. The record describes the former run. Once
/// the container has a new run, the kubelet's report describes the image.
pub fn is_pending_for_image(pod: &Pod, container: &str, image: &str) -> bool {
    let entry =
        pending_restarts(pod).and_then(|PendingRestarts(mut entries)| entries.remove(container));
    let Some(entry) = entry else {
        return false;
    };
    let statuses = pod.status.container_statuses.iter();
    let mut statuses = statuses.chain(&pod.status.init_container_statuses);
    match statuses.find(|status| status.name == container) {
        Some(status) if !status.container_id.is_empty() && status.container_id != entry.run => {
            names_same_image(&status.image, image)
        }
        _ => entry
            .image
            .is_some_and(|before| before.name == digest_text(image)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys::Family;
    use crate::domain::pod::PodCondition;

    const NOW: u64 = 1_000;

    /// A Pod in Operate whose container `app` has `image` in its spec, and the container ID `run` of the image `runs`.
    fn pod(image: &str, run: &str, runs: &str) -> Pod {
        let operate = [Family::Operating, Family::PreChecked, Family::Operate];
        let labels: Value = operate.iter().map(|f| (f.key("x"), json!("1"))).collect();
        serde_json::from_value(json!({
            "metadata": { "labels": labels, "generation": 1 },
            "spec": { "containers": [{
                "name": "app", "image": image, "resources": { "limits": { "memory": "1Gi" } },
                "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
            }] },
            "status": { "observedGeneration": 1, "phase": "Running", "containerStatuses": [{
                "name": "app", "containerID": run, "ready": true,
                "image": format!("docker.io/{runs}"), "imageID": format!("sha-{runs}"),
                "resources": { "limits": { "memory": "1Gi" } },
            }] },
        }))
        .unwrap()
    }

    fn with_image(pod: &Pod, image: &str) -> Pod {
        let mut new = pod.clone();
        new.spec.containers[0].image = image.to_owned();
        new
    }

    /// The Pod after a write of its spec.
    fn written(old: &Pod, image: &str) -> Pod {
        let mut new = old.clone();
        new.spec.containers[0].image = image.to_owned();
        let is_lost = !old.is_available();
        let restarts = restarts_after_write(old, &new, old, is_lost, NOW);
        record(&mut new, restarts.annotation_value());
        new.metadata.generation += 1;
        new
    }

    fn record(pod: &mut Pod, value: Option<String>) {
        let annotations = &mut pod.metadata.annotations;
        annotations.remove(keys::AWAITS_RESTART);
        annotations.extend(value.map(|value| (keys::AWAITS_RESTART.to_owned(), value)));
    }

    /// The Pod after the kubelet has seen the spec and reports the container ID `run` of the image `runs`.
    fn reported(pod: &Pod, run: &str, runs: &str) -> Pod {
        let status = self::pod("", run, runs).status;
        let mut new = pod.clone();
        new.status = status;
        new.status.observed_generation = new.metadata.generation;
        new
    }

    #[test]
    fn image_change_in_operate_is_pending_until_container_restarts() {
        let changed = written(&pod("a:1", "run-1", "a:1"), "a:2");
        assert_eq!(
            pending_restarts(&changed).unwrap().to_string(),
            "container app to restart for its new image"
        );
        let reported_pod = reported(&changed, "run-1", "a:1");
        assert!(
            pending_restarts(&reported_pod).is_some(),
            "the status comes first"
        );
        let mut stopped = reported_pod.clone();
        stopped.status.container_statuses[0].ready = false;
        assert!(pending_restarts(&stopped).is_some());
        let restarted = reported(&changed, "run-2", "a:2");
        assert_eq!(pending_restarts(&restarted), None);
        let over = restarts_after_write(&changed, &restarted, &restarted, false, NOW);
        assert_eq!(
            over.annotation_value(),
            None,
            "the record goes with the next write"
        );
    }

    #[test]
    fn new_run_of_same_image_is_accepted_after_timeout() {
        let changed = written(&pod("a:1", "run-1", "a:1"), "retag:1");
        let restarted = reported(&changed, "run-2", "a:1");
        assert!(pending_restarts(&restarted).is_some());
        assert_eq!(assumed_done_in(&restarted, NOW), Some(ASSUMED_AFTER_NANOS));
        let later = NOW + ASSUMED_AFTER_NANOS;
        assert_eq!(assumed_done_in(&restarted, later), Some(0));
        let value = |now: u64| {
            restarts_after_write(&changed, &restarted, &restarted, false, now).annotation_value()
        };
        assert!(value(later - 1).is_some());
        assert_eq!(value(later), None);
        let unchanged = reported(&changed, "run-1", "a:1");
        assert_eq!(assumed_done_in(&unchanged, later), None);
        let restarts = restarts_after_write(&changed, &unchanged, &unchanged, false, later);
        assert!(
            restarts.annotation_value().is_some(),
            "no time replaces a restart"
        );
    }

    #[test]
    fn restart_is_not_believed_by_a_clock_that_is_ahead() {
        let changed = written(&pod("a:1", "run-1", "a:1"), "retag:1");
        let restarted = reported(&changed, "run-2", "a:1");
        let fast_clock = WriteTime {
            now: NOW + ASSUMED_AFTER_NANOS,
            earliest: NOW + 1,
        };
        let restarts = restarts_after_write(&changed, &restarted, &restarted, false, fast_clock);
        assert!(restarts.annotation_value().is_some());
        // A new record gets the time of the fast clock, because other replicas may have this time too.
        let anew = restarts_after_write(
            &restarted,
            &with_image(&restarted, "retag:2"),
            &restarted,
            false,
            fast_clock,
        );
        let since = format!("\"since\":\"{}\"", fast_clock.now);
        assert!(
            anew.annotation_value().unwrap().contains(&since),
            "{anew:?}"
        );
    }

    #[test]
    fn image_changed_twice_waits_for_the_last() {
        let once = written(&pod("a:1", "run-1", "a:1"), "a:2");
        let twice = written(&once, "a:3");
        let first = reported(&twice, "run-2", "a:2");
        assert!(pending_restarts(&first).is_some());
        assert_eq!(pending_restarts(&reported(&twice, "run-3", "a:3")), None);
        // The runtime reports another name, so the restart can't be proven.
        let digest = reported(&twice, "run-3", "a@sha256:3");
        assert_eq!(assumed_done_in(&digest, NOW), Some(ASSUMED_AFTER_NANOS));
        let after_restart = written(&reported(&once, "run-2", "a:2"), "a:3");
        let second = reported(&after_restart, "run-3", "other:3");
        assert_eq!(
            pending_restarts(&second),
            None,
            "a restart between starts anew"
        );
    }

    #[test]
    fn withdrawn_change_ends_once_kubelet_observed_it() {
        let withdrawn = written(&written(&pod("a:1", "run-1", "a:1"), "a:2"), "a:1");
        assert!(pending_restarts(&withdrawn).is_some());
        assert_eq!(
            pending_restarts(&reported(&withdrawn, "run-1", "a:1")),
            None
        );
        assert!(pending_restarts(&reported(&withdrawn, "run-2", "a:2")).is_some());
        assert_eq!(
            pending_restarts(&reported(&withdrawn, "run-3", "a:1")),
            None
        );
        assert_eq!(
            assumed_done_in(&reported(&withdrawn, "run-1", "a:2"), NOW),
            None
        );
        // The container restarted with another image, because the registry has a new image under the old name.
        let anew = reported(&withdrawn, "run-3", "a:new");
        assert_eq!(assumed_done_in(&anew, NOW), Some(ASSUMED_AFTER_NANOS));
    }

    #[test]
    fn record_written_or_removed_by_hand_does_not_count() {
        let changed = written(&pod("a:1", "run-1", "a:1"), "a:2");
        let stored = changed.annotation(keys::AWAITS_RESTART);
        for by_hand in [None, Some("{}"), Some("nonsense")] {
            let mut new = changed.clone();
            record(&mut new, by_hand.map(str::to_owned));
            let restarts = restarts_after_write(&changed, &new, &changed, false, NOW);
            assert_eq!(
                restarts.annotation_value().as_deref(),
                stored,
                "{by_hand:?}"
            );
        }
        let idle = pod("a:1", "run-1", "a:1");
        let mut forged = idle.clone();
        record(&mut forged, stored.map(str::to_owned));
        assert_eq!(
            restarts_after_write(&idle, &forged, &idle, false, NOW).annotation_value(),
            None
        );
    }

    #[test]
    fn malformed_record_counts_as_absent() {
        for text in ["", "nonsense", "[]", r#"{"app":{}}"#] {
            let mut changed = pod("a:1", "run-1", "a:1");
            record(&mut changed, Some(text.to_owned()));
            assert_eq!(pending_restarts(&changed), None, "{text}");
            assert!(PendingRestarts::from_pod(&changed).is_err(), "{text}");
            assert_eq!(
                restarts_after_write(&changed, &changed, &changed, false, NOW).annotation_value(),
                None
            );
        }
    }

    #[test]
    fn finished_pod_awaits_no_restart() {
        let mut changed = written(&pod("a:1", "run-1", "a:1"), "a:2");
        changed.status.phase = "Failed".to_owned();
        assert_eq!(pending_restarts(&changed), None);
    }

    #[test]
    fn change_outside_operation_is_recorded_only_beside_pending_one() {
        let available = available();
        assert_eq!(pending_restarts(&written(&available, "a:2")), None);
        let mut after_operation = written(&pod("a:1", "run-1", "a:1"), "a:bad");
        after_operation.metadata.labels.clear();
        let corrected = written(&after_operation, "a:2");
        assert!(pending_restarts(&reported(&corrected, "run-2", "a:bad")).is_some());
        assert_eq!(
            pending_restarts(&reported(&corrected, "run-2", "a:2")),
            None
        );
    }

    /// A Pod in Operate whose container gets more memory. The kubelet has not seen the change.
    fn resized() -> Pod {
        let mut pod = pod("a:1", "run-1", "a:1");
        pod.metadata.generation = 2;
        pod.spec.containers[0].resources = json!({ "limits": { "memory": "2Gi" } });
        pod
    }

    /// The same Pod with a second container, before and after a change of the second container's image.
    fn resized_with_new_image() -> (Pod, Pod) {
        let mut old = resized();
        let log = json!({ "name": "log", "image": "l:1" });
        old.spec
            .containers
            .push(serde_json::from_value(log).unwrap());
        let mut new = old.clone();
        new.spec.containers[1].image = "l:2".to_owned();
        (old, new)
    }

    /// The kubelet's report on the resize of generation 2.
    fn infeasible() -> PodCondition {
        let infeasible = json!({
            "type": "PodResizePending", "status": "True", "reason": "Infeasible", "observedGeneration": 2,
        });
        serde_json::from_value(infeasible).unwrap()
    }

    #[test]
    fn unfinished_resize_is_recorded_with_a_change_of_the_image() {
        let (old, new) = resized_with_new_image();
        let recorded = restarts_after_write(&old, &new, &old, false, NOW);
        assert_eq!(
            recorded.to_string(),
            "container app to restart for its new resources, container log to restart for its new image"
        );
    }

    #[test]
    fn image_restart_does_not_count_as_resize() {
        let old = resized();
        let changed = written(&old, "a:2");
        let twice = written(&changed, "a:3");
        for (pod, image) in [(&changed, "a:2"), (&twice, "a:3")] {
            let mut restarted = reported(pod, "run-2", image);
            assert!(pending_restarts(&restarted).is_some(), "1Gi is in force");
            let resources = json!({ "limits": { "memory": "2Gi" } });
            let resources = serde_json::from_value(resources).unwrap();
            restarted.status.container_statuses[0].resources = resources;
            assert_eq!(pending_restarts(&restarted), None);
        }
    }

    #[test]
    fn resize_is_never_covered() {
        let old = pod("a:1", "run-1", "a:1");
        let changed = written(&old, "a:2");
        let recorded = PendingRestarts::from_pod(&changed).unwrap();
        assert!(recorded.covers_restarts(&inplace::in_place_restart(&old, &changed).unwrap()));
        let mut resized = changed.clone();
        resized.spec.containers[0].resources = json!({ "limits": { "memory": "2Gi" } });
        assert!(!recorded.covers_restarts(&inplace::in_place_restart(&changed, &resized).unwrap()));
    }

    fn available() -> Pod {
        let mut pod = pod("a:1", "run-1", "a:1");
        let label = (keys::SERVICE_AVAILABLE.to_owned(), "1".to_owned());
        pod.metadata.labels = [label].into();
        let ready = json!({ "type": "Ready", "status": "True" });
        pod.status.conditions = vec![serde_json::from_value(ready).unwrap()];
        pod
    }

    #[test]
    fn change_of_a_pod_that_can_come_back_is_recorded() {
        let mut offline = available();
        offline.metadata.labels.clear();
        assert!(pending_restarts(&written(&offline, "a:2")).is_some());
        let mut broken = offline.clone();
        broken.status.conditions.clear();
        broken.status.phase = "Pending".to_owned();
        assert_eq!(pending_restarts(&written(&broken, "a:2")), None);
    }

    #[test]
    fn only_resize_is_reported_once_new_image_runs() {
        let old = resized();
        let changed = written(&old, "a:2");
        let mut restarted = reported(&changed, "run-2", "a:2");
        let text = "container app to restart for its new resources";
        assert_eq!(describe_pending(&restarted).unwrap(), text);
        let deferred =
            json!({ "type": "PodResizePending", "status": "True", "reason": "Deferred" });
        restarted.status.conditions = vec![serde_json::from_value(deferred).unwrap()];
        let description = describe_pending(&restarted).unwrap();
        assert!(
            description.ends_with("changing it back ends the wait"),
            "{description}"
        );
    }

    /// The kubelet's report is about the spec with the resize. The kubelet does not look at the resources again when
    /// the image changes.
    #[test]
    fn infeasible_resize_before_image_change_is_not_awaited() {
        let mut changed = written(&resized(), "a:2");
        changed.status.conditions = vec![infeasible()];
        changed.status.observed_generation = 3;
        assert!(pending_restarts(&changed).is_some());
        let mut restarted = reported(&changed, "run-2", "a:2");
        restarted.status.conditions = changed.status.conditions;
        restarted.status.observed_generation = 3;
        assert_eq!(pending_restarts(&restarted), None);
        assert_eq!(inplace::unfinished_resizes(&restarted), []);
    }

    #[test]
    fn infeasible_resize_is_accepted_beside_image_change() {
        let (old, mut new) = resized_with_new_image();
        new.metadata.generation = 3;
        let recorded = restarts_after_write(&old, &new, &old, false, NOW);
        record(&mut new, recorded.annotation_value());
        let log = json!({ "name": "log", "ready": true, "image": "l:2", "imageID": "new", "containerID": "run-l" });
        new.status
            .container_statuses
            .push(serde_json::from_value(log).unwrap());
        new.status.observed_generation = 3;
        assert_eq!(assumed_done_in(&new, NOW), None);
        new.status.conditions = vec![infeasible()];
        assert_eq!(assumed_done_in(&new, NOW), Some(ASSUMED_AFTER_NANOS));
    }

    /// A Pod with this number of containers, each with an image of this tag and a run.
    fn pod_with_containers(count: usize, tag: &str) -> Pod {
        let mut pod = pod(&format!("a:{tag}"), "run-1", "a:1");
        let (container, status) = (
            pod.spec.containers[0].clone(),
            pod.status.container_statuses[0].clone(),
        );
        let name = |n: usize| format!("c{n}");
        let containers = (0..count).map(|n| crate::domain::pod::Container {
            name: name(n),
            ..container.clone()
        });
        *pod.spec.containers = containers.collect();
        let statuses = (0..count).map(|n| crate::domain::pod::ContainerStatus {
            name: name(n),
            ..status.clone()
        });
        pod.status.container_statuses = statuses.collect();
        pod
    }

    /// If each container caused a search among all containers, this test would run for hours.
    #[test]
    fn work_grows_no_faster_than_the_containers() {
        const MANY: usize = 200_000;
        let (old, new) = (
            pod_with_containers(MANY, "1"),
            pod_with_containers(MANY, "2"),
        );
        let mut restarts = restarts_after_write(&old, &new, &old, false, NOW);
        assert_eq!(restarts.0.len(), MANY);
        assert_eq!(inplace::unfinished_resizes(&old), []);
        restarts.drop_finished(&RunningContainers::from_pod(&new), NOW);
        assert_eq!(restarts.0.len(), MANY, "no container runs anew");
        let mut waits = new.clone();
        let annotations = &mut waits.metadata.annotations;
        annotations.insert(
            keys::AWAITS_RESTART.to_owned(),
            restarts.annotation_value().unwrap(),
        );
        assert_eq!(pending_restarts(&waits), Some(restarts));
        assert_eq!(assumed_done_in(&waits, NOW), None);
    }
}
