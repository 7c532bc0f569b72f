//! Admission reviews, as an API server sends them.
#![allow(clippy::unwrap_used)] // a test fails by a panic

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use serde_json::{Value, json};

/// A DELETE review of Pod `name`; its uid is `uid-<name>`.
pub fn deletion(name: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("uid-{name}"),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": name,
            "namespace": "shop",
            "operation": "DELETE",
            "userInfo": {"username": "ann"},
            "oldObject": {"metadata": {"name": name}, "spec": {"env": "s3cret"}},
            "dryRun": false,
        }
    })
}

/// A POST of a body to the webhook server.
pub fn call(path: &str, body: impl ToString) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::from(body.to_string()))
        .unwrap()
}

/// The body of a review with this request.
pub fn review(request: &Value) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request,
    });
    review.to_string().into_bytes()
}

/// The request of a review on a Pod: `operation` on `pods` or on a subresource of it.
pub fn about(pod: &impl serde::Serialize, operation: &str, subresource: Option<&str>) -> Value {
    let pod = json!(pod);
    let metadata = &pod["metadata"];
    let object = match subresource {
        None => Value::Null,
        Some(_) => json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "namespace": metadata["namespace"], "name": metadata["name"] },
        }),
    };
    json!({
        "uid": "forged", "operation": operation,
        "namespace": metadata["namespace"], "name": metadata["name"],
        "kind": { "group": "", "version": "v1", "kind": "Pod" },
        "resource": { "group": "", "version": "v1", "resource": "pods" },
        "subResource": subresource, "object": object,
        "oldObject": if subresource.is_none() { pod.clone() } else { Value::Null },
        "userInfo": { "username": "mallory" },
    })
}
