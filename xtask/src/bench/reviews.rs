//! AdmissionReviews sent directly to the server over TLS, as the API server sends them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use testbed::server::{CONFIGURATIONS, Endpoints};

/// A connection to the server that trusts the CA of the webhook configuration.
#[derive(Clone)]
pub struct Caller(Client);

/// The verdict of the server.
#[derive(Debug)]
pub struct Verdict {
    /// Whether it allows.
    pub allowed: bool,
    /// Status code of a denial.
    pub code: u64,
    /// Time from the first byte sent to the last byte received.
    pub took: Duration,
}

impl Caller {
    /// A new caller; connections are not shared.
    pub async fn new(client: &Client, endpoints: &Endpoints) -> Result<Self> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let found = configurations.get(CONFIGURATIONS[1]).await?;
        let ca = found.webhooks.and_then(|w| w.into_iter().next());
        let ca = ca.and_then(|w| w.client_config.ca_bundle);
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "clusters": [{"name": "it", "cluster": {
                "server": endpoints.url,
                "certificate-authority-data": ca.context("a caBundle")?,
            }}],
            "users": [{"name": "it", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }))?;
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        config.default_retry = false;
        Ok(Self(Client::try_from(config)?))
    }

    /// Sends a review to a path.
    pub async fn ask(&self, path: &str, body: &[u8]) -> Result<Verdict> {
        let request = http::Request::post(format!("{path}?timeout=10s"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_vec())?;
        let sent = Instant::now();
        let answer = self.0.request_text(request).await?;
        let took = sent.elapsed();
        let answer: Value = serde_json::from_str(&answer)?;
        let response = &answer["response"];
        Ok(Verdict {
            allowed: response["allowed"].as_bool().context("a verdict")?,
            code: response["status"]["code"].as_u64().unwrap_or_default(),
            took,
        })
    }

    /// Sends `count` reviews, with `bodies` in rotation, and returns the sorted times. Every answer must be
    /// as expected.
    pub async fn ask_often(
        &self,
        path: &str,
        bodies: &[Vec<u8>],
        count: usize,
        expected: fn(&Verdict) -> bool,
    ) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(count);
        for body in bodies.iter().cycle().take(count) {
            let verdict = self.ask(path, body).await?;
            if !expected(&verdict) {
                bail!("the server answered otherwise than this figure needs: {verdict:?}");
            }
            times.push(verdict.took);
        }
        times.sort_unstable();
        Ok(times)
    }
}

/// A review about a Pod; `options` as for a plain DELETE.
pub fn review(operation: &str, object: Option<&Value>, old: &Value, dry_run: bool) -> Vec<u8> {
    let meta = &old["metadata"];
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-0000-0000-000000000001",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": meta["name"],
            "namespace": meta["namespace"],
            "operation": operation,
            "userInfo": {"username": "bench", "groups": ["system:authenticated"]},
            "object": object,
            "oldObject": old,
            "dryRun": dry_run,
            "options": null,
        },
    });
    review.to_string().into_bytes()
}

/// The value below which `percent` of the sorted times are, in microseconds.
pub fn percentile(sorted: &[Duration], percent: usize) -> u128 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .map_or(0, Duration::as_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let times: Vec<_> = (1..=101).map(Duration::from_micros).collect();
        assert_eq!((percentile(&times, 50), percentile(&times, 99)), (51, 100));
        assert_eq!(percentile(&[], 50), 0);
    }
}
