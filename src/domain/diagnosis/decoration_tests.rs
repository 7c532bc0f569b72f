#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use serde_json::{Value, json};

use super::diagnose;
use super::facts::{DecorationFacts, DecorationVerdict};
use super::tests::pod_of_set;
use super::*;
use crate::api::poddecoration::PodDecoration;

/// A PodDecoration that selects all Pods. Its updated revision is `log-2`.
fn decoration(patch: Value) -> PodDecoration {
    let mut object = json!({
        "metadata": { "name": "log", "generation": 2 },
        "spec": { "selector": {} },
        "status": { "observedGeneration": 2, "updatedRevision": "log-2", "matchedPods": 4, "updatedPods": 1 },
    });
    json_patch::merge(&mut object, &patch);
    serde_json::from_value(object).unwrap()
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// A Pod that has this revision, of a CollaSet with this patch.
fn observed(held: Option<&str>, set: Value) -> ObservedPod {
    let mut observed = pod_of_set(set);
    let held = held.map(|revision| {
        (
            format!("{}log", keys::DECORATION_PREFIX),
            revision.to_owned(),
        )
    });
    Arc::make_mut(&mut observed.pod)
        .metadata
        .labels
        .extend(held);
    observed
}

/// What the diagnosis says about the PodDecoration. The other Pod of the set does not use up `maxUnavailable`.
fn facts(held: Option<&str>, patch: Value) -> Option<DecorationFacts> {
    let mut observed = observed(held, json!({ "spec": { "updateStrategy": null } }));
    observed.context.decorations = Some(vec![decoration(patch)]);
    diagnose(&observed).decorations.into_iter().next()
}

fn verdict(held: Option<&str>, patch: Value) -> (DecorationVerdict, Option<String>, String) {
    let facts = facts(held, patch).unwrap();
    let reason = facts.reason.unwrap_or_default();
    (facts.verdict, facts.wanted_revision, reason)
}

/// The reason of a wait for `log-2`.
fn wait(observed: &mut ObservedPod, patch: Value) -> String {
    observed.context.decorations = Some(vec![decoration(patch)]);
    let facts = diagnose(observed).decorations.remove(0);
    assert_eq!(facts.verdict, DecorationVerdict::Waits);
    assert_eq!(facts.wanted_revision.as_deref(), Some("log-2"));
    facts.reason.unwrap()
}

fn rolling(update: Value) -> Value {
    json!({ "spec": { "updateStrategy": { "rollingUpdate": update } } })
}

#[test]
fn updated_pod_has_no_reason() {
    for patch in [json!({}), rolling(json!({ "partition": 3 }))] {
        let facts = facts(Some("log-2"), patch).unwrap();
        assert_eq!(facts.verdict, DecorationVerdict::UpToDate);
        assert_eq!(facts.reason, None);
    }
}

#[test]
fn unselected_pod_without_decoration_is_not_listed() {
    let api = json!({ "spec": { "selector": { "matchLabels": { "app": "api" } } } });
    assert_eq!(facts(None, api.clone()), None);
    let (verdict, wanted, reason) = verdict(Some("log-2"), api);
    assert_eq!((verdict, wanted), (DecorationVerdict::Waits, None));
    assert!(
        reason.starts_with("it does not select the Pod; "),
        "{reason}"
    );
}

#[test]
fn pod_that_status_lists_is_selected() {
    let listed = json!({
        "spec": { "selector": { "matchLabels": { "app": "next" } } },
        "status": { "details": [{ "collaSet": "web", "pods": [{ "name": "web-0", "escaped": true }] }] },
    });
    let (verdict, wanted, _) = verdict(None, listed);
    assert_eq!(verdict, DecorationVerdict::Waits);
    assert_eq!(wanted.as_deref(), Some("log-2"));
}

#[test]
fn label_of_decoration_selects_nobody() {
    let labels = json!({ "app": "web" });
    let mut observed = observed(Some("log-2"), json!({}));
    let pod = Arc::make_mut(&mut observed.pod);
    pod.metadata.labels.insert("app".into(), "web".into());
    let of_decoration = json!({ "spec": { "template": { "metadata": [{ "labels": labels }] } } });
    let other = json!({ "metadata": { "name": "other" }, "spec": { "selector": { "matchLabels": labels } } });
    observed.context.decorations = Some(vec![decoration(of_decoration), decoration(other)]);
    let names = |observed: &ObservedPod| -> Vec<String> {
        let facts = diagnose(observed).decorations.into_iter();
        facts.map(|facts| facts.name).collect()
    };
    assert_eq!(names(&observed), ["log"]);
    let template = json!({ "spec": { "template": { "metadata": { "labels": labels } } } });
    let mut set = pod_of_set(template);
    std::mem::swap(&mut observed.controller, &mut set.controller);
    assert_eq!(names(&observed), ["log", "other"]);
}

#[test]
fn deleted_or_missing_decoration_is_removed() {
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    assert_eq!(facts(None, deleted.clone()), None);
    let (_, wanted, reason) = verdict(Some("log-2"), deleted);
    assert_eq!(wanted, None);
    assert!(reason.starts_with("it is being deleted; "), "{reason}");
    let mut observed = observed(Some("log-2"), json!({}));
    observed.context.decorations = Some(Vec::new());
    let facts = diagnose(&observed).decorations.remove(0);
    assert_eq!(facts.verdict, DecorationVerdict::Waits);
    assert!(
        facts
            .reason
            .unwrap()
            .starts_with("it does not exist any more; ")
    );
}

#[test]
fn invalid_decoration_changes_nothing() {
    let selector = json!({ "matchExpressions": [{ "key": "app", "operator": "Among" }] });
    for held in [None, Some("log-1")] {
        let (verdict, wanted, reason) = verdict(held, json!({ "spec": { "selector": selector } }));
        assert_eq!(verdict, DecorationVerdict::Stays);
        assert_eq!(wanted.as_deref(), held);
        assert!(
            reason.starts_with("it is invalid: spec.selector"),
            "{reason}"
        );
    }
    let elsewhere = json!({ "spec": {
        "selector": { "matchLabels": { "app": "api" } }, "updateStrategy": { "rollingUpdate": { "selector": selector } },
    } });
    assert_eq!(facts(None, elsewhere), None);
}

#[test]
fn decoration_on_hold_leaves_pod_as_it_is() {
    let message =
        "no Pod that it selects is created or updated yet: its revision can't be stored: no quota";
    let ready = condition("Ready", "False", "Progressing", message);
    let patch = json!({ "status": { "observedGeneration": 1, "conditions": [ready] } });
    let stays = DecorationVerdict::Stays;
    assert_eq!(verdict(None, patch), (stays, None, message.to_owned()));
}

#[test]
fn partition_keeps_pods_of_unknown_names() {
    let mut patch = rolling(json!({ "partition": 2 }));
    let expected = "spec.updateStrategy.rollingUpdate.partition keeps 2 Pods as they are, and this Pod is one of 3 without \
                    revision log-2";
    for held in [None, Some("log-1")] {
        let may_stay = (DecorationVerdict::MayStay, None, expected.to_owned());
        assert_eq!(verdict(held, patch.clone()), may_stay);
    }
    patch["status"] =
        json!({ "conditions": [condition("Ready", "True", "AsWanted", "all is well")] });
    let (verdict, wanted, reason) = verdict(Some("log-1"), patch);
    assert_eq!(verdict, DecorationVerdict::Stays);
    assert_eq!(wanted.as_deref(), Some("log-1"));
    assert!(
        reason.contains("this Pod is one of them: lower it"),
        "{reason}"
    );
}

#[test]
fn pod_without_decoration_gets_current_revision_under_partition() {
    let mut patch = rolling(json!({ "partition": 2 }));
    patch["status"] = json!({ "currentRevision": "log-1" });
    let (verdict, wanted, reason) = verdict(None, patch);
    assert_eq!(verdict, DecorationVerdict::Waits);
    assert_eq!(wanted.as_deref(), Some("log-1"));
    assert!(
        reason.starts_with("it gets revision log-2 instead if the partition lets it; "),
        "{reason}"
    );
}

#[test]
fn rollout_selector_keeps_pod() {
    let selector = json!({ "matchLabels": { "tier": "front" } });
    let (verdict, _, reason) = verdict(Some("log-1"), rolling(json!({ "selector": selector })));
    assert_eq!(verdict, DecorationVerdict::Stays);
    assert!(
        reason.contains("rollingUpdate.selector does not match the Pod"),
        "{reason}"
    );
}

#[test]
fn pod_held_back_by_kuperator_stays() {
    let patch = |generation: i64| {
        let value = json!({ "generation": 2, "sets": { "web": generation } });
        json!({ "metadata": { "annotations": { (keys::HELD_BACK): value.to_string() } } })
    };
    let (may_stay, _, reason) = verdict(Some("log-1"), patch(2));
    assert_eq!(may_stay, DecorationVerdict::MayStay);
    assert!(
        reason.starts_with("Kuperator held changes of it back"),
        "{reason}"
    );
    assert_eq!(verdict(Some("log-1"), patch(1)).0, DecorationVerdict::Waits);
    let by_label = json!({ "spec": { "updateStrategy": { "rollingUpdate": { "byLabel": {} } } } });
    let mut observed = observed(None, by_label);
    observed.context.decorations = Some(vec![decoration(patch(2))]);
    let facts = diagnose(&observed).decorations.remove(0);
    assert_eq!(facts.verdict, DecorationVerdict::Stays);
}

#[test]
fn wait_names_operation_pause_failure_or_bound() {
    let mut bounded = observed(Some("log-1"), json!({}));
    let reason = wait(&mut bounded, json!({}));
    assert!(
        reason.starts_with("CollaSet web: its updateStrategy.maxUnavailable (1) holds"),
        "{reason}"
    );
    let mut paused = observed(Some("log-1"), json!({ "spec": { "paused": true } }));
    assert_eq!(wait(&mut paused, json!({})), "CollaSet web is paused");
    let message = "CollaSet web can't decorate its Pods: no JSON";
    let stalled = json!({ "status": { "conditions": [condition("Stalled", "True", "PodsNotDecorated", message)] } });
    assert_eq!(wait(&mut bounded, stalled.clone()), message);
    let labels = [
        ("operating.podopslifecycle.kusionstack.io/collaset", "1"),
        (
            "operation-type.podopslifecycle.kusionstack.io/collaset",
            "update",
        ),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Arc::make_mut(&mut bounded.pod)
        .metadata
        .labels
        .extend(labels);
    let reason = wait(&mut bounded, stalled);
    assert!(
        reason.starts_with("operation collaset (update) is in PreCheck"),
        "{reason}"
    );
}

#[test]
fn wait_quotes_condition_of_set() {
    let update = condition("Update", "False", "Updating", "1 Pod waits for rule a");
    let unbounded =
        json!({ "spec": { "updateStrategy": null }, "status": { "conditions": [update] } });
    let reason = wait(&mut observed(None, unbounded), json!({}));
    assert!(
        reason.ends_with("(its condition: 1 Pod waits for rule a)"),
        "{reason}"
    );
}

#[test]
fn pod_that_leaves_is_not_updated() {
    let mut observed = observed(Some("log-1"), json!({}));
    let labels = &mut Arc::make_mut(&mut observed.pod).metadata.labels;
    labels.insert(keys::TO_DELETE.to_owned(), "true".to_owned());
    observed.context.decorations = Some(vec![decoration(json!({}))]);
    let facts = diagnose(&observed).decorations.remove(0);
    assert_eq!(facts.verdict, DecorationVerdict::Stays);
    assert_eq!(facts.reason.as_deref(), Some("the Pod is to be deleted"));
}

#[test]
fn unreadable_decorations_are_unknown() {
    let facts = diagnose(&observed(Some("log-1"), json!({})))
        .decorations
        .remove(0);
    assert_eq!(facts.verdict, DecorationVerdict::Unknown);
    assert_eq!(facts.revision.as_deref(), Some("log-1"));
}

#[test]
fn pods_are_needed_only_for_a_bounded_wait() {
    let needs_pods = |held, set, patch| {
        let observed = observed(Some(held), set);
        let Some(PodController::CollaSet(set)) = &observed.controller else {
            return false;
        };
        may_wait_for_max_unavailable(set, &observed.pod, &[decoration(patch)])
    };
    assert!(needs_pods("log-1", json!({}), json!({})));
    assert!(!needs_pods("log-2", json!({}), json!({})));
    assert!(!needs_pods(
        "log-1",
        json!({ "spec": { "updateStrategy": null } }),
        json!({})
    ));
}
