//! The status of a set and `operating why` both name the cause for which a Pod waits.

use std::sync::Arc;

use serde_json::{Value, json};

use super::reconcile::{condition, settled};
use super::world::{Kubelet, World};
use crate::api::keys::{self, Family};
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::planner::plan_set;
use crate::domain::collaset::status::condition_time;
use crate::domain::diagnosis::{Diagnosis, ObservedPod, PodContext, PodController, diagnose};

const RULE: &str = "rule sessions of PodTransitionRule web: endpoint says no";

/// The diagnosis of `operating why` for a Pod of the set, without rules.
fn why(world: &World, name: &str) -> Diagnosis {
    let pods = world.pods.values().cloned().map(Arc::new);
    diagnose(&ObservedPod {
        pod: Arc::new(world.pods[name].clone()),
        rules: Vec::new(),
        pods: pods.collect(),
        controller: Some(PodController::CollaSet(Arc::new(world.set.clone()))),
        jobs: None,
        context: PodContext::default(),
        notes: Vec::new(),
        now: condition_time(world.now()),
    })
}

/// The remark of `operating why` about the set's work on a Pod.
fn remark(world: &World, name: &str) -> String {
    why(world, name).owner.unwrap().remark.unwrap_or_default()
}

fn names(world: &World) -> Vec<String> {
    world.pods.keys().cloned().collect()
}

fn with_image(world: &World, image: &str) -> String {
    let mut pods = world.pods.values();
    let pod = pods.find(|pod| pod.spec.containers[0].image == image);
    pod.unwrap().metadata.name.clone()
}

fn label(world: &mut World, name: &str, key: &str, value: &str) {
    let (key, value) = (key.to_owned(), value.to_owned());
    let write = |pod: &mut crate::domain::pod::Pod| {
        pod.metadata.labels.insert(key, value);
    };
    assert!(world.write_pod(name, write));
}

/// Makes a Pod lose Ready and never get it back.
pub fn take_down(world: &mut World, name: &str) {
    let pod = world.pods.get_mut(name).unwrap();
    let uid = pod.metadata.uid.clone();
    let mut conditions = pod.status.conditions.iter_mut();
    let ready = conditions.find(|c| c.type_ == "Ready").unwrap();
    ready.status = "False".into();
    world.kubelets.entry(uid).or_default().is_slow = true;
}

/// Runs this many rounds of the set and its surroundings.
pub fn rounds(world: &mut World, count: usize) {
    world.run_rounds(count);
    world.run_plan();
}

fn says(world: &World, type_: &str, sentence: &str) {
    let message = condition(world, type_).2;
    assert!(message.contains(sentence), "{type_}: {message}");
}

fn does_not_say(world: &World, type_: &str, sentence: &str) {
    let message = condition(world, type_).2;
    assert!(!message.contains(sentence), "{type_}: {message}");
}

fn is_stalled(world: &World) -> bool {
    let conditions = &world.set.status.as_ref().unwrap().conditions;
    conditions.iter().any(|c| c.type_ == "Stalled")
}

/// A set with a deadline whose only update waits for a rule in PostCheck.
fn held_back(replicas: i32) -> World {
    let spec = json!({ "progressDeadlineSeconds": 30, "updateStrategy": { "maxUnavailable": 1 } });
    let mut world = World::on_plane(replicas, spec);
    world.settle();
    world.faults.holds_back = true;
    world.image("app:2");
    for _ in 0..20 {
        for (name, uid) in uids(&world) {
            let awaits_rules = world.pods[&name].label(&Family::PostCheck.key("collaset"));
            if awaits_rules.is_some() {
                world.held.insert(uid, vec![RULE.to_owned()]);
            }
        }
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    world
}

fn uids(world: &World) -> Vec<(String, String)> {
    let pods = world.pods.values();
    let named = pods.map(|pod| (pod.metadata.name.clone(), pod.metadata.uid.clone()));
    named.collect()
}

#[test]
fn holding_post_check_rule_is_named_and_stops_deadline() {
    let mut world = held_back(2);
    for _ in 0..60 {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    let name = with_image(&world, "app:2");
    let postcheck = Family::PostCheck.key("collaset");
    assert!(world.pods[&name].label(&postcheck).is_some());
    says(&world, "Ready", &format!("Pod {name} waits for {RULE}"));
    assert!(!is_stalled(&world));
    world.faults.holds_back = false;
    world.held.clear();
    world.settle();
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn post_check_rule_is_named_for_partitioned_pod() {
    let mut world = held_back(2);
    world.edit(json!({ "updateStrategy": { "maxUnavailable": null, "rollingUpdate": { "byPartition": { "partition": 2 } } } }));
    let name = with_image(&world, "app:2");
    world.image("app:3");
    rounds(&mut world, 3);
    says(&world, "Ready", &format!("Pod {name} waits for {RULE}"));
}

#[test]
fn label_that_keeps_a_pod_off_traffic_is_named() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = names(&world).remove(0);
    assert!(world.write_pod(&name, |pod| {
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::STAY_OFFLINE.into(), "true".into());
        labels.remove(keys::SERVICE_AVAILABLE);
    }));
    world.settle();
    let expected = format!(
        "Pod {name} waits for a user, to remove the label {}",
        keys::STAY_OFFLINE
    );
    says(&world, "Ready", &expected);
    assert!(why(&world, &name).summary.contains(keys::STAY_OFFLINE));
}

/// The condition after an update of a Pod with this annotation, and the waits that `operating why` names.
fn after_update(annotation: &str) -> (World, String, Vec<String>) {
    let mut world = World::on_plane(2, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    world.settle();
    let name = names(&world).remove(0);
    let annotations = &mut world.pods.get_mut(&name).unwrap().metadata.annotations;
    annotations.insert(keys::AVAILABLE_CONDITIONS.into(), annotation.into());
    world.image("app:2");
    rounds(&mut world, 40);
    let operations = why(&world, &name).operations;
    let waits = operations.into_iter().flat_map(|o| o.waits_for);
    let waits = waits.map(|wait| wait.text).collect();
    (world, name, waits)
}

#[test]
fn finalizer_that_a_cooperator_does_not_add_is_named() {
    let finalizer = "prot.podopslifecycle.kusionstack.io/lb";
    let expected = json!({ "expectedFinalizers": { "Service/shop/web": finalizer } });
    let (world, name, waits) = after_update(&expected.to_string());
    assert_eq!(waits.len(), 1);
    assert!(waits[0].contains(finalizer), "{waits:?}");
    says(
        &world,
        "Ready",
        &format!("Pod {name} waits for {}", waits[0]),
    );
}

#[test]
fn unreadable_annotation_is_named() {
    let (world, name, waits) = after_update("[]");
    assert_eq!(waits.len(), 1);
    assert!(waits[0].contains(keys::AVAILABLE_CONDITIONS), "{waits:?}");
    says(
        &world,
        "Ready",
        &format!("Pod {name} waits for {}", waits[0]),
    );
}

#[test]
fn operation_of_somebody_else_is_named() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = names(&world).remove(0);
    assert!(world.write_pod(&name, |pod| {
        let labels = &mut pod.metadata.labels;
        labels.insert(Family::Operating.key("upgrade"), "1".into());
        labels.insert(Family::OperationType.key("upgrade"), "upgrade".into());
    }));
    rounds(&mut world, 6);
    let expected = format!(
        "Pod {name} waits for operation upgrade, which is in Operate and keeps the Pod off traffic"
    );
    says(&world, "Ready", &expected);
}

#[test]
fn delay_is_reported_with_its_end_time() {
    let delay = json!({ "operationDelaySeconds": 3600 });
    let spec = json!({ "updateStrategy": delay, "scaleStrategy": delay });
    let mut world = World::on_plane(2, spec);
    world.settle();
    world.image("app:2");
    rounds(&mut world, 10);
    let delayed = "is off traffic until its operationDelaySeconds (3600) are over at 20";
    says(&world, "Ready", delayed);
    let before = condition(&world, "Ready");
    rounds(&mut world, 10);
    assert_eq!(condition(&world, "Ready"), before, "the time does not move");
    let waits = &why(&world, &names(&world)[0]).operations[0].waits_for;
    assert!(
        waits[0]
            .text
            .contains("operationDelaySeconds are 3600, 59m are left")
    );
    world.advance_time(3600);
    world.settle();
    world.edit(json!({ "replicas": 1 }));
    rounds(&mut world, 10);
    says(&world, "Ready", delayed);
}

#[test]
fn out_of_scope_pod_using_max_unavailable_is_named() {
    let by_label = json!({ "byLabel": {} });
    let by_priority = json!({ "byPartition": { "partition": 2 }, "priorityLabel": "rank" });
    for rolling in [by_label, by_priority] {
        let strategy = json!({ "maxUnavailable": 1, "rollingUpdate": rolling });
        let mut world = World::on_plane(3, json!({ "updateStrategy": strategy }));
        world.settle();
        let names = names(&world);
        label(&mut world, &names[0], "rank", "9");
        label(&mut world, &names[0], keys::UPDATE_INCLUDED, "true");
        take_down(&mut world, &names[1]);
        rounds(&mut world, 3);
        world.image("app:2");
        rounds(&mut world, 20);
        assert_eq!(world.images(), ["app:1"; 3]);
        let down = &names[1];
        let expected =
            format!("; updateStrategy.maxUnavailable (1) is used up: Pod {down} is not Ready");
        says(&world, "Ready", &expected);
        says(&world, "Update", &expected);
    }
}

#[test]
fn max_unavailable_of_progressing_rollout_is_not_reported() {
    let mut world = World::on_plane(4, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    world.settle();
    world.image("app:2");
    for _ in 0..30 {
        world.run_plan();
        does_not_say(&world, "Ready", "maxUnavailable");
        does_not_say(&world, "Update", "maxUnavailable");
        world.run_pods(u8::MAX);
    }
    assert_eq!(world.images(), ["app:2"; 4]);
}

#[test]
fn exclude_label_on_included_pod_is_contradiction() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = names(&world).remove(0);
    world.edit(json!({ "scaleStrategy": { "podToInclude": [name] } }));
    world.settle();
    assert_eq!(condition(&world, "Ready").0, "True");
    label(&mut world, &name, keys::TO_EXCLUDE, "true");
    world.events.clear();
    world.settle();
    let (status, reason, message) = condition(&world, "Ready");
    assert_eq!((&*status, &*reason), ("False", "ExcludeNotAllowed"));
    let expected =
        format!("the spec asks to exclude and to include Pod {name}, so neither is done");
    assert!(message.contains(&expected), "{message}");
    assert!(message.contains("podToInclude") && message.contains(keys::TO_EXCLUDE));
    assert!(
        world
            .events
            .iter()
            .any(|(r, _)| *r == "DupExIncludedTarget")
    );
    world.edit(json!({ "scaleStrategy": { "podToInclude": null } }));
    world.settle();
    assert!(!world.owns(&world.pods[&name]));
}

#[test]
fn max_unavailable_used_by_scale_out_is_reported() {
    let mut world = World::on_plane(3, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    world.settle();
    world.faults.most_pods = Some(3);
    world.edit(json!({ "replicas": 5 }));
    rounds(&mut world, 10);
    world.image("app:2");
    rounds(&mut world, 20);
    let message = condition(&world, "Update").2;
    let up = "updateStrategy.maxUnavailable (1) is used up: 2 Pods are missing";
    assert!(message.contains(up), "{message}");
    world.faults.most_pods = None;
    world.advance_time(100);
    world.settle();
    assert_eq!(world.images(), ["app:2"; 5]);
}

#[test]
fn percent_partition_is_reported_for_kept_pod() {
    let by = json!({ "byPartition": { "partitionPercent": 50 } });
    let strategy = json!({ "maxUnavailable": 1, "rollingUpdate": by });
    let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
    world.settle();
    world.image("app:2");
    world.settle();
    let old = with_image(&world, "app:1");
    let expected = "its partition keeps 2 Pods on older revisions";
    assert!(remark(&world, &old).contains(expected));
    let rollout = why(&world, &old).owner.unwrap().rollout.unwrap();
    assert_eq!(rollout.partition, Some(2));
    let updated = with_image(&world, "app:2");
    take_down(&mut world, &updated);
    world.settle();
    let remark = remark(&world, &old);
    assert!(!remark.contains("maxUnavailable"), "{remark}");
}

#[test]
fn max_unavailable_is_reported_beside_smaller_partition() {
    let by = json!({ "byPartition": { "partition": 1 } });
    let strategy = json!({ "maxUnavailable": 1, "rollingUpdate": by });
    let mut world = World::on_plane(4, json!({ "updateStrategy": strategy }));
    world.settle();
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    rounds(&mut world, 20);
    let remark = remark(&world, &with_image(&world, "app:1"));
    assert!(remark.contains("maxUnavailable (1) holds"), "{remark}");
}

fn canary() -> Value {
    let steps = json!([{ "partition": 2 }, { "pause": {} }, { "partition": 0 }]);
    json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } })
}

#[test]
fn pause_is_reported_beside_another_ready_reason() {
    let mut world = World::on_plane(3, canary());
    world.settle();
    world.image("app:2");
    rounds(&mut world, 30);
    world.faults.most_pods = Some(3);
    world.edit(json!({ "replicas": 5 }));
    rounds(&mut world, 30);
    assert_eq!(condition(&world, "Ready").1, "ScaleOutFailed");
    let old = with_image(&world, "app:1");
    let text = remark(&world, &old);
    let at = "its rollout is at step 2 of 3, which pauses until the annotation";
    assert!(text.starts_with(at), "{text}");
    world.edit(json!({ "paused": true }));
    rounds(&mut world, 3);
    let text = remark(&world, &old);
    assert!(
        text.starts_with("it is paused: set spec.paused to false"),
        "{text}"
    );
    assert!(text.contains("; its rollout is at step 2 of 3"), "{text}");
}

#[test]
fn step_of_stuck_rollout_is_reported() {
    let mut world = World::on_plane(3, canary());
    world.settle();
    world.faults.unpullable.insert("app:2".into());
    world.image("app:2");
    rounds(&mut world, 30);
    assert_eq!(condition(&world, "Update").1, "UpdateFailed");
    let text = remark(&world, &with_image(&world, "app:1"));
    assert!(text.starts_with("its rollout is at step 1 of 3"), "{text}");
}

#[test]
fn refused_exclusion_is_reported_for_its_pod() {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = settled(2, json!({ "namingStrategy": naming }));
    let name = names(&world).remove(0);
    label(&mut world, &name, keys::TO_EXCLUDE, "true");
    world.settle();
    assert_eq!(condition(&world, "Ready").1, "ExcludeNotAllowed");
    let troubles = why(&world, &name).owner.unwrap().troubles;
    let is_reported = troubles
        .iter()
        .any(|t| t.starts_with("ExcludeNotAllowed: Pod "));
    assert!(is_reported, "{troubles:?}");
}

#[test]
fn template_change_without_pods_is_reported_as_complete() {
    let mut world = settled(2, json!({}));
    world.edit(json!({ "replicas": 0 }));
    world.settle();
    world.events.clear();
    world.image("app:2");
    world.settle();
    world.edit(json!({ "replicas": 2 }));
    world.settle();
    let events = world.events.iter();
    let events: Vec<_> = events.filter(|(r, _)| r.starts_with("Rollout")).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].0, "RolloutCompleted");
    assert!(events[0].1.ends_with("; new Pods are made of it"));
}

/// A set whose rollout waits for a Pod that its kubelet does not start.
fn with_a_slow_pod(replicas: i32, strategy: &Value) -> (World, String) {
    let mut world = World::on_plane(replicas, json!({ "updateStrategy": strategy }));
    world.settle();
    let before = names(&world);
    world.image("app:2");
    let new = |world: &World| {
        let mut names = names(world).into_iter();
        names.find(|name| !before.contains(name))
    };
    while new(&world).is_none() {
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    let new = new(&world).unwrap();
    let uid = world.pods[&new].metadata.uid.clone();
    world.kubelets.entry(uid).or_default().is_slow = true;
    rounds(&mut world, 20);
    (world, new)
}

#[test]
fn replacement_that_uses_max_surge_up_is_named() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    let (mut world, _) = with_a_slow_pod(3, &strategy);
    assert_eq!(world.pods.len(), 4);
    let mut pods = world.pods.values();
    let origin = pods.find(|pod| pod.label(keys::TO_REPLACE).is_some());
    let origin = origin.unwrap().metadata.name.clone();
    let expected =
        format!("; updateStrategy.maxSurge (1) is used up by the replacement of Pod {origin}");
    says(&world, "Ready", &expected);
    says(&world, "Ready", "3 Pods to update, 1 under way");
    says(&world, "Update", &expected);
    let mut pods = world.pods.values();
    let waits = pods.find(|p| p.label("app") == Some("web") && p.metadata.name != origin);
    let waits = waits.unwrap().metadata.name.clone();
    let expected = "its updateStrategy.maxSurge (1) holds the update of this Pod: 1 Pod is being replaced, and at most 1 may be";
    assert_eq!(remark(&world, &waits), expected);
    assert!(!remark(&world, &origin).contains("maxSurge"));

    world.edit(json!({ "updateStrategy": { "maxSurge": 2 } }));
    world.run_plan();
    rounds(&mut world, 1);
    does_not_say(&world, "Ready", "maxSurge (1)");
    world.kubelets.clear();
    world.settle();
    assert_eq!(world.images(), ["app:2"; 3]);
    does_not_say(&world, "Ready", "maxSurge");
}

#[test]
fn max_surge_is_unreported_if_no_other_pod_waits() {
    let partition = json!({ "byPartition": { "partition": 2 } });
    let strategy =
        json!({ "podUpgradePolicy": "Replace", "maxSurge": 1, "rollingUpdate": partition });
    let (world, _) = with_a_slow_pod(3, &strategy);
    does_not_say(&world, "Ready", "maxSurge");
    does_not_say(&world, "Update", "maxSurge");
    let mut pods = world.pods.values();
    let outdated =
        pods.find(|p| p.spec.containers[0].image == "app:1" && p.label(keys::TO_REPLACE).is_none());
    let text = remark(&world, &outdated.unwrap().metadata.name);
    assert!(!text.contains("maxSurge"), "{text}");
}

#[test]
fn updated_is_false_while_updated_pod_is_down() {
    let (mut world, new) = with_a_slow_pod(1, &json!({ "podUpgradePolicy": "Recreate" }));
    let status = world.set.status.clone().unwrap();
    assert_ne!(status.current_revision, status.updated_revision);
    let (update, reason, message) = condition(&world, "Update");
    assert_eq!((&*update, &*reason), ("False", "Updating"));
    let prefix = "1 Pod of the updated revision is not available; Pod ";
    assert!(message.starts_with(&format!("{prefix}{new} ")), "{message}");
    world.edit(json!({ "paused": true }));
    world.settle();
    assert_eq!(condition(&world, "Update").1, "Paused");
    world.edit(json!({ "paused": false }));
    world.kubelets.clear();
    world.settle();
    assert_eq!(condition(&world, "Update").1, "Updated");
    take_down(&mut world, &new);
    rounds(&mut world, 3);
    assert_eq!(condition(&world, "Ready").1, "Unavailable");
    assert_eq!(condition(&world, "Update").1, "Updated", "it is complete");
}

#[test]
fn updated_is_false_while_label_keeps_updated_pod_offline() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = names(&world).remove(0);
    label(&mut world, &name, keys::STAY_OFFLINE, "true");
    rounds(&mut world, 3);
    world.image("app:2");
    rounds(&mut world, 40);
    assert_eq!(world.images(), ["app:2"; 2]);
    let status = world.set.status.clone().unwrap();
    assert_ne!(status.current_revision, status.updated_revision);
    assert_eq!(condition(&world, "Update").1, "Updating");
    says(&world, "Update", keys::STAY_OFFLINE);
}

#[test]
fn delay_of_an_operation_stops_the_deadline() {
    let delay = json!({ "operationDelaySeconds": 60, "maxUnavailable": 1 });
    let spec = json!({
        "updateStrategy": delay, "scaleStrategy": { "operationDelaySeconds": 60 },
        "progressDeadlineSeconds": 30,
    });
    let mut world = World::on_plane(2, spec);
    world.settle();
    let never_stalls = |world: &mut World| {
        for _ in 0..200 {
            world.run_plan();
            assert!(!is_stalled(world), "{}", condition(world, "Stalled").2);
            world.run_pods(u8::MAX);
        }
    };
    world.image("app:2");
    never_stalls(&mut world);
    assert_eq!(world.images(), ["app:2"; 2]);
    world.edit(json!({ "replicas": 1 }));
    never_stalls(&mut world);
    assert_eq!(world.pods.len(), 1);
}

#[test]
fn deadline_runs_while_pod_is_down_beside_delayed_one() {
    let partition = json!({ "byPartition": { "partition": 2 } });
    let delay = json!({ "operationDelaySeconds": 3600, "rollingUpdate": partition });
    let spec = json!({ "updateStrategy": delay, "progressDeadlineSeconds": 30 });
    let mut world = World::on_plane(3, spec);
    world.settle();
    world.image("app:2");
    rounds(&mut world, 10);
    let operating = Family::Operating.key("collaset");
    let mut pods = world.pods.values();
    let other = pods.find(|pod| pod.label(&operating).is_none());
    let other = other.unwrap().metadata.name.clone();
    take_down(&mut world, &other);
    rounds(&mut world, 40);
    assert!(is_stalled(&world));
}

const GO_ON: &str = "; set spec.paused to false to go on";

#[test]
fn abort_while_paused_names_remedy_field() {
    let mut world = World::on_plane(3, canary());
    world.settle();
    world.image("app:2");
    rounds(&mut world, 30);
    world.edit(json!({ "paused": true }));
    world.command("abort");
    rounds(&mut world, 10);
    for (type_, reason) in [("Update", "RolloutAborted"), ("Ready", "Paused")] {
        let (_, actual_reason, message) = condition(&world, type_);
        assert_eq!(actual_reason, reason);
        assert!(
            message.contains("1 Pod is to go back to revision web-"),
            "{message}"
        );
        assert!(
            message.ends_with(GO_ON) && !message.contains("retry"),
            "{message}"
        );
    }
    world.edit(json!({ "paused": false }));
    world.settle();
    assert_eq!(world.images(), ["app:1"; 3]);
    says(&world, "Update", "=retry");
}

#[test]
fn paused_set_names_field_and_remaining_work() {
    let mut world = World::on_plane(3, json!({}));
    world.settle();
    world.edit(json!({ "paused": true }));
    world.image("app:2");
    rounds(&mut world, 3);
    for type_ in ["Update", "Ready"] {
        let (_, reason, message) = condition(&world, type_);
        assert_eq!(reason, "Paused");
        assert!(
            message.starts_with("3 Pods to update") && message.ends_with(GO_ON),
            "{message}"
        );
    }
    world.edit(json!({ "replicas": 5 }));
    rounds(&mut world, 3);
    let expected = format!("2 Pods to create, 0 to delete; 3 Pods to update, 2 to be made{GO_ON}");
    assert_eq!(condition(&world, "Ready").2, expected);
    assert_eq!(
        condition(&world, "Scale").2,
        format!("2 Pods to create, 0 to delete{GO_ON}")
    );
}

#[test]
fn pod_leaving_after_label_mismatch_is_reported() {
    let mut world = World::on_plane(2, json!({}));
    world.settle();
    let name = names(&world).remove(0);
    world.events.clear();
    label(&mut world, &name, "app", "other");
    world.settle();
    assert!(!world.owns(&world.pods[&name]));
    let messages = world.events.iter().filter(|(r, _)| *r == "ExcludeTarget");
    let messages: Vec<_> = messages.map(|(_, message)| message.as_str()).collect();
    let expected = format!("Pod {name} has left: spec.selector does not match its labels any more");
    assert_eq!(messages, [expected]);
}

#[test]
fn pause_of_another_revision_gets_another_text() {
    let mut world = World::on_plane(3, canary());
    world.settle();
    for image in ["app:2", "app:3"] {
        world.image(image);
        rounds(&mut world, 40);
    }
    let messages = world.events.iter().filter(|(r, _)| *r == "RolloutPaused");
    let messages: Vec<_> = messages.map(|(_, message)| message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_ne!(messages[0], messages[1]);
    let revision = &world.set.status.as_ref().unwrap().updated_revision;
    let pause = format!("revision {revision}: step 2 of 3 pauses until the annotation");
    assert!(messages[1].starts_with(&pause), "{messages:?}");
}

#[test]
fn raised_partition_rolls_no_pod_back_and_says_so() {
    let with = |partition: usize| {
        let by = json!({ "byPartition": { "partition": partition } });
        json!({ "updateStrategy": { "rollingUpdate": by } })
    };
    let mut world = World::on_plane(4, with(2));
    world.settle();
    world.image("app:2");
    world.settle();
    let expected = "2 Pods stay on older revisions: the partition keeps them";
    assert_eq!(condition(&world, "Ready").2, expected);
    world.edit(with(4));
    world.settle();
    let raised = "; the partition of 4 rolls no updated Pod back";
    let back = format!(
        "set the annotation {}=abort to roll all of them back",
        keys::ROLLOUT
    );
    for type_ in ["Ready", "Update"] {
        assert_eq!(
            condition(&world, type_).2,
            format!("{expected}{raised}: {back}")
        );
    }
    let old = with_image(&world, "app:1");
    let own = "its partition keeps 2 Pods on older revisions, and this Pod is one of them";
    assert_eq!(remark(&world, &old), format!("{own}{raised}"));
    world.command("abort");
    world.settle();
    assert_eq!(world.images(), ["app:1"; 4]);
}

#[test]
fn pod_returning_from_update_is_under_way_during_other_operation() {
    let mut world = World::on_plane(3, json!({ "updateStrategy": { "maxUnavailable": 1 } }));
    world.settle();
    world.image("app:2");
    let operated = Family::Completing.key("collaset");
    let comes_back = |world: &World| {
        let mut pods = world.pods.values();
        let pod = pods.find(|pod| pod.label(&operated).is_some());
        pod.map(|pod| pod.metadata.name.clone())
    };
    while comes_back(&world).is_none() {
        let operating: Vec<String> = names(&world);
        for name in operating {
            let update = Family::Operate.key("collaset");
            if world.pods[&name].label(&update).is_some() {
                label(&mut world, &name, &Family::Operating.key("mine"), "1");
                label(
                    &mut world,
                    &name,
                    &Family::OperationType.key("mine"),
                    "mine",
                );
            }
        }
        world.run_plan();
        world.run_pods(u8::MAX);
    }
    let name = comes_back(&world).unwrap();
    rounds(&mut world, 20);
    let before = condition(&world, "Ready").2;
    assert!(
        before.starts_with("2 Pods to update, 1 under way; "),
        "{before}"
    );
    says(
        &world,
        "Ready",
        &format!("Pod {name} waits for operation mine"),
    );
    says(
        &world,
        "Ready",
        "; updateStrategy.maxUnavailable (1) is used up",
    );
    rounds(&mut world, 20);
    assert_eq!(condition(&world, "Ready").2, before);
}

/// A new Pod that the scheduler can't place.
#[test]
fn replacement_without_node_waits_and_is_not_under_way() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 1 });
    let (mut world, new) = with_a_slow_pod(3, &strategy);
    says(&world, "Ready", "3 Pods to update, 1 under way; ");
    let pod = world.pods.get_mut(&new).unwrap();
    pod.status.conditions = serde_json::from_value(json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available",
    }]))
    .unwrap();
    rounds(&mut world, 1);
    says(&world, "Ready", "3 Pods to update, 0 under way, 1 waits; ");
    let wait = format!("Pod {new} has no node: Unschedulable: 0/3 nodes are available");
    says(&world, "Ready", &wait);
}

#[test]
fn pvcs_awaited_by_pod_are_named() {
    let mut world = World::on_plane(1, json!({}));
    world.settle();
    let name = names(&world).remove(0);
    take_down(&mut world, &name);
    let pod = world.pods.get_mut(&name).unwrap();
    pod.spec.pvcs = vec!["web-data-1".into()];
    let unbound = "pod has unbound immediate PersistentVolumeClaims";
    pod.status.conditions = serde_json::from_value(json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unbound,
    }]))
    .unwrap();
    rounds(&mut world, 3);
    let expected = format!("{unbound} (PVC web-data-1)");
    says(
        &world,
        "Ready",
        &format!("Pod {name} has no node: Unschedulable: {expected}"),
    );
    let cause = why(&world, &name).pod.unavailable_because.unwrap();
    assert!(cause.ends_with(&expected), "{cause}");
}

#[test]
fn missing_pod_is_reported_while_another_leaves() {
    let sequence = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let mut world = World::on_plane(4, sequence);
    world.settle();
    world.faults.holds = true;
    world.edit(json!({ "replicas": 3 }));
    rounds(&mut world, 5);
    let is_lost = Kubelet {
        is_lost: true,
        ..Kubelet::default()
    };
    let uid = world.pods["web-1"].metadata.uid.clone();
    world.kubelets.insert(uid, is_lost);
    world.delete("web-1");
    rounds(&mut world, 20);
    let (_, _, message) = condition(&world, "Ready");
    let expected = "1 Pod to create, 1 to delete; waiting for web-1 to end";
    assert!(message.contains(expected), "{message}");
}

/// A quota refuses the Pods of a scale-out, and the user applies a template that would help.
#[test]
fn rollout_reports_that_refused_creations_block_deletions() {
    for (policy, is_expected) in [("Recreate", true), ("InPlaceIfPossible", false)] {
        let strategy = json!({ "updateStrategy": { "podUpgradePolicy": policy } });
        let mut world = World::on_plane(3, strategy);
        world.settle();
        world.faults.most_pods = Some(3);
        world.edit(json!({ "replicas": 5 }));
        world.settle();
        world.image("app:2");
        world.settle();
        let (_, _, message) = condition(&world, "Update");
        let expected = "the update deletes no Pod while others can't be created: remove the cause of the refusal, or lower spec.replicas";
        assert_eq!(
            message.contains(expected),
            is_expected,
            "{policy}: {message}"
        );
        world.edit(json!({ "replicas": 3 }));
        world.settle();
        assert_eq!(world.images(), ["app:2"; 3]);
    }
}

/// A policy may deny changes of Pods and allow changes of their status. Then the lifecycle of the Pod can't make its
/// next step.
#[test]
fn refused_lifecycle_step_is_reported_for_waiting_pod() {
    let mut world = settled(3, json!({}));
    world.edit(json!({ "replicas": 2 }));
    world.run_plan();
    let pods = world.pods.values();
    let leaving = pods
        .clone()
        .find(|pod| SetOperation::ScaleIn.is_in_progress(pod));
    let leaving = leaving.unwrap().metadata.clone();
    world
        .refused
        .unstepped
        .insert(leaving.uid.clone(), "policy".to_owned());
    let expected =
        "waits to be let off traffic: the next step of its lifecycle can't be written: policy";
    let status = plan_set(&world.observe()).status.unwrap();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    assert!(ready.unwrap().message.contains(expected), "{ready:?}");
}
