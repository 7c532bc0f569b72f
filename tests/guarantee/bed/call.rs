//! Calls to the server that no API server makes.

use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::Bed;

impl Bed {
    /// The verdict on a review with this request, sent straight to the webhooks. An error where the answer is none.
    pub async fn forge(&self, route: &str, request: Value) -> kube::Result<Value> {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request,
        });
        let mut config = Config::new(self.setup.url.parse().unwrap());
        config.accept_invalid_certs = true;
        let request = Request::post(route).header("Content-Type", "application/json");
        let request = request.body(review.to_string().into_bytes()).unwrap();
        let answer: Value = Client::try_from(config)?.request(request).await?;
        Ok(answer["response"].clone())
    }
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
