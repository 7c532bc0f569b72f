//! PodDecorations in the plans of a set.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::reconcile::one_pvc_template;
use super::world::{World, WriteKind};
use crate::api::keys;
use crate::domain::collaset::composition::composition_name_of;
use crate::domain::collaset::headroom;
use crate::domain::collaset::pool;
use crate::domain::decoration::labels::{decorations_of, is_decoration};
use crate::domain::pod::Pod;

/// A decoration that adds a sidecar with this image to the Pods with the label `app=web`.
fn sidecar(image: &str) -> Value {
    json!({
        "selector": { "matchLabels": { "app": "web" } },
        "template": { "containers": [{ "name": "log", "image": image, "injectPolicy": "AfterPrimaryContainer" }] },
    })
}

fn partition(partition: u32) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "partition": partition } } })
}

fn merged(mut value: Value, patch: &Value) -> Value {
    json_patch::merge(&mut value, patch);
    value
}

/// The image of the sidecar of each member, in the order of IDs; empty if a member has none.
fn sidecars(world: &World) -> Vec<String> {
    let image = |pod: &Pod| {
        let mut containers = pod.spec.containers.iter();
        let log = containers.find(|container| container.name == "log");
        log.map_or_else(String::new, |log| log.image.clone())
    };
    world.members().values().map(|pod| image(pod)).collect()
}

/// The UIDs of the members, in the order of IDs.
fn uids(world: &World) -> Vec<String> {
    let members = world.members();
    members
        .values()
        .map(|pod| pod.metadata.uid.clone())
        .collect()
}

fn is_ready(world: &World) -> bool {
    let status = world.set.status.as_ref().unwrap();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    ready.is_some_and(|ready| ready.status == "True")
}

fn in_place() -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" } })
}

#[test]
fn pods_are_born_with_existing_decoration() {
    let mut world = World::new(2, json!({}));
    world.decorate("log", sidecar("log:1"));
    world.settle();
    assert_eq!(sidecars(&world), ["log:1", "log:1"]);
    let object = &world.decorations.objects["log"];
    let status = object.status.clone().unwrap();
    for pod in world.members().values() {
        let revision = status.updated_revision.clone();
        assert_eq!(decorations_of(pod), [("log".to_owned(), revision)].into());
        let owner = pod
            .metadata
            .owner_references
            .iter()
            .find(|o| is_decoration(o))
            .unwrap();
        assert_eq!(Some(&owner.uid), object.metadata.uid.as_ref());
        assert!(!owner.controller);
    }
    assert_eq!(status.current_revision, status.updated_revision);
    assert_eq!((status.matched_pods, status.updated_pods), (2, 2));
    assert!(is_ready(&world));
}

#[test]
fn sidecar_comes_and_goes_by_recreation() {
    let mut world = World::new(2, in_place());
    world.settle();
    let before = uids(&world);
    world.decorate("log", sidecar("log:1"));
    world.settle();
    assert_eq!(sidecars(&world), ["log:1", "log:1"]);
    let decorated = uids(&world);
    assert!(before.iter().all(|uid| !decorated.contains(uid)));
    world.delete_decoration("log");
    world.settle();
    assert_eq!(sidecars(&world), ["", ""]);
    assert!(
        world.decorations.objects.is_empty(),
        "the PodDecoration has gone"
    );
    assert!(uids(&world).iter().all(|uid| !decorated.contains(uid)));
    for pod in world.members().values() {
        assert!(decorations_of(pod).is_empty());
        assert!(!pod.metadata.owner_references.iter().any(is_decoration));
    }
}

#[test]
fn image_of_sidecar_changes_in_place_together_with_template() {
    let mut world = World::new(2, in_place());
    world.decorate("log", sidecar("log:1"));
    world.settle();
    let before = uids(&world);
    world.decorate("log", sidecar("log:2"));
    world.settle();
    assert_eq!(sidecars(&world), ["log:2", "log:2"]);
    world.decorate("log", sidecar("log:3"));
    world.image("app:2");
    world.settle();
    assert_eq!(sidecars(&world), ["log:3", "log:3"]);
    assert_eq!(world.images(), ["app:2", "app:2"]);
    assert_eq!(uids(&world), before);
    let updated = world.decorations.objects["log"]
        .status
        .clone()
        .unwrap()
        .updated_revision;
    for pod in world.members().values() {
        assert_eq!(decorations_of(pod)["log"], updated);
        assert_eq!(pod.annotation(keys::LAST_POD_STATUS), None);
    }
    assert!(is_ready(&world));
}

#[test]
fn sidecar_arrives_by_replacement_with_one_new_pod_each() {
    let mut world = World::new(
        2,
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    world.settle();
    let before = uids(&world);
    world.decorate("log", sidecar("log:1"));
    world.settle();
    assert_eq!(sidecars(&world), ["log:1", "log:1"]);
    assert!(uids(&world).iter().all(|uid| !before.contains(uid)));
    let replaced = world
        .events
        .iter()
        .filter(|(reason, _)| *reason == "ReplaceUpdateTarget");
    assert_eq!(replaced.count(), 2);
}

#[test]
fn partition_keeps_members_undecorated_and_never_takes_back() {
    let mut world = World::new(5, in_place());
    world.settle();
    world.decorate("log", merged(sidecar("log:1"), &partition(3)));
    let decorated = |world: &World| {
        sidecars(world)
            .iter()
            .filter(|image| !image.is_empty())
            .count()
    };
    world.settle();
    assert_eq!(decorated(&world), 2);
    for (to, count) in [(4, 2), (1, 4), (5, 4), (0, 5)] {
        world.decorate("log", partition(to));
        world.settle();
        assert_eq!(decorated(&world), count, "partition {to}");
        assert!(is_ready(&world), "partition {to}");
    }
}

#[test]
fn partition_of_set_does_not_hold_decorations_back() {
    for rolling in [
        json!({ "byPartition": { "partition": 9 } }),
        json!({ "byLabel": {} }),
    ] {
        let mut world = World::new(2, in_place());
        world.settle();
        world.edit(json!({ "updateStrategy": { "rollingUpdate": rolling } }));
        world.image("app:2");
        world.decorate("log", sidecar("log:1"));
        world.settle();
        assert_eq!(sidecars(&world), ["log:1", "log:1"]);
        assert_eq!(world.images(), ["app:1", "app:1"]);
        world.decorate("log", sidecar("log:2"));
        world.settle();
        assert_eq!(sidecars(&world), ["log:2", "log:2"]);
        assert_eq!(world.images(), ["app:1", "app:1"]);
        world.delete_decoration("log");
        world.settle();
        assert_eq!(
            (sidecars(&world), world.images()),
            (vec!["".into(), "".into()], vec!["app:1", "app:1"])
        );
    }
}

#[test]
fn paused_set_gets_no_decorations() {
    let mut world = World::new(2, json!({}));
    world.settle();
    world.edit(json!({ "paused": true }));
    world.decorate("log", sidecar("log:1"));
    world.settle();
    assert_eq!(sidecars(&world), ["", ""]);
    world.edit(json!({ "paused": false }));
    world.settle();
    assert_eq!(sidecars(&world), ["log:1", "log:1"]);
}

#[test]
fn operation_that_waits_is_begun_once_and_never_undone() {
    let mut world = World::on_plane(3, in_place());
    world.decorate("log", sidecar("log:1"));
    world.run_rounds(30);
    assert!(is_ready(&world));
    world.faults.holds = true;
    world.decorate("log", sidecar("log:2"));
    world.run_rounds(5);
    let begun = |world: &World| {
        let key = keys::Family::Operating.key("collaset");
        let members = world.members();
        members
            .values()
            .map(|pod| pod.label(&key).map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let first = begun(&world);
    assert!(first.iter().all(Option::is_some), "{first:?}");
    world.run_rounds(20);
    assert_eq!(begun(&world), first, "each Pod has kept its place");
    world.faults.holds = false;
    world.run_rounds(30);
    assert_eq!(sidecars(&world), ["log:2", "log:2", "log:2"]);
}

#[test]
fn failing_decoration_changes_nothing_and_is_reported() {
    let mut world = World::new(
        2,
        json!({ "template": { "metadata": { "annotations": { "note": "text" } } } }),
    );
    world.settle();
    let before = uids(&world);
    let patch =
        json!([{ "patchPolicy": "MergePatchJson", "annotations": { "note": "{\"a\":1}" } }]);
    world.decorate(
        "bad",
        json!({ "selector": {}, "template": { "metadata": patch } }),
    );
    world.settle();
    assert_eq!(uids(&world), before);
    let conditions = world.set.status.clone().unwrap().conditions;
    let update = conditions.iter().find(|c| c.type_ == "Update").unwrap();
    assert_eq!(
        (&*update.status, &*update.reason),
        ("False", "UpdateFailed")
    );
    assert!(
        update.message.contains("PodDecoration bad"),
        "{}",
        update.message
    );
    world.edit(json!({ "replicas": 4 }));
    world.run_rounds(20);
    assert_eq!(world.members().len(), 2, "no Pod is made without it");
    world.delete_decoration("bad");
    world.settle();
    assert_eq!(world.members().len(), 4);
}

#[test]
fn decoration_that_changes_selected_labels_makes_no_pods() {
    let mut world = World::new(2, json!({}));
    let patch = json!([{ "patchPolicy": "Overwrite", "labels": { "app": "other" } }]);
    world.decorate(
        "bad",
        json!({ "selector": {}, "template": { "metadata": patch } }),
    );
    world.run_rounds(20);
    assert_eq!(world.pods.len(), 0);
    let conditions = world.set.status.clone().unwrap().conditions;
    let scale = conditions.iter().find(|c| c.type_ == "Scale").unwrap();
    assert_eq!(&*scale.reason, "ScaleOutFailed");
}

#[test]
fn decoration_that_changes_selected_labels_leaves_running_pods() {
    for policy in ["InPlaceIfPossible", "Recreate", "Replace"] {
        let mut world = World::new(
            2,
            json!({ "updateStrategy": { "podUpgradePolicy": policy } }),
        );
        world.settle();
        let before = uids(&world);
        let patch = json!([{ "patchPolicy": "Overwrite", "labels": { "app": "other" } }]);
        world.decorate(
            "bad",
            json!({ "selector": {}, "template": { "metadata": patch } }),
        );
        world.run_rounds(20);
        assert_eq!(uids(&world), before);
        assert_eq!(world.pods.len(), 2);
        let conditions = world.set.status.clone().unwrap().conditions;
        let update = conditions.iter().find(|c| c.type_ == "Update").unwrap();
        let names_all = ["PodDecoration bad", "labels (app)", "spec.selector"];
        assert!(
            names_all.iter().all(|name| update.message.contains(name)),
            "{}",
            update.message
        );
    }
}

#[test]
fn excluded_pod_outlives_its_decoration() {
    let mut world = World::new(2, json!({}));
    world.decorate("log", sidecar("log:1"));
    world.settle();
    let name = world.members()[&0].metadata.name.clone();
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] }, "replicas": 1 }));
    world.settle();
    let pod = &world.pods[&name];
    assert!(
        pod.metadata.owner_references.is_empty(),
        "{:?}",
        pod.metadata.owner_references
    );
    assert_eq!(
        decorations_of(pod).len(),
        1,
        "the label says what it contains"
    );
    world.delete_decoration("log");
    world.settle();
    assert!(world.decorations.objects.is_empty());
    assert!(world.pods.contains_key(&name));
}

#[test]
fn lost_pod_is_made_once_with_changed_decoration() {
    let mut world = World::new(3, in_place());
    world.decorate("log", sidecar("log:1"));
    world.settle();
    world.decorate("log", sidecar("log:2"));
    let name = world.members()[&1].metadata.name.clone();
    world.pods.remove(&name);
    let created = |world: &World| world.members().get(&1).map(|pod| pod.metadata.uid.clone());
    while created(&world).is_none() {
        world.run_plan();
    }
    let uid = created(&world);
    world.settle();
    assert_eq!(created(&world), uid);
    assert_eq!(sidecars(&world), ["log:2", "log:2", "log:2"]);
}

#[test]
fn template_with_marks_of_decorations_comes_to_rest() {
    let labels = json!({ "app": "web", "poddecoration.kusionstack.io/pd-log": "log-1" });
    let mut world = World::new(
        2,
        json!({ "template": { "metadata": { "labels": labels } } }),
    );
    world.settle();
    let before = uids(&world);
    world.settle();
    assert_eq!(uids(&world), before);
    assert!(
        world
            .members()
            .values()
            .all(|pod| decorations_of(pod).is_empty())
    );
}

#[test]
fn new_pod_of_pair_takes_place_of_origin_in_partition() {
    let mut world = World::new(
        2,
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    world.decorate("log", sidecar("log:1"));
    world.settle();
    world.decorate("log", merged(sidecar("log:2"), &partition(1)));
    world.settle();
    let sorted = |world: &World| {
        let mut images = sidecars(world);
        images.sort();
        images
    };
    assert_eq!(sorted(&world), ["log:1", "log:2"]);
    let mut all: BTreeSet<String> = world.pods.keys().cloned().collect();
    world.image("app:2");
    for _ in 0..60 {
        world.run_plan();
        all.extend(world.pods.keys().cloned());
        world.step_surroundings();
    }
    assert_eq!(sorted(&world), ["log:1", "log:2"]);
    assert_eq!(all.len(), 4, "{all:?}");
}

#[test]
fn rollout_deletes_no_pod_while_decoration_is_held() {
    for begun in [false, true] {
        let mut world = World::on_plane(3, json!({}));
        world.run_rounds(30);
        let before = uids(&world);
        world.decorations.refuses_revisions = true;
        if begun {
            world.image("app:2");
            world.run_rounds(1);
        }
        world.decorate("log", sidecar("log:2"));
        if !begun {
            world.image("app:2");
        }
        world.run_rounds(60);
        assert_eq!(uids(&world), before, "begun before: {begun}");
        assert!(world.members().values().all(|pod| pod.is_available()));
        world.decorations.refuses_revisions = false;
        world.run_rounds(90);
        assert_eq!(sidecars(&world), ["log:2", "log:2", "log:2"]);
        assert_eq!(world.images(), ["app:2", "app:2", "app:2"]);
    }
}

#[test]
fn former_revision_serves_while_new_one_is_refused() {
    let mut world = World::new(3, in_place());
    world.decorate("log", sidecar("log:1"));
    world.settle();
    world.decorations.refuses_revisions = true;
    world.decorate("log", sidecar("log:2"));
    let name = world.members()[&1].metadata.name.clone();
    world.pods.remove(&name);
    world.settle();
    assert_eq!(sidecars(&world), ["log:1", "log:1", "log:1"]);
    world.decorations.refuses_revisions = false;
    world.settle();
    assert_eq!(sidecars(&world), ["log:2", "log:2", "log:2"]);
}

#[test]
fn label_of_single_pods_recreates_none() {
    // A webhook sets the label on each Pod that is created.
    let label = |world: &mut World| {
        let names: Vec<String> = world.pods.keys().cloned().collect();
        for name in names {
            let labels = &mut world.pods.get_mut(&name).unwrap().metadata.labels;
            labels.insert("zone".into(), "a".into());
        }
    };
    let selector = json!({ "selector": { "matchLabels": { "app": null, "zone": "a" } } });
    for policy in ["InPlaceIfPossible", "Recreate", "Replace"] {
        let mut world = World::new(
            2,
            json!({ "updateStrategy": { "podUpgradePolicy": policy } }),
        );
        world.settle();
        label(&mut world);
        let before = uids(&world);
        world.decorate("log", merged(sidecar("log:1"), &selector));
        for _ in 0..30 {
            world.run_rounds(1);
            label(&mut world);
        }
        assert_eq!(uids(&world), before, "{policy}");
        let conditions = world.set.status.clone().unwrap().conditions;
        let update = conditions.iter().find(|c| c.type_ == "Update").unwrap();
        let text = "PodDecoration log selects by labels";
        assert!(update.message.contains(text), "{}", update.message);
        // A change that is possible in place is made.
        let note = json!([{ "patchPolicy": "Retain", "annotations": { "note": "1" } }]);
        world.decorate(
            "log",
            json!({ "template": { "containers": null, "metadata": note } }),
        );
        for _ in 0..30 {
            world.run_rounds(1);
            label(&mut world);
        }
        let members = world.members();
        let decorated = members
            .values()
            .filter(|pod| !decorations_of(pod).is_empty());
        assert_eq!(
            decorated.count(),
            if policy == "InPlaceIfPossible" { 2 } else { 0 },
            "{policy}"
        );
        assert_eq!(uids(&world), before, "{policy}");
    }
}

#[test]
fn pod_whose_decorations_admission_changed_is_not_recreated() {
    let mut world = World::new(1, json!({}));
    world.decorate("log", sidecar("log:1"));
    world.settle();
    let before = uids(&world);
    let pod = world.pods.values_mut().next().unwrap();
    let asked_for = composition_name_of(pod).unwrap();
    pod.metadata
        .labels
        .remove("poddecoration.kusionstack.io/pd-log");
    world
        .refused
        .altered
        .insert(pod.metadata.uid.clone(), asked_for);
    world.run_rounds(20);
    assert_eq!(uids(&world), before);
    let conditions = world.set.status.clone().unwrap().conditions;
    let update = conditions.iter().find(|c| c.type_ == "Update").unwrap();
    assert!(
        update.message.contains("policy of admission"),
        "{}",
        update.message
    );
    world.refused.altered.clear();
    world.settle();
    assert_ne!(uids(&world), before);
}

#[test]
fn update_for_decorations_does_not_change_scope_of_rollout() {
    let rolling = json!({ "byPartition": { "partition": 1 } });
    let mut world = World::on_plane(2, json!({ "updateStrategy": { "rollingUpdate": rolling } }));
    world.run_rounds(30);
    // The change of the template needs a deletion, which is refused; the decoration is possible in place.
    world.edit(in_place());
    let cpu =
        json!({ "name": "app", "image": "app:1", "resources": { "requests": { "cpu": "1" } } });
    world.edit(json!({ "template": { "spec": { "containers": [cpu] } } }));
    world.faults.refused.insert(WriteKind::PodDeletion);
    world.run_rounds(20);
    world.decorate("mesh", json!({ "selector": {} }));
    world.run_rounds(10);
    let revisions = |world: &World| -> Vec<_> {
        let entries = &world.pool.as_ref().unwrap().contexts;
        entries
            .iter()
            .map(|entry| entry.data[pool::REVISION].clone())
            .collect()
    };
    let chosen = revisions(&world);
    for _ in 0..10 {
        world.run_rounds(1);
        world.wait(70);
        assert_eq!(revisions(&world), chosen);
    }
    world.faults = Default::default();
    world.run_rounds(60);
    assert!(is_ready(&world), "{:#?}", world.set.status);
}

#[test]
fn decorations_do_not_exchange_scope_while_pool_is_refused() {
    let half = json!({ "rollingUpdate": { "byPartition": { "partition": 1 } } });
    let mut world = World::on_plane(2, json!({ "updateStrategy": half }));
    world.settle();
    world.pool_bytes = 0;
    world.edit(one_pvc_template());
    let label = json!([{ "patchPolicy": "Retain", "labels": { "side": "1" } }]);
    world.decorate(
        "log",
        json!({ "selector": { "matchLabels": { "app": "web" } }, "template": { "metadata": label } }),
    );
    world.settle();
    let decorated = |world: &World| {
        let pods = world.pods.values();
        pods.filter(|pod| pod.label("side").is_some()).count()
    };
    assert_eq!(decorated(&world), 1, "the other Pod is in scope and waits");
    world.pool_bytes = headroom::MAX_POOL_BYTES;
    world.settle();
    assert_eq!(decorated(&world), 2);
}
