//! The PVCs that a scale-in deletes: those of the instances that it has chosen, and of no other instance whose Pod is
//! missing for now.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::reconcile::{condition, one_pvc_template};
use super::world::{Kubelet, World, WriteKind};
use crate::api::keys;
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::headroom;
use crate::domain::pod::Pod;

fn name(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

/// Instance IDs of the PVCs that are not terminating.
fn pvc_ids(world: &World) -> Vec<&str> {
    let pvcs = world.pvcs.values().filter(|pvc| !pvc.terminating);
    let mut ids: Vec<&str> = pvcs.map(|c| &*c.labels[keys::INSTANCE_ID]).collect();
    ids.sort_unstable();
    ids
}

fn recreated() -> Value {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate", "maxUnavailable": 1 });
    spec
}

fn sequence(mut spec: Value) -> Value {
    spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    spec
}

/// Edits the set to three replicas of a new image, with this scale strategy.
fn fewer_and_updated(world: &mut World, strategy: &Value) {
    let containers = json!([{ "name": "app", "image": "app:2" }]);
    world.edit(json!({
        "replicas": 3, "scaleStrategy": strategy, "template": { "spec": { "containers": containers } },
    }));
}

#[test]
fn lost_pod_is_recreated_with_pvc_while_exclusion_is_refused() {
    let mut world = World::new(4, one_pvc_template());
    world.settle();
    let (excluded, lost) = (name(&world, 0), name(&world, 1));
    world.faults.refused.insert(WriteKind::PvcWrite);
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [excluded] } }));
    world.run_until_idle();
    world.delete(&lost);
    world.settle();
    assert_eq!(pvc_ids(&world), ["0", "1", "2", "3"]);
    assert_eq!(world.ids(), [0, 1, 2, 3]);
}

#[test]
fn lost_pod_is_recreated_with_pvc_beside_contradictory_lists() {
    let mut world = World::new(4, one_pvc_template());
    world.settle();
    let (named, lost) = (name(&world, 0), name(&world, 1));
    let lists = json!({ "podToExclude": [named], "podToInclude": [named] });
    world.edit(json!({ "replicas": 3, "scaleStrategy": lists }));
    world.run_until_idle();
    world.delete(&lost);
    world.settle();
    assert_eq!(pvc_ids(&world), ["0", "1", "2", "3"]);
}

/// Checks that after the delayed operations only the first three instances and their PVCs are left.
fn assert_first_three_remain(world: &mut World) {
    for _ in 0..10 {
        world.run_rounds(20);
        world.advance_time(20);
    }
    world.run_rounds(100);
    assert_eq!(pvc_ids(world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn only_named_pod_is_scaled_in_despite_refused_deletion() {
    let mut world = World::on_plane(4, recreated());
    world.settle();
    let last = &world.members()[&3].metadata;
    let (named, uid) = (last.name.clone(), last.uid.clone());
    world.faults.undeletable.insert(uid);
    fewer_and_updated(&mut world, &json!({ "podToDelete": [named] }));
    world.run_rounds(60);
    world.faults.undeletable.clear();
    world.run_rounds(100);
    assert_eq!(pvc_ids(&world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn only_named_pod_is_scaled_in_despite_slow_deletion() {
    let mut world = World::on_plane(4, recreated());
    world.settle();
    let named = name(&world, 3);
    let strategy = json!({ "podToDelete": [named], "operationDelaySeconds": 60 });
    fewer_and_updated(&mut world, &strategy);
    assert_first_three_remain(&mut world);
}

#[test]
fn sequence_has_no_gap_after_scale_in_during_rollout() {
    let mut world = World::on_plane(4, sequence(recreated()));
    world.settle();
    fewer_and_updated(&mut world, &json!({ "operationDelaySeconds": 60 }));
    assert_first_three_remain(&mut world);
}

#[test]
fn sequence_has_no_gap_after_pod_loss_during_scale_in() {
    let mut world = World::on_plane(4, sequence(one_pvc_template()));
    world.settle();
    world.faults.holds = true;
    world.edit(json!({ "replicas": 3 }));
    world.run_rounds(10);
    let lost = name(&world, 1);
    world.delete(&lost);
    world.run_rounds(10);
    world.faults.holds = false;
    world.run_rounds(100);
    assert_eq!(pvc_ids(&world), ["0", "1", "2"]);
    assert_eq!(world.ids(), [0, 1, 2]);
}

#[test]
fn lost_pod_is_recreated_during_scale_in_of_another() {
    let mut world = World::on_plane(4, one_pvc_template());
    world.settle();
    world.faults.holds = true;
    world.edit(json!({ "replicas": 3 }));
    world.run_rounds(10);
    let lost = name(&world, 1);
    world.delete(&lost);
    world.run_rounds(10);
    assert_eq!(pvc_ids(&world), ["0", "1", "2", "3"]);
    world.faults.holds = false;
    world.run_rounds(100);
    assert_eq!(pvc_ids(&world), ["0", "1", "2"]);
}

/// Lets a Pod fail. Its successor is created after this many seconds.
pub fn fail(world: &mut World, name: &str, seconds: u64) {
    let until = world.now() + seconds * 1_000_000_000;
    let pod = world.pods.get_mut(name).unwrap();
    pod.status.phase = "Failed".into();
    pod.status.conditions.retain(|c| c.type_ != "Ready");
    world.ended_until.insert(pod.metadata.uid.clone(), until);
}

/// Counts the Pods of instance ID 3 during some rounds. Each fails at once, and its successor is created an hour later.
fn made_again(world: &mut World) -> usize {
    let mut uids = BTreeSet::new();
    for _ in 0..12 {
        if let Some(pod) = world.members().get(&3) {
            let (name, fails) = (pod.metadata.name.clone(), !pod.is_finished());
            uids.insert(pod.metadata.uid.clone());
            if fails {
                fail(world, &name, 3600);
            }
        }
        world.run_rounds(4);
    }
    uids.len()
}

#[test]
fn failed_pod_waits_during_slow_scale_in_or_exclusion() {
    let delete =
        |name: &str, delay: u64| json!({ "podToDelete": [name], "operationDelaySeconds": delay });
    let mut settled = World::on_plane(4, one_pvc_template());
    settled.settle();
    let (named, uid) = {
        let metadata = &settled.members()[&0].metadata;
        (metadata.name.clone(), metadata.uid.clone())
    };
    let mut blocked = settled.clone();
    blocked.faults.held.insert(uid);
    blocked.edit(json!({ "replicas": 3, "scaleStrategy": delete(&named, 0) }));
    let mut delayed = settled.clone();
    delayed.edit(json!({ "replicas": 3, "scaleStrategy": delete(&named, 100_000) }));
    let mut excluded = settled;
    excluded.faults.refused.insert(WriteKind::PvcWrite);
    excluded.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [named] } }));
    for (case, mut world) in [
        ("held", blocked),
        ("delayed", delayed),
        ("excluded", excluded),
    ] {
        world.run_rounds(6);
        assert_eq!(made_again(&mut world), 1, "{case}");
    }
}

#[test]
fn named_failed_pod_is_scaled_in() {
    for lost in [false, true] {
        let mut world = World::on_plane(4, one_pvc_template());
        world.settle();
        let (named, other) = (name(&world, 1), name(&world, 3));
        fail(&mut world, &named, 600);
        world.run_rounds(3);
        if lost {
            let ends_slowly = Kubelet {
                ends_slowly: true,
                ..Kubelet::default()
            };
            let uid = world.pods[&other].metadata.uid.clone();
            world.kubelets.insert(uid, ends_slowly);
            world.delete(&other);
        } else {
            fail(&mut world, &other, 600);
        }
        world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToDelete": [named] } }));
        world.run_rounds(20);
        world.advance_time(1000);
        world.kubelets.clear();
        world.run_rounds(20);
        assert_eq!(pvc_ids(&world), ["0", "2", "3"], "lost: {lost}");
    }
}

/// `WALK_SEED=3100000511`: other pairs took the ID that the label names, and lost it again in each plan.
#[test]
fn irremovable_pair_label_dissolves_no_other_pair() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    world.edit(json!({ "replicas": 4 }));
    world.edit(one_pvc_template());
    world.pool_bytes = headroom::MAX_POOL_BYTES / headroom::max_replicas("web") * 8;
    let labelled = name(&world, 0);
    let pod = world.pods.get_mut(&labelled).unwrap();
    let uid = pod.metadata.uid.clone();
    pod.metadata
        .labels
        .insert(keys::TO_EXCLUDE.into(), "1".into());
    world.faults.stubborn.insert(uid);
    world.run_plan();
    world.run_plan();
    let labels = &mut world.pods.get_mut(&labelled).unwrap().metadata.labels;
    labels.insert(keys::REPLACE_PAIR_NEW_ID.into(), "5".into());
    world.edit(json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }));
    world.settle();
}

#[test]
fn failed_pod_to_exclude_stays_while_its_pvc_cannot_leave() {
    for refused in [WriteKind::PvcWrite, WriteKind::PodPatch] {
        let mut world = World::on_plane(4, one_pvc_template());
        world.settle();
        let named = name(&world, 1);
        fail(&mut world, &named, 3600);
        world.run_rounds(3);
        world.faults.refused.insert(refused);
        let exclusion = json!({ "podToExclude": [named] });
        world.edit(json!({ "replicas": 3, "scaleStrategy": exclusion }));
        world.run_rounds(20);
        assert!(world.pods.contains_key(&named), "{refused:?}");
        assert_eq!(pvc_ids(&world), ["0", "1", "2", "3"], "{refused:?}");
        world.faults.refused.clear();
        world.advance_time(100);
        world.run_rounds(30);
        assert_eq!(world.ids(), [0, 2, 3], "{refused:?}");
        let own = world.pvcs.values().filter(|c| c.controller.is_some());
        assert_eq!(
            (own.count(), world.pvcs.len()),
            (3, 4),
            "it left with its PVC"
        );
    }
}

fn ends_slowly(world: &mut World, name: &str) {
    let uid = world.pods[name].metadata.uid.clone();
    world.kubelets.entry(uid).or_default().ends_slowly = true;
    world.delete(name);
}

#[test]
fn only_named_pod_is_scaled_in_though_it_is_ending() {
    let named = |world: &mut World, name: &str| {
        world.run_rounds(3);
        let by_name = json!({ "podToDelete": [name] });
        world.edit(json!({ "replicas": 3, "scaleStrategy": by_name }));
        world.run_rounds(20);
        world.kubelets.clear();
        world.faults.undeletable.clear();
        world.advance_time(100);
        world.run_rounds(40);
        assert_eq!(pvc_ids(world), ["0", "2", "3"]);
    };
    let mut world = World::on_plane(4, sequence(one_pvc_template()));
    world.settle();
    ends_slowly(&mut world, "web-1");
    named(&mut world, "web-1");

    let mut world = World::on_plane(4, one_pvc_template());
    world.settle();
    let (first, third) = (name(&world, 1), name(&world, 3));
    for name in [&first, &third] {
        ends_slowly(&mut world, name);
    }
    named(&mut world, &first);

    let mut world = World::on_plane(4, sequence(one_pvc_template()));
    world.settle();
    let uid = world.members()[&1].metadata.uid.clone();
    world.faults.undeletable.insert(uid);
    fail(&mut world, "web-1", 0);
    named(&mut world, "web-1");
}

#[test]
fn paused_set_does_not_recreate_pods_ended_by_scale_in() {
    for spec in [one_pvc_template(), sequence(one_pvc_template())] {
        let mut world = World::on_plane(4, spec);
        world.settle();
        let uids = world.pods.values().map(|pod| pod.metadata.uid.clone());
        let slow = Kubelet {
            ends_slowly: true,
            ..Kubelet::default()
        };
        world.kubelets = uids.map(|uid| (uid, slow.clone())).collect();
        world.edit(json!({ "replicas": 2 }));
        for _ in 0..40 {
            if world
                .pods
                .values()
                .filter(|pod| pod.is_terminating())
                .count()
                == 2
            {
                break;
            }
            world.run_plan();
            world.run_pods(u8::MAX);
        }
        world.edit(json!({ "paused": true }));
        world.kubelets.clear();
        world.run_rounds(20);
        assert_eq!(world.pods.len(), 2);
        world.edit(json!({ "paused": false }));
        world.run_rounds(20);
        assert_eq!((world.pods.len(), pvc_ids(&world).len()), (2, 2));
    }
}

/// The next Pod of the failed Pod has another revision, so it may not fail.
#[test]
fn rollout_continues_beside_failed_pod_awaiting_recreation() {
    for policy in ["Recreate", "InPlaceIfPossible", "Replace"] {
        for mut spec in [json!({}), one_pvc_template()] {
            spec["updateStrategy"] = json!({ "podUpgradePolicy": policy });
            let mut world = World::on_plane(4, spec);
            world.settle();
            let failed = name(&world, 1);
            fail(&mut world, &failed, 900);
            world.run_rounds(3);
            world.image("app:2");
            world.run_rounds(100);
            assert_eq!(world.images(), ["app:2"; 4], "{policy}");
        }
    }
}

#[test]
fn failed_new_halves_are_named_and_block_no_unwanted_template() {
    let policy = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    for good in ["app:3", "app:1"] {
        let mut world = World::on_plane(3, policy.clone());
        world.settle();
        world.faults.holds = true;
        world.image("app:2");
        world.run_rounds(20);
        let is_half = |pod: &&Pod| pod.label(keys::REPLACE_PAIR_ORIGIN_NAME).is_some();
        let halves = world.pods.values().filter(is_half);
        let halves: Vec<_> = halves.map(|pod| pod.metadata.name.clone()).collect();
        assert_eq!(halves.len(), 3);
        for half in &halves {
            fail(&mut world, half, 3600);
        }
        world.run_rounds(10);
        let status = world.set.status.as_ref().unwrap();
        let ready = status
            .conditions
            .iter()
            .find(|c| c.type_ == "Ready")
            .unwrap();
        let expected = format!("Pod {} is Failed and is recreated at", halves[0]);
        assert!(ready.message.contains(&expected), "{}", ready.message);
        world.image(good);
        world.faults.holds = false;
        world.run_rounds(80);
        assert_eq!(world.images(), [good; 3]);
        assert!(halves.iter().all(|half| !world.pods.contains_key(half)));
    }
}

#[test]
fn named_pod_that_ends_is_not_recreated_while_paused() {
    for mut spec in [one_pvc_template(), sequence(one_pvc_template())] {
        spec["replicas"] = json!(4);
        let mut world = World::on_plane(4, spec);
        world.settle();
        let named = name(&world, 1);
        ends_slowly(&mut world, &named);
        world.run_rounds(3);
        let by_name = json!({ "podToDelete": [named] });
        world.edit(json!({ "replicas": 3, "scaleStrategy": by_name }));
        world.run_rounds(10);
        world.edit(json!({ "paused": true }));
        world.run_rounds(3);
        world.kubelets.clear();
        world.run_rounds(20);
        assert_eq!(world.pods.len(), 3);
    }
}

#[test]
fn origin_labelled_with_new_half_id_settles() {
    let policy = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let mut world = World::on_plane(4, policy);
    world.settle();
    world.faults.holds = true;
    world.image("app:2");
    world.run_rounds(2);
    let origin = world.members()[&1].clone();
    let new = origin.metadata.labels[keys::REPLACE_PAIR_NEW_ID].clone();
    assert!(world.write_pod(&origin.metadata.name, |pod| {
        let label = (keys::INSTANCE_ID.to_owned(), new);
        pod.metadata.labels.extend([label]);
    }));
    world.run_rounds(60);
    assert!(!world.run_plan(), "nothing is written any more");
    world.faults.holds = false;
    world.settle();
    assert_eq!(world.images(), ["app:2"; 4]);
}

#[test]
fn undeletable_duplicate_is_not_kept_off_traffic() {
    let mut world = World::on_plane(4, json!({}));
    world.settle();
    world.faults.refused.insert(WriteKind::PodDeletion);
    world.edit(json!({ "template": { "metadata": { "labels": { "tier": "2" } } } }));
    world.run_plan();
    let double = name(&world, 2);
    let update = |world: &World| SetOperation::Update.is_in_progress(&world.pods[&double]);
    assert!(update(&world));
    assert!(world.write_pod(&double, |pod| {
        let label = (keys::INSTANCE_ID.to_owned(), "1".to_owned());
        pod.metadata.labels.extend([label]);
    }));
    world.run_rounds(60);
    assert!(!update(&world));
}

#[test]
fn undeletable_duplicates_serve_despite_begun_operations() {
    // The operation is an update in place that has changed the Pod, or a scale-in.
    for scaled_in in [false, true] {
        let mut world = World::on_plane(3, json!({}));
        world.settle();
        let double = name(&world, 2);
        if scaled_in {
            world.edit(json!({ "replicas": 2 }));
        } else {
            world.image("app:2");
        }
        let image = |world: &World| world.pods[&double].spec.containers[0].image.clone();
        for _ in 0..20 {
            if image(&world) == "app:2"
                || SetOperation::ScaleIn.is_in_progress(&world.pods[&double])
            {
                break;
            }
            world.run_rounds(1);
        }
        world.faults.holds = true;
        assert!(world.write_pod(&double, |pod| {
            let label = (keys::INSTANCE_ID.to_owned(), "1".to_owned());
            pod.metadata.labels.extend([label]);
        }));
        world.run_rounds(60);
        let pod = &world.pods[&double];
        let busy = [SetOperation::Update, SetOperation::ScaleIn]
            .map(|operation| operation.is_in_progress(pod));
        assert_eq!(busy, [false; 2], "scaled in: {scaled_in}");
        assert!(pod.is_available(), "scaled in: {scaled_in}");
    }
}

/// Adds a Pod like that of instance ID 0, without a controller and with this instance ID.
pub fn stranger(world: &mut World, name: &str, id: Option<&str>) {
    let mut stranger = world.members()[&0].clone();
    stranger.metadata.name = name.into();
    stranger.metadata.uid = name.into();
    stranger.metadata.owner_references.clear();
    let labels = &mut stranger.metadata.labels;
    labels.remove(keys::INSTANCE_ID);
    labels.extend(id.map(|id| (keys::INSTANCE_ID.to_owned(), id.to_owned())));
    world.pods.insert(name.into(), stranger);
}

#[test]
fn included_pod_enters_under_reserved_id_after_refused_write() {
    for sequence_of_names in [false, true] {
        let mut spec = json!({});
        if sequence_of_names {
            spec = sequence(spec);
        }
        let mut world = World::on_plane(1, spec);
        world.settle();
        stranger(&mut world, "stranger", None);
        world.faults.refused.insert(WriteKind::PodPatch);
        world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": ["stranger"] } }));
        world.run_rounds(6);
        world.faults.refused.clear();
        for _ in 0..60 {
            world.run_rounds(1);
            assert!(world.pods.len() <= 2, "another is made");
        }
        assert_eq!(world.members()[&1].metadata.name, "stranger");
    }
}

#[test]
fn new_pod_belongs_to_set_while_origin_terminates() {
    let mut world = World::on_plane(
        2,
        sequence(json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } })),
    );
    world.settle();
    let lasts = Kubelet {
        ends_slowly: true,
        ..Kubelet::default()
    };
    kubelet(&mut world, "web-0", lasts);
    world.image("app:2");
    world.run_rounds(40);
    assert!(world.pods["web-0"].is_terminating());
    assert_eq!(world.images(), ["app:2"; 2]);
    world.image("app:1");
    world.run_rounds(40);
    assert_eq!(world.images(), ["app:1"; 2], "rolled back");
    world.edit(json!({ "replicas": 0 }));
    world.run_rounds(40);
    assert!(world.members().is_empty());
}

#[test]
fn undeletable_failed_pod_blocks_no_rollout() {
    let mut world = World::on_plane(4, sequence(recreated()));
    world.edit(json!({ "updateStrategy": { "maxUnavailable": 2 } }));
    world.settle();
    fail(&mut world, "web-1", 0);
    let uid = world.pods["web-1"].metadata.uid.clone();
    world.faults.undeletable.insert(uid);
    world.image("app:2");
    world.run_rounds(60);
    for id in [0, 2, 3] {
        let image = &world.members()[&id].spec.containers[0].image;
        assert_eq!(image, "app:2", "{id}");
    }
}

/// A set of three that was deleted without its Pods and created again with another image. One of its Pods can't be
/// adopted.
fn with_an_orphan_that_can_not_enter() -> (World, String) {
    let mut world = World::on_plane(3, recreated());
    world.edit(json!({ "updateStrategy": { "maxUnavailable": 2 } }));
    world.settle();
    world.delete_set(true);
    while !world.is_deleted {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    let mut orphans = world.pods.values().filter(|pod| pod.controller().is_none());
    let orphan = orphans
        .find(|pod| pod.label(keys::INSTANCE_ID) == Some("1"))
        .unwrap()
        .clone();
    world.recreate_set();
    world.faults.stubborn.insert(orphan.metadata.uid.clone());
    world.image("app:2");
    (world, orphan.metadata.name)
}

#[test]
fn orphan_that_cannot_enter_blocks_no_rollout_and_goes_first() {
    let (mut world, orphan) = with_an_orphan_that_can_not_enter();
    world.run_rounds(60);
    let of = |world: &World| -> Vec<(i64, String)> {
        let members = world.members().into_iter();
        members
            .map(|(id, pod)| (id, pod.spec.containers[0].image.clone()))
            .collect()
    };
    let updated = [0, 2].map(|id| (id, "app:2".to_owned()));
    assert_eq!(of(&world), updated);

    let (mut world, _) = with_an_orphan_that_can_not_enter();
    world.run_rounds(4);
    world.edit(json!({ "replicas": 2 }));
    world.run_rounds(60);
    assert_eq!(of(&world), updated);
    assert_eq!(pvc_ids(&world), ["0", "1", "2"]);
    assert!(world.pods.contains_key(&orphan));
}

/// The Pod of instance ID 0, whose exclusion is refused after its PVC has left. It then fails, and the request to
/// exclude it is withdrawn. Returns its name and its PVC.
fn failed_half_way_out(before: usize, after: usize) -> (World, String, String) {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let excluded = world.members()[&0].clone();
    let name = excluded.metadata.name;
    world.faults.stubborn.insert(excluded.metadata.uid);
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(before);
    fail(&mut world, &name, 0);
    world.run_rounds(after);
    let message = condition(&world, "Ready").2;
    assert!(!message.contains("enters"), "{message}");
    world.faults.stubborn.clear();
    world.edit(json!({ "scaleStrategy": { "podToExclude": [] } }));
    world.run_rounds(40);
    (world, name, excluded.spec.pvcs[0].clone())
}

#[test]
fn pod_failing_during_exclusion_leaves_pvc_to_next_pod() {
    let (world, _, pvc_name) = failed_half_way_out(1, 0);
    assert_eq!(world.members()[&0].spec.pvcs, [pvc_name]);
    assert_eq!(world.pvcs.len(), 2);
}

#[test]
fn released_pvc_is_named_once_another_instance_exists() {
    let (world, name, pvc_name) = failed_half_way_out(6, 3);
    assert!(!world.members().contains_key(&0));
    assert_eq!(world.pvcs[&pvc_name].controller, None);
    let expected = format!(
        "Pod {name} was Failed and is deleted; PVC {pvc_name} has left the CollaSet and stays"
    );
    assert!(world.events.iter().any(|(_, message)| *message == expected));
}

fn kubelet(world: &mut World, name: &str, kubelet: Kubelet) {
    let uid = world.pods[name].metadata.uid.clone();
    world.kubelets.insert(uid, kubelet);
}

fn replaced_in_sequence() -> World {
    let mut spec = sequence(one_pvc_template());
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Replace" });
    let mut world = World::on_plane(2, spec);
    world.settle();
    world
}

#[test]
fn terminating_origin_has_given_up_id_even_with_lost_pool() {
    for is_deleted in [false, true] {
        given_up_for_a_lost_pool(is_deleted);
    }
}

/// The deletion of the origin is requested by its pair, or made by somebody else.
fn given_up_for_a_lost_pool(is_deleted: bool) {
    let mut world = replaced_in_sequence();
    let lasts = Kubelet {
        ends_slowly: true,
        ..Kubelet::default()
    };
    kubelet(&mut world, "web-0", lasts);
    if is_deleted {
        world.faults.unpullable.insert("app:2".into());
        world.image("app:2");
        world.run_rounds(10);
        world.delete("web-0");
        world.faults.unpullable.clear();
    }
    for image in ["app:2", "app:1"] {
        world.image(image);
        world.run_rounds(40);
    }
    let (ids, before) = (world.ids(), world.pvcs.len());
    world.pool = None;
    world.run_rounds(60);
    assert_eq!((world.ids(), world.pvcs.len()), (ids, before));
}

#[test]
fn origin_ending_before_new_half_keeps_instance_and_pvc() {
    let is_lost = Kubelet {
        is_lost: true,
        ..Kubelet::default()
    };
    let mut world = replaced_in_sequence();
    kubelet(&mut world, "web-0", is_lost);
    world.run_rounds(5);
    let pvc_names = world.pods["web-0"].spec.pvcs.clone();
    world.faults.most_pods = Some(2);
    assert!(world.write_pod("web-0", |pod| {
        let label = (keys::TO_REPLACE.to_owned(), "true".to_owned());
        pod.metadata.labels.extend([label]);
    }));
    world.run_rounds(10);
    world.delete("web-0");
    world.faults.most_pods = None;
    world.advance_time(100);
    world.run_rounds(40);
    let message = condition(&world, "Scale").2;
    assert!(message.contains("waiting for web-0 to end"), "{message}");
    world.kubelets.clear();
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
    assert_eq!(world.members()[&0].spec.pvcs, pvc_names);
}

#[test]
fn failed_origin_to_exclude_leaves_with_its_pvc() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Replace" });
    let mut world = World::on_plane(2, spec);
    world.settle();
    let origin = world.members()[&0].clone();
    let (name, pvc_name) = (origin.metadata.name, origin.spec.pvcs[0].clone());
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    world.run_rounds(20);
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(5);
    fail(&mut world, &name, 0);
    world.run_rounds(40);
    assert!(world.pods.contains_key(&name));
    assert_eq!(world.pvcs[&pvc_name].controller, None);
}

#[test]
fn pod_that_cannot_leave_is_not_recreated_by_rollout() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate" });
    let mut world = World::on_plane(3, spec);
    world.settle();
    let excluded = world.members()[&0].clone();
    world.faults.refused.insert(WriteKind::PvcWrite);
    world.edit(json!({ "scaleStrategy": { "podToExclude": [excluded.metadata.name] } }));
    world.run_rounds(10);
    world.image("app:2");
    world.run_rounds(60);
    let pod = &world.pods[&excluded.metadata.name];
    assert_eq!(pod.metadata.uid, excluded.metadata.uid);
    assert!(pod.is_available());
    assert_eq!(world.images(), ["app:1", "app:2", "app:2"]);
}

#[test]
fn two_pods_to_include_of_one_instance_id_both_enter() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    for name in ["a", "b"] {
        stranger(&mut world, name, Some("7"));
    }
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToInclude": ["a", "b"] } }));
    world.settle();
    let names: BTreeSet<&str> = world.pods.keys().map(String::as_str).collect();
    assert!(names.contains("a") && names.contains("b"), "{names:?}");
    assert_eq!(world.ids(), [0, 1, 7]);
}

#[test]
fn missing_pod_is_reported_while_another_cannot_leave() {
    let mut world = World::on_plane(3, one_pvc_template());
    world.settle();
    let excluded = world.members()[&0].clone();
    world.faults.stubborn.insert(excluded.metadata.uid);
    world.faults.most_pods = Some(3);
    world.edit(json!({ "scaleStrategy": { "podToExclude": [excluded.metadata.name] } }));
    world.run_rounds(20);
    let message = condition(&world, "Scale").2;
    let counts = "1 Pod to create, 0 to delete; 1 Pod leaves the set";
    assert!(message.contains(counts), "{message}");
}

#[test]
fn released_pvc_returns_when_its_instance_is_wanted() {
    let mut world = World::on_plane(2, one_pvc_template());
    world.settle();
    let excluded = world.members()[&0].clone();
    let (name, uid) = (excluded.metadata.name, excluded.metadata.uid);
    world.faults.stubborn.insert(uid);
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.run_rounds(6);
    fail(&mut world, &name, 0);
    world.run_rounds(3);
    world.faults.stubborn.clear();
    world.edit(json!({ "replicas": 3, "scaleStrategy": { "podToExclude": [] } }));
    world.run_rounds(40);
    assert_eq!(world.members()[&0].spec.pvcs, excluded.spec.pvcs);
    let of_set = world.pvcs.values().filter(|pvc| pvc.controller.is_some());
    assert_eq!(of_set.count(), 3);
}

#[test]
fn pvc_mounted_by_another_pod_blocks_no_rollout() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate" });
    let mut world = World::on_plane(3, spec);
    world.settle();
    let other = name(&world, 1);
    assert!(world.write_pod(&other, |pod| {
        let label = ("app".to_owned(), "debug".to_owned());
        pod.metadata.labels.extend([label]);
        pod.metadata.owner_references.clear();
    }));
    world.image("app:2");
    world.run_rounds(60);
    let message = condition(&world, "Ready").2;
    let waits = format!("waiting for Pod {other}, which still mounts PVC");
    assert!(message.contains(&waits), "{message}");
    for id in [0, 2] {
        assert_eq!(
            world.members()[&id].spec.containers[0].image,
            "app:2",
            "{id}"
        );
    }
}

#[test]
fn pvc_mounted_outside_is_not_used_by_recreated_set() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate" });
    let mut world = World::on_plane(3, spec);
    world.settle();
    let other = name(&world, 1);
    assert!(world.write_pod(&other, |pod| {
        let label = (keys::ORPHANED.to_owned(), "true".to_owned());
        pod.metadata.labels.extend([label]);
    }));
    world.orphan_set();
    world.recreate_set();
    world.image("app:2");
    world.run_rounds(60);
    assert!(world.pods[&other].controller().is_none());
    assert_eq!(world.images(), ["app:2"; 3]);
    let pvc_name = &world.pods[&other].spec.pvcs[0];
    assert_eq!(world.pvcs[pvc_name].controller, None);
    assert!(!world.members()[&1].spec.pvcs.contains(pvc_name));
}
