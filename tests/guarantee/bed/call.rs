//! Calls to the server that no API server makes.

use http::Request;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{Api, Client, Config};
use operating::admission::routes;
use serde_json::{Value, json};

use super::Bed;

impl Bed {
    /// The verdict on a review with this request, sent straight to the webhook of this route by the path that is stored. An
    /// error where the answer is none.
    pub async fn forge(&self, route: &str, request: Value) -> kube::Result<Value> {
        let paths = self.paths().await;
        let path = paths.iter().find(|path| path.ends_with(route)).unwrap();
        self.forge_at(path, request).await
    }

    /// As [`Bed::forge`], by this very path.
    pub async fn forge_at(&self, path: &str, request: Value) -> kube::Result<Value> {
        self.send(path, review(&request)).await
    }

    /// As [`Bed::forge_at`], with the body of a [`review`].
    pub async fn send(&self, path: &str, body: Vec<u8>) -> kube::Result<Value> {
        let mut config = Config::new(self.setup.url.parse().unwrap());
        config.accept_invalid_certs = true;
        let request = Request::post(path).header("Content-Type", "application/json");
        let request = request.body(body).unwrap();
        let answer: Value = Client::try_from(config)?.request(request).await?;
        Ok(answer["response"].clone())
    }

    /// The paths of the webhooks as they are stored.
    pub async fn paths(&self) -> Vec<String> {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.admin());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.admin());
        let stored = [
            json!(mutating.get(routes::MUTATING).await.unwrap()),
            json!(validating.get(routes::VALIDATING).await.unwrap()),
        ];
        let entries = stored
            .iter()
            .flat_map(|all| all["webhooks"].as_array().unwrap());
        let urls = entries.map(|entry| entry["clientConfig"]["url"].as_str().unwrap());
        urls.map(|url| url.strip_prefix(&self.setup.url).unwrap().to_owned())
            .collect()
    }
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
