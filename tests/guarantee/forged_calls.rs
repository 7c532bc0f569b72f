//! Reviews that no API server sent: whoever reaches the webhooks can send them.

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::bed::call::about;
use crate::bed::objects::claims;

/// What of a DELETE of the Pod is forged.
fn forged(pod: &Value, change: Value) -> Value {
    let mut pod = pod.clone();
    json_patch::merge(&mut pod, &change);
    about(&pod, "DELETE", None)
}

#[tokio::test]
async fn claim_is_written_only_for_a_pod_that_is_stored_as_the_review_shows_it() {
    let bed = Bed::shared().await;
    let scope = bed.scope("forged-calls").await;
    let pods = scope.web_under_rule(2, json!(1)).await;
    scope.rule("other", json!({"app": "other"}), json!(1)).await;
    let stored = json!(scope.get(&pods[0]).await);
    let highest = u64::MAX.to_string();
    for (change, allowed) in [
        // Of a UID or a version that is past, a real request is bound to fail: nothing needs to be held.
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
            let status = scope.status(rule).await;
            assert_eq!(claims(&status), 0, "{change}: {status:?}");
        }
    }
    scope.delete(&pods[1]).await.unwrap();
}

#[tokio::test]
async fn namespaces_that_have_no_rules_get_no_mark() {
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
    let home = namespaces.get("kube-system").await.unwrap();
    let marks = home.labels().keys().chain(home.annotations().keys());
    let marks: Vec<_> = marks.filter(|key| key.contains("kusionstack")).collect();
    assert!(marks.is_empty(), "{marks:?}");
}
