//! A client that is answered from files: the few reads that admission makes of Pods and rules. Whatever else it asks is
//! noted, since a verdict that rests on it would not be the server's.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::files::Objects;
use crate::cluster::kind::Kind;

/// Requests that were not answered.
#[derive(Clone, Debug, Default)]
pub struct Unanswered(Arc<Mutex<Vec<String>>>);

impl Unanswered {
    /// The first of them.
    pub fn first(&self) -> Option<String> {
        self.0.lock().first().cloned()
    }
}

/// A client that knows the objects of the files, and what it could not answer.
pub fn client(objects: &Objects) -> (Client, Unanswered) {
    let unanswered = Unanswered::default();
    let known = Arc::new(Known {
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
        let (code, answer) = known.answer(request.method(), request.uri().path());
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = code;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    (Client::new(service, objects.namespace.clone()), unanswered)
}

struct Known {
    pods: Vec<Value>,
    rules: Vec<Value>,
    workloads: Vec<(Kind, Value)>,
    unanswered: Unanswered,
}

impl Known {
    /// Whether a path is that of an owner of a watched kind.
    fn is_owner(namespace: &str, name: &str, path: &str) -> bool {
        Kind::OWNERS
            .iter()
            .any(|kind| kind.object_path(namespace, name).is_ok_and(|at| at == path))
    }

    fn answer(&self, method: &Method, path: &str) -> (http::StatusCode, Value) {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        match (method, &parts[..]) {
            (&Method::GET, ["api", "v1", "namespaces", namespace, "pods", name]) => {
                let mut pods = self.pods.iter();
                let pod = pods.find(|pod| is(pod, namespace) && pod["metadata"]["name"] == *name);
                pod.map_or_else(missing, |pod| (http::StatusCode::OK, pod.clone()))
            }
            // The asker picks those that its selector matches.
            (&Method::GET, ["api", "v1", "namespaces", namespace, "pods"]) => {
                let pods = self.pods.iter().filter(|pod| is(pod, namespace));
                (http::StatusCode::OK, list(pods.collect()))
            }
            (&Method::GET, ["apis", _, _, "namespaces", namespace, "podtransitionrules"]) => {
                let items: Vec<_> = self
                    .rules
                    .iter()
                    .filter(|rule| is(rule, namespace))
                    .collect();
                (http::StatusCode::OK, list(items))
            }
            // Nor is any owner looked up of a kind that is not watched.
            (&Method::GET, ["apis" | "api"]) => (http::StatusCode::OK, no_kinds()),
            // The server would ask for the scale of an owner of such a kind. Of the files only Pods count.
            (&Method::GET, ["apis", _, _] | ["api", _]) => missing(),
            (&Method::GET, [.., "namespaces", namespace, _, name])
                if Self::is_owner(namespace, name, path) =>
            {
                let found = self
                    .workloads
                    .iter()
                    .find(|(kind, value)| is_at(*kind, value, path));
                found.map_or_else(missing, |(_, value)| (http::StatusCode::OK, value.clone()))
            }
            // Whether a claim could be written says the cluster alone; the store takes this for no answer.
            (&Method::PATCH, [.., "podtransitionrules", _, "status"]) => refusal(
                http::StatusCode::BAD_REQUEST,
                "BadRequest",
                "offline, nothing is written",
            ),
            _ => {
                let asked = format!("{method} {path}");
                let why = format!("offline, {asked} is not answered");
                self.unanswered.0.lock().push(asked);
                refusal(
                    http::StatusCode::SERVICE_UNAVAILABLE,
                    "ServiceUnavailable",
                    &why,
                )
            }
        }
    }
}

fn is_at(kind: Kind, object: &Value, path: &str) -> bool {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    let at = kind.object_path(text("namespace"), text("name"));
    at.is_ok_and(|at| at == path)
}

fn missing() -> (http::StatusCode, Value) {
    let why = "the files do not hold it";
    refusal(http::StatusCode::NOT_FOUND, "NotFound", why)
}

fn no_kinds() -> Value {
    json!({ "apiVersion": "apidiscovery.k8s.io/v2", "kind": "APIGroupDiscoveryList", "metadata": {}, "items": [] })
}

fn list(items: Vec<&Value>) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": { "resourceVersion": "0" }, "items": items,
    })
}

fn is(object: &Value, namespace: &str) -> bool {
    object["metadata"]["namespace"] == namespace
}

fn refusal(code: http::StatusCode, reason: &str, message: &str) -> (http::StatusCode, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
    });
    (code, status)
}
