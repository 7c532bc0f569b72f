//! The part of an API server that certificates need: one Secret and two webhook configurations.

use parking_lot::MutexGuard;
use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal, State};

pub(super) const SECRET: &str = "/api/v1/namespaces/kusionstack-system/secrets/webhook-certs";
pub(super) const MUTATING: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/m";
pub(super) const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/v";

#[derive(Clone)]
pub(super) struct Cluster(FakeApi);

impl Cluster {
    /// An empty cluster. Requests of replicas interleave at random. Some requests wait while another replica sends
    /// many.
    pub fn new() -> Cluster {
        let fake = FakeApi::default();
        fake.0.lock().pace = Some(|| [0, 1, 3, 300][rand::random_range(0..4)]);
        Cluster(fake)
    }

    pub fn client(&self) -> kube::Client {
        self.0.client()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock()
    }

    /// Answers with this code to requests that begin with this text: `P` for all writes, `PATCH` for patches.
    pub fn refuse(&self, of: &'static str, code: u16) {
        self.0.refuse(Some(Refusal {
            of,
            code,
            message: "as asked",
            done: false,
        }));
    }

    /// Stops refusing requests.
    pub fn relent(&self) {
        self.0.refuse(None);
    }

    /// Creates both configurations with two entries each.
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
            self.0.put(path, object);
        }
    }

    pub fn get(&self, path: &str) -> Value {
        self.lock().objects.get(path).cloned().unwrap_or_default()
    }

    /// Every published bundle as PEM; empty for an entry without a bundle.
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
}
