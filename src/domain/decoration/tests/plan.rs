use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::world::{NAME, World};
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::domain::decoration::plan::plan_decoration;
use crate::domain::decoration::{MemberKey, Reach};

#[test]
fn revision_counts_once_it_and_the_finalizer_are_stored() {
    let mut world = World::new().with_set("web", 2);
    let plan = world.reconcile();
    assert!(plan.add_finalizer && plan.revision.is_some());
    assert_eq!(plan.publish.updated, None);
    assert_eq!(
        plan.publish.hold.as_deref(),
        Some("its finalizer is not stored yet")
    );
    assert_eq!(world.stored_status().observed_generation, 0);
    world.finalizers.clear();
    assert!(
        world.reconcile().publish.updated.is_none(),
        "the finalizer is missing"
    );
    let plan = world.settle();
    assert_eq!(plan.publish.hold, None);
    assert_eq!(plan.publish.updated, Some(world.revisions[0].name.clone()));
    assert_eq!(world.stored_status().observed_generation, 1);
}

#[test]
fn former_revision_and_reach_stay_while_revision_is_refused() {
    let mut world = World::new().with_set("web", 3);
    world.set_partition(3);
    world.roll_out();
    world.set_partition(2);
    let before = world.settle().publish;
    world.refused.revision = Some("quota".to_owned());
    world.change_template("2");
    world.set_partition(0);
    for last in [Some(Arc::new(before.clone())), None] {
        world.last = last.clone();
        let plan = world.reconcile();
        assert_eq!(plan.publish.updated, before.updated);
        assert_eq!(
            plan.publish.hold.as_deref(),
            Some("its revision can't be stored: quota")
        );
        let want = match last {
            Some(_) => before.reach.clone(),
            None => Reach::Members(BTreeSet::new()),
        };
        assert_eq!(plan.publish.reach, want);
        assert!(plan.requeue_after_nanos.is_some());
    }
    let (ready, reason, message) = world.condition("Ready").unwrap();
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "Progressing"));
    assert!(message.contains("quota"), "{message}");
    assert_eq!(
        world.stored_status().observed_generation,
        world.generation - 2
    );
    world.refused.revision = None;
    assert_eq!(world.settle().publish.reach, Reach::All);
}

#[test]
fn decoration_older_than_its_sets_decorates_from_creation() {
    let mut world = World::new();
    world.set_partition(5);
    world.settle();
    let revision = world.revisions[0].name.clone();
    assert_eq!(world.stored_status().current_revision, revision);
    let mut world = world.with_set("web", 0);
    world.add_entry("web", 0, &[(data::JUST_CREATE, "true")]);
    world.roll_out();
    world.add_entry("web", 1, &[]); // recreated without a record
    world.roll_out();
    assert_eq!(world.count(&revision), 2);
}

#[test]
fn partition_is_counted_over_all_sets() {
    let mut world = World::new().with_set("api", 2).with_set("web", 3);
    world.roll_out();
    world.change_template("2");
    world.set_partition(3);
    world.roll_out();
    let updated = world.stored_status().updated_revision;
    assert_eq!(world.count(&updated), 2);
    assert_ne!(world.stored_status().current_revision, updated);
    world.set_partition(4);
    world.roll_out();
    assert_eq!(world.count(&updated), 2, "nobody is taken back");
    world.add_entry("web", 3, &[(data::JUST_CREATE, "true")]);
    world.roll_out();
    assert_eq!(world.count(&updated), 3, "new members have it");
    world.set_partition(0);
    world.roll_out();
    assert_eq!(world.count(&updated), 6);
    assert_eq!(world.stored_status().current_revision, updated);
}

#[test]
fn choice_survives_change_of_leader_with_half_written_pools() {
    let mut world = World::new().with_set("api", 4).with_set("web", 4);
    world.roll_out();
    world.change_template("2");
    world.set_partition(4);
    let Reach::Members(chosen) = world.settle().publish.reach else {
        panic!("a partition chooses members");
    };
    let recorded: BTreeSet<MemberKey> = chosen.iter().take(2).cloned().collect();
    for (set, id) in &recorded {
        world.record(set, *id);
    }
    world.last = None;
    let Reach::Members(after) = world.reconcile().publish.reach else {
        panic!("a partition chooses members");
    };
    assert!(after.is_superset(&recorded));
    assert_eq!(after.len(), 4);
}

#[test]
fn rollout_selector_reaches_matching_members_only() {
    let mut world = World::new().with_set("web", 3);
    world.change_spec(|spec| {
        let selector = json!({ "matchLabels": { "collaset.kusionstack.io/instance-id": "1" } });
        let rolling = json!({ "rollingUpdate": { "partition": 3, "selector": selector } });
        spec["updateStrategy"] = rolling;
    });
    world.roll_out();
    let want = [("web".to_owned(), 1)];
    let decorated = world
        .carried()
        .into_iter()
        .filter(|(_, _, on_pod)| on_pod.is_some());
    assert_eq!(
        decorated.map(|(set, id, _)| (set, id)).collect::<Vec<_>>(),
        want
    );
}

#[test]
fn unusable_spec_changes_nothing_and_names_the_field() {
    let mut world = World::new().with_set("web", 2);
    world.roll_out();
    let revision = world.revisions[0].name.clone();
    world.change_spec(|spec| {
        spec["selector"] = json!({ "matchExpressions": [{ "key": "a", "operator": "Like" }] });
    });
    let plan = world.roll_out();
    let invalid = plan.publish.invalid.clone().unwrap();
    assert!(
        invalid.starts_with("spec.selector.matchExpressions[0].operator: \"Like\""),
        "{invalid}"
    );
    assert_eq!((plan.publish.hold, plan.revision), (None, None));
    assert_eq!(world.count(&revision), 2);
    assert_eq!(world.condition("Ready").unwrap().1, "Invalid");
    assert_eq!(world.condition("Stalled").unwrap().0, "True");
    assert_eq!(world.stored_status().observed_generation, world.generation);
    world.change_spec(|spec| spec["selector"] = json!({ "matchLabels": { "app": "x" } }));
    world.roll_out();
    assert_eq!(world.condition("Stalled"), None);
}

#[test]
fn name_that_fits_no_label_is_invalid() {
    let mut observed = World::new().observe();
    let mut object = (*observed.object).clone();
    object.metadata.name = Some("x".repeat(61));
    observed.object = object.clone().into();
    let invalid = plan_decoration(&observed).publish.invalid.unwrap();
    assert!(invalid.starts_with("metadata.name: "), "{invalid}");
    object.metadata.name = Some("x".repeat(60));
    object.spec.update_strategy = serde_json::from_value(json!({
        "rollingUpdate": { "partition": -1 }
    }))
    .unwrap();
    observed.object = object.into();
    assert_eq!(plan_decoration(&observed).publish.invalid, None);
}

#[test]
fn finalizer_goes_once_no_pod_of_a_set_is_decorated() {
    let mut world = World::new().with_set("web", 2);
    world.roll_out();
    world
        .set("web")
        .entries
        .get_mut(&1)
        .unwrap()
        .insert(data::SCALE_IN.into(), "true".into());
    world.is_deleting = true;
    world.generation += 1;
    let plan = world.reconcile();
    assert!(plan.publish.deleting && !plan.remove_finalizer && plan.revision.is_none());
    world.update_pod("web", 0);
    assert!(!world.reconcile().remove_finalizer, "web-1 has it still");
    world.set("web").pods.remove(&1);
    assert!(world.reconcile().remove_finalizer);
    assert_eq!(world.finalizers, [""; 0]);
    assert!(world.reconcile().is_empty());
}

#[test]
fn revisions_on_pods_in_pools_and_in_status_stay() {
    let mut world = World::new().with_set("web", 3);
    world.spec["historyLimit"] = json!(1);
    world.roll_out();
    let first = world.revisions[0].name.clone();
    world.set_partition(3);
    world.change_template("2");
    world.settle();
    world.set("web").pods.get_mut(&0).unwrap().is_terminating = true;
    for version in ["3", "4", "5"] {
        world.change_template(version);
        world.settle();
    }
    let names: BTreeSet<&str> = world.revisions.iter().map(|r| &*r.name).collect();
    let updated = world.stored_status().updated_revision;
    assert!(names.contains(&*first) && names.contains(&*updated));
    assert_eq!(names.len(), 3, "one unused revision is kept");
    world.set_partition(0);
    world.roll_out();
    assert_eq!(world.revisions.len(), 2);
    assert!(
        world
            .revisions
            .iter()
            .all(|revision| revision.name != first)
    );
}

#[test]
fn finalizer_is_the_one_of_the_contract() {
    let mut world = World::new();
    world.settle();
    assert_eq!(world.finalizers, [keys::PROTECTED_FINALIZER]);
    assert_eq!(world.last.unwrap().name, NAME);
}
