//! Services that come, go, and change their mind.

use kube::ResourceExt;
use operating::api::keys;
use operating::domain::traffic::names::EmployerName;
use serde_json::{Value, json};
use testbed::{Bed, wait};

use crate::fixtures::Employer;
use crate::sets::Set;

/// The finalizer in the form of earlier versions is replaced, foreign ones and the records of Kuperator are handled.
#[tokio::test]
async fn service_of_kuperator_is_taken_over() {
    let scope = Bed::shared().await.scope("traffic-takeover").await;
    let part = json!({ "metadata": {
        "finalizers": ["example.com/keep", "resource-consist.kusionstack.io/clean-web"],
        "annotations": {
            "resource-consist.kusionstack.io/employees-expected-finalizer-added": "web-0",
            "resource-consist.kusionstack.io/employees-lifecycle-finalizer-recorded": "web-0",
        },
    } });
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let web = Employer::new(&scope, "web", part).await;
    web.consistent(1).await;
    let service = web.get().await;
    assert_eq!(
        service.finalizers(),
        ["example.com/keep", keys::CLEAN_FINALIZER]
    );
    for record in keys::CONSIST_RECORDS {
        assert!(!service.annotations().contains_key(record), "{record}");
    }
    let name = set.pod(0).await.name_any();
    web.delete().await;
    web.marks(&name, (false, false)).await;
    wait::until("our finalizer to go", async || {
        web.get().await.finalizers() == ["example.com/keep"]
    })
    .await;
    web.edit(json!({ "metadata": { "finalizers": [] } })).await;
    web.gone().await;
}

/// Without the control label, nothing of ResourceConsist stays on the Service and on its Pods, and both can be deleted.
#[tokio::test]
async fn service_that_loses_its_control_label_is_released() {
    let scope = Bed::shared().await.scope("traffic-release").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let web = Employer::new(&scope, "web", json!({})).await;
    web.consistent(2).await;
    web.edit(json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } }))
        .await;
    for pod in set.pods().await.values() {
        web.marks(&pod.name_any(), (false, false)).await;
    }
    wait::until("the Service to be as before", async || {
        let service = web.get().await;
        let ours = |key: &String| {
            key.starts_with(keys::CONSIST_PREFIX) && key != keys::CONSIST_DRAIN_SECONDS
        };
        service.finalizers().is_empty()
            && !service.annotations().keys().any(ours)
            && web.condition().await.is_none()
    })
    .await;
    scope.all_available("app=web", 2).await;
}

/// An empty selector selects no Pod.
#[tokio::test]
async fn service_without_selector_marks_no_pod() {
    let scope = Bed::shared().await.scope("traffic-none").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let web = Employer::new(
        &scope,
        "web",
        json!({ "spec": { "selector": Value::Null } }),
    )
    .await;
    web.until("a report", |report| report.registered == 0).await;
    // By the time when a later Service has marked the Pod, this one would have.
    let select = json!({ "spec": { "selector": { "app": "web" } } });
    let later = Employer::new(&scope, "later", select).await;
    later.consistent(1).await;
    let pod = set.pod(0).await;
    assert!(!web.protects(&pod) && !web.is_expected(&pod));
    web.delete().await;
    web.gone().await;
}

#[tokio::test]
async fn two_services_mark_one_pod_and_neither_takes_the_others_mark() {
    let scope = Bed::shared().await.scope("traffic-two").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let select = json!({ "spec": { "selector": { "app": "web" } } });
    let web = Employer::new(&scope, "web", json!({})).await;
    let api = Employer::new(&scope, "api", select).await;
    web.consistent(2).await;
    api.consistent(2).await;
    for pod in set.pods().await.values() {
        web.marks(&pod.name_any(), (true, true)).await;
        api.marks(&pod.name_any(), (true, true)).await;
    }
    web.delete().await;
    web.gone().await;
    for pod in set.pods().await.values() {
        web.marks(&pod.name_any(), (false, false)).await;
        assert!(api.protects(pod) && api.is_expected(pod));
    }
    let name = set.pod(0).await.name_any();
    scope.begin(&name, "manual").await.unwrap();
    api.marks(&name, (true, false)).await;
    scope.finish(&name, "manual").await.unwrap();
    api.marks(&name, (true, true)).await;
}

#[tokio::test]
async fn wrong_annotations_are_named() {
    let scope = Bed::shared().await.scope("traffic-annotations").await;
    let annotations = json!({ (keys::CONSIST_ADAPTER): "edge" });
    let web = Employer::new(
        &scope,
        "web",
        json!({ "metadata": { "annotations": annotations } }),
    )
    .await;
    let report = web
        .until("the error", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(
        error.contains("no adapter for a Service of this namespace is named \"edge\""),
        "{error}"
    );
    assert!(error.contains("endpoints"), "{error}");
    // Nothing stays on a Service that nobody ever managed.
    web.edit(json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } }))
        .await;
    wait::until("the report to go", async || {
        web.report().await.is_none() && web.condition().await.is_none()
    })
    .await;
    web.edit(json!({ "metadata": { "labels": { (keys::CONTROL): "true" } } }))
        .await;
    let annotations = json!({
        (keys::CONSIST_ADAPTER): Value::Null, (keys::CONSIST_DRAIN_SECONDS): "soon",
    });
    web.edit(json!({ "metadata": { "annotations": annotations } }))
        .await;
    let error = web.until("the other error", |report| {
        report
            .last_error
            .as_ref()
            .is_some_and(|error| error.contains("\"soon\""))
    });
    error.await;
    web.delete().await;
    web.gone().await;
}

/// Whoever may write a Pod can name thousands of Services in its annotation. All entries of Services that do not exist
/// go, some at a time.
#[tokio::test]
async fn forged_expectations_are_removed() {
    let scope = Bed::shared().await.scope("traffic-forged").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let name = set.pod(0).await.name_any();
    let key = |n: usize| EmployerName::new("Service", &scope.namespace, &format!("none-{n}"));
    let forged = (0..40).map(|n| (key(n).key(), json!(key(n).finalizer())));
    let mut entries: serde_json::Map<String, Value> = forged.collect();
    entries.insert(web.name.key(), json!(web.name.finalizer()));
    let text = json!({ "expectedFinalizers": entries }).to_string();
    let annotations = json!({ (keys::AVAILABLE_CONDITIONS): text });
    let patch = json!({ "metadata": { "annotations": annotations } });
    scope.patch(&name, patch).await.unwrap();
    wait::until("the forged entries to go", async || {
        let pod = scope.get(&name).await;
        let text = pod.annotations().get(keys::AVAILABLE_CONDITIONS).cloned();
        !text.unwrap_or_default().contains("none-")
    })
    .await;
    web.marks(&name, (true, true)).await;
}
