#![allow(clippy::unwrap_used)]

mod protection;

use std::convert::Infallible;

use kube::client::Body;

use serde_json::{Value, json};

use super::update::is_operation_begin;
use super::*;
use crate::cluster::traffic::Traffic;
use crate::cluster::traffic::adapters::{Adapters, NamedAdapter};
use crate::cluster::traffic::endpoints::EndpointsAdapter;
use crate::cluster::traffic::slices::Slices;
use crate::domain::pod_size;

fn pod(skips: Option<&str>) -> Value {
    let annotations = skips.map(|text| json!({ (keys::SKIP_RULE_CONDITIONS): text }));
    json!({ "metadata": { "name": "web-1", "annotations": annotations } })
}

/// An UPDATE, or a CREATE if `old` is null.
fn review(old: &Value, new: &Value) -> Request {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": if old.is_null() { "CREATE" } else { "UPDATE" },
            "namespace": "shop", "name": "web-1",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": { "username": "alice" }, "oldObject": old, "object": new,
        },
    });
    Request::parse(review.to_string().as_bytes()).unwrap()
}

fn deadline_in_future() -> Instant {
    Instant::now() + std::time::Duration::from_secs(5)
}

#[tokio::test]
async fn operation_without_its_type_is_warned_of_once() {
    let service = tower::service_fn(async |_: http::Request<Body>| {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let client = kube::Client::new(service, "default");
    let mutate = PodMutator(Arc::new(AdmissionContext::at_epoch(client)));
    let (operating, type_) = (Family::Operating.key("x1"), Family::OperationType.key("x1"));
    let pod = |mut labels: Value| {
        labels[keys::CONTROL] = json!(keys::CONTROL_VALUE);
        json!({ "metadata": { "name": "web-1", "labels": labels } })
    };
    let (idle, alone) = (pod(json!({})), pod(json!({ &operating: "1" })));
    let complete = pod(json!({ &operating: "1", &type_: "update" }));
    for (old, new, warned) in [
        (&idle, &alone, true),
        (&Value::Null, &alone, true),
        (&complete, &alone, true),
        (&alone, &alone, false),
        (&idle, &complete, false),
        (&alone, &idle, false),
    ] {
        let verdict = mutate.review(&review(old, new), deadline_in_future()).await;
        let warnings_text = verdict.warnings().join(" ");
        let names_it = warnings_text.contains(&format!("the label {type_} is missing"));
        assert_eq!(names_it, warned, "{old} {new}: {warnings_text}");
    }
}

fn mutate() -> PodMutator {
    let service = tower::service_fn(async |_: http::Request<Body>| {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let client = kube::Client::new(service, "default");
    PodMutator(Arc::new(AdmissionContext::at_epoch(client)))
}

fn labelled(mut labels: Value) -> Value {
    labels[keys::CONTROL] = json!(keys::CONTROL_VALUE);
    json!({ "metadata": { "name": "web-1", "labels": labels } })
}

/// NodeRestriction refuses a write of the kubelet if admission changes its labels.
#[tokio::test]
async fn kubelet_status_write_is_not_patched() {
    let preparing = Family::Preparing.key("x1");
    let old = labelled(json!({ &preparing: "1", (Family::Operating.key("x1")): "1" }));
    let mut new = old.clone();
    new["status"] = json!({ "conditions": [{ "type": "Ready", "status": "False" }] });
    for (groups, patched) in [(json!(["system:nodes"]), false), (json!([]), true)] {
        let mut request = review(&old, &new);
        request.sub_resource = Some("status".to_owned());
        request.user_info.groups = serde_json::from_value(groups).unwrap();
        let verdict = mutate().review(&request, deadline_in_future()).await;
        assert!(verdict.is_allowed());
        let changes = verdict.patch().map_or(0, |patch| patch.0.len());
        assert_eq!(changes > 0, patched, "{verdict:?}");
    }
}

#[test]
fn status_write_starts_only_operations_it_adds() {
    let pod = |operates: bool, ready: bool| {
        let mut pod = labelled(json!({}));
        if operates {
            pod["metadata"]["labels"][Family::Operating.key("x1")] = json!("1");
        }
        if ready {
            pod["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        }
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    for (old, new, begins) in [
        (pod(false, true), pod(true, true), true),
        (pod(false, false), pod(true, true), false),
        (pod(true, false), pod(true, true), false),
        (pod(true, true), pod(true, true), false),
    ] {
        assert_eq!(
            is_operation_begin(&old, &new, "x1"),
            begins,
            "{old:?} {new:?}"
        );
    }
}

#[tokio::test]
async fn fallback_denies_unchecked_grant_mark() {
    let mutate = mutate();
    let old = labelled(json!({ (Family::PreCheck.key("x1")): "1" }));
    for (family, allowed) in [
        (Family::PreChecked, false),
        (Family::PostChecked, false),
        (Family::Operating, true),
    ] {
        let mut new = old.clone();
        new["metadata"]["labels"][family.key("x1")] = json!("1");
        let verdict = mutate.fallback(&review(&old, &new), "overload");
        assert_eq!(verdict.is_allowed(), allowed, "{family:?}");
        assert!(
            mutate
                .fallback(&review(&new, &new), "overload")
                .is_allowed()
        );
    }
}

#[tokio::test]
async fn unreadable_skip_annotation_is_warned_once() {
    let service = tower::service_fn(async |_: http::Request<Body>| {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let client = kube::Client::new(service, "default");
    let mutate = PodMutator(Arc::new(AdmissionContext::at_epoch(client)));
    let (fine, odd) = (Some(r#"{"skipRules":["a"]}"#), Some("all"));
    for (old, new, warned) in [
        (pod(None), pod(odd), true),
        (Value::Null, pod(odd), true),
        (pod(odd), pod(odd), false),
        (pod(odd), pod(fine), false),
        (pod(None), pod(None), false),
    ] {
        let verdict = mutate
            .review(&review(&old, &new), deadline_in_future())
            .await;
        let warnings_text = verdict.warnings().join(" ");
        assert_eq!(
            warnings_text.contains("skips no rule"),
            warned,
            "{old} {new}: {warnings_text}"
        );
    }
}

#[test]
fn update_to_oversized_pod_warns_once() {
    let sized = |bytes: usize| {
        let pod = json!({ "metadata": { "name": "web-1" }, "spec": { "restartPolicy": "x".repeat(bytes) } });
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let (small, large) = (sized(10), sized(pod_size::MAX_POD_BYTES));
    let warnings_text = size_warning(None, &large).unwrap();
    for part in [
        "Pod web-1 takes 9",
        "more than 98304",
        "counts as not available",
        "Give it fewer",
    ] {
        assert!(warnings_text.contains(part), "{warnings_text}");
    }
    assert_eq!(size_warning(Some(&small), &large), Some(warnings_text));
    assert_eq!(size_warning(Some(&large), &large), None);
    assert_eq!(size_warning(None, &small), None);
}

#[tokio::test]
async fn creation_of_oversized_pod_warns() {
    let service = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    let context = AdmissionContext::at_epoch(kube::Client::new(service, "default"));
    let mut new = pod(None);
    new["metadata"]["labels"] = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
    new["spec"] =
        json!({ "containers": [{ "name": "a", "image": "x".repeat(pod_size::MAX_POD_BYTES) }] });
    let request = review(&Value::Null, &new);
    let verdict = PodMutator(Arc::new(context))
        .review(&request, Instant::now())
        .await;
    assert!(verdict.is_allowed());
    assert_eq!(verdict.warnings().len(), 1, "{:?}", verdict.warnings());
}

/// A mutator that knows these Services. Its adapters are `endpoints`, which only observes, and `edge`.
fn mutate_with(services: &[Value]) -> PodMutator {
    let slices = Arc::<Slices>::default();
    let endpoints = Arc::new(EndpointsAdapter(Arc::clone(&slices)));
    let named = NamedAdapter::new("endpoints", endpoints, None);
    let config = serde_json::from_value(json!({ "url": "http://127.0.0.1:1" })).unwrap();
    let edge = Arc::new(traffic_http::HttpAdapter::new(config).unwrap());
    let edge = NamedAdapter::new("edge", edge, None);
    let default = Some("endpoints".to_owned());
    let adapters = Adapters::new(vec![named, edge], default).unwrap();
    let traffic = Traffic::new(adapters, slices);
    let objects = services.iter();
    let objects = objects.map(|service| serde_json::from_value(service.clone()).unwrap());
    let cache = traffic.employers.kind("Service").unwrap();
    cache.replace(&traffic.adapters, objects.collect(), 5);
    let mut mutator = mutate();
    Arc::get_mut(&mut mutator.0).unwrap().traffic = traffic;
    mutator
}

fn service(name: &str, part: Value) -> Value {
    let mut service = json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "resourceVersion": "5",
            "labels": { (keys::CONTROL): "true" },
            "finalizers": [keys::CLEAN_FINALIZER],
            "annotations": { (keys::CONSIST_ADAPTER_IN_USE): "endpoints" },
        },
        "spec": { "selector": { "app": "web" } },
    });
    json_patch::merge(&mut service, &part);
    service
}

/// The keys that the annotation of a created Pod expects.
async fn expected(mutator: &PodMutator, pod: &Value) -> Vec<String> {
    let verdict = mutator
        .review(&review(&Value::Null, pod), deadline_in_future())
        .await;
    let mut stored = pod.clone();
    let patch = verdict.patch().cloned().unwrap_or_default();
    json_patch::patch(&mut stored, &patch).unwrap();
    let text = stored["metadata"]["annotations"][keys::AVAILABLE_CONDITIONS].as_str();
    let value: Value = text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    let entries = value["expectedFinalizers"].as_object();
    entries.map_or_else(Vec::new, |entries| entries.keys().cloned().collect())
}

#[tokio::test]
async fn new_pod_expects_only_services_that_will_serve_it() {
    let pod = labelled(json!({ "app": "web" }));
    let mutator = mutate_with(&[
        service("web", json!({})),
        service(
            "other-pods",
            json!({ "spec": { "selector": { "app": "api" } } }),
        ),
        service("all-pods", json!({ "spec": { "selector": Value::Null } })),
        service(
            "empty",
            json!({ "spec": { "selector": { "app": Value::Null } } }),
        ),
        service(
            "other-namespace",
            json!({ "metadata": { "namespace": "pay" } }),
        ),
        service(
            "unmanaged",
            json!({ "metadata": { "labels": Value::Null } }),
        ),
        service(
            "going",
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
        ),
        service(
            "refused",
            json!({ "spec": { "publishNotReadyAddresses": true } }),
        ),
        service(
            "unknown-adapter",
            json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "egde" } } }),
        ),
    ]);
    assert_eq!(expected(&mutator, &pod).await, ["Service/shop/web"]);
    let unmanaged = json!({ "metadata": { "name": "web-1", "labels": { "app": "web" } } });
    assert!(expected(&mutator, &unmanaged).await.is_empty());
}

#[tokio::test]
async fn expectations_of_a_new_pod_are_bounded_and_those_of_others_stay() {
    let services: Vec<_> = (0..40)
        .map(|n| service(&format!("web-{n}"), json!({})))
        .collect();
    let mutator = mutate_with(&services);
    let mut pod = labelled(json!({ "app": "web" }));
    assert_eq!(
        expected(&mutator, &pod).await.len(),
        MAX_EXPECTING_EMPLOYERS
    );
    let other = json!({ "expectedFinalizers": { "Other/shop/x": "example.com/x" } }).to_string();
    pod["metadata"]["annotations"] = json!({ (keys::AVAILABLE_CONDITIONS): other });
    let expected_now = expected(&mutator, &pod).await;
    assert_eq!(expected_now.len(), MAX_EXPECTING_EMPLOYERS + 1);
    assert!(expected_now.contains(&"Other/shop/x".to_owned()));
    // What can't be read is left to its writer.
    pod["metadata"]["annotations"] = json!({ (keys::AVAILABLE_CONDITIONS): "{" });
    let verdict = mutator
        .review(&review(&Value::Null, &pod), deadline_in_future())
        .await;
    let patch = json!(verdict.patch()).to_string();
    assert!(!patch.contains("available-conditions"), "{patch}");
}
