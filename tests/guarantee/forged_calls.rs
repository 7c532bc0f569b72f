//! Reviews that no API server sent: whoever reaches the webhooks can send them.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use operating::admission::routes;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::fleet::HOME;
use testbed::review::about;
use testbed::scope::claims;
use testbed::{Bed, Scope, wait};

/// The forged part of the review of a DELETE of the Pod.
fn forged(pod: &Value, change: Value) -> Value {
    let mut pod = pod.clone();
    json_patch::merge(&mut pod, &change);
    about(&pod, "DELETE", None)
}

#[tokio::test]
async fn claim_needs_a_stored_pod_equal_to_the_review() {
    let bed = Bed::shared().await;
    let scope = bed.scope("forged-calls").await;
    let pods = scope.web_under_rule(2, json!(1)).await;
    scope.rule("other", json!({"app": "other"}), json!(1)).await;
    let stored = json!(scope.get(&pods[0]).await);
    let highest = u64::MAX.to_string();
    for (change, allowed) in [
        // A real request with a past UID or version fails in the API server, so the server need not hold it.
        (
            json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}}),
            true,
        ),
        (json!({"metadata": {"resourceVersion": "1"}}), true),
        (json!({"metadata": {"resourceVersion": highest}}), false),
        (json!({"metadata": {"labels": {"app": "other"}}}), false),
    ] {
        let request = forged(&stored, change.clone());
        let verdict = bed.forge("/validate/pods", request).await.unwrap();
        assert_eq!(verdict["allowed"], json!(allowed), "{change}: {verdict}");
        for rule in ["web", "other"] {
            let status = scope.status::<RuleStatus>(rule).await;
            assert_eq!(claims(&status), 0, "{change}: {status:?}");
        }
    }
    scope.delete(&pods[1]).await.unwrap();
}

#[tokio::test]
async fn namespaces_without_rules_get_no_enforcement_label() {
    let bed = Bed::shared().await;
    let rule = json!({
        "metadata": { "namespace": "kube-system", "name": "forged" },
        "spec": { "selector": { "matchLabels": { "app": "a" } },
                  "rules": [{ "name": "r", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    let request = json!({
        "uid": "forged", "operation": "CREATE", "namespace": "kube-system", "name": "forged",
        "kind": { "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "PodTransitionRule" },
        "resource": { "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "podtransitionrules" },
        "object": rule,
    });
    let verdict = bed
        .forge("/mutate/podtransitionrules", request)
        .await
        .unwrap();
    assert_eq!(verdict["allowed"], json!(false), "{verdict}");
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(bed.admin());
    let kube_system = namespaces.get("kube-system").await.unwrap();
    let own_keys = kube_system
        .labels()
        .keys()
        .chain(kube_system.annotations().keys());
    let own_keys: Vec<_> = own_keys.filter(|key| key.contains("kusionstack")).collect();
    assert!(own_keys.is_empty(), "{own_keys:?}");
}

#[tokio::test]
async fn calls_need_the_segment_that_the_servers_publish() {
    let bed = Bed::own().await;
    let scope = bed.scope("segments").await;
    let pods = scope.web_under_rule(2, json!(1)).await;
    let plain = bed.paths().await;
    assert!(plain.contains(&"/validate/pods".to_owned()), "{plain:?}");
    // A segment that every replica has known for a long time.
    let secrets: Api<Secret> = Api::namespaced(bed.admin(), HOME);
    let line = format!("{} 2026-01-01T00:00:00Z\n", "5".repeat(32));
    let paths = json!({"data": {"paths": ByteString(line.into_bytes())}});
    let name = "webhook-certs";
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(paths))
        .await
        .unwrap();
    // A replica that starts accepts the segment that was published before its start.
    for _ in 0..2 {
        for replica in 0..3 {
            bed.restart(replica).await;
        }
        until_segments(&bed).await;
    }
    let request = about(&scope.get(&pods[0]).await, "DELETE", None);
    let refused = bed
        .forge_at("/validate/pods", request.clone())
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 403),
        "{refused:?}"
    );
    let verdict = bed.forge("/validate/pods", request).await.unwrap();
    assert_eq!(verdict["allowed"], json!(true), "{verdict}");

    // Calls by a plain path are served after somebody restores the plain paths, until a replica publishes the segment
    // again.
    let api: Api<ValidatingWebhookConfiguration> = Api::all(bed.admin());
    let mut stored = api.get(routes::VALIDATING_CONFIGURATION).await.unwrap();
    for webhook in stored.webhooks.iter_mut().flatten() {
        let url = webhook.client_config.url.as_mut().unwrap();
        *url = url.replacen(&format!("/{}", "5".repeat(32)), "", 1);
    }
    api.replace(
        routes::VALIDATING_CONFIGURATION,
        &PostParams::default(),
        &stored,
    )
    .await
    .unwrap();
    until_segments(&bed).await;
    let installed = bed.operating(&["install", "--webhook-url", bed.url()]);
    assert!(installed.status.success(), "{installed:?}");
    assert!(bed.paths().await.iter().all(|path| has_segment(path)));
    until_gone_or_held(&scope, &pods[1]).await;
}

fn has_segment(path: &str) -> bool {
    path.starts_with(&format!("/{}/", "5".repeat(32)))
        || path.split('/').nth(1).is_some_and(|part| part.len() == 32)
}

/// Asserts that the API server calls the webhooks: a DELETE is admitted, or refused by the rule and by nothing else.
async fn until_gone_or_held(scope: &Scope, pod: &str) {
    if let Err(refused) = scope.delete(pod).await {
        let text = refused.to_string();
        assert!(text.contains("PodTransitionRule"), "{text}");
    }
}

async fn until_segments(bed: &Bed) {
    wait::until("segments in all paths", async || {
        bed.paths().await.iter().all(|path| has_segment(path))
    })
    .await;
}
