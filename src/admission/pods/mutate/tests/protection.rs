//! Which writes protect a Pod.

use super::*;
use crate::domain::traffic::names::EmployerName;

const ID: &str = "x1";

/// A Pod of the Services that serves. An operation has its grant, and has not taken the Pod off traffic.
fn granted(part: &Value) -> Value {
    let mut pod = labelled(json!({
        "app": "web",
        (Family::Operating.key(ID)): "1",
        (Family::OperationType.key(ID)): "update",
        (Family::OperationPermission.key("update")): "1",
        (Family::PreChecked.key(ID)): "1",
    }));
    let serving = json!({
        "metadata": { "namespace": "shop" },
        "status": {
            "phase": "Running", "podIPs": [{ "ip": "10.0.0.7" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    json_patch::merge(&mut pod, &serving);
    json_patch::merge(&mut pod, part);
    pod
}

fn edge() -> Value {
    json!({
        "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "edge" } },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

fn web() -> String {
    EmployerName::new("Service", "shop", "web").finalizer()
}

/// The Pod that a write stores.
async fn stored(mutator: &PodMutator, old: &Value, new: &Value) -> Value {
    let verdict = mutator
        .review(&review(old, new), deadline_in_future())
        .await;
    assert!(verdict.is_allowed(), "{verdict:?}");
    let mut stored = new.clone();
    let patch = verdict.patch().cloned().unwrap_or_default();
    json_patch::patch(&mut stored, &patch).unwrap();
    stored
}

/// The Pod after a write that changes nothing by itself.
async fn touched(services: &[Value], part: &Value) -> Value {
    let pod = granted(part);
    stored(&mutate_with(services), &pod, &pod).await
}

fn has(pod: &Value, family: Family) -> bool {
    pod["metadata"]["labels"][family.key(ID)].is_string()
}

#[tokio::test]
async fn operation_that_takes_a_pod_off_traffic_protects_it_and_waits() {
    for part in [json!({}), edge()] {
        let services = [service("web", part)];
        let pod = touched(&services, &json!({})).await;
        assert_eq!(pod["metadata"]["finalizers"], json!([web()]));
        assert!(has(&pod, Family::Preparing) && !has(&pod, Family::Operate));
        // By the annotation the leader finds the Pod when the Service is gone.
        let text = pod["metadata"]["annotations"][keys::AVAILABLE_CONDITIONS].as_str();
        let text: Value = serde_json::from_str(text.unwrap()).unwrap();
        let entry = json!({ "expectedFinalizers": { "Service/shop/web": web() } });
        assert_eq!(text, entry);
    }
    // Without an employer nothing holds the operation.
    let pod = touched(&[], &json!({})).await;
    assert!(has(&pod, Family::Operate));
}

#[tokio::test]
async fn pod_that_no_request_reaches_is_not_protected() {
    let label = |app: &str| json!({ "metadata": { "labels": { "app": app } } });
    let status = |part: Value| json!({ "status": part });
    let unready = |since: Value| {
        let condition = json!({ "type": "Ready", "status": "False", "lastTransitionTime": since });
        status(json!({ "conditions": [condition] }))
    };
    let seconds_ago = |seconds: i64| {
        let since = jiff::Timestamp::UNIX_EPOCH - jiff::SignedDuration::from_secs(seconds);
        json!(since.to_string())
    };
    let drains = json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "300" } } });
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let unmanaged = json!({ "metadata": { "labels": Value::Null } });
    let refused = json!({ "spec": { "publishNotReadyAddresses": true } });
    for (what, of_service, of_pod, protected) in [
        ("unready", edge(), unready(seconds_ago(200)), true),
        (
            "unready, observed",
            json!({}),
            unready(seconds_ago(200)),
            false,
        ),
        ("just unready", json!({}), unready(seconds_ago(1)), true),
        (
            "of a clock ahead",
            json!({}),
            unready(seconds_ago(-20)),
            true,
        ),
        (
            "unready, drains long",
            drains,
            unready(seconds_ago(200)),
            true,
        ),
        ("unready since when?", json!({}), unready(Value::Null), true),
        (
            "never reported",
            json!({}),
            status(json!({ "conditions": Value::Null })),
            false,
        ),
        ("other Pods", edge(), label("api"), false),
        ("unmanaged Service", unmanaged, json!({}), false),
        ("refused Service", refused, json!({}), false),
        (
            "no address",
            edge(),
            status(json!({ "podIPs": Value::Null })),
            false,
        ),
        (
            "finished",
            edge(),
            status(json!({ "phase": "Failed" })),
            false,
        ),
        ("terminating", edge(), deleted, false),
    ] {
        let pod = touched(&[service("web", of_service)], &of_pod).await;
        let finalizers = &pod["metadata"]["finalizers"];
        assert_eq!(finalizers.is_array(), protected, "{what}: {pod}");
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations.is_object(), protected, "{what}: {pod}");
    }
}

#[tokio::test]
async fn only_the_write_that_begins_preparing_protects() {
    let mutator = mutate_with(&[service("web", edge())]);
    let waiting = granted(&json!({ "metadata": { "labels": {
        (Family::PreChecked.key(ID)): Value::Null, (Family::PreCheck.key(ID)): "1",
    } } }));
    let pod = stored(&mutator, &waiting, &waiting).await;
    assert!(has(&pod, Family::PreCheck), "{pod}");
    assert!(
        pod["metadata"]["finalizers"].is_null(),
        "waits for its rules"
    );

    // The leader has seen that traffic is off.
    let preparing =
        granted(&json!({ "metadata": { "labels": { (Family::Preparing.key(ID)): "1" } } }));
    let pod = stored(&mutator, &preparing, &preparing).await;
    assert!(has(&pod, Family::Operate), "{pod}");
    assert!(pod["metadata"]["finalizers"].is_null(), "{pod}");

    // It sees this in the write by which the operation begins.
    let mut protected = granted(&json!({}));
    protected["metadata"]["finalizers"] = json!([web()]);
    let pod = stored(&mutator, &protected, &granted(&json!({}))).await;
    assert!(has(&pod, Family::Operate), "{pod}");
    assert!(pod["metadata"]["finalizers"].is_null(), "{pod}");
}

/// A Pod with both marks. An operation keeps it off traffic. `part` changes the Pod.
fn marked(part: &Value) -> Value {
    let entry = json!({ "expectedFinalizers": { "Service/shop/web": web() } });
    let mut pod = granted(&json!({
        "metadata": {
            "labels": { (Family::Preparing.key(ID)): "1" },
            "annotations": { (keys::AVAILABLE_CONDITIONS): entry.to_string() },
            "finalizers": ["example.com/x", web()],
        },
    }));
    json_patch::merge(&mut pod, part);
    pod
}

/// The Pod after an operation in Preparing was undone. `part` changes the Pod before this.
async fn undone(services: &[Value], part: &Value) -> Value {
    let old = marked(part);
    let mut new = old.clone();
    new["metadata"]["labels"][Family::UndoOperationType.key(ID)] = json!("update");
    let pod = stored(&mutate_with(services), &old, &new).await;
    assert!(!has(&pod, Family::Operating), "{pod}");
    pod
}

fn misspelt() -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "egde" } } })
}

#[tokio::test]
async fn protection_ends_with_an_operation_that_is_undone_in_preparing() {
    // A member may be off, so the protection does not show that the Pod serves. This is so whatever the Service is like.
    let refused = json!({ "spec": { "publishNotReadyAddresses": true } });
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let services = [edge(), misspelt(), refused, deleted];
    let services = services.map(|part| vec![service("web", part)]);
    for services in services.into_iter().chain([Vec::new()]) {
        let pod = undone(&services, &json!({})).await;
        let left = json!(["example.com/x"]);
        assert_eq!(pod["metadata"]["finalizers"], left, "{services:?}");
    }
}

/// The Pod when the leader has seen that it serves.
async fn serving(mutator: &PodMutator, pod: &Value) -> Value {
    let mut serving = pod.clone();
    serving["metadata"]["finalizers"] = json!(["example.com/x", web()]);
    let serving = stored(mutator, pod, &serving).await;
    stored(mutator, &serving, &serving).await
}

fn is_available(pod: &Value) -> bool {
    pod["metadata"]["labels"][keys::SERVICE_AVAILABLE].is_string()
}

/// No webhook has seen how the operation ended, so the label `operating` is gone and others are left.
#[tokio::test]
async fn protection_ends_with_an_operation_whose_end_was_missed() {
    let mutator = mutate_with(&[service("web", edge())]);
    let ended = json!({ (Family::Operating.key(ID)): Value::Null });
    let pod = marked(&json!({ "metadata": { "labels": ended } }));
    let pod = stored(&mutator, &pod, &pod).await;
    assert!(!has(&pod, Family::Preparing), "{pod}");
    assert_eq!(pod["metadata"]["finalizers"], json!(["example.com/x"]));
    assert!(!is_available(&pod), "{pod}");
    assert!(is_available(&serving(&mutator, &pod).await));
}

/// A second operation has protected the Pod while the first one worked, and was undone. Now the first one is done.
#[tokio::test]
async fn protection_ends_with_the_last_operation() {
    let mutator = mutate_with(&[service("web", edge())]);
    let done = json!({
        (Family::Operating.key(ID)): Value::Null, (Family::PreChecked.key(ID)): Value::Null,
        (Family::OperationType.key(ID)): Value::Null, (Family::Preparing.key(ID)): Value::Null,
        (Family::Operated.key(ID)): "2", (Family::DoneOperationType.key(ID)): "update",
        (Family::PostCheck.key(ID)): "2", (Family::PostChecked.key(ID)): "2",
    });
    let pod = marked(&json!({ "metadata": { "labels": done } }));
    let pod = stored(&mutator, &pod, &pod).await;
    assert_eq!(pod["metadata"]["finalizers"], json!(["example.com/x"]));
    let waits = has(&pod, Family::Completing);
    assert!(waits && !is_available(&pod), "{pod}");
    let pod = serving(&mutator, &pod).await;
    assert!(!has(&pod, Family::Completing), "{pod}");
    assert!(is_available(&pod), "{pod}");
}

#[tokio::test]
async fn protection_of_a_pod_that_was_not_off_stays() {
    let mutator = mutate_with(&[service("web", edge())]);
    let on = |labels: Value| {
        let mut part = json!({ (Family::Preparing.key(ID)): Value::Null });
        json_patch::merge(&mut part, &labels);
        marked(&json!({ "metadata": { "labels": part } }))
    };
    let waiting = on(json!({
        (Family::PreChecked.key(ID)): Value::Null, (Family::PreCheck.key(ID)): "1",
    }));
    let mut undone = waiting.clone();
    undone["metadata"]["labels"][Family::UndoOperationType.key(ID)] = json!("update");
    let undone = stored(&mutator, &waiting, &undone).await;
    assert!(!has(&undone, Family::Operating), "{undone}");
    // The leader has seen it serve.
    let back = on(json!({
        (Family::Operating.key(ID)): Value::Null, (Family::PreChecked.key(ID)): Value::Null,
        (Family::OperationType.key(ID)): Value::Null, (Family::Operated.key(ID)): "2",
        (Family::DoneOperationType.key(ID)): "update", (Family::Completing.key(ID)): "2",
    }));
    let ended = stored(&mutator, &back, &back).await;
    assert!(!has(&ended, Family::Completing), "{ended}");
    for pod in [undone, ended] {
        let finalizers = &pod["metadata"]["finalizers"];
        assert_eq!(*finalizers, json!(["example.com/x", web()]), "{pod}");
    }
}

#[tokio::test]
async fn pod_that_becomes_managed_loses_a_protection_that_nobody_has_seen() {
    let mutator = mutate_with(&[service("web", edge())]);
    let new = marked(&json!({}));
    let mut old = new.clone();
    let labels = old["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove(keys::CONTROL);
    let pod = stored(&mutator, &old, &new).await;
    assert_eq!(pod["metadata"]["finalizers"], json!(["example.com/x"]));
    let expectation = &pod["metadata"]["annotations"][keys::AVAILABLE_CONDITIONS];
    assert!(expectation.is_string(), "{pod}");
}

/// The Pod was registered before, and nobody can take it off now.
#[tokio::test]
async fn operation_waits_for_an_expected_service_that_is_out_of_order() {
    let expected = json!({ "metadata": {
        "labels": { (Family::Preparing.key(ID)): Value::Null }, "finalizers": Value::Null,
    } });
    let refused = json!({ "spec": { "publishNotReadyAddresses": true } });
    for part in [misspelt(), refused] {
        let pod = marked(&expected);
        let services = [service("web", part)];
        let pod = stored(&mutate_with(&services), &pod, &pod).await;
        assert_eq!(pod["metadata"]["finalizers"], json!([web()]));
        assert!(has(&pod, Family::Preparing), "{pod}");
    }
    // No members of it can be registered.
    let mut part = misspelt();
    part["metadata"]["finalizers"] = Value::Null;
    let pod = marked(&expected);
    let pod = stored(&mutate_with(&[service("web", part)]), &pod, &pod).await;
    assert!(has(&pod, Family::Operate), "{pod}");
}

#[tokio::test]
async fn undone_operation_leaves_the_protection_that_makes_nothing_available_or_is_still_needed() {
    let preparing = Family::Preparing.key("other");
    let other = json!({ (Family::Operating.key("other")): "2",
        (Family::OperationType.key("other")): "update",
        (Family::OperationPermission.key("update")): "1",
        (Family::PreChecked.key("other")): "2", (preparing): "2" });
    let gateway = json!({ "expectedFinalizers": { "Gateway/shop/web": web() } }).to_string();
    for (what, part) in [
        ("not expected", json!({ "annotations": Value::Null })),
        ("another operation", json!({ "labels": other })),
        ("other Pods", json!({ "labels": { "app": "api" } })),
        (
            "another employer",
            json!({ "annotations": { (keys::AVAILABLE_CONDITIONS): gateway } }),
        ),
    ] {
        let services = [service("web", edge())];
        let pod = undone(&services, &json!({ "metadata": part })).await;
        let finalizers = pod["metadata"]["finalizers"].as_array().unwrap();
        assert!(finalizers.contains(&json!(web())), "{what}: {pod}");
    }
}

#[tokio::test]
async fn finalizers_of_others_stay_and_ours_is_added_once() {
    let services = [service("web", edge())];
    for before in [json!(["example.com/x"]), json!([web(), "example.com/x"])] {
        let part = json!({ "metadata": { "finalizers": before } });
        let pod = touched(&services, &part).await;
        let after = pod["metadata"]["finalizers"].as_array().unwrap();
        assert_eq!(after.len(), 2, "{after:?}");
        assert!(after.contains(&json!("example.com/x")) && after.contains(&json!(web())));
    }
    // An employer of another kind has the same name, and so the same finalizer.
    let entry = json!({ "expectedFinalizers": { "Gateway/shop/web": web() } });
    let annotations = json!({ (keys::AVAILABLE_CONDITIONS): entry.to_string() });
    let part = json!({ "metadata": { "annotations": annotations } });
    let pod = touched(&services, &part).await;
    assert!(pod["metadata"]["finalizers"].is_null(), "{pod}");
    // An annotation that can't be read does not leave the Pod unprotected.
    let part = json!({ "metadata": { "annotations": { (keys::AVAILABLE_CONDITIONS): "{" } } });
    let pod = touched(&services, &part).await;
    assert_eq!(pod["metadata"]["finalizers"], json!([web()]));
    assert_eq!(
        pod["metadata"]["annotations"][keys::AVAILABLE_CONDITIONS],
        "{"
    );
}

#[tokio::test]
async fn protections_of_one_write_are_bounded() {
    let services = (0..40).map(|n| service(&format!("web-{n}"), edge()));
    let pod = touched(&services.collect::<Vec<_>>(), &json!({})).await;
    let finalizers = pod["metadata"]["finalizers"].as_array().unwrap();
    assert_eq!(finalizers.len(), MAX_EXPECTING_EMPLOYERS);
}
