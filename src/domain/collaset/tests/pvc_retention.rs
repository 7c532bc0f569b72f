//! Retention of PVCs in unusual situations. No PVC may be mounted by two Pods, and none that a Pod mounts may be
//! deleted. The world checks both at each creation and deletion.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::reconcile::{grown, one_pvc_template, settled};
use super::world::{UID, World, WriteKind};
use crate::api::keys;
use crate::api::resourcecontext::{ContextDetail, data::OWNER};
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::planner::plan_set;
use crate::domain::collaset::pvcs;
use crate::domain::collaset::revision::data;

fn retained_policy() -> Value {
    json!({ "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": {
        "whenScaled": "Retain", "whenDeleted": "Retain",
    } } })
}

fn retained() -> Value {
    let mut spec = one_pvc_template();
    spec["scaleStrategy"] = retained_policy()["scaleStrategy"].clone();
    spec
}

/// UIDs and mounted PVCs by instance ID.
fn placed(world: &World) -> BTreeMap<i64, (String, Vec<String>)> {
    let members = world.members().into_iter();
    members
        .map(|(id, pod)| (id, (pod.metadata.uid.clone(), pod.spec.pvcs.clone())))
        .collect()
}

/// Leaves the Pods as `--cascade=orphan` does, under a set that was created again.
fn orphan(world: &mut World) {
    for pod in world.pods.values_mut() {
        pod.metadata.owner_references.clear();
    }
    for pvc in world.pvcs.values_mut() {
        pvc.controller = None;
    }
    for revision in world.revisions.values_mut() {
        revision.controller = None;
    }
    world.pool = None;
    world.set.status = None;
}

/// Like `orphan`, but another set of the pool has taken the IDs for which `is_taken` is true.
fn orphan_beside_another_set(world: &mut World, is_taken: impl Fn(i64) -> bool) {
    let mut pool = world.pool.take().unwrap();
    orphan(world);
    pool.contexts.retain(|context| is_taken(context.id));
    for context in &mut pool.contexts {
        context.data = [(OWNER.to_owned(), "other".to_owned())].into();
    }
    world.pool = Some(pool);
}

fn pod<'a>(world: &'a mut World, name: &str) -> &'a mut crate::domain::pod::Pod {
    world.pods.get_mut(name).unwrap()
}

fn name_of(world: &World, id: i64) -> String {
    world.members()[&id].metadata.name.clone()
}

fn ready(world: &World) -> String {
    let status = world.set.status.clone().unwrap();
    let ready = status.conditions.into_iter().find(|c| c.type_ == "Ready");
    ready.unwrap().message
}

#[test]
fn orphans_are_adopted_with_their_ids_and_pvcs() {
    for naming in ["Random", "PersistentSequence"] {
        let mut spec = one_pvc_template();
        spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": naming });
        let mut world = settled(3, spec);
        let (before, pvc_count) = (placed(&world), world.pvcs.len());
        orphan(&mut world);
        world.settle();
        assert_eq!(placed(&world), before);
        assert_eq!((world.pods.len(), world.pvcs.len()), (3, pvc_count));
        let owned = |c: &Pvc| c.controller.as_deref() == Some(UID);
        assert!(world.pvcs.values().all(owned));
    }
}

/// Users do this with a StatefulSet to get larger volumes for new Pods.
#[test]
fn orphans_keep_pvcs_when_set_returns_with_new_template() {
    for policy in ["Recreate", "InPlaceIfPossible", "Replace"] {
        let mut spec = one_pvc_template();
        spec["updateStrategy"] = json!({ "podUpgradePolicy": policy });
        let mut world = settled(3, spec);
        let before = world.pvcs.clone();
        orphan(&mut world);
        world.edit(grown());
        world.settle();
        for (name, pvc) in &before {
            let now = world.pvcs.get(name);
            let now = now.unwrap_or_else(|| panic!("{policy}: {name} is gone"));
            let mut labels = pvc.labels.clone();
            // The new Pod of a pair has another instance ID. The origin's ID is freed, so its PVC is released.
            match policy {
                "Replace" => labels.insert(keys::ORPHANED.into(), "true".into()),
                _ => labels.insert(keys::KEPT_FOR.into(), UID.into()),
            };
            assert_eq!((&now.labels, &now.controller), (&labels, &None));
        }
        let mounted = world.pods.values().flat_map(|pod| &pod.spec.pvcs);
        let mounted: Vec<_> = mounted.collect();
        assert!(mounted.len() == 3 && !mounted.iter().any(|name| before.contains_key(*name)));
        let is_kept = |(_, message): &&(_, String)| {
            message.contains("is kept: the CollaSet never deletes it")
        };
        assert_eq!(
            world.events.iter().filter(is_kept).count(),
            3,
            "{:?}",
            world.events
        );
        // With the former template the Pods mount the former volumes again.
        world.edit(one_pvc_template());
        world.settle();
        if policy != "Replace" {
            let mounted = world.pods.values().flat_map(|pod| &pod.spec.pvcs);
            assert!(
                mounted.clone().count() == 3
                    && mounted.clone().all(|name| before.contains_key(name))
            );
        }
    }
}

/// If two sets share a pool, the other set may have taken the IDs meanwhile.
#[test]
fn orphan_whose_id_is_taken_is_adopted_under_another_id() {
    let mut world = settled(2, one_pvc_template());
    let before = placed(&world);
    orphan_beside_another_set(&mut world, |_| true);
    world.settle();
    let after = placed(&world);
    assert_eq!(world.ids(), [2, 3]);
    let (before, after): (Vec<_>, Vec<_>) = (
        before.into_values().collect(),
        after.into_values().collect(),
    );
    assert_eq!(before, after);
    assert!(
        world.pvcs.len() == 2 && ready(&world).is_empty(),
        "{}",
        ready(&world)
    );
}

#[test]
fn surplus_orphan_with_taken_id_is_reported() {
    let mut world = settled(2, json!({}));
    let mut other = world.pods[&name_of(&world, 0)].clone();
    other.metadata.name = "web-other".into();
    other.metadata.uid = "other".into();
    other.metadata.owner_references.clear();
    other
        .metadata
        .labels
        .insert(keys::INSTANCE_ID.into(), "7".into());
    world.pods.insert("web-other".into(), other);
    let foreign = ContextDetail {
        id: 7,
        data: [(OWNER.to_owned(), "other".to_owned())].into(),
    };
    world.pool.as_mut().unwrap().contexts.push(foreign);
    world.settle();
    assert!(world.pods["web-other"].controller().is_none());
    let is_reported = |(_, message): &(_, String)| {
        message.contains("web-other matches spec.selector and is not adopted")
    };
    assert!(world.events.iter().any(is_reported), "{:?}", world.events);
}

/// The set is orphaned twice, so that the revision of the template already exists.
#[test]
fn orphans_keep_pvcs_when_set_returns_with_former_template() {
    let mut world = settled(2, one_pvc_template());
    world.edit(json!({ "historyLimit": 1 }));
    orphan(&mut world);
    world.edit(grown());
    world.settle();
    let before = world.pvcs.clone();
    assert_eq!(before.len(), 4);
    orphan(&mut world);
    world.edit(one_pvc_template());
    world.settle();
    // Neither do edits to another template and back delete a PVC, nor the deletion of the former revision.
    let strategy =
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 2 } } } });
    world.edit(strategy);
    world.edit(grown());
    world.settle();
    world.edit(one_pvc_template());
    world.settle();
    world.edit(json!({ "updateStrategy": { "rollingUpdate": null } }));
    for image in ["app:2", "app:3", "app:4"] {
        world.image(image);
        world.settle();
    }
    let deleted: Vec<_> = before
        .keys()
        .filter(|name| !world.pvcs.contains_key(*name))
        .collect();
    assert_eq!(deleted, [""; 0]);
}

/// The labels are edited while the Pod ends, which a finalizer may delay.
#[test]
fn unlabelled_pvc_of_ending_pod_goes_to_its_next_pod() {
    for value in [Some("7"), None] {
        let mut world = settled(2, one_pvc_template());
        let before = placed(&world);
        world.delete(&name_of(&world, 0));
        let labels = &mut world.pvcs.get_mut(&before[&0].1[0]).unwrap().labels;
        match value {
            Some(value) => labels.insert(keys::INSTANCE_ID.into(), value.into()),
            None => labels.remove(keys::INSTANCE_ID),
        };
        world.settle();
        let mounted_pvcs = |placed: BTreeMap<i64, (String, Vec<String>)>| -> Vec<_> {
            placed
                .into_iter()
                .map(|(id, (_, mounted_pvcs))| (id, mounted_pvcs))
                .collect()
        };
        assert_eq!(
            mounted_pvcs(placed(&world)),
            mounted_pvcs(before),
            "{value:?}"
        );
        assert_eq!(world.pvcs.len(), 2);
    }
}

#[test]
fn orphan_with_taken_id_takes_no_id_of_another_orphan() {
    let mut world = settled(2, json!({}));
    let before: BTreeSet<_> = placed(&world).into_values().collect();
    orphan_beside_another_set(&mut world, |id| id == 0);
    world.settle();
    assert_eq!(world.ids(), [1, 2]);
    assert_eq!(
        placed(&world).into_values().collect::<BTreeSet<_>>(),
        before
    );
}

#[test]
fn orphan_outside_set_stays_outside_if_nothing_is_missing() {
    let sequence = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut spec = one_pvc_template();
    json_patch::merge(&mut spec, &sequence);
    let mut world = settled(2, spec);
    orphan_beside_another_set(&mut world, |_| true);
    world.settle();
    assert_eq!(world.ids(), [2, 3]);
    let before = placed(&world);
    world
        .pool
        .as_mut()
        .unwrap()
        .contexts
        .retain(|context| context.data[OWNER] != "other");
    world.settle();
    assert_eq!(placed(&world), before);
}

/// The labels are edited as by `kubectl label --overwrite`.
#[test]
fn pvc_labelled_for_other_instance_or_template_stays_with_pod() {
    for (key, value) in [
        (keys::PVC_TEMPLATE_NAME, "logs"),
        (keys::PVC_TEMPLATE_NAME, ""),
        (keys::INSTANCE_ID, "1"),
        (keys::INSTANCE_ID, "7"),
        (keys::INSTANCE_ID, "x"),
    ] {
        let mut world = settled(2, one_pvc_template());
        let (before, pvcs) = (placed(&world), world.pvcs.clone());
        let mounted = before[&0].1[0].clone();
        let labels = &mut world.pvcs.get_mut(&mounted).unwrap().labels;
        labels.insert(key.into(), value.into());
        world.settle();
        let pods = |placed: BTreeMap<i64, _>| -> BTreeSet<(String, Vec<String>)> {
            placed.into_values().collect()
        };
        assert_eq!(pods(placed(&world)), pods(before), "{key}={value}");
        // The next Pods of both instances mount the same volumes.
        world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
        world.settle();
        let names: Vec<_> = world.pvcs.keys().collect();
        assert_eq!(names, pvcs.keys().collect::<Vec<_>>(), "{key}={value}");
    }
}

/// The API server stores such a set if it does not call the webhook.
#[test]
fn set_whose_selector_misses_its_template_creates_no_pod() {
    for replicas in [0, 2] {
        let mut world = settled(replicas, json!({}));
        world.edit(
            json!({ "replicas": 3, "template": { "metadata": { "labels": { "app": "other" } } } }),
        );
        let before: Vec<_> = world.pods.keys().cloned().collect();
        world.run_rounds(5);
        assert_eq!(world.pods.keys().cloned().collect::<Vec<_>>(), before);
        let message = ready(&world);
        assert!(
            message.contains("spec.template.metadata.labels"),
            "{message}"
        );
        for name in before {
            world.pods.remove(&name);
        }
        world.run_rounds(1);
        let status = world.set.status.clone().unwrap();
        assert_eq!((status.replicas, status.available_replicas), (0, 0));
        for type_ in ["Scale", "Update", "Ready"] {
            let condition = status.conditions.iter().find(|c| c.type_ == type_);
            let condition = condition.unwrap();
            assert_eq!(
                (&*condition.status, &*condition.reason),
                ("False", "Invalid")
            );
        }
    }
}

#[test]
fn selector_excluding_generated_labels_creates_no_pod() {
    for (key, operator, values) in [
        (keys::INSTANCE_ID, "DoesNotExist", json!([])),
        (keys::INSTANCE_ID, "NotIn", json!(["1"])),
        (keys::COMPLETING, "DoesNotExist", json!([])),
    ] {
        let expression = json!([{ "key": key, "operator": operator, "values": values }]);
        let mut world = World::new(2, json!({ "selector": { "matchExpressions": expression } }));
        world.run_rounds(5);
        assert!(world.pods.is_empty());
        assert!(ready(&world).contains("spec.selector"), "{}", ready(&world));
    }
    let expression = json!([{ "key": keys::INSTANCE_ID, "operator": "Exists" }]);
    let mut world = settled(2, json!({ "selector": { "matchExpressions": expression } }));
    world.image("app:2");
    world.settle();
    assert_eq!(world.images(), ["app:2", "app:2"]);
}

#[test]
fn only_orphans_of_the_set_are_adopted() {
    let edits: [fn(&mut crate::domain::pod::Pod); 4] = [
        |pod| {
            _ = pod
                .metadata
                .labels
                .insert(keys::ORPHANED.into(), "true".into())
        },
        |pod| {
            _ = pod
                .metadata
                .labels
                .insert(keys::TO_EXCLUDE.into(), "1".into())
        },
        |pod| _ = pod.metadata.labels.insert("app".into(), "debug".into()),
        |pod| _ = pod.metadata.labels.remove(keys::INSTANCE_ID),
    ];
    for (index, edit) in edits.into_iter().enumerate() {
        let mut world = settled(1, json!({}));
        let name = name_of(&world, 0);
        orphan(&mut world);
        edit(pod(&mut world, &name));
        world.settle();
        assert!(world.pods[&name].controller().is_none(), "edit {index}");
        assert_eq!(world.ids(), [0]);
    }
}

/// A random walk found this case: the set would wait forever for the Pod that mounts its PVC.
#[test]
fn orphan_without_id_is_identified_by_its_pvcs() {
    let mut world = settled(2, one_pvc_template());
    let before = placed(&world);
    let name = name_of(&world, 1);
    let metadata = &mut pod(&mut world, &name).metadata;
    metadata.owner_references.clear();
    metadata.labels.remove(keys::INSTANCE_ID);
    world.settle();
    assert_eq!(placed(&world), before);
}

#[test]
fn orphans_of_a_set_that_is_deleted_stay_orphans() {
    let mut world = settled(2, one_pvc_template());
    let deleted_at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(deleted_at);
    let finalizers = world.set.metadata.finalizers.as_mut().unwrap();
    finalizers.push("orphan".into());
    let name = name_of(&world, 0);
    pod(&mut world, &name).metadata.owner_references.clear();
    world.settle();
    assert!(world.pods[&name].controller().is_none());
}

#[test]
fn orphan_with_taken_id_is_not_adopted() {
    let mut world = settled(1, one_pvc_template());
    let mut other = world.pods[&name_of(&world, 0)].clone();
    other.metadata.name = "web-other".into();
    other.metadata.uid = "other".into();
    other.metadata.owner_references.clear();
    other.spec.pvcs.clear();
    world.pods.insert("web-other".into(), other);
    world.settle();
    assert!(world.pods["web-other"].controller().is_none());
}

#[test]
fn included_pod_keeps_its_id() {
    let mut world = settled(3, one_pvc_template());
    let before = placed(&world);
    let names = [1, 2].map(|id| name_of(&world, id));
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": names } }));
    world.settle();
    world.edit(json!({
        "replicas": 2, "scaleStrategy": { "podToExclude": [], "podToInclude": [names[1]] },
    }));
    world.settle();
    let after = placed(&world);
    assert_eq!(after.get(&2), before.get(&2));
    let pvc = &world.pvcs[&before[&2].1[0]];
    assert_eq!(pvc.labels[keys::INSTANCE_ID], "2");
}

#[test]
fn orphaned_pvcs_follow_included_pod_to_another_id() {
    let mut world = settled(1, one_pvc_template());
    let name = name_of(&world, 0);
    let pvc_name = world.pods[&name].spec.pvcs[0].clone();
    pod(&mut world, &name).metadata.owner_references.clear();
    let labels = &mut pod(&mut world, &name).metadata.labels;
    labels.insert(keys::ORPHANED.into(), "true".into());
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    labels.insert(keys::ORPHANED.into(), "true".into());
    world.pvcs.get_mut(&pvc_name).unwrap().controller = None;
    world.settle();
    // If somebody removes the label from the PVC, the PVC looks free.
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    labels.remove(keys::ORPHANED);
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": [name] } }));
    world.settle();
    assert_eq!(world.members()[&1].metadata.name, name);
    assert_eq!(world.pvcs[&pvc_name].labels[keys::INSTANCE_ID], "1");
}

#[test]
fn pvc_of_another_template_is_left_alone() {
    let by_label = json!({ "rollingUpdate": { "byLabel": {} } });
    let mut world = settled(1, retained());
    world.edit(json!({ "updateStrategy": by_label }));
    let name = name_of(&world, 0);
    world.edit(json!({ "replicas": 0, "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    let labels = world.pvcs.values().next().unwrap().labels.clone();
    let other = Pvc {
        name: "other".into(),
        uid: "other".into(),
        labels,
        ..Pvc::default()
    };
    let mut other = other;
    other
        .labels
        .insert(keys::PVC_TEMPLATE_NAME.into(), "logs".into());
    world.pvcs.insert("other".into(), other);
    pod(&mut world, &name).spec.pvcs.push("other".into());
    world.edit(json!({
        "replicas": 1, "scaleStrategy": { "podToExclude": [], "podToInclude": [name] },
    }));
    world.settle();
    assert!(world.pods[&name].controller().is_some());
    assert!(world.pvcs["other"].controller.is_none());
    world.edit(json!({
        "updateStrategy": { "rollingUpdate": null },
        "scaleStrategy": { "podToInclude": [], "persistentVolumeClaimRetentionPolicy": null },
    }));
    world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
    world.settle();
    assert!(!world.pods.contains_key(&name));
    assert!(world.pvcs.contains_key("other"));
}

#[test]
fn instance_id_of_unlabelled_pod_follows_from_its_pvcs() {
    for value in [None, Some("7"), Some("0"), Some("x")] {
        let mut world = settled(2, one_pvc_template());
        let before = placed(&world);
        let name = name_of(&world, 1);
        let labels = &mut pod(&mut world, &name).metadata.labels;
        match value {
            Some(value) => labels.insert(keys::INSTANCE_ID.into(), value.into()),
            None => labels.remove(keys::INSTANCE_ID),
        };
        world.settle();
        assert_eq!(placed(&world), before, "{value:?}");
    }
}

#[test]
fn pvcs_of_a_pod_of_an_unknown_revision_stay() {
    let mut world = settled(2, one_pvc_template());
    let pvcs = world.pvcs.clone();
    world.edit(json!({ "paused": true, "volumeClaimTemplates": [] }));
    world.settle();
    let old = world.members()[&0]
        .label(keys::REVISION)
        .unwrap()
        .to_owned();
    world.revisions.remove(&old);
    world.settle();
    assert_eq!(world.pvcs, pvcs);
    // The PVCs are not deleted either when no Pod mounts them.
    for pod in world.pods.values_mut() {
        pod.spec.pvcs.clear();
    }
    world.settle();
    assert_eq!(world.pvcs, pvcs);
}

#[test]
fn recreated_pod_waits_for_the_end_of_the_old_one() {
    let mut world = settled(1, one_pvc_template());
    let (name, before) = (name_of(&world, 0), placed(&world));
    world.delete(&name);
    world.run_until_idle();
    assert_eq!(world.pods.len(), 1);
    let pvc_name = &before[&0].1[0];
    let expected = format!("waiting for Pod {name}, which still mounts PVC {pvc_name}, to end");
    assert!(ready(&world).ends_with(&expected), "{}", ready(&world));
    world.settle();
    let after = placed(&world);
    assert_eq!(after[&0].1, before[&0].1);
    assert_ne!(after[&0].0, before[&0].0);
}

#[test]
fn end_of_somebody_elses_pod_is_looked_for_again() {
    let mut world = settled(1, retained());
    let name = name_of(&world, 0);
    let mut debug = world.pods[&name].clone();
    world.edit(json!({ "replicas": 0 }));
    world.settle();
    debug.metadata.name = "debug".into();
    debug.metadata.owner_references.clear();
    debug.metadata.labels = [(keys::CONTROL.to_owned(), "true".to_owned())].into();
    world.pods.insert("debug".into(), debug);
    world.edit(json!({ "replicas": 1 }));
    world.run_until_idle();
    assert_eq!(world.ids(), [0; 0]);
    assert!(ready(&world).contains("Pod debug"), "{}", ready(&world));
    assert!(plan_set(&world.observe()).requeue_after_nanos.is_some());
    world.pods.remove("debug");
    world.settle();
    assert_eq!(world.ids(), [0]);
}

#[test]
fn deleted_set_releases_pvcs_that_other_pods_mount() {
    let mut world = settled(1, one_pvc_template());
    let pvc_name = world.members()[&0].spec.pvcs[0].clone();
    let mut debug = world.pods[&name_of(&world, 0)].clone();
    debug.metadata.name = "debug".into();
    debug.metadata.owner_references.clear();
    debug.metadata.labels = [(keys::CONTROL.to_owned(), "true".to_owned())].into();
    world.pods.insert("debug".into(), debug);
    let deleted_at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(deleted_at);
    world.settle();
    assert!(world.is_deleted);
    assert_eq!(world.pvcs[&pvc_name].controller, None);
}

#[test]
fn random_suffix_of_digits_is_no_instance_id() {
    let mut world = settled(2, json!({}));
    for (id, name) in [(0, "web-bcdfg"), (1, "web-24567")] {
        let old = name_of(&world, id);
        let mut renamed = world.pods.remove(&old).unwrap();
        renamed.metadata.name = name.into();
        world.pods.insert(name.into(), renamed);
    }
    world.edit(json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } }));
    world.settle();
    assert_eq!(world.ids(), [0, 1]);
}

#[test]
fn pvcs_of_a_replaced_or_cancelled_half_go_despite_retention() {
    for cancelled in [false, true] {
        for naming in ["Random", "PersistentSequence"] {
            let mut spec = retained();
            spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": naming });
            let mut world = settled(2, spec);
            let name = name_of(&world, 0);
            let replace = |world: &mut World, on: bool| {
                let labels = &mut pod(world, &name).metadata.labels;
                match on {
                    true => labels.insert(keys::TO_REPLACE.into(), "1".into()),
                    false => labels.remove(keys::TO_REPLACE),
                };
            };
            replace(&mut world, true);
            world.run_until_idle();
            assert_eq!((world.pods.len(), world.pvcs.len()), (3, 3));
            if cancelled {
                replace(&mut world, false);
            }
            world.settle();
            assert_eq!(world.pods.contains_key(&name), cancelled);
            let pvc_names: Vec<_> = world.pvcs.keys().cloned().collect();
            let mut mounted: Vec<_> = placed(&world).into_values().flat_map(|p| p.1).collect();
            mounted.sort();
            assert_eq!(pvc_names, mounted, "cancelled {cancelled}, {naming}");
            let ids: Vec<i64> = world
                .pool
                .iter()
                .flat_map(|p| &p.contexts)
                .map(|c| c.id)
                .collect();
            assert_eq!(ids, world.ids());
            // A scale-in retains PVCs as before.
            world.edit(json!({ "replicas": 1 }));
            world.settle();
            assert_eq!(world.pvcs.len(), 2);
        }
    }
}

#[test]
fn set_with_unreadable_spec_keeps_retained_pvcs() {
    for (policy, retained) in [("Retain", 2), ("Delete", 1)] {
        let mut spec = one_pvc_template();
        spec["scaleStrategy"] =
            json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": policy } });
        let mut world = settled(2, spec);
        let mut outside = world.pods[&name_of(&world, 0)].clone();
        outside.metadata.name = "debug".into();
        outside.metadata.uid = "debug".into();
        outside.metadata.owner_references = Vec::new().into();
        world.pods.insert("debug".into(), outside);
        world.set.spec.selector = None;
        world.delete_set(false);
        let first = plan_set(&world.observe());
        assert!(!first.remove_finalizer);
        assert_eq!(first.pvcs.len(), retained, "{policy}");
        world.run_rounds(2);
        let owned = world.pvcs.values().filter(|pvc| pvc.controller.is_some());
        assert_eq!(owned.count(), 2 - retained, "{policy}");
        let finalizers = world.set.metadata.finalizers.unwrap_or_default();
        assert_eq!(finalizers, [""; 0], "{policy}");
    }
}

#[test]
fn deleted_pvc_of_unscheduled_pod_is_recreated() {
    let mut world = settled(2, one_pvc_template());
    let (name, pvc_name) = (name_of(&world, 1), placed(&world)[&1].1[0].clone());
    world.pvcs.remove(&pvc_name);
    let schedule = |world: &mut World, status: &str| {
        let conditions = json!([{ "type": "PodScheduled", "status": status }]);
        let pod = world.pods.get_mut(&name).unwrap();
        pod.status.conditions = serde_json::from_value(conditions).unwrap();
    };
    schedule(&mut world, "True");
    assert_eq!(plan_set(&world.observe()).pvcs, [], "it keeps its PVC");
    schedule(&mut world, "False");
    world.run_rounds(1);
    let made = &world.pvcs[&pvc_name];
    assert_eq!(made.labels[keys::INSTANCE_ID], "1");
    assert_eq!(plan_set(&world.observe()).pvcs, []);
}

/// This happens after `kubectl delete pvc` for a mounted PVC: the API server keeps it until the Pod has ended.
#[test]
fn terminating_mounted_pvc_is_reported_without_change() {
    let mut world = settled(2, one_pvc_template());
    assert_eq!(plan_set(&world.observe()).events, []);
    let (name, pvc_name) = (name_of(&world, 1), placed(&world)[&1].1[0].clone());
    world.pvcs.get_mut(&pvc_name).unwrap().terminating = true;
    let planned = plan_set(&world.observe());
    assert!(planned.is_empty() && planned.requeue_after_nanos.is_none());
    let [event] = &planned.events[..] else {
        panic!("{:?}", planned.events)
    };
    assert_eq!((event.warning, event.reason), (true, "ClaimTerminating"));
    assert_eq!(
        event.message,
        format!(
            "PVC {pvc_name} of Pod {name} is being deleted: the next Pod of instance ID 1 begins with an empty volume"
        )
    );
    let deleted_at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.set.metadata.deletion_timestamp = Some(deleted_at);
    assert_eq!(plan_set(&world.observe()).events, []);
}

#[test]
fn pvc_that_cannot_be_released_blocks_no_other_pod() {
    let mut spec = retained();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate" });
    let mut world = settled(3, spec);
    world.edit(grown());
    world.settle();
    let leaver = world.members()[&1].clone();
    let is_old =
        |c: &&Pvc| c.labels[keys::INSTANCE_ID] == "1" && !leaver.spec.pvcs.contains(&c.name);
    let old = world.pvcs.values().find(is_old).unwrap().name.clone();
    world.faults.stubborn.insert(old.clone());
    let exclude = json!({ "podToExclude": [leaver.metadata.name] });
    world.edit(json!({ "replicas": 5, "scaleStrategy": exclude }));
    world.settle();
    assert_eq!(world.ids().len(), 5);
    world.faults.stubborn.clear();
    world.settle();
    assert!(!world.owns(&world.pods[&leaver.metadata.name]));
    assert_eq!(world.pvcs[&old].controller, None);
}

/// The Pod is a copy that somebody made: it has no instance ID and mounts no PVC.
#[test]
fn pod_without_an_id_gets_none_whose_volumes_are_retained() {
    for owned in [true, false] {
        let mut world = settled(2, retained());
        world.edit(json!({ "replicas": 1 }));
        world.settle();
        let mut copy = world.pods[&name_of(&world, 0)].clone();
        copy.metadata.name = "web-copy".into();
        copy.metadata.uid = "copy".into();
        copy.metadata.labels.remove(keys::INSTANCE_ID);
        copy.spec.pvcs.clear();
        world.pods.insert("web-copy".into(), copy);
        let pvcs = world.pvcs.values_mut();
        let mut retained = pvcs.filter(|pvc| pvc.labels[keys::INSTANCE_ID] == "1");
        let retained = retained.next().unwrap();
        if !owned {
            retained.controller = None; // a former set of this name has left it
        }
        let retained = retained.name.clone();
        world.edit(json!({ "replicas": 2 }));
        world.run_plan();
        assert_eq!(name_of(&world, 2), "web-copy", "owned {owned}");
        world.settle();
        assert_eq!(world.ids(), [0, 2]);
        let mut mounted = world.pods.values().flat_map(|pod| &pod.spec.pvcs);
        assert!(!mounted.any(|pvc_name| *pvc_name == retained));
        assert!(world.pvcs.contains_key(&retained));
    }
}

#[test]
fn finalizers_of_a_pod_that_is_waited_for_are_named() {
    let sequence = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    for (spec, mounts_pvc) in [(one_pvc_template(), true), (sequence, false)] {
        let mut world = settled(1, spec);
        let name = name_of(&world, 0);
        world.delete(&name);
        let pod = world.pods.get_mut(&name).unwrap();
        pod.metadata.finalizers = vec!["example.com/slow".to_owned()];
        world.run_until_idle();
        let expected = match mounts_pvc {
            true => {
                let pvc_name = &world.pods[&name].spec.pvcs[0];
                format!(
                    "waiting for Pod {name}, which still mounts PVC {pvc_name}, to end (finalizer example.com/slow)"
                )
            }
            false => format!("waiting for {name} to end (finalizer example.com/slow)"),
        };
        assert!(ready(&world).ends_with(&expected), "{}", ready(&world));
    }
}

/// A set of two that adopted the Pods of a former set. A partition keeps them on PVCs of the former template.
fn on_kept_pvcs() -> World {
    let mut world = settled(2, one_pvc_template());
    orphan(&mut world);
    let mut spec = grown();
    spec["updateStrategy"] = json!({ "rollingUpdate": { "byPartition": { "partition": 2 } } });
    world.edit(spec);
    world.settle();
    let pvcs = world.pvcs.values();
    let kept_pvcs = pvcs.filter(|pvc| pvc.labels.get(keys::KEPT_FOR) == Some(&UID.to_owned()));
    assert_eq!((kept_pvcs.count(), world.pvcs.len()), (2, 2));
    world
}

/// The only PVC of the Pod of an instance.
fn pvc_name_of(world: &World, id: i64) -> String {
    let [pvc_name] = &world.members()[&id].spec.pvcs[..] else {
        panic!("{:?}", world.members()[&id].spec.pvcs)
    };
    pvc_name.clone()
}

fn is_orphaned(world: &World, pvc_name: &str) -> bool {
    world.pvcs[pvc_name].labels.contains_key(keys::ORPHANED)
}

/// A PVC with an unknown hash might be of any template.
#[test]
fn kept_pvc_of_unknown_revision_is_unused_after_scale_in() {
    let mut world = settled(2, one_pvc_template());
    world.edit(json!({ "historyLimit": 1 }));
    let former = pvc_name_of(&world, 0);
    orphan(&mut world);
    world.edit(grown());
    world.settle();
    for image in ["app:2", "app:3", "app:4"] {
        world.image(image);
        world.settle();
    }
    // An instance that has lost its own PVC does not mount the kept one either.
    let (name, own) = (name_of(&world, 0), pvc_name_of(&world, 0));
    world.pods.remove(&name);
    world.pvcs.remove(&own);
    world.settle();
    assert_ne!(pvc_name_of(&world, 0), former);
    for replicas in [0, 2] {
        world.edit(json!({ "replicas": replicas }));
        world.settle();
    }
    let mounted = [pvc_name_of(&world, 0), pvc_name_of(&world, 1)];
    assert!(!mounted.contains(&former), "{mounted:?}");
    world.edit(json!({ "replicas": 0 }));
    world.settle();
    assert!(world.pvcs.contains_key(&former) && world.pvcs.len() == 2);
}

/// The PVC has only the labels that the former selector matched.
#[test]
fn kept_pvc_is_mounted_by_next_pod_despite_stricter_selector() {
    let mut spec = one_pvc_template();
    spec["template"] = json!({ "metadata": { "labels": { "tier": "data" } } });
    let mut world = settled(2, spec);
    orphan(&mut world);
    let mut spec = grown();
    spec["selector"] = json!({ "matchLabels": { "tier": "data" } });
    spec["updateStrategy"] = json!({ "rollingUpdate": { "byPartition": { "partition": 2 } } });
    world.edit(spec);
    world.settle();
    let before = placed(&world);
    let name = name_of(&world, 0);
    world.delete(&name);
    world.settle();
    let after = placed(&world);
    assert!(after[&0].0 != before[&0].0 && after[&0].1 == before[&0].1);
}

#[test]
fn kept_pvc_leaves_with_its_pod() {
    for by_label in [false, true] {
        let mut world = on_kept_pvcs();
        let (name, pvc_name) = (name_of(&world, 0), pvc_name_of(&world, 0));
        match by_label {
            true => pod(&mut world, &name).metadata.labels.remove("app"),
            false => {
                let labels = &mut pod(&mut world, &name).metadata.labels;
                labels.insert(keys::TO_EXCLUDE.into(), "true".into())
            }
        };
        world.settle();
        assert!(!world.owns(&world.pods[&name]) && is_orphaned(&world, &pvc_name));
        assert!(!world.pvcs[&pvc_name].labels.contains_key(keys::KEPT_FOR));
        assert_eq!(world.members().len(), 2, "nobody waits for its end");
        world.pods.remove(&name);
        world.settle();
        let mounted = world.pods.values().flat_map(|pod| &pod.spec.pvcs);
        assert!(!mounted.into_iter().any(|other| *other == pvc_name));
        assert!(world.pvcs.contains_key(&pvc_name));
    }
}

#[test]
fn kept_pvcs_outlive_their_instances_and_set() {
    for scaled in [true, false] {
        let mut world = on_kept_pvcs();
        let before: Vec<_> = world.pvcs.keys().cloned().collect();
        match scaled {
            true => world.edit(json!({ "replicas": 0 })),
            false => world.delete_set(false),
        }
        world.settle();
        assert!(world.members().is_empty() && world.is_deleted != scaled);
        let after: Vec<_> = world.pvcs.keys().cloned().collect();
        assert_eq!(before, after);
        for pvc_name in &before {
            assert!(
                is_orphaned(&world, pvc_name),
                "scaled {scaled}: as if deleted"
            );
            assert!(!world.pvcs[pvc_name].labels.contains_key(keys::KEPT_FOR));
        }
        if scaled {
            world.edit(json!({ "replicas": 2 }));
            world.settle();
            assert!((0..2).all(|id| !before.contains(&pvc_name_of(&world, id))));
        }
    }
}

#[test]
fn kept_pvcs_return_at_scale_out_with_retain() {
    let mut world = on_kept_pvcs();
    let before = placed(&world);
    world.edit(retained_policy());
    world.edit(json!({ "replicas": 0 }));
    world.settle();
    let is_kept = |pvc: &Pvc| pvc.labels.contains_key(keys::KEPT_FOR);
    assert!(world.pods.is_empty() && world.pvcs.values().all(is_kept));
    world.edit(one_pvc_template());
    world.edit(json!({ "replicas": 2, "updateStrategy": { "rollingUpdate": null } }));
    world.settle();
    let mounted_pvcs = |placed: BTreeMap<i64, (String, Vec<String>)>| -> Vec<_> {
        placed
            .into_values()
            .map(|(_, mounted_pvcs)| mounted_pvcs)
            .collect()
    };
    assert_eq!(mounted_pvcs(placed(&world)), mounted_pvcs(before));
}

/// Nobody can tell whether the set owned the PVC before.
#[test]
fn pod_returning_on_pvc_of_other_template_keeps_it() {
    let mut world = settled(2, one_pvc_template());
    let mut spec = grown();
    spec["updateStrategy"] = json!({ "rollingUpdate": { "byPartition": { "partition": 2 } } });
    world.edit(spec);
    world.settle();
    let (name, pvc_name) = (name_of(&world, 0), pvc_name_of(&world, 0));
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    assert!(!world.owns(&world.pods[&name]));
    world.edit(
        json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [], "podToInclude": [name] } }),
    );
    world.settle();
    assert_eq!(pvc_name_of(&world, 0), pvc_name);
    let is_reported = |(_, message): &(_, String)| {
        message.contains(&format!(
            "Pod {name} is included under instance ID 0; its PVC {pvc_name}"
        )) && message.contains("the CollaSet never deletes it")
    };
    assert!(world.events.iter().any(is_reported), "{:?}", world.events);
    world.delete(&name);
    world.settle();
    assert_eq!(pvc_name_of(&world, 0), pvc_name, "the next Pod has it");
}

/// Without the label the PVC counts as a PVC without an owner.
#[test]
fn kept_pvc_becomes_owned_when_its_template_returns() {
    let mut world = on_kept_pvcs();
    let pvc_name = pvc_name_of(&world, 0);
    world
        .pvcs
        .get_mut(&pvc_name)
        .unwrap()
        .labels
        .remove(keys::KEPT_FOR);
    world.settle();
    assert_eq!(world.pvcs[&pvc_name].labels[keys::KEPT_FOR], UID);
    world.edit(one_pvc_template());
    world.settle();
    assert_eq!(world.pvcs[&pvc_name].labels[keys::KEPT_FOR], UID);
    world
        .pvcs
        .get_mut(&pvc_name)
        .unwrap()
        .labels
        .remove(keys::KEPT_FOR);
    world.settle();
    let now = &world.pvcs[&pvc_name];
    assert!(now.controller.as_deref() == Some(UID) && !now.labels.contains_key(keys::KEPT_FOR));
}

/// The label names the UID of a former set; this set was created later.
#[test]
fn pvc_kept_for_deleted_set_counts_as_unowned() {
    let mut world = on_kept_pvcs();
    orphan(&mut world);
    for pvc in world.pvcs.values_mut() {
        pvc.labels.insert(keys::KEPT_FOR.into(), "former".into());
    }
    let before = placed_anywhere(&world);
    world.settle();
    assert_eq!(placed_anywhere(&world), before);
    for pvc in world.pvcs.values() {
        assert_eq!(pvc.labels[keys::KEPT_FOR], UID);
    }
    orphan(&mut world);
    for pvc in world.pvcs.values_mut() {
        pvc.labels.insert(keys::KEPT_FOR.into(), "former".into());
    }
    world.edit(one_pvc_template());
    world.settle();
    for pvc in world.pvcs.values() {
        assert!(pvc.controller.is_some() && !pvc.labels.contains_key(keys::KEPT_FOR));
    }
}

/// UIDs and PVCs of all Pods.
fn placed_anywhere(world: &World) -> Vec<(String, Vec<String>)> {
    let pods = world.pods.values();
    pods.map(|pod| (pod.metadata.uid.clone(), pod.spec.pvcs.clone()))
        .collect()
}

#[test]
fn labels_of_kept_pvc_are_repaired_while_its_pod_ends() {
    let mut world = on_kept_pvcs();
    let (name, pvc_name) = (name_of(&world, 0), pvc_name_of(&world, 0));
    world.delete(&name);
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    labels.insert(keys::INSTANCE_ID.into(), "7".into());
    world.run_until_idle();
    assert_eq!(world.pvcs[&pvc_name].labels[keys::INSTANCE_ID], "0");
    world.settle();
    assert_eq!(pvc_name_of(&world, 0), pvc_name);
}

/// Nobody can tell whose label was edited. The Pod continues to run, and the set does not delete the PVC.
#[test]
fn pvc_labelled_with_other_template_than_its_pods_is_kept() {
    for (edit_pod, ends) in [(false, false), (true, false), (false, true)] {
        let mut world = settled(2, one_pvc_template());
        let former = world.revisions.keys().next().unwrap().clone();
        let mut spec = grown();
        spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate", "rollingUpdate": { "byPartition": { "partition": 1 } } });
        world.edit(spec);
        world.settle();
        world.edit(json!({ "updateStrategy": { "rollingUpdate": null } }));
        world.settle();
        let (name, pvc_name) = (name_of(&world, 0), pvc_name_of(&world, 0));
        let before = placed(&world);
        if ends {
            world.delete(&name);
        }
        match edit_pod {
            true => {
                let labels = &mut pod(&mut world, &name).metadata.labels;
                labels.insert(keys::REVISION.into(), former);
            }
            false => {
                let hash = data::pvc_templates(&world.revisions[&former].data);
                let hash = pvcs::hash::hash_template(&hash[0]);
                let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
                labels.insert(keys::PVC_TEMPLATE_HASH.into(), hash);
            }
        }
        world.run_plan();
        assert_eq!(world.pvcs[&pvc_name].labels[keys::KEPT_FOR], UID);
        world.run_plan();
        let is_reported =
            |(_, message): &(_, String)| message.contains("one of their labels was edited");
        assert!(world.events.iter().any(is_reported), "{:?}", world.events);
        world.settle();
        if !edit_pod && !ends {
            assert_eq!(placed(&world), before, "it runs on");
            world.delete(&name);
            world.settle();
        }
        assert_ne!(placed(&world)[&0].0, before[&0].0);
        assert!(world.pvcs.contains_key(&pvc_name));
    }
}

/// The hash may be in the notation of another implementation, or of another set. The PVC then counts as one of the
/// Pod's template.
#[test]
fn kept_pvc_of_unknown_template_serves_next_pods_of_instance() {
    let mut world = settled(1, one_pvc_template());
    let pvc_name = pvc_name_of(&world, 0);
    orphan(&mut world);
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    let own = labels.insert(keys::PVC_TEMPLATE_HASH.into(), "notation".into());
    world.settle();
    let labels = world.pvcs[&pvc_name].labels.clone();
    assert_eq!(labels.get(keys::KEPT_AS), own.as_ref());
    assert_eq!(labels[keys::PVC_TEMPLATE_HASH], "notation");
    assert_eq!(labels[keys::KEPT_FOR], UID);
    let is_reported = |(_, message): &(_, String)| {
        message.ends_with("and is kept: the CollaSet never deletes it")
    };
    assert!(world.events.iter().any(is_reported), "{:?}", world.events);
    world.edit(json!({ "template": { "spec": { "hostNetwork": true } } }));
    world.settle();
    assert_eq!(pvc_name_of(&world, 0), pvc_name);
    world.edit(grown());
    world.settle();
    assert!(pvc_name_of(&world, 0) != pvc_name && world.pvcs.contains_key(&pvc_name));
    let mut former = one_pvc_template();
    former["template"] = json!({ "spec": { "hostNetwork": true } });
    world.edit(former);
    world.settle();
    assert_eq!(
        pvc_name_of(&world, 0),
        pvc_name,
        "the former PVC is used again"
    );
}

/// The set sends no warning, because the template has the same meaning.
#[test]
fn pvcs_stay_when_template_spells_out_default() {
    for orphaned in [false, true] {
        let mut world = settled(2, one_pvc_template());
        let before = world.pvcs.clone();
        if orphaned {
            orphan(&mut world);
        }
        let mut spelt = one_pvc_template();
        spelt["volumeClaimTemplates"][0]["spec"]["volumeMode"] = json!("Filesystem");
        spelt["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate" });
        world.edit(spelt);
        world.settle();
        world.image("app:2");
        world.settle();
        assert_eq!(world.images(), ["app:2", "app:2"]);
        assert_eq!(world.pvcs, before, "orphaned {orphaned}");
    }
}

/// A set of one that keeps few revisions, and the retained PVC of its former template.
fn grown_beside_retained_pvc() -> (World, String) {
    let mut spec = retained();
    spec["historyLimit"] = json!(1);
    let mut world = settled(1, spec);
    let first = pvc_name_of(&world, 0);
    world.edit(grown());
    world.settle();
    (world, first)
}

#[test]
fn latest_pvc_of_forgotten_templates_is_mounted() {
    let (mut world, first) = grown_beside_retained_pvc();
    let second = pvc_name_of(&world, 0);
    let hashes = ["forgotten-1", "forgotten-2"];
    for (pvc_name, hash) in [&first, &second].into_iter().zip(hashes) {
        let labels = &mut world.pvcs.get_mut(pvc_name).unwrap().labels;
        labels.insert(keys::PVC_TEMPLATE_HASH.into(), hash.into());
    }
    let name = name_of(&world, 0);
    world.pods.remove(&name);
    world.settle();
    assert_eq!(pvc_name_of(&world, 0), second);
}

/// The ID has a PVC that is kept for a return to the former template, beside the one that the Pod mounts.
#[test]
fn orphan_enters_beside_kept_pvc_of_its_id() {
    let mut world = settled(1, one_pvc_template());
    let former = pvc_name_of(&world, 0);
    orphan(&mut world);
    world.edit(grown());
    world.settle();
    let before = placed(&world);
    let name = name_of(&world, 0);
    pod(&mut world, &name).metadata.owner_references.clear();
    world.settle();
    assert_eq!(placed(&world), before);
    assert_eq!(world.pvcs[&former].labels[keys::KEPT_FOR], UID);
}

/// Otherwise the next set of this name would take the PVC and delete it as its own.
#[test]
fn kept_pvc_with_immutable_labels_keeps_its_set() {
    let mut world = on_kept_pvcs();
    let pvc_names: Vec<_> = world.pvcs.keys().cloned().collect();
    world.faults.stubborn.extend(pvc_names.clone());
    world.delete_set(false);
    world.settle();
    let status = world.set.status.clone().unwrap();
    let terminating = status.conditions.iter().find(|c| c.type_ == "Terminating");
    assert!(
        terminating.unwrap().message.contains(&pvc_names[0]),
        "{terminating:?}"
    );
    assert!(!world.is_deleted);
    world.faults.stubborn.clear();
    world.settle();
    assert!(
        world.is_deleted
            && pvc_names
                .iter()
                .all(|pvc_name| is_orphaned(&world, pvc_name))
    );
}

/// This also holds for a set that was created again after all its Pods were gone.
#[test]
fn pvcs_of_a_former_set_serve_their_own_template_alone() {
    let mut world = settled(2, one_pvc_template());
    world.edit(json!({ "historyLimit": 1 }));
    let former = [pvc_name_of(&world, 0), pvc_name_of(&world, 1)];
    orphan(&mut world);
    world.pods.clear();
    world.revisions.clear();
    world.edit(grown());
    world.settle();
    for replicas in [0, 2] {
        world.edit(json!({ "replicas": replicas }));
        world.settle();
        assert!(
            world
                .ids()
                .iter()
                .all(|id| !former.contains(&pvc_name_of(&world, *id)))
        );
    }
    // With the former template the instances mount their former PVCs.
    world.edit(one_pvc_template());
    world.settle();
    assert_eq!([pvc_name_of(&world, 0), pvc_name_of(&world, 1)], former);
}

/// Such a PVC may allow mounts by many Pods.
#[test]
fn pvc_also_mounted_by_foreign_pod_is_not_kept() {
    let mut world = settled(1, one_pvc_template());
    let pvc_name = pvc_name_of(&world, 0);
    world.pvcs.get_mut(&pvc_name).unwrap().controller = None;
    let mut other = world.pods[&name_of(&world, 0)].clone();
    other.metadata.name = "other".into();
    other.metadata.uid = "other".into();
    let mut owners = other.metadata.owner_references.to_vec();
    owners[0].uid = "other".into();
    other.metadata.owner_references = owners.into();
    world.pods.insert("other".into(), other);
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    labels.insert(keys::KEPT_FOR.into(), "other".into());
    world.run_until_idle();
    assert_eq!(world.pvcs[&pvc_name].labels[keys::KEPT_FOR], "other");
}

/// The PVC belongs to the set web-data with the template logs.
#[test]
fn pvc_of_included_pod_is_not_matched_by_name_alone() {
    let mut spec = one_pvc_template();
    spec["volumeClaimTemplates"][0]["metadata"]["name"] = json!("data-logs");
    let mut world = settled(1, spec);
    let mut other = world.pods[&name_of(&world, 0)].clone();
    other.metadata.name = "web-data-abcde".into();
    other.metadata.uid = "other".into();
    other.metadata.owner_references = Vec::new().into();
    let labels = &mut other.metadata.labels;
    labels.insert(keys::INSTANCE_ID.into(), "0".into());
    other.spec.pvcs = vec!["web-data-logs-x7b2k".into()];
    let mut pvc = world.pvcs.values().next().unwrap().clone();
    pvc.name = other.spec.pvcs[0].clone();
    pvc.uid = pvc.name.clone();
    pvc.controller = None;
    pvc.labels
        .insert(keys::PVC_TEMPLATE_NAME.into(), "logs".into());
    world.pvcs.insert(pvc.name.clone(), pvc.clone());
    world.pods.insert(other.metadata.name.clone(), other);
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": ["web-data-abcde"] } }));
    world.run_rounds(3);
    assert!(world.owns(&world.pods["web-data-abcde"]));
    assert_eq!(world.pvcs[&pvc.name].labels, pvc.labels);
}

/// The former revision is used in place of the refused one, and does not describe the template in the spec.
#[test]
fn orphan_pvcs_are_kept_while_other_template_revision_is_refused() {
    let mut world = settled(2, one_pvc_template());
    let before: Vec<_> = world.pvcs.keys().cloned().collect();
    orphan(&mut world);
    for revision in world.revisions.values_mut() {
        revision.controller = Some(UID.into()); // a quota of revisions does not prevent their adoption
    }
    world.faults.refused.insert(WriteKind::Revision);
    world.edit(grown());
    world.run_rounds(10);
    assert_eq!(world.members().len(), 2);
    world.faults.refused.clear();
    world.refused = Default::default();
    world.settle();
    assert!((0..2).all(|id| !before.contains(&pvc_name_of(&world, id))));
    assert!(
        before
            .iter()
            .all(|pvc_name| world.pvcs.contains_key(pvc_name))
    );
}

/// An aborted rollout goes back to the former template until a user retries it.
#[test]
fn pvc_of_pod_returning_during_aborted_rollout_is_kept() {
    let mut world = on_kept_pvcs();
    world.edit(
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 1 } } } }),
    );
    world.run_plan();
    world.command("abort");
    world.settle();
    let (name, pvc_name) = (name_of(&world, 0), pvc_name_of(&world, 0));
    world.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }));
    world.settle();
    world.edit(json!({
        "replicas": 3, "scaleStrategy": { "podToExclude": [], "podToInclude": [name] },
    }));
    world.settle();
    assert!(world.owns(&world.pods[&name]));
    assert_eq!(world.pvcs[&pvc_name].labels[keys::KEPT_FOR], UID);
}

/// The template is forgotten after many changes of the template under `whenScaled: Retain`.
#[test]
fn pvc_of_forgotten_template_is_unused_beside_later_one() {
    let (mut world, first) = grown_beside_retained_pvc();
    for image in ["app:2", "app:3", "app:4"] {
        world.image(image);
        world.settle();
    }
    let second = pvc_name_of(&world, 0);
    let mut larger = one_pvc_template();
    larger["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = json!("5Gi");
    world.edit(larger);
    world.settle();
    let third = pvc_name_of(&world, 0);
    assert!(third != first && third != second);
    assert_eq!(world.pvcs.len(), 3);
}

/// The kept PVC stays beside the serving one, for a return to its template.
#[test]
fn pvc_without_hash_is_mounted_beside_kept_pvc() {
    let mut world = settled(1, one_pvc_template());
    orphan(&mut world);
    world.edit(grown());
    world.settle();
    let (name, pvc_name) = (name_of(&world, 0), pvc_name_of(&world, 0));
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    labels.remove(keys::PVC_TEMPLATE_HASH);
    world.delete(&name);
    world.settle();
    assert_eq!(pvc_name_of(&world, 0), pvc_name);
}

/// A user keeps the PVC by `kubectl label pvc`. The PVC has a hash in another implementation's notation, or none.
#[test]
fn pvc_kept_by_user_still_serves_its_pods() {
    for hash in ["notation", ""] {
        let mut world = settled(1, one_pvc_template());
        let (pvc_name, before) = (pvc_name_of(&world, 0), placed(&world));
        let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
        let own = match hash {
            "" => None,
            _ => labels.insert(keys::PVC_TEMPLATE_HASH.into(), hash.into()),
        };
        world.settle();
        assert_eq!(placed(&world), before);
        let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
        labels.insert(keys::KEPT_FOR.into(), UID.into());
        world.settle();
        assert_eq!(placed(&world), before);
        let pvc = &world.pvcs[&pvc_name];
        assert_eq!(pvc.controller, None, "the collector leaves it");
        assert_eq!(pvc.labels.get(keys::KEPT_AS), own.as_ref());
        let name = name_of(&world, 0);
        world.delete(&name);
        world.settle();
        assert_eq!(pvc_name_of(&world, 0), pvc_name);
    }
}

/// The revision keeps the notation in which it was created.
#[test]
fn pvcs_of_spec_are_owned_in_any_notation() {
    let mut world = settled(1, one_pvc_template());
    let before = placed(&world);
    orphan(&mut world);
    let mut other = one_pvc_template();
    other["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] =
        json!("1073741824");
    world.edit(other);
    world.settle();
    assert_eq!(placed(&world), before);
    let pvc = &world.pvcs[&pvc_name_of(&world, 0)];
    assert!(pvc.controller.is_some() && !pvc.labels.contains_key(keys::KEPT_FOR));
}

/// No Pod mounts the kept PVC, which is there for a return to the former template.
#[test]
fn pod_with_kept_pvc_of_removed_template_keeps_id() {
    for is_owner_lost in [true, false] {
        let mut world = settled(2, one_pvc_template());
        orphan(&mut world);
        world.edit(json!({ "volumeClaimTemplates": [] }));
        world.settle();
        let before = placed(&world);
        assert!(before.values().all(|(_, pvc_names)| pvc_names.is_empty()));
        let name = name_of(&world, 0);
        let edited = &mut pod(&mut world, &name).metadata;
        match is_owner_lost {
            true => edited.owner_references.clear(),
            false => _ = edited.labels.remove(keys::INSTANCE_ID),
        }
        world.settle();
        assert_eq!(placed(&world), before);
        let pvcs = world.pvcs.values();
        assert!(
            pvcs.into_iter()
                .all(|pvc| pvc.labels[keys::KEPT_FOR] == UID)
        );
    }
}

/// In a foreground deletion the set stays until its owned PVCs are gone. No PVC that outlasts the set may be deleted.
#[test]
fn deleted_set_without_finalizer_releases_outlasting_pvcs() {
    let mut world = settled(2, retained());
    world.delete_set(false);
    let finalizers = vec!["foregroundDeletion".to_owned()];
    world.set.metadata.finalizers = Some(finalizers);
    assert_eq!(plan_set(&world.observe()).pvcs.len(), 2);
    world.set.spec.selector = None;
    assert_eq!(plan_set(&world.observe()).pvcs.len(), 2);
}

/// In a foreground deletion the garbage collector deletes the dependents of the set while its Pods still exist.
#[test]
fn deleted_set_releases_outlasting_pvcs_before_pods_end() {
    let mut world = settled(2, retained());
    world.delete_set(false);
    let first = plan_set(&world.observe());
    assert_eq!(first.pvcs.len(), 2);
    world.settle();
    assert!(world.is_deleted && world.pvcs.values().all(|pvc| pvc.controller.is_none()));
    let mut world = settled(1, one_pvc_template());
    let pvc_name = pvc_name_of(&world, 0);
    let labels = &mut world.pvcs.get_mut(&pvc_name).unwrap().labels;
    labels.insert(keys::KEPT_FOR.into(), UID.into());
    world.delete_set(false);
    assert_eq!(plan_set(&world.observe()).pvcs.len(), 1);
    world.settle();
    assert!(world.is_deleted && is_orphaned(&world, &pvc_name));
}
