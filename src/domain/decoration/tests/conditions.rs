use serde_json::json;

use super::world::World;
use crate::api::resourcecontext::data;

/// Status, reason and message of `Ready` after a plan.
fn ready(world: &mut World) -> String {
    world.settle();
    let (status, reason, message) = world.condition("Ready").unwrap();
    format!("{status} {reason}: {message}")
}

/// A rollout of revision `log-2` over the sets `api` and `web`. No Pod has it yet.
fn rollout() -> World {
    let mut world = World::new().with_set("api", 1).with_set("web", 3);
    world.roll_out();
    world.change_template("2");
    world
}

fn updated(world: &World) -> String {
    world.stored_status().updated_revision
}

#[test]
fn ready_says_how_far_the_rollout_is() {
    let mut world = rollout();
    let text = ready(&mut world);
    let revision = updated(&world);
    let want = format!(
        "False Progressing: 0 of 4 Pods have revision {revision}; CollaSet api: 1 Pod to update; CollaSet web: 3 Pods to update"
    );
    assert_eq!(text, want);
    world.roll_out();
    world.set("web").pods.get_mut(&1).unwrap().is_available = false;
    let want = format!(
        "False Progressing: 4 Pods have revision {revision}; CollaSet web: 1 Pod not available (web-1)"
    );
    assert_eq!(ready(&mut world), want);
    world.set("web").pods.get_mut(&1).unwrap().is_available = true;
    let want = format!("True AsWanted: 4 Pods have revision {revision}");
    assert_eq!(ready(&mut world), want);
}

#[test]
fn ready_is_true_once_partition_is_reached() {
    let mut world = rollout();
    world.set_partition(3);
    world.roll_out();
    let revision = updated(&world);
    let want = format!(
        "True AsWanted: 1 of 4 Pods has revision {revision}; \
         spec.updateStrategy.rollingUpdate.partition keeps the revision of 3 Pods: lower it to update more"
    );
    assert_eq!(ready(&mut world), want);
}

#[test]
fn ready_names_sets_that_wait_and_why() {
    let mut world = rollout();
    world.set("api").spec["paused"] = json!(true);
    let conditions = json!([{
        "type": "Update", "status": "False", "reason": "Updating",
        "message": "3 Pods to update; rule slow of PodTransitionRule r: wait",
    }]);
    world.set("web").status["conditions"] = conditions;
    let text = ready(&mut world);
    let want = "; CollaSet api: 1 Pod to update, paused: set spec.paused of the CollaSet to false to go on; \
        CollaSet web: 3 Pods to update (its condition: 3 Pods to update; rule slow of PodTransitionRule r: wait)";
    assert!(text.ends_with(want), "{text}");
}

#[test]
fn deletion_names_sets_that_still_have_decoration() {
    let mut world = rollout();
    world.roll_out();
    world.is_deleting = true;
    world.set("api").spec["paused"] = json!(true);
    let want = "False Deleting: CollaSet api: 1 Pod to update to be without the decoration, \
        paused: set spec.paused of the CollaSet to false to go on; \
        CollaSet web: 3 Pods to update to be without the decoration";
    assert_eq!(ready(&mut world), want);
    world.refused.finalizer = Some("denied".to_owned());
    for set in ["api", "web"] {
        world.set(set).pods.clear();
    }
    world.reconcile();
    let message = world.condition("Ready").unwrap().2;
    let want = "no Pod has the decoration; its finalizer can't be removed: denied; let the server update the PodDecoration";
    assert_eq!(message, want);
}

#[test]
fn pods_that_are_not_selected_any_more_are_work() {
    let mut world = rollout();
    world.roll_out();
    world.change_spec(|spec| spec["selector"] = json!({ "matchLabels": { "app": "y" } }));
    let text = ready(&mut world);
    let want = "False Progressing: spec.selector matches no Pod of a CollaSet; \
        CollaSet api: 1 Pod to update to be without the decoration; \
        CollaSet web: 3 Pods to update to be without the decoration";
    assert_eq!(text, want);
}

#[test]
fn set_that_cannot_apply_the_decoration_stalls_it() {
    let mut world = rollout();
    let failure = |message: &str| {
        json!([{
            "type": "Scale", "status": "False", "reason": "ScaleOutFailed", "message": message,
        }])
    };
    for harmless in [
        "PodDecoration log-b: x",
        "it waits for PodDecoration log",
        "PodDecoration log.b: x",
    ] {
        world.set("web").status["conditions"] = failure(harmless);
        world.settle();
        assert_eq!(world.condition("Stalled"), None, "{harmless}");
    }
    world.set("web").status["conditions"] = failure("PodDecoration log: spec.template: bad");
    world.settle();
    let (status, reason, message) = world.condition("Stalled").unwrap();
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("True", "PodsNotDecorated")
    );
    let want = "CollaSet web can't decorate its Pods: PodDecoration log: spec.template: bad";
    assert_eq!(message, want);
}

#[test]
fn counts_and_details_list_pods_by_name() {
    let mut world = World::new().with_set("web", 3).with_set("api", 1);
    world.settle();
    let revision = updated(&world);
    world.update_pod("web", 2);
    world.set("api").pods.get_mut(&0).unwrap().is_available = false;
    world.update_pod("api", 0);
    world.set("web").pods.get_mut(&0).unwrap().is_terminating = true;
    world.settle();
    let status = world.stored_status();
    let counts = (
        status.matched_pods,
        status.injected_pods,
        status.updated_pods,
    );
    assert_eq!(counts, (3, 2, 2));
    assert_eq!(
        (status.updated_ready_pods, status.updated_available_pods),
        (1, 1)
    );
    let details = json!([
        { "collaSet": "api", "affectedReplicas": 1, "pods": [{ "name": "api-0", "revision": revision }] },
        { "collaSet": "web", "affectedReplicas": 2, "pods": [
            { "name": "web-1", "escaped": true }, { "name": "web-2", "revision": revision },
        ] },
    ]);
    assert_eq!(json!(status.details), details);
    world.spec["disablePodDetail"] = json!(true);
    world.settle();
    assert!(
        world
            .stored_status()
            .details
            .iter()
            .all(|detail| detail.pods.is_empty())
    );
}

#[test]
fn list_of_pods_is_left_out_above_500_pods() {
    for (size, listed) in [(500, 500), (501, 0)] {
        let mut world = World::new().with_set("web", size);
        world.settle();
        assert_eq!(world.stored_status().details[0].pods.len(), listed);
        assert_eq!(
            world.stored_status().matched_pods,
            i32::try_from(size).unwrap()
        );
    }
}

#[test]
fn transition_time_and_events_follow_changes_only() {
    let mut world = rollout();
    let reasons = |plan: crate::domain::decoration::plan::DecorationPlan| -> Vec<&'static str> {
        plan.events.iter().map(|event| event.reason).collect()
    };
    world.reconcile();
    assert_eq!(reasons(world.reconcile()), ["RolloutStarted"]);
    assert_eq!(reasons(world.reconcile()), [""; 0]);
    let time = |world: &World| {
        world.stored_status().conditions[0]
            .last_transition_time
            .clone()
    };
    let before = time(&world);
    for id in 0..3 {
        world.update_pod("web", id);
    }
    world.settle();
    assert_eq!(time(&world), before);
    world.update_pod("api", 0);
    assert_eq!(reasons(world.reconcile()), ["RolloutCompleted"]);
    let entry = world.set("web").entries.get_mut(&0).unwrap();
    entry.insert(data::SCALE_IN.to_owned(), "true".to_owned());
    assert_eq!(reasons(world.reconcile()), [""; 0]);
}
