//! Deletions that another webhook, a policy or a disruption budget denies.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::api::PostParams;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::{bed, is_marked, is_terminating, protected};

async fn create<K>(bed: &Bed, object: Value) -> Api<K>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(bed.admin());
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
    api
}

fn deletions(scope: &Scope) -> Value {
    let names = json!({ "matchLabels": { "kubernetes.io/metadata.name": scope.namespace } });
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"] }]);
    json!({ "namespaceSelector": names, "resourceRules": rules })
}

/// Asserts that no lifecycle has begun: no label, and no deletion.
async fn assert_untouched(scope: &Scope) {
    let pod = scope.get("web").await;
    assert!(!is_marked(&pod) && !is_terminating(&pod), "{}", json!(pod));
}

#[tokio::test]
async fn eviction_of_a_pod_that_a_policy_keeps_begins_nothing() {
    let bed = bed().await;
    let scope = protected(bed, false).await;
    let name = format!("keep-{}", scope.namespace);
    let policy = json!({
        "metadata": { "name": name },
        "spec": {
            "matchConstraints": deletions(&scope),
            "validations": [{ "expression": "false", "message": "this Pod is kept" }],
        },
    });
    create::<ValidatingAdmissionPolicy>(bed, policy).await;
    let binding = json!({
        "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    create::<ValidatingAdmissionPolicyBinding>(bed, binding).await;
    // Policies take effect a moment after they are stored.
    let dry = kube::api::DeleteParams {
        dry_run: true,
        ..Default::default()
    };
    wait::until("the policy to take effect", async || {
        let refused = scope.pods().delete("web", &dry).await.unwrap_err();
        refused.to_string().contains("kept")
    })
    .await;
    let refused = refusal(scope.evict("web").await);
    assert!(refused.message.contains("this Pod is kept"), "{refused:?}");
    assert_untouched(&scope).await;
}

#[tokio::test]
async fn eviction_that_a_policy_on_evictions_refuses_begins_nothing() {
    let bed = bed().await;
    let scope = protected(bed, false).await;
    let name = format!("evict-{}", scope.namespace);
    let mut constraints = deletions(&scope);
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"] }]);
    constraints["resourceRules"] = rules;
    let policy = json!({
        "metadata": { "name": name },
        "spec": {
            "matchConstraints": constraints,
            "validations": [{ "expression": "false", "message": "nobody evicts here" }],
        },
    });
    create::<ValidatingAdmissionPolicy>(bed, policy).await;
    let binding = json!({
        "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    create::<ValidatingAdmissionPolicyBinding>(bed, binding).await;
    // A Pod that is not managed: only the policy refuses this request.
    let other = json!({
        "metadata": { "name": "other", "namespace": scope.namespace },
        "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
    });
    let other = serde_json::from_value(other).unwrap();
    scope
        .pods()
        .create(&PostParams::default(), &other)
        .await
        .unwrap();
    wait::until("the policy to take effect", async || {
        let dry = kube::api::EvictParams {
            post_options: PostParams {
                dry_run: true,
                ..Default::default()
            },
            ..Default::default()
        };
        scope.pods().evict("other", &dry).await.is_err()
    })
    .await;
    let refused = refusal(scope.evict("web").await);
    assert!(
        refused.message.contains("nobody evicts here"),
        "{refused:?}"
    );
    assert_untouched(&scope).await;
}

#[tokio::test]
async fn deletion_that_another_webhook_denies_begins_nothing() {
    let bed = bed().await;
    let scope = protected(bed, false).await;
    let name = format!("deny-{}", scope.namespace);
    let constraints = deletions(&scope);
    let configuration = json!({
        "metadata": { "name": name },
        "webhooks": [{
            "name": "deny.operating.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 1,
            "namespaceSelector": constraints["namespaceSelector"], "rules": constraints["resourceRules"],
            // No server listens at this address.
            "clientConfig": { "url": "https://127.0.0.1:1/deny" },
        }],
    });
    create::<ValidatingWebhookConfiguration>(bed, configuration).await;
    let dry = kube::api::DeleteParams {
        dry_run: true,
        ..Default::default()
    };
    wait::until("the webhook to be asked", async || {
        let refused = scope.pods().delete("web", &dry).await.unwrap_err();
        refused.to_string().contains("deny.operating.test")
    })
    .await;
    for _ in 0..5 {
        refusal_or_failure(scope.delete("web").await);
        assert_untouched(&scope).await;
    }
}

/// The message comes from the webhook that answers the API server first.
fn refusal_or_failure(outcome: kube::Result<()>) {
    let refused = outcome.unwrap_err().to_string();
    let known = ["deny.operating.test", "can't be deleted"];
    assert!(known.iter().any(|part| refused.contains(part)), "{refused}");
}
