//! Situations in which the lifecycle of Kuperator fails (contract 10.1), with the number of the quirk there.

use operating::api::keys::{self, Family};
use operating::domain::lifecycle::LabelPatch;
use operating::domain::lifecycle::{Phase, Stage, controller_step, operator, stored_phases};
use operating::domain::pod::Pod;

use crate::world::{EXPECTED, World};

/// Begins an operation and waits until it gets `operate`.
fn operate(world: &mut World, id: &str, type_: &str) {
    world.begin(id, type_);
    world.quiesce();
    assert!(world.has(Family::Operate, id), "{:?}", world.labels());
}

/// Begins an operation at a time that identifies it; `deletes` announces a deletion.
fn begin_at(world: &mut World, id: &str, type_: &str, deletes: bool, at: u64) {
    let begin = operator::begin_labels(&world.pod, id, type_, deletes, at);
    world.patch(&begin).unwrap();
}

#[test]
fn q1_begin_during_completing_does_not_keep_pod_offline() {
    let mut world = World::serving().with_traffic();
    operate(&mut world, "a", "update");
    world.finish("a");
    assert!(world.has(Family::Completing, "a"));
    world.begin("c", "restart");
    assert!(
        world.has(Family::Operate, "c"),
        "the Pod is off traffic already"
    );
    world.quiesce();
    world.finish("c");
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
    assert_eq!(world.condition(), Some(true));
}

#[test]
fn q1_begin_during_post_check_of_another_completes() {
    let mut world = World::serving();
    operate(&mut world, "a", "update");
    world.held.insert("a".to_owned());
    world.finish("a");
    assert!(world.has(Family::PostCheck, "a"));
    operate(&mut world, "c", "restart");
    world.finish("c");
    world.quiesce();
    assert_eq!(
        stored_phases(&world.pod),
        [
            ("a".to_owned(), Phase::PostCheck),
            ("c".to_owned(), Phase::Completing)
        ]
        .into()
    );
    assert_eq!(
        world.labels_of("c"),
        [
            "completing/c",
            "done-operation-type/c=restart",
            "operated/c",
            "post-checked/c"
        ]
    );
    assert_eq!(
        world.condition(),
        Some(false),
        "the work on the Pod is not verified yet"
    );
    world.held.clear();
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
}

#[test]
fn q1_operation_finishes_without_waiting_for_another() {
    let mut world = World::serving();
    operate(&mut world, "a", "update");
    operate(&mut world, "b", "restart");
    world.finish("a");
    assert!(world.has(Family::Completing, "a"));
    world.quiesce();
    assert!(world.has(Family::Operate, "b"));
    assert_eq!(
        world.condition(),
        Some(false),
        "b still needs the Pod off traffic"
    );
    world.finish("b");
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
}

#[test]
fn q2_operation_begun_again_while_completing_asks_rules_again() {
    let mut world = World::serving().with_traffic();
    operate(&mut world, "a", "update");
    world.finish("a");
    assert!(world.has(Family::Completing, "a"));
    world.held.insert("a".to_owned());
    world.begin("a", "update");
    assert_eq!(
        world.labels_of("a"),
        ["operating/a", "operation-type/a=update", "pre-check/a"]
    );
    world.quiesce();
    assert!(world.has(Family::PreCheck, "a"));
    assert!(world.available(), "while the rules hold it, the Pod serves");
    world.held.clear();
    world.quiesce();
    world.finish("a");
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
    world.held.insert("a".to_owned());
    world.begin("a", "update");
    assert!(
        world.has(Family::PreCheck, "a"),
        "and the next run is asked as well"
    );
}

#[test]
fn q2_restart_unseen_by_webhook_is_a_fresh_run() {
    let mut world = World::serving().with_traffic();
    operate(&mut world, "a", "update");
    world.finish("a");
    world.webhook_down = true;
    world.held.insert("a".to_owned());
    world.begin("a", "update");
    assert!(
        world.has(Family::Completing, "a"),
        "the webhook was not asked"
    );
    world.reconcile();
    assert_eq!(
        world.labels_of("a"),
        ["operating/a", "operation-type/a=update", "pre-check/a"]
    );
}

#[test]
fn operation_waits_until_kubelet_took_pod_off_traffic() {
    let mut world = World::serving();
    world.begin("a", "update");
    world.reconcile();
    assert_eq!(world.pod.condition(keys::SERVICE_READY), Some(false));
    world.set_condition("Ready", true);
    world.reconcile();
    assert!(world.has(Family::Preparing, "a"));
    world.set_condition("Ready", false);
    world.reconcile();
    assert!(world.has(Family::Operate, "a"));
}

/// If the Pod came back on traffic before the kubelet had noticed, it would count as available until the kubelet's late
/// update.
#[test]
fn return_waits_until_kubelet_took_pod_off_traffic() {
    for end in [World::undo, World::finish] {
        let mut world = World::serving();
        world.begin("a", "update");
        world.reconcile();
        assert_eq!(world.condition(), Some(false));
        end(&mut world, "a");
        world.reconcile();
        assert_eq!(world.condition(), Some(false), "Ready is still True");
        assert!(!world.available());
        world.kubelet();
        assert!(!world.pod.is_ready());
        world.reconcile();
        assert_eq!(world.condition(), Some(true));
        world.quiesce();
        assert!(world.is_idle(), "{:?}", world.labels());
    }
}

#[test]
fn q3_protected_pod_without_condition_is_not_operated() {
    let mut world = World::serving().with_traffic();
    world
        .pod
        .status
        .conditions
        .retain(|c| c.type_ != keys::SERVICE_READY);
    world.begin("a", "update");
    assert!(world.has(Family::Preparing, "a"));
    world.reconcile();
    world.set_condition("Ready", false);
    assert!(world.has(Family::Preparing, "a"));
    world.write(|pod| pod.metadata.finalizers.clear()).unwrap();
    assert!(world.has(Family::Operate, "a"));
}

#[test]
fn q3_protected_pod_without_gate_is_not_operated() {
    let mut world = World::bare().with_traffic();
    world.begin("a", "update");
    assert!(world.has(Family::Preparing, "a"));
    assert!(!world.available());
    world.write(|pod| pod.metadata.finalizers.clear()).unwrap();
    assert!(world.has(Family::Operate, "a"));
}

#[test]
fn q4_scale_in_does_not_inherit_an_update_permission() {
    let mut world = World::serving();
    operate(&mut world, "collaset", "update");
    world.held.insert("collaset".to_owned());
    world.begin("collaset", "scale-in");
    assert_eq!(
        world.labels(),
        [
            "operating/collaset",
            "operation-type/collaset=scale-in",
            "pre-check/collaset"
        ],
        "neither operate nor operation-permission/update is left"
    );
    assert!(!operator::is_operation_due(
        &world.pod, "collaset", "scale-in", 0, world.now
    ));
    world.held.clear();
    world.quiesce();
    assert!(world.has(Family::OperationPermission, "scale-in"));
    assert!(!world.has(Family::OperationPermission, "update"));
}

#[test]
fn q4_a_type_changed_past_the_webhook_is_checked_again() {
    let mut world = World::serving();
    operate(&mut world, "collaset", "update");
    world.webhook_down = true;
    world.held.insert("collaset".to_owned());
    world.begin("collaset", "scale-in");
    assert!(world.has(Family::Operate, "collaset"));
    world.reconcile();
    assert!(world.has(Family::PreCheck, "collaset"));
    assert!(!world.has(Family::Operate, "collaset"));
}

#[test]
fn q4_operations_of_a_type_share_permission_until_last_ends() {
    let mut world = World::serving();
    operate(&mut world, "a", "update");
    operate(&mut world, "b", "update");
    world.finish("a");
    assert!(world.has(Family::OperationPermission, "update"));
    world.undo("b");
    assert!(!world.has(Family::OperationPermission, "update"));
}

#[test]
fn q5_an_idle_pod_is_never_written() {
    for mut world in [
        World::serving(),
        World::serving().with_traffic(),
        World::bare(),
    ] {
        assert!(controller_step(&world.pod, 9).is_empty());
        assert!(stored_phases(&world.pod).is_empty());
        world.quiesce();
        assert_eq!(world.writes, 0);
    }
}

#[test]
fn q5_a_pod_that_is_not_ready_is_written_once() {
    let mut world = World::serving();
    world.set_condition("Ready", false);
    world.reconcile();
    assert!(!world.available());
    assert_eq!(world.writes, 1);
    assert!(controller_step(&world.pod, 9).is_empty());
    world.reconcile();
    assert_eq!(world.writes, 1);
}

#[test]
fn q6_preparing_to_delete_goes_with_an_undone_operation() {
    let mut world = World::serving();
    begin_at(&mut world, "a", "scale-in", true, 5);
    assert!(world.pod.label(keys::PREPARING_TO_DELETE).is_some());
    world.undo("a");
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());
}

#[test]
fn q6_finished_operation_removes_preparing_to_delete_unless_shared() {
    let mut world = World::serving();
    for id in ["a", "b"] {
        begin_at(&mut world, id, "update", true, 5);
    }
    world.quiesce();
    world.finish("a");
    assert!(
        world.pod.label(keys::PREPARING_TO_DELETE).is_some(),
        "b may delete the Pod"
    );
    world.finish("b");
    assert!(world.pod.label(keys::PREPARING_TO_DELETE).is_none());
}

#[test]
fn q6_stay_offline_leaves_a_serving_pod_alone() {
    let mut world = World::serving();
    world
        .write(|pod| {
            _ = pod
                .metadata
                .labels
                .insert(keys::STAY_OFFLINE.to_owned(), String::new())
        })
        .unwrap();
    world.quiesce();
    assert!(
        world.available(),
        "no rule was asked whether the Pod may go"
    );
    assert_eq!(world.condition(), Some(true));
}

#[test]
fn q6_stay_offline_keeps_pod_off_traffic() {
    let mut world = World::serving().with_traffic();
    world
        .write(|pod| {
            _ = pod
                .metadata
                .labels
                .insert(keys::STAY_OFFLINE.to_owned(), String::new())
        })
        .unwrap();
    operate(&mut world, "a", "update");
    world.finish("a");
    world.quiesce();
    assert_eq!(
        world.labels(),
        ["stay-offline="],
        "the run is over and does not wait for traffic"
    );
    assert_eq!(world.condition(), Some(false));
    world
        .write(|pod| _ = pod.metadata.labels.remove(keys::STAY_OFFLINE))
        .unwrap();
    world.quiesce();
    assert!(world.is_idle(), "{:?}", world.labels());

    let mut crashed = World::serving();
    crashed
        .write(|pod| {
            _ = pod
                .metadata
                .labels
                .insert(keys::STAY_OFFLINE.to_owned(), String::new())
        })
        .unwrap();
    crashed.set_condition("Ready", false);
    crashed.quiesce();
    assert_eq!(
        (crashed.available(), crashed.condition()),
        (false, Some(false))
    );
}

#[test]
fn q6b_deleted_service_does_not_keep_pod_unavailable() {
    let mut world = World::serving();
    world
        .pod
        .metadata
        .annotations
        .insert(keys::AVAILABLE_CONDITIONS.to_owned(), EXPECTED.to_owned());
    world.pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    let step = controller_step(&world.pod, 9);
    assert_eq!(step.dirty, ["Service/default/web"]);
    assert!(step.labels.is_empty());
    let cleaned =
        operating::domain::lifecycle::LifecycleStep::drop_dirty_patch(&world.pod, &step.dirty)
            .unwrap();
    let text = cleaned["metadata"]["annotations"][keys::AVAILABLE_CONDITIONS]
        .as_str()
        .unwrap()
        .to_owned();
    world
        .write(|pod| {
            _ = pod
                .metadata
                .annotations
                .insert(keys::AVAILABLE_CONDITIONS.to_owned(), text)
        })
        .unwrap();
    world.reconcile();
    assert!(world.is_idle(), "{:?}", world.labels());
}

#[test]
fn q6b_expected_finalizer_of_any_object_can_be_dirty() {
    let mut world = World::serving();
    let annotation = r#"{"expectedFinalizers":{"Slb/ns/a":"x","Service/a":"y","Service/ns/":"z"}}"#;
    world
        .pod
        .metadata
        .annotations
        .insert(keys::AVAILABLE_CONDITIONS.to_owned(), annotation.to_owned());
    assert!(
        controller_step(&world.pod, 9).is_empty(),
        "an available Pod needs none of it"
    );
    world.pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    assert_eq!(controller_step(&world.pod, 9).dirty, ["Slb/ns/a"]);
    world
        .pod
        .metadata
        .annotations
        .insert(keys::AVAILABLE_CONDITIONS.to_owned(), "{".to_owned());
    let problem = controller_step(&world.pod, 9).problem.unwrap();
    assert!(
        problem.starts_with("annotation pod.kusionstack.io/available-conditions: EOF")
            && problem.ends_with("the Pod stays unavailable until it is corrected or removed"),
        "{problem}"
    );
}

#[test]
fn q6c_pass_grants_only_its_own_operation() {
    let mut world = World::serving();
    world.held.extend(["a".to_owned(), "b".to_owned()]);
    world.begin("a", "update");
    world.begin("b", "restart");
    let asked = controller_step(&world.pod, 9).reevaluate;
    assert_eq!(
        asked,
        [
            (Stage::PreCheck, "a".to_owned()),
            (Stage::PreCheck, "b".to_owned())
        ]
    );
    world.held.remove("a");
    world.reconcile();
    assert!(world.has(Family::PreChecked, "a"));
    assert!(world.has(Family::PreCheck, "b"));
    assert!(!world.has(Family::OperationPermission, "restart"));
}

#[test]
fn undo_missed_by_webhook_survives_the_next_begin() {
    let mut world = World::serving();
    operate(&mut world, "a", "update");
    world.webhook_down = true;
    world.undo("a");
    world.webhook_down = false;
    world.held.insert("a".to_owned());
    world
        .write(|pod| {
            _ = pod
                .metadata
                .labels
                .remove(&Family::UndoOperationType.key("a"))
        })
        .unwrap();
    assert_eq!(
        world.labels(),
        ["operating/a", "operation-type/a=update", "pre-check/a"]
    );
}

#[test]
fn grant_revoked_by_admission_keeps_pod_on_traffic() {
    let mut world = World::serving();
    world.held.insert("a".to_owned());
    world.begin("a", "update");
    world.held.clear();
    world.denied.insert("a".to_owned());
    for _ in 0..3 {
        world.reconcile();
    }
    assert!(world.has(Family::PreCheck, "a") && world.available());
    assert_eq!(
        world.condition(),
        Some(true),
        "the controller asked for preparing, and was refused"
    );
}

#[test]
fn q4_type_permitted_for_another_operation_is_checked_again() {
    let mut world = World::serving();
    operate(&mut world, "a", "update");
    operate(&mut world, "b", "restart");
    world.held.insert("a".to_owned());
    world.begin("a", "restart");
    assert_eq!(
        world.labels_of("a"),
        ["operating/a", "operation-type/a=restart", "pre-check/a"]
    );
    assert!(
        world.has(Family::OperationPermission, "restart"),
        "b still holds it"
    );
}

#[test]
fn terminating_or_unmanaged_pod_is_not_written() {
    let mut terminating = World::serving();
    terminating.set_condition("Ready", false);
    let mut unmanaged = terminating.clone();
    assert!(!controller_step(&terminating.pod, 9).is_empty());
    terminating.pod.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    unmanaged.pod.metadata.labels.remove(keys::CONTROL);
    assert!(controller_step(&terminating.pod, 9).is_empty());
    assert!(controller_step(&unmanaged.pod, 9).is_empty());
}

#[test]
fn finished_pod_is_not_put_on_traffic() {
    let mut world = World::serving();
    world.set_condition(keys::SERVICE_READY, false);
    world.set_condition("Ready", false);
    world.pod.status.phase = "Succeeded".to_owned();
    world.reconcile();
    assert_eq!((world.available(), world.condition()), (false, Some(false)));
    assert!(controller_step(&world.pod, 9).is_empty());
}

#[test]
fn begin_on_unavailable_pod_takes_nothing_off_traffic() {
    let mut world = World::serving();
    world.set_condition("Ready", false);
    world.begin("a", "update");
    assert!(!world.available());
    assert!(!world.took_offline);
}

/// A user writes `service-available` before a new Pod has been Ready for `minReadySeconds`.
#[test]
fn label_of_new_pod_is_removed_when_it_becomes_available() {
    for mark in [keys::CREATING, keys::COMPLETING] {
        let mut world = World::serving();
        let available = world.pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
        let marked = |pod: &mut Pod| {
            pod.metadata.labels.insert(mark.to_owned(), "1".to_owned());
        };
        marked(&mut world.pod);
        world
            .write(|pod| {
                let labels = &mut pod.metadata.labels;
                labels.extend(available.map(|since| (keys::SERVICE_AVAILABLE.to_owned(), since)));
            })
            .unwrap();
        assert_eq!(world.pod.label(mark), None);
        marked(&mut world.pod); // stored in this form while the webhook was down
        world.quiesce();
        assert_eq!(world.pod.label(mark), None);
        assert!(world.pod.is_available());
    }
}

#[test]
fn announcement_of_undone_operation_does_not_pass_to_another() {
    let mut world = World::serving();
    begin_at(&mut world, "upgrade", "update", false, 5);
    begin_at(&mut world, "pod-delete", "delete", true, 6);
    assert!(operator::announces_deletion(&world.pod, "pod-delete"));
    assert!(!operator::announces_deletion(&world.pod, "upgrade"));
    world.undo("pod-delete");
    world.quiesce();
    assert!(!operator::announces_deletion(&world.pod, "upgrade"));
    assert!(world.pod.label(keys::PREPARING_TO_DELETE).is_none());
}

#[test]
fn announcement_with_own_time_belongs_to_the_beginning_operation() {
    let mut world = World::serving();
    begin_at(&mut world, "upgrade", "update", false, 5);
    let mut begin = operator::begin_labels(&world.pod, "replace", "replace", true, 6);
    let announced = keys::PREPARING_TO_DELETE.to_owned();
    begin.0.insert(announced, Some("7".to_owned()));
    world.patch(&begin).unwrap();
    assert!(operator::announces_deletion(&world.pod, "replace"));
    assert!(!operator::announces_deletion(&world.pod, "upgrade"));
}

#[test]
fn announcement_after_the_rules_permits_nothing() {
    let mut world = World::serving();
    begin_at(&mut world, "upgrade", "update", false, 1_000_000);
    world.quiesce();
    let since = world
        .pod
        .label(&Family::Operating.key("upgrade"))
        .unwrap()
        .to_owned();
    for value in [since.as_str(), "7"] {
        let late = [(keys::PREPARING_TO_DELETE.to_owned(), Some(value.to_owned()))];
        world.patch(&LabelPatch(late.into())).unwrap();
        assert!(
            !operator::announces_deletion(&world.pod, "upgrade"),
            "{value}"
        );
    }
}

#[test]
fn announcement_of_another_type_under_the_id_counts() {
    let mut world = World::serving();
    begin_at(&mut world, "collaset", "update", false, 1_000_000);
    world.quiesce();
    begin_at(&mut world, "collaset", "scale-in", true, 1_000_001);
    assert!(operator::announces_deletion(&world.pod, "collaset"));
}

#[test]
fn begin_time_of_running_operation_cannot_change() {
    let mut world = World::serving();
    begin_at(&mut world, "upgrade", "update", false, 1_000_000);
    world.quiesce();
    begin_at(&mut world, "pod-delete", "delete", true, 1_000_001);
    let forged = [(Family::Operating.key("upgrade"), Some("1000001".to_owned()))];
    world.patch(&LabelPatch(forged.into())).unwrap();
    assert!(!operator::announces_deletion(&world.pod, "upgrade"));
    assert!(operator::announces_deletion(&world.pod, "pod-delete"));
}
