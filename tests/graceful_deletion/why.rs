//! `operating why` reports that deletions go through the lifecycle.

use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::{Bed, Scope};

use crate::{bed, is_marked, protected};

/// The output of `why` for Pod `web`.
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
    let diagnosis = why(bed, &scope);
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(
        summary.contains("nothing holds it; a deletion"),
        "{diagnosis}"
    );
    let spec = json!({
        "selector": { "matchLabels": { "app": "web" } },
        "rules": [{ "name": "fit", "labelCheck": { "requires": { "matchLabels": { "fit": "yes" } } } }],
    });
    scope.try_rule("web", spec).await.unwrap();
    let diagnosis = why(bed, &scope);
    let next = diagnosis["next"][0].as_str().unwrap();
    assert!(next.contains("begins operation pod-delete"), "{diagnosis}");
    assert!(
        next.contains("rule fit of PodTransitionRule web"),
        "{diagnosis}"
    );
    assert!(!is_marked(&scope.get("web").await));
    scope.delete("web").await.unwrap_err();
    let message = "so do deletions and evictions of Pods with the readiness gate";
    let is_told = |status: &RuleStatus| {
        let mut all = status.conditions.iter().filter(|c| c.type_ == "Enforced");
        all.any(|c| c.message.contains(message))
    };
    scope
        .until_status("web", "deletions that wait", is_told)
        .await;
    let summary = "waiting for rule fit of PodTransitionRule web";
    testbed::wait::until("the deletion to wait for the rule", async || {
        why(bed, &scope)["summary"]
            .as_str()
            .unwrap()
            .contains(summary)
    })
    .await;
}
