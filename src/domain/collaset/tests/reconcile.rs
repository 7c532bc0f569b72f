//! The effect of each strategy, one test each.

use std::collections::BTreeSet;

use serde_json::json;

use super::world::{World, WriteKind};
use crate::api::keys::{self, Family};
use crate::domain::collaset::planner::plan_set;
use crate::domain::collaset::set_operations;

pub fn settled(replicas: i32, spec: serde_json::Value) -> World {
    let mut world = World::new(replicas, spec);
    world.settle();
    world
}

/// A spec with one volume claim template.
pub fn one_pvc_template() -> serde_json::Value {
    json!({ "volumeClaimTemplates": [{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }] })
}

/// The same spec with a larger volume.
pub fn grown() -> serde_json::Value {
    let mut spec = one_pvc_template();
    spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    spec
}

pub fn uids(world: &World) -> BTreeSet<String> {
    world
        .pods
        .values()
        .map(|p| p.metadata.uid.clone())
        .collect()
}

#[test]
fn new_set_creates_its_pods_and_settles() {
    let mut world = settled(3, json!({}));
    assert_eq!(world.ids(), [0, 1, 2]);
    assert!(!world.run_plan(), "a plan of a settled set is empty");
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.replicas, status.available_replicas), (3, 3));
    assert_eq!(status.current_revision, status.updated_revision);
    assert_eq!(status.label_selector, "app=web");
}

#[test]
fn pod_that_dies_is_made_again_under_its_id() {
    let mut world = settled(3, json!({}));
    let victim = world.members()[&1].metadata.name.clone();
    world.delete(&victim);
    world.run_plan();
    assert_eq!(world.ids(), [0, 1, 2], "before the old one is gone");
    assert!(world.members()[&1].label(keys::COMPLETING).is_some());
    world.settle();
    assert!(!world.pods.contains_key(&victim));
}

#[test]
fn persistent_name_waits_until_old_pod_is_gone() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    world.delete("web-1");
    world.run_plan();
    assert_eq!(world.ids(), [0]);
    world.settle();
    assert_eq!(world.pods.keys().collect::<Vec<_>>(), ["web-0", "web-1"]);
}

#[test]
fn pod_holding_a_name_is_reported() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    world.delete("web-1");
    world.run_plan();
    let status = world.set.status.clone().unwrap();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    let message = "1 Pod to create, 0 to delete; waiting for web-1 to end";
    assert_eq!(ready.unwrap().message, message);
}

#[test]
fn image_changes_in_place() {
    let mut world = settled(3, json!({}));
    let before = uids(&world);
    world.image("app:2");
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
    assert_eq!(uids(&world), before);
    assert!(
        world
            .pods
            .values()
            .all(|p| p.metadata.annotations.is_empty())
    );
}

#[test]
fn all_pods_begin_their_update_at_once() {
    let mut world = settled(3, json!({}));
    world.image("app:2");
    world.run_plan();
    let operating = keys::Family::Operating.key("collaset");
    assert!(world.pods.values().all(|p| p.label(&operating).is_some()));
}

#[test]
fn change_impossible_in_place_recreates_pod_with_same_id() {
    let mut world = settled(2, json!({}));
    let before = uids(&world);
    world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
    assert!(uids(&world).is_disjoint(&before));
}

#[test]
fn no_more_pods_are_deleted_while_new_pods_are_refused() {
    for policy in ["Recreate", "InPlaceIfPossible"] {
        let mut world = settled(
            5,
            json!({ "updateStrategy": { "podUpgradePolicy": policy } }),
        );
        world.forbidden.insert("app:2".into());
        world.edit(json!({ "template": { "spec": {
            "hostNetwork": true, "containers": [{ "name": "app", "image": "app:2" }],
        } } }));
        world.settle();
        assert_eq!(world.ids().len(), 4, "one was given up to try");
        let serving = world.pods.values().filter(|p| p.is_available()).count();
        assert_eq!(serving, 4, "nor is any other off traffic");
        world.forbidden.clear();
        world.settle();
        assert_eq!(world.images(), ["app:2"; 5]);
    }
}

#[test]
fn refused_change_takes_no_pod_off_traffic() {
    let mut world = settled(3, json!({}));
    world.faults.refused.insert(WriteKind::PodChange);
    world.image("app:2");
    world.settle();
    let operating = keys::Family::Operating.key("collaset");
    let is_any_updating = |world: &World| {
        let mut pods = world.pods.values();
        pods.any(|p| p.label(&operating).is_some() || !p.is_available())
    };
    assert!(!is_any_updating(&world));
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn pod_off_traffic_returns_when_its_change_is_refused() {
    let mut world = settled(3, json!({}));
    world.image("app:2");
    world.run_plan();
    world.faults.refused.insert(WriteKind::PodChange);
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    let operating = keys::Family::Operating.key("collaset");
    for pod in world.pods.values() {
        assert!(
            pod.is_available() && pod.label(&operating).is_none(),
            "{pod:?}"
        );
    }
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn waiting_pods_return_when_another_change_is_refused() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    world.faults.max_unavailable = Some(1);
    world.image("app:2");
    world.run_plan();
    world.faults.refused.insert(WriteKind::PodChange);
    let mut off = BTreeSet::new();
    for _ in 0..200 {
        world.run_plan();
        for pod in world.pods.values().filter(|p| !p.is_available()) {
            off.insert(pod.metadata.uid.clone());
        }
        world.run_pods(u8::MAX);
    }
    assert_eq!(off.len(), 1, "others went off traffic for nothing");
    world.faults.refused.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn third_image_during_replacement_removes_no_pod() {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "maxSurge": 2 } });
    for moment in 0..16 {
        for mask in [u8::MAX, 0b0101_0101] {
            let mut world = World::on_plane(4, replace.clone());
            world.settle();
            world.image("app:2");
            for round in 0..60 {
                if round == moment {
                    world.image("app:3");
                }
                world.run_plan();
                world.run_pods(mask.rotate_left(round % 8));
                let serving = world.pods.values().filter(|p| p.is_available()).count();
                assert!(
                    serving >= 4,
                    "{serving} serve at {round} ({moment}, {mask})"
                );
            }
            world.settle();
            assert_eq!(world.images(), ["app:3"; 4]);
        }
    }
}

#[test]
fn cancelled_replacement_removes_no_pod_after_leader_loss() {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    // The controller dies after this many plans since the rollback, and after this many writes of the next plan.
    for (plans, written) in (0..5).flat_map(|plans| (0..12).map(move |w| (plans, w))) {
        let mut world = World::on_plane(2, replace.clone());
        world.settle();
        world.faults.holds = true;
        world.image("app:2");
        for _ in 0..14 {
            world.run_plan();
            world.run_pods(u8::MAX);
        }
        assert!(
            world
                .pods
                .values()
                .any(set_operations::awaits_leave_permission)
        );
        world.image("app:1");
        (0..plans).for_each(|_| _ = world.run_plan());
        let plan = plan_set(&world.observe());
        world.apply_plan(plan, written);
        world.faults.holds = false;
        for _ in 0..20 {
            world.run_pods(u8::MAX);
            let serving = world.pods.values().filter(|p| p.is_available()).count();
            assert!(serving >= 2, "{serving} serve ({plans}, {written})");
        }
        world.settle();
        assert_eq!(world.images(), ["app:1"; 2]);
    }
}

#[test]
fn updates_that_wait_beyond_the_bound_are_called_back() {
    // Either the bound is lowered while all Pods wait, or Pods that were down when their update began serve again.
    for lowered in [true, false] {
        let most = if lowered { 5 } else { 1 };
        let mut world = World::on_plane(5, json!({ "updateStrategy": { "maxUnavailable": most } }));
        world.settle();
        world.faults.holds = true;
        let ready = |world: &mut World, ready: &str| {
            for pod in world.pods.values_mut().take(4) {
                for condition in &mut pod.status.conditions {
                    if condition.type_ == "Ready" {
                        condition.status = ready.to_owned();
                    }
                }
            }
        };
        if !lowered {
            ready(&mut world, "False");
        }
        world.image("app:2");
        world.run_plan();
        if !lowered {
            ready(&mut world, "True");
        }
        world.edit(json!({ "updateStrategy": { "maxUnavailable": 1 } }));
        for round in 0..60 {
            world.run_plan();
            world.run_pods(u8::MAX);
            world.faults.holds = round < 10;
            let serving = world.pods.values().filter(|p| p.is_available()).count();
            assert!(serving >= 4, "{serving} serve ({lowered})");
        }
        world.settle();
        assert_eq!(world.images(), ["app:2"; 5]);
    }
}

#[test]
fn fix_for_unpullable_image_is_retried_after_refusal() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    world.settle();
    world.faults.refused.insert(WriteKind::PodChange);
    world.image("app:3");
    world.settle();
    world.faults.refused.clear();
    world.advance_time(100);
    world.settle();
    assert_eq!(world.images(), ["app:3"]);
}

#[test]
fn pod_whose_change_is_refused_takes_no_place_from_another() {
    let mut world = settled(3, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    let first = world.pods.values().next().unwrap().metadata.uid.clone();
    world.faults.unchangeable.insert(first.clone());
    world.image("app:2");
    world.settle();
    for pod in world.pods.values() {
        let image = &pod.spec.containers[0].image;
        assert_eq!(image == "app:1", pod.metadata.uid == first, "{pod:?}");
        assert!(pod.is_available());
    }
    world.faults.unchangeable.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn other_pods_update_at_once_after_first_creation() {
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    let mut world = settled(4, recreate);
    world.image("app:2");
    let mut most = 0;
    for _ in 0..20 {
        world.run_plan();
        most = most.max(4 - world.ids().len());
        world.step_surroundings();
    }
    assert_eq!((most, world.images()), (3, vec!["app:2"; 4]));
}

/// Runs an update, and returns the largest value of `count` at any time.
fn most(world: &mut World, count: impl Fn(&World) -> usize) -> usize {
    let mut most = 0;
    for _ in 0..60 {
        world.run_plan();
        most = most.max(count(world));
        world.step_surroundings();
    }
    most
}

#[test]
fn update_keeps_to_max_unavailable() {
    for policy in ["Recreate", "InPlaceIfPossible"] {
        for (bound, want) in [(json!(2), 2), (json!("50%"), 2), (json!("10%"), 1)] {
            let mut world = settled(
                5,
                json!({ "updateStrategy": { "podUpgradePolicy": policy, "maxUnavailable": bound } }),
            );
            world.image("app:2");
            let operating = Family::Operating.key("collaset");
            let off = |world: &World| {
                let serving = world
                    .pods
                    .values()
                    .filter(|p| p.is_available() && p.label(&operating).is_none());
                5 - serving.count()
            };
            assert_eq!(most(&mut world, off), want, "{policy} {bound}");
            world.settle();
            assert_eq!(world.images(), ["app:2"; 5]);
        }
    }
}

#[test]
fn pod_that_is_down_is_updated_beyond_max_unavailable() {
    let mut world = settled(3, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    let down: Vec<String> = world.pods.keys().take(2).cloned().collect();
    for name in &down {
        let pod = world.pods.get_mut(name).unwrap();
        pod.status.conditions.clear();
        pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    }
    world.image("app:2");
    world.run_until_idle();
    let operating = Family::Operating.key("collaset");
    let is_updating = |name: &String| world.pods[name].label(&operating).is_some();
    assert!(down.iter().all(is_updating));
    assert_eq!(
        world.pods.keys().filter(|name| is_updating(name)).count(),
        2
    );
}

#[test]
fn update_keeps_to_max_surge_pairs() {
    for (bound, want) in [(json!(2), 7), (json!("30%"), 7), (json!("1%"), 6)] {
        let mut world = settled(
            5,
            json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "maxSurge": bound } }),
        );
        world.image("app:2");
        let alive = |world: &World| world.members().len();
        assert_eq!(most(&mut world, alive), want, "{bound}");
        world.settle();
        assert_eq!(world.images(), ["app:2"; 5]);
    }
}

#[test]
fn partition_in_percent_is_rounded_up() {
    let by = json!({ "byPartition": { "partitionPercent": 50 } });
    let mut world = settled(5, json!({ "updateStrategy": { "rollingUpdate": by } }));
    world.image("app:2");
    world.settle();
    let old = world.images().into_iter().filter(|i| *i == "app:1");
    assert_eq!(old.count(), 3);
}

#[test]
fn set_continues_with_existing_revision_if_new_one_is_missing() {
    let mut world = settled(3, json!({}));
    let before = uids(&world);
    world.refused.revision = Some("quota".into());
    world.image("app:2");
    let first = world.pods.keys().next().unwrap().clone();
    world.delete(&first);
    world.edit(json!({ "replicas": 4 }));
    world.settle();
    assert_eq!(world.images(), ["app:1"; 4]);
    assert_eq!(before.intersection(&uids(&world)).count(), 2);
    let status = world.set.status.clone().unwrap();
    let update = status.conditions.iter().find(|c| c.type_ == "Update");
    let update = update.unwrap();
    assert_eq!((&*update.status, &*update.message), ("False", "quota"));
    world.refused.revision = None;
    world.settle();
    assert_eq!(world.images(), ["app:2"; 4]);
}

#[test]
fn partition_keeps_pods_on_old_revision() {
    let mut world = settled(4, json!({}));
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } }),
    );
    world.image("app:2");
    world.settle();
    let updated = |world: &World| world.images().iter().filter(|i| **i == "app:2").count();
    assert_eq!(updated(&world), 1);
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 1 } } } }),
    );
    world.settle();
    assert_eq!(updated(&world), 3);
    let status = world.set.status.clone().unwrap();
    assert_ne!(status.current_revision, status.updated_revision);
    // A Pod that is deleted comes back with its old revision.
    let (old, _) = world
        .members()
        .into_iter()
        .find(|(_, p)| p.spec.containers[0].image == "app:1")
        .unwrap();
    let name = world.members()[&old].metadata.name.clone();
    world.delete(&name);
    world.settle();
    assert_eq!(world.members()[&old].spec.containers[0].image, "app:1");
}

#[test]
fn leaving_the_partition_cancels_what_has_not_been_done() {
    let mut world = settled(3, json!({}));
    world.image("app:2");
    world.run_plan();
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } }),
    );
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    assert_eq!(world.set.status.clone().unwrap().operating_replicas, 0);
}

#[test]
fn by_label_updates_the_labelled_and_takes_the_label_off() {
    let mut world = settled(
        3,
        json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } }),
    );
    world.image("app:2");
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    let name = world.members()[&2].metadata.name.clone();
    let pod = world.pods.get_mut(&name).unwrap();
    pod.metadata
        .labels
        .insert(keys::UPDATE_INCLUDED.into(), "1".into());
    world.settle();
    assert_eq!(world.images(), ["app:1", "app:1", "app:2"]);
    assert_eq!(world.pods[&name].label(keys::UPDATE_INCLUDED), None);
}

#[test]
fn labelled_pod_of_older_revision_counts_as_behind() {
    let mut world = settled(2, json!({}));
    world.image("app:2");
    world.settle();
    let by_label = json!({ "rollingUpdate": { "byLabel": {} } });
    world.edit(json!({ "replicas": 3, "updateStrategy": by_label }));
    world.settle();
    world.image("app:3");
    world.settle();
    let ready = |world: &World| {
        let status = world.set.status.clone().unwrap();
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        ready.unwrap().reason.clone()
    };
    let label = |world: &mut World, id: i64| {
        let name = world.members()[&id].metadata.name.clone();
        let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
        labels.insert(keys::UPDATE_INCLUDED.into(), "1".into());
    };
    label(&mut world, 0);
    world.settle();
    assert_eq!(ready(&world), "AsWanted");
    // A second Pod gets the label, while the updated Pod has lost it.
    label(&mut world, 1);
    world.run_plan();
    assert_eq!(ready(&world), "Updating");
}

#[test]
fn replace_update_never_has_fewer_pods() {
    let mut world = settled(
        2,
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    world.image("app:2");
    for _ in 0..30 {
        world.run_plan();
        world.step_surroundings();
        assert!(world.members().len() >= 2);
    }
    world.settle();
    assert_eq!(world.images(), ["app:2"; 2]);
}

#[test]
fn replace_that_is_cancelled_leaves_origin() {
    for wait in 0..4 {
        let mut world = settled(1, json!({}));
        let name = world.members()[&0].metadata.name.clone();
        let label = |world: &mut World, value: Option<&str>| {
            let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
            match value {
                Some(value) => labels.insert(keys::TO_REPLACE.into(), value.into()),
                None => labels.remove(keys::TO_REPLACE),
            };
        };
        label(&mut world, Some("1"));
        for _ in 0..wait {
            world.run_plan();
        }
        label(&mut world, None);
        world.settle();
        assert_eq!(
            world.pods.keys().collect::<Vec<_>>(),
            [&name],
            "after {wait} steps"
        );
    }
}

#[test]
fn named_pods_are_scaled_in_first() {
    let mut world = settled(3, json!({}));
    let name = world.members()[&1].metadata.name.clone();
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToDelete": [name] } }));
    world.settle();
    assert_eq!(world.ids(), [0, 2]);
}

#[test]
fn scale_in_that_is_no_longer_wanted_is_undone() {
    let mut world = settled(3, json!({}));
    let before = uids(&world);
    world.edit(json!({ "replicas": 1 }));
    world.run_plan();
    assert_eq!(world.set.status.clone().unwrap().operating_replicas, 0);
    world.edit(json!({ "replicas": 3 }));
    world.settle();
    assert_eq!(uids(&world), before);
    let announcement = keys::PREPARING_TO_DELETE;
    assert!(world.pods.values().all(|p| p.label(announcement).is_none()));
}

#[test]
fn name_in_pod_to_delete_is_deleted_once() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    let before = uids(&world);
    world.edit(json!({ "scaleStrategy": { "podToDelete": ["web-1"] } }));
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
    assert_eq!(uids(&world).intersection(&before).count(), 1);
}

#[test]
fn excluded_pod_lives_on_and_can_be_included_again() {
    let mut world = settled(2, json!({}));
    let name = world.members()[&0].metadata.name.clone();
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    let pod = &world.pods[&name];
    assert!(pod.controller().is_none() && pod.label(keys::ORPHANED) == Some("true"));
    assert_eq!(world.ids(), [1]);
    world.edit(
        json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [], "podToInclude": [name] } }),
    );
    world.settle();
    assert!(world.pods[&name].controller().is_some());
    assert_eq!(world.ids(), [0, 1]);
}

#[test]
fn included_pod_brings_only_its_own_pvcs() {
    let spec = json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] });
    let mut world = settled(1, spec);
    let mut excluded = Vec::new();
    for _ in 0..2 {
        let pod = world.members()[&0];
        let (name, pvc_names) = (pod.metadata.name.clone(), pod.spec.pvcs.clone());
        assert_eq!(pvc_names.len(), 1);
        excluded.push((name, pvc_names[0].clone()));
        let names: Vec<_> = excluded.iter().map(|(name, _)| name).collect();
        world.edit(json!({ "scaleStrategy": { "podToExclude": names } }));
        world.settle();
    }
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [], "podToInclude": [excluded[0].0] } }));
    world.settle();
    assert_eq!(world.members()[&1].metadata.name, excluded[0].0);
    let (back, away) = (&world.pvcs[&excluded[0].1], &world.pvcs[&excluded[1].1]);
    assert_eq!(back.labels[keys::INSTANCE_ID], "1");
    assert!(back.controller.is_some() && !back.labels.contains_key(keys::ORPHANED));
    assert!(away.controller.is_none() && away.labels.contains_key(keys::ORPHANED));
    assert_eq!(world.pvcs.len(), 3);
}

#[test]
fn failed_pod_is_deleted_and_made_again() {
    let mut world = settled(2, json!({}));
    let name = world.members()[&0].metadata.name.clone();
    world.pods.get_mut(&name).unwrap().status.phase = "Failed".into();
    world.settle();
    assert!(!world.pods.contains_key(&name));
    assert_eq!(world.ids(), [0, 1]);
}

#[test]
fn pvcs_come_before_their_pod_and_go_with_its_id() {
    let mut world = settled(2, one_pvc_template());
    assert_eq!(world.pvcs.len(), 2);
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    assert_eq!(world.pvcs.len(), 1);
    world.edit(json!({ "replicas": 0, "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Retain" } } }));
    world.settle();
    assert_eq!(world.pvcs.len(), 1);
    let before = world.pvcs.clone();
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    assert_eq!(world.pvcs, before, "the one that was kept is used again");
}

#[test]
fn paused_set_changes_nothing_but_makes_lost_pods_again() {
    let mut world = settled(2, json!({}));
    world.edit(json!({ "paused": true, "replicas": 3 }));
    world.image("app:2");
    world.settle();
    assert_eq!(world.images(), ["app:1"; 2]);
    let name = world.members()[&0].metadata.name.clone();
    world.delete(&name);
    world.settle();
    assert_eq!(world.images(), ["app:1"; 2]);
    world.edit(json!({ "paused": false }));
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
}

#[test]
fn early_rollback_undoes_operations_without_new_revision() {
    let mut world = settled(3, json!({}));
    world.image("app:2");
    world.run_plan();
    world.image("app:1");
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    assert_eq!(world.revisions.len(), 2);
    let status = world.set.status.clone().unwrap();
    assert_eq!(status.current_revision, status.updated_revision);
}

#[test]
fn deletion_of_set_deletes_pods_and_orphaning_keeps_them() {
    let mut world = settled(3, json!({}));
    let deleted_at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(deleted_at);
    let mut orphaning = world.clone();
    world.settle();
    assert!(world.is_deleted && world.pods.is_empty() && world.pool.is_none());
    orphaning
        .set
        .metadata
        .finalizers
        .as_mut()
        .unwrap()
        .push("orphan".into());
    orphaning.settle();
    assert!(orphaning.is_deleted);
    assert!(
        orphaning
            .pods
            .values()
            .all(|p| p.label(keys::TO_DELETE).is_none())
    );
}

#[test]
fn deleted_set_keeps_pvcs_retained_on_deletion() {
    for (deleted, remaining) in [("Retain", 2), ("Delete", 0)] {
        let policy = json!({ "whenScaled": "Retain", "whenDeleted": deleted });
        let mut world = settled(
            2,
            json!({
                "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
                "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": policy },
            }),
        );
        world.edit(json!({ "replicas": 1 }));
        world.settle();
        assert_eq!(world.pvcs.len(), 2);
        let deleted_at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        world.set.metadata.deletion_timestamp = Some(deleted_at);
        world.settle();
        assert!(world.is_deleted && world.pvcs.len() == remaining);
        assert!(world.pvcs.values().all(|c| c.controller.is_none()));
    }
}

#[test]
fn operation_delay_is_awaited() {
    let mut world = settled(
        1,
        json!({ "updateStrategy": { "operationDelaySeconds": 3600 } }),
    );
    world.image("app:2");
    for _ in 0..5 {
        world.run_plan();
        world.step_surroundings();
    }
    assert_eq!(world.images(), ["app:1"]);
    let again = crate::domain::collaset::planner::plan_set(&world.observe())
        .requeue_after_nanos
        .unwrap();
    assert!(
        again > 3_000_000_000_000 && again < 3_600_000_000_001,
        "{again}"
    );
}

#[test]
fn cancelled_replacement_keeps_origin_with_persistent_names() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(1, naming);
    let labels = |world: &mut World| world.pods.get_mut("web-0").unwrap().metadata.labels.clone();
    let before = labels(&mut world);
    world
        .pods
        .get_mut("web-0")
        .unwrap()
        .metadata
        .labels
        .insert(keys::TO_REPLACE.into(), "1".into());
    world.run_plan();
    assert_eq!(world.ids(), [0, 1]);
    world
        .pods
        .get_mut("web-0")
        .unwrap()
        .metadata
        .labels
        .remove(keys::TO_REPLACE);
    world.settle();
    assert_eq!(world.ids(), [0]);
    assert_eq!(labels(&mut world), before);
}

#[test]
fn pod_outside_selector_is_released_with_its_pvcs() {
    let mut world = settled(2, one_pvc_template());
    let name = world.members()[&1].metadata.name.clone();
    let pod = world.pods.get_mut(&name).unwrap();
    pod.metadata.labels.insert("app".into(), "debug".into());
    world.settle();
    assert!(world.pods[&name].controller().is_none());
    assert_eq!(world.ids(), [0, 1]);
    assert_eq!(world.pvcs.len(), 3);
    let released: Vec<_> = world
        .pvcs
        .values()
        .filter(|c| c.controller.is_none())
        .collect();
    assert!(released.len() == 1 && released[0].labels.contains_key(keys::ORPHANED));
}

#[test]
fn deletion_is_requested_once() {
    let mut world = settled(2, json!({}));
    let name = world.members()[&0].metadata.name.clone();
    let other = world.members()[&1].metadata.name.clone();
    let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
    labels.insert(keys::TO_REPLACE.into(), "1".into());
    world.run_until_idle();
    world.step_surroundings();
    world.run_until_idle();
    let requested_at = world.pods[&name].label(keys::TO_DELETE).map(str::to_owned);
    assert!(requested_at.is_some(), "its successor serves");
    world.edit(json!({ "scaleStrategy": { "podToDelete": [other] } }));
    world.run_until_idle();
    assert!(world.pods[&other].label(keys::TO_DELETE).is_some());
    assert_eq!(
        world.pods[&name].label(keys::TO_DELETE),
        requested_at.as_deref()
    );
}

#[test]
fn ending_pod_during_scale_in_to_zero_lets_plan_rest() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(3, naming);
    world.edit(json!({ "replicas": 1 }));
    world.run_plan();
    world.delete("web-0");
    world.run_plan();
    world.image("app:2");
    world.edit(json!({ "replicas": 0 }));
    world.run_until_idle();
    world.settle();
    assert_eq!(world.ids(), [0; 0]);
}

pub fn condition(world: &World, type_: &str) -> (String, String, String) {
    let status = world.set.status.clone().unwrap();
    let all = status.conditions.into_iter();
    let mut found = all.filter(|c| c.type_ == type_);
    let found = found.next().unwrap();
    (found.status, found.reason, found.message)
}

fn reads(world: &World, type_: &str, status: &str, reason: &str) {
    let (is, actual_reason, message) = condition(world, type_);
    assert_eq!(
        (&*is, &*actual_reason),
        (status, reason),
        "{type_}: {message}"
    );
}

#[test]
fn scale_in_that_pause_meets_is_undone() {
    let mut world = settled(
        3,
        json!({ "scaleStrategy": { "operationDelaySeconds": 3600 } }),
    );
    let before = uids(&world);
    world.edit(json!({ "replicas": 2 }));
    for _ in 0..5 {
        world.run_plan();
        world.step_surroundings();
    }
    let operate = Family::Operate.key("collaset");
    let is_any_off_traffic =
        |world: &World| world.pods.values().any(|p| p.label(&operate).is_some());
    assert!(is_any_off_traffic(&world));
    world.edit(json!({ "paused": true }));
    world.settle();
    assert!(!is_any_off_traffic(&world) && world.pods.values().all(|p| p.is_available()));
    world.edit(json!({ "replicas": 3, "paused": false }));
    world.settle();
    assert_eq!(uids(&world), before);
}

#[test]
fn paused_set_that_differs_from_spec_is_not_ready() {
    let mut world = settled(3, json!({}));
    world.edit(json!({ "paused": true, "replicas": 10 }));
    world.settle();
    assert_eq!(world.ids().len(), 3);
    for type_ in ["Ready", "Scale"] {
        reads(&world, type_, "False", "Paused");
        let (_, _, message) = condition(&world, type_);
        assert!(
            message.starts_with("7 Pods to create, 0 to delete"),
            "{message}"
        );
    }
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    reads(&world, "Scale", "False", "Paused");
    world.edit(json!({ "replicas": 3 }));
    world.image("app:2");
    world.settle();
    reads(&world, "Scale", "True", "Scaled");
    reads(&world, "Update", "False", "Paused");
    reads(&world, "Ready", "False", "Paused");
    world.edit(json!({ "paused": false }));
    world.settle();
    reads(&world, "Ready", "True", "AsWanted");
}

#[test]
fn scale_out_under_partition_restarts_no_pod() {
    let by = |n: i32| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": n } } } });
    let mut world = settled(10, by(8));
    world.image("app:2");
    world.settle();
    let before = uids(&world);
    let runs = |world: &World, image: &str| world.images().iter().filter(|i| **i == image).count();
    assert_eq!(runs(&world, "app:2"), 2);
    let old: Vec<String> = world
        .pods
        .iter()
        .filter(|(_, p)| p.spec.containers[0].image == "app:1")
        .map(|(name, _)| name.clone())
        .collect();
    world.edit(json!({ "replicas": 15 }));
    world.settle();
    assert_eq!((runs(&world, "app:1"), runs(&world, "app:2")), (8, 7));
    assert!(before.is_subset(&uids(&world)));
    assert!(
        old.iter()
            .all(|name| world.pods[name].spec.containers[0].image == "app:1")
    );
    world.edit(json!({ "replicas": 10 }));
    world.settle();
    assert!(runs(&world, "app:2") >= 2);
    let by_label =
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": null, "byLabel": {} } } });
    let mut world = settled(2, by_label);
    world.image("app:2");
    world.edit(json!({ "replicas": 3 }));
    world.settle();
    assert_eq!(
        world.images(),
        ["app:1"; 3],
        "by label the new ones are of the current revision"
    );
}

#[test]
fn updated_pod_loses_its_update_label() {
    let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
    let mut world = settled(2, by_label);
    let name = world.pods.keys().next().unwrap().clone();
    let include = |world: &mut World| {
        let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
        labels.insert(keys::UPDATE_INCLUDED.into(), "1".into());
        world.settle();
    };
    include(&mut world);
    let label = |world: &World| world.pods[&name].label(keys::UPDATE_INCLUDED).is_some();
    assert!(label(&world), "at rest it is a choice for the next rollout");
    world.image("app:2");
    world.settle();
    assert_eq!(world.images(), ["app:2", "app:1"]);
    include(&mut world);
    assert!(!label(&world));
    world.image("app:3");
    world.settle();
    assert_eq!(world.images(), ["app:2", "app:1"]);
    // The template is rolled back before the update has changed anything.
    let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
    labels.insert(keys::UPDATE_INCLUDED.into(), "1".into());
    world.run_until_idle();
    world.image("app:2");
    world.settle();
    assert!(!label(&world));
}

#[test]
fn new_halves_do_not_count_as_surplus() {
    let mut world = settled(
        4,
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    world.image("app:2");
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..30 {
        world.run_plan();
        let (_, reason, message) = condition(&world, "Ready");
        assert_ne!(reason, "Scaling", "{message}");
        reasons.insert(reason);
        world.step_surroundings();
    }
    assert!(
        reasons.contains("Updating") && reasons.contains("AsWanted"),
        "{reasons:?}"
    );
    let name = world.pods.keys().next().unwrap().clone();
    let pod = world.pods.get_mut(&name).unwrap();
    pod.metadata
        .labels
        .insert(keys::TO_REPLACE.into(), "1".into());
    world.run_until_idle();
    reads(&world, "Ready", "False", "Replacing");
}

#[test]
fn failing_pod_is_recreated_later_but_surplus_pod_is_not() {
    let mut world = settled(2, json!({}));
    let fail = |world: &mut World| {
        let name = world.pods.keys().next().unwrap().clone();
        let until = world.tick() + 60_000_000_000;
        let pod = world.pods.get_mut(&name).unwrap();
        pod.status.phase = "Failed".into();
        pod.status.conditions.clear();
        world.ended_until.insert(pod.metadata.uid.clone(), until);
        name
    };
    let name = fail(&mut world);
    world.run_until_idle();
    assert!(world.pods.contains_key(&name) && world.pods.len() == 2);
    reads(&world, "Ready", "False", "Scaling");
    let (_, _, message) = condition(&world, "Ready");
    let expected = format!("; Pod {name} is Failed and is recreated at 2023-");
    assert!(message.contains(&expected), "{message}");
    for _ in 0..60 {
        world.tick();
    }
    world.settle();
    assert!(!world.pods.contains_key(&name) && world.members().len() == 2);
    let name = fail(&mut world);
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    assert!(!world.pods.contains_key(&name) && world.members().len() == 1);
}

#[test]
fn stuck_rollout_names_rule_pod_and_reason() {
    let mut world = settled(2, json!({}));
    world.image("app:2");
    world.run_until_idle();
    let first = world.pods.values().next().unwrap();
    let pre_check = Family::PreCheck.key("collaset");
    let (name, uid) = (first.metadata.name.clone(), first.metadata.uid.clone());
    for pod in world.pods.values_mut() {
        pod.metadata.labels.insert(pre_check.clone(), "1".into());
    }
    let rule = "rule a of PodTransitionRule budget: at most 1 of 10 Pods may be unavailable";
    world.held.insert(uid, vec![rule.into()]);
    world.run_plan();
    let (_, reason, message) = condition(&world, "Ready");
    let prefix =
        format!("2 Pods to update, 0 under way, 2 wait; Pod {name} waits for {rule}; Pod ");
    assert!(
        reason == "Updating" && message.starts_with(&prefix),
        "{message}"
    );

    let mut world = settled(2, json!({}));
    let name = world.pods.keys().next().unwrap().clone();
    let down = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available",
    }]);
    world.pods.get_mut(&name).unwrap().status.conditions = serde_json::from_value(down).unwrap();
    world.run_plan();
    let (_, reason, message) = condition(&world, "Ready");
    let expected = format!(
        "1 Pod is not available; Pod {name} has no node: Unschedulable: 0/3 nodes are available"
    );
    assert_eq!((&*reason, message), ("Unavailable", expected));
}

#[test]
fn unknown_pod_names_are_reported_for_new_spec() {
    let mut world = settled(1, json!({}));
    world.edit(
        json!({ "scaleStrategy": { "podToDelete": ["gone"], "podToInclude": ["stranger"] } }),
    );
    let planned_events = |world: &World| {
        let events = crate::domain::collaset::planner::plan_set(&world.observe()).events;
        let events = events.into_iter().map(|e| (e.reason, e.message));
        events.collect::<Vec<_>>()
    };
    let events = planned_events(&world);
    assert_eq!(events[0].0, "DeleteNotAllowed");
    assert!(events[0].1.starts_with("podToDelete: gone: "), "{events:?}");
    assert_eq!(events[1].0, "IncludeNotAllowed");
    assert!(
        events[1].1.starts_with("podToInclude: stranger: "),
        "{events:?}"
    );
    world.settle();
    assert_eq!(planned_events(&world), []);
}

#[test]
fn new_half_replaces_origin_on_manual_label() {
    let mut world = settled(2, json!({}));
    let name = world.pods.keys().next().unwrap().clone();
    let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
    labels.insert(keys::TO_REPLACE.into(), "1".into());
    world.run_until_idle(); // no kubelet: the new Pod does not become Ready
    let mut pods = world.pods.values();
    let half = pods.find(|pod| pod.label(keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&name));
    let new = half.unwrap().metadata.name.clone();
    let note = |world: &mut World, origin: &str| {
        let annotations = &mut world.pods.get_mut(&new).unwrap().metadata.annotations;
        annotations.insert(keys::REPLACES.into(), origin.into());
        world.run_until_idle();
    };
    note(&mut world, "another");
    assert_eq!(world.pods[&name].label(keys::TO_DELETE), None);
    note(&mut world, &name);
    assert!(world.pods[&name].label(keys::TO_DELETE).is_some());
    world.settle();
    assert!(world.pods.contains_key(&new) && !world.pods.contains_key(&name));
    assert_eq!(world.pods[&new].annotation(keys::REPLACES), None);
}

#[test]
fn cheapest_pod_leaves_first_and_highest_priority_updates_first() {
    let strategy =
        json!({ "rollingUpdate": { "byPartition": { "partition": 2 }, "priorityLabel": "order" } });
    let mut world = settled(3, json!({ "updateStrategy": strategy }));
    let names: Vec<String> = world.pods.keys().cloned().collect();
    for (name, order) in names.iter().zip(["5", "7", "6"]) {
        let metadata = &mut world.pods.get_mut(name).unwrap().metadata;
        metadata.labels.insert("order".into(), order.into());
        let cost = order.to_owned();
        metadata
            .annotations
            .insert(keys::DELETION_COST.into(), cost);
    }
    world.image("app:2");
    world.settle();
    let updated = |name: &String| world.pods[name].spec.containers[0].image == "app:2";
    assert_eq!(
        names.iter().map(updated).collect::<Vec<_>>(),
        [false, true, false]
    );
    world.edit(json!({ "replicas": 2 }));
    world.settle();
    assert!(!world.pods.contains_key(&names[0]));
}

#[test]
fn set_deletion_names_blockers_needing_action_first() {
    let mut world = settled(5, json!({}));
    let now = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(now);
    let names: Vec<String> = world.pods.keys().cloned().collect();
    for (index, name) in names.iter().enumerate() {
        let pod = world.pods.get_mut(name).unwrap();
        let phase = if index == 3 {
            Family::PreCheck
        } else {
            Family::Preparing
        };
        for (family, value) in [
            (Family::Operating, "1"),
            (Family::OperationType, "delete"),
            (phase, "1"),
        ] {
            let key = family.key("pod-delete");
            pod.metadata.labels.insert(key, value.into());
        }
    }
    let traffic = "prot.podopslifecycle.kusionstack.io/traffic";
    let finalizers = ["example.com/other", traffic].map(str::to_owned);
    let of = |index: usize| names[index].as_str();
    let pods = &mut world.pods;
    pods.get_mut(of(4)).unwrap().metadata.finalizers = finalizers.into();
    pods.get_mut(of(0)).unwrap().metadata.deletion_timestamp = Some("now".into());
    world.run_plan();
    let status = world.set.status.clone().unwrap();
    let terminating = status.conditions.iter().find(|c| c.type_ == "Terminating");
    let expected = format!(
        "5 Pods left; Pod {} waits to be let off traffic; Pod {} waits until finalizer {traffic} is removed; Pod {} waits to be \
         off traffic",
        of(3),
        of(4),
        of(1)
    );
    assert_eq!(terminating.unwrap().message, expected);
}

#[test]
fn included_pod_of_unknown_revision_is_recreated_like_an_update() {
    for partition in [0, 2] {
        let rolling = json!({ "byPartition": { "partition": partition } });
        let mut world = settled(1, json!({ "updateStrategy": { "rollingUpdate": rolling } }));
        let mut stranger = world.pods.values().next().unwrap().clone();
        stranger.metadata.name = "stranger".into();
        stranger.metadata.uid = "stranger".into();
        stranger.metadata.owner_references.clear();
        for key in [keys::REVISION, keys::INSTANCE_ID] {
            stranger.metadata.labels.remove(key);
        }
        world.pods.insert("stranger".into(), stranger);
        world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": ["stranger"] } }));
        world.settle();
        assert_eq!(world.pods.contains_key("stranger"), partition > 0);
        let expected = "Pod stranger is included under instance ID 1; its revision is not known, so it is recreated, \
            as in an update, as soon as updateStrategy includes it";
        let included = world.events.iter().any(|(_, message)| message == expected);
        assert!(included, "{:?}", world.events);
    }
}
