//! A fake API server for unit tests. It keeps objects in memory, checks resource versions, and records requests. It can
//! refuse a request before or after it carries out the request. It knows no kinds: an object is JSON at a path.
#![allow(clippy::unwrap_used)] // a test fails by a panic

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The answer that a request gets instead of its result.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The beginning of method and path, such as `POST /api/v1/namespaces/n/pods`. `P` selects every POST, PUT and
    /// PATCH, and an empty text every request.
    pub of: &'static str,
    /// Status code of the answer.
    pub code: u16,
    /// Message of the answer.
    pub message: &'static str,
    /// Whether the server carries out the request nevertheless.
    pub done: bool,
}

/// The objects of the fake, and its behaviour.
#[derive(Debug, Default)]
pub struct State {
    /// Objects by path.
    pub objects: BTreeMap<String, Value>,
    /// The last resource version.
    pub version: u64,
    /// Method and path of each request, and its body.
    pub requests: Vec<(String, Value)>,
    /// Method and path of each write that was accepted.
    pub writes: Vec<String>,
    /// Which requests are refused.
    pub refusal: Option<Refusal>,
    /// The change that a webhook makes to each written object.
    pub mutation: Option<fn(&mut Value)>,
    /// Duration of a dry run.
    pub trial: Duration,
    /// Duration of a list of Pods.
    pub reading: Duration,
    /// How long a write takes. Writes of Events take no time.
    pub writing: Duration,
    /// How often a request yields to other tasks. Without this function, it yields once.
    pub pace: Option<fn() -> usize>,
    /// Whether the fake never answers new requests.
    pub is_hanging: bool,
}

/// The fake. A clone is the same server.
#[derive(Clone, Debug, Default)]
pub struct FakeApi(pub Arc<Mutex<State>>);

impl FakeApi {
    /// A client of the fake.
    #[must_use]
    pub fn client(&self) -> Client {
        let state = Arc::clone(&self.0);
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = Arc::clone(&state);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let (pace, is_hanging) = {
                    let state = state.lock();
                    (state.pace, state.is_hanging)
                };
                if is_hanging {
                    std::future::pending::<()>().await;
                }
                for _ in 0..pace.map_or(1, |pace| pace()) {
                    tokio::task::yield_now().await;
                }
                let is_dry = head.uri.query().is_some_and(|q| q.contains("dryRun"))
                    || body["dryRun"].is_array();
                if is_dry {
                    let trial = state.lock().trial;
                    tokio::time::sleep(trial).await;
                }
                if head.method == Method::GET && head.uri.path().ends_with("/pods") {
                    let reading = state.lock().reading;
                    tokio::time::sleep(reading).await;
                }
                let writes = head.method != Method::GET && !is_dry;
                if writes && !head.uri.path().ends_with("/events") {
                    let writing = state.lock().writing;
                    tokio::time::sleep(writing).await;
                }
                let (code, answer) = {
                    let mut state = state.lock();
                    let before = is_dry.then(|| state.objects.clone());
                    let answered = state.answer(&head.method, head.uri.path(), body);
                    if let Some(before) = before {
                        state.objects = before;
                    }
                    answered
                };
                let answer = Body::from(answer.to_string().into_bytes());
                let answer = Response::builder().status(code).body(answer);
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Method and path of each request so far, without those for Events.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let state = self.0.lock();
        let requests = state.requests.iter().map(|(request, _)| request.clone());
        requests.filter(|r| !r.ends_with("/events")).collect()
    }

    /// The bodies sent with a request.
    #[must_use]
    pub fn bodies(&self, request: &str) -> Vec<Value> {
        let state = self.0.lock();
        let bodies = state.requests.iter().filter(|(r, _)| r == request);
        bodies.map(|(_, body)| body.clone()).collect()
    }

    /// Sets which requests are refused from now on.
    pub fn refuse(&self, refusal: Option<Refusal>) {
        self.0.lock().refusal = refusal;
    }

    /// Stores an object without a request.
    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().put(path, object);
    }

    /// As [`FakeApi::put`], but the object keeps its own UID and resource version.
    pub fn put_unchanged(&self, path: &str, object: Value) {
        self.0.lock().objects.insert(path.to_owned(), object);
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let request = format!("{method} {path}");
        self.requests.push((request.clone(), body.clone()));
        let refusal = self.refusal.clone();
        let refusal = refusal.filter(|r| request.starts_with(r.of));
        if let Some(refusal) = refusal.as_ref().filter(|r| !r.done) {
            return refusal.answer();
        }
        let answer = match *method {
            Method::POST => self.create(path, body),
            Method::GET => match self.objects.get(path) {
                Some(object) => (200, object.clone()),
                None if ["/pods", "/persistentvolumeclaims"]
                    .iter()
                    .any(|all| path.ends_with(all)) =>
                {
                    (200, self.list(path))
                }
                None => failure(404, "NotFound", "there is none"),
            },
            Method::DELETE => match self.objects.remove(path) {
                Some(mut object) => {
                    self.version += 1;
                    object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                    (200, object)
                }
                None => failure(404, "NotFound", "there is none"),
            },
            Method::PUT => self.replace(path, body),
            _ => self.patch(path, body),
        };
        if answer.0 < 300 && *method != Method::GET {
            self.writes.push(request);
        }
        match refusal {
            Some(refusal) => refusal.answer(),
            None => answer,
        }
    }

    fn list(&self, path: &str) -> Value {
        let prefix = format!("{path}/");
        let items: Vec<_> = self
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix))
            .map(|(_, object)| object)
            .collect();
        let version = self.version.to_string();
        json!({ "metadata": { "resourceVersion": version }, "items": items })
    }

    fn create(&mut self, path: &str, object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{path}/{name}");
        if self.objects.contains_key(&path) {
            return failure(409, "AlreadyExists", "there is one");
        }
        (201, self.put(&path, object))
    }

    fn replace(&mut self, path: &str, object: Value) -> (u16, Value) {
        match self.checked(path, &object) {
            Ok(_) => (200, self.put(path, object)),
            Err(failure) => failure,
        }
    }

    fn patch(&mut self, path: &str, mut patch: Value) -> (u16, Value) {
        let path = SUBRESOURCES
            .iter()
            .fold(path, |path, name| path.trim_end_matches(name));
        let mut object = match self.checked(path, &patch) {
            Ok(object) => object,
            Err(failure) => return failure,
        };
        merge_webhooks(&mut object, &mut patch);
        json_patch::merge(&mut object, &patch);
        if let Some(mutate) = self.mutation {
            mutate(&mut object);
        }
        // The API server does not write an update that changes nothing (`etcd3/store.go`).
        if self.objects.get(path) == Some(&object) {
            return (200, object);
        }
        (200, self.put(path, object))
    }

    /// The stored object at the path of a write, unless the write names another version of the object.
    fn checked(&self, path: &str, written: &Value) -> Result<Value, (u16, Value)> {
        let Some(object) = self.objects.get(path) else {
            return Err(failure(404, "NotFound", "there is none"));
        };
        let known = &object["metadata"]["resourceVersion"];
        let expected_version = &written["metadata"]["resourceVersion"];
        if !expected_version.is_null() && expected_version != known {
            return Err(failure(409, "Conflict", "the object has been modified"));
        }
        Ok(object.clone())
    }

    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        if let Some(mutate) = self.mutation {
            mutate(&mut object);
        }
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}

/// Subresources whose patches go to the object itself.
const SUBRESOURCES: [&str; 2] = ["/status", "/resize"];

/// Merges the entries of webhook configurations by their names, as a strategic merge patch does, and removes them from
/// the patch.
fn merge_webhooks(object: &mut Value, patch: &mut Value) {
    let entries = object.get_mut("webhooks").and_then(Value::as_array_mut);
    let changes = patch
        .as_object_mut()
        .map(|patch| patch.shift_remove("webhooks"));
    let (Some(entries), Some(Some(Value::Array(changes)))) = (entries, changes) else {
        return;
    };
    for change in changes {
        let mut named = entries.iter_mut();
        let entry = named.find(|entry| entry["name"] == change["name"]);
        json_patch::merge(entry.unwrap(), &change);
    }
}

impl Refusal {
    fn answer(&self) -> (u16, Value) {
        let reason = match self.code {
            409 => "Conflict",
            _ => "Refused",
        };
        failure(self.code, reason, self.message)
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": message, "code": code,
    });
    (code, status)
}
