//! Calls to the server that no API server makes.

use http::Request;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use super::Bed;
use crate::review::review;
use crate::server::CONFIGURATIONS;

impl Bed {
    /// The verdict on a review with this request, sent directly to the stored path of this route's webhook.
    /// An error if the answer has no verdict.
    pub async fn forge(&self, route: &str, request: Value) -> kube::Result<Value> {
        let paths = self.paths().await;
        let path = paths.iter().find(|path| path.ends_with(route)).unwrap();
        self.forge_at(path, request).await
    }

    /// As [`Bed::forge`], to this path.
    pub async fn forge_at(&self, path: &str, request: Value) -> kube::Result<Value> {
        self.send(path, review(&request)).await
    }

    /// As [`Bed::forge_at`], with the body of a [`review`].
    pub async fn send(&self, path: &str, body: Vec<u8>) -> kube::Result<Value> {
        let mut config = Config::new(self.url().parse().unwrap());
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
            json!(mutating.get(CONFIGURATIONS[0]).await.unwrap()),
            json!(validating.get(CONFIGURATIONS[1]).await.unwrap()),
        ];
        let entries = stored
            .iter()
            .flat_map(|all| all["webhooks"].as_array().unwrap());
        let urls = entries.map(|entry| entry["clientConfig"]["url"].as_str().unwrap());
        urls.map(|url| url.strip_prefix(self.url()).unwrap().to_owned())
            .collect()
    }
}
