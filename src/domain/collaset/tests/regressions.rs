//! Cases that the random walks found, one test each.

use std::collections::BTreeSet;

use serde_json::json;

use super::reconcile::{one_pvc_template, settled};
use super::world::{Kubelet, World, WriteKind};
use crate::api::collaset::CollaSetCondition;
use crate::api::keys::{self, Family};
use crate::domain::collaset::planner::plan_set;

fn condition(world: &World, type_: &str) -> CollaSetCondition {
    let status = world.set.status.clone().unwrap();
    let mut conditions = status.conditions.into_iter();
    conditions.find(|c| c.type_ == type_).unwrap()
}

#[test]
fn conditions_are_not_true_while_pods_are_scaled_or_updated() {
    let mut world = settled(2, json!({}));
    let reason = |world: &World, type_: &str| {
        let condition = condition(world, type_);
        (condition.status, condition.reason)
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    world.edit(json!({ "replicas": 3 }));
    world.run_plan();
    assert_eq!(reason(&world, "Scale"), is("False", "Scaling"));
    assert_eq!(reason(&world, "Update"), is("True", "Updated"));
    world.settle();
    world.image("app:2");
    world.run_plan();
    assert_eq!(reason(&world, "Scale"), is("True", "Scaled"));
    assert_eq!(reason(&world, "Update"), is("False", "Updating"));
    world.settle();
    assert_eq!(reason(&world, "Update"), is("True", "Updated"));
}

fn name_of(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

fn label(world: &mut World, name: &str, key: &str, value: Option<&str>) {
    let labels = &mut world.pods.get_mut(name).unwrap().metadata.labels;
    match value {
        Some(value) => labels.insert(key.to_owned(), value.to_owned()),
        None => labels.remove(key),
    };
}

fn is_available(world: &World, name: &str) -> bool {
    world.pods[name].is_available()
}

#[test]
fn pod_regains_lost_id_without_duplicate() {
    let mut world = settled(3, json!({}));
    let name = name_of(&world, 1);
    label(&mut world, &name, keys::INSTANCE_ID, None);
    world.run_until_idle();
    assert_eq!(world.pods.len(), 3);
    assert_eq!(name_of(&world, 1), name);
}

#[test]
fn pod_holds_its_id_while_id_label_is_refused() {
    let mut world = settled(3, json!({}));
    let name = name_of(&world, 1);
    label(&mut world, &name, keys::INSTANCE_ID, None);
    let uid = world.pods[&name].metadata.uid.clone();
    world.faults.stubborn.insert(uid);
    world.settle();
    assert_eq!(world.pods.len(), 3);
    world.edit(json!({ "replicas": 4 }));
    world.settle();
    assert_eq!(world.pods.len(), 4);
    world.faults.stubborn.clear();
    world.settle();
    assert_eq!(world.ids(), [0, 1, 2, 3]);
}

#[test]
fn new_half_of_scaled_in_pod_is_not_recreated() {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = World::on_plane(1, replace);
    world.settle();
    let uid = world.pods.values().next().unwrap().metadata.uid.clone();
    let slow = Kubelet {
        is_slow: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(uid, slow);
    world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
    for _ in 0..3 {
        world.run_plan();
    }
    assert_eq!(world.pods.len(), 2);
    for _ in 0..8 {
        world.run_pods(u8::MAX);
    }
    world.edit(json!({ "replicas": 0 }));
    let mut names = BTreeSet::new();
    for _ in 0..60 {
        world.run_plan();
        world.run_pods(u8::MAX);
        names.extend(world.pods.keys().cloned());
    }
    assert_eq!(names.len(), 2, "the new half goes and stays away");
}

#[test]
fn refused_exclusion_holds_up_nothing_else() {
    let mut world = settled(2, json!({}));
    let name = name_of(&world, 0);
    label(&mut world, &name, keys::TO_EXCLUDE, Some("1"));
    let uid = world.pods[&name].metadata.uid.clone();
    world.faults.stubborn.insert(uid);
    world.edit(json!({ "replicas": 3 }));
    world.settle();
    assert_eq!(world.pods.len(), 4, "beside the one that is to leave");
    world.faults.stubborn.clear();
    world.settle();
    assert!(world.pods[&name].controller().is_none());
    assert_eq!(world.members().len(), 3);
}

#[test]
fn unselected_pod_that_stays_blocks_nothing() {
    let mut world = settled(2, one_pvc_template());
    let name = name_of(&world, 0);
    label(&mut world, &name, "app", Some("debug"));
    world.faults.refused.insert(WriteKind::PvcWrite);
    world.edit(json!({ "replicas": 3 }));
    world.settle();
    let others = world.members().len() - 1;
    assert_eq!(others, 2, "its ID waits for its PVC");
    world.faults.refused.clear();
    world.settle();
    assert!(world.pods[&name].controller().is_none());
    assert_eq!(world.members().len(), 3);
}

#[test]
fn pvcs_leave_before_their_pod() {
    let mut world = settled(1, one_pvc_template());
    let name = name_of(&world, 0);
    let pvc_name = world.pods[&name].spec.pvcs[0].clone();
    world.faults.refused.insert(WriteKind::PvcWrite);
    label(&mut world, &name, keys::TO_EXCLUDE, Some("1"));
    world.settle();
    assert!(world.pods[&name].controller().is_some());
    world.faults.refused.clear();
    world.settle();
    assert!(world.pods[&name].controller().is_none());
    let labels = &world.pvcs[&pvc_name].labels;
    assert!(world.pvcs[&pvc_name].controller.is_none() && labels.contains_key(keys::ORPHANED));
}

#[test]
fn pvcs_of_an_exclusion_that_is_taken_back_return() {
    let mut world = settled(1, one_pvc_template());
    let name = name_of(&world, 0);
    let before = world.pvcs.clone();
    label(&mut world, &name, keys::TO_EXCLUDE, Some("1"));
    world.run_plan();
    label(&mut world, &name, keys::TO_EXCLUDE, None);
    world.settle();
    assert!(world.pods[&name].controller().is_some());
    assert_eq!(world.pvcs, before);
    // The same holds for PVCs that somebody else took from the set.
    let pvc = world.pvcs.values_mut().next().unwrap();
    pvc.controller = None;
    pvc.labels.insert(keys::ORPHANED.into(), "true".into());
    world.settle();
    assert_eq!(world.pvcs, before);
}

#[test]
fn orphan_is_adopted_after_its_pvcs() {
    let mut world = settled(1, one_pvc_template());
    let name = name_of(&world, 0);
    let before = world.pvcs.clone();
    world
        .pods
        .get_mut(&name)
        .unwrap()
        .metadata
        .owner_references
        .clear();
    for pvc in world.pvcs.values_mut() {
        pvc.controller = None;
    }
    world.faults.refused.insert(WriteKind::PvcWrite);
    world.settle();
    assert!(world.pods.len() == 1 && world.pods[&name].controller().is_none());
    label(&mut world, &name, keys::INSTANCE_ID, Some("7"));
    world.faults.refused.clear();
    world.settle();
    let id = world.members().into_keys().next().unwrap().to_string();
    let ids: Vec<_> = world
        .pvcs
        .values()
        .map(|c| &c.labels[keys::INSTANCE_ID])
        .collect();
    assert!(ids.contains(&&id), "{id} of {ids:?}");
    assert_eq!(world.pvcs.len(), before.len());
}

#[test]
fn replacement_taken_back_by_hand_does_not_block_the_update() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    let mut world = settled(2, json!({ "updateStrategy": strategy }));
    world.image("app:2");
    world.run_plan();
    for pod in world.pods.values_mut() {
        pod.metadata.labels.remove(keys::TO_REPLACE);
    }
    world.settle();
    assert_eq!(world.images(), ["app:2"; 2]);
}

#[test]
fn every_pod_that_hangs_is_named() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    world.faults.unpullable.insert("app:2".into());
    let partition = json!({ "rollingUpdate": { "byPartition": { "partition": 2 } } });
    world.edit(json!({ "updateStrategy": partition }));
    world.image("app:2");
    world.settle();
    // This Pod has an older revision and hangs, too.
    world.faults.unpullable.insert("app:3".into());
    world.image("app:3");
    world.settle();
    world.edit(json!({ "updateStrategy": { "rollingUpdate": null } }));
    world.settle();
    let message = condition(&world, "Ready").message;
    for name in world.pods.keys() {
        assert!(message.contains(name), "{name}: {message}");
    }
}

#[test]
fn pod_off_traffic_that_waits_for_its_delay_is_named() {
    let strategy = json!({ "operationDelaySeconds": 3600 });
    let mut world = settled(1, json!({ "updateStrategy": strategy }));
    let name = name_of(&world, 0);
    world.image("app:2");
    for _ in 0..4 {
        world.run_plan();
        world.step_surroundings();
    }
    assert!(!is_available(&world, &name));
    world.run_plan();
    let message = condition(&world, "Ready").message;
    let expected =
        format!("Pod {name} is off traffic until its operationDelaySeconds (3600) are over");
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn blocked_write_of_pod_off_traffic_is_reported() {
    let mut world = settled(1, json!({}));
    let name = name_of(&world, 0);
    world.image("app:2");
    while is_available(&world, &name) {
        world.run_plan();
        world.step_surroundings();
    }
    let mut observed = world.observe();
    let uid = world.pods[&name].metadata.uid.clone();
    let denial = "rule a of PodTransitionRule web is full";
    observed.refused.held.insert(uid, denial.to_owned());
    let status = plan_set(&observed).status.unwrap();
    let mut ready = status.conditions.iter().filter(|c| c.type_ == "Ready");
    let message = &ready.next().unwrap().message;
    let expected = format!("Pod {name} is off traffic, and its next write is delayed: {denial}");
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn return_to_image_that_kubelet_never_left_completes() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    let name = name_of(&world, 0);
    let lost = Kubelet {
        is_lost: true,
        ..Kubelet::default()
    };
    let uid = world.pods[&name].metadata.uid.clone();
    world.kubelets.insert(uid, lost);
    world.image("app:2");
    world.run_rounds(10);
    world.orphan_set();
    world.recreate_set();
    for image in ["app:3", "app:1"] {
        world.image(image);
        world.run_rounds(20);
        assert_eq!(world.images(), [image]);
    }
    world.kubelets.clear();
    world.run_rounds(20);
    assert_eq!(condition(&world, "Ready").reason, "AsWanted");
}

#[test]
fn condition_names_objects_that_orphaning_deletion_waits_for() {
    let mut world = World::on_plane(1, one_pvc_template());
    world.settle();
    let pod = name_of(&world, 0);
    let pvc_name = world.pods[&pod].spec.pvcs[0].clone();
    let revision = world.set.status.as_ref().unwrap().updated_revision.clone();
    world.delete_set(true);
    world.run_plan();
    let terminating = condition(&world, "Terminating");
    assert_eq!(
        (&*terminating.status, &*terminating.reason),
        ("False", "ReclaimingTargetsDeletion")
    );
    let waits = "waits for the garbage collector to remove the owner references of the objects that stay, and then the \
         finalizer orphan";
    assert_eq!(
        terminating.message,
        format!(
            "{waits}; Pods {pod}; PersistentVolumeClaims {pvc_name}; ControllerRevisions {revision}"
        )
    );
    let pod = world.pods.get_mut(&pod).unwrap();
    pod.metadata.owner_references = Vec::new().into();
    world.pvcs.get_mut(&pvc_name).unwrap().controller = None;
    world.run_plan();
    let message = condition(&world, "Terminating").message;
    assert_eq!(message, format!("{waits}; ControllerRevisions {revision}"));
}

#[test]
fn foreign_pod_that_mounts_unowned_pvc_is_named() {
    let mut world = settled(1, one_pvc_template());
    let name = name_of(&world, 0);
    world
        .pods
        .get_mut(&name)
        .unwrap()
        .metadata
        .owner_references
        .clear();
    world.pvcs.values_mut().next().unwrap().controller = None;
    label(&mut world, &name, "app", Some("debug"));
    world.settle();
    let message = condition(&world, "Ready").message;
    assert!(
        message.contains(&format!("waiting for Pod {name}")),
        "{message}"
    );
}

#[test]
fn excluded_pod_ends_its_operation_in_same_write() {
    let mut world = settled(
        2,
        json!({ "updateStrategy": { "operationDelaySeconds": 3600 } }),
    );
    let name = name_of(&world, 0);
    world.image("app:2");
    world.run_plan();
    label(&mut world, &name, keys::TO_EXCLUDE, Some("1"));
    world.run_plan();
    let pod = &world.pods[&name];
    assert!(pod.controller().is_none());
    let undo = Family::UndoOperationType.key("collaset");
    assert_eq!(pod.label(&undo), Some("update"));
}

#[test]
fn foreign_operation_under_set_id_is_cancelled() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = name_of(&world, 0);
    world.write_pod(&name, |pod| {
        for (family, value) in [(Family::Operating, "1"), (Family::OperationType, "other")] {
            pod.metadata
                .labels
                .insert(family.key("collaset"), value.into());
        }
    });
    for _ in 0..4 {
        world.run_pods(u8::MAX);
    }
    assert!(!is_available(&world, &name));
    world.settle();
    assert!(is_available(&world, &name));
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn pod_adopted_during_rolled_back_update_returns() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    let name = name_of(&world, 0);
    world.image("app:2");
    while world.pods[&name].spec.containers[0].image == "app:1" {
        world.run_pods(u8::MAX);
        world.run_plan();
    }
    // The write removes the set's note about the update. The container has not restarted yet.
    world.write_pod(&name, |pod| {
        pod.metadata.owner_references.clear();
        pod.metadata.annotations.remove(keys::LAST_POD_STATUS);
        let undo = Family::UndoOperationType.key("collaset");
        pod.metadata.labels.insert(undo, "update".into());
    });
    let uid = world.pods[&name].metadata.uid.clone();
    let slow = Kubelet {
        is_slow: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(uid, slow);
    world.image("app:1");
    world.settle();
    assert_eq!(world.pods[&name].spec.containers[0].image, "app:1");
    world.kubelets.clear();
    world.settle();
    assert!(is_available(&world, &name));
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn duplicate_that_hangs_in_scale_in_is_named() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let names = [0, 1].map(|id| name_of(&world, id));
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToDelete": [names[1]] } }));
    world.run_plan();
    world.run_pods(u8::MAX);
    world.faults.holds = true;
    world.write_pod(&names[1], |pod| {
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::INSTANCE_ID.into(), "0".into());
    });
    world.settle();
    let message = condition(&world, "Ready").message;
    assert!(message.contains(&names[1]), "{message}");
}

#[test]
fn change_that_is_taken_back_right_after_a_restart_ends() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    world.image("app:2");
    // The Pod is changed and its container restarts. The earlier state stays recorded until the container is ready.
    for _ in 0..20 {
        world.run_plan();
        world.run_pods(u8::MAX);
        let pod = world.pods.values().next().unwrap();
        if pod.annotation(keys::LAST_POD_STATUS).is_none()
            && pod.spec.containers[0].image == "app:2"
        {
            break;
        }
    }
    let pod = world.pods.values().next().unwrap();
    assert!(!pod.is_available() && pod.annotation(keys::AWAITS_RESTART).is_some());
    let is_changed = |world: &World, image: &str| {
        let pod = world.pods.values().next().unwrap();
        pod.spec.containers[0].image == image
    };
    world.image("app:1");
    while !is_changed(&world, "app:1") {
        assert!(world.run_plan());
    }
    world.image("app:2");
    world.settle();
    assert!(is_changed(&world, "app:2"));
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn new_half_counts_if_origin_was_recreated_under_same_name() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = World::on_plane(3, naming);
    world.settle();
    // The pool has no such pair. The label was left by a pair whose origin was an earlier Pod of that name.
    label(
        &mut world,
        "web-2",
        keys::REPLACE_PAIR_ORIGIN_NAME,
        Some("web-1"),
    );
    world.edit(json!({ "replicas": 2 }));
    world.run_plan();
    let scale = condition(&world, "Scale");
    assert_eq!(scale.status, "False", "one of three is to go: {scale:?}");
    world.settle();
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn named_pod_with_persistent_name_is_deleted_once() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(3, naming);
    let uid = |world: &World| world.pods["web-2"].metadata.uid.clone();
    let before = uid(&world);
    world.faults.refused.insert(WriteKind::Pool);
    world.edit(json!({ "scaleStrategy": { "podToDelete": ["web-2"] } }));
    world.settle();
    assert_eq!(
        uid(&world),
        before,
        "the pool can't store that the Pod will be deleted"
    );
    let ready = condition(&world, "Ready");
    assert_eq!(ready.status, "False");
    assert!(
        ready.message.contains("ResourceContext web: refused"),
        "{ready:?}"
    );
    world.faults.refused.clear();
    world.settle();
    assert_ne!(uid(&world), before);
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn taken_names_block_no_other_pod() {
    let sequence = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = World::on_plane(0, sequence);
    world.settle();
    for n in 0..5 {
        let name = format!("web-{n}");
        let alien = json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "creationTimestamp": "1" },
            "spec": { "containers": [{ "name": "app", "image": "a:1" }] },
        });
        world
            .pods
            .insert(name, serde_json::from_value(alien).unwrap());
    }
    world.edit(json!({ "replicas": 8 }));
    world.settle();
    assert_eq!(world.ids(), [5, 6, 7]);
}

#[test]
fn failed_pod_to_exclude_leaves_with_its_logs() {
    let mut world = settled(2, one_pvc_template());
    let name = world.pods.keys().next().unwrap().clone();
    let pvc_name = world.pods[&name].spec.pvcs[0].clone();
    world.pods.get_mut(&name).unwrap().status.phase = "Failed".into();
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    assert!(!world.owns(&world.pods[&name]));
    assert_eq!(world.pvcs[&pvc_name].controller, None);
    assert_eq!(world.members().len(), 2);
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn no_pod_mounts_pvcs_that_leave_with_failed_pod() {
    let mut spec = one_pvc_template();
    let mut other = spec["volumeClaimTemplates"][0].clone();
    other["metadata"]["name"] = json!("logs");
    let templates = spec["volumeClaimTemplates"].as_array_mut().unwrap();
    templates.push(other);
    let mut world = settled(2, spec);
    let name = world.pods.keys().next().unwrap().clone();
    let pvc_names = world.pods[&name].spec.pvcs.clone();
    world.faults.stubborn.insert(pvc_names[1].clone());
    world.pods.get_mut(&name).unwrap().status.phase = "Failed".into();
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    let mounts = |world: &World, pvc_name| {
        let pods = world.pods.values();
        pods.filter(|pod| pod.spec.pvcs.contains(pvc_name)).count()
    };
    assert!(
        pvc_names
            .iter()
            .all(|pvc_name| mounts(&world, pvc_name) == 1)
    );
    assert!(world.owns(&world.pods[&name]));
    world.faults.stubborn.clear();
    world.settle();
    assert!(
        pvc_names
            .iter()
            .all(|pvc_name| mounts(&world, pvc_name) == 1)
    );
    assert!(!world.owns(&world.pods[&name]));
    assert_eq!(condition(&world, "Ready").status, "True");
}

#[test]
fn failed_pod_with_persistent_name_is_recreated_and_reported() {
    let sequence = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, sequence);
    let uid = world.pods["web-0"].metadata.uid.clone();
    world.pods.get_mut("web-0").unwrap().status.phase = "Failed".into();
    world.edit(json!({ "scaleStrategy": { "podToExclude": ["web-0"] } }));
    world.settle();
    assert_ne!(world.pods["web-0"].metadata.uid, uid);
    assert!(world.events.iter().any(|(r, _)| *r == "ExcludeNotAllowed"));
}
