//! An API server for the tests of handlers that send dry runs.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::admission::AdmissionContext;
use crate::admission::review::Verdict;

/// An API server that gives the same answer to every dry run.
pub struct FakeApiServer {
    /// The state of the handlers that ask this server.
    pub context: Arc<AdmissionContext>,
    /// URI and body of each request that it received.
    pub requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl FakeApiServer {
    /// With `None`, the server never answers.
    pub fn with_answer(answer: Option<(u16, Value)>) -> FakeApiServer {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&requests);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (received, answer) = (Arc::clone(&received), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                assert_eq!(head.method, http::Method::POST);
                let body = body.collect().await.unwrap().to_bytes();
                received
                    .lock()
                    .push((head.uri.to_string(), serde_json::from_slice(&body).unwrap()));
                let Some((code, body)) = answer else {
                    return std::future::pending().await;
                };
                let response = Response::builder()
                    .status(code)
                    .header("warning", "299 - \"unknown field \\\"spec.newer\\\"\"");
                Ok::<_, Infallible>(
                    response
                        .body(Body::from(body.to_string().into_bytes()))
                        .unwrap(),
                )
            }
        });
        let context = AdmissionContext::at_epoch(Client::new(service, "default"));
        FakeApiServer {
            context: Arc::new(context),
            requests,
        }
    }

    pub fn accepting_all() -> FakeApiServer {
        FakeApiServer::with_answer(Some((201, json!({}))))
    }

    pub fn refusing(code: u16, message: &str, causes: Value) -> FakeApiServer {
        let details = json!({ "causes": causes });
        let status =
            json!({ "status": "Failure", "code": code, "message": message, "details": details });
        FakeApiServer::with_answer(Some((code, status)))
    }

    /// Number of requests that it received.
    pub fn request_count(&self) -> usize {
        self.requests.lock().len()
    }
}

/// The deadline of a review that starts now.
pub fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(9)
}

/// Code, reason and message of a denial.
pub fn denied(verdict: &Verdict) -> (u16, &str, &str) {
    (verdict.code(), verdict.reason(), verdict.message())
}
