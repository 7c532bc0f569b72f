//! What each strategy does, one case each.

use std::collections::BTreeSet;

use serde_json::json;

use super::world::World;
use crate::api::keys;

pub fn settled(replicas: i32, spec: serde_json::Value) -> World {
    let mut world = World::new(replicas, spec);
    world.settle();
    world
}

/// A spec with one claim template.
pub fn one_claim() -> serde_json::Value {
    json!({ "volumeClaimTemplates": [{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }] })
}

fn uids(world: &World) -> BTreeSet<String> {
    world
        .pods
        .values()
        .map(|p| p.metadata.uid.clone())
        .collect()
}

#[test]
fn a_new_set_gets_its_pods_and_then_rests() {
    let mut world = settled(3, json!({}));
    assert_eq!(world.ids(), [0, 1, 2]);
    assert!(!world.step(), "a plan of a settled set is empty");
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.replicas, status.available_replicas), (3, 3));
    assert_eq!(status.current_revision, status.updated_revision);
    assert_eq!(status.label_selector, "app=web");
}

#[test]
fn a_pod_that_dies_is_made_again_under_its_id() {
    let mut world = settled(3, json!({}));
    let victim = world.members()[&1].metadata.name.clone();
    world.delete(&victim);
    world.step();
    assert_eq!(world.ids(), [0, 1, 2], "before the old one is gone");
    assert!(world.members()[&1].label(keys::COMPLETING).is_some());
    world.settle();
    assert!(!world.pods.contains_key(&victim));
}

#[test]
fn a_name_that_persists_waits_for_the_old_pod_to_be_gone() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    world.delete("web-1");
    world.step();
    assert_eq!(world.ids(), [0]);
    world.settle();
    assert_eq!(world.pods.keys().collect::<Vec<_>>(), ["web-0", "web-1"]);
}

#[test]
fn it_is_said_which_pod_holds_a_name() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    world.delete("web-1");
    world.step();
    let status = world.set.status.clone().unwrap();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    let message = "1 Pods missing, 0 to go; waiting for web-1 to end";
    assert_eq!(ready.unwrap().message, message);
}

#[test]
fn an_image_changes_in_place() {
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
    world.step();
    let operating = keys::Family::Operating.key("collaset");
    assert!(world.pods.values().all(|p| p.label(&operating).is_some()));
}

#[test]
fn what_cannot_change_in_place_is_made_again_under_its_id() {
    let mut world = settled(2, json!({}));
    let before = uids(&world);
    world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
    assert!(uids(&world).is_disjoint(&before));
}

#[test]
fn a_partition_keeps_pods_on_the_old_revision() {
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
    // The one that dies comes back as it was.
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
    world.step();
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
fn a_labelled_pod_of_an_older_revision_is_behind_whatever_the_others_are() {
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
    // Another is of the updated revision and carries no label.
    label(&mut world, 1);
    world.step();
    assert_eq!(ready(&world), "Updating");
}

#[test]
fn a_replace_update_never_has_fewer_pods() {
    let mut world = settled(
        2,
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    world.image("app:2");
    for _ in 0..30 {
        world.step();
        world.surroundings();
        assert!(world.members().len() >= 2);
    }
    world.settle();
    assert_eq!(world.images(), ["app:2"; 2]);
}

#[test]
fn a_replace_that_is_cancelled_leaves_the_origin() {
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
            world.step();
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
fn the_named_pods_are_scaled_in_first() {
    let mut world = settled(3, json!({}));
    let name = world.members()[&1].metadata.name.clone();
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToDelete": [name] } }));
    world.settle();
    assert_eq!(world.ids(), [0, 2]);
}

#[test]
fn a_scale_in_that_is_no_longer_wanted_is_undone() {
    let mut world = settled(3, json!({}));
    let before = uids(&world);
    world.edit(json!({ "replicas": 1 }));
    world.step();
    assert_eq!(world.set.status.clone().unwrap().operating_replicas, 0);
    world.edit(json!({ "replicas": 3 }));
    world.settle();
    assert_eq!(uids(&world), before);
    let gone = keys::PREPARING_TO_DELETE;
    assert!(world.pods.values().all(|p| p.label(gone).is_none()));
}

#[test]
fn a_name_in_pod_to_delete_is_deleted_once() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    let before = uids(&world);
    world.edit(json!({ "scaleStrategy": { "podToDelete": ["web-1"] } }));
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
    assert_eq!(uids(&world).intersection(&before).count(), 1);
}

#[test]
fn an_excluded_pod_lives_on_and_can_be_included_again() {
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
fn an_included_pod_brings_its_own_claims_and_no_others() {
    let claims = json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] });
    let mut world = settled(1, claims);
    let mut left = Vec::new();
    for _ in 0..2 {
        let pod = world.members()[&0];
        let (name, claims) = (pod.metadata.name.clone(), pod.spec.claims.clone());
        assert_eq!(claims.len(), 1);
        left.push((name, claims[0].clone()));
        let names: Vec<_> = left.iter().map(|(name, _)| name).collect();
        world.edit(json!({ "scaleStrategy": { "podToExclude": names } }));
        world.settle();
    }
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [], "podToInclude": [left[0].0] } }));
    world.settle();
    assert_eq!(world.members()[&1].metadata.name, left[0].0);
    let (back, away) = (&world.claims[&left[0].1], &world.claims[&left[1].1]);
    assert_eq!(back.labels[keys::INSTANCE_ID], "1");
    assert!(back.controller.is_some() && !back.labels.contains_key(keys::ORPHANED));
    assert!(away.controller.is_none() && away.labels.contains_key(keys::ORPHANED));
    assert_eq!(world.claims.len(), 3);
}

#[test]
fn a_failed_pod_is_cleaned_away_and_made_again() {
    let mut world = settled(2, json!({}));
    let name = world.members()[&0].metadata.name.clone();
    world.pods.get_mut(&name).unwrap().status.phase = "Failed".into();
    world.settle();
    assert!(!world.pods.contains_key(&name));
    assert_eq!(world.ids(), [0, 1]);
}

#[test]
fn claims_come_before_their_pod_and_go_with_its_id() {
    let mut world = settled(2, one_claim());
    assert_eq!(world.claims.len(), 2);
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    assert_eq!(world.claims.len(), 1);
    world.edit(json!({ "replicas": 0, "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Retain" } } }));
    world.settle();
    assert_eq!(world.claims.len(), 1);
    let kept = world.claims.clone();
    world.edit(json!({ "replicas": 1 }));
    world.settle();
    assert_eq!(world.claims, kept, "the one that was kept is used again");
}

#[test]
fn a_paused_set_changes_nothing_but_makes_lost_pods_again() {
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
fn rolling_back_before_anything_is_done_undoes_and_makes_no_new_revision() {
    let mut world = settled(3, json!({}));
    world.image("app:2");
    world.step();
    world.image("app:1");
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    assert_eq!(world.revisions.len(), 2);
    let status = world.set.status.clone().unwrap();
    assert_eq!(status.current_revision, status.updated_revision);
}

#[test]
fn a_deleted_set_takes_its_pods_along_and_orphaning_leaves_them() {
    let mut world = settled(3, json!({}));
    let gone = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(gone);
    let mut orphaning = world.clone();
    world.settle();
    assert!(world.gone && world.pods.is_empty() && world.pool.is_none());
    orphaning
        .set
        .metadata
        .finalizers
        .as_mut()
        .unwrap()
        .push("orphan".into());
    orphaning.settle();
    assert!(orphaning.gone);
    assert!(
        orphaning
            .pods
            .values()
            .all(|p| p.label(keys::TO_DELETE).is_none())
    );
}

#[test]
fn a_deleted_set_keeps_the_claims_that_are_retained_for_that_case() {
    for (deleted, left) in [("Retain", 2), ("Delete", 0)] {
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
        assert_eq!(world.claims.len(), 2);
        let gone = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        world.set.metadata.deletion_timestamp = Some(gone);
        world.settle();
        assert!(world.gone && world.claims.len() == left);
        assert!(world.claims.values().all(|c| c.controller.is_none()));
    }
}

#[test]
fn a_delay_is_waited_for() {
    let mut world = settled(
        1,
        json!({ "updateStrategy": { "operationDelaySeconds": 3600 } }),
    );
    world.image("app:2");
    for _ in 0..5 {
        world.step();
        world.surroundings();
    }
    assert_eq!(world.images(), ["app:1"]);
    let again = crate::domain::collaset::planner::plan(&world.observe())
        .again_nanos
        .unwrap();
    assert!(
        again > 3_000_000_000_000 && again < 3_600_000_000_001,
        "{again}"
    );
}

#[test]
fn a_replace_that_is_cancelled_leaves_the_origin_where_names_persist_too() {
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
    world.step();
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
fn a_pod_that_the_selector_no_longer_matches_leaves_with_its_claims() {
    let mut world = settled(2, one_claim());
    let name = world.members()[&1].metadata.name.clone();
    let pod = world.pods.get_mut(&name).unwrap();
    pod.metadata.labels.insert("app".into(), "debug".into());
    world.settle();
    assert!(world.pods[&name].controller().is_none());
    assert_eq!(world.ids(), [0, 1]);
    assert_eq!(world.claims.len(), 3);
    let left: Vec<_> = world
        .claims
        .values()
        .filter(|c| c.controller.is_none())
        .collect();
    assert!(left.len() == 1 && left[0].labels.contains_key(keys::ORPHANED));
}

#[test]
fn a_pod_is_told_once_to_go() {
    let mut world = settled(2, json!({}));
    let name = world.members()[&0].metadata.name.clone();
    let other = world.members()[&1].metadata.name.clone();
    let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
    labels.insert(keys::TO_REPLACE.into(), "1".into());
    world.rest();
    world.surroundings();
    world.rest();
    let said = world.pods[&name].label(keys::TO_DELETE).map(str::to_owned);
    assert!(said.is_some(), "its successor serves");
    world.edit(json!({ "scaleStrategy": { "podToDelete": [other] } }));
    world.rest();
    assert!(world.pods[&other].label(keys::TO_DELETE).is_some());
    assert_eq!(world.pods[&name].label(keys::TO_DELETE), said.as_deref());
}

#[test]
fn a_pod_that_ends_while_all_are_scaled_in_keeps_no_plan_going() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(3, naming);
    world.edit(json!({ "replicas": 1 }));
    world.step();
    world.delete("web-0");
    world.step();
    world.image("app:2");
    world.edit(json!({ "replicas": 0 }));
    world.rest();
    world.settle();
    assert_eq!(world.ids(), [0; 0]);
}
