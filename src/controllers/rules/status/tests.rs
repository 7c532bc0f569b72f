#![allow(clippy::unwrap_used)]
use jiff::Timestamp;
use serde_json::{Value, json};

use super::details::MAX_DETAILS;
use super::*;
use crate::api::keys::{self, Family};
use crate::api::size_limits::{self, MAX_DETAILS_BYTES, MAX_TARGETS_BYTES};
use crate::cluster::index::Index;
use crate::domain::pod::Pod;
use crate::domain::rules::RuleKind;
use crate::domain::rules::webhook::CallState;

fn rule(status: Value) -> Value {
    json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule", "generation": 1 },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
        "status": status,
    })
}

/// The inputs for a rule object that selects managed Pods, in a namespace where it is enforced.
fn managed_inputs() -> StatusInputs {
    StatusInputs {
        namespace_state: NamespaceState::default(),
        grace_delete: false,
        matches: SelectorMatches::Managed,
        unreadable: Vec::new(),
        ledger_repair_message: None,
        ledger_storage: LedgerStorage::default(),
    }
}

/// The patch for rule object `web`, and its urgency.
fn status_patch(
    index: &Index,
    gauges: BudgetGauges,
    call_states: Option<&CallStates>,
    inputs: &StatusInputs,
    queue: &QueueFacts,
) -> Option<(Value, StatusUrgency)> {
    let state = index.read_state();
    let view = StatusView {
        state: &state,
        entry: state.rule("n", "web").unwrap(),
        gauges,
        call_states,
        inputs,
        queue,
    };
    rule_status_patch(&view, Timestamp::UNIX_EPOCH)
}

/// The patch for a rule object with the status `stored`, if these owners are unreadable and the ledger is stored in
/// this way.
fn patch_with_urgency(
    stored: Value,
    gauges: BudgetGauges,
    unreadable: &[&str],
    storage: LedgerStorage,
) -> Option<(Value, StatusUrgency)> {
    let index = Index::default();
    index.apply_rule(serde_json::from_value(rule(stored)).unwrap());
    let inputs = StatusInputs {
        unreadable: unreadable.iter().map(|&s| s.to_owned()).collect(),
        ledger_storage: storage,
        ..managed_inputs()
    };
    status_patch(&index, gauges, None, &inputs, &QueueFacts::default())
}

/// The patch alone, if the budget allows one disruption of three Pods.
fn patch(stored: Value, unreadable: &[&str], storage: LedgerStorage) -> Option<Value> {
    let gauges = BudgetGauges {
        expected: 3,
        base: 3,
        available: 3,
        limit: 1,
        allowed: 1,
        ..BudgetGauges::default()
    };
    patch_with_urgency(stored, gauges, unreadable, storage).map(|(patch, _)| patch)
}

fn written(stored: Value, unreadable: &[&str]) -> Option<Value> {
    patch(stored, unreadable, LedgerStorage::default())
}

#[test]
fn unreadable_owner_allows_nothing_and_is_written_once() {
    let first = written(
        json!({}),
        &["Rollout b can't be read: x", "Rollout a can't be read: y"],
    );
    let first = first.unwrap();
    assert_eq!(first["disruptionsAllowed"], 0);
    let conditions = first["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|c| c["type"] == "ExpectedKnown");
    let condition = condition.unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("OwnerUnreadable"))
    );
    // In each run the reads may end in another order.
    let reordered = written(
        first.clone(),
        &["Rollout a can't be read: y", "Rollout b can't be read: x"],
    );
    assert_eq!(reordered, None);
    let readable = written(first, &[]).unwrap();
    assert_eq!(readable["disruptionsAllowed"], 1);
}

#[test]
fn condition_that_differs_is_written_sooner_than_counts() {
    let written = |stored: Value, expected: u32, unreadable: &[&str]| {
        let gauges = BudgetGauges {
            expected,
            ..BudgetGauges::default()
        };
        patch_with_urgency(stored, gauges, unreadable, LedgerStorage::default()).unwrap()
    };
    let (first, urgency) = written(json!({}), 3, &[]);
    assert_eq!(urgency, StatusUrgency::Conditions); // nothing is stored yet
    let (_, urgency) = written(first.clone(), 4, &[]);
    assert_eq!(urgency, StatusUrgency::Counts);
    let (_, urgency) = written(first, 4, &["Rollout a can't be read: x"]);
    assert_eq!(urgency, StatusUrgency::Conditions);
}

#[test]
fn unusable_ledger_allows_nothing_and_explains_why() {
    let ledger = json!({ "ledger": { "formatVersion": 9, "watermark": "1" } });
    let patch = written(ledger, &[]).unwrap();
    assert_eq!(patch["disruptionsAllowed"], 0);
    let conditions = patch["conditions"].as_array().unwrap();
    let usable = conditions.iter().find(|c| c["type"] == "LedgerUsable");
    let usable = usable.unwrap();
    assert_eq!(
        (&usable["status"], &usable["reason"]),
        (&json!("False"), &json!("LedgerUnusable"))
    );
    let message = usable["message"].as_str().unwrap();
    assert!(message.contains("formatVersion is 9"), "{message}");
}

/// The condition `LedgerUsable` and `disruptionsAllowed`, as they are written when `stored` is the status.
fn usable(stored: Value, storage: LedgerStorage) -> Option<(Value, Value)> {
    let patch = patch(stored, &[], storage)?;
    let all = patch["conditions"].as_array().unwrap();
    let condition = all.iter().find(|c| c["type"] == "LedgerUsable");
    let condition = condition.cloned().unwrap_or_default();
    Some((condition, patch["disruptionsAllowed"].clone()))
}

#[test]
fn dropped_ledger_allows_nothing_until_stored_again() {
    let (dropped, allowed) = usable(json!({}), LedgerStorage::Dropped).unwrap();
    assert_eq!(allowed, 0);
    let status_and_reason = |c: &Value| [c["status"].clone(), c["reason"].clone()];
    assert_eq!(status_and_reason(&dropped), ["False", "LedgerNotStored"]);
    let message = dropped["message"].as_str().unwrap();
    assert!(message.contains("operating crds"), "{message}");
    let stored = json!({ "conditions": [dropped] });
    let conditions: Vec<_> = serde_json::from_value(stored["conditions"].clone()).unwrap();
    // Until its first write, a new leader knows the drop from the condition.
    assert_eq!(
        LedgerStorage::from_last_write(None, &conditions),
        LedgerStorage::Dropped
    );
    assert_eq!(
        LedgerStorage::from_last_write(Some(false), &conditions),
        LedgerStorage::Dropped
    );
    let storage = LedgerStorage::from_last_write(Some(true), &conditions);
    let (restored, allowed) = usable(stored, storage).unwrap();
    assert_eq!(allowed, 1);
    assert_eq!(status_and_reason(&restored), ["True", "LedgerStored"]);
    let conditions = [serde_json::from_value(restored).unwrap()];
    assert_eq!(
        LedgerStorage::from_last_write(None, &conditions),
        LedgerStorage::Restored
    );
    assert_eq!(
        LedgerStorage::from_last_write(Some(false), &conditions),
        LedgerStorage::Dropped
    );
    assert_eq!(
        LedgerStorage::from_last_write(Some(true), &[]),
        LedgerStorage::Unproven
    );
    let (none, _) = usable(json!({}), LedgerStorage::Unproven).unwrap();
    assert_eq!(none, Value::Null);
}

/// A managed Pod that waits in PreCheck. The Pod is available unless its operation has no type.
fn waiting(name: &str, since: &str, typed: bool) -> Pod {
    let mut labels = json!({
        (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1",
        Family::Operating.key("x"): "1", Family::PreCheck.key("x"): since,
    });
    if typed {
        labels[Family::OperationType.key("x")] = json!("update");
    }
    serde_json::from_value(json!({
        "metadata": { "namespace": "n", "name": name, "uid": name, "resourceVersion": "1", "labels": labels },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .unwrap()
}

/// Reasons by Pod, if `available` of ten Pods are available and two may be unavailable.
fn reasons(available: u32, head: Option<&str>) -> Vec<(String, String)> {
    reasons_with_claims(&[], available, head)
}

/// As [`reasons`], if these Pods hold claims.
fn reasons_with_claims(
    claimed: &[&str],
    available: u32,
    head: Option<&str>,
) -> Vec<(String, String)> {
    let index = Index::default();
    let mut object = rule(json!({}));
    object["spec"]["rules"] = json!([
        { "name": "two", "availablePolicy": { "maxUnavailableValue": 2 } },
        { "name": "five", "availablePolicy": { "maxUnavailableValue": 5 } },
    ]);
    index.apply_rule(serde_json::from_value(object).unwrap());
    index.apply_pod(waiting("web-0", "1", false));
    index.apply_pod(waiting("web-1", "2", true));
    index.apply_pod(waiting("web-2", "3", true));
    let gauges = BudgetGauges {
        expected: 10,
        base: 10,
        available,
        unavailable: 10 - available,
        limit: 2,
        ..BudgetGauges::default()
    };
    let inputs = managed_inputs();
    let queue = QueueFacts {
        head: head.map(Uid::from),
        claimed: claimed.iter().map(|&uid| Uid::from(uid)).collect(),
        counted: None,
    };
    let (patch, _) = status_patch(&index, gauges, None, &inputs, &queue).unwrap();
    let details = patch["details"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    details
        .flat_map(|detail| {
            let rejected = detail["rejectInfo"].as_array().into_iter().flatten();
            rejected.map(|r| {
                let reason = format!("{}: {}", text(&r["ruleName"]), text(&r["reason"]));
                (text(&detail["name"]), reason)
            })
        })
        .collect()
}

#[test]
fn details_stay_within_their_bytes_and_waiting_pods_counts_all() {
    let index = Index::default();
    let mut object = rule(json!({}));
    let requires = json!({ "requires": { "matchLabels": { "never": "there" } } });
    let many = (0..64).map(|i| json!({ "name": format!("{i:<>253}"), "labelCheck": requires }));
    object["spec"]["rules"] = many.collect();
    index.apply_rule(serde_json::from_value(object).unwrap());
    for i in 0..200 {
        index.apply_pod(waiting(&format!("{i:0>253}"), "1", true));
    }
    let inputs = StatusInputs {
        unreadable: vec!["x".repeat(1_000_000)],
        ..managed_inputs()
    };
    let gauges = BudgetGauges {
        expected: 200,
        waiting: 200,
        ..BudgetGauges::default()
    };
    let (patch, _) = status_patch(&index, gauges, None, &inputs, &QueueFacts::default()).unwrap();
    assert_eq!(patch["waitingPods"], 200);
    let details = patch["details"].as_array().unwrap();
    assert!(details.len() > 3, "{}", details.len());
    let refusing = details[0]["rejectInfo"].as_array().unwrap();
    assert!(!refusing.is_empty());
    let bytes = size_limits::json_bytes(&patch["details"]);
    assert!(bytes <= MAX_DETAILS_BYTES, "{bytes}");
    let all = size_limits::json_bytes(&patch);
    assert!(all <= MAX_DETAILS_BYTES + 64 * 1024, "{all}");
}

#[test]
fn endpoint_refuses_one_operation_and_not_the_other() {
    let index = Index::default();
    let passed = json!([{ "name": "web-0", "podUID": "web-0", "operation": "x", "since": "1" }]);
    let states = json!([{ "name": "ask", "webhookStatus": { "generation": 1, "passed": passed } }]);
    let mut object = rule(json!({ "ruleStates": states }));
    object["spec"]["rules"] =
        json!([{ "name": "ask", "webhook": { "clientConfig": { "url": "https://example.com" } } }]);
    index.apply_rule(serde_json::from_value(object).unwrap());
    let mut pod = waiting("web-0", "1", true);
    let labels = [(Family::PreCheck, "1"), (Family::OperationType, "update")];
    let labels = labels.map(|(family, value)| (family.key("y"), value.to_owned()));
    pod.metadata.labels.extend(labels);
    index.apply_pod(pod);
    let inputs = managed_inputs();
    let state = index.read_state();
    let entry = state.rule("n", "web").unwrap();
    let stored = entry.object.status.clone().unwrap().rule_states;
    let call_states = stored.into_iter().map(|state| {
        let rules = &entry.snapshot.rules.rules;
        let rule = rules.iter().find(|rule| rule.id == state.name);
        let RuleKind::Webhook(webhook) = &rule.unwrap().kind else {
            unreachable!()
        };
        let status = state.webhook_status.as_ref();
        let call_state = CallState::from_status(status, webhook, 1, Timestamp::UNIX_EPOCH);
        (state.name, call_state)
    });
    let call_states = call_states.collect();
    let (patch, _) = status_patch(
        &index,
        BudgetGauges::default(),
        Some(&call_states),
        &inputs,
        &QueueFacts::default(),
    )
    .unwrap();
    assert_eq!(
        patch["details"][0]["rejectInfo"],
        json!([{ "ruleName": "ask", "operation": "y", "reason": "its endpoint has not let the Pod pass yet" }])
    );
}

#[test]
fn pods_that_details_leaves_out_are_counted_by_reason() {
    let index = Index::default();
    let requires = json!({ "matchLabels": { "fit": "yes" } });
    let mut object = rule(json!({}));
    object["spec"]["rules"] = json!([{ "name": "labels", "labelCheck": { "requires": requires } }]);
    index.apply_rule(serde_json::from_value(object).unwrap());
    for i in 0..MAX_DETAILS + 50 {
        index.apply_pod(waiting(&format!("web-{i:03}"), "1", i > 0));
    }
    let inputs = managed_inputs();
    let state = index.read_state();
    let entry = state.rule("n", "web").unwrap();
    let mut queue = QueueFacts::default();
    let mut reasons = WaitReasonCounts::default();
    assert!(exceeds_details(entry));
    let view = StatusView {
        state: &state,
        entry,
        gauges: BudgetGauges::default(),
        call_states: None,
        inputs: &inputs,
        queue: &queue,
    };
    for part in all_stage_waits(entry, None).chunks(7) {
        count_reasons(&view, part, &mut reasons);
    }
    queue.counted = Some(Arc::new(reasons));
    let gauges = BudgetGauges::default();
    let (patch, _) = status_patch(&index, gauges, None, &inputs, &queue).unwrap();
    assert_eq!(patch["details"].as_array().unwrap().len(), MAX_DETAILS);
    let counted = patch["waitReasons"].as_array().unwrap();
    assert_eq!(counted[0]["pods"], MAX_DETAILS + 49);
    assert_eq!(counted[0]["ruleName"], "labels");
    assert_eq!(counted[1]["pods"], 1);
}

/// `selectedPods` and `targets` as they are written when `stored` is the status and these Pods exist.
fn targets(stored: Value, pods: impl Iterator<Item = String>) -> Option<(Value, Value)> {
    let index = Index::default();
    index.apply_rule(serde_json::from_value(rule(stored)).unwrap());
    for name in pods {
        index.apply_pod(waiting(&name, "1", true));
    }
    let inputs = managed_inputs();
    let (gauges, queue) = (BudgetGauges::default(), QueueFacts::default());
    let (patch, _) = status_patch(&index, gauges, None, &inputs, &queue)?;
    Some((patch["selectedPods"].clone(), patch["targets"].clone()))
}

#[test]
fn first_hundred_names_are_written_and_all_pods_counted() {
    let names = |n: usize| (0..n).map(|i| format!("web-{i:03}"));
    let (count, few) = targets(json!({}), names(3).rev()).unwrap();
    assert_eq!(
        (count, few),
        (json!(3), json!(["web-000", "web-001", "web-002"]))
    );
    let (count, many) = targets(json!({}), names(140).rev()).unwrap();
    let first: Vec<_> = names(100).collect();
    assert_eq!((count, many), (json!(140), json!(first)));
    let (_, none) = targets(json!({ "targets": ["web-000"] }), names(0)).unwrap();
    assert_eq!(none, json!([]));
}

#[test]
fn longest_names_fit_into_the_bytes_of_targets() {
    let (_, all) = targets(json!({}), (0..140).map(|i| format!("{i:0>253}"))).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 100);
    let bytes = size_limits::json_bytes(&all);
    assert!(bytes <= MAX_TARGETS_BYTES, "{bytes}");
}

#[test]
fn only_rule_without_headroom_is_reason_of_wait() {
    let reasons = reasons(8, None);
    let reasons_of = |pod: &str| -> Vec<&str> {
        let own = reasons.iter().filter(|(name, _)| name == pod);
        own.map(|(_, reason)| reason.as_str()).collect()
    };
    assert_eq!(
        reasons_of("web-1"),
        [
            "two: blocked by max unavailable policy: [max unavailable]=2/10, [current unavailable]=2/10"
        ]
    );
    let untyped = reasons_of("web-0");
    assert_eq!(untyped.len(), 1, "{untyped:?}");
    assert!(
        untyped[0].contains("the label operation-type.podopslifecycle.kusionstack.io/x is missing"),
        "{untyped:?}"
    );
}

#[test]
fn pod_with_a_claim_is_not_held_by_that_budget() {
    let reasons = reasons_with_claims(&["web-1"], 8, None);
    assert!(
        !reasons.iter().any(|(pod, _)| pod == "web-1"),
        "{reasons:?}"
    );
    assert!(reasons.iter().any(|(pod, _)| pod == "web-2"), "{reasons:?}");
}

#[test]
fn pod_that_waits_its_turn_names_the_pod_before_it() {
    let reasons = reasons(10, Some("web-1"));
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert_eq!(
        reasons[1],
        (
            "web-2".to_owned(),
            "two: waits in the queue behind web-1".to_owned()
        )
    );
}
