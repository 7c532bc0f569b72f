//! The part of an API server that certificates need, in memory: one Secret and two webhook configurations with
//! resourceVersions that are checked. It counts writes and can fail.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct State {
    /// Objects by path.
    pub objects: BTreeMap<String, Value>,
    pub version: u64,
    /// Method and path of each write that was accepted.
    pub writes: Vec<String>,
    /// Code of the next answers to writes.
    pub refuse_writes: Option<u16>,
    /// Whether patches are answered 500.
    pub refuse_patches: bool,
}

#[derive(Clone, Default)]
pub(super) struct FakeApi(pub Arc<Mutex<State>>);

pub(super) const SECRET: &str = "/api/v1/namespaces/kusionstack-system/secrets/webhook-certs";
pub(super) const MUTATING: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/m";
pub(super) const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/v";

impl FakeApi {
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                // Requests of replicas interleave at random; some wait until another replica has made many.
                for _ in 0..[0, 1, 3, 300][rand::random_range(0..4)] {
                    tokio::task::yield_now().await;
                }
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = if body.is_empty() {
                    Value::Null
                } else {
                    serde_json::from_slice(&body).unwrap()
                };
                let (code, answer) = api.answer(&head.method, head.uri.path(), body);
                let answer = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Both configurations with two entries each.
    pub fn configure(&self) {
        for (path, kind, name) in [
            (MUTATING, "MutatingWebhookConfiguration", "m"),
            (VALIDATING, "ValidatingWebhookConfiguration", "v"),
        ] {
            let entry = |name: &str| json!({"name": name, "timeoutSeconds": 7, "clientConfig": {"url": "https://localhost/"}});
            let object = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": {"name": name}, "webhooks": [entry("a.x.io"), entry("b.x.io")],
            });
            self.0.lock().put(path, object);
        }
    }

    pub fn get(&self, path: &str) -> Value {
        self.0.lock().objects.get(path).cloned().unwrap_or_default()
    }

    /// Every published bundle, PEM; empty where none is.
    pub fn bundles(&self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for path in [MUTATING, VALIDATING] {
            for entry in self.get(path)["webhooks"].as_array().into_iter().flatten() {
                let bundle = entry["clientConfig"]["caBundle"].clone();
                let bundle: Option<k8s_openapi::ByteString> =
                    serde_json::from_value(bundle).unwrap();
                found.push(bundle.unwrap_or_default().0);
            }
        }
        found
    }

    fn answer(&self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let mut state = self.0.lock();
        if let (Some(code), false) = (state.refuse_writes, method == Method::GET) {
            return status(code, "as asked");
        }
        if state.refuse_patches && method == Method::PATCH {
            return status(500, "as asked");
        }
        let result = match *method {
            Method::GET => state.objects.get(path).cloned().ok_or(404),
            Method::POST => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                if state.objects.contains_key(&path) {
                    Err(409)
                } else {
                    Ok(state.put(&path, body))
                }
            }
            Method::PUT => state.checked(path, &body).map(|_| state.put(path, body)),
            Method::PATCH => state.checked(path, &body).map(|mut object| {
                for change in body["webhooks"].as_array().unwrap() {
                    let entries = object["webhooks"].as_array_mut().unwrap();
                    let entry = entries
                        .iter_mut()
                        .find(|entry| entry["name"] == change["name"])
                        .unwrap();
                    json_patch::merge(entry, change);
                }
                state.put(path, object)
            }),
            _ => Err(405),
        };
        match result {
            Ok(object) => {
                if method != Method::GET {
                    state.writes.push(format!("{method} {path}"));
                }
                (200, object)
            }
            Err(code) => status(code, "no"),
        }
    }
}

impl State {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn checked(&self, path: &str, body: &Value) -> Result<Value, u16> {
        let object = self.objects.get(path).ok_or(404_u16)?;
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(body).is_null() || version(object) == version(body) {
            Ok(object.clone())
        } else {
            Err(409)
        }
    }
}

fn status(code: u16, message: &str) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                  "code": code, "reason": reason, "message": message}),
    )
}
