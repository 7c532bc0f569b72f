//! Several changes in one edit, and so in one plan: bounds hold across the steps of the plan, and the conditions
//! describe what the plan does.

use serde_json::{Value, json};

use super::reconcile::{condition, settled};
use super::world::World;
use crate::api::keys::{self, Family};
use crate::domain::collaset::headroom;
use crate::domain::pod::Pod;

fn name_of(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

/// The smallest number of available Pods that nothing removes, until the set comes to rest.
fn fewest_staying(world: &mut World) -> usize {
    let operating = Family::Operating.key("collaset");
    let mut fewest = usize::MAX;
    for _ in 0..80 {
        world.run_plan();
        let pods = world.pods.values().filter(|pod| pod.is_available());
        let goes = [operating.as_str(), keys::TO_DELETE];
        let staying = pods.filter(|pod| goes.iter().all(|key| pod.label(key).is_none()));
        fewest = fewest.min(staying.count());
        world.run_pods(u8::MAX);
    }
    fewest
}

fn one_down(policy: &str) -> World {
    let strategy = json!({ "podUpgradePolicy": policy, "maxUnavailable": 1 });
    let mut world = World::on_plane(3, json!({ "updateStrategy": strategy }));
    world.settle();
    world
}

fn image(image: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "app", "image": image }] } })
}

#[test]
fn scale_in_with_update_keeps_to_max_unavailable() {
    for policy in ["InPlaceIfPossible", "Recreate"] {
        let mut world = one_down(policy);
        let oldest = name_of(&world, 0);
        let strategy = json!({ "podToDelete": [oldest] });
        world.edit(json!({ "replicas": 2, "scaleStrategy": strategy, "template": image("app:2") }));
        assert_eq!(fewest_staying(&mut world), 1, "{policy}");
        assert_eq!(world.images(), ["app:2"; 2]);
        assert!(!world.pods.contains_key(&oldest));
    }
}

#[test]
fn scale_in_by_cost_with_update_keeps_to_max_unavailable() {
    let mut world = one_down("InPlaceIfPossible");
    let cheapest = name_of(&world, 0);
    world.write_pod(&cheapest, |pod| {
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(keys::DELETION_COST.into(), "-5".into());
    });
    world.edit(json!({ "replicas": 2, "template": image("app:2") }));
    assert_eq!(fewest_staying(&mut world), 1);
    assert!(!world.pods.contains_key(&cheapest));
}

#[test]
fn named_deletion_with_update_keeps_to_max_unavailable() {
    for id in 0..3 {
        let mut world = one_down("InPlaceIfPossible");
        let named = name_of(&world, id);
        world.edit(json!({ "scaleStrategy": { "podToDelete": [named] } }));
        world.image("app:2");
        assert_eq!(fewest_staying(&mut world), 2, "{id}");
        assert_eq!(world.images(), ["app:2"; 3]);
        assert!(!world.pods.contains_key(&named));
    }
}

#[test]
fn rollback_during_pair_keeps_to_max_surge() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    for moment in 0..40 {
        let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
        world.settle();
        world.image("app:2");
        for round in 0..160 {
            if round == moment {
                world.image("app:1");
            }
            world.run_plan();
            let pods = world.pods.values().filter(|pod| !pod.is_terminating());
            let count = pods.count();
            assert!(count <= 5, "{count} Pods in round {round} of {moment}");
            world.run_pods(u8::MAX);
        }
        assert_eq!(world.images(), ["app:1"; 4], "{moment}");
    }
}

fn is_ready(world: &World) -> bool {
    let status = world.set.status.as_ref().unwrap();
    assert_eq!(
        Some(status.observed_generation),
        world.set.metadata.generation
    );
    condition(world, "Ready").0 == "True"
}

#[test]
fn set_is_not_ready_once_plan_deletes_pod() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    let name = name_of(&world, 1);
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
    world.run_plan();
    assert!(!is_ready(&world));
    assert_eq!(condition(&world, "Ready").1, "Deleting");
    world.settle();
    assert!(is_ready(&world) && !world.pods.contains_key(&name));
}

#[test]
fn paused_set_with_a_pod_to_delete_is_not_ready() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    let name = name_of(&world, 1);
    world.edit(json!({ "paused": true, "scaleStrategy": { "podToDelete": [name, "unknown"] } }));
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "Paused"), "{message}");
    assert!(world.pods.contains_key(&name));
    world.edit(json!({ "paused": false }));
    world.settle();
    assert!(is_ready(&world) && !world.pods.contains_key(&name));
    world.edit(json!({ "paused": true }));
    world.settle();
    assert!(is_ready(&world), "it is gone");
}

#[test]
fn set_is_not_ready_while_adopting_ended_orphan_and_deleting() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let orphan = name_of(&world, 0);
    world.write_pod(&orphan, |pod| {
        pod.metadata.labels.retain(|key, _| key != "app")
    });
    world.settle();
    assert!(is_ready(&world) && !world.owns(&world.pods[&orphan]));
    world.pods.get_mut(&orphan).unwrap().status.phase = "Failed".to_owned();
    let label = ("app".to_owned(), "web".to_owned());
    world.write_pod(&orphan, |pod| pod.metadata.labels.extend([label]));
    let name = name_of(&world, 1);
    world.edit(json!({ "scaleStrategy": { "podToDelete": [name] } }));
    world.run_plan();
    assert!(world.owns(&world.pods[&orphan]));
    assert_eq!(condition(&world, "Ready").1, "Deleting");
    world.settle();
    assert!(is_ready(&world) && !world.pods.contains_key(&name));
}

#[test]
fn set_is_not_ready_once_plan_excludes_pod() {
    for replicas in [2, 3] {
        let mut world = World::on_plane(3, json!({}));
        world.settle();
        let name = name_of(&world, 1);
        let strategy = json!({ "podToExclude": [name] });
        world.edit(json!({ "replicas": replicas, "scaleStrategy": strategy }));
        world.run_plan();
        assert!(!is_ready(&world), "{replicas}");
        world.settle();
        assert!(is_ready(&world) && !world.owns(&world.pods[&name]));
    }
}

#[test]
fn set_is_not_ready_once_plan_includes_pod() {
    for replicas in [2, 3] {
        let mut world = World::on_plane(3, json!({}));
        world.settle();
        let name = name_of(&world, 1);
        world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } }));
        world.settle();
        let strategy = json!({ "podToExclude": [], "podToInclude": [name] });
        world.edit(json!({ "replicas": replicas, "scaleStrategy": strategy }));
        world.run_plan();
        assert!(!is_ready(&world), "{replicas}");
        world.settle();
        assert!(is_ready(&world) && world.owns(&world.pods[&name]));
    }
}

fn ask_to_replace(world: &mut World) {
    for pod in world.pods.values_mut() {
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::TO_REPLACE.into(), "true".into());
    }
}

#[test]
fn replacement_without_pool_room_is_reported() {
    let mut world = settled(4, json!({}));
    world.pool_bytes = headroom::MAX_POOL_BYTES / headroom::max_replicas("web") * 4;
    ask_to_replace(&mut world);
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "Replacing"));
    assert!(message.contains("no Pod can be replaced"), "{message}");
}

#[test]
fn paused_set_with_pod_to_replace_is_not_ready() {
    let mut world = settled(2, json!({}));
    world.edit(json!({ "paused": true }));
    ask_to_replace(&mut world);
    world.settle();
    assert_eq!(condition(&world, "Ready").1, "Paused");
    world.edit(json!({ "paused": false }));
    world.run_plan();
    assert_eq!(condition(&world, "Ready").1, "Replacing");
    world.settle();
    assert!(is_ready(&world));
}

fn is_stalled(world: &World) -> bool {
    let status = world.set.status.as_ref().unwrap();
    status.conditions.iter().any(|c| c.type_ == "Stalled")
}

#[test]
fn pod_deletions_one_by_one_count_as_progress() {
    let mut world = World::on_plane(6, json!({ "progressDeadlineSeconds": 30 }));
    world.settle();
    for pod in world.pods.values_mut() {
        let traffic = "prot.podopslifecycle.kusionstack.io/traffic";
        pod.metadata.finalizers.push(traffic.into());
    }
    world.edit(json!({ "replicas": 1 }));
    for remaining in [5, 4, 3, 2, 1] {
        for _ in 0..6 {
            world.run_plan();
            world.run_pods(u8::MAX);
        }
        assert!(!is_stalled(&world), "{remaining} are left to go");
        world.advance_time(16);
        let preparing = Family::Preparing.key("collaset");
        let mut pods = world.pods.values_mut();
        let leaving =
            pods.find(|p| p.label(&preparing).is_some() && !p.metadata.finalizers.is_empty());
        leaving.unwrap().metadata.finalizers.clear();
    }
    world.settle();
    assert!(is_ready(&world));
}

#[test]
fn scale_in_that_does_not_move_stalls() {
    let mut world = World::on_plane(3, json!({ "progressDeadlineSeconds": 30 }));
    world.settle();
    for pod in world.pods.values_mut() {
        let traffic = "prot.podopslifecycle.kusionstack.io/traffic";
        pod.metadata.finalizers.push(traffic.into());
    }
    world.edit(json!({ "replicas": 1 }));
    for _ in 0..60 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    assert!(is_stalled(&world));
}

#[test]
fn set_does_not_stall_while_rule_holds_duplicate() {
    let mut world = World::on_plane(3, json!({ "progressDeadlineSeconds": 30 }));
    world.settle();
    world.faults.holds = true;
    let (name, id) = (name_of(&world, 1), "0".to_owned());
    world.write_pod(&name, |pod| {
        pod.metadata.labels.insert(keys::INSTANCE_ID.into(), id);
    });
    for _ in 0..80 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    assert!(world.pods[&name].label(keys::TO_DELETE).is_some());
    assert_eq!(condition(&world, "Ready").1, "Scaling");
    assert!(!is_stalled(&world));
}

#[test]
fn pod_that_is_to_be_excluded_and_included_is_named() {
    let mut world = settled(3, json!({}));
    let name = name_of(&world, 1);
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": [name] } }));
    world.write_pod(&name, |pod| {
        pod.metadata
            .labels
            .insert(keys::TO_EXCLUDE.into(), "1".into());
    });
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "Scaling"));
    assert!(
        message.contains(&format!(
            "the spec asks to exclude and to include Pod {name}"
        )),
        "{message}"
    );
}

#[test]
fn refused_inclusion_is_reported_while_pods_are_missing() {
    let mut world = settled(2, json!({}));
    let name = name_of(&world, 1);
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    world.write_pod(&name, |pod| {
        pod.metadata.labels.insert("app".into(), "other".into());
    });
    let strategy = json!({ "podToExclude": [], "podToInclude": [name] });
    world.edit(json!({ "replicas": 2, "scaleStrategy": strategy }));
    world.run_plan();
    let (_, reason, message) = condition(&world, "Ready");
    assert_eq!(reason, "Scaling");
    assert!(
        message.contains(&format!("Pod {name} can't be included")),
        "{message}"
    );
}

#[test]
fn simultaneous_pauses_are_reported_one_by_one() {
    let pauses = json!([{ "partition": 2 }, { "pause": { "duration": "10s" } }, { "pause": {} }]);
    let rolling = json!({ "updateStrategy": { "rollingUpdate": { "steps": pauses } } });
    let mut world = settled(3, rolling);
    world.image("app:2");
    world.settle();
    world.wait(60);
    world.settle();
    let messages = world
        .events
        .iter()
        .filter(|(reason, _)| *reason == "RolloutPaused");
    let messages: Vec<&str> = messages.map(|(_, message)| message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].contains(": step 2 of 3") && messages[1].contains(": step 3 of 3"));
}

fn staying(world: &World) -> usize {
    let pods = world.pods.values();
    pods.filter(|pod| !pod.is_terminating()).count()
}

#[test]
fn lower_max_surge_closes_pairs_without_new_pods() {
    let policy = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = World::on_plane(6, policy);
    world.settle();
    world.faults.most_pods = Some(6);
    world.image("app:2");
    for _ in 0..20 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    world.edit(json!({ "updateStrategy": { "maxSurge": 1 } }));
    for _ in 0..5 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    world.faults.most_pods = None;
    world.advance_time(1000);
    for _ in 0..200 {
        world.run_plan();
        assert!(staying(&world) <= 7, "{}", staying(&world));
        world.run_pods(u8::MAX);
    }
    assert_eq!(world.images(), ["app:2"; 6]);
}

/// The template is rolled back between the plan that opens a pair and the one that creates its new Pod.
#[test]
fn new_half_of_withdrawn_pair_is_not_created() {
    let policy = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = World::on_plane(3, policy);
    world.settle();
    world.image("app:2");
    for _ in 0..20 {
        let is_opened = |pod: &Pod| pod.label(keys::TO_REPLACE).is_some();
        if world.pods.values().any(is_opened) {
            break;
        }
        world.run_plan();
    }
    assert_eq!(world.pods.len(), 3);
    world.image("app:1");
    for _ in 0..40 {
        world.run_plan();
        assert_eq!(world.pods.len(), 3);
        world.run_pods(u8::MAX);
    }
}
