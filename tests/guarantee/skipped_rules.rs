//! Rules that a Pod skips by its annotation: Events and a metric report each disruption past such a rule.

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use operating::api::keys;
use serde_json::json;
use testbed::scope::refusal;
use testbed::{Bed, wait};

#[tokio::test]
async fn disruption_past_a_skipped_rule_is_reported() {
    let bed = Bed::shared().await;
    let scope = bed.scope("skip").await;
    let pods = scope.web_under_rule(3, json!(0)).await;
    refusal(scope.delete(&pods[0]).await);
    let skip = r#"{"skipRules":["availability"]}"#;
    let skip = json!({"metadata": {"annotations": {keys::SKIP_RULE_CONDITIONS: skip}}});
    scope.patch(&pods[0], skip).await.unwrap();
    scope.delete(&pods[0]).await.unwrap();
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    for (kind, name) in [("Pod", pods[0].as_str()), ("PodTransitionRule", "web")] {
        wait::until(&format!("the Event on {kind} {name}"), async || {
            let all = events.list(&ListParams::default()).await.unwrap();
            all.iter().any(|e| {
                e.reason.as_deref() == Some("RuleSkipped")
                    && e.type_.as_deref() == Some("Warning")
                    && e.involved_object.kind.as_deref() == Some(kind)
                    && e.involved_object.name.as_deref() == Some(name)
                    && e.message
                        .as_deref()
                        .is_some_and(|m| m.contains("web, rule availability"))
            })
        })
        .await;
    }
    let counted: f64 = bed
        .metric("operating_rules_skipped_total")
        .await
        .into_iter()
        .sum();
    assert!(counted >= 1.0, "{counted}");
    // Pods without the annotation are held as before.
    refusal(scope.delete(&pods[1]).await);
}
