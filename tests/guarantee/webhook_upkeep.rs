//! The leader keeps the webhook configurations as its version needs them, whoever has changed them.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use operating::admission::routes::VALIDATING_CONFIGURATION;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::fleet::REPLICAS;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

const DELETE: &str = "pod-delete.apps.kusionstack.io";

struct Configuration(Api<ValidatingWebhookConfiguration>);

impl Configuration {
    fn of(bed: &Bed) -> Configuration {
        Configuration(Api::all(bed.admin()))
    }

    async fn get(&self) -> ValidatingWebhookConfiguration {
        self.0.get(VALIDATING_CONFIGURATION).await.unwrap()
    }

    /// The webhooks in JSON.
    async fn hooks(&self) -> Vec<Value> {
        let hooks = json!(self.get().await.webhooks);
        hooks.as_array().unwrap().clone()
    }

    async fn change(&self, change: Value) {
        let params = PatchParams::default();
        let patch = Patch::Strategic(change);
        self.0
            .patch(VALIDATING_CONFIGURATION, &params, &patch)
            .await
            .unwrap();
    }
}

async fn until_not_registered(scope: &Scope) {
    scope
        .until_status("web", "not to be registered", |status: &RuleStatus| {
            let mut conditions = status.conditions.iter();
            conditions.any(|c| c.type_ == "Enforced" && c.reason == "NotRegistered")
        })
        .await;
}

fn corrections(bed: &Bed) -> usize {
    let logs = (0..REPLICAS).map(|index| bed.log_of(index));
    logs.map(|log| log.matches("corrected a webhook configuration").count())
        .sum()
}

#[tokio::test]
async fn changed_webhooks_are_corrected_and_right_ones_are_not_written() {
    let bed = Bed::own().await;
    let scope = bed.scope("upkeep").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    let configuration = Configuration::of(&bed);
    let right = configuration.hooks().await;
    assert_eq!(corrections(&bed), 0, "an installation is right already");

    let foreign = json!({
        "name": "validating-pod.apps.kusionstack.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": { "url": "https://127.0.0.1:1/" }, "failurePolicy": "Fail",
        "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"] }],
    });
    configuration
        .change(json!({ "webhooks": [
            foreign,
            { "name": DELETE, "failurePolicy": "Ignore", "matchConditions": [{ "name": "never", "expression": "false" }] },
            { "name": "collaset.validate.apps.kusionstack.io", "$patch": "delete" },
        ] }))
        .await;
    wait::until("the webhooks to be corrected", async || {
        let mut now = configuration.hooks().await;
        let mut right = right.clone();
        let by_name = |hook: &Value| hook["name"].to_string();
        now.sort_by_key(by_name);
        right.sort_by_key(by_name);
        now == right
    })
    .await;
    let stored = configuration.get().await;
    let managers = stored.managed_fields().iter();
    let managers: Vec<_> = managers.filter_map(|m| m.manager.clone()).collect();
    assert!(
        !managers.contains(&"operating-webhooks".to_owned()),
        "{managers:?}"
    );
    wait::until("the rule to hold", async || {
        let refused = scope.delete(&pods[0]).await;
        refused.is_err_and(|e| e.to_string().contains("PodTransitionRule web"))
    })
    .await;
}

#[tokio::test]
async fn newer_and_deleted_configurations_stay_as_they_are() {
    let bed = Bed::own().await;
    let scope = bed.scope("upkeep").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    refusal(scope.delete(&pods[0]).await);
    let configuration = Configuration::of(&bed);
    configuration
        .change(json!({
            "metadata": { "annotations": { keys::WEBHOOK_REVISION: "999" } },
            "webhooks": [{ "name": DELETE, "failurePolicy": "Ignore" }],
        }))
        .await;
    until_not_registered(&scope).await;
    let hooks = configuration.hooks().await;
    let delete = hooks.iter().find(|hook| hook["name"] == DELETE).unwrap();
    assert_eq!(delete["failurePolicy"], "Ignore");

    let params = DeleteParams::default();
    let deleted = configuration.0.delete(VALIDATING_CONFIGURATION, &params);
    deleted.await.unwrap();
    // The leader looks again when it starts.
    let leader = bed.leader().await;
    bed.restart(leader).await;
    bed.leader().await;
    until_not_registered(&scope).await;
    let now = configuration.0.get_opt(VALIDATING_CONFIGURATION).await;
    assert!(now.unwrap().is_none());
    assert_eq!(corrections(&bed), 0);
}
