//! What the status says about single Pods: those that a rollout does not reach, those that it waits for, and those
//! about which a request is refused.

use serde_json::json;

use super::reconcile::{condition, one_pvc_template};
use super::wait_messages::rounds;
use super::world::{Kubelet, World};
use crate::api::keys;
use crate::domain::collaset::planner::plan_set;

const BY_LABEL: &str = "set its label collaset.kusionstack.io/update-included=true to have it";

fn message(world: &World, type_: &str) -> String {
    condition(world, type_).2
}

/// A set of three Pods. One hangs on an image that can't be pulled, and a later rollout does not reach it because of
/// its label or the partition.
fn hanging(policy: &str, by_label: bool) -> (World, String) {
    let rolling = |partition: i64| match by_label {
        true => json!({ "byLabel": {} }),
        false => json!({ "byPartition": { "partition": partition } }),
    };
    let strategy = |partition: i64| json!({ "updateStrategy": { "podUpgradePolicy": policy, "rollingUpdate": rolling(partition) } });
    let mut world = World::on_plane(3, strategy(2));
    world.settle();
    world.faults.unpullable.insert("app:2".into());
    let first = world.pods.keys().next().unwrap().clone();
    if by_label {
        world.relabel(&first, keys::UPDATE_INCLUDED, "true");
    }
    world.image("app:2");
    rounds(&mut world, 30);
    if by_label {
        let labels = world.pods.values().map(|pod| pod.metadata.name.clone());
        for name in labels.collect::<Vec<_>>() {
            world.write_pod(&name, |pod| {
                pod.metadata.labels.remove(keys::UPDATE_INCLUDED);
            });
        }
    } else {
        world.edit(strategy(3));
    }
    rounds(&mut world, 30);
    world.image("app:3");
    rounds(&mut world, 30);
    let mut pods = world.pods.values();
    let hangs = pods.find(|pod| {
        pod.status
            .container_statuses
            .iter()
            .any(|c| c.state.waiting.is_some())
    });
    let name = hangs.unwrap().metadata.name.clone();
    (world, name)
}

/// The Pod has a revision that nobody wants any more, and the new template does not reach it.
#[test]
fn hanging_left_out_pod_is_named() {
    for policy in ["InPlaceIfPossible", "Recreate"] {
        let by_label = (true, BY_LABEL);
        let by_partition = (false, "lower the partition, which is 3, to have it");
        for (by_label, remedy) in [by_label, by_partition] {
            let (world, name) = hanging(policy, by_label);
            let message = message(&world, "Ready");
            let start = format!("Pod {name} is stuck on revision web-");
            assert!(
                message.contains(&start) && message.contains(remedy),
                "{policy}: {message}"
            );
        }
    }
}

#[test]
fn scaled_in_pod_is_not_named_as_left_out() {
    let (mut world, _) = hanging("InPlaceIfPossible", true);
    world.faults.holds = true;
    world.edit(json!({ "replicas": 0 }));
    rounds(&mut world, 30);
    assert_eq!(world.pods.len(), 3);
    let message = message(&world, "Ready");
    assert!(!message.contains("is stuck"), "{message}");
}

/// No setting of a user would update the Pod.
#[test]
fn pod_is_not_left_out_while_new_revision_is_refused() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    world.faults.unpullable.insert("app:1".into());
    let first = world.pods.keys().next().unwrap().clone();
    world.delete(&first);
    rounds(&mut world, 30);
    world.image("app:2");
    let mut observed = world.observe();
    observed.refused.revision = Some("policy".into());
    let plan = plan_set(&observed);
    assert!(
        !plan.shortfall.down.contains("is stuck"),
        "{}",
        plan.shortfall.down
    );
}

/// Returns the message of `Update` for a paused set of two Pods that gets another image while a rule delays the
/// replacement of one Pod.
fn update_beside_a_pair(world: &mut World, origin: &str, image: &str) -> String {
    world.faults.holds = true;
    world.relabel(origin, keys::TO_REPLACE, "true");
    rounds(world, 30);
    assert_eq!(world.pods.len(), 3, "a pair and another");
    world.edit(json!({ "paused": true }));
    world.image(image);
    rounds(world, 30);
    message(world, "Update")
}

/// The template is rolled back while a user has a Pod of the new template replaced.
#[test]
fn pair_that_is_taken_back_is_counted_once() {
    let partition = |partition: i64| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": partition } } } });
    let mut world = World::on_plane(2, partition(1));
    world.settle();
    world.image("app:2");
    world.settle();
    let mut pods = world.pods.values();
    let new = pods.find(|pod| pod.spec.containers[0].image == "app:2");
    let new = new.unwrap().metadata.name.clone();
    let message = update_beside_a_pair(&mut world, &new, "app:1");
    assert!(message.starts_with("1 Pod to update"), "{message}");
}

#[test]
fn pair_is_counted_once_among_those_to_update() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let first = world.pods.keys().next().unwrap().clone();
    let message = update_beside_a_pair(&mut world, &first, "app:2");
    assert!(message.starts_with("2 Pods to update"), "{message}");
}

#[test]
fn slowly_ending_pod_using_max_unavailable_is_named() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate", "maxUnavailable": 1 });
    let mut world = World::on_plane(3, spec);
    world.settle();
    let (first, uid) = {
        let pod = world.pods.values().next().unwrap();
        (pod.metadata.name.clone(), pod.metadata.uid.clone())
    };
    let slow = Kubelet {
        ends_slowly: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(uid, slow);
    world.delete(&first);
    rounds(&mut world, 30);
    world.image("app:2");
    rounds(&mut world, 30);
    let message = message(&world, "Update");
    let used_up = "updateStrategy.maxUnavailable (1) is used up: 1 Pod is missing";
    assert!(message.contains(used_up), "{message}");
    assert!(
        message.contains(&format!("waiting for Pod {first}")),
        "{message}"
    );
}

#[test]
fn refused_inclusion_is_reported_beside_rollout() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    let mut stranger = world.pods.values().next().unwrap().clone();
    stranger.metadata.name = "stranger".into();
    stranger.metadata.uid = "stranger".into();
    stranger.metadata.owner_references = Default::default();
    let labels = &mut stranger.metadata.labels;
    labels.remove(keys::INSTANCE_ID);
    labels.insert(keys::TO_EXCLUDE.into(), "true".into());
    world.pods.insert("stranger".into(), stranger);
    world.edit(json!({ "scaleStrategy": { "podToInclude": ["stranger"] } }));
    world.settle();
    let (_, reason, message) = condition(&world, "Ready");
    assert_eq!(reason, "IncludeNotAllowed");
    let remedy = format!("remove its label {}", keys::TO_EXCLUDE);
    assert!(message.contains(&remedy), "{message}");
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    rounds(&mut world, 30);
    let (_, reason, message) = condition(&world, "Ready");
    assert_eq!(reason, "UpdateFailed");
    let refused = "Pod stranger can't be included: ";
    assert!(message.contains(refused), "{message}");
    let beside = plan_set(&world.observe()).shortfall.down;
    assert!(beside.contains(refused), "a write that fails: {beside}");
}

#[test]
fn unpullable_pod_of_idle_set_fails_no_update() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    world.faults.unpullable.insert("app:1".into());
    let first = world.pods.keys().next().unwrap().clone();
    world.delete(&first);
    rounds(&mut world, 30);
    let (update, _, _) = condition(&world, "Update");
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!(
        (&*update, &*ready, &*reason),
        ("True", "False", "Unavailable")
    );
    assert!(message.contains("ImagePullBackOff"), "{message}");
}
