//! `operating why` knows that deletions go through the lifecycle.

use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::{Bed, Scope};

use crate::{bed, is_marked, protected};

/// What `why` says of Pod `web`.
fn why(bed: &Bed, scope: &Scope) -> Value {
    let args = ["why", "web", "-n", &scope.namespace, "-o", "json"];
    let output = bed.operating(&args);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn why_says_that_label_check_holds_a_deletion() {
    let bed = bed().await;
    let scope = protected(bed, false).await;
    let said = why(bed, &scope);
    let summary = said["summary"].as_str().unwrap();
    assert!(summary.contains("nothing holds it; a deletion"), "{said}");
    let spec = json!({
        "selector": { "matchLabels": { "app": "web" } },
        "rules": [{ "name": "fit", "labelCheck": { "requires": { "matchLabels": { "fit": "yes" } } } }],
    });
    scope.try_rule("web", spec).await.unwrap();
    let said = why(bed, &scope);
    let next = said["next"][0].as_str().unwrap();
    assert!(next.contains("begins operation pod-delete"), "{said}");
    assert!(next.contains("rule fit of PodTransitionRule web"), "{said}");
    assert!(!is_marked(&scope.get("web").await));
    scope.delete("web").await.unwrap_err();
    let told = "so do deletions and evictions of Pods with the readiness gate";
    let is_told = |status: &RuleStatus| {
        let mut all = status.conditions.iter().filter(|c| c.type_ == "Enforced");
        all.any(|c| c.message.contains(told))
    };
    scope
        .until_status("web", "deletions that wait", is_told)
        .await;
    let held = "waiting for rule fit of PodTransitionRule web";
    testbed::wait::until("the deletion to wait for the rule", async || {
        why(bed, &scope)["summary"].as_str().unwrap().contains(held)
    })
    .await;
}
