//! Updates that change resources: who refuses a resize, and what the set does then.

use serde_json::{Value, json};

use super::reconcile::{settled, uids};
use super::world::{Kubelet, Resizing, World, WriteKind};
use crate::api::keys;
use crate::domain::collaset::set_operations::SetOperation;
use crate::domain::pod::Pod;

/// A spec whose container has this image and cpu request.
fn resources(image: &str, cpu: &str) -> Value {
    json!({ "template": { "spec": { "containers": [{
        "name": "app", "image": image, "resources": { "requests": { "cpu": cpu } },
    }] } } })
}

fn is_ready(world: &World) -> bool {
    let status = world.set.status.clone().unwrap();
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

#[test]
fn pod_that_cannot_be_resized_is_recreated() {
    let resources = |cpu: &str| resources("app:1", cpu);
    let mut world = settled(2, resources("1"));
    let before = uids(&world);
    world.edit(resources("2"));
    world.run_until_idle();
    let updated = world.set.status.clone().unwrap().updated_revision;
    let refused_uid = world.pods.values().next().unwrap().metadata.uid.clone();
    let refusal = (updated, "no resize on this node".to_owned());
    world.refused.resizes.insert(refused_uid.clone(), refusal);
    world.settle();
    let after = uids(&world);
    let unchanged: Vec<_> = before.intersection(&after).collect();
    assert!(
        unchanged.len() == 1 && *unchanged[0] != refused_uid,
        "{unchanged:?}"
    );
    assert_eq!(world.ids(), [0, 1]);
}

#[test]
fn pods_serve_unchanged_while_quota_denies_resize() {
    // The quota denies the resize from the beginning, or once the Pods are off traffic.
    for is_late in [false, true] {
        let mut world = World::on_plane(3, resources("app:1", "1"));
        world.settle();
        let before = uids(&world);
        if is_late {
            world.edit(resources("app:1", "2"));
            world.run_plan();
        }
        world.faults.refused.insert(WriteKind::AnyResize);
        world.edit(resources("app:1", "2"));
        for _ in 0..40 {
            world.run_plan();
            world.run_pods(u8::MAX);
            assert_eq!(uids(&world), before, "recreated, {is_late}");
        }
        assert!(world.pods.values().all(Pod::is_available), "{is_late}");
        assert!(!is_ready(&world));
        world.faults.refused.clear();
        world.settle();
        assert_eq!(uids(&world), before);
        assert!(all_ask_for(&world, "cpu", "2"));
    }
}

#[test]
fn no_pod_goes_offline_for_resize_impossible_on_node() {
    let mut world = World::on_plane(3, resources("app:1", "1"));
    world.settle();
    world.faults.refused.insert(WriteKind::Resize);
    world.edit(resources("app:1", "2"));
    world.run_plan();
    let deletes = |pod: &Pod| pod.label(keys::PREPARING_TO_DELETE).is_some();
    let is_updating = |pod: &Pod| SetOperation::Update.is_in_progress(pod);
    world.run_plan();
    let first = world.pods.values().find(|pod| is_updating(pod)).unwrap();
    assert!(
        deletes(first),
        "whoever cooperates knows that it will not come back"
    );
    world.settle();
    assert!(all_ask_for(&world, "cpu", "2"));
}

#[test]
fn resize_with_refused_image_is_reverted_with_template() {
    let mut world = World::on_plane(2, resources("app:1", "1"));
    world.settle();
    let before = uids(&world);
    world.edit(resources("app:2", "2"));
    world.run_plan();
    world.faults.refused.insert(WriteKind::PodChange);
    world.settle();
    assert_eq!(world.images(), ["app:1"; 2]);
    assert!(world.pods.values().all(Pod::is_available));
    assert!(!is_ready(&world));
    world.faults.refused.clear();
    world.edit(resources("app:1", "1"));
    world.settle();
    for pod in world.pods.values() {
        assert_eq!(pod.spec.containers[0].resources["requests"]["cpu"], "1");
        assert_eq!(pod.annotation(keys::RESIZING), None);
    }
    assert!(is_ready(&world));
    assert_eq!(uids(&world), before);
    // The same holds for a third revision.
    world.edit(resources("app:2", "2"));
    world.run_plan();
    world.faults.refused.insert(WriteKind::PodChange);
    world.settle();
    world.faults.refused.clear();
    world.edit(resources("app:3", "1"));
    world.settle();
    assert!(all_ask_for(&world, "cpu", "1"));
    assert_eq!(world.images(), ["app:3"; 2]);
}

#[test]
fn held_leaving_pod_serves_despite_impossible_resize() {
    let mut world = World::on_plane(2, resources("app:1", "1"));
    world.settle();
    let names: Vec<String> = world.pods.keys().cloned().collect();
    for pod in world.pods.values() {
        let kubelet = Kubelet {
            resizing: Resizing::Infeasible,
            ..Kubelet::default()
        };
        world.kubelets.insert(pod.metadata.uid.clone(), kubelet);
    }
    world.edit(resources("app:1", "2"));
    let resized = |world: &World| {
        let mut pods = world.pods.values();
        pods.all(|pod| pod.metadata.generation == 2)
    };
    for _ in 0..20 {
        world.run_plan();
        if resized(&world) {
            break;
        }
        world.run_pods(u8::MAX);
    }
    assert!(resized(&world));
    world.faults.holds = true;
    for name in &names {
        let label = (keys::TO_DELETE.to_owned(), "true".to_owned());
        assert!(world.write_pod(name, |pod| pod.metadata.labels.extend([label])));
    }
    for _ in 0..20 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    let serve = |world: &World| names.iter().all(|n| world.pods[n].is_available());
    assert!(serve(&world));
    // If the Pod stays after all, it is created again.
    for name in &names {
        let take_back = |pod: &mut Pod| pod.metadata.labels.retain(|key, _| key != keys::TO_DELETE);
        assert!(world.write_pod(name, take_back));
    }
    world.faults.holds = false;
    world.settle();
    assert!(world.pods.keys().all(|name| !names.contains(name)));
    assert!(is_ready(&world));
}

/// Whether all Pods request this amount of a resource.
fn all_ask_for(world: &World, resource: &str, amount: &str) -> bool {
    let mut pods = world.pods.values();
    pods.all(|pod| pod.spec.containers[0].resources["requests"][resource] == amount)
}

/// A set whose Pods have been resized from 1 cpu to 2, and whose next image is refused. Their kubelets react to the
/// resize as given.
fn half_resized(spec: Value, resizing: Resizing) -> World {
    let mut world = World::on_plane(2, resources("app:1", "1"));
    world.edit(spec);
    world.settle();
    for pod in world.pods.values() {
        let kubelet = Kubelet {
            resizing,
            ..Kubelet::default()
        };
        world.kubelets.insert(pod.metadata.uid.clone(), kubelet);
    }
    world.edit(resources("app:2", "2"));
    world.run_plan();
    world.faults.refused.insert(WriteKind::PodChange);
    world.run_rounds(20);
    let mut pods = world.pods.values();
    assert!(pods.any(|pod| pod.spec.containers[0].resources["requests"]["cpu"] == "2"));
    world
}

#[test]
fn partly_resized_pod_gets_remainder_from_template() {
    let both = |cpu: &str, memory: &str| {
        let requests = json!({ "requests": { "cpu": cpu, "memory": memory } });
        let app = json!({ "name": "app", "image": "app:1", "resources": requests });
        json!({ "template": { "spec": { "containers": [app] } } })
    };
    let mut world = World::on_plane(2, both("1", "1Gi"));
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    assert!(world.write_pod(&name, |pod| {
        pod.spec.containers[0].resources["requests"]["cpu"] = json!("2");
        pod.metadata.generation += 1;
    }));
    world.settle();
    world.edit(both("2", "2Gi"));
    world.settle();
    assert!(all_ask_for(&world, "memory", "2Gi") && all_ask_for(&world, "cpu", "2"));
}

#[test]
fn kubelet_resize_status_counts_despite_later_image_change() {
    for restarts in [false, true] {
        let mut world = half_resized(json!({}), Resizing::Infeasible);
        let before = uids(&world);
        world.faults.refused.clear();
        if restarts {
            world.forget_refusals();
        }
        world.settle();
        assert!(is_ready(&world));
        assert!(uids(&world).is_disjoint(&before), "recreated");
        let mut world = half_resized(json!({}), Resizing::Deferred);
        world.faults.refused.clear();
        if restarts {
            world.forget_refusals();
        }
        world.run_rounds(60);
        assert_eq!(world.images(), ["app:2"; 2], "tried again");
        assert!(!is_ready(&world), "its node has no room yet");
    }
}

/// The kubelet reports the refusal for the generation of the resize, and does not repeat it for a later image.
#[test]
fn never_resized_pod_is_recreated_despite_later_image() {
    let mut world = World::on_plane(2, resources("app:1", "1"));
    world.settle();
    let before = uids(&world);
    for uid in &before {
        let kubelet = Kubelet {
            resizing: Resizing::Infeasible,
            ..Kubelet::default()
        };
        world.kubelets.insert(uid.clone(), kubelet);
    }
    for image in ["app:2", "app:3"] {
        world.faults.unpullable.insert(image.into());
        world.edit(resources(image, "2"));
        world.run_rounds(20);
        assert_eq!(uids(&world), before);
    }
    world.edit(resources("app:4", "2"));
    world.run_rounds(60);
    assert!(is_ready(&world), "{:?}", world.set.status);
    assert!(uids(&world).is_disjoint(&before));
}

#[test]
fn two_unfinished_resizes_are_both_reverted() {
    let mut world = half_resized(json!({}), Resizing::Prompt);
    world.faults.refused.clear();
    world.edit(resources("app:3", "3"));
    for _ in 0..20 {
        world.run_plan();
        if world.pods.values().any(|pod| !pod.is_available()) {
            break;
        }
        world.run_pods(u8::MAX);
    }
    world.faults.refused.insert(WriteKind::PodChange);
    world.run_rounds(30);
    assert!(all_ask_for(&world, "cpu", "3"));
    world.faults.refused.clear();
    world.edit(resources("app:1", "1"));
    world.settle();
    assert!(all_ask_for(&world, "cpu", "1") && is_ready(&world));
}

#[test]
fn revision_for_which_a_pod_was_resized_is_kept() {
    let mut world = half_resized(json!({ "historyLimit": 0 }), Resizing::Prompt);
    world.faults.refused.clear();
    world.faults.holds = true;
    world.edit(json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    world.edit(resources("app:1", "1"));
    world.run_rounds(10);
    world.faults.holds = false;
    world.settle();
    assert!(all_ask_for(&world, "cpu", "1") && is_ready(&world));
}

#[test]
fn reverted_resize_is_dry_run_before_pod_goes_offline() {
    for image in ["app:1", "app:3"] {
        let mut world = half_resized(json!({}), Resizing::Prompt);
        assert!(world.pods.values().all(Pod::is_available));
        world.faults.refused = [WriteKind::AnyResize].into();
        world.edit(resources(image, "1"));
        for _ in 0..60 {
            world.run_plan();
            world.run_pods(u8::MAX);
            assert!(world.pods.values().all(Pod::is_available), "{image}");
        }
        assert!(!is_ready(&world));
    }
}

#[test]
fn set_is_not_ready_with_impossible_resize() {
    let mut world = World::on_plane(1, resources("app:1", "1"));
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    let kubelet = Kubelet {
        resizing: Resizing::Infeasible,
        ..Kubelet::default()
    };
    let uid = world.pods[&name].metadata.uid.clone();
    world.kubelets.insert(uid, kubelet);
    world.edit(resources("app:1", "2"));
    while world.pods[&name].metadata.generation == 1 {
        world.run_pods(u8::MAX);
        world.run_plan();
    }
    world.faults.holds = true;
    let label = (keys::TO_DELETE.to_owned(), "true".to_owned());
    assert!(world.write_pod(&name, |pod| pod.metadata.labels.extend([label])));
    world.run_rounds(20);
    assert!(world.pods[&name].is_available());
    world.edit(json!({ "paused": true }));
    assert!(world.write_pod(&name, |pod| _ = pod.metadata.labels.remove(keys::TO_DELETE)));
    world.run_rounds(20);
    assert!(!is_ready(&world));
    let status = world.set.status.clone().unwrap();
    assert_ne!(status.current_revision, status.updated_revision);
}

/// Sets a resource that Pods got from a LimitRange, or by hand, before any update.
fn given(world: &mut World, path: (&str, &str), amount: &str) {
    for pod in world.pods.values_mut() {
        pod.spec.containers[0].resources[path.0][path.1] = json!(amount);
    }
}

#[test]
fn reverted_resize_leaves_unresized_pods_alone() {
    let spec = |image: &str, resources: Value| {
        let app = json!({ "name": "app", "image": image, "resources": resources });
        json!({ "template": { "spec": { "containers": [app] } } })
    };
    let limits =
        |limit: &str| json!({ "requests": { "memory": "1Gi" }, "limits": { "memory": limit } });
    let defaulted = json!({ "requests": { "memory": "1Gi", "cpu": "500m" } });
    let plain = json!({ "requests": { "memory": "1Gi" } });
    for (first, next, path, amount) in [
        (plain, defaulted, ("requests", "cpu"), "500m"),
        (limits("2Gi"), limits("4Gi"), ("limits", "memory"), "4Gi"),
    ] {
        let mut world = World::on_plane(3, spec("app:1", first.clone()));
        world.settle();
        given(&mut world, path, amount);
        let before = uids(&world);
        world.faults.holds = true;
        world.edit(spec("app:2", next));
        world.run_rounds(10);
        let marked = |pod: &Pod| pod.annotation(keys::RESIZING).is_some();
        assert!(world.pods.values().all(marked));
        world.set.spec.template["spec"]["containers"] = json!([]);
        world.edit(spec("app:1", first));
        world.faults.holds = false;
        world.settle();
        assert_eq!(uids(&world), before);
        assert!(is_ready(&world));
    }
}

/// A set whose Pods got a resize that their nodes can never apply.
fn infeasible(replicas: i32) -> World {
    let mut world = World::on_plane(replicas, resources("app:1", "1"));
    world.settle();
    for pod in world.pods.values() {
        let kubelet = Kubelet {
            resizing: Resizing::Infeasible,
            ..Kubelet::default()
        };
        world.kubelets.insert(pod.metadata.uid.clone(), kubelet);
    }
    world.edit(resources("app:1", "2"));
    let changed = |pod: &Pod| pod.annotation(keys::LAST_POD_STATUS).is_some();
    while !world.pods.values().all(changed) {
        world.run_pods(u8::MAX);
        world.run_plan();
    }
    world
}

#[test]
fn pod_with_impossible_resize_serves_until_it_can_be_recreated() {
    let mut paused = infeasible(2);
    paused.edit(json!({ "paused": true }));
    let mut refused = infeasible(2);
    refused.faults.refused.insert(WriteKind::PodChange);
    refused.edit(resources("app:2", "2"));
    let mut vacant = infeasible(3);
    vacant.faults.refused.insert(WriteKind::PodCreation);
    for (mut world, lost) in [(paused, 0), (refused, 0), (vacant, 1)] {
        world.run_rounds(150);
        let serving = world.pods.values().filter(|pod| pod.is_available()).count();
        let wanted = usize::try_from(world.set.spec.replicas.unwrap()).unwrap();
        assert_eq!(serving, wanted - lost);
        assert!(!is_ready(&world));
        world.faults.refused.clear();
        world.edit(json!({ "paused": false }));
        world.settle();
        assert!(is_ready(&world) && all_ask_for(&world, "cpu", "2"));
    }
}

#[test]
fn pod_with_deferred_resize_and_refused_image_serves() {
    for paused in [false, true] {
        let mut world = half_resized(json!({}), Resizing::Deferred);
        world.edit(json!({ "paused": paused }));
        world.run_rounds(60);
        assert!(
            world.pods.values().all(Pod::is_available),
            "nothing restarts"
        );
        assert!(!is_ready(&world));
    }
}

#[test]
fn partition_keeps_no_pod_with_resources_of_another_revision() {
    let partition = json!({ "rollingUpdate": { "byPartition": { "partition": 1 } } });
    let mut world = half_resized(json!({ "updateStrategy": partition }), Resizing::Prompt);
    world.faults.refused.clear();
    world.edit(resources("app:1", "1"));
    world.settle();
    assert!(all_ask_for(&world, "cpu", "1") && is_ready(&world));
}

#[test]
fn partitioned_rollout_starts_with_partly_resized_pods() {
    let mut world = half_resized(json!({}), Resizing::Prompt);
    let resized = |world: &World| {
        let mut pods = world.pods.values();
        let pod = pods.find(|pod| pod.spec.containers[0].resources["requests"]["cpu"] == "2");
        pod.map(|pod| pod.metadata.name.clone())
    };
    assert!(resized(&world).is_some());
    world.faults.refused.clear();
    let partition = json!({ "rollingUpdate": { "byPartition": { "partition": 1 } } });
    world.edit(json!({ "updateStrategy": partition }));
    world.edit(resources("app:3", "1"));
    world.settle();
    let description = resized(&world);
    assert_eq!(is_ready(&world), description.is_none());
    if let Some(description) = description {
        let status = world.set.status.clone().unwrap();
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        assert!(ready.unwrap().message.contains(&description), "{ready:?}");
    }
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 0 } } } }),
    );
    world.settle();
    assert!(all_ask_for(&world, "cpu", "1") && is_ready(&world));
}

#[test]
fn set_is_not_ready_while_labelled_pod_has_other_resources() {
    let mut world = half_resized(json!({}), Resizing::Prompt);
    world.edit(json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } }));
    world.edit(resources("app:3", "1"));
    world.faults.refused.clear();
    world.settle();
    let half = |world: &World| {
        let mut pods = world.pods.values();
        pods.any(|pod| pod.spec.containers[0].resources["requests"]["cpu"] == "2")
    };
    assert!(half(&world) && !is_ready(&world));
}
