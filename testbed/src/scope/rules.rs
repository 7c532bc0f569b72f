//! PodTransitionRules. The bed has no type of its own for their status: a test names the type that it reads.

use kube::Api;
use kube::api::PostParams;
use kube::core::DynamicObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Scope;
use crate::pods::{is_available, is_managed};
use crate::{fleet, wait};

impl Scope {
    /// The rules of the namespace, untyped.
    pub fn rules(&self) -> Api<DynamicObject> {
        fleet::rules(self.client.clone(), &self.namespace)
    }

    /// A rule `<name>` with one availability rule `availability` over the Pods that carry `selector`.
    pub async fn rule(&self, name: &str, selector: Value, max_unavailable: Value) -> DynamicObject {
        let spec = availability(selector, max_unavailable);
        // The API server of a small machine refuses requests when many tests run in parallel.
        let made = wait::value("a rule", async || {
            match self.try_rule(name, spec.clone()).await {
                Err(kube::Error::Api(status)) if status.message.contains("Too many requests") => {
                    None
                }
                made => Some(made),
            }
        });
        made.await.unwrap()
    }

    /// A rule with any spec, even a spec that the server's types cannot express.
    pub async fn try_rule(&self, name: &str, spec: Value) -> kube::Result<DynamicObject> {
        let rule = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": {"name": name}, "spec": spec,
        });
        let rule = serde_json::from_value(rule).unwrap();
        self.rules().create(&PostParams::default(), &rule).await
    }

    /// The status of a rule; the default where there is none. Panics if the status does not fit the type.
    pub async fn status<S: DeserializeOwned + Default>(&self, rule: &str) -> S {
        let rule = self.rules().get(rule).await.unwrap();
        let status = rule.data.get("status").cloned();
        status.map_or_else(S::default, |status| serde_json::from_value(status).unwrap())
    }

    /// Number of claims in the ledger of a rule.
    pub async fn claims(&self, rule: &str) -> usize {
        claims(&self.status::<Value>(rule).await)
    }

    /// Waits until the status of a rule has the wanted state.
    pub async fn until_status<S: DeserializeOwned>(
        &self,
        rule: &str,
        description: &str,
        wanted: impl Fn(&S) -> bool,
    ) {
        let description = format!("{description} in the status of {rule}");
        wait::until(&description, async || {
            let rule = self.rules().get(rule).await.ok();
            rule.and_then(|rule| read_status(&rule))
                .is_some_and(|status| wanted(&status))
        })
        .await;
    }

    /// Waits until a rule counts `expected` Pods, all available, and has no claim. Checks the Pods
    /// themselves, too, because the figures of the status follow later.
    pub async fn until_at_rest(&self, rule: &str, expected: i32) {
        let description =
            format!("{expected} available Pods and no claims in the status of {rule}");
        wait::until(&description, async || {
            let Ok(rule) = self.rules().get(rule).await else {
                return false;
            };
            let labels = rule.data["spec"]["selector"]["matchLabels"].as_object();
            let labels = labels.into_iter().flatten();
            let labels: Vec<_> = labels
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap()))
                .collect();
            let pods = self.list(&labels.join(",")).await;
            let serving = pods.iter().filter(|p| is_managed(p) && is_available(p));
            let serving = i32::try_from(serving.count()).unwrap();
            let status = &rule.data["status"];
            let counts =
                ["expectedPods", "availablePods"].map(|count| status[count].as_i64().unwrap_or(0));
            !status.is_null()
                && counts == [i64::from(expected); 2]
                && claims(status) == 0
                && serving == expected
        })
        .await;
    }
}

/// The status of a rule, if there is one that `S` can hold.
fn read_status<S: DeserializeOwned>(rule: &DynamicObject) -> Option<S> {
    let status = rule.data.get("status")?;
    serde_json::from_value(status.clone()).ok()
}

/// The spec of a rule with one availability rule `availability` over the Pods that carry `selector`.
pub fn availability(selector: Value, max_unavailable: Value) -> Value {
    let rules = json!([{"name": "availability", "availablePolicy": {"maxUnavailableValue": max_unavailable}}]);
    json!({"selector": {"matchLabels": selector}, "rules": rules})
}

/// Number of claims in the ledger of a rule's status.
pub fn claims(status: &impl Serialize) -> usize {
    let status = json!(status);
    status["ledger"]["claims"].as_array().map_or(0, Vec::len)
}
