#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::*;
use crate::api::keys::Family;
use crate::domain::diagnosis::facts::{DryRunDeletion, RuleVerdict};

fn pod(available: bool) -> Arc<Pod> {
    let mut labels = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
    if available {
        labels[keys::SERVICE_AVAILABLE] = json!("1");
    }
    let status = if available { "True" } else { "False" };
    let pod = json!({
        "metadata": { "namespace": "n", "name": "web-0", "uid": "web-0", "resourceVersion": "1", "labels": labels },
        "spec": { "readinessGates": [{ "conditionType": keys::SERVICE_READY }] },
        "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": status }, { "type": keys::SERVICE_READY, "status": "True" },
        ] },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// Another Pod, which is available.
fn other_pod(name: &str) -> Arc<Pod> {
    let mut pod = Arc::unwrap_or_clone(pod(true));
    pod.metadata.name = name.to_owned();
    pod.metadata.uid = name.to_owned();
    Arc::new(pod)
}

/// A Pod under a rule that has budget left. The rule object has this condition with the status False.
fn observed(available: bool, type_: &str, reason: &str, message: &str) -> ObservedPod {
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "generation": 1 },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
        "status": {
            "observedGeneration": 1, "expectedPods": 3, "availablePods": 3, "unavailablePods": 0,
            "conditions": [{
                "type": type_, "status": "False", "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    ObservedPod {
        pod: pod(available),
        rules: vec![RuleObject::compile(
            serde_json::from_value::<PodTransitionRule>(rule).unwrap(),
        )],
        pods: vec![pod(available), other_pod("web-1"), other_pod("web-2")],
        controller: None,
        jobs: None,
        context: PodContext::default(),
        notes: Vec::new(),
        now: "2026-01-01T12:00:00Z".parse().unwrap(),
    }
}

fn as_json(explanation: &Diagnosis) -> Value {
    serde_json::to_value(explanation).unwrap()
}

#[test]
fn percentage_has_the_base_that_the_server_has_counted() {
    let mut observed = observed(true, "LedgerUsable", "None", "");
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "generation": 1 },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": "10%" } }] },
        "status": {
            "observedGeneration": 1, "expectedPods": 12, "availablePods": 11, "unavailablePods": 1,
            "unavailableLimit": 1,
        },
    });
    let rule: PodTransitionRule = serde_json::from_value(rule).unwrap();
    observed.rules = vec![RuleObject::compile(rule)];
    observed.pods = Vec::new();
    let rule = diagnose(&observed).rules.remove(0);
    let budget = rule.budget.unwrap();
    assert_eq!((budget.limit, budget.allowed), (1, 0));
    assert_eq!(rule.verdict, RuleVerdict::Holds);
}

#[test]
fn unreadable_owner_or_unset_replicas_comes_first() {
    for (type_, reason) in [
        ("ExpectedKnown", "OwnerUnreadable"),
        ("ExpectedKnown", "ReplicasNotSet"),
        ("LedgerUsable", "LedgerNotStored"),
        ("LedgerUsable", "LedgerUnusable"),
    ] {
        let mut observed = observed(true, type_, reason, "Rollout web is silent");
        observed.context.dry_run_deletion = Some(DryRunDeletion::Denied {
            code: 429,
            message: "held".to_owned(),
        });
        let diagnosis = diagnose(&observed);
        assert_eq!(
            diagnosis.summary,
            "Pod web-0 is available, and held by rule a of PodTransitionRule web: Rollout web is silent"
        );
        assert_eq!(as_json(&diagnosis)["rules"][0]["budget"]["allowed"], 0);
    }
    let diagnosis = diagnose(&observed(
        true,
        "ExpectedKnown",
        "ExpectedUnknown",
        "no scale",
    ));
    assert_eq!(diagnosis.summary, "Pod web-0 is available, and may go");
    assert_eq!(as_json(&diagnosis)["rules"][0]["budget"]["allowed"], 1);
}

#[test]
fn too_many_rule_objects_over_a_pod_are_reported() {
    for (objects, is_reported) in [(16, false), (17, true)] {
        let mut observed_pod = observed(true, "Matched", "None", "");
        observed_pod.rules = (0..objects)
            .map(|n| {
                RuleObject::compile(
                    serde_json::from_value(json!({
                        "metadata": { "namespace": "n", "name": format!("web-{n}"), "generation": 1 },
                        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
                        "status": { "observedGeneration": 1, "expectedPods": 3, "availablePods": 3 },
                    }))
                    .unwrap(),
                )
            })
            .collect();
        let summary = diagnose(&observed_pod).summary;
        let overlap =
            "held: 17 PodTransitionRules with an availability rule cover it, and at most 16 may";
        assert_eq!(summary.contains(overlap), is_reported, "{summary}");
    }
}

#[test]
fn unreadable_owner_does_not_hold_unavailable_pod() {
    let diagnosis = diagnose(&observed(
        false,
        "ExpectedKnown",
        "OwnerUnreadable",
        "silent",
    ));
    assert_eq!(diagnosis.rules[0].verdict, RuleVerdict::Passes);
}

#[test]
fn unenforced_rule_is_not_reported_as_holding() {
    for reason in ["NamespaceExcluded", "NotEnforced", "NotRegistered"] {
        let diagnosis = diagnose(&observed(
            true,
            "Enforced",
            reason,
            "nothing is held: the label is gone",
        ));
        assert_eq!(
            diagnosis.summary,
            "Pod web-0: rules are not enforced here, because the label is gone"
        );
        assert_eq!(
            diagnosis.rules[0].verdict,
            RuleVerdict::NotApplying,
            "{reason}"
        );
    }
    let mut observed = observed(true, "Enforced", "NotRegistered", "a webhook is gone");
    observed.context.dry_run_deletion = Some(DryRunDeletion::Denied {
        code: 429,
        message: "held".to_owned(),
    });
    assert_eq!(
        diagnose(&observed).summary,
        "Pod web-0: rules are not enforced here, because a webhook is gone; the API server still refuses a deletion now: \
         held"
    );
}

#[test]
fn awaited_restart_is_named_with_its_container() {
    let record = r#"{"app":{"since":"1","run":"run-1","image":{"id":"1","name":"2"}}}"#;
    let waiting = |labels: &[(String, &str)]| {
        let mut observed = observed(false, "Enforced", "-", "-");
        let pod = Arc::make_mut(&mut observed.pod);
        pod.spec.containers = serde_json::from_value(json!([{ "name": "app" }])).unwrap();
        let labels = labels.iter().map(|(k, v)| (k.clone(), (*v).to_owned()));
        pod.metadata.labels.extend(labels);
        let annotation = (keys::AWAITS_RESTART.to_owned(), record.to_owned());
        pod.metadata.annotations.extend([annotation]);
        diagnose(&observed).summary
    };
    let restart = "container app to restart for its new image";
    assert_eq!(
        waiting(&[]),
        format!("Pod web-0 is not available: it waits for {restart}")
    );
    let completing = [
        Family::Operated,
        Family::DoneOperationType,
        Family::PostChecked,
        Family::Completing,
    ];
    let summary = waiting(&completing.map(|f| (f.key("x"), "1")));
    assert!(
        summary.ends_with(&format!("waiting for {restart}")),
        "{summary}"
    );
}

/// The summary for an available Pod under a rule with this status, whose budget of one is used.
fn describe_under_status(labels: Value, owner: &str, status: Value) -> String {
    let mut observed = observed(true, "Enforced", "-", "-");
    let pod = Arc::make_mut(&mut observed.pod);
    let labels: std::collections::BTreeMap<String, String> =
        serde_json::from_value(labels).unwrap();
    pod.metadata.labels.extend(labels);
    let (kind, name) = owner.split_once(' ').unwrap();
    pod.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "owner", "controller": true,
    }]))
    .unwrap();
    if status.get("ledger").is_none() {
        observed.pods.pop(); // a missing Pod uses the budget, because there is no claim
    }
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    json_patch::merge(&mut object["status"], &status);
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
    diagnose(&observed).summary
}

#[test]
fn available_pod_that_uses_the_budget_up_says_until_when() {
    for (operation, until) in [
        ("InPlace", "until its in-place change has restarted it"),
        ("Deadline", "until its spec.activeDeadlineSeconds ends it"),
    ] {
        let claim = json!({
            "podName": "web-0", "podUID": "web-0", "operation": operation, "resourceVersion": "1",
            "since": "2026-01-01T11:59:00Z", "until": "2026-01-01T12:00:30Z",
        });
        let ledger = json!({ "claims": [claim], "watermark": "1" });
        let status = json!({ "availablePods": 2, "unavailablePods": 1, "ledger": ledger });
        assert_eq!(
            describe_under_status(json!({}), "StatefulSet web", status),
            format!(
                "Pod web-0 is available, and holds a claim on the budget of PodTransitionRule web {until}"
            )
        );
    }
}

#[test]
fn message_about_held_rollout_replaces_retry_advice() {
    let message = "Deployment api, Deployment web: the rollout waits. Relax the rule; DaemonSet agent: it waits too";
    let status = json!({ "availablePods": 2, "unavailablePods": 1, "conditions": [{
        "type": "RolloutsHeld", "status": "True", "reason": "TemplateLeavesRule", "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let hash = json!({ "pod-template-hash": "7d9" });
    let summary_for = |owner: &str| describe_under_status(hash.clone(), owner, status.clone());
    let prefix = "Pod web-0 is available, and held by rule a of PodTransitionRule web: 1 of 3 Pods are unavailable, the limit \
                is 1; ";
    assert_eq!(
        summary_for("ReplicaSet web-7d9"),
        format!("{prefix}Deployment api, Deployment web: the rollout waits. Relax the rule")
    );
    assert_eq!(
        summary_for("DaemonSet agent"),
        format!("{prefix}DaemonSet agent: it waits too")
    );
    assert!(summary_for("ReplicaSet other-7d9").ends_with("or raise the limit"));
}

#[test]
fn minimum_that_lets_no_pod_go_is_named() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    object["spec"]["rules"][0]["availablePolicy"] = json!({ "minAvailableValue": 4 });
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
    let explained = diagnose(&observed);
    assert_eq!(
        explained.summary,
        "Pod web-0 is available, and held by rule a of PodTransitionRule web: 4 must be available (minAvailableValue), 3 are \
         wanted, 3 are available; lower minAvailableValue, or scale up"
    );
    assert_eq!(
        as_json(&explained)["rules"][0]["budget"]["minimum"],
        json!({ "value": 4, "desired": 4, "available": 3 })
    );
}

/// The remark about the CollaSet of an available Pod. The other Pod uses its `maxUnavailable` of one.
fn remark_with(patch: Value) -> String {
    diagnose(&pod_of_set(patch)).owner.unwrap().remark.unwrap()
}

/// An available Pod of a CollaSet, under no rule. The other Pod uses the set's `maxUnavailable` of one.
pub(super) fn pod_of_set(patch: Value) -> ObservedPod {
    let mut observed = observed(true, "Enforced", "-", "-");
    observed.rules.clear();
    let of_set = |available| {
        let mut pod = Arc::unwrap_or_clone(pod(available));
        pod.metadata.owner_references = serde_json::from_value(
            json!([{ "kind": "CollaSet", "name": "web", "uid": "set", "controller": true }]),
        )
        .unwrap();
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::REVISION.to_owned(), "web-1".to_owned());
        Arc::new(pod)
    };
    observed.pod = of_set(true);
    observed.pods = vec![of_set(true), of_set(false)];
    let mut set = json!({
        "metadata": { "name": "web", "namespace": "n", "uid": "set", "generation": 2 },
        "spec": { "replicas": 2, "template": {}, "updateStrategy": { "maxUnavailable": 1 } },
        "status": { "observedGeneration": 2, "updatedRevision": "web-2" },
    });
    json_patch::merge(&mut set, &patch);
    observed.controller = Some(PodController::CollaSet(Arc::new(
        serde_json::from_value(set).unwrap(),
    )));
    observed
}

fn denied_dry_run(message: &str) -> Option<DryRunDeletion> {
    Some(DryRunDeletion::Denied {
        code: 422,
        message: message.to_owned(),
    })
}

/// Adds lifecycle labels to the Pod, such as `operate/pod-delete`.
fn label_pod(observed: &mut ObservedPod, labels: &[(&str, &str)]) {
    let pod = Arc::make_mut(&mut observed.pod);
    let labels = labels.iter().map(|(short, value)| {
        let (family, id) = short.split_once('/').unwrap();
        let key = format!("{family}.podopslifecycle.kusionstack.io/{id}");
        (key, (*value).to_owned())
    });
    pod.metadata.labels.extend(labels);
}

#[test]
fn pod_without_blocker_is_reported_as_not_held() {
    let summary_of = |observed: &ObservedPod| diagnose(observed).summary;
    let alone = "Pod web-0 is available, and no PodTransitionRule of namespace n selects it";
    let mut unblocked = pod_of_set(json!({ "status": { "updatedRevision": "web-1" } }));
    assert_eq!(summary_of(&unblocked), format!("{alone}: nothing holds it"));
    unblocked.context.dry_run_deletion = denied_dry_run("legal hold");
    assert_eq!(
        summary_of(&unblocked),
        format!("{alone}, but the API server refuses a deletion now: legal hold")
    );
    let limit_text = "its updateStrategy.maxUnavailable (1) holds the update of this Pod: ";
    let summary = summary_of(&pod_of_set(json!({})));
    let expected = format!("{alone}; CollaSet web: {limit_text}");
    assert!(summary.starts_with(&expected), "{summary}");
    let refused = json!([{ "type": "Update", "status": "False", "reason": "UpdateFailed", "message": "not signed" }]);
    let refused = pod_of_set(json!({
        "spec": { "updateStrategy": { "maxUnavailable": null } }, "status": { "conditions": refused },
    }));
    assert_eq!(
        summary_of(&refused),
        format!("{alone}; CollaSet web: UpdateFailed: not signed")
    );
    let mut ruled = pod_of_set(json!({}));
    ruled.pods.extend([other_pod("web-2"), other_pod("web-3")]);
    ruled.rules = observed(true, "Enforced", "-", "-").rules;
    let expected =
        format!("Pod web-0 is available, and no rule holds it; CollaSet web: {limit_text}");
    assert!(
        summary_of(&ruled).starts_with(&expected),
        "{}",
        summary_of(&ruled)
    );
}

#[test]
fn post_check_rule_is_reported_as_blocking_return() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    object["spec"]["rules"] = json!([{
        "name": "verified", "stage": "PostCheck",
        "labelCheck": { "requires": { "matchLabels": { "verified": "yes" } } },
    }]);
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
    let explained = diagnose(&observed);
    let expected = "Pod web-0 is available, and may go; the end of an operation on it would wait for rule verified of PodTransitionRule web: ";
    assert!(
        explained.summary.starts_with(expected),
        "{}",
        explained.summary
    );
}

#[test]
fn terminating_pod_waits_for_its_end_alone() {
    for (id, type_) in [("collaset", "update"), ("pod-delete", "delete")] {
        waits_for_its_end(id, type_);
    }
}

fn waits_for_its_end(id: &str, type_: &str) {
    let mut observed = pod_of_set(json!({}));
    let key = |family: &str| format!("{family}/{id}");
    let operation = [
        (&*key("operating"), "1"),
        (&*key("operation-type"), type_),
        (&*key("operate"), "1"),
    ];
    label_pod(&mut observed, &operation);
    let pod = Arc::make_mut(&mut observed.pod);
    pod.metadata.deletion_timestamp = Some("2026-01-01T12:00:00Z".to_owned());
    let explained = diagnose(&observed);
    let waits: Vec<_> = explained.operations[0]
        .waits_for
        .iter()
        .map(|w| w.text.as_str())
        .collect();
    assert_eq!(waits, ["the end of the Pod, which is being deleted"]);
    assert_eq!(explained.operations[0].then, "the Pod is gone");
}

#[test]
fn finished_pod_is_not_reported_as_terminating() {
    let mut observed = observed(false, "Enforced", "-", "-");
    Arc::make_mut(&mut observed.pod).status.phase = "Failed".into();
    let reason = diagnose(&observed).pod.unavailable_because.unwrap();
    assert_eq!(reason, "the Pod has finished (Failed)");
}

#[test]
fn deleted_or_paused_set_is_reported() {
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" }, "spec": { "paused": true } });
    assert_eq!(remark_with(deleted), "it is being deleted");
    let paused = remark_with(json!({ "spec": { "paused": true } }));
    assert_eq!(
        paused,
        "it is paused: set spec.paused to false to let it scale and update (a deleted Pod is still recreated)"
    );
}

#[test]
fn refused_deletion_of_offline_pod_names_remedy() {
    let mut observed = pod_of_set(json!({}));
    let operation = [
        ("operating/pod-delete", "1"),
        ("operation-type/pod-delete", "delete"),
        ("operate/pod-delete", "1"),
    ];
    label_pod(&mut observed, &operation);
    let pod = Arc::make_mut(&mut observed.pod);
    pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    pod.metadata
        .labels
        .insert(keys::TO_DELETE.to_owned(), "1".to_owned());
    let waits = "waiting for the deletion controller, to delete the Pod";
    assert!(diagnose(&observed).summary.ends_with(waits));
    observed.context.dry_run_deletion = denied_dry_run("legal hold");
    let explained = diagnose(&observed);
    let waits = "waiting for the API server, which refuses its deletion: legal hold";
    assert!(explained.summary.ends_with(waits), "{}", explained.summary);
    let command = "`kubectl label pod web-0 -n n collaset.kusionstack.io/to-delete-`";
    let next = |observed: &ObservedPod| diagnose(observed).next.join("; ");
    assert_eq!(
        next(&observed),
        format!(
            "operation pod-delete: the Pod is deleted once the API server allows it; this brings it back on traffic instead: {command}"
        )
    );
    let spec_with_pod = json!({ "spec": { "scaleStrategy": { "podToDelete": ["web-0"] } } });
    observed.controller = pod_of_set(spec_with_pod).controller;
    let next_step = next(&observed);
    let prerequisite =
        format!("after its name is removed from podToDelete of CollaSet web: {command}");
    assert!(next_step.ends_with(&prerequisite), "{next_step}");
}

#[test]
fn set_bound_is_named_only_without_other_blocker() {
    let limit_text = "its updateStrategy.maxUnavailable (1) holds the update of this Pod: 1 of 2 Pods are unavailable or on their way, and at \
                 most 1 may be";
    assert_eq!(remark_with(json!({})), limit_text);
    let rolling = |rolling: Value| json!({ "updateStrategy": { "rollingUpdate": rolling } });
    let partition = |partition_text: usize| {
        let by = json!({ "byPartition": { "partition": partition_text } });
        remark_with(json!({ "spec": rolling(by) }))
    };
    let partition_text =
        "its partition keeps 1 Pod on older revisions, and this Pod may be one of them";
    assert_eq!(partition(1), format!("{partition_text}; {limit_text}"));
    assert_eq!(
        partition(2),
        "its partition keeps 2 Pods on older revisions, and this Pod is one of them"
    );
    let taken_back = json!({
        "spec": rolling(json!({ "byPartition": { "partition": 2 } })),
        "status": { "currentRevision": "web-2" },
    });
    let rollback_text = "the template is that of its current revision web-2: Pods of newer revisions go back to this \
        revision, and its partition keeps Pods of older revisions";
    assert_eq!(
        remark_with(taken_back),
        format!("{rollback_text}; {limit_text}")
    );
    let remark_at_step = |partition_text: usize, step: i32, message: &str| {
        let reason = if message.contains("pauses") {
            "StepPaused"
        } else {
            "Updating"
        };
        let update =
            json!([{ "type": "Update", "status": "False", "reason": reason, "message": message }]);
        remark_with(json!({
            "spec": rolling(json!({ "steps": [{ "partition": partition_text }, { "pause": {} }] })),
            "status": { "rollout": { "revision": "web-2", "step": step, "steps": 2 }, "conditions": update },
        }))
    };
    assert_eq!(
        remark_at_step(1, 2, "step 2 of 2 pauses until 10:00"),
        "its rollout is at step 2 of 2, which pauses until 10:00"
    );
    let step = "its rollout is at step 1 of 2";
    assert_eq!(
        remark_at_step(2, 1, "step 1 of 2"),
        step,
        "the step keeps both Pods"
    );
    assert_eq!(
        remark_at_step(1, 1, "step 1 of 2"),
        format!("{step}; {limit_text}")
    );
}

#[test]
fn terminating_pod_that_a_finalizer_holds_names_it() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let mut summary_and_next = |finalizers: &[&str], grace: Option<i64>| {
        let metadata = &mut Arc::make_mut(&mut observed.pod).metadata;
        metadata.deletion_timestamp = Some("2026-01-01T11:59:00Z".to_owned());
        metadata.deletion_grace_period_seconds = grace;
        metadata.finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
        let explained = diagnose(&observed);
        (explained.summary, explained.next)
    };
    let taken_off = "these finalizers are removed: example.com/slow";
    let (summary, next) = summary_and_next(&["example.com/slow"], Some(0));
    assert_eq!(
        summary,
        "Pod web-0 is terminating: it waits until finalizer example.com/slow is removed"
    );
    assert_eq!(next, [taken_off], "the kubelet is done");
    let (_, next) = summary_and_next(&["example.com/slow"], Some(30));
    let kubelet = "the kubelet ends its containers; that is overdue by 60s";
    assert!(
        next[0] == taken_off && next[1].starts_with(kubelet),
        "{next:?}"
    );
    let (summary, next) = summary_and_next(&["a/b", "c/d"], Some(0));
    let both = "Pod web-0 is terminating: it waits until finalizers a/b, c/d are removed";
    assert_eq!((&*summary, next.len()), (both, 1));
    let (summary, next) = summary_and_next(&[], Some(0));
    let ending = "Pod web-0 is terminating: nothing holds it any more";
    assert_eq!(summary, ending);
    assert!(next[0].starts_with(kubelet), "{next:?}");
}

/// The Pod under a `labelCheck` rule that it does not meet.
fn under_label_check() -> ObservedPod {
    let mut observed = observed(true, "Enforced", "-", "-");
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    object["spec"]["rules"] = json!([{
        "name": "labels", "labelCheck": { "requires": { "matchLabels": { "fit": "yes" } } },
    }]);
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
    observed
}

/// The server's answer to a dry-run deletion with the feature gate GraceDeleteWebhook.
fn lifecycle_dry_run(pod: &Pod) -> Option<DryRunDeletion> {
    Some(DryRunDeletion::Denied {
        code: 429,
        message: crate::domain::grace_delete::deletion_denial(pod),
    })
}

#[test]
fn deletion_through_lifecycle_is_held_by_label_check() {
    let mut observed = under_label_check();
    let next = |observed: &ObservedPod| diagnose(observed).next.join("; ");
    let until = "until rule labels of PodTransitionRule web lets it pass";
    let without = format!(
        "an operation that begins waits in PreCheck {until}; deletions and evictions are not held by it"
    );
    let unknown = next(&observed);
    assert!(unknown.starts_with(&without), "{unknown}");
    assert!(
        unknown.contains("without the feature gate GraceDeleteWebhook"),
        "{unknown}"
    );
    assert!(unknown.contains("with it"), "{unknown}");
    observed.context.dry_run_deletion = Some(DryRunDeletion::Allowed);
    assert_eq!(next(&observed), without);
    observed.context.dry_run_deletion = lifecycle_dry_run(&observed.pod);
    assert_eq!(
        next(&observed),
        format!(
            "a deletion or eviction is refused with 429 and begins operation pod-delete (feature gate GraceDeleteWebhook), which waits \
             in PreCheck {until}, as any other operation does"
        )
    );
    let summary = diagnose(&observed).summary;
    assert!(
        summary.contains("an operation on it, a deletion too, would wait for rule labels"),
        "{summary}"
    );
    Arc::make_mut(&mut observed.pod)
        .spec
        .readiness_gates
        .clear();
    observed.context.dry_run_deletion = None;
    assert_eq!(next(&observed), without);
}

#[test]
fn deletion_that_begins_a_lifecycle_is_no_refusal() {
    let mut observed = observed(true, "Enforced", "-", "-");
    observed.context.dry_run_deletion = lifecycle_dry_run(&observed.pod);
    let first_step = "a deletion or eviction takes it off traffic first, by operation pod-delete (feature gate GraceDeleteWebhook)";
    assert_eq!(
        diagnose(&observed).summary,
        format!("Pod web-0 is available, and may go; {first_step}")
    );
    observed.rules.clear();
    assert_eq!(
        diagnose(&observed).summary,
        format!(
            "Pod web-0 is available, and no PodTransitionRule of namespace n selects it: nothing holds it; {first_step}"
        )
    );
}

#[test]
fn budget_counts_the_pods_as_they_are_now() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    object["status"]["availablePods"] = json!(2);
    object["status"]["unavailablePods"] = json!(1);
    observed.rules = vec![RuleObject::compile(
        serde_json::from_value(object.clone()).unwrap(),
    )];
    let diagnosis = diagnose(&observed);
    assert_eq!(diagnosis.summary, "Pod web-0 is available, and may go");
    object["status"]["availablePods"] = json!(3);
    object["status"]["unavailablePods"] = json!(0);
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
    observed.pods.pop();
    let diagnosis = diagnose(&observed);
    let used_budget =
        "held by rule a of PodTransitionRule web: 1 of 3 Pods are unavailable, the limit is 1";
    assert!(
        diagnosis.summary.contains(used_budget),
        "{}",
        diagnosis.summary
    );
    observed.pods.clear(); // they could not be read
    let diagnosis = diagnose(&observed);
    assert_eq!(diagnosis.summary, "Pod web-0 is available, and may go");
}

/// Adds an operation that waits in PreCheck.
fn wait_in_pre_check(observed: &mut ObservedPod, id: &str) {
    for (family, value) in [
        ("operating", "1"),
        ("operation-type", "t"),
        ("pre-check", "1"),
    ] {
        label_pod(observed, &[(&*format!("{family}/{id}"), value)]);
    }
}

/// Gives the rule object a webhook rule `ask` and this status.
fn add_endpoint_rule(observed: &mut ObservedPod, status: Value) {
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    let webhook = json!({ "clientConfig": { "url": "https://example.com" } });
    object["spec"]["rules"] = json!([{ "name": "ask", "webhook": webhook }]);
    json_patch::merge(&mut object["status"], &status);
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
}

#[test]
fn each_operation_has_the_answer_of_the_endpoint_to_itself() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let passed = json!([{ "name": "web-0", "podUID": "web-0", "operation": "a", "since": "1" }]);
    let webhook = json!({ "generation": 1, "passed": passed });
    let rejected = json!([
        { "ruleName": "ask", "operation": "b", "reason": "not now" },
        { "ruleName": "ask", "operation": "c", "reason": "never" },
    ]);
    let status = json!({
        "ruleStates": [{ "name": "ask", "webhookStatus": webhook }],
        "details": [{ "name": "web-0", "stage": "PreCheck", "rejectInfo": rejected }],
    });
    add_endpoint_rule(&mut observed, status);
    for id in ["a", "b", "c"] {
        wait_in_pre_check(&mut observed, id);
    }
    let diagnosis = diagnose(&observed);
    let waits: Vec<_> = diagnosis
        .operations
        .iter()
        .map(|o| o.waits_for[0].text.as_str())
        .collect();
    assert_eq!(
        waits,
        [
            "the lifecycle controller, to grant it: no rule holds it",
            "rule ask of PodTransitionRule web: not now",
            "rule ask of PodTransitionRule web: never",
        ]
    );
    assert_eq!(
        diagnosis.rules[0].reason,
        "operation b: not now; operation c: never"
    );
}

#[test]
fn why_tells_that_pods_passed_a_rule_by_ignore() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let webhook = json!({
        "generation": 1, "failing": "the answer is 500", "passedUnanswered": true,
        "passed": [{ "name": "web-0", "podUID": "web-0", "operation": "a", "since": "1" }],
    });
    let states = json!([{ "name": "ask", "webhookStatus": webhook }]);
    add_endpoint_rule(&mut observed, json!({ "ruleStates": states }));
    wait_in_pre_check(&mut observed, "a");
    assert_eq!(
        diagnose(&observed).rules[0].reason,
        "the Pod passes the rule; its endpoint does not answer, and failurePolicy Ignore has let Pods pass: the answer is 500"
    );
}

#[test]
fn verdict_omitted_from_status_details_is_unknown() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let reasons =
        json!([{ "stage": "PreCheck", "ruleName": "ask", "reason": "not now", "pods": 200 }]);
    add_endpoint_rule(&mut observed, json!({ "waitReasons": reasons }));
    wait_in_pre_check(&mut observed, "a");
    let reason = diagnose(&observed).rules[0].reason.clone();
    assert_eq!(
        reason,
        "its endpoint has not let the Pod pass yet; status.details leaves this Pod out: of all Pods that wait for the rule, 200 wait \
         for: not now"
    );
}

#[test]
fn pod_waiting_for_label_is_not_ahead_in_queue() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let mut object = serde_json::to_value(&*observed.rules[0].object).unwrap();
    object["spec"]["rules"].as_array_mut().unwrap().push(json!({
        "name": "labels", "labelCheck": { "requires": { "matchLabels": { "fit": "yes" } } },
    }));
    object["status"]["waitingPods"] = json!(2);
    observed.rules = vec![RuleObject::compile(serde_json::from_value(object).unwrap())];
    let begin = |pod: &mut Arc<Pod>, since: &str| {
        let labels = &mut Arc::make_mut(pod).metadata.labels;
        for (family, value) in [
            (Family::Operating, since),
            (Family::OperationType, "update"),
            (Family::PreCheck, since),
        ] {
            labels.insert(family.key("x"), value.to_owned());
        }
    };
    begin(&mut observed.pod, "1767268800000000000");
    let labels = &mut Arc::make_mut(&mut observed.pod).metadata.labels;
    labels.insert("fit".to_owned(), "yes".to_owned());
    observed.pods[0] = Arc::clone(&observed.pod);
    begin(&mut observed.pods[1], "1767268700000000000");
    let diagnosis = diagnose(&observed);
    assert_eq!(
        diagnosis.operations[0].waits_for[0].text,
        "the lifecycle controller, to grant it: no rule holds it"
    );
    let budget = diagnosis.rules[0].budget.as_ref().unwrap();
    assert_eq!((budget.waiting, budget.before), (1, Some(0)));
    let other_labels = &mut Arc::make_mut(&mut observed.pods[1]).metadata.labels;
    other_labels.insert("fit".to_owned(), "yes".to_owned());
    let diagnosis = diagnose(&observed);
    let text = &diagnosis.operations[0].waits_for[0].text;
    assert!(
        text.starts_with("its place in the queue behind web-1, which waits longer"),
        "{text}"
    );
}

#[test]
fn summary_names_disruption_budgets_that_refuse_evictions() {
    let mut observed = observed(true, "Enforced", "-", "-");
    let budget = |name: &str| {
        let object =
            json!({ "metadata": { "name": name, "namespace": "n" }, "spec": { "selector": {} } });
        serde_json::from_value(object).unwrap()
    };
    observed.context.disruption_budgets = vec![budget("a"), budget("b")];
    let refused = "an eviction is refused by PodDisruptionBudgets a, b";
    assert_eq!(
        diagnose(&observed).summary,
        format!("Pod web-0 is available, and may be deleted; {refused}")
    );
    observed.rules.clear();
    assert_eq!(
        diagnose(&observed).summary,
        format!(
            "Pod web-0 is available, and no PodTransitionRule of namespace n selects it; {refused}"
        )
    );
}
