//! A client whose requests are answered from files: the few reads of Pods and rules that admission makes. All other
//! requests are recorded, because a verdict that depends on them would differ from the server's.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::input_files::InputObjects;
use crate::cluster::kind::WatchedKind;

/// Requests that the files could not answer.
#[derive(Clone, Debug, Default)]
pub struct UnansweredRequests(Arc<Mutex<Vec<String>>>);

impl UnansweredRequests {
    /// The first of these requests.
    pub fn first_unanswered(&self) -> Option<String> {
        self.0.lock().first().cloned()
    }
}

/// A client that knows the objects of the files, and the requests that it could not answer.
pub fn fake_client(objects: &InputObjects) -> (Client, UnansweredRequests) {
    let unanswered = UnansweredRequests::default();
    let known = Arc::new(KnownObjects {
        pods: objects.pods.clone(),
        rules: objects
            .rules
            .iter()
            .filter_map(|rule| serde_json::to_value(rule).ok())
            .collect(),
        workloads: objects.workloads.clone(),
        unanswered: unanswered.clone(),
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, answer) = known.respond(request.method(), request.uri().path());
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = code;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    (Client::new(service, objects.namespace.clone()), unanswered)
}

struct KnownObjects {
    pods: Vec<Value>,
    rules: Vec<Value>,
    workloads: Vec<(WatchedKind, Value)>,
    unanswered: UnansweredRequests,
}

impl KnownObjects {
    /// Whether a path is the path of an owner of a watched kind.
    fn is_owner(namespace: &str, name: &str, path: &str) -> bool {
        WatchedKind::OWNER_KINDS
            .iter()
            .any(|kind| kind.object_path(namespace, name).is_ok_and(|at| at == path))
    }

    fn respond(&self, method: &Method, path: &str) -> (http::StatusCode, Value) {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        match (method, &parts[..]) {
            (&Method::GET, ["api", "v1", "namespaces", namespace, "pods", name]) => {
                let mut pods = self.pods.iter();
                let pod =
                    pods.find(|pod| is_named(pod, namespace) && pod["metadata"]["name"] == *name);
                pod.map_or_else(not_found_response, |pod| {
                    (http::StatusCode::OK, pod.clone())
                })
            }
            // The caller filters the Pods by its selector.
            (&Method::GET, ["api", "v1", "namespaces", namespace, "pods"]) => {
                let pods = self.pods.iter().filter(|pod| is_named(pod, namespace));
                (http::StatusCode::OK, list_response(pods.collect()))
            }
            (&Method::GET, ["apis", _, _, "namespaces", namespace, "podtransitionrules"]) => {
                let items: Vec<_> = self
                    .rules
                    .iter()
                    .filter(|rule| is_named(rule, namespace))
                    .collect();
                (http::StatusCode::OK, list_response(items))
            }
            // No owners of kinds that are not watched can be found.
            (&Method::GET, ["apis" | "api"]) => (http::StatusCode::OK, empty_discovery()),
            // The server would read the scale of such an owner. Here only the Pods in the files count.
            (&Method::GET, ["apis", _, _] | ["api", _]) => not_found_response(),
            (&Method::GET, [.., "namespaces", namespace, _, name])
                if Self::is_owner(namespace, name, path) =>
            {
                let found = self
                    .workloads
                    .iter()
                    .find(|(kind, value)| is_at(*kind, value, path));
                found.map_or_else(not_found_response, |(_, value)| {
                    (http::StatusCode::OK, value.clone())
                })
            }
            // Only a cluster can say whether a claim can be written. The store treats this answer as no answer.
            (&Method::PATCH, [.., "podtransitionrules", _, "status"]) => error_response(
                http::StatusCode::BAD_REQUEST,
                "BadRequest",
                "offline, nothing is written",
            ),
            _ => {
                let unanswered_request = format!("{method} {path}");
                let message = format!("offline, {unanswered_request} is not answered");
                self.unanswered.0.lock().push(unanswered_request);
                error_response(
                    http::StatusCode::SERVICE_UNAVAILABLE,
                    "ServiceUnavailable",
                    &message,
                )
            }
        }
    }
}

fn is_at(kind: WatchedKind, object: &Value, path: &str) -> bool {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    let at = kind.object_path(text("namespace"), text("name"));
    at.is_ok_and(|at| at == path)
}

fn not_found_response() -> (http::StatusCode, Value) {
    let message = "the files do not contain it";
    error_response(http::StatusCode::NOT_FOUND, "NotFound", message)
}

fn empty_discovery() -> Value {
    json!({ "apiVersion": "apidiscovery.k8s.io/v2", "kind": "APIGroupDiscoveryList", "metadata": {}, "items": [] })
}

fn list_response(items: Vec<&Value>) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": { "resourceVersion": "0" }, "items": items,
    })
}

fn is_named(object: &Value, namespace: &str) -> bool {
    object["metadata"]["namespace"] == namespace
}

fn error_response(
    code: http::StatusCode,
    reason: &str,
    message: &str,
) -> (http::StatusCode, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
    });
    (code, status)
}
