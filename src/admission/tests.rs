//! Reviews that only an attacker sends: whatever they contain, each request of the server stays in the namespace and
//! the resources of the handler.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::review::Request;
use super::{AdmissionContext, handlers};

/// Requests that the handlers send for a valid review of `shop/web`.
const GOOD: [&str; 6] = [
    "POST /api/v1/namespaces/shop/pods",
    "GET /api/v1/namespaces/shop/pods",
    "GET /api/v1/namespaces/shop/pods/web",
    "PATCH /api/v1/namespaces/shop/pods/web",
    "PATCH /api/v1/namespaces/shop",
    "GET /apis/apps.kusionstack.io/v1alpha1/namespaces/shop/podtransitionrules",
];

/// The list request for the one namespace of a valid review.
const GOOD_LIST: &str = "GET /api/v1/namespaces?&fieldSelector=metadata.name%3Dshop";

/// An API server that records method and URI of every request, and has no objects.
fn recorder() -> (Arc<AdmissionContext>, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        received
            .lock()
            .push(format!("{} {}", request.method(), request.uri()));
        let status = json!({ "kind": "Status", "status": "Failure", "code": 403, "message": "no" });
        let mut response = Response::new(Body::from(status.to_string().into_bytes()));
        *response.status_mut() = StatusCode::FORBIDDEN;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let client = Client::new(service, "default");
    (Arc::new(AdmissionContext::at_epoch(client)), asked)
}

/// A review that makes its handler send requests.
fn review(route: &str, namespace: &str, name: &str) -> Value {
    let (operation, kind) = match route {
        r if r.contains("eviction") => ("CREATE", "Eviction"),
        r if r.contains("podtransitionrule") => ("CREATE", "PodTransitionRule"),
        r if r.contains("collaset") => ("CREATE", "CollaSet"),
        r if r.contains("resourcecontext") => ("CREATE", "ResourceContext"),
        r if r.contains("mutate") => ("UPDATE", "Pod"),
        _ => ("DELETE", "Pod"),
    };
    let object = json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": "u",
            "labels": { "kusionstack.io/control": "true", "collaset.kusionstack.io/instance-id": "0" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "o", "controller": true }],
        },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "a" } },
            "template": { "metadata": { "labels": { "app": "a" } }, "spec": { "containers": [] } },
            "rules": [{ "name": "r", "availablePolicy": { "maxUnavailableValue": 1 } }],
            "contexts": [],
        },
        "status": { "phase": "Pending" },
    });
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": operation, "namespace": namespace, "name": name,
            "kind": { "group": "", "version": "v1", "kind": kind },
            "resource": { "group": "", "version": "v1", "resource": "any" },
            "object": if operation == "DELETE" { Value::Null } else { object.clone() },
            "oldObject": if operation == "CREATE" { Value::Null } else { object },
        },
    })
}

fn hostile() -> Vec<String> {
    let mut all: Vec<String> = [
        "kube-system/pods?x=",
        "kube-system/pods/x#",
        "../../kube-system",
        "..",
        ".",
        "%2e%2e",
        "kube-system%2fpods%3fx=",
        "a?b",
        "a#b",
        "a\nb",
        "a b",
        "a\\b",
        "",
        "ümlaut",
        "\u{ff0f}",
        "\0",
    ]
    .map(str::to_owned)
    .to_vec();
    all.push("a".repeat(300));
    all
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(9)
}

fn raw(object: &Value) -> Option<Box<RawValue>> {
    let is = object.is_object();
    is.then(|| RawValue::from_string(object.to_string()).unwrap())
}

#[tokio::test]
async fn valid_reviews_send_only_listed_requests() {
    let (context, asked) = recorder();
    for (route, handler) in handlers(&context) {
        let request = Request::parse(review(route, "shop", "web").to_string().as_bytes());
        let _ = handler.review(&request.unwrap(), deadline()).await;
    }
    let asked = asked.lock();
    assert!(asked.len() >= 4, "{asked:?}");
    for asked in asked.iter() {
        assert!(is_good(asked), "{asked}");
    }
}

/// Such a review once created a Pod in another namespace.
#[tokio::test]
async fn hostile_reviews_are_refused_before_a_handler_sees_them() {
    for (route, _) in handlers(&recorder().0) {
        for text in hostile().iter().filter(|text| !text.is_empty()) {
            for (namespace, name) in [(&**text, "web"), ("shop", text)] {
                let review = review(route, namespace, name).to_string();
                let error = Request::parse(review.as_bytes()).unwrap_err();
                assert_eq!(error.uid.as_deref(), Some("u"), "{route} {text:?}");
            }
        }
    }
}

/// Handlers send no request to another path even if hostile names pass the parser.
#[tokio::test]
async fn hostile_names_past_the_parser_reach_no_other_path() {
    let (context, asked) = recorder();
    for (route, handler) in handlers(&context) {
        let good = review(route, "shop", "web").to_string();
        for text in hostile() {
            for (namespace, name) in [(&*text, "web"), ("shop", &*text), (&text, &text)] {
                let mut request = Request::parse(good.as_bytes()).unwrap();
                let review = review(route, namespace, name);
                request.namespace = namespace.to_owned();
                request.name = name.to_owned();
                request.object = raw(&review["request"]["object"]);
                request.old_object = raw(&review["request"]["oldObject"]);
                let _ = handler.review(&request, deadline()).await;
                for asked in asked.lock().drain(..) {
                    let stays = namespace == "shop" && (is_good(&asked) || is_below_pods(&asked));
                    assert!(stays, "{route} {namespace:?} {name:?}: {asked}");
                }
            }
        }
    }
}

fn is_good(asked: &str) -> bool {
    let path = asked.split_once('?').map_or(asked, |(path, _)| path);
    GOOD.contains(&path) || asked == GOOD_LIST
}

/// Whether the path is one encoded segment below the Pods of the namespace.
fn is_below_pods(asked: &str) -> bool {
    let name = asked.split_once(" /api/v1/namespaces/shop/pods/");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~%".contains(c);
    name.is_some_and(|(_, name)| {
        let name = name.trim_end_matches('?');
        name.chars().all(plain) && !name.contains("%2F") && !name.contains("%25")
    })
}
