#![allow(clippy::unwrap_used)]
use kube::Client;
use serde_json::{Value, json};

use super::*;
use crate::api::keys;
use crate::cluster::index::NamespaceFacts;

/// The fallback verdict on the deletion of a Pod with this status, if the caches have its namespace as terminating
/// and no rule.
fn fallback(control: &str, status: Value) -> Verdict {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let context = AdmissionContext::at_epoch(Client::new(service, "default"));
    context.index.mark_all_listed();
    context.index.apply_namespace(NamespaceFacts {
        name: "shop".to_owned(),
        terminating_since: NamespaceFacts::parse_deletion_time(Some("2026-01-01T00:00:10Z")),
        ..NamespaceFacts::default()
    });
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "DELETE", "namespace": "shop", "name": "web-1",
        "kind": { "group": "", "version": "v1", "kind": "Pod" },
        "resource": { "group": "", "version": "v1", "resource": "pods" },
        "userInfo": { "username": "ann" },
        "oldObject": {
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "p", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { (keys::CONTROL): control },
            },
            "spec": { "containers": [{ "name": "app", "image": "a:1" }] },
            "status": status,
        },
    } });
    let request = Request::parse(review.to_string().as_bytes()).unwrap();
    PodValidator(Arc::new(context)).fallback(&request, "nobody can look")
}

#[tokio::test]
async fn fallback_admits_deletion_by_review_alone() {
    let ready =
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
    for (control, status, code) in [
        (keys::CONTROL_VALUE, ready.clone(), 429),
        (keys::CONTROL_VALUE, json!({ "phase": "Running" }), 429), // a rule may hold it all the same
        (keys::CONTROL_VALUE, json!({ "phase": "Failed" }), 200),
        ("other", ready, 200),
    ] {
        let verdict = fallback(control, status.clone());
        assert_eq!(verdict.is_allowed(), code == 200, "{control} {status}");
        let message = verdict.message();
        assert!(
            verdict.is_allowed() || message.contains("nobody can look"),
            "{message}"
        );
    }
}

/// The fallback verdict on an UPDATE of a Pod. `change` is applied to the stored Pod.
fn update_fallback(old: &Value, change: impl FnOnce(&mut Value)) -> Verdict {
    let context = AdmissionContext::at_epoch(Client::new(
        tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        }),
        "default",
    ));
    context.index.mark_all_listed();
    let mut new = old.clone();
    change(&mut new);
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web-1",
        "kind": { "group": "", "version": "v1", "kind": "Pod" },
        "resource": { "group": "", "version": "v1", "resource": "pods" },
        "userInfo": { "username": "ann" }, "oldObject": old, "object": new,
    } });
    let request = Request::parse(review.to_string().as_bytes()).unwrap();
    PodValidator(Arc::new(context)).fallback(&request, "nobody can look")
}

fn stored(labels: Value) -> Value {
    json!({
        "metadata": {
            "name": "web-1", "namespace": "shop", "uid": "p", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels,
        },
        "spec": { "containers": [{ "name": "app", "image": "a:1" }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] },
    })
}

#[tokio::test]
async fn fallback_keeps_unavailable_pod_under_rule_during_operation() {
    let leave_rule = |pod: &mut Value| pod["metadata"]["labels"][keys::CONTROL] = json!("other");
    let key = Family::Operating.key("x");
    let operated = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE, (key): "1" }));
    assert!(!update_fallback(&operated, leave_rule).is_allowed());
    let down = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE }));
    assert!(
        update_fallback(&down, leave_rule).is_allowed(),
        "nobody is served by it"
    );
}

#[tokio::test]
async fn fallback_denies_rule_entry_with_outstanding_change() {
    let enter =
        |pod: &mut Value| pod["metadata"]["labels"][keys::CONTROL] = json!(keys::CONTROL_VALUE);
    let mut changed = stored(json!({}));
    assert!(
        !update_fallback(&changed, enter).is_allowed(),
        "its spec has changed"
    );
    let relabel = |pod: &mut Value| pod["metadata"]["labels"]["app"] = json!("web");
    assert!(
        update_fallback(&changed, relabel).is_allowed(),
        "not managed at all"
    );
    changed["metadata"]["labels"] = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
    assert!(
        !update_fallback(&changed, relabel).is_allowed(),
        "its spec has changed"
    );
    changed["metadata"]["generation"] = json!(1);
    assert!(update_fallback(&changed, relabel).is_allowed());
}

#[tokio::test]
async fn fallback_denies_restarts_ends_and_forged_lifecycle() {
    let down = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE }));
    let image = |pod: &mut Value| pod["spec"]["containers"][0]["image"] = json!("a:2");
    assert!(!update_fallback(&down, image).is_allowed());
    let deadline = |pod: &mut Value| pod["spec"]["activeDeadlineSeconds"] = json!(9);
    assert!(!update_fallback(&down, deadline).is_allowed());
    let owned = |pod: &mut Value| {
        pod["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Thing", "name": "a", "uid": "a" }]);
    };
    assert!(!update_fallback(&down, owned).is_allowed());
    let forge = |pod: &mut Value| pod["metadata"]["labels"][Family::Operate.key("x")] = json!("1");
    assert!(!update_fallback(&down, forge).is_allowed());
    let note = |pod: &mut Value| pod["metadata"]["annotations"] = json!({ "a": "b" });
    assert!(update_fallback(&down, note).is_allowed());
}
