//! An API server that records its requests, and answers as a target chooses.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Response, StatusCode};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The answers of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Every object exists, and writes are stored.
    Willing,
    /// Every object exists. The answer to a write shows the change, but the change is not stored.
    Deaf,
    /// 403.
    Refusing,
    /// 404.
    Empty,
    /// 200, with a body that is no object.
    Garbled,
}

/// Method and URI of every request so far.
pub type Asked = Arc<Mutex<Vec<String>>>;

/// The stored objects.
pub struct Stored {
    /// A PodTransitionRule.
    pub rule: Value,
    /// Its namespace.
    pub namespace: Value,
    /// A Pod in this namespace.
    pub pod: Value,
}

/// A client of such a server.
pub fn client(mood: Mood, stored: Stored) -> (Client, Asked) {
    let asked = Asked::default();
    let requests = Arc::clone(&asked);
    let stored = Arc::new(Mutex::new(stored));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (stored, requests) = (Arc::clone(&stored), Arc::clone(&requests));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            requests
                .lock()
                .push(format!("{} {}{}", parts.method, parts.uri, options(&body)));
            let path = parts.uri.path();
            let answer = match mood {
                Mood::Refusing => Err(StatusCode::FORBIDDEN),
                Mood::Empty => Err(StatusCode::NOT_FOUND),
                Mood::Garbled => Ok(json!(["garbled"])),
                Mood::Willing => willing(path, &body, true, &mut stored.lock()),
                Mood::Deaf => willing(path, &body, false, &mut stored.lock()),
            };
            let (code, body) = match answer {
                Ok(body) => (StatusCode::OK, body),
                Err(code) => (
                    code,
                    json!({ "kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "no" }),
                ),
            };
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = code;
            Ok::<_, Infallible>(response)
        }
    });
    (Client::new(service, "default"), asked)
}

fn willing(path: &str, body: &[u8], keeps: bool, stored: &mut Stored) -> Result<Value, StatusCode> {
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let list = |kind: &str, items: Vec<Value>| json!({ "kind": kind, "apiVersion": "v1", "metadata": { "resourceVersion": "900" }, "items": items });
    match segments[..] {
        ["api", "v1", "namespaces", _, "pods"] if body.is_empty() => Ok(list("PodList", vec![])),
        [
            "api",
            "v1",
            "namespaces",
            _,
            "pods" | "persistentvolumeclaims",
        ] => serde_json::from_slice(body).map_err(|_| StatusCode::BAD_REQUEST),
        ["api", "v1", "namespaces", namespace, "pods", ..] => {
            // An object has the namespace of its path.
            let mut pod = stored.pod.clone();
            pod["metadata"]["namespace"] = (*namespace).into();
            Ok(pod)
        }
        ["api", "v1", "namespaces"] => Ok(list("NamespaceList", vec![stored.namespace.clone()])),
        ["api", "v1", "namespaces", _] => patched(&mut stored.namespace, body, keeps),
        ["api"] => Ok(groups(json!([]))),
        ["apis"] => {
            let set = json!({
                "resource": "replicasets", "responseKind": { "kind": "ReplicaSet" }, "scope": "Namespaced", "verbs": ["get"],
            });
            let versions = json!([{ "version": "v1", "resources": [set] }]);
            Ok(groups(
                json!([{ "metadata": { "name": "apps" }, "versions": versions }]),
            ))
        }
        [.., "podtransitionrules"] => Ok(list("PodTransitionRuleList", vec![stored.rule.clone()])),
        [.., "podtransitionrules", _] => Ok(stored.rule.clone()),
        [.., "podtransitionrules", _, "status"] => patched(&mut stored.rule, body, keeps),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

/// The discovery of these groups.
fn groups(items: Value) -> Value {
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
}

/// The object after the merge patch, if the request was a patch.
fn patched(object: &mut Value, body: &[u8], keeps: bool) -> Result<Value, StatusCode> {
    if keeps && !body.is_empty() {
        let patch: Value = serde_json::from_slice(body).map_err(|_| StatusCode::BAD_REQUEST)?;
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or("");
        let next = version.parse::<u64>().unwrap_or(0) + 1;
        json_patch::merge(object, &patch);
        object["metadata"]["resourceVersion"] = next.to_string().into();
    }
    Ok(object.clone())
}

/// Whether the server may send this request for a review about `namespace`.
pub fn is_allowed(asked: &str, namespace: &str) -> bool {
    let Some((method, uri)) = asked.split_once(' ') else {
        return false;
    };
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    if !path.starts_with('/') || !segments.iter().all(|segment| is_plain(segment)) {
        return false;
    }
    let dry = query.split('&').any(|part| part == "dryRun=All");
    match (method, &segments[..]) {
        ("GET", ["api", "v1", "namespaces"]) => query
            .split('&')
            .any(|part| part == format!("fieldSelector=metadata.name%3D{namespace}")),
        ("PATCH", ["api", "v1", "namespaces", own]) => own == &namespace,
        ("POST", ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"]) => true,
        // The discovery of the kinds of owners.
        ("GET", ["api"] | ["api", "v1"] | ["apis"] | ["apis", _, _]) => true,
        (_, ["api", "v1", "namespaces", own, rest @ ..])
        | (_, ["apis", _, _, "namespaces", own, rest @ ..]) => {
            own == &namespace
                && match (method, rest) {
                    ("GET", _) => true,
                    ("POST", ["pods" | "persistentvolumeclaims"]) => dry,
                    ("DELETE", ["pods", _]) | ("POST", ["pods", _, "eviction"]) => dry,
                    ("POST", ["events"]) => true,
                    ("PATCH", ["pods", _] | ["events", _]) => true,
                    ("PATCH", ["podtransitionrules", _, "status"]) => true,
                    _ => false,
                }
        }
        _ => false,
    }
}

/// The options in the body of a DELETE that its URI could carry as well.
fn options(body: &[u8]) -> &'static str {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let dry = body["dryRun"] == json!(["All"]);
    if dry { "&dryRun=All" } else { "" }
}

fn is_plain(segment: &str) -> bool {
    let upper = segment.to_ascii_uppercase();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~%:".contains(c);
    !matches!(segment, "" | "." | "..")
        && segment.chars().all(plain)
        && ["%2F", "%25", "%2E", "%5C", "%00"]
            .iter()
            .all(|bad| !upper.contains(bad))
}
