//! Events and conditions are true, whatever the API server refuses.

use std::collections::BTreeSet;

use serde_json::json;

use super::reconcile::{condition, one_pvc_template, settled};
use super::world::{World, WriteKind};

fn recreate() -> serde_json::Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } })
}

/// Runs the set and its surroundings for some rounds.
fn rounds(world: &mut World) {
    for _ in 0..20 {
        world.run_plan();
        world.step_surroundings();
    }
}

fn messages_of<'a>(world: &'a World, reason: &str) -> Vec<&'a str> {
    let events = world.events.iter().filter(|(r, _)| *r == reason);
    events.map(|(_, message)| message.as_str()).collect()
}

#[test]
fn scale_in_is_reported_once_pod_is_deleted() {
    let mut world = settled(2, json!({}));
    world.faults.refused.insert(WriteKind::PodDeletion);
    world.edit(json!({ "replicas": 1 }));
    rounds(&mut world);
    assert_eq!(messages_of(&world, "TargetDeleted"), [""; 0]);
    let messages = messages_of(&world, "BeginScaleInLifecycle");
    assert!(
        messages[0].starts_with("to be scaled in: web-"),
        "{messages:?}"
    );
    world.faults.refused.clear();
    world.settle();
    let ended = messages_of(&world, "TargetDeleted");
    assert!(ended[0].ends_with("is scaled in"), "{ended:?}");
}

#[test]
fn end_of_failed_pod_is_reported_after_deletion() {
    let mut world = settled(2, json!({}));
    world.faults.refused.insert(WriteKind::PodDeletion);
    let pod = world.pods.values_mut().next().unwrap();
    pod.status.phase = "Failed".into();
    rounds(&mut world);
    assert_eq!(messages_of(&world, "TargetDeleted"), [""; 0]);
    world.faults.refused.clear();
    world.settle();
    let ended = messages_of(&world, "TargetDeleted");
    assert!(ended[0].ends_with("was Failed and is deleted"), "{ended:?}");
}

#[test]
fn replacement_is_reported_as_pending_once_noted() {
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = settled(1, replace);
    world.faults.refused.insert(WriteKind::PodPatch);
    world.image("app:2");
    rounds(&mut world);
    assert_eq!(messages_of(&world, "ReplaceUpdateTarget"), [""; 0]);
    world.faults.refused.clear();
    world.settle();
    let messages = messages_of(&world, "ReplaceUpdateTarget");
    let expected = "will be replaced by a Pod of revision web-";
    assert!(messages[0].contains(expected), "{messages:?}");
}

#[test]
fn ready_message_counts_down_pods_and_explains_first() {
    let mut world = settled(3, recreate());
    world.faults.refused.insert(WriteKind::PodDeletion);
    world.image("app:2");
    rounds(&mut world);
    let down = "Pods are not available";
    for type_ in ["Ready", "Update"] {
        let (_, reason, message) = condition(&world, type_);
        assert_eq!(reason, "UpdateFailed");
        assert!(!message.contains(down), "all serve: {message}");
    }
    let names: Vec<_> = world.pods.keys().cloned().collect();
    for name in &names {
        let pod = world.pods.get_mut(name).unwrap();
        pod.status.conditions.retain(|c| c.type_ != "Ready");
        let available = crate::api::keys::SERVICE_AVAILABLE;
        pod.metadata.labels.remove(available);
    }
    world.run_plan();
    world.run_plan();
    let (_, reason, message) = condition(&world, "Ready");
    assert_eq!(reason, "UpdateFailed");
    let first = &world.members()[&0].metadata.name;
    let expected = format!("; 3 of 3 {down}: Pod {first} is not Ready");
    assert!(message.ends_with(&expected), "{message}");
    assert!(!condition(&world, "Update").2.contains(down));
}

#[test]
fn deleted_set_drops_scale_and_update_messages() {
    let mut world = settled(3, json!({ "progressDeadlineSeconds": 30 }));
    world.faults.refused.insert(WriteKind::PodCreation);
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    world.edit(json!({ "replicas": 5 }));
    rounds(&mut world);
    world.advance_time(100);
    rounds(&mut world);
    let of = |types: &[&str]| types.iter().map(ToString::to_string).collect();
    let types = |world: &World| {
        let status = world.set.status.clone().unwrap();
        let types = status.conditions.into_iter().map(|c| c.type_);
        types.collect::<BTreeSet<_>>()
    };
    assert_eq!(types(&world), of(&["Ready", "Scale", "Stalled", "Update"]));
    let now = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(now);
    world.run_plan();
    assert_eq!(types(&world), of(&["Ready", "Terminating"]));
}

#[test]
fn refused_pvc_deletion_fails_the_scale_in() {
    let mut world = settled(2, one_pvc_template());
    world.faults.refused.insert(WriteKind::PvcDeletion);
    world.edit(json!({ "replicas": 1 }));
    rounds(&mut world);
    assert_eq!(condition(&world, "Scale").1, "ScaleInFailed");
    world.faults.refused.clear();
    world.settle();
    assert_eq!(condition(&world, "Scale").1, "Scaled");
}
