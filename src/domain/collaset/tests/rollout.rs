//! Rollouts in steps, their deadlines, and Pods that must be Ready for some time.

use serde_json::{Value, json};

use super::reconcile::{condition, settled};
use super::world::{Kubelet, World};
use crate::api::keys;
use crate::domain::collaset::plan::SetEvent;
use crate::domain::lifecycle::operator;

fn steps(steps: Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } })
}

fn canary() -> Value {
    steps(json!([
        { "partition": "75%" },
        { "pause": {} },
        { "partition": 2 },
        { "pause": { "duration": "10m" } },
    ]))
}

/// Number of Pods that run an image.
pub fn running(world: &World, image: &str) -> usize {
    world.images().into_iter().filter(|i| *i == image).count()
}

/// The step of the rollout in the status; `None` when no rollout is in progress.
pub fn read_rollout_step(world: &World) -> Option<i32> {
    let status = world.set.status.as_ref().unwrap();
    status.rollout.as_ref().map(|rollout| rollout.step)
}

#[test]
fn new_set_takes_no_steps() {
    let world = settled(4, canary());
    assert_eq!(read_rollout_step(&world), None);
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn rollout_takes_one_step_after_the_other() {
    let mut world = settled(4, canary());
    world.image("app:2");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (1, Some(2))
    );
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "Updating"));
    let until =
        "step 2 of 4 pauses until the annotation collaset.kusionstack.io/rollout=promote is set";
    assert!(message.contains(until), "{message}");
    assert_eq!(condition(&world, "Update").1, "StepPaused");

    world.command("promote");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (2, Some(4))
    );
    let annotations = world.set.metadata.annotations.clone().unwrap();
    assert!(
        !annotations.contains_key(keys::ROLLOUT),
        "it is carried out"
    );
    assert!(
        condition(&world, "Ready")
            .2
            .contains("step 4 of 4 pauses until 20")
    );

    world.wait(300);
    world.settle();
    assert_eq!(running(&world, "app:2"), 2, "the pause is not over");
    world.wait(300);
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (4, None)
    );
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn command_is_carried_out_once() {
    let pauses = json!([{ "pause": {} }, { "pause": {} }, { "pause": {} }]);
    let mut world = settled(3, steps(pauses));
    world.image("app:2");
    world.settle();
    world.command("promote");
    world.run_plan();
    assert_eq!(read_rollout_step(&world), Some(2));
    // The removal of the annotation fails several times.
    for _ in 0..3 {
        world.command("promote");
        world.run_plan();
        assert_eq!(read_rollout_step(&world), Some(2));
    }
    world.settle();
    world.command("promote");
    world.settle();
    assert_eq!(
        (read_rollout_step(&world), running(&world, "app:2")),
        (Some(3), 0)
    );
    world.command("promote-full");
    world.settle();
    assert_eq!(
        (read_rollout_step(&world), running(&world, "app:2")),
        (None, 3)
    );
}

#[test]
fn commands_without_a_meaning_are_refused_and_removed() {
    let mut world = settled(3, canary());
    for command in ["promote", "abort", "go"] {
        world.command(command);
        let plan = crate::domain::collaset::planner::plan_set(&world.observe());
        let is_refused = plan
            .events
            .iter()
            .any(|e| e.reason == "RolloutCommandRefused");
        assert!(is_refused && plan.clear_command, "{command}");
        world.settle();
    }
}

/// A user who sets the annotation has corrected the cause of the refusal.
#[test]
fn retry_only_retries_what_was_refused() {
    let mut world = settled(3, canary());
    let retry = |world: &mut World, command: &str| {
        world.command(command);
        let plan = crate::domain::collaset::planner::plan_set(&world.observe());
        let mut events = plan.events_after_status.iter();
        let message = "writes that were refused although their dry run had passed are tried again";
        assert!(
            events.any(|e| !e.warning && e.message == message),
            "{command}"
        );
        world.settle();
        let annotations = world.set.metadata.annotations.iter().flatten();
        let mut commands = annotations.filter(|(key, _)| *key == keys::ROLLOUT);
        assert_eq!(commands.next(), None, "{command} is removed");
    };
    retry(&mut world, "retry");
    world.image("app:2");
    world.settle();
    retry(&mut world, "retry");
    assert_eq!(read_rollout_step(&world), Some(2));
    world.command("abort");
    world.settle();
    retry(&mut world, "abort");
    assert_eq!(world.images(), ["app:1"; 3]);
}

#[test]
fn aborted_rollout_goes_back_and_can_be_retried() {
    for policy in ["InPlaceIfPossible", "Recreate", "Replace"] {
        let mut world = settled(4, canary());
        world.edit(json!({ "updateStrategy": { "podUpgradePolicy": policy } }));
        world.image("app:2");
        world.settle();
        world.command("abort");
        world.settle();
        assert_eq!(world.images(), ["app:1"; 4], "{policy}");
        for type_ in ["Ready", "Update", "Stalled"] {
            let (status, reason, message) = condition(&world, type_);
            let wanted = if type_ == "Stalled" { "True" } else { "False" };
            assert_eq!((&*status, &*reason), (wanted, "RolloutAborted"), "{type_}");
            assert!(message.contains("all Pods are of revision"), "{message}");
        }
        // A lost Pod comes back with the revision of the others.
        let name = world.pods.keys().next().unwrap().clone();
        world.delete(&name);
        world.settle();
        assert_eq!(world.images(), ["app:1"; 4]);

        world.command("retry");
        world.settle();
        assert_eq!(
            (running(&world, "app:2"), read_rollout_step(&world)),
            (1, Some(2))
        );
        assert!(!has(&world, "Stalled"));
        world.command("abort");
        world.settle();
        world.image("app:3");
        world.settle();
        assert_eq!(
            (running(&world, "app:3"), read_rollout_step(&world)),
            (1, Some(2))
        );
    }
}

fn has(world: &World, type_: &str) -> bool {
    let status = world.set.status.as_ref().unwrap();
    status.conditions.iter().any(|c| c.type_ == type_)
}

#[test]
fn rollout_without_steps_can_be_aborted() {
    let mut world = settled(4, json!({}));
    let rolling = json!({ "rollingUpdate": { "byPartition": { "partition": 3 } } });
    world.edit(json!({ "updateStrategy": rolling }));
    world.image("app:2");
    world.settle();
    assert_eq!(running(&world, "app:2"), 1);
    world.command("abort");
    world.settle();
    assert_eq!(running(&world, "app:1"), 4);
}

#[test]
fn rollback_takes_no_steps() {
    let mut world = settled(4, canary());
    world.image("app:2");
    world.settle();
    world.image("app:1");
    world.settle();
    assert_eq!(
        (running(&world, "app:1"), read_rollout_step(&world)),
        (4, None)
    );
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn another_template_begins_with_the_first_step() {
    let mut world = settled(4, canary());
    world.image("app:2");
    world.settle();
    world.command("promote");
    world.settle();
    assert_eq!(read_rollout_step(&world), Some(4));
    world.image("app:3");
    world.settle();
    assert_eq!(
        (running(&world, "app:3"), read_rollout_step(&world)),
        (1, Some(2))
    );
}

#[test]
fn partition_of_the_strategy_bounds_the_steps() {
    let mut world = settled(4, steps(json!([{ "partition": 3 }, { "partition": 0 }])));
    let partition = json!({ "byPartition": { "partition": 2 } });
    world.edit(json!({ "updateStrategy": { "rollingUpdate": partition } }));
    world.image("app:2");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (2, Some(3))
    );
}

#[test]
fn paused_set_takes_no_step() {
    let mut world = settled(
        4,
        steps(json!([{ "partition": 3 }, { "pause": { "duration": "1s" } }])),
    );
    world.image("app:2");
    world.edit(json!({ "paused": true }));
    world.settle();
    world.wait(60);
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (0, Some(1))
    );
}

#[test]
fn set_without_progress_is_stalled_until_something_moves() {
    let mut world = settled(2, json!({ "progressDeadlineSeconds": 600 }));
    assert_eq!(world.set.status.as_ref().unwrap().last_progress_time, None);
    world.forbidden.insert("app:2".into());
    world.edit(json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } }));
    world.image("app:2");
    world.settle();
    assert!(!has(&world, "Stalled"));
    world.wait(500);
    world.settle();
    assert!(!has(&world, "Stalled"));
    let again = crate::domain::collaset::planner::plan_set(&world.observe()).requeue_after_nanos;
    assert!(
        again.is_some_and(|nanos| nanos <= 100_000_000_000),
        "{again:?}"
    );
    world.wait(100);
    world.settle();
    let (status, reason, message) = condition(&world, "Stalled");
    assert_eq!((&*status, &*reason), ("True", "ProgressDeadlineExceeded"));
    assert!(
        message.starts_with("no progress for 600 s (progressDeadlineSeconds): "),
        "{message}"
    );
    world.forbidden.clear();
    world.settle();
    assert!(!has(&world, "Stalled"));
    assert_eq!(condition(&world, "Ready").0, "True");
    assert_eq!(world.set.status.as_ref().unwrap().last_progress_time, None);
}

#[test]
fn time_spent_in_rules_or_pauses_is_no_delay() {
    let deadline = |mut spec: Value| {
        spec["progressDeadlineSeconds"] = json!(600);
        spec
    };
    let mut world = settled(4, deadline(canary()));
    world.image("app:2");
    world.settle();
    world.wait(6_000);
    world.settle();
    assert_eq!(
        (read_rollout_step(&world), has(&world, "Stalled")),
        (Some(2), false)
    );

    let mut world = settled(4, deadline(json!({})));
    world.image("app:2");
    world.run_plan();
    world.run_plan();
    for pod in world.pods.values_mut() {
        let waits = keys::Family::PreCheck.key("collaset");
        pod.metadata.labels.insert(waits, "1".into());
    }
    for _ in 0..3 {
        world.run_plan();
        world.wait(6_000);
    }
    assert!(!has(&world, "Stalled"));
}

#[test]
fn pods_carry_min_ready_seconds_annotation() {
    let min_ready_seconds = |world: &World| {
        let members = world.members();
        let all = members
            .values()
            .map(|p| p.annotation(keys::MIN_READY_SECONDS));
        all.map(|seconds| seconds.map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let mut world = settled(2, json!({ "minReadySeconds": 30 }));
    let revision = world.set.status.as_ref().unwrap().updated_revision.clone();
    assert_eq!(
        min_ready_seconds(&world),
        [Some("30".to_owned()), Some("30".to_owned())]
    );
    world.edit(json!({ "minReadySeconds": 5 }));
    world.settle();
    assert_eq!(
        min_ready_seconds(&world),
        [Some("5".to_owned()), Some("5".to_owned())]
    );
    world.edit(json!({ "minReadySeconds": null }));
    world.settle();
    assert_eq!(min_ready_seconds(&world), [None, None]);
    assert_eq!(
        world.set.status.as_ref().unwrap().updated_revision,
        revision
    );
}

#[test]
fn abort_of_fully_partitioned_rollout_is_never_ready() {
    let strategy = json!({ "byPartition": { "partition": 4 }, "steps": [{ "partition": "60%" }] });
    let mut world = settled(
        2,
        json!({ "updateStrategy": { "rollingUpdate": strategy } }),
    );
    world.image("app:2");
    world.settle();
    world.command("abort");
    world.run_plan();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "RolloutAborted"));
    assert!(message.contains("Pods go back to revision"), "{message}");
    assert_eq!(condition(&world, "Update").1, "RolloutAborted");
}

#[test]
fn removing_steps_from_paused_set_clears_position() {
    let mut world = settled(2, canary());
    world.edit(json!({ "paused": true }));
    world.image("app:2");
    world.settle();
    assert_eq!(read_rollout_step(&world), Some(1));
    world.edit(steps(json!([])));
    world.settle();
    assert_eq!(read_rollout_step(&world), None);
}

#[test]
fn pauses_and_stalls_are_reported_once() {
    let mut spec = canary();
    spec["progressDeadlineSeconds"] = json!(600);
    spec["updateStrategy"]["podUpgradePolicy"] = json!("Recreate");
    let mut world = settled(4, spec);
    world.image("app:2");
    world.settle();
    world.wait(3600);
    world.settle();
    world.forbidden.insert("app:2".into());
    world.command("promote");
    for _ in 0..3 {
        world.settle();
        world.wait(600);
    }
    assert_eq!(condition(&world, "Stalled").0, "True");
    let messages_of = |reason: &str| {
        let events = world.events.iter().filter(|(r, _)| *r == reason);
        events
            .map(|(_, message)| message.as_str())
            .collect::<Vec<_>>()
    };
    let pauses = messages_of("RolloutPaused");
    assert!(
        pauses.len() == 1 && pauses[0].contains(": step 2 of 4 pauses until the annotation"),
        "{pauses:?}"
    );
    let stalls = messages_of("Stalled");
    assert!(
        stalls.len() == 1 && stalls[0].starts_with("no progress for 600 s"),
        "{stalls:?}"
    );
}

/// Settles a set whose annotation nobody can remove.
fn settle_with_command_kept(world: &mut World) {
    for _ in 0..60 {
        let mut plan = crate::domain::collaset::planner::plan_set(&world.observe());
        plan.clear_command = false;
        let events = plan.events.iter().map(|e| (e.reason, e.message.clone()));
        world.events.extend(events);
        world.apply_plan(plan, usize::MAX);
        world.step_surroundings();
    }
}

#[test]
fn command_whose_removal_is_refused_commands_no_later_rollout() {
    for command in ["promote-full", "promote", "abort"] {
        let mut world = settled(
            4,
            steps(json!([{ "partition": 3 }, { "pause": {} }, { "partition": 0 }])),
        );
        world.image("app:2");
        settle_with_command_kept(&mut world);
        assert_eq!(read_rollout_step(&world), Some(2), "{command}");
        world.command(command);
        settle_with_command_kept(&mut world);
        world.image("app:3");
        settle_with_command_kept(&mut world);
        assert_eq!(running(&world, "app:3"), 1, "{command}");
        assert_eq!(read_rollout_step(&world), Some(2), "{command}");
        assert_eq!(condition(&world, "Update").1, "StepPaused", "{command}");
        // Once the annotation can be removed, it is removed, and the next command counts.
        world.settle();
        world.command("promote");
        world.settle();
        assert_eq!(running(&world, "app:3"), 4, "{command}");
        assert_eq!(world.set.status.as_ref().unwrap().rollout, None);
    }
}

#[test]
fn irremovable_refused_command_is_reported_once_without_effect() {
    let mut world = settled(4, canary());
    world.command("promote-full");
    settle_with_command_kept(&mut world);
    let refused = |event: &&(&str, String)| event.0 == "RolloutCommandRefused";
    assert_eq!(world.events.iter().filter(refused).count(), 1);
    assert_eq!(condition(&world, "Ready").0, "True");
    world.image("app:2");
    settle_with_command_kept(&mut world);
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (1, Some(2))
    );
    world.settle();
    world.command("promote-full");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (4, None)
    );
}

fn recreate(rolling: Value) -> Value {
    json!({ "updateStrategy": { "podUpgradePolicy": "Recreate", "rollingUpdate": rolling } })
}

/// By a quota or a policy, the old Pod is gone and no Pod of the new template can be created.
#[test]
fn updated_is_false_while_deleted_pod_is_missing() {
    for rolling in [json!({}), json!({ "byLabel": {} })] {
        let mut world = settled(1, recreate(rolling));
        let pod = world.pods.values_mut().next().unwrap();
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::UPDATE_INCLUDED.to_owned(), "true".to_owned());
        world.forbidden.insert("app:2".into());
        world.image("app:2");
        world.settle();
        assert_eq!(world.ids(), [0; 0]);
        let (update, reason, _) = condition(&world, "Update");
        assert_eq!((&*update, &*reason), ("False", "UpdateFailed"));
        let refused = |type_| condition(&world, type_).1;
        assert_eq!(refused("Ready"), "UpdateFailed", "of the rollout");
        assert_eq!(refused("Scale"), "ScaleOutFailed");
        world.forbidden.clear();
        world.settle();
        assert_eq!(condition(&world, "Update").0, "True");
    }
}

#[test]
fn set_is_updating_not_scaling_while_rollout_recreates_pod() {
    let mut world = settled(2, recreate(json!({})));
    world.image("app:2");
    let mut missing = 0;
    for _ in 0..40 {
        world.run_plan();
        world.step_surroundings();
        if condition(&world, "Scale").0 == "False" {
            missing += 1;
            let (_, reason, message) = condition(&world, "Ready");
            assert_eq!(reason, "Updating", "{message}");
            assert!(message.contains("to be made"), "{message}");
        }
    }
    assert!(missing > 0);
    world.settle();
    world.image("app:3");
    world.run_plan();
    world.edit(json!({ "replicas": 4 }));
    world.run_plan();
    assert_eq!(condition(&world, "Ready").1, "Scaling", "more are wanted");
}

#[test]
fn aborted_rollout_reports_pods_awaiting_kubelet_revert() {
    let mut world = World::on_plane(2, canary());
    world.settle();
    world.image("app:2");
    world.settle();
    world.command("abort");
    let mut going_back = 0;
    for _ in 0..40 {
        world.run_plan();
        let (_, reason, message) = condition(&world, "Update");
        let pods = world.pods.values();
        let updating = pods.filter(|pod| operator::is_in_progress(pod, "collaset", "update"));
        let updating = updating.count();
        world.step_surroundings();
        if reason == "RolloutAborted" && message.contains("on its way back") {
            going_back += 1;
        }
        if message.contains("all Pods are of revision") {
            assert_eq!(updating, 0, "{message}");
        }
    }
    assert!(going_back > 0);
    world.settle();
    let message = condition(&world, "Update").2;
    assert!(message.contains("all Pods are of revision"), "{message}");
}

#[test]
fn abort_of_complete_rollout_names_remedy() {
    let mut world = settled(2, json!({}));
    world.image("app:2");
    world.settle();
    world.command("abort");
    let events = crate::domain::collaset::planner::plan_set(&world.observe()).events;
    let is_reported = |e: &SetEvent| {
        e.reason == "RolloutCommandRefused" && e.message.contains("apply the former template")
    };
    assert!(events.iter().any(is_reported), "{events:?}");
}

#[test]
fn lost_pod_is_no_update_unless_reached_by_rollout() {
    let mut world = settled(2, json!({}));
    world.forbidden.insert("app:1".into());
    let name = world.pods.keys().next().unwrap().clone();
    world.delete(&name);
    world.settle();
    assert_eq!(world.ids().len(), 1);
    assert_eq!(condition(&world, "Update").0, "True");
    for (lost, update) in [("app:1", "True"), ("app:2", "False")] {
        let mut world = settled(4, recreate(json!({ "byPartition": { "partition": 2 } })));
        world.image("app:2");
        world.settle();
        assert_eq!(condition(&world, "Update").0, "True");
        world.forbidden.insert(lost.into());
        let mut pods = world.pods.values();
        let pod = pods.find(|pod| pod.spec.containers[0].image == lost);
        let name = pod.unwrap().metadata.name.clone();
        world.delete(&name);
        world.settle();
        assert_eq!(world.ids().len(), 3);
        assert_eq!(condition(&world, "Update").0, update, "{lost} is lost");
    }
}

#[test]
fn timed_pause_waits_for_a_canary_that_is_down() {
    let timed = json!([{ "partition": 3 }, { "pause": { "duration": "10m" } }, { "partition": 0 }]);
    let mut world = World::on_plane(4, steps(timed));
    world.settle();
    world.image("app:2");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (1, Some(2))
    );
    let mut pods = world.pods.values();
    let canary = pods.find(|pod| pod.spec.containers[0].image == "app:2");
    let canary = canary.unwrap().metadata.clone();
    let lost = Kubelet {
        is_lost: true,
        ..Kubelet::default()
    };
    world.kubelets.insert(canary.uid, lost);
    world.settle();
    let until = "step 2 of 3 pauses until 20";
    assert!(condition(&world, "Update").2.starts_with(until));
    world.wait(600);
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (1, Some(2))
    );
    let waits = format!("step 2 of 3 waits for Pod {} to be available", canary.name);
    let (_, reason, message) = condition(&world, "Update");
    assert_eq!((&*reason, &*message), ("StepPaused", &*waits));
    let message = condition(&world, "Ready").2;
    assert!(message.contains(&waits), "{message}");

    let mut promoted = world.clone();
    promoted.command("promote");
    promoted.settle();
    assert_eq!(read_rollout_step(&promoted), Some(3));
    world.kubelets.clear();
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (4, None)
    );
}

#[test]
fn aborted_rollout_is_not_over_while_a_pod_is_missing() {
    let mut spec = canary();
    spec["updateStrategy"]["podUpgradePolicy"] = json!("Recreate");
    let mut world = settled(4, spec);
    world.image("app:2");
    world.settle();
    world.forbidden.insert("app:1".into());
    world.command("abort");
    world.settle();
    assert_eq!(world.ids().len(), 3);
    let (_, reason, message) = condition(&world, "Update");
    assert_eq!(reason, "RolloutAborted");
    assert!(
        message.ends_with("was aborted; 1 Pod is to be made"),
        "{message}"
    );
    assert!(!has(&world, "Stalled"));
    world.forbidden.clear();
    world.settle();
    for type_ in ["Update", "Stalled"] {
        let message = condition(&world, type_).2;
        assert!(message.contains("all Pods are of revision"), "{message}");
    }
}

#[test]
fn abort_does_not_report_rollout_of_old_revision() {
    let mut world = settled(4, canary());
    let count_started = |world: &World| {
        let events = world.events.iter();
        events
            .filter(|(reason, _)| *reason == "RolloutStarted")
            .count()
    };
    for (command, times) in [("abort", 1), ("retry", 2)] {
        world.image("app:2");
        world.settle();
        world.command(command);
        world.settle();
        assert_eq!(count_started(&world), times, "{command}");
    }
}

#[test]
fn failed_update_reports_remaining_work() {
    let mut world = World::on_plane(4, canary());
    world.settle();
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    world.settle();
    let ends_with = |world: &World, wanted: &str| {
        for type_ in ["Update", "Ready"] {
            let (_, reason, message) = condition(world, type_);
            assert_eq!(reason, "UpdateFailed", "{type_}");
            // `Ready` adds that the Pod that the rollout has deleted is not available.
            let message = message.trim_end_matches("; 1 of 4 Pods is not available");
            assert!(message.ends_with(wanted), "{type_}: {message}");
        }
    };
    ends_with(&world, "; 3 Pods to update, at step 1 of 4");
    world.edit(json!({ "paused": true }));
    world.settle();
    ends_with(&world, "; 3 Pods to update, at step 1 of 4, paused");

    let mut spec = canary();
    spec["updateStrategy"]["podUpgradePolicy"] = json!("Recreate");
    let mut refused = settled(4, spec);
    refused.forbidden.insert("app:2".into());
    refused.image("app:2");
    refused.settle();
    ends_with(&refused, "; 3 Pods to update, 1 to be made, at step 1 of 4");
}

#[test]
fn pod_lost_while_a_rollout_pauses_is_no_failed_update() {
    let mut world = settled(4, canary());
    world.image("app:2");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (1, Some(2))
    );
    let mut pods = world.pods.values();
    let canary = pods.find(|pod| pod.spec.containers[0].image == "app:2");
    let name = canary.unwrap().metadata.name.clone();
    world.delete(&name);
    world.forbidden.insert("app:2".into());
    world.settle();
    assert_eq!(world.ids().len(), 3);
    for (type_, reason) in [
        ("Ready", "ScaleOutFailed"),
        ("Scale", "ScaleOutFailed"),
        ("Update", "StepPaused"),
    ] {
        assert_eq!(condition(&world, type_).1, reason, "{type_}");
    }
    world.forbidden.clear();
    world.run_plan();
    assert_ne!(condition(&world, "Ready").1, "UpdateFailed");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (1, Some(2))
    );
}

#[test]
fn each_canary_outage_at_pause_is_reported_once() {
    let mut world = World::on_plane(4, canary());
    world.settle();
    world.image("app:2");
    world.settle();
    assert_eq!(condition(&world, "Update").1, "StepPaused");
    let mut pods = world.pods.values();
    let canary = pods.find(|pod| pod.spec.containers[0].image == "app:2");
    let canary = canary.unwrap().metadata.clone();
    let other = world.pods.values().find(|p| p.metadata.uid != canary.uid);
    let other = other.unwrap().metadata.uid.clone();
    let canary_messages = |world: &World| {
        let events = world.events.iter();
        let events = events.filter(|(reason, _)| *reason == "CanaryUnavailable");
        events
            .map(|(_, message)| message.clone())
            .collect::<Vec<_>>()
    };
    let lost = |world: &mut World, uid: &str| {
        let lost = Kubelet {
            is_lost: true,
            ..Kubelet::default()
        };
        world.kubelets.insert(uid.to_owned(), lost);
        world.settle();
    };
    lost(&mut world, &other);
    assert_eq!(
        canary_messages(&world),
        [""; 0],
        "it is of the former revision"
    );
    for times in 1..=2 {
        lost(&mut world, &canary.uid);
        world.wait(60);
        world.settle();
        world.settle();
        assert_eq!(canary_messages(&world).len(), times);
        world.kubelets.clear();
        world.settle();
    }
    let pause =
        "step 2 of 4 pauses until the annotation collaset.kusionstack.io/rollout=promote is set";
    let wanted = format!(
        "1 Pod of the updated revision is no longer available; Pod {} is not Ready; {pause}",
        canary.name
    );
    assert_eq!(canary_messages(&world)[0], wanted);

    // Pods that go down for the next step cause no Event.
    world.command("promote");
    world.settle();
    assert_eq!(
        (running(&world, "app:2"), read_rollout_step(&world)),
        (2, Some(4))
    );
    assert_eq!(canary_messages(&world).len(), 2);
}
