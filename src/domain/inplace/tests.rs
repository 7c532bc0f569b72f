#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;
use crate::domain::pod::{RESIZE_IN_PROGRESS, RESIZE_PENDING};

/// A Pod with one container that has this image and memory in its spec, and the container ID `run` of the image
/// `runs`.
fn pod(image: &str, memory: &str, run: &str, runs: &str) -> Pod {
    serde_json::from_value(json!({
        "spec": { "containers": [{
            "name": "app", "image": image,
            "resources": { "requests": { "memory": memory, "cpu": "1" } },
            "resizePolicy": [
                { "resourceName": "memory", "restartPolicy": "RestartContainer" },
                { "resourceName": "cpu", "restartPolicy": "NotRequired" },
            ],
        }], "initContainers": [{ "name": "init", "image": image }] },
        "status": { "containerStatuses": [{
            "name": "app", "containerID": run, "imageID": format!("sha256:{runs}"), "ready": true,
        }] },
    }))
    .unwrap()
}

fn before() -> Pod {
    pod("a:1", "1Gi", "run-1", "a:1")
}

#[test]
fn image_or_resize_that_restarts_counts_as_change() {
    let old = before();
    assert_eq!(in_place_restart(&old, &old), None);
    let image = in_place_restart(&old, &pod("a:2", "1Gi", "run-1", "a:1")).unwrap();
    let [app] = &image.containers[..] else {
        unreachable!("{image:?}")
    };
    assert_eq!((app.name.as_str(), app.run.as_str()), ("app", "run-1"));
    assert_eq!(
        app.image,
        Some(super::image_digest(&old.status.container_statuses[0]))
    );
    let resize = in_place_restart(&old, &pod("a:1", "2Gi", "run-1", "a:1")).unwrap();
    assert_eq!(resize.containers[0].image, None);
}

/// A Pod with these limits as a whole. Its container `own` has its own memory limit, `bare` has none.
fn with_limits(memory: &str, cpu: &str) -> Pod {
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    serde_json::from_value(json!({ "spec": {
        "resources": { "limits": { "memory": memory, "cpu": cpu }, "requests": { "memory": memory } },
        "containers": [
            { "name": "own", "resizePolicy": policy, "resources": { "limits": { "memory": "1Gi" } } },
            { "name": "bare", "resizePolicy": policy },
            { "name": "free" },
        ],
    } }))
    .unwrap()
}

#[test]
fn resize_of_the_pod_restarts_containers_without_own_limit() {
    let old = with_limits("2Gi", "1");
    let resized = with_limits("3Gi", "1");
    let change = in_place_restart(&old, &resized).unwrap();
    let names: Vec<_> = change.containers.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["bare"]);
    assert!(!is_spec_applied(&old, &change.target));
    assert!(is_spec_applied(&resized, &change.target));
}

#[test]
fn resize_of_the_pod_without_restart_policy_is_no_change() {
    assert_eq!(
        in_place_restart(&with_limits("2Gi", "1"), &with_limits("2Gi", "2")),
        None
    );
    let mut requests = with_limits("2Gi", "1");
    requests.spec.resources["requests"]["memory"] = json!("1Gi");
    assert_eq!(in_place_restart(&with_limits("2Gi", "1"), &requests), None);
}

#[test]
fn change_ends_when_every_container_restarted() {
    let after = |run, runs| pod("a:2", "1Gi", run, runs);
    let change = in_place_restart(&before(), &after("run-1", "a:1")).unwrap();
    assert!(!is_spec_applied(&before(), &change.target));
    assert!(is_spec_applied(&after("run-1", "a:1"), &change.target));
    let far = |pod| restart_progress_of(&pod, &change.containers);
    assert_eq!(far(after("run-1", "a:1")), RestartProgress::Awaited);
    assert_eq!(far(after("run-2", "a:2")), RestartProgress::Proven);
}

#[test]
fn run_of_old_image_may_be_crash() {
    let after = pod("a:2", "1Gi", "run-2", "a:1");
    let image = in_place_restart(&before(), &after).unwrap();
    assert_eq!(
        restart_progress_of(&after, &image.containers),
        RestartProgress::Unproven
    );
    let after = pod("a:1", "2Gi", "run-2", "a:1");
    let resize = in_place_restart(&before(), &after).unwrap();
    assert_eq!(
        restart_progress_of(&after, &resize.containers),
        RestartProgress::Proven
    );
}

#[test]
fn restart_before_kubelet_observes_change_does_not_count() {
    let mut after = pod("a:1", "2Gi", "run-2", "a:1");
    let resize = in_place_restart(&before(), &after).unwrap();
    for (generation, observed, far) in [
        (2, 1, RestartProgress::Awaited),
        (2, 2, RestartProgress::Proven),
        (2, 0, RestartProgress::Proven), // the kubelet does not report it
        (0, 1, RestartProgress::Proven),
    ] {
        after.metadata.generation = generation;
        after.status.observed_generation = observed;
        assert_eq!(
            restart_progress_of(&after, &resize.containers),
            far,
            "{observed} of {generation}"
        );
    }
}

/// A Pod of generation 2 that asks for the memory `desired`, while `actual` is in force. `pending` is the reason of
/// its condition `PodResizePending`.
fn resized(desired: &str, actual: &str, run: &str, pending: Option<&str>) -> Pod {
    let mut pod = pod("a:1", desired, run, "a:1");
    let actual = json!({ "requests": { "memory": actual, "cpu": "1" } });
    pod.status.container_statuses[0].resources = Resources::from_resources(&actual);
    pod.metadata.generation = 2;
    pod.status.observed_generation = 2;
    pod.status.conditions = pending
        .map(|reason| {
            serde_json::from_value(json!({
                "type": RESIZE_PENDING, "status": "True", "reason": reason, "observedGeneration": 2,
            }))
            .unwrap()
        })
        .into_iter()
        .collect();
    pod
}

#[test]
fn infeasible_resize_restarts_nothing_and_deferred_one_may() {
    let resize = in_place_restart(&before(), &resized("2Gi", "1Gi", "run-1", None)).unwrap();
    let far = |pod: &Pod| restart_progress_of(pod, &resize.containers);
    assert_eq!(
        far(&resized("2Gi", "1Gi", "run-1", None)),
        RestartProgress::Awaited
    );
    let infeasible = resized("2Gi", "1Gi", "run-1", Some("Infeasible"));
    assert_eq!(far(&infeasible), RestartProgress::Nothing);
    let deferred = resized("2Gi", "1Gi", "run-1", Some("Deferred"));
    assert_eq!(far(&deferred), RestartProgress::Awaited);
    assert!(is_resize_pending(&infeasible) && is_resize_pending(&deferred));
    let mut of_the_last = infeasible.clone();
    of_the_last.status.conditions[0].observed_generation = 1;
    assert_eq!(far(&of_the_last), RestartProgress::Awaited);
    assert!(is_resize_pending(&of_the_last) && is_resize_settled(&of_the_last));
    assert!(!may_restart_for_resize(&of_the_last));
    of_the_last.status.observed_generation = 0;
    assert!(may_restart_for_resize(&of_the_last), "as far as is known");
    let mut of_the_last = deferred.clone();
    of_the_last.status.conditions[0].observed_generation = 1;
    assert_eq!(far(&of_the_last), RestartProgress::Awaited);
    assert!(is_resize_deferred(&of_the_last) && may_restart_for_resize(&of_the_last));
    let mut unseen = infeasible.clone();
    unseen.metadata.generation = 3;
    assert_eq!(far(&unseen), RestartProgress::Awaited);
    let mut of_1_33 = infeasible;
    of_1_33.metadata.generation = 3;
    of_1_33.status.observed_generation = 0;
    of_1_33.status.conditions[0].observed_generation = 0;
    assert_eq!(far(&of_1_33), RestartProgress::Awaited, "of which resize?");
}

#[test]
fn deferred_resize_may_restart_nothing() {
    let resize = in_place_restart(&before(), &resized("2Gi", "1Gi", "run-1", None)).unwrap();
    let mut of_cpu = resized("1Gi", "1Gi", "run-1", Some("Deferred"));
    assert_eq!(
        restart_progress_of(&of_cpu, &resize.containers),
        RestartProgress::Nothing
    );
    assert!(!may_restart_for_resize(&of_cpu));
    let condition = &mut of_cpu.status.conditions[0];
    condition.observed_generation = 0;
    let restart = restart_progress_of(&of_cpu, &resize.containers);
    assert_eq!(restart, RestartProgress::Unproven, "of which resize?");
}

#[test]
fn change_to_resources_in_force_withdraws_deferred_resize() {
    let deferred = resized("2Gi", "1Gi", "run-1", Some("Deferred"));
    let withdrawn = resized("1Gi", "1Gi", "run-1", Some("Deferred"));
    let mut another_image = withdrawn.clone();
    another_image.spec.containers[0].image = "a:2".into();
    for (old, new, is_back) in [
        (&deferred, &withdrawn, true),
        (&deferred, &resized("3Gi", "1Gi", "run-1", None), false),
        (&deferred, &another_image, false),
        (&resized("2Gi", "1Gi", "run-1", None), &withdrawn, false),
        (
            &resized("2Gi", "1Gi", "run-1", Some("Infeasible")),
            &withdrawn,
            false,
        ),
    ] {
        assert_eq!(withdraws_deferred_resize(old, new), is_back);
    }
}

#[test]
fn resize_to_the_resources_in_force_restarts_nothing() {
    let desired = resized("2Gi", "1Gi", "run-1", Some("Infeasible"));
    let restart = in_place_restart(&desired, &resized("1Gi", "1Gi", "run-1", None)).unwrap();
    let progress = |pod: &Pod| restart_progress_of(pod, &restart.containers);
    assert_eq!(
        progress(&resized("1Gi", "1Gi", "run-1", None)),
        RestartProgress::Nothing
    );
    let notation = resized("1Gi", "1073741824", "run-1", None);
    assert_eq!(progress(&notation), RestartProgress::Nothing);
    let mut acting = resized("1Gi", "1Gi", "run-1", None);
    acting.status.conditions.push(
        serde_json::from_value(json!({ "type": RESIZE_IN_PROGRESS, "status": "True" })).unwrap(),
    );
    assert_eq!(progress(&acting), RestartProgress::Awaited);
}

#[test]
fn new_run_of_stacked_resize_proves_nothing() {
    let stacked = [ContainerBefore {
        by_resources: true,
        ..in_place_restart(&before(), &resized("2Gi", "1Gi", "run-1", None))
            .unwrap()
            .containers[0]
            .clone()
    }];
    let far = |pod: &Pod| restart_progress_of(pod, &stacked);
    assert_eq!(
        far(&resized("1Gi", "2Gi", "run-2", None)),
        RestartProgress::Awaited
    );
    assert_eq!(
        far(&resized("1Gi", "1Gi", "run-3", None)),
        RestartProgress::Nothing
    );
}

#[test]
fn another_notation_of_a_quantity_is_no_change() {
    let old = before();
    assert_eq!(
        in_place_restart(&old, &pod("a:1", "1073741824", "run-1", "a:1")),
        None
    );
    let resize = in_place_restart(&old, &pod("a:1", "2Gi", "run-1", "a:1")).unwrap();
    let same = pod("a:1", "2147483648", "run-1", "a:1");
    assert!(is_spec_applied(&same, &resize.target));
    // A digest as earlier versions stored it.
    let stored = restart_digest(&pod("a:1", "2Gi", "run-1", "a:1"), ToString::to_string);
    assert!(is_spec_applied(&pod("a:1", "2Gi", "run-1", "a:1"), &stored));
}

/// A container with its own memory limit, and with the cpu limit of the Pod. A resize of either restarts it.
fn inheriting() -> Pod {
    let mut pod = pod("a:1", "1Gi", "run-1", "a:1");
    pod.spec.containers[0].resources = json!({ "limits": { "memory": "1Gi" } });
    *pod.spec.resources = json!({ "limits": { "cpu": "1", "memory": "2Gi" } });
    pod.spec.containers[0].resize_policy[1].restart_policy = "RestartContainer".to_owned();
    let resources = json!({ "limits": { "memory": "1Gi" } });
    pod.status.container_statuses[0].resources = serde_json::from_value(resources).unwrap();
    pod
}

#[test]
fn resources_in_force_follow_container_status() {
    let pod = inheriting();
    let before = |by_resources| ContainerBefore {
        name: "app".to_owned(),
        run: "run-1".to_owned(),
        image: None,
        by_resources,
    };
    assert_eq!(
        restart_progress_of(&pod, &[before(true)]),
        RestartProgress::Nothing
    );
    assert_eq!(
        restart_progress_of(&pod, &[before(false)]),
        RestartProgress::Awaited,
        "of a resize of the Pod only the restart tells"
    );
    let mut other = pod.clone();
    other.spec.containers[0].resources = json!({ "limits": { "memory": "2Gi" } });
    assert_eq!(
        restart_progress_of(&other, &[before(true)]),
        RestartProgress::Awaited
    );
}

#[test]
fn inherited_resize_is_unobservable_until_made() {
    let mut pod = inheriting();
    assert!(!is_resize_unobservable(&pod));
    pod.metadata.generation = 2;
    pod.status.observed_generation = 1;
    assert!(is_resize_unobservable(&pod));
    *pod.spec.resources = json!({});
    assert!(!is_resize_unobservable(&pod));
}
