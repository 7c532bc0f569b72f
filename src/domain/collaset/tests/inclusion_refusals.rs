//! Rollouts under unusual conditions: lost statuses and revisions, edited steps, late aborts, and inclusions that are
//! refused.
use serde_json::{Value, json};

use super::reconcile::{condition, one_pvc_template, settled};
use super::world::World;
use crate::api::keys::{self, Family};
use crate::domain::collaset::plan::SetEvent;
use crate::domain::collaset::planner;

fn steps(steps: Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } })
}
fn canary() -> Value {
    steps(
        json!([{ "partition": 3 }, { "pause": {} }, { "partition": 2 }, { "pause": { "duration": "10m" } }]),
    )
}
fn running(world: &World, image: &str) -> usize {
    world.images().into_iter().filter(|i| *i == image).count()
}
#[test]
fn rollout_position_survives_loss_of_status() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.set.status = None;
    w.settle();
    assert_eq!(running(&w, "app:2"), 1);
}

#[test]
fn aborted_rollout_updates_no_further_pod_after_status_loss() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.command("abort");
    w.settle();
    w.set.status = None;
    w.settle();
    assert!(running(&w, "app:2") <= 1);
}

#[test]
fn canary_pause_survives_deletion_of_current_revision() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    let current = w.set.status.as_ref().unwrap().current_revision.clone();
    w.revisions.remove(&current);
    w.settle();
    assert_eq!(running(&w, "app:2"), 1);
}

#[test]
fn promotion_ends_the_reason_step_paused() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.command("promote");
    for _ in 0..3 {
        w.run_plan();
    }
    let (_, reason, message) = condition(&w, "Update");
    assert_ne!(reason, "StepPaused", "{message}");
}

#[test]
fn new_template_ends_the_reason_rollout_aborted() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.command("abort");
    w.settle();
    w.edit(json!({ "updateStrategy": { "rollingUpdate": null } }));
    w.image("app:3");
    for _ in 0..3 {
        w.run_plan();
    }
    let (_, reason, message) = condition(&w, "Update");
    assert_ne!(reason, "RolloutAborted", "{message}");
}

#[test]
fn resumed_set_ends_the_reason_paused() {
    let mut w = settled(4, json!({}));
    w.edit(json!({ "paused": true }));
    w.image("app:2");
    w.settle();
    w.edit(json!({ "paused": false, "replicas": 6 }));
    w.run_plan();
    assert_ne!(condition(&w, "Update").1, "Paused");
}

/// Runs the world until it settles. The terminating Pods in `lost` never end.
fn settle_with_lost(w: &mut World, lost: &[&str]) {
    for _ in 0..100 {
        let lost_before: Vec<_> = w
            .pods
            .iter()
            .filter(|(n, p)| lost.contains(&n.as_str()) && p.is_terminating())
            .map(|(n, p)| (n.clone(), p.clone()))
            .collect();
        let busy = w.run_plan();
        let lost_now: Vec<_> = w
            .pods
            .iter()
            .filter(|(n, p)| lost.contains(&n.as_str()) && p.is_terminating())
            .map(|(n, p)| (n.clone(), p.clone()))
            .collect();
        let moved = w.step_surroundings();
        let had = !lost_now.is_empty();
        for (n, p) in lost_now.into_iter().chain(lost_before) {
            w.pods.insert(n, p);
        }
        if !busy && (!moved || had) {
            return;
        }
    }
}

#[test]
fn recreate_updates_other_pods_beside_lost_node() {
    let mut w = settled(
        5,
        json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" }, "updateStrategy": { "podUpgradePolicy": "Recreate" } }),
    );
    // The node of web-2 is lost, so the Pod is not Ready.
    let pod = w.pods.get_mut("web-2").unwrap();
    pod.status.conditions.clear();
    pod.status.conditions =
        serde_json::from_value(json!([{ "type": "Ready", "status": "False" }])).unwrap();
    w.image("app:2");
    // The kubelet of the world would make the Pod Ready again, so restore its status after each step.
    for _ in 0..3 {
        w.run_plan();
        let lost = w.pods["web-2"].clone();
        w.step_surroundings();
        let entry = w.pods.entry("web-2".into()).or_insert(lost.clone());
        entry.status = lost.status.clone();
        if lost.is_terminating() {
            *entry = lost;
        }
    }
    settle_with_lost(&mut w, &["web-2"]);
    assert_eq!(running(&w, "app:2"), 4);
}

#[test]
fn deadline_stops_while_rule_holds_origins() {
    let mut w = settled(
        3,
        json!({ "progressDeadlineSeconds": 600, "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    w.image("app:2");
    for _ in 0..3 {
        w.run_plan();
        let before = w.pods.clone();
        w.step_surroundings();
        // A rule holds the origins: they wait in PreCheck of `pod-delete`.
        for (n, p) in before {
            if p.label(keys::TO_DELETE).is_some() {
                let mut p = p;
                p.metadata.labels.insert(
                    Family::Operating.key(crate::domain::grace_delete::DELETION_ID),
                    "1".into(),
                );
                p.metadata.labels.insert(
                    Family::OperationType.key(crate::domain::grace_delete::DELETION_ID),
                    crate::domain::grace_delete::DELETION_TYPE.into(),
                );
                p.metadata.labels.insert(
                    Family::PreCheck.key(crate::domain::grace_delete::DELETION_ID),
                    "1".into(),
                );
                w.pods.insert(n, p);
            }
        }
    }
    for _ in 0..3 {
        w.run_plan();
    }
    w.wait(700);
    w.run_plan();
    w.run_plan();
    let s = w.set.status.as_ref().unwrap();
    assert!(!s.conditions.iter().any(|c| c.type_ == "Stalled"));
}

/// Runs plans whose writes of revisions the API server refuses.
fn run_without_revisions(w: &mut World) {
    for _ in 0..20 {
        let mut p = planner::plan_set(&w.observe());
        p.revisions.clear();
        w.apply_plan(p, usize::MAX);
        w.step_surroundings();
    }
}

#[test]
fn rollback_proceeds_while_revision_renumbering_is_refused() {
    let mut w = settled(
        4,
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } }),
    );
    w.image("app:2");
    w.settle();
    w.refused.revision = Some("a policy refuses".into());
    w.edit(json!({ "updateStrategy": { "rollingUpdate": null } }));
    w.image("app:1"); // rollback, without a partition
    run_without_revisions(&mut w);
    assert_eq!(running(&w, "app:1"), 4);
}

#[test]
fn new_template_is_refused_while_old_rollout_is_paused() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.command("abort");
    w.settle();
    w.refused.revision = Some("a policy refuses".into());
    w.image("app:3");
    run_without_revisions(&mut w);
    assert_eq!(running(&w, "app:1"), 4);
}

#[test]
fn rollout_ends_only_after_min_ready_seconds() {
    // The Pods are Ready but not available because of `minReadySeconds`, so the rollout is not over.
    let mut w = settled(
        3,
        json!({ "minReadySeconds": 600, "updateStrategy": { "podUpgradePolicy": "Recreate" } }),
    );
    w.image("app:2");
    for _ in 0..12 {
        w.run_plan();
        w.step_surroundings();
        for p in w.pods.values_mut() {
            if p.spec.containers[0].image == "app:2" {
                p.metadata.labels.remove(keys::SERVICE_AVAILABLE);
            }
        }
    }
    w.run_plan();
    let s = w.set.status.clone().unwrap();
    w.command("abort");
    assert_ne!(
        s.current_revision, s.updated_revision,
        "nobody is available yet"
    );
}

#[test]
fn set_is_not_ready_at_pause_after_last_partition() {
    let mut w = settled(
        3,
        steps(json!([{ "partition": 2 }, { "partition": 0 }, { "pause": {} }])),
    );
    w.image("app:2");
    w.settle();
    assert_eq!(condition(&w, "Ready").0, "False");
}

#[test]
fn scale_to_zero_and_back_keeps_canary_count() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.edit(json!({ "replicas": 0 }));
    w.settle();
    w.edit(json!({ "replicas": 4 }));
    w.settle();
    assert!(running(&w, "app:2") <= 1);
}

#[test]
fn scale_out_after_canaries_remain_keeps_canary_count() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    // `podToDelete` names the old Pods, so they are deleted first.
    let old: Vec<_> = w
        .pods
        .values()
        .filter(|p| p.spec.containers[0].image == "app:1")
        .map(|p| p.metadata.name.clone())
        .collect();
    w.edit(json!({ "replicas": 1, "scaleStrategy": { "podToDelete": old } }));
    w.settle();
    w.edit(json!({ "replicas": 4 }));
    w.settle();
    assert!(running(&w, "app:2") <= 1);
}

#[test]
fn abort_of_recreate_with_changed_pvc_templates_keeps_data() {
    let mut spec = one_pvc_template();
    spec["updateStrategy"] = json!({ "podUpgradePolicy": "Recreate", "rollingUpdate": { "steps": [{ "partition": 2 }, { "pause": {} }] } });
    let mut w = settled(3, spec);
    let before: Vec<_> = w.pvcs.keys().cloned().collect();
    let mut change = one_pvc_template();
    change["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    // The API server refuses Pods of the new template.
    w.forbidden.insert("app:2".into());
    w.edit(change);
    w.image("app:2");
    w.settle();
    w.command("abort");
    w.settle();
    let now: Vec<_> = w.pvcs.keys().cloned().collect();
    assert_eq!(before, now);
}

#[test]
fn stalled_after_abort_stays_while_a_pod_is_lost() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.command("abort");
    w.settle();
    let name = w.pods.keys().next().unwrap().clone();
    w.delete(&name);
    w.run_plan();
    w.run_plan();
    assert_eq!(condition(&w, "Stalled").1, "RolloutAborted");
}

#[test]
fn scale_condition_is_not_true_while_scaling() {
    let mut w = settled(2, json!({}));
    w.edit(json!({ "replicas": 5 }));
    w.run_plan();
    assert_ne!(condition(&w, "Scale").0, "True");
}

#[test]
fn shortened_steps_keep_the_rollout_within_their_partition() {
    let mut w = settled(
        10,
        steps(
            json!([{ "partition": 9 }, { "pause": { "duration": "1s" } }, { "partition": 8 }, { "pause": {} }, { "partition": 5 }, { "pause": {} }]),
        ),
    );
    w.image("app:2");
    w.settle();
    w.wait(10);
    w.settle();
    w.edit(steps(
        json!([{ "partition": 8 }, { "pause": {} }, { "partition": 5 }]),
    ));
    w.settle();
    assert!(running(&w, "app:2") <= 5);
}

#[test]
fn switch_to_by_label_and_back_keeps_canary_count() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.edit(json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } }));
    w.settle();
    w.edit(json!({ "updateStrategy": { "rollingUpdate": { "byLabel": null } } }));
    w.settle();
    assert_eq!(running(&w, "app:2"), 1);
}

#[test]
fn pod_that_never_ends_holds_up_no_other() {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let strategy = json!({ "podUpgradePolicy": "Recreate" });
    let mut w = settled(
        4,
        json!({ "namingStrategy": naming, "updateStrategy": strategy }),
    );
    w.refused.proven.clear();
    // The Pod should have ended long ago.
    let pod = w.pods.get_mut("web-0").unwrap();
    pod.metadata.deletion_timestamp = Some("2020-01-01T00:00:00Z".to_owned());
    w.image("app:2");
    settle_with_lost(&mut w, &["web-0"]);
    assert_eq!(running(&w, "app:2"), 3);
}

#[test]
fn replacement_that_a_user_asked_for_outlasts_a_rollback() {
    let mut world = settled(
        2,
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } }),
    );
    let name = world.pods.keys().next().unwrap().clone();
    let others: Vec<_> = world.pods.keys().filter(|n| **n != name).cloned().collect();
    let pod = world.pods.get_mut(&name).unwrap();
    pod.metadata
        .labels
        .insert(keys::TO_REPLACE.into(), "true".into());
    world.image("app:2");
    world.run_plan();
    world.image("app:1");
    world.settle();
    assert!(!world.pods.contains_key(&name), "it is replaced");
    assert!(others.iter().all(|name| world.pods.contains_key(name)));
    assert_eq!(world.images(), ["app:1"; 2]);
}

/// Adds a Pod `stranger` without a controller. It has those of another Pod's labels that are listed.
fn add_stranger(world: &mut World, labels: &[&str]) {
    let mut own = world.pods.values().filter(|pod| world.owns(pod));
    let mut stranger = own.next().unwrap().clone();
    stranger.metadata.name = "stranger".into();
    stranger.metadata.uid = "stranger".into();
    stranger.metadata.owner_references = Default::default();
    let is_copied = |key: &String, _: &mut String| labels.contains(&key.as_str());
    stranger.metadata.labels.retain(is_copied);
    world.pods.insert("stranger".into(), stranger);
}

#[test]
fn set_is_not_ready_while_inclusion_is_refused() {
    let mut world = settled(1, json!({}));
    add_stranger(&mut world, &[keys::CONTROL]);
    let lists = json!({ "podToInclude": ["stranger"], "podToExclude": ["web-none"] });
    world.edit(json!({ "scaleStrategy": lists, "replicas": 2 }));
    let events = planner::plan_set(&world.observe()).events;
    let is_reported = |event: &SetEvent| {
        event
            .message
            .starts_with("podToExclude: web-none: no such Pod")
    };
    assert!(events.iter().any(is_reported), "{events:?}");
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "IncludeNotAllowed"));
    assert!(
        message.contains("Pod stranger can't be included: the selector"),
        "{message}"
    );
    world.edit(json!({ "scaleStrategy": { "podToInclude": [] } }));
    world.settle();
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn inclusion_without_control_label_is_refused_with_remedy() {
    let mut world = settled(1, json!({}));
    add_stranger(&mut world, &["app", keys::REVISION]);
    world.edit(json!({ "scaleStrategy": { "podToInclude": ["stranger"] } }));
    let plan = planner::plan_set(&world.observe());
    let warnings: Vec<_> = plan.events.iter().filter(|e| e.warning).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let remedy = "Pod stranger can't be included: it lacks the label kusionstack.io/control: \"true\". Set it: `kubectl label pod \
                  stranger -n shop kusionstack.io/control=true --overwrite`";
    assert_eq!(
        (warnings[0].reason, &*warnings[0].message),
        ("IncludeNotAllowed", remedy)
    );
    assert!(
        plan.requeue_after_nanos.is_some(),
        "nothing tells of its deletion"
    );
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "IncludeNotAllowed"));
    assert_eq!(message, remedy);
    world.edit(json!({ "replicas": 2 }));
    let labels = &mut world.pods.get_mut("stranger").unwrap().metadata.labels;
    labels.insert(keys::CONTROL.into(), keys::CONTROL_VALUE.into());
    world.settle();
    assert!(world.owns(&world.pods["stranger"]));
}

#[test]
fn all_inclusion_obstacles_are_named_with_remedy() {
    let refusal = |world: &mut World| {
        world.edit(json!({ "scaleStrategy": { "podToInclude": ["stranger"] } }));
        world.settle();
        let (_, reason, message) = condition(world, "Ready");
        assert_eq!(reason, "IncludeNotAllowed");
        let start = "Pod stranger can't be included: ";
        message.strip_prefix(start).unwrap_or(&message).to_owned()
    };
    let owned_by = |world: &mut World, kind: &str, name: &str| {
        let owner = json!([{
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind, "name": name, "uid": name, "controller": true,
        }]);
        let pod = world.pods.get_mut("stranger").unwrap();
        pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
    };
    let lacks = "it lacks the label kusionstack.io/control: \"true\"";
    let unmatched = "the selector does not match its labels";
    let mut world = settled(1, json!({}));

    add_stranger(&mut world, &[]);
    let label = "kubectl label pod stranger -n shop";
    let both = format!(
        "{lacks}, {unmatched}. Set them: `{label} kusionstack.io/control=true app=web --overwrite`"
    );
    assert_eq!(refusal(&mut world), both);
    add_stranger(&mut world, &[keys::CONTROL]);
    let set_it = format!("{unmatched}. Set them: `{label} app=web --overwrite`");
    assert_eq!(refusal(&mut world), set_it);

    add_stranger(&mut world, &["app"]);
    owned_by(&mut world, "ReplicaSet", "web-7d4");
    let message = refusal(&mut world);
    let owned = format!("ReplicaSet web-7d4 controls it, {lacks}. ");
    assert!(message.starts_with(&owned), "{message}");
    let pod = world.pods.get_mut("stranger").unwrap();
    let labels = &mut pod.metadata.labels;
    labels.insert("pod-template-hash".into(), "7d4".into());
    let message = refusal(&mut world);
    let release = format!(
        "ReplicaSet web-7d4 makes another Pod in its place once it is released. Release it: `{label} pod-template-hash-`"
    );
    assert!(message.ends_with(&release), "{message}");

    add_stranger(&mut world, &["app", keys::CONTROL]);
    owned_by(&mut world, "CollaSet", "other");
    let message = refusal(&mut world);
    let exclude = format!(
        "CollaSet other controls it. Have it excluded there, unless that set has podNamingSuffixPolicy PersistentSequence: `{label} collaset.kusionstack.io/to-exclude=true`"
    );
    assert_eq!(message, exclude);
    let pod = world.pods.get_mut("stranger").unwrap();
    let labels = &mut pod.metadata.labels;
    labels.insert(keys::TO_EXCLUDE.into(), "true".into());
    assert_eq!(
        refusal(&mut world),
        exclude,
        "the label speaks to the other set"
    );

    let mut picky = settled(1, json!({}));
    let expression = json!({ "key": "app", "operator": "NotIn", "values": ["db"] });
    let selector = json!({ "matchLabels": null, "matchExpressions": [expression] });
    picky.edit(json!({ "selector": selector }));
    add_stranger(&mut picky, &[]);
    let pod = picky.pods.get_mut("stranger").unwrap();
    pod.metadata.labels.insert("app".into(), "db".into());
    let message = refusal(&mut picky);
    let change = format!("{lacks}, {unmatched}. Change its labels as spec.selector says");
    assert_eq!(message, change);
}

#[test]
fn set_is_not_ready_while_exclusion_is_refused() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = settled(2, naming);
    world.edit(json!({ "scaleStrategy": { "podToExclude": ["web-0"] } }));
    world.settle();
    let (ready, reason, message) = condition(&world, "Ready");
    assert_eq!((&*ready, &*reason), ("False", "ExcludeNotAllowed"));
    let prefix = "Pod web-0 can't be excluded under podNamingSuffixPolicy PersistentSequence";
    assert!(message.starts_with(prefix), "{message}");
    world.edit(json!({ "scaleStrategy": { "podToExclude": [] } }));
    world.settle();
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn pod_to_include_is_not_scaled_in() {
    let mut world = settled(2, json!({}));
    let mut stranger = world.pods.values().next().unwrap().clone();
    stranger.metadata.name = "stranger".into();
    stranger.metadata.uid = "stranger".into();
    stranger.metadata.owner_references = Default::default();
    let stored_keys = [
        "app",
        keys::CONTROL,
        keys::SERVICE_AVAILABLE,
        keys::REVISION,
    ];
    stranger
        .metadata
        .labels
        .retain(|key, _| stored_keys.contains(&key.as_str()));
    world.pods.insert("stranger".into(), stranger);
    world.edit(json!({ "scaleStrategy": { "podToInclude": ["stranger"] } }));
    world.settle();
    assert_eq!(world.members().len(), 2);
    assert!(world.pods.contains_key("stranger"), "another one went");
}

#[test]
fn pods_kept_on_older_revisions_are_reported() {
    let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
    let mut world = settled(2, by_label);
    world.image("app:2");
    world.settle();
    let (ready, _, message) = condition(&world, "Ready");
    assert_eq!(ready, "True");
    let prefix = "2 Pods stay on older revisions: they carry no label";
    assert!(message.starts_with(prefix), "{message}");
}

#[test]
fn paused_set_is_not_ready_while_deletion_waits() {
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = World::on_plane(2, naming);
    world.settle();
    world.edit(json!({ "scaleStrategy": { "podToDelete": ["web-1"] } }));
    world.run_plan();
    world.edit(json!({ "paused": true }));
    world.settle();
    let uid = world.pods["web-1"].metadata.uid.clone();
    assert_eq!(condition(&world, "Ready").0, "False");
    world.edit(json!({ "paused": false }));
    world.settle();
    assert_ne!(world.pods["web-1"].metadata.uid, uid);
    assert_eq!(condition(&world, "Ready").0, "True");
}

/// Messages of the Events with this reason.
fn messages_of<'a>(world: &'a World, reason: &str) -> Vec<&'a str> {
    let events = world.events.iter().filter(|(r, _)| *r == reason);
    events.map(|(_, message)| message.as_str()).collect()
}

#[test]
fn inclusion_is_reported_with_id_once_written() {
    let mut world = settled(1, json!({}));
    let labels = [
        "app",
        keys::CONTROL,
        keys::SERVICE_AVAILABLE,
        keys::REVISION,
    ];
    add_stranger(&mut world, &labels);
    world.faults.stubborn.insert("stranger".into());
    world.edit(json!({ "replicas": 2, "scaleStrategy": { "podToInclude": ["stranger"] } }));
    for _ in 0..4 {
        world.run_plan();
        world.step_surroundings();
    }
    assert_eq!(
        messages_of(&world, "IncludeTarget"),
        [""; 0],
        "it is refused"
    );
    world.faults.stubborn.clear();
    world.settle();
    let id = world.pods["stranger"].label(keys::INSTANCE_ID).unwrap();
    let expected = format!("Pod stranger is included under instance ID {id}");
    assert_eq!(messages_of(&world, "IncludeTarget"), [expected]);
}

#[test]
fn exclusion_is_reported_once_written() {
    let mut world = settled(2, json!({}));
    let pod = world.pods.values().next().unwrap().metadata.clone();
    world.faults.stubborn.insert(pod.uid);
    world.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [pod.name] } }));
    for _ in 0..4 {
        world.run_plan();
        world.step_surroundings();
    }
    assert_eq!(
        messages_of(&world, "ExcludeTarget"),
        [""; 0],
        "it is refused"
    );
    world.faults.stubborn.clear();
    world.settle();
    let expected = format!("Pod {} is excluded", pod.name);
    assert_eq!(messages_of(&world, "ExcludeTarget"), [expected]);
}

/// The revision to which the abort goes back does not exist any more. The set must not roll out the aborted template
/// instead.
#[test]
fn abort_without_current_revision_names_the_remedy() {
    let mut w = settled(4, canary());
    w.image("app:2");
    w.settle();
    w.command("abort");
    w.settle();
    let current = w.set.status.as_ref().unwrap().current_revision.clone();
    w.revisions.remove(&current);
    w.settle();
    assert_eq!(running(&w, "app:1"), 4);
    let (_, reason, message) = condition(&w, "Update");
    assert_eq!(reason, "RolloutAborted");
    assert!(message.contains("apply the former template"), "{message}");
    w.image("app:1");
    w.settle();
    assert_eq!(running(&w, "app:1"), 4);
}

/// The labels choose these Pods for the template that is refused.
#[test]
fn labelled_pods_stay_while_the_revision_is_refused() {
    for is_aborted in [false, true] {
        let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
        let mut w = settled(4, by_label);
        let names: Vec<String> = w.pods.keys().cloned().collect();
        let include = |w: &mut World, name: &str| {
            let labels = &mut w.pods.get_mut(name).unwrap().metadata.labels;
            labels.insert(keys::UPDATE_INCLUDED.into(), "true".into());
        };
        w.image("app:2");
        include(&mut w, &names[0]);
        w.settle();
        assert_eq!(running(&w, "app:2"), 1);
        if is_aborted {
            w.command("abort");
            w.settle();
        }
        let before = w.images().join(" ");
        w.refused.revision = Some("a policy refuses".into());
        w.image("app:3");
        for name in &names {
            include(&mut w, name);
        }
        for _ in 0..20 {
            let mut p = planner::plan_set(&w.observe());
            p.revisions.clear();
            let is_started = |event: &SetEvent| event.reason == "RolloutStarted";
            assert!(!p.events.iter().any(is_started), "{:?}", p.events);
            w.apply_plan(p, usize::MAX);
            w.step_surroundings();
        }
        assert_eq!(w.images().join(" "), before, "aborted {is_aborted}");
        let labelled = w.pods.values();
        let labelled = labelled.filter(|pod| pod.label(keys::UPDATE_INCLUDED).is_some());
        assert_eq!(labelled.count(), 4, "the choice stays");
    }
}
